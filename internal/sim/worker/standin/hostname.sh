#!/bin/sh
# hostname of a simulated worker.
root=${0%/bin/*}
case ${1-} in
  '' | -s | -f | --short | --fqdn) cat "$root/proc/sys/kernel/hostname" ;;
  -I | -i | --all-ip-addresses | --ip-address) echo "$(cat "$root/state/address") " ;;
  *)
    echo "hostname: the simulator does not model '$1'" >&2
    exit 1
    ;;
esac
