#!/bin/bash
# follow: RUN ATTEMPT OFFSET follow|read. After the line "stream", stdout carries
# the bytes of output.log from OFFSET and nothing else; at the end the state goes
# to stderr.
#
# shellcheck disable=SC2154 # lib.sh sets what is not set here
main() {
  local run=$1 attempt=$2 offset=$3 mode=$4 dir i
  enter
  dir=$home/.multihost/runs/$run/$attempt
  settle "$dir"
  if [[ $phase == unknown ]]; then
    say unknown
    return
  fi
  log_size "$dir"
  if ((REPLY < offset)); then
    say truncated "$REPLY"
    tell "$run" "$attempt" "$dir"
    return
  fi
  say stream
  if [[ $mode == read || $phase != running && $phase != starting ]]; then
    tail -c +$((offset + 1)) -- "$dir/output.log"
  else
    # Never piped: tail notices that its own stdout is closed, and only that
    # ends it when the connection is lost. It waits for the process whose end the
    # supervisor collects, because a supervisor that ended stays visible until
    # process 1 collects it.
    LC_ALL=C tail -c +$((offset + 1)) -f -s 0.2 --pid="$((waiter ? waiter : sup))" -- "$dir/output.log"
    for ((i = 0; i < 100; i++)); do
      look "$dir"
      if ((!supervised)) || [[ $phase != running ]]; then break; fi
      if alive "$pid" "$start" "$sup_boot"; then break; fi
      sleep 0.05
    done
  fi
  settle "$dir"
  tell "$run" "$attempt" "$dir" >&2
}

main "$@"
