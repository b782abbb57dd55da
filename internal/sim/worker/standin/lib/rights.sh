#!/bin/sh
# Rights on a simulated worker, for the stand-ins that source this. It starts no process:
# where starting one is slow, preflights would spend their time here.
# shellcheck disable=SC2154 # root is set by who sources this

# is_root: a login is an ordinary user, and is root behind sudo, whoever runs the
# simulator.
is_root() { [ -n "${SUDO_UID-}" ] && [ "${USER-}" = root ]; }

# listed LINE FILE: whether the FILE of the worker's state has that line.
listed() {
  [ -r "$root/state/$2" ] || return 1
  while IFS= read -r entry; do
    [ "$entry" != "$1" ] || return 0
  done <"$root/state/$2"
  return 1
}

# may NAME: whether the caller is root and no fault denies changing NAME.
may() { is_root && ! listed "$1" denied; }
