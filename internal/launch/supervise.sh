#!/bin/bash
# supervise: RUN ATTEMPT DIR ENTRY UMASK DISK. DISK is an answer of disk_of. Makes a session
# in which start.sh waits for "go" on the FIFO and becomes the command. Waits for the end of
# the command and records how it ended. Until then it holds the worker's lock on descriptor
# 9.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local run=$1 attempt=$2 dir=$3 entry=$4 mask=$5 room=$6
  local word pid start at waiter started scope kills code killed='' signal='' name='' oom=0 lost=0 size reason
  local relay='' dropped fields meta='' process='' victim
  cd /
  umask 077
  boot_id
  boot=${REPLY:-none}
  start_of $$
  start=$REPLY
  now_ns
  at=$REPLY
  printf '%s %s %s %s\n' $$ "$start" "$boot" "$at" >"$dir/supervisor" || give_up failed "write $dir/supervisor"
  IFS= read -r -d '' meta <"$dir/meta"
  note "dir=$dir" "run=$run" "attempt=$attempt" "login=${LOGNAME:-$(exec id -un)}" "${meta%$'\n'}" \
    "supervisor=$$ $start $boot $at"
  # Set handlers and do not ignore the signals: the command would inherit ignored signals.
  trap 'poked=1' HUP INT QUIT PIPE TERM USR1 USR2
  exec 3<"$dir/control" 4>&-
  scope
  oom_kills
  kills=$REPLY
  pipe || give_up failed "open $dir/output"
  start_relay
  room='' # later relays measure the free space themselves
  # The process that waits for the order has finished all slow work, and becomes the
  # command. So only one wake-up is between the order and the command, the same on all
  # workers.
  #
  # setsid gets the wait status of the command, which distinguishes a death by signal from
  # an exit with 128+n, unlike $? of a shell; see keep_relay. setsid also holds the lock. So
  # the lock is free only when both this supervisor and the command are gone.
  exec 5< <(exec setsid --fork --wait bash --norc --noprofile -p "$dir/start" \
    "$nonce" "$run" "$attempt" "$dir" "$mask" $$ "$start" </dev/null 2>&1 7<&-)
  waiter=$!
  exec 3<&- 6>&-
  hear
  if [[ $word == ready ]]; then
    : >"$dir/env"
    : >"$dir/login" # start.sh does not need them any more; forget_order removes them
    say armed $$ "$at"
    hear
  fi
  if [[ $word == aborted ]]; then give_up aborted; fi
  if [[ $word != started ]]; then give_up failed "${started:-$(tail -n 1 "$dir/waiter")}"; fi
  split "$started"
  pid=${fields[0]} start=${fields[1]} at=${fields[2]}
  say started "$pid" "$at"
  exec >/dev/null # so that the connection can end
  note "started=$started"

  keep_relay
  attend "$waiter"
  now_ns
  at=$REPLY
  if [[ $killed ]]; then
    signal=$((code & 127)) # bit 128: a core dump
    code=$((128 + signal))
    name=$(kill -l "$signal")
  elif ((code > 128)) && alive "$pid" "$start" "$boot"; then
    # The command lives: somebody killed the process that waits for it.
    tail -f --pid="$pid" /dev/null
    now_ns
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
  exec 9<&- # before the end is visible: a runner that sees the end may start the next run at once
  printf 'code=%s\nsignal=%s\nend=%s\nsize=%s\noom=%s\nlost=%s\ndropped=%s\nprocess=%s\nreason=%s\n' \
    "$code" "$name" "$at" "$size" "$oom" "$lost" "$dropped" "$process" "$reason" 1<>"$dir/exit.new"
  mv -n -- "$dir/exit.new" "$dir/exit"
  note "exit_code=$code" "exit_signal=$name" "exit_end=$at" "exit_size=$size" "exit_oom=$oom" \
    "exit_lost=$lost" "exit_dropped=$dropped" "exit_process=$process" "exit_reason=$reason"
  prune "${dir%/*/*}"
}

# pipe makes the pipe for the command's output, as over ssh: descriptor 6 is its write end,
# 7 its read end. The supervisor keeps 7 open, so that the command can write while a new
# relay replaces a dead relay.
pipe() {
  exec 8<>"$dir/output" || return # opened for reading and writing, it does not block
  exec 6>"$dir/output"
  exec 7<"$dir/output"
  exec 8<&-
}

# hear reads the next word of start.sh, and the text after it. It skips warnings that
# programs print when they start (a broken /etc/ld.so.preload).
hear() {
  while read -r word started <&5; do
    case $word in
      ready | aborted | started | failed) return ;;
    esac
  done
  word='' started=''
}

# keep_relay keeps a relay running until the command has ended. Then the pipe from the
# waiter (descriptor 5) ends. The waiter also holds the pipe of the command's output, so no
# relay sees the end of that pipe earlier.
#
# After the start, only the waiter has the write end of its pipe. The waiter is setsid in
# our own environment. It prints only one thing: that a signal ended the command.
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

