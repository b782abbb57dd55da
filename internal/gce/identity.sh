#!/bin/bash
# Reports which worker of its slice this VM is. Some time after the boot, Compute Engine
# gives each VM a number in its metadata. No API shows that number. The script writes it
# into the guest attribute multihost/worker, with the names of all workers in their order.
multihost_identity() {
  local server=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance number all _
  for _ in {1..300}; do
    number=$(curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$server/attributes/agent-worker-number")
    all=$(curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$server/attributes/worker-network-endpoints")
    if [[ $number =~ ^[0-9]+$ && $all ]] &&
      curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary "$number $all" "$server/guest-attributes/multihost/worker"; then
      return 0
    fi
    sleep 2
  done
  return 1
}
multihost_identity </dev/null >/dev/null 2>&1 &
