#!/bin/bash
# supervise: RUN ATTEMPT DIR ENTRY UMASK. Waits for "go" on the FIFO, starts the
# command in a session of its own, waits for it, and records how it ended. Holds
# the worker's lock on descriptor 9 meanwhile.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 dir=$3 entry=$4 mask=$5
  local order='' word pid start at waiter started scope kills code signal='' name='' oom=0 lost=0 size reason
  local limit most reserved=0 dropped=0 pause fields
  cd /
  umask 077
  boot_id
  boot=${REPLY:-none}
  start_of $$
  start=$REPLY
  now
  at=$REPLY
  printf '%s %s %s %s\n' $$ "$start" "$boot" "$at" >"$dir/supervisor" || give_up failed "write $dir/supervisor"
  note "dir=$dir" "run=$run" "attempt=$attempt" "login=$(id -un)" "$(<"$dir/meta")" \
    "supervisor=$$ $start $boot $at"
  # Handlers, not '': an ignored signal would stay ignored in the command.
  trap 'poked=1' HUP INT QUIT PIPE TERM USR1 USR2
  exec 3<"$dir/control" 4>&-
  say armed $$ "$at"
  IFS= read -r order <&3 || order=
  exec 3<&-
  if [[ $order != go ]]; then give_up aborted; fi

  scope
  oom_kills
  kills=$REPLY
  # setsid --wait tells on stderr a death by signal from an exit with 128+n, which
  # $? of a shell does not. It keeps the lock too: it is released only when both
  # we and the command are gone.
  exec 5< <(exec setsid --fork --wait bash --norc --noprofile -p "$dir/start" \
    "$nonce" "$run" "$attempt" "$dir" "$mask" </dev/null 2>"$dir/waiter")
  waiter=$!
  word=''
  read -r word started <&5
  if [[ $word != started ]]; then give_up failed "${started:-$(tail -n 1 "$dir/waiter")}"; fi
  split "$started"
  pid=${fields[0]} start=${fields[1]} at=${fields[2]}
  say started "$pid" "$at"
  exec >/dev/null # the connection is free to end
  rm -f -- "$dir/env" "$dir/control"
  note "started=$started"

  keep_log
  attend "$waiter"
  now
  at=$REPLY
  if [[ -s $dir/waiter ]]; then
    signal=$((code & 127)) # 128: it dumped core
    code=$((128 + signal))
    name=$(kill -l "$signal")
  elif ((code > 128)) && alive "$pid" "$start" "$boot"; then
    # Somebody killed the process that waits for the command.
    tail -f --pid="$pid" /dev/null
    now
    at=$REPLY code=255 lost=1
  fi
  reason=
  if [[ -s $dir/stop ]]; then IFS= read -r reason <"$dir/stop"; fi
  if ((code)) && out_of_memory; then oom=1; fi
  written "$dir"
  dropped=$((dropped + REPLY))
  log_size "$dir"
  size=$REPLY
  dropped=$((dropped > size ? dropped - size : 0))
  exec 9<&- # before the end is seen: who sees it may start the next run at once
  printf 'code=%s\nsignal=%s\nend=%s\nsize=%s\noom=%s\nlost=%s\ndropped=%s\nreason=%s\n' \
    "$code" "$name" "$at" "$size" "$oom" "$lost" "$dropped" "$reason" 1<>"$dir/exit.new"
  mv -n -- "$dir/exit.new" "$dir/exit"
  note "exit_code=$code" "exit_signal=$name" "exit_end=$at" "exit_size=$size" "exit_oom=$oom" \
    "exit_lost=$lost" "exit_dropped=$dropped" "exit_reason=$reason"
  prune "${dir%/*/*}"
}

# keep_log looks after the log until the command has ended, which ends the pipe
# from the waiter. The command writes to the file itself: nothing stands between
# them that could lose a byte, block the command, or die and take it along. So
# the limit is kept by giving the disk what lies behind it back, again and again:
# the file goes on growing by its size, which counts the bytes, not by its blocks.
# How soon to look again follows from how long a disk takes to fill the room.
keep_log() {
  local word
  limit_of "$dir"
  most=$REPLY
  while :; do
    trim
    read -r -t "$pause" word <&5
    if (($? <= 128)); then break; fi
  done
  exec 5<&-
}

# The disk is low when no more is free than this, or a fiftieth of it.
low_bytes=1000000000
# What of the dropped end is kept: the last words of a command are worth more
# than all before. And what the log has reserved on the disk ahead of its end, so
# that the command can go on printing when others have filled the disk.
tail_bytes=65536
ahead_bytes=1048576

