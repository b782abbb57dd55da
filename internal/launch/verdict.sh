#!/bin/bash
# verdict: RUN ATTEMPT TEXT [FILE]. Stores TEXT, which says how the attempt ended on all
# workers; a worker does not know that by itself. FILE is where, "verdict" without it.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local dir file=${4:-verdict}
  enter
  dir=$home/.multihost/runs/$1/$2
  look "$dir"
  case $phase in
    exited | lost) ;;
    *)
      say unknown
      return
      ;;
  esac
  # Whether there is a file "seen" is all that counts, so no half of it can mislead.
  if [[ $file == seen ]]; then
    printf '%s\n' "$3" >"$dir/seen" || fail "write $dir/seen"
  else
    replace "$dir/$file" "$3" || fail "write $dir/$file"
  fi
  say kept
}

main "$@"
