#!/bin/bash
# supervise: RUN ATTEMPT DIR ENTRY UMASK. Waits for "go" on the FIFO, starts the
# command in a session of its own, waits for it, and records how it ended. Holds
# the worker's lock on descriptor 9 meanwhile.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 dir=$3 entry=$4 mask=$5
  local order='' word pid start at waiter started kills code signal='' name='' oom=0 lost=0 size reason
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
  exec 5<&-
  if [[ $word != started ]]; then give_up failed "${started:-$(tail -n 1 "$dir/waiter")}"; fi
  read -r pid start at _ <<<"$started"
  say started "$pid" "$at"
  exec >/dev/null # the connection is free to end
  rm -f -- "$dir/env" "$dir/control"
  note "started=$started"

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
  if [[ $name == KILL ]]; then
    oom_kills
    if ((REPLY > kills)); then oom=1; fi
  fi
  log_size "$dir"
  size=$REPLY
  reason=
  if [[ -s $dir/stop ]]; then IFS= read -r reason <"$dir/stop"; fi
  exec 9<&- # before the end is seen: who sees it may start the next run at once
  printf 'code=%s\nsignal=%s\nend=%s\nsize=%s\noom=%s\nlost=%s\nreason=%s\n' \
    "$code" "$name" "$at" "$size" "$oom" "$lost" "$reason" 1<>"$dir/exit.new"
  mv -n -- "$dir/exit.new" "$dir/exit"
  note "exit_code=$code" "exit_signal=$name" "exit_end=$at" "exit_size=$size" "exit_oom=$oom" \
    "exit_lost=$lost" "exit_reason=$reason"
  prune "${dir%/*/*}"
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

# oom_kills: how many processes the kernel has killed for want of memory in our
# control group, which is the login session's.
oom_kills() {
  local line path='' key value
  REPLY=0
  while IFS= read -r line; do
    if [[ $line == 0::* ]]; then path=${line#0::}; fi
  done </proc/self/cgroup
  line=${MULTIHOST_ROOT_SYS-}/sys/fs/cgroup${path%/}/memory.events
  if [[ ! -r $line ]]; then return; fi
  while read -r key value; do
    if [[ $key == oom_kill ]]; then REPLY=$value; fi
  done <"$line"
}

# prune RUNS removes this login's ended attempts that have 20 newer ones or were
# armed more than 30 days ago.
prune() {
  local old seen=0 armed path now_ns
  now
  now_ns=$REPLY
  while read -r armed path; do
    seen=$((seen + 1))
    if ((seen <= 20 && now_ns - armed < 30 * 86400 * 1000000000)); then continue; fi
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
