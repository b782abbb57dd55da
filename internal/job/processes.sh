#!/usr/bin/env bash
# processes N FIRST COMMAND ARG...
#
# Starts N processes of a command on this worker. Process i has
# MULTIHOST_LOCAL_ID=i and the number FIRST+i in MULTIHOST_PROCESS_ID and
# JAX_PROCESS_ID. Ends when all have ended, or with the status of the first that
# failed after ending the others.
set -u
set -m # a process group for each, so that it can be ended with its children
count=$1 first=$2
shift 2

# Each process reports its status here: wait -n forgets a process that ended
# before it was called.
exec {ended}<> <(:)

groups=()
for ((i = 0; i < count; i++)); do
	{
		export MULTIHOST_LOCAL_ID=$i MULTIHOST_PROCESS_ID=$((first + i)) JAX_PROCESS_ID=$((first + i))
		"$@" {ended}>&-
		echo "$?" >&"$ended"
	} &
	groups+=($!)
done

status=0
for ((i = 0; i < count && status == 0; i++)); do
	read -r -u "$ended" status
done
if [ "$status" -ne 0 ]; then
	exec 2>/dev/null # the shell's own words about what is ended next
	for signal in TERM KILL; do
		for group in "${groups[@]}"; do
			kill -"$signal" -- "-$group"
		done
		for ((i = 0; i < 50; i++)); do
			alive=0
			for group in "${groups[@]}"; do
				! kill -0 -- "-$group" || alive=1
			done
			[ "$alive" -eq 1 ] || break
			sleep 0.1
		done
	done
fi
wait
exit "$status"
