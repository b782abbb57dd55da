#!/bin/bash
# stop: RUN ATTEMPT GRACE_MS REASON [MARK]. Ends every process of the run. With an empty
# REASON it ends only the processes that an ended run left behind. With MARK=1 it also
# stores REASON and the time in the attempt, for runners that would begin another attempt.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local run=$1 attempt=$2 grace_ms=$3 reason=$4 dir i p found=0 killed=0
  enter
  dir=$home/.multihost/runs/$run/$attempt
  settle "$dir"
  if [[ $phase == unknown || ! $reason && ($phase == starting || $phase == running) ]]; then
    tell "$run" "$attempt" "$dir"
    return
  fi
  if [[ ${5-} == 1 ]]; then mark "$dir" "$reason"; fi
  if [[ $phase == starting ]]; then
    # start.sh obeys "abort" before "go", and during the wait for the TIME of "go TIME".
    { exec 4<>"$dir/control" && printf 'abort\n' >&4; } 2>/dev/null
    for ((i = 0; i < 100; i++)); do
      look "$dir"
      if [[ $phase != starting ]]; then break; fi
      doze 0.05
    done
    exec 4>&-
  fi
  if [[ $phase == aborted && $supervised == 0 ]]; then
    rm -rf -- "$dir" "$index/$UID-$run-$attempt.run"
  fi
  if [[ $phase == running ]]; then
    (
      set -C
      # If the reason cannot be written, remove the file. An empty file would mean that
      # another stop was first.
      : >"$dir/stop" && { printf '%s\n' "$reason" >>"$dir/stop" || rm -f -- "$dir/stop"; }
    ) 2>/dev/null
  fi
  devices
  if [[ $phase != unknown ]]; then
    end_all "$grace_ms" find_processes
    say counts "$found" "$killed"
    if ((${#pids[@]})); then privileged; fi
    for p in "${pids[@]}"; do show survivor "$p" -; done
    if ((${#pids[@]} == 0)); then
      for ((i = 0; i < 100; i++)); do
        settle "$dir"
        if [[ $phase != running ]]; then break; fi
        doze 0.05
      done
    fi
  fi
  settle "$dir" # again, because show has read the state of other runs
  tell "$run" "$attempt" "$dir"
  if [[ $found == 0 && $searched ]]; then holders found; else holders; fi
  say blind "$blind"
  for p in "${!holding[@]}"; do show holder "$p" "${holding[$p]}"; done
}

mark() {
  now_ns
  replace "$1/stopped" "$REPLY $2" || say unmarked
}

find_processes() { processes "$dir"; }

main "$@"
