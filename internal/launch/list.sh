#!/bin/bash
# list: [look]. Reports all runs that the worker knows, of every login. With look it records
# nothing.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local file path mine
  local -A shown=()
  local see=settle
  if [[ ${1-} == look ]]; then see=look; fi
  enter
  now_ns
  say now "$REPLY"
  for file in "$index"/*.run; do
    [[ -f $file ]] || continue
    look_entry "$file"
    mine=0
    if [[ $entry_dir == "$home"/.multihost/runs/* && -O $file ]]; then
      mine=1
      [[ -d $entry_dir ]] || continue
      "$see" "$entry_dir"
      shown[$entry_dir]=1
    fi
    print
  done
  # A reboot empties /tmp, and so the index. So read our own runs from the home, too.
  for path in "$home"/.multihost/runs/*/*; do
    if [[ ${shown[$path]-} || ! -s $path/supervisor ]]; then continue; fi
    mine=1 entry_dir=$path entry_attempt=${path##*/}
    entry_run=${path%/*}
    entry_run=${entry_run##*/}
    entry_login=$(id -un) entry_owner='' entry_command='' entry_venv=0 entry_slices=0
    read_meta "$path/meta"
    "$see" "$path"
    print
  done
}

read_meta() {
  local key value
  while IFS='=' read -r key value; do
    case $key in
      owner) entry_owner=$value ;;
      command) entry_command=$value ;;
      venv) entry_venv=$value ;;
      slices) entry_slices=$value ;;
    esac
  done 2>/dev/null <"$1"
}

print() {
  local verdict stopped
  # shellcheck disable=SC2034 # followers_of adds to it
  local stale=()
  tell "$entry_run" "$entry_attempt" "$entry_dir"
  say mine "$mine"
  say login "$entry_login"
  say owner "$entry_owner"
  say command "$entry_command"
  if [[ $entry_venv == 1 ]]; then say venv 1; fi
  if [[ $entry_slices != 0 ]]; then say slices "$entry_slices"; fi
  if ((mine)) && [[ $phase == running ]]; then
    followers_of "$entry_dir"
    say followers "$REPLY"
  fi
  if ((mine)) && { read -r verdict <"$entry_dir/verdict"; } 2>/dev/null; then say verdict "$verdict"; fi
  if ((mine)) && [[ -e $entry_dir/seen ]]; then say seen 1; fi
  if ((mine)) && { read -r stopped <"$entry_dir/stopped"; } 2>/dev/null; then say stopped "$stopped"; fi
}

main "$@"
