#!/bin/bash
# supervise: RUN ATTEMPT DIR ENTRY UMASK. Makes a session in which start.sh waits
# for "go" on the FIFO and becomes the command, waits for its end, and records how
# it ended. Holds the worker's lock on descriptor 9 meanwhile.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 dir=$3 entry=$4 mask=$5
  local word pid start at waiter started scope kills code killed='' signal='' name='' oom=0 lost=0 size reason
  local relay='' dropped fields meta='' process='' victim
  cd /
  umask 077
  boot_id
  boot=${REPLY:-none}
  start_of $$
  start=$REPLY
  now
  at=$REPLY
  printf '%s %s %s %s\n' $$ "$start" "$boot" "$at" >"$dir/supervisor" || give_up failed "write $dir/supervisor"
  IFS= read -r -d '' meta <"$dir/meta"
  note "dir=$dir" "run=$run" "attempt=$attempt" "login=$(exec id -un)" "${meta%$'\n'}" \
    "supervisor=$$ $start $boot $at"
  # Handlers, not '': an ignored signal would stay ignored in the command.
  trap 'poked=1' HUP INT QUIT PIPE TERM USR1 USR2
  exec 3<"$dir/control" 4>&-
  scope
  oom_kills
  kills=$REPLY
  pipe || give_up failed "open $dir/output"
  start_relay
  # The command's own process waits for the order, with all that takes time behind
  # it: from the order to the command it is one wake-up, on all workers alike.
  #
  # setsid has the wait status of the command, and tells a death by signal from an
  # exit with 128+n, which $? of a shell does not; see keep_relay. It keeps the lock
  # too: it is released only when both we and the command are gone.
  exec 5< <(exec setsid --fork --wait bash --norc --noprofile -p "$dir/start" \
    "$nonce" "$run" "$attempt" "$dir" "$mask" $$ "$start" </dev/null 2>&1 7<&-)
  waiter=$!
  exec 3<&- 6>&-
  hear
  if [[ $word == ready ]]; then
    rm -f -- "$dir/env" "$dir/login" "$dir/output" # they were read and opened
    say armed $$ "$at"
    hear
  fi
  if [[ $word == aborted ]]; then give_up aborted; fi
  if [[ $word != started ]]; then give_up failed "${started:-$(tail -n 1 "$dir/waiter")}"; fi
  split "$started"
  pid=${fields[0]} start=${fields[1]} at=${fields[2]}
  say started "$pid" "$at"
  exec >/dev/null # the connection is free to end
  note "started=$started"

  keep_relay
  attend "$waiter"
  now
  at=$REPLY
  if [[ $killed ]]; then
    signal=$((code & 127)) # 128: it dumped core
    code=$((128 + signal))
    name=$(kill -l "$signal")
  elif ((code > 128)) && alive "$pid" "$start" "$boot"; then
    # Somebody killed the process that waits for the command.
    tail -f --pid="$pid" /dev/null
    now
    at=$REPLY code=255 lost=1
  fi
  { read -r process victim <"$dir/failed"; } 2>/dev/null
  victim=${victim:-$pid}
  reason=
  if [[ -s $dir/stop ]]; then IFS= read -r reason <"$dir/stop"; fi
  if ((code)) && out_of_memory; then oom=1; fi
  drain
  log_size "$dir"
  size=$REPLY
  dropped_of "$dir"
  dropped=$REPLY
  exec 9<&- # before the end is seen: who sees it may start the next run at once
  printf 'code=%s\nsignal=%s\nend=%s\nsize=%s\noom=%s\nlost=%s\ndropped=%s\nprocess=%s\nreason=%s\n' \
    "$code" "$name" "$at" "$size" "$oom" "$lost" "$dropped" "$process" "$reason" 1<>"$dir/exit.new"
  mv -n -- "$dir/exit.new" "$dir/exit"
  note "exit_code=$code" "exit_signal=$name" "exit_end=$at" "exit_size=$size" "exit_oom=$oom" \
    "exit_lost=$lost" "exit_dropped=$dropped" "exit_process=$process" "exit_reason=$reason"
  prune "${dir%/*/*}"
}

# pipe makes the pipe that is the output of the command, as over ssh: 6 is its
# end to write to, 7 the one to read from. We keep 7, so that the command can
# write on while a relay is replaced by another.
pipe() {
  exec 8<>"$dir/output" || return # opened for both, it waits for nobody
  exec 6>"$dir/output"
  exec 7<"$dir/output"
  exec 8<&-
}

