#!/bin/bash
# status: RUN ATTEMPT. Reports the state of one attempt.
#
# shellcheck disable=SC2154 # lib.sh sets variables that are used here
main() {
  local dir line
  enter
  dir=$home/.multihost/runs/$1/$2
  settle "$dir"
  tell "$1" "$2" "$dir"
  now_ns
  say now "$REPLY"
  if [[ $phase == unknown ]]; then return; fi
  log_size "$dir"
  line=$(stat -c %.9Y -- "$dir"/{output.log,dropped,lost} 2>/dev/null | sort -n | tail -n 1)
  say log "$REPLY" "$line"
  dropped_of "$dir"
  say dropped "$REPLY"
  limit_of "$dir"
  if ((REPLY < no_limit)); then say limit "$REPLY"; fi
  disk_of "$dir" && say disk "$REPLY"
  processes "$dir"
  cpu_time
  say processes "${#pids[@]}" "$REPLY"
}

main "$@"
