#!/bin/bash
# arm: RUN ATTEMPT SIZES... Takes the worker's lock, writes the payload that
# follows on stdin, and has a supervisor wait for the word "go" there. Anything
# else, or the end of stdin, leaves nothing behind. The texts of the supervisor's
# scripts are in variables.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 mask dir entry line order error
  shift 2
  mask=$(umask)
  umask 077
  enter
  dir=$home/.multihost/runs/$run/$attempt
  entry=$index/$UID-$run-$attempt.run
  prepare_index
  exec 9<"$index/lock" || fail "open $index/lock"
  # The short wait lets a run that is just ending let go.
  flock -w 0.3 9 || busy
  if [[ -e $dir/started ]]; then
    say already
    exit 1
  fi
  error=$({ rm -rf -- "$dir" && mkdir -p -- "$dir"; } 2>&1) || fail "$error"
  say boot "$boot"
  say disk output "$(disk_of "$home")"
  if [[ $(stat -c %d -- "$index") != "$(stat -c %d -- "$home")" ]]; then say disk tmp "$(disk_of "$index")"; fi
  error=$(unpack "$dir" "$@" 2>&1) || abandon "$dir" "write below $dir: ${error##*$'\n'}"

  # The supervisor reads its order from a FIFO that we hold open for writing: it
  # sees the end of the FIFO when we die, and a later connection can still give
  # the order when this one is lost in the middle of it. exec, because bash
  # starts a background child with SIGINT ignored, and exec undoes that.
  exec 4<>"$dir/control"
  exec 8< <(exec setsid --fork bash --norc --noprofile -p "$dir/supervise" \
    "$nonce" "$run" "$attempt" "$dir" "$entry" "$mask" </dev/null 2>>"$dir/supervisor.log")
  exec 9<&-
  IFS= read -r line <&8 ||
    abandon "$dir" "the supervisor did not start: $(tail -n 1 "$dir/supervisor.log" 2>/dev/null)"
  printf '%s\n' "$line"
  order=
  IFS= read -r order || order=
  if [[ $order == go ]]; then printf 'go\n' >&4; fi
  exec 4>&-
  while IFS= read -r line <&8; do printf '%s\n' "$line"; done
}

abandon() { # DIR TEXT
  rm -rf -- "$1"
  rmdir -- "${1%/*}" 2>/dev/null
  fail "$2"
}

prepare_index() {
  local error=
  if [[ ! -d $index ]]; then error=$(mkdir -m 1777 -- "$index" 2>&1); fi
  if [[ ! -d $index || -L $index ]]; then fail "${error:-make $index: it is no directory}"; fi
  if [[ ! -e $index/lock ]]; then
    error=$(
      umask 022
      set -C
      exec 2>&1
      : >"$index/lock"
    )
  fi
  [[ -r $index/lock && ! -L $index/lock ]] || fail "${error:-read $index/lock: it is no readable file}"
}

# unpack DIR SIZES...: the files of the attempt, in the order in which they come.
# exit.new is written full now, so that the end can be recorded on a full disk.
unpack() {
  local dir=$1 file
  shift
  printf '%s\n' "$text_lib" "$text_supervise" >"$dir/supervise" || return
  printf '%s\n' "$text_lib" "$text_start" >"$dir/start" || return
  for file in meta argv env script limit; do
    head -c "$1" >"$dir/$file" || return
    shift
  done
  for file in output.log dropped lost relay; do
    : >"$dir/$file" || return
  done
  printf '%4000s\n' '' >"$dir/exit.new" && mkfifo -- "$dir/control" "$dir/output" || return
}

busy() {
  local file
  now
  say busy "$REPLY"
  for file in "$index"/*.run; do
    [[ -f $file ]] || continue
    look_entry "$file"
    if [[ $phase == running || $phase == starting ]]; then
      tell "$entry_run" "$entry_attempt" "$entry_dir"
      say login "$entry_login"
      say owner "$entry_owner"
      say command "$entry_command"
    fi
  done
  exit 1
}

main "$@"