# hear reads the next word of start.sh, and what follows it. What programs say of
# the machine as they start (a broken /etc/ld.so.preload) is none.
hear() {
  while read -r word started <&5; do
    case $word in
      ready | aborted | started | failed) return ;;
    esac
  done
  word='' started=''
}

# keep_relay has a relay live until the command has ended, which ends the pipe
# from the waiter. The waiter holds the pipe of the output too: no relay sees the
# end of that before.
#
# Since the start nobody but the waiter has its pipe. It is setsid in our own
# environment, and says one thing only: that the wait status is that of a signal.
keep_relay() {
  local status
  while :; do
    read -r -t 2 _ <&5
    status=$?
    if ((status == 0)); then killed=1; fi
    if ((status != 0 && status <= 128)); then break; fi
    forget_order
    if ! start_of "$relay"; then start_relay; fi
  done
  exec 5<&-
  forget_order
}

# forget_order removes what the order came by. Not at once: a process for that
# would be in the way of commands that are about to start beside us, where one
# machine has several workers.
forget_order() {
  if [[ -p $dir/control ]]; then rm -f -- "$dir/control"; fi
}

start_relay() {
  relay <&7 >/dev/null 2>&1 3<&- 5<&- 6>&- 7<&- 9<&- &
  relay=$!
}

# drain waits until what the command wrote is in the log: until the relay has
# read the end of the pipe; or, while others hold the pipe, until the pipe is
# empty and nothing of it in the hands of the relay, or more has come than was in
# it; at most 5 s without a byte.
drain() {
  local first last end idle=0 looks=0
  output_size
  first=$REPLY last=$REPLY
  now
  end=$((REPLY + 5000000000))
  while :; do
    if ! start_of "$relay"; then
      if wait "$relay"; then return; fi
      start_relay # somebody killed it
    fi
    # Mostly it has just read the end of the pipe. To look closer takes processes.
    if ((++looks <= 5)); then
      doze 0.01
      continue
    fi
    if drained; then idle=$((idle + 1)); else idle=0; fi
    output_size
    if ((idle > 1 || REPLY > first + most_in_pipe)); then return; fi
    if ((REPLY != last)); then
      last=$REPLY
      now
      end=$((REPLY + 5000000000))
    else
      now
      if ((REPLY > end)); then return; fi
    fi
    doze 0.01
  done
}

most_in_pipe=1200000 # 1 MiB, if the command made it so large, and what is in hand

output_size() {
  local size
  log_size "$dir"
  size=$REPLY
  dropped_of "$dir"
  REPLY=$((size + REPLY))
}

# drained: nothing is in the pipe, and whoever reads it sleeps. A write to a disk
# is another kind of sleep, D.
drained() {
  local state name found=0
  if read -r -t 0 -u 7 _; then return 1; fi
  while read -r state name; do
    if [[ $name != head ]]; then continue; fi
    found=1
    if [[ $state != S* ]]; then return 1; fi
  done < <(exec ps -s $$ -o stat= -o comm=)
  ((found))
}

# The disk is low when no more is free than this, or a fiftieth of it.
low_bytes=1000000000
# What the log still takes of a low disk, and what is dropped at a time.
small_piece=1048576
# What the log takes of the disk at a time.
large_piece=16777216
# What is kept of the end of what is dropped: the last words of a command are
# worth more than all before.
tail_bytes=65536

# relay moves what comes out of the pipe to the log, until the end of the pipe.
# It is a process of its own, and in the session of the supervisor: it is there
# as long as anybody can write, whatever becomes of the command, its supervisor,
# the connection or the disk.
#
# The log takes the disk in pieces, reserved before they are filled. So a disk
# that others fill is known when there is room yet; then, and beyond the limit,
# is the output dropped and counted, piece by piece.
relay() {
  local most limit size free low piece ended=0
  trap '' HUP INT QUIT PIPE TERM USR1 USR2
  # When a relay is killed, what it has started goes on to fill its piece.
  exec 8>>"$dir/relay"
  flock 8
  limit_of "$dir"
  most=$REPLY limit=$REPLY
  while ((!ended)); do
    disk
    log_size "$dir"
    size=$REPLY
    if ((free > 2 * low)); then
      limit=$most
    elif ((free < low && limit > size + small_piece)); then
      limit=$((size + small_piece))
    fi
    piece=$(((free - low) / 100))
    if ((piece < small_piece)); then piece=$small_piece; fi
    if ((piece > large_piece)); then piece=$large_piece; fi
    if ((piece > limit - size)); then piece=$((limit - size)); fi
    if ((piece <= 0)) || ! fill "$dir/output.log" "$piece" 0; then drop; fi
  done
  log_size "$dir"
  truncate --size="$REPLY" -- "$dir/output.log" # gives back what is reserved
}

