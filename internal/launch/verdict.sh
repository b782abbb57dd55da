#!/bin/bash
# verdict: RUN ATTEMPT TEXT. Stores TEXT, which says how the attempt ended on all
# workers; a worker does not know that by itself.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local dir
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
  if ! { printf '%s\n' "$3" >"$dir/verdict.$$" && mv -f -- "$dir/verdict.$$" "$dir/verdict"; }; then
    rm -f -- "$dir/verdict.$$"
    fail "write $dir/verdict"
  fi
  say kept
}

main "$@"
