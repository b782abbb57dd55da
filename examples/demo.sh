#!/bin/sh
# Trains the example on two slices, from scratch: network, slices, job, teardown. It needs
# no account. PROVIDER says which API makes the slices. tpu and gce are APIs of the
# simulator. gke is a Kubernetes cluster on this machine: the script first builds its control
# plane.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
multihost=${MULTIHOST:-$here/../bin/multihost}

case ${PROVIDER:-tpu} in
  tpu) set -- --tpu-type=v5litepod-16 ;;
  gce) set -- --provider=gce --tpu-type=tpu7x-16 ;;
  gke) ;;
  *)
    echo "multihost: error: PROVIDER=$PROVIDER: the providers are tpu, gce and gke" >&2
    exit 64
    ;;
esac

command -v python3 >/dev/null || {
  echo "multihost: error: the demo trains with python3, which is not installed" >&2
  exit 69
}

logs=${DEMO_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/multihost-demo-XXXXXX")}
if [ "${PROVIDER:-tpu}" = gke ]; then
  programs=${XDG_CACHE_HOME:-$HOME/.cache}/multihost/kube
  mkdir -p "$programs" "$logs"
  go build -C "$here/../test/kube" -o "$programs/demo" ./demo
  MULTIHOST=$multihost DEMO_LOGS=$logs exec "$programs/demo" --dir="$logs/cluster" "$here/gke.sh"
fi
"$multihost" --sim --state-dir="$logs/state" job \
  --num-slices=2 "$@" --network-create \
  --run-name=demo --script-dir="$here/train" --log-dir="$logs" \
  -- python3 train.py --steps=20

echo
echo "The logs of all workers:"
ls -l "$logs"/output_slice_*.txt