# disk: how much of it is free, and how little is low.
disk() {
  local fields
  disk_of "$dir"
  split "$REPLY 0 0 0"
  free=$((fields[0] * fields[2])) low=$((fields[1] * fields[2] / 50))
  if ((low > low_bytes)); then low=$low_bytes; fi
  if ((fields[1] == 0)); then free=$((4 * low_bytes)) low=0; fi # it does not tell
}

# fill FILE BYTES SECONDS moves as many from the pipe to the end of the file.
# Fails when there is no room.
fill() {
  local before status
  size_of "$1"
  before=$REPLY
  # Not every file system can reserve.
  fallocate --keep-size --offset "$before" --length "$2" -- "$1" || ((free > low)) || return
  # Not buffered: a line is in the log when it is printed.
  take "$3" stdbuf -o0 head -c "$2" >>"$1"
  status=$?
  size_of "$1"
  if ((status == 0 && REPLY < before + $2)); then ended=1; fi
  ((status == 0 || status > 128)) # or it was ended
}

# take SECONDS COMMAND, which is ended after that time; 0 is for ever.
take() {
  if (($1)); then
    timeout -s KILL "$@"
  else
    "${@:2}"
  fi
}

# drop takes a piece of the output and counts it, by the size of a file without
# contents: of "dropped", but for its end, or of "lost" when the disk is full. On
# a low disk it looks again after a while, for the disk may be free then.
drop() {
  local patience=0 count status
  if ((limit < most || size < limit)); then patience=2; fi
  if fill "$dir/dropped" "$small_piece" "$patience"; then
    size_of "$dir/dropped"
    if ((REPLY > tail_bytes)) &&
      ! fallocate --punch-hole --offset 0 --length "$((REPLY - tail_bytes))" -- "$dir/dropped"; then
      : >"$dir/dropped"
      truncate --size="$REPLY" -- "$dir/dropped"
    fi
    return
  fi
  count=$(
    set -o pipefail
    take 2 stdbuf -o0 head -c "$small_piece" | wc -c
  )
  status=$?
  if ((status == 0 && count < small_piece)); then ended=1; fi
  if ((status > 0 && status <= 128)); then sleep 1; fi # no program can be started
  truncate --size="+${count:-0}" -- "$dir/lost"
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
  exec 6>&-
  if [[ $relay ]]; then wait "$relay"; fi # it writes there
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
  local old seen=0 armed path eldest keep=20 fields late=0
  local -a attempts=()
  now
  eldest=$((REPLY - 30 * 86400 * 1000000000))
  for path in "$1"/*/*; do
    armed=
    { read -r _ _ _ armed <"$path/supervisor"; } 2>/dev/null
    # The next run may be about to be armed.
    if [[ ! $armed ]]; then armed=$(exec stat -c %Y000000000 -- "$path" 2>/dev/null); fi
    if ((${armed:=0} <= eldest)); then late=1; fi
    attempts+=("$armed $path")
  done
  if ((!late && ${#attempts[@]} <= 3)); then return; fi
  disk_of "$1"
  split "$REPLY 0 0"
  if ((fields[0] * 10 < fields[1])); then keep=3; fi
  if ((!late && ${#attempts[@]} <= keep)); then return; fi
  while read -r armed path; do
    seen=$((seen + 1))
    if ((seen <= keep && armed > eldest)); then continue; fi
    look "$path"
    if [[ $phase == running || $phase == starting ]]; then continue; fi
    old=${path%/*}
    rm -rf -- "$path" "$index/$UID-${old##*/}-${path##*/}.run"
    rmdir -- "$old" 2>/dev/null
  done < <(printf '%s\n' "${attempts[@]}" | sort -rn)
}

main "$@"