# trim: dropped is what is no longer counted by the size of the file.
trim() {
  local all free=0 low room
  written "$dir"
  all=$REPLY
  limit_of "$dir"
  limit=$REPLY
  split "$(stat -f -c '%a %b %S' -- "$dir" 2>/dev/null) 0 0 0"
  free=$((fields[0] * fields[2])) low=$((fields[1] * fields[2] / 50))
  if ((low > low_bytes)); then low=$low_bytes; fi
  if ((fields[1] == 0)); then free=$low_bytes low=0; fi # it does not tell
  while ((free < low && limit > all + ahead_bytes)); do
    # A follower may be past all by now, but not past what is there once the new
    # limit is: see log_size.
    limit=$((all + ahead_bytes))
    printf '%20d\n' "$limit" 1<>"$dir/limit"
    written "$dir"
    all=$REPLY
    if ((all <= limit)); then break; fi
  done
  if ((limit < most && all < limit && free > 2 * low)); then
    limit=$most
    printf '%20d\n' "$limit" 1<>"$dir/limit"
  fi
  if ((all > limit + tail_bytes)); then
    if ! fallocate --punch-hole --offset "$limit" --length "$((all - tail_bytes - limit))" -- "$dir/output.log" 2>/dev/null; then
      truncate --size="$limit" -- "$dir/output.log"
      dropped=$((dropped + all - limit))
      all=$limit
    fi
  fi
  if ((reserved < all + ahead_bytes / 2)); then
    reserved=$((all + ahead_bytes))
    fallocate --keep-size --offset "$all" --length "$ahead_bytes" -- "$dir/output.log" 2>/dev/null || reserved=0
  fi
  room=$((limit - all < free - low ? limit - all : free - low))
  pause=$((room / 1000000000))
  if ((pause < 1)); then pause=1; fi
  if ((pause > 30)); then pause=30; fi
}

# note appends lines to our file of the index, which every login can read.
note() {
  umask 022
  printf '%s\n' "$@" >>"$entry" 2>/dev/null
  umask 077
}

# attend PID: its status in code. A signal to us ends bash's wait early.
attend() {
  local status
  code=
  while :; do
    poked=
    wait "$1" 2>/dev/null
    status=$?
    if ((status == 127)) && [[ $code ]]; then return; fi # it was collected before
    code=$status
    if [[ ! $poked ]] || ((code <= 128)); then return; fi
  done
}

# give_up WORD TEXT: nothing was started; nothing is left.
give_up() {
  rm -rf -- "$dir" "$entry"
  rmdir -- "${dir%/*}" 2>/dev/null
  exec 9<&-
  say "$@"
  exit 0
}

# scope records the control group of the SSH session that we are in, which a
# process cannot leave by cleaning its environment and leaving its session.
scope() {
  cgroup_of $$
  scope=$REPLY
  if [[ $scope == */session-*.scope ]]; then printf '%s\n' "$scope" >"$dir/scope"; fi
}

# oom_kills: how many processes the kernel has killed for want of memory in that
# control group.
oom_kills() {
  local line key value
  REPLY=0
  line=${MULTIHOST_ROOT_SYS-}/sys/fs/cgroup${scope%/}/memory.events
  if [[ ! -r $line ]]; then return; fi
  while read -r key value; do
    if [[ $key == oom_kill ]]; then REPLY=$value; fi
  done <"$line"
}

# out_of_memory: the kernel killed a process of the run for want of memory, by
# the count of its control group or, where nobody counts and the command was
# killed, by the kernel's log. There a record is
# "6,1234,98765432,-;Out of memory: Killed process 42 (python) ..." with
# microseconds since the start of the machine; a tick is a hundredth of a second.
out_of_memory() {
  local line text time
  oom_kills
  if ((REPLY > kills)); then return 0; fi
  if [[ $name != KILL && $code != 137 || $reason ]]; then return 1; fi
  while IFS= read -r line; do
    [[ $line == [0-9]*,[0-9]*,[0-9]*\;* ]] || continue
    text=${line#*;}
    time=${line#*,*,}
    time=${time%%[,;]*}
    if ((time < start * 10000)); then continue; fi
    if [[ $text == *"Killed process $pid ("* || $text == oom-kill:*,"pid=$pid,"* ]]; then return 0; fi
    if [[ $scope == */session-*.scope && $text == oom-kill:*",task_memcg=$scope,"* ]]; then return 0; fi
  done < <(kernel_log)
  return 1
}

# kernel_log: each read of the device is one record; it ends with an error.
kernel_log() {
  local -a reader=(dd if="${MULTIHOST_ROOT_DEV-}/dev/kmsg" iflag=nonblock bs=8192 status=none)
  if [[ ! -e ${MULTIHOST_ROOT_DEV-}/dev/kmsg ]]; then return; fi
  privileged
  "${as_root[@]}" "${reader[@]}" 2>/dev/null
}

# prune RUNS removes this login's ended attempts that have 20 newer ones or were
# armed more than 30 days ago; while less than a tenth of the disk is free, those
# that have 3 newer ones.
prune() {
  local old seen=0 armed path now_ns keep=20 fields
  split "$(stat -f -c '%a %b' -- "$1" 2>/dev/null) 0 0"
  if ((fields[0] * 10 < fields[1])); then keep=3; fi
  now
  now_ns=$REPLY
  while read -r armed path; do
    seen=$((seen + 1))
    if ((seen <= keep && now_ns - armed < 30 * 86400 * 1000000000)); then continue; fi
    look "$path"
    if [[ $phase == running || $phase == starting ]]; then continue; fi
    old=${path%/*}
    rm -rf -- "$path" "$index/$UID-${old##*/}-${path##*/}.run"
    rmdir -- "$old" 2>/dev/null
  done < <(
    for path in "$1"/*/*; do
      armed=
      { read -r _ _ _ armed <"$path/supervisor"; } 2>/dev/null
      printf '%s %s\n' "${armed:-0}" "$path"
    done | sort -rn
  )
}

main "$@"
