#!/bin/sh
# systemctl of a simulated worker: what sets its clock can be restarted, which
# puts a clock right that a fault has moved. Nothing else is modelled.
root=${0%/bin/*}
if [ "$*" != "restart chrony" ]; then
	echo "systemctl: not modelled by the simulator: $*" >&2
	exit 1
fi
if [ "$("$root/bin/id" -u)" != 0 ]; then
	echo 'Failed to restart chrony.service: Interactive authentication required.' >&2
	exit 1
fi
: >"$root/state/clock-set"
