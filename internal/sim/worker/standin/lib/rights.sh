#!/bin/sh
# Who may do what on a simulated worker, for the stand-ins that source this. It
# starts no process: where that takes long, preflights would spend their time here.
# shellcheck disable=SC2154 # root is set by who sources this

# is_root: a login is an ordinary user, and root behind sudo, whoever runs the
# simulator.
is_root() { [ -n "${SUDO_UID-}" ] && [ "${USER-}" = root ]; }

# listed LINE FILE: the file of the worker's state has that line.
listed() {
	[ -r "$root/state/$2" ] || return 1
	while IFS= read -r entry; do
		[ "$entry" != "$1" ] || return 0
	done <"$root/state/$2"
	return 1
}

# may NAME: root may change that, unless a fault denies it.
may() { is_root && ! listed "$1" denied; }
