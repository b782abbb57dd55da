#!/bin/sh
# Prints the ids of the worker's own processes, which it finds by the mark in their
# environment. With an argument FILE, it prints only those that have FILE open, with the
# descriptor.
root=${0%/bin/*}
own=$(grep -lzxF -e "MULTIHOST_SIM_WORKER=$root" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/\([0-9]*\)/environ$|\1|')
if [ $# -eq 0 ]; then
  for pid in $own; do
    [ "$pid" = $$ ] || echo "$pid"
  done
  exit
fi
# find takes a pattern, so escape special characters in the path.
pattern=$(printf %s "$1" | sed 's/[][*?\\]/\\&/g')
set --
for pid in $own; do
  [ "$pid" = $$ ] || set -- "$@" "/proc/$pid/fd"
done
[ $# -eq 0 ] || find "$@" -maxdepth 1 -lname "$pattern" -printf '%p\n' 2>/dev/null | sed 's|^/proc/\([0-9]*\)/fd/|\1 |'
