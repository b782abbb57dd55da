#!/bin/bash
# Process 1 of a pod that holds a place for commands. It does nothing, reaps what commands
# leave behind (bash does so by itself) and ends on SIGTERM; process 1 has to ask for that
# signal. The end of process 1 ends all others of the pod.
trap 'exit 0' TERM INT
while :; do
  sleep 86400 &
  wait $!
done
