#!/bin/bash
# follow: RUN ATTEMPT OFFSET follow|read|BYTES [look]. After the line "stream SIZE", stdout
# has only bytes of output.log from OFFSET on: all bytes that exist, or at most BYTES. With
# "follow", each line of stdin asks for a number of bytes. This script sends the bytes as they
# come. Then it sends the size of the log to stderr and reads the next line. At the end, the
# state of the run goes to stderr. With look, follow records nothing.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
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
  if [[ $mode != follow ]]; then
    want=$((REPLY - offset))
    if [[ $mode != read ]] && ((mode < want)); then want=$mode; fi
    copy "$want"
    "$see" "$dir"
    tell "$run" "$attempt" "$dir" >&2
    return
  fi
  if [[ $see == settle ]]; then be_there; fi
  # stdin ends when the connection ends, or when the caller wants no more bytes. Only this
  # loop reads stdin, because a process that waits for output would not notice the end.
  want=''
  while :; do
    part=''
    read -r -t 5 part
    status=$?
    want+=$part
    if ((status > 128)); then
      # If a piece could not start a process, it has ended without a report. Then this
      # script ends, and the caller retries.
      if [[ $job ]] && ! start_of "$job"; then
        wait "$job" || return
        job=''
      fi
      continue
    fi
    if ((status)) || [[ ! $want =~ ^[0-9]{1,15}$ ]]; then break; fi
    if [[ $job ]]; then wait "$job" || return; fi
    job=''
    if ((offset == 0)); then linger; fi
    look "$dir"
    log_size "$dir"
    if ((REPLY == offset)) && [[ $phase != running && $phase != starting ]]; then
      piece "$want" # here, piece only reports the end
    else
      (
        trap 'kill ${source-} ${sink-} 2>/dev/null; exit' TERM
        piece "$want"
      ) &
      job=$!
    fi
    offset=$((offset + want))
    want=''
  done
  if [[ $job ]]; then kill "$job" 2>/dev/null; fi
}

# linger waits up to a second for the first byte or the end. So a command that ends at once
# costs no processes to follow it.
linger() {
  local i pause_ms=10
  for ((i = 0; i < 25; i++)); do
    look "$dir"
    if [[ -s $dir/output.log || $phase != running && $phase != starting ]]; then return; fi
    printf -v REPLY '0.%03d' "$pause_ms"
    doze "$REPLY"
    pause_ms=$((pause_ms < 50 ? pause_ms * 3 / 2 : 50))
    if read -r -t 0; then return; fi
  done
}

# be_there writes a file for this script. followers_of counts this script as long as it
# lives.
be_there() {
  local stale=()
  followers_of "$dir"
  if ((${#stale[@]})); then rm -f -- "${stale[@]}"; fi
  start_of $$ && printf '%s %s %s\n' $$ "$REPLY" "$boot" >"$dir/follower.$$"
} 2>/dev/null

# copy BYTES sends existing bytes of the log, from offset on.
copy() {
  if (($1 == 0)); then return; fi
  dd if="$dir/output.log" bs=1M iflag=skip_bytes,count_bytes skip="$offset" count="$1" status=none
}

# piece BYTES sends bytes as they come, until the run has ended or its log is full.
piece() {
  local want=$1 room watched source='' sink='' whole=1 status
  look "$dir"
  log_size "$dir"
  if ((REPLY < offset)); then # somebody cut the log
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
      # The output is not buffered, so that a line is sent when it is printed.
      stdbuf -o0 head -c "$room" <&6 &
      sink=$!
      exec 6<&-
      say waiting >&2
      wait "$sink" || whole=0
      # If our kill or the closed pipe ended the reader, it has sent all bytes. A reader
      # also ends by itself after the end of the run. Then the caller counts the bytes.
      kill "$source" 2>/dev/null || whole=0
      wait "$source"
      status=$?
      if ((status != 128 + 13 && ! (whole && status == 128 + 15))) || ! start_of "$watched"; then
        finish
        return
      fi
    fi
    if ((room < want)); then # the log is full: only the end of the run is still to come
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

# lasting sets REPLY to the process that ends last in the run. This is the process that the
# supervisor waits for, if it is known: an ended supervisor itself stays visible until
# process 1 collects it.
lasting() {
  if ((! waiter)); then
    REPLY=$sup
  elif start_of "$waiter"; then
    REPLY=$waiter
  else
    REPLY=$pid
  fi
}

# finish waits for the record of the end, and reports it.
finish() {
  local i
  for ((i = 0; i < 100; i++)); do
    look "$dir"
    if ((! supervised)) || [[ $phase != running ]]; then break; fi
    if alive "$pid" "$start" "$sup_boot"; then break; fi
    doze 0.05
  done
  "$see" "$dir"
  tell "$run" "$attempt" "$dir" >&2
  say end >&2
}

main "$@"
