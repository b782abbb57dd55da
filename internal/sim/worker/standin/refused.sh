#!/bin/sh
# Stand-in for commands that would change the machine on which the simulator runs.
echo "${0##*/}: not modelled by the simulator" >&2
exit 1
