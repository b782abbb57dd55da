#!/bin/bash
# start: RUN ATTEMPT DIR UMASK SUPERVISOR START. Waits for the line "go" or "go TIME" on
# descriptor 3, then for TIME by the worker's clock (in nanoseconds). Then it becomes the
# command, in the session that the supervisor made for it. Reports on stdout that it is
# ready and that it starts, or why it cannot. The output of the command goes into the pipe
# on descriptor 6.
#
# shellcheck disable=SC2034,SC2154 # lib.sh reads and sets variables of this script
main() {
  exec 2>"$3/waiter"
  local run=$1 attempt=$2 dir=$3 mask=$4 sup=$5 sup_start=$6 start order='' when='' at there=0
  local -a fields words vars mh_login environment through_env processes
  exec 9<&-
  mapfile -d '' -t words <"$dir/argv"
  mapfile -d '' -t vars <"$dir/env"
  mapfile -d '' -t mh_login <"$dir/login"
  umask "$mask"
  cd -- "$HOME" || refuse "enter $HOME"
  split "${words[1]}"
  processes=("${fields[@]:1}") # number of processes, number of the first one, grace time
  if [[ ${fields[0]} == script ]]; then words+=(bash "$dir/script"); fi
  if ((${#processes[@]})) && ! type -P perl >/dev/null; then refuse 'start several processes: perl is not installed'; fi
  inherit_run "$run" "$attempt" "$dir"
  if ((${#through_env[@]})); then words=("${words[@]:0:2}" env "${through_env[@]}" "${words[@]:2}"); fi
  limit_files
  start_of $$
  start=$REPLY
  # Do everything possible before the order comes, because every later step adds start skew.
  if cd -- "${words[0]}" 2>/dev/null; then
    there=1
    share
  fi
  echo ready
  read -r order when <&3 || order=
  if [[ $order == go && $when =~ ^[0-9]{19}$ ]]; then await "$when"; fi
  now_ns
  at=$REPLY
  exec 3<&-
  if [[ $order != go ]]; then
    echo aborted
    exit
  fi
  # Without a supervisor nobody would record the end.
  if ! start_of "$sup" || [[ $REPLY != "$sup_start" ]]; then refuse 'go on without a supervisor'; fi
  if ((! there)); then
    mkdir -p -- "${words[0]}" || refuse "make ${words[0]}"
    cd -- "${words[0]}" || refuse "enter ${words[0]}"
    share
  fi
  record || refuse "write $dir/started"
  if ((${#processes[@]})); then exec perl "$dir/processes" "${processes[@]}" "${words[@]:2}" </dev/null >/dev/null; fi
  become "${words[@]:2}" </dev/null >&6 2>&6 6>&-
}

# share puts the environment of the command on descriptor 8, for processes.pl.
share() {
  if ((${#processes[@]})); then exec 8< <(become cat /proc/self/environ </dev/null 2>/dev/null 6>&-); fi
}

# await TIME waits until TIME, or until another word comes, which may be "abort". If TIME is
# more than 5 s ahead, a clock must be wrong, so await does not wait. While it waits, await
# does nothing else. On a machine of several workers, such work would delay the others.
await() {
  local left_us left word=''
  now_ns
  left_us=$((($1 - REPLY) / 1000))
  if ((left_us <= 0 || left_us > 5000000)); then return; fi
  printf -v left '%d.%06d' $((left_us / 1000000)) $((left_us % 1000000))
  read -r -t "$left" word <&3
  if [[ $word == abort ]]; then order=$word; fi
}

refuse() {
  local why
  why=$(tail -n 1 "$dir/waiter" 2>/dev/null)
  printf 'failed %s\n' "$*${why:+ (${why##*: })}"
  : >"$dir/waiter"
  exit 1
}

limit_files() {
  local soft fields line
  while read -r line; do
    if [[ $line == 'Max open files '* ]]; then split "$line"; fi
  done 2>/dev/null </proc/self/limits
  soft=${fields[3]-}
  if [[ ! $soft ]]; then soft=$(ulimit -Sn); fi
  if [[ $soft == unlimited ]] || ((soft >= 100000)); then return; fi
  ulimit -Sn 100000 2>/dev/null || ulimit -Sn hard
}

# record writes the file "started". With -C the write fails if the file exists. So a second
# start is impossible, even after earlier errors.
record() {
  local line
  line="$$ $start $at $PPID"
  set -C
  printf '%s\n' "$line" >"$dir/started" || return
  set +C
  printf 'started %s\n' "$line"
}

main "$@"
