#!/bin/sh
# Trains the example on two slices of the Kubernetes cluster that KUBECONFIG names: pods
# hold the slices, the training runs in the pods, then the slices are given back.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
multihost=${MULTIHOST:-$here/../bin/multihost}
logs=${DEMO_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/multihost-demo-XXXXXX")}

in_cluster() {
  "$multihost" --state-dir="$logs/state" "$@" --kubeconfig="${KUBECONFIG:?it must name a file}"
}

in_cluster slices create demo --tpu-type="${TPU_TYPE:-v5litepod-16}" --node-count=2
# Also if this script is interrupted, the pods must not keep their nodes.
trap 'in_cluster slices delete demo' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
in_cluster slices wait demo
status=0
in_cluster run --tpu-prefix=demo --run-name=demo --script-dir="$here/train" --log-dir="$logs" \
  --command='python3 train.py --steps=20' || status=$?

echo
echo "The logs of all workers:"
ls -l "$logs"/output_slice_*.txt
exit "$status"
