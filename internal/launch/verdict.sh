#!/bin/bash
# verdict: RUN ATTEMPT TEXT [FILE]. Stores TEXT, which says how the attempt ended on all
# workers, because a worker does not know that by itself. FILE is the name of the file,
# verdict by default.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
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
  # Only the existence of the file "seen" matters, so a part of its text is enough.
  if [[ $file == seen ]]; then
    printf '%s\n' "$3" >"$dir/seen" || fail "write $dir/seen"
  else
    replace "$dir/$file" "$3" || fail "write $dir/$file"
  fi
  say kept
}

main "$@"