# forget_order removes the FIFO for the order, and the other files that only the start
# needs. keep_relay calls it some time after the start. Otherwise, on a machine of several
# workers, rm would delay commands that are about to start.
forget_order() {
  if [[ -p $dir/control ]]; then rm -f -- "$dir/control" "$dir/output" "$dir/env" "$dir/login"; fi
}

start_relay() {
  relay <&7 >/dev/null 2>&1 3<&- 5<&- 6>&- 7<&- 9<&- &
  relay=$!
}

# drain waits until the command's output is in the log. It ends when the relay has read the
# end of the pipe. While other processes hold the pipe, drain ends when the pipe is empty and
# the relay has written everything. It also ends when more bytes have come than were in the
# pipe. It gives up after 5 s without a byte.
drain() {
  local first last end_ns idle=0 looks=0
  output_size
  first=$REPLY last=$REPLY
  now_ns
  end_ns=$((REPLY + 5000000000))
  while :; do
    if ! start_of "$relay"; then
      if wait "$relay"; then return; fi
      start_relay # somebody killed the relay
    fi
    # Usually the relay has just read the end of the pipe, and is about to end. So only wait
    # at first, because closer looks take time.
    if ((++looks <= 5)); then
      doze 0.01
      continue
    fi
    if drained; then idle=$((idle + 1)); else idle=0; fi
    output_size
    if ((idle > 1 || REPLY > first + most_in_pipe)); then return; fi
    if ((REPLY != last)); then
      last=$REPLY
      now_ns
      end_ns=$((REPLY + 5000000000))
    else
      now_ns
      if ((REPLY > end_ns)); then return; fi
    fi
    doze 0.01
  done
}

most_in_pipe=1200000 # 1 MiB, if the command made the pipe that large, and a buffer of relay

output_size() {
  local size
  log_size "$dir"
  size=$REPLY
  dropped_of "$dir"
  REPLY=$((size + REPLY))
}

# drained succeeds if the pipe is empty and the program that reads it sleeps (state S).
# While it writes to a disk its state is D.
drained() {
  local path name found=0
  local -a fields
  if read -r -t 0 -u 7 _; then return 1; fi
  for path in /proc/[0-9]*; do
    if ! stat_of "${path#/proc/}" || ((fields[3] != $$)); then continue; fi
    name=''
    { IFS= read -r name <"$path/comm"; } 2>/dev/null
    if [[ $name != head ]]; then continue; fi
    found=1
    if [[ ${fields[0]} != S ]]; then return 1; fi
  done
  ((found))
}

# A disk is low if less than low_bytes and less than a fiftieth of the disk is free.
low_bytes=1000000000
# On a low disk, the log takes this many more bytes. The relay also drops this many bytes at
# a time.
small_piece=1048576
# The log reserves at most this many bytes at a time.
large_piece=16777216
# The relay keeps this many bytes at the end of the dropped output, because the last output
# matters most.
tail_bytes=65536

# relay moves output from the pipe to the log until the end of the pipe. It is a process of
# its own in the session of the supervisor. It lives as long as any process can write to the
# pipe, even if the command or its supervisor ends, the connection breaks or the disk is
# full.
#
# relay reserves disk space for the log piece by piece before it writes. So it notices in
# time that other programs fill the disk. Then it drops output and counts it, piece by
# piece, as it does beyond the limit of the log.
relay() {
  local most limit size free low piece ended=0
  trap '' HUP INT QUIT PIPE TERM USR1 USR2
  # If somebody kills a relay, the program that it started continues to fill its piece. The
  # lock makes the next relay wait for that program.
  exec 8>>"$dir/relay"
  flock 8
  limit_of "$dir"
  most=$REPLY limit=$REPLY
  while ((! ended)); do
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
  exec truncate --size="$REPLY" -- "$dir/output.log" # gives back the reserved space
}

# disk sets free to the free bytes of the disk, and low to the number of free bytes below
# which the disk is low.
disk() {
  local fields
  REPLY=$room room='' # the values that arm has just found
  if [[ ! $REPLY ]]; then disk_of "$dir"; fi
  split "$REPLY 0 0 0"
  free=$((fields[0] * fields[2])) low=$((fields[1] * fields[2] / 50))
  if ((low > low_bytes)); then low=$low_bytes; fi
  if ((fields[1] == 0)); then free=$((4 * low_bytes)) low=0; fi # the disk's size is not known
}

# fill FILE BYTES SECONDS moves BYTES bytes from the pipe to the end of FILE, and takes at
# most SECONDS (0: no limit). It fails if the disk has no room.
fill() {
  local before status
  size_of "$1"
  before=$REPLY
  # Not every file system can reserve space.
  fallocate --keep-size --offset "$before" --length "$2" -- "$1" || ((free > low)) || return
  # Not buffered, so that a line is in the log when it is printed.
  take "$3" stdbuf -o0 head -c "$2" >>"$1"
  status=$?
  size_of "$1"
  if ((status == 0 && REPLY < before + $2)); then ended=1; fi
  ((status == 0 || status > 128)) # above 128: take or another process ended the program
}

