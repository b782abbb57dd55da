#!/bin/bash
# digest: RUN ATTEMPT SIZE. Reports the SHA-256 of the first SIZE bytes of the log, or of
# the whole log if it is shorter or SIZE is negative.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local dir size=$3 sum
  enter
  dir=$home/.multihost/runs/$1/$2
  look "$dir"
  if [[ $phase == unknown ]]; then
    say unknown
    return
  fi
  log_size "$dir"
  if ((size < 0 || size > REPLY)); then size=$REPLY; fi
  sum=$(head -c "$size" -- "$dir/output.log" | sha256sum) || fail "read $dir/output.log"
  say digest "$size" "${sum%% *}"
}

main "$@"
