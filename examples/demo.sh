#!/bin/sh
# Trains the example on 2 slices of 4 workers each of the simulator, from scratch:
# network, queued resource, job, teardown. It needs no account.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
multihost=${MULTIHOST:-$here/../bin/multihost}
logs=${DEMO_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/multihost-demo-XXXXXX")}

command -v python3 >/dev/null || {
  echo "multihost: error: the demo trains with python3, which is not installed" >&2
  exit 69
}

"$multihost" --sim --state-dir="$logs/state" job \
  --num-slices=2 --tpu-type=v5litepod-16 --network-create \
  --run-name=demo --script-dir="$here/train" --log-dir="$logs" \
  -- python3 train.py --steps=20

echo
echo "The logs of the eight workers:"
ls -l "$logs"/output_slice_*.txt
