#!/bin/bash
# dump: RUN ATTEMPT WAIT_MS. Reports the stacks of the processes of an active run. It uses
# only py-spy, which reads the memory, and SIGUSR1. It sends SIGUSR1 only to processes that
# catch the signal, because it kills all others.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local run=$1 attempt=$2 wait_ms=$3 dir p shown=0
  enter
  privileged
  dir=$home/.multihost/runs/$run/$attempt
  settle "$dir"
  tell "$run" "$attempt" "$dir"
  if [[ $phase != running ]]; then return; fi
  processes "$dir"
  # The processes are sorted by memory. A trainer has the most memory, so it comes before
  # its child processes.
  while read -r _ p; do
    if ((shown++ == most)); then break; fi
    if is_python "$p" && { by_spy "$p" || by_signal "$p" "$dir" "$wait_ms"; }; then continue; fi
    by_kernel "$p"
  done < <(for p in "${pids[@]}"; do printf '%s %s\n' "$(memory "$p")" "$p"; done | sort -rn)
}

# Show only this many processes. A run may have a data loader for each core of the machine,
# all with the same stack.
most=16

memory() { # PID: resident pages
  local pages=0
  { read -r _ pages _ <"/proc/$1/statm"; } 2>/dev/null
  printf '%s' "${pages:-0}"
}

is_python() { # PID
  local exe
  exe=$("${as_root[@]}" readlink "/proc/$1/exe" 2>/dev/null)
  [[ ${exe##*/} == *python* ]]
}

head_of() { # PID METHOD
  local args=''
  args=$(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null)
  say stack "$1" "$2" "${args:0:300}"
}

# lines reports the lines of a stack from stdin. It replaces the home directory by "~",
# because the home is not the same on every worker.
lines() {
  local line n=0
  while IFS= read -r line && ((n++ < 2000)); do
    line=${line//"$home"/"~"}
    say line "${line:0:1000}"
  done
}

# by_spy PID reads the stack with py-spy, which it finds in the PATH, in the login's
# ~/.local/bin or in the process's virtual environment.
by_spy() {
  local spy='' at text
  for at in "$(command -v py-spy)" "$home/.local/bin/py-spy" "$(virtual "$1")/bin/py-spy"; do
    if [[ -x $at ]]; then spy=$at && break; fi
  done
  [[ $spy ]] || return 1
  text=$(timeout 20 "${as_root[@]}" "$spy" dump --pid "$1" 2>/dev/null) || return 1
  [[ $text ]] || return 1
  head_of "$1" py-spy
  lines <<<"$text"
}

virtual() { # PID: its VIRTUAL_ENV
  local entry
  while IFS= read -r -d '' entry; do
    if [[ $entry == VIRTUAL_ENV=/* ]]; then printf '%s' "${entry#*=}"; fi
  done < <("${as_root[@]}" cat "/proc/$1/environ" 2>/dev/null)
}

# by_signal PID DIR WAIT_MS sends SIGUSR1 and reports all output in the log within the wait.
# Other processes may also write there.
by_signal() {
  local caught=0 from size before=-1 quiet=0 word value limit_ns
  while read -r word value; do
    if [[ $word == SigCgt: ]]; then caught=$value; fi
  done <"/proc/$1/status" 2>/dev/null
  (((16#$caught >> 9) & 1)) || return 1
  log_size "$2"
  from=$REPLY
  send USR1 "$1" || return 1
  now_ns
  limit_ns=$((REPLY + $3 * 1000000))
  while :; do
    sleep 0.1
    log_size "$2"
    size=$REPLY
    if ((size > from && size == before)); then quiet=$((quiet + 1)); else quiet=0; fi
    before=$size
    now_ns
    if ((quiet >= 3 || REPLY > limit_ns)); then break; fi
  done
  ((size > from)) || return 1
  head_of "$1" SIGUSR1
  lines < <(tail -c +$((from + 1)) -- "$2/output.log" | head -c 262144)
}

# by_kernel PID reports what each thread of the process waits for.
by_kernel() {
  local task name wchan fields
  head_of "$1" kernel
  for task in /proc/"$1"/task/*; do
    name='' wchan=''
    stat_of "$1/task/${task##*/}" || continue
    { IFS= read -r name <"$task/comm"; } 2>/dev/null
    wchan=$("${as_root[@]}" cat "$task/wchan" 2>/dev/null)
    printf 'thread %s: state %s, waits in %s\n' "${name:-?}" "${fields[0]}" "${wchan:-?}"
  done > >(sort | uniq -c | sort -rn | head -n 50 | lines)
  wait "$!"
}

main "$@"
