#!/bin/bash
# Process 1 of a pod that holds a place for commands. It is idle and ends on SIGTERM, for
# which process 1 needs a trap. bash by itself reaps processes that commands leave behind.
# The end of process 1 ends all others of the pod.
trap 'exit 0' TERM INT
while :; do
  sleep 86400 &
  wait $!
done
