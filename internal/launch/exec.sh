#!/bin/bash
# exec: GRACE_MS SUDO SIZE. Runs a command. Its words, each followed by a NUL, are SIZE
# bytes on stdin. Without all of them nothing runs. After the line "stream", stdout and
# stderr have the command's output. The last line of stderr reports how the command ended.
# At the end of stdin, exec ends all processes of the command.
#
# shellcheck disable=SC2034,SC2154 # lib.sh reads and sets variables of this script
main() {
  local grace_ms=$1 sudo=$2 size=$3 code watcher stopped=0 found=0 killed=0
  local -a words environment through_env
  enter
  exec 3<&0 </dev/null
  mapfile -d '' -t words < <(head -c "$size" <&3)
  whole || fail 'the command did not arrive whole'
  mark=MULTIHOST_EXEC=$nonce
  as_root=() pids=()
  inherit
  if ((sudo)); then through_env=(); fi
  words=(env "${through_env[@]}" "$mark" "${words[@]}")
  if ((sudo)); then elevate; fi
  say stream
  say stream >&2
  # The command starts in a process substitution, because bash starts a background job with
  # SIGINT ignored. The process in the substitution leads no process group, so setsid need
  # not fork. It waits for a line before it starts the command. If it ended before bash has
  # recorded it, bash 5.2 would wait for ever (seen on a busy machine).
  exec 4>&1 5>&2
  exec 6> >(
    read -r || exit
    exec </dev/null >&4 2>&5 3<&- 4>&- 5>&-
    become setsid "${words[@]}"
  )
  pid=$!
  start_of "$pid"
  start=$REPLY
  echo >&6
  exec >/dev/null 2>&1 4>&- 6>&-
  trap 'stopped=1' TERM HUP
  # Repeat the signal, because a signal right before "wait" does not end the wait.
  {
    while IFS= read -r _; do :; done
    while kill -s TERM $$; do sleep 0.2; done
  } <&3 3<&- 5>&- &
  watcher=$!
  exec 3<&-
  if ((! stopped)); then wait "$pid"; fi
  code=$?
  kill "$watcher"
  if ((stopped)); then end_all "$grace_ms" find_bound; fi
  say exit "$code" "${#pids[@]}" "$stopped" >&5
  return "$code"
}

# whole succeeds if all words came. If the connection breaks, the words so far would be
# another command.
whole() {
  local LC_ALL=C word have=0 # with LC_ALL=C lengths are in bytes
  for word in "${words[@]}"; do ((have += ${#word} + 1)); done
  ((have == size))
}

# elevate makes root run the command. It uses sudo even if this login is root, so that the
# command has the same environment on every worker that has sudo.
elevate() {
  local error
  if type -P sudo >/dev/null; then
    error=$(timeout -k 1 20 sudo -n true 2>&1) || fail "${error:-sudo is refused}"
    as_root=(sudo -n)
    words=(sudo -n -- "${words[@]}")
  elif ((EUID)); then
    fail 'sudo is not installed'
  fi
}

# find_bound puts the processes of the command into the array pids. These are
#
#   - the processes of its session, unless another process now has the session's number;
#   - the processes that have its mark in their environment;
#   - the descendants of all these.
find_bound() {
  local leader=$pid path
  local -A ours=() parents=()
  if [[ -d /proc/$pid ]] && start_of "$pid" && [[ $REPLY != "$start" ]]; then leader=0; fi
  while IFS= read -r path; do
    path=${path#/proc/}
    ours[${path%/environ}]=1
  done < <("${as_root[@]}" grep -lzFx -e "$mark" /proc/[0-9]*/environ 2>/dev/null)
  everybody
  kin
}

main "$@"
