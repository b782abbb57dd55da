#!/bin/bash
# tail: RUN ATTEMPT BYTES. After the line "stream", stdout carries the last bytes
# that the command wrote, also those that are not in its log any more.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local dir all first
  enter
  dir=$home/.multihost/runs/$1/$2
  look "$dir"
  if [[ $phase == unknown ]]; then
    say unknown
    return
  fi
  written "$dir"
  all=$REPLY
  first=$((all - $3))
  limit_of "$dir"
  # Between the limit and the kept end nothing is left.
  if ((all > REPLY && first < all - 65536)); then first=$((all - 65536 > REPLY ? all - 65536 : REPLY)); fi
  say stream
  tail -c +$(((first > 0 ? first : 0) + 1)) -- "$dir/output.log" | head -c "$3"
}

main "$@"
