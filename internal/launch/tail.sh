#!/bin/bash
# tail: RUN ATTEMPT BYTES. After the line "stream", stdout carries the last BYTES bytes
# that the command wrote, including those that were dropped from its log.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local dir bytes=$3 more
  enter
  dir=$home/.multihost/runs/$1/$2
  look "$dir"
  if [[ $phase == unknown ]]; then
    say unknown
    return
  fi
  size_of "$dir/dropped"
  more=$REPLY
  say stream
  if ((more > 65536)); then # between the log and the last 64 KiB, bytes are missing
    tail -c "$((bytes < 65536 ? bytes : 65536))" -- "$dir/dropped"
  elif ((more >= bytes)); then
    tail -c "$bytes" -- "$dir/dropped"
  else
    tail -c "$((bytes - more))" -- "$dir/output.log"
    cat -- "$dir/dropped"
  fi | head -c "$bytes"
}

main "$@"
