#!/bin/bash
# tail: RUN ATTEMPT BYTES. After the line "stream", stdout carries the last bytes
# that the command wrote, also those that are not in its log any more.
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
  if ((more > 65536)); then # nothing is left of what was before
    tail -c "$((bytes < 65536 ? bytes : 65536))" -- "$dir/dropped"
  elif ((more >= bytes)); then
    tail -c "$bytes" -- "$dir/dropped"
  else
    tail -c "$((bytes - more))" -- "$dir/output.log"
    cat -- "$dir/dropped"
  fi | head -c "$bytes"
}

main "$@"