# take SECONDS COMMAND runs the command, and kills it after SECONDS. 0: no limit.
take() {
  if (($1)); then
    timeout -s KILL "$@"
  else
    "${@:2}"
  fi
}

# drop moves a piece of the output to the end of a sparse file, whose size counts the
# dropped bytes. The file is "dropped", and keeps its last tail_bytes. On a full disk the
# file is "lost". On a low disk drop returns after 2 s, because space may be free again.
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
  if ((status > 0 && status <= 128)); then sleep 1; fi # a program did not start
  truncate --size="+${count:-0}" -- "$dir/lost"
}

# note appends lines to this run's file in the index, which every login can read.
note() {
  umask 022
  printf '%s\n' "$@" >>"$entry" 2>/dev/null
  umask 077
}

# attend PID waits for the process and sets code to its exit status. A signal to the
# supervisor ends bash's wait early, so attend waits again.
attend() {
  local status
  code=
  while :; do
    poked=
    wait "$1" 2>/dev/null
    status=$?
    if ((status == 127)) && [[ $code ]]; then return; fi # bash has already collected it in the previous wait
    code=$status
    if [[ ! $poked ]] || ((code <= 128)); then return; fi
  done
}

# give_up WORD TEXT removes all files of an attempt that did not start its command,
# reports WORD and TEXT, and exits.
give_up() {
  exec 6>&-
  if [[ $relay ]]; then wait "$relay"; fi # the relay writes into the directory
  rm -rf -- "$dir" "$entry"
  rmdir -- "${dir%/*}" 2>/dev/null
  exec 9<&-
  say "$@"
  exit 0
}

# scope records the control group of the supervisor's SSH session. A process that clears its
# environment and leaves its session is still in that group.
scope() {
  cgroup_of $$
  scope=$REPLY
  if [[ $scope == */session-*.scope ]]; then printf '%s\n' "$scope" >"$dir/scope"; fi
}

# oom_kills sets REPLY to the number of processes that the kernel has killed in that control
# group for lack of memory.
oom_kills() {
  local line key value
  REPLY=0
  line=${MULTIHOST_ROOT_SYS-}/sys/fs/cgroup${scope%/}/memory.events
  if [[ ! -r $line ]]; then return; fi
  while read -r key value; do
    if [[ $key == oom_kill ]]; then REPLY=$value; fi
  done <"$line"
}

# out_of_memory succeeds if the kernel killed a process of the run for lack of memory. It
# compares the control group's count with the count at the start. If the count is the same
# and SIGKILL ended the command, it reads the kernel's log. A record there is
# "6,1234,98765432,-;Out of memory: Killed process 42 (python) ..." with microseconds since
# the start of the machine. A tick is a hundredth of a second.
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

# kernel_log prints the kernel's log. Each read of the device returns one record. After the
# last record, dd ends with an error.
kernel_log() {
  local -a reader=(dd if="${MULTIHOST_ROOT_DEV-}/dev/kmsg" iflag=nonblock bs=8192 status=none)
  if [[ ! -e ${MULTIHOST_ROOT_DEV-}/dev/kmsg ]]; then return; fi
  privileged
  "${as_root[@]}" "${reader[@]}" 2>/dev/null
}

# prune RUNS removes this login's ended attempts if they have 20 newer ones, or were armed
# more than 30 days ago. While less than a tenth of the disk is free, it keeps only the 3
# newest.
prune() {
  local old armed other newer path eldest_ns keep=20 fields late=0 i
  local -a paths=() times=() left
  now_ns
  eldest_ns=$((REPLY - 30 * 86400 * 1000000000))
  for path in "$1"/*/*; do
    armed=
    { read -r _ _ _ armed <"$path/supervisor"; } 2>/dev/null
    # A run that is just being armed may have no supervisor file yet. Then use the
    # directory's time.
    if [[ ! $armed ]]; then armed=$(exec stat -c %Y000000000 -- "$path" 2>/dev/null); fi
    if ((${armed:=0} <= eldest_ns)); then late=1; fi
    paths+=("$path") times+=("$armed")
  done
  if ((! late && ${#paths[@]} <= 3)); then return; fi
  disk_of "$1"
  split "$REPLY 0 0"
  if ((fields[0] * 10 < fields[1])); then keep=3; fi
  if ((! late && ${#paths[@]} <= keep)); then return; fi
  for i in "${!paths[@]}"; do
    newer=0
    for other in "${times[@]}"; do
      if ((other > times[i])); then newer=$((newer + 1)); fi
    done
    if ((newer < keep && times[i] > eldest_ns)); then continue; fi
    path=${paths[i]}
    look "$path"
    if [[ $phase == running || $phase == starting ]]; then continue; fi
    old=${path%/*}
    rm -rf -- "$path" "$index/$UID-${old##*/}-${path##*/}.run"
    left=("$old"/*)
    if [[ ! -e ${left[0]} ]]; then rmdir -- "$old" 2>/dev/null; fi
  done
}

main "$@"
