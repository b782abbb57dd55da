#!/bin/bash
# follow: RUN ATTEMPT OFFSET follow|read [look]. After the line "stream SIZE",
# stdout carries the bytes of output.log from OFFSET and nothing else. To follow,
# each line of stdin asks for a number of bytes, which are sent as they come; then
# the size is said on stderr, and the next line is awaited. When all is sent, the
# state goes to stderr. With look nothing is recorded.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 offset=$3 mode=$4 dir want=0 job='' part status
  see=settle
  if [[ ${5-} == look ]]; then see=look; fi
  enter
  dir=$home/.multihost/runs/$run/$attempt
  "$see" "$dir"
  if [[ $phase == unknown ]]; then
    say unknown
    return
  fi
  log_size "$dir"
  if ((REPLY < offset)); then
    say truncated "$REPLY"
    tell "$run" "$attempt" "$dir"
    return
  fi
  say stream "$REPLY"
  if [[ $mode == read ]]; then
    copy "$((REPLY - offset))"
    "$see" "$dir"
    tell "$run" "$attempt" "$dir" >&2
    return
  fi
  if [[ $see == settle ]]; then be_there; fi
  # The end of stdin is the end of the connection, or the wish to end: whoever
  # waits for output, here or in a tool, would not see it.
  want=''
  while :; do
    part=''
    read -r -t 5 part
    status=$?
    want+=$part
    if ((status > 128)); then
      # A piece that could start no process has ended and said nothing. Our end
      # says it: the caller tries again.
      if [[ $job ]] && ! start_of "$job"; then
        wait "$job" || return
        job=''
      fi
      continue
    fi
    if ((status)) || [[ ! $want =~ ^[0-9]{1,15}$ ]]; then break; fi
    if [[ $job ]]; then wait "$job" || return; fi
    piece "$want" &
    job=$!
    offset=$((offset + want))
    want=''
  done
  if [[ $job ]]; then kill "$job" 2>/dev/null; fi
}

# be_there lets followers_of find us, until we end.
be_there() {
  local stale=()
  followers_of "$dir"
  if ((${#stale[@]})); then rm -f -- "${stale[@]}"; fi
  start_of $$ && printf '%s %s %s\n' $$ "$REPLY" "$boot" >"$dir/follower.$$"
} 2>/dev/null

# copy BYTES of those that are there.
copy() {
  if (($1 == 0)); then return; fi
  dd if="$dir/output.log" bs=1M iflag=skip_bytes,count_bytes skip="$offset" count="$1" status=none
}

# piece BYTES, as they come, until the run has ended or its log is full.
piece() {
  local want=$1 room watched source='' sink='' whole=1 status
  trap 'kill $source $sink 2>/dev/null; exit' TERM
  look "$dir"
  log_size "$dir"
  if ((REPLY < offset)); then # somebody cut it
    say truncated "$REPLY" >&2
    finish
    return
  fi
  room=$((REPLY - offset))
  if ((room >= want)); then
    copy "$want"
  elif [[ $phase != running && $phase != starting ]]; then
    copy "$room"
    finish
    return
  else
    lasting
    watched=$REPLY
    limit_of "$dir"
    room=$((REPLY - offset < want ? REPLY - offset : want))
    if ((room > 0)); then
      exec 6< <(LC_ALL=C exec tail -c +$((offset + 1)) -f -s 0.2 --pid="$watched" -- "$dir/output.log")
      source=$!
      # Not buffered: a line is seen when it is printed.
      stdbuf -o0 head -c "$room" <&6 &
      sink=$!
      exec 6<&-
      say waiting >&2
      wait "$sink" || whole=0
      # All was sent if the reader had to be ended by us or by the closed pipe. If
      # the run has ended, it may have done so by itself: then the caller counts.
      kill "$source" 2>/dev/null || whole=0
      wait "$source"
      status=$?
      if ((status != 128 + 13 && !(whole && status == 128 + 15))) || ! start_of "$watched"; then
        finish
        return
      fi
    fi
    if ((room < want)); then # nothing more than the end is to come
      say full "$((offset + room))" >&2
      exec 6< <(exec tail -f -s 0.2 --pid="$watched" /dev/null)
      source=$!
      exec 6<&-
      say waiting >&2
      wait "$source"
      finish
      return
    fi
  fi
  log_size "$dir"
  if ((REPLY < offset + want)); then
    say truncated "$REPLY" >&2
    finish
    return
  fi
  say size "$REPLY" >&2
  disk_of "$dir"
  say disk "$REPLY" >&2
}

# lasting: the process whose end is that of the run: the one whose end the
# supervisor collects, because a supervisor that ended stays visible until
# process 1 collects it.
lasting() {
  if ((!waiter)); then
    REPLY=$sup
  elif start_of "$waiter"; then
    REPLY=$waiter
  else
    REPLY=$pid
  fi
}

# finish waits until the end is recorded, and tells it.
finish() {
  local i
  for ((i = 0; i < 100; i++)); do
    look "$dir"
    if ((!supervised)) || [[ $phase != running ]]; then break; fi
    if alive "$pid" "$start" "$sup_boot"; then break; fi
    doze 0.05
  done
  "$see" "$dir"
  tell "$run" "$attempt" "$dir" >&2
  say end >&2
}

main "$@"
