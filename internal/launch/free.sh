#!/bin/bash
# free: check|orphans|all GRACE_MS LOOK. Reports the processes that hold the TPU, ends those
# that the policy names, and removes the lock file once no process holds a device. With LOOK
# 1 it changes nothing, and only reports which processes it would end.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local policy=$1 grace_ms=$2 look=${3-0} p lock=${MULTIHOST_ROOT_TMP-}/tmp/libtpu_lockfile
  local -A refused=()
  enter
  devices
  say devices "${#device_files[@]}"
  holders
  say blind "$blind"
  for p in "${!holding[@]}"; do
    if ! may_end "$p"; then
      refused[$p]=1
    elif [[ $policy != check ]]; then
      show stopped "$p" "${holding[$p]}"
    fi
  done
  # If a process that we may not end holds a device, end none, because the TPU would stay in
  # use.
  if [[ $policy != check ]] && ((! look && ${#refused[@]} == 0 && ${#holding[@]} > 0)); then
    end_all "$grace_ms" find_endable
    holders
  fi
  for p in "${!holding[@]}"; do
    if ((! look)) || [[ ${refused[$p]-} ]]; then show holder "$p" "${holding[$p]}"; fi
  done
  if [[ ! -e $lock && ! -L $lock ]]; then
    say lock none
  elif ((look || ${#holding[@]})) || [[ $policy == check ]]; then
    say lock kept
  elif rm -f -- "$lock" 2>/dev/null || remove_as_root "$lock"; then
    say lock removed
  else
    say lock refused
  fi
}

remove_as_root() {
  privileged
  "${as_root[@]}" rm -f -- "$1" 2>/dev/null
}

# may_end PID succeeds if we may end the process. A process of an active run may not be ended.
# A process of this login's ended runs may be ended. The policy decides about all others.
may_end() {
  run_dir "$1"
  if [[ $REPLY == */.multihost/runs/*/* ]]; then
    local of=$REPLY
    if run_lives "$of"; then return 1; fi
    if [[ $of == "$home"/.multihost/runs/* ]]; then return 0; fi
  elif ! start_of "$1"; then
    return 0 # it has just ended
  fi
  [[ $policy == all ]]
}

find_endable() {
  local p
  holders
  pids=()
  for p in "${!holding[@]}"; do
    if start_of "$p" && may_end "$p"; then pids+=("$p"); fi
  done
}

main "$@"
