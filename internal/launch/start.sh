#!/bin/bash
# start: RUN ATTEMPT DIR UMASK SUPERVISOR START. Waits for the line "go" or "go
# TIME" on descriptor 3, for that time by our clock (in nanoseconds), and becomes
# the command, in the session that the supervisor made for it. Says on stdout that
# it is ready and that it starts, or why it cannot. The output of the command is
# the pipe on descriptor 6.
#
# Names begin with mh_ because the command's variables are set beside them.
#
# shellcheck disable=SC2034,SC2154 # lib.sh reads and sets what is not read and set here
main() {
  local mh_run=$1 mh_attempt=$2 mh_dir=$3 mh_mask=$4 mh_sup=$5 mh_sup_start=$6 mh_start mh_order='' mh_when='' mh_at mh_there=0
  local -a mh_words mh_vars
  exec 9<&-
  mapfile -d '' -t mh_words <"$mh_dir/argv"
  mapfile -d '' -t mh_vars <"$mh_dir/env"
  umask "$mh_mask"
  cd -- "$HOME" || refuse "enter $HOME"
  if [[ ${mh_words[1]} == script ]]; then mh_words+=(bash "$mh_dir/script"); fi
  limit_files
  start_of $$
  mh_start=$REPLY
  # All that can be done before the order is: from there on every step is skew.
  if cd -- "${mh_words[0]}" 2>/dev/null; then mh_there=1; fi
  echo ready
  read -r mh_order mh_when <&3 || mh_order=
  if [[ $mh_order == go && $mh_when =~ ^[0-9]{19}$ ]]; then await "$mh_when"; fi
  now
  mh_at=$REPLY
  exec 3<&-
  if [[ $mh_order != go ]]; then
    echo aborted
    exit
  fi
  # Nobody would record the end.
  if ! start_of "$mh_sup" || [[ $REPLY != "$mh_sup_start" ]]; then refuse 'go on without a supervisor'; fi
  if ((!mh_there)); then
    mkdir -p -- "${mh_words[0]}" || refuse "make ${mh_words[0]}"
    cd -- "${mh_words[0]}" || refuse "enter ${mh_words[0]}"
  fi
  record || refuse "write $mh_dir/started"
  environment 2>/dev/null # bash complains of locales that the worker lacks
  exec -- "${mh_words[@]:2}" </dev/null >&6 2>&6 6>&-
}

# await TIME, unless it is so far away that a clock must be wrong; or for another
# word, which may be "abort". Nothing is done meanwhile: where workers share a
# machine, what one does is in the way of the orders to the others.
await() {
  local mh_left mh_word=''
  now
  mh_left=$((($1 - REPLY) / 1000))
  if ((mh_left <= 0 || mh_left > 5000000)); then return; fi
  printf -v mh_left '%d.%06d' $((mh_left / 1000000)) $((mh_left % 1000000))
  read -r -t "$mh_left" mh_word <&3
  if [[ $mh_word == abort ]]; then mh_order=$mh_word; fi
}

refuse() {
  local mh_why
  mh_why=$(tail -n 1 "$mh_dir/waiter" 2>/dev/null)
  printf 'failed %s\n' "$* (${mh_why##*: })"
  : >"$mh_dir/waiter"
  exit 1
}

limit_files() {
  local mh_soft
  mh_soft=$(ulimit -Sn)
  if [[ $mh_soft == unlimited ]] || ((mh_soft >= 100000)); then return; fi
  ulimit -Sn 100000 2>/dev/null || ulimit -Sn hard
}

# record: -C fails when the file is there, so that a second start is impossible
# whatever went wrong before.
record() {
  local mh_line
  mh_line="$$ $mh_start $mh_at $PPID"
  set -C
  printf '%s\n' "$mh_line" >"$mh_dir/started" || return
  set +C
  printf 'started %s\n' "$mh_line"
}

main "$@"
