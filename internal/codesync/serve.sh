#!/usr/bin/env bash
#
# Writes the SIZE bytes that the worker script has, or is about to get, under
# TOKEN. Fewer of them mean that it was stopped.

export LC_ALL=C
spool=$HOME/.multihost/store/incoming/relay.$1
for ((tries = 0; tries < 300; tries++)); do
	[[ ! -f $spool/data ]] || break
	sleep 0.1 # it was told at the same time as we
done
read -r pid <"$spool/pid" || exit 1
exec 3< <(exec tail -c +1 -f -s 0.1 --pid="$pid" -- "$spool/data" 2>/dev/null)
head -c "$2" <&3
kill "$!" 2>/dev/null
exit 0
