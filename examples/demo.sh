#!/bin/sh
# Trains the example on two slices of the simulator, from scratch: network, slices, job,
# teardown. PROVIDER is the API that makes the slices: tpu or gce. Needs no account.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
multihost=${MULTIHOST:-$here/../bin/multihost}

case ${PROVIDER:-tpu} in
  tpu) set -- --tpu-type=v5litepod-16 ;;
  gce) set -- --provider=gce --tpu-type=tpu7x-16 ;;
  *)
    echo "multihost: error: PROVIDER=$PROVIDER: the providers are tpu and gce" >&2
    exit 64
    ;;
esac

command -v python3 >/dev/null || {
  echo "multihost: error: the demo trains with python3, which is not installed" >&2
  exit 69
}

logs=${DEMO_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/multihost-demo-XXXXXX")}
"$multihost" --sim --state-dir="$logs/state" job \
  --num-slices=2 "$@" --network-create \
  --run-name=demo --script-dir="$here/train" --log-dir="$logs" \
  -- python3 train.py --steps=20

echo
echo "The logs of all workers:"
ls -l "$logs"/output_slice_*.txt
