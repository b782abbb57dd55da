#!/bin/bash
# start: RUN ATTEMPT DIR UMASK. Becomes the command, in the session that the
# supervisor made for it. Says on stdout that it starts, or why it cannot. The
# output of the command is the pipe on descriptor 6.
#
# Names begin with mh_ because the command's variables are set beside them.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local mh_run=$1 mh_attempt=$2 mh_dir=$3 mh_mask=$4
  local -a mh_words mh_vars
  exec 9<&-
  mapfile -d '' -t mh_words <"$mh_dir/argv"
  mapfile -d '' -t mh_vars <"$mh_dir/env"
  umask "$mh_mask"
  cd -- "$HOME" || refuse "enter $HOME"
  mkdir -p -- "${mh_words[0]}" || refuse "make ${mh_words[0]}"
  cd -- "${mh_words[0]}" || refuse "enter ${mh_words[0]}"
  if [[ ${mh_words[1]} == script ]]; then mh_words+=(bash "$mh_dir/script"); fi
  limit_files
  record || refuse "write $mh_dir/started"
  environment 2>/dev/null # bash complains of locales that the worker lacks
  exec -- "${mh_words[@]:2}" </dev/null >&6 2>&6 6>&-
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
  start_of $$
  mh_line="$$ $REPLY"
  now
  mh_line+=" $REPLY $PPID"
  set -C
  printf '%s\n' "$mh_line" >"$mh_dir/started" || return
  set +C
  printf 'started %s\n' "$mh_line"
}

# environment: as the login has it, the variables to unset, those to set. Values
# are bytes. unset first, because bash gives some names a life of their own
# (SECONDS, RANDOM) until they are unset.
environment() {
  local mh_var
  case :$PATH: in
    *:"$HOME/.local/bin":*) ;;
    *) export PATH="$PATH:$HOME/.local/bin" ;;
  esac
  export PYTHONUNBUFFERED="${PYTHONUNBUFFERED:-1}"
  export MULTIHOST_RUN="$mh_run" MULTIHOST_ATTEMPT="$mh_attempt" MULTIHOST_RUN_DIR="$mh_dir"
  for mh_var in "${mh_vars[@]}"; do
    unset -v "${mh_var%%=*}"
    # shellcheck disable=SC2163 # NAME=VALUE is meant
    if [[ $mh_var == *=* ]]; then export "$mh_var"; fi
  done
}

main "$@"
