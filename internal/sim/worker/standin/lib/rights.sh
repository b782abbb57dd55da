#!/bin/sh
# Rights on a simulated worker, for the stand-ins that source this file. It starts no
# process: preflights would spend most of their time on that where processes start slowly.
# shellcheck disable=SC2154 # root is set by who sources this

# is_root: a login is an ordinary user, and is root under sudo, whoever runs the simulator.
is_root() { [ -n "${SUDO_UID-}" ] && [ "${USER-}" = root ]; }

# listed LINE FILE: succeeds if FILE in the worker's state has that line.
listed() {
  [ -r "$root/state/$2" ] || return 1
  while IFS= read -r entry; do
    [ "$entry" != "$1" ] || return 0
  done <"$root/state/$2"
  return 1
}

# may NAME: succeeds if the caller is root and no fault prevents a change of NAME.
may() { is_root && ! listed "$1" denied; }
