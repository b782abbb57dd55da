#!/bin/sh
# systemctl of a simulated worker. It can restart chrony, which corrects a clock that a
# fault has changed. It can also restart Google's Ops Agent; state/ops-agent counts these
# restarts. Nothing else is modelled.
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
case $* in
  'cat google-cloud-ops-agent')
    printf '[Unit]\nDescription=Google Cloud Ops Agent\n'
    exit
    ;;
  'restart chrony') unit=chrony mark=clock-set ;;
  'restart google-cloud-ops-agent') unit=google-cloud-ops-agent mark=ops-agent ;;
  *)
    echo "systemctl: not modelled by the simulator: $*" >&2
    exit 1
    ;;
esac
if ! is_root; then
  echo "Failed to restart $unit.service: Interactive authentication required." >&2
  exit 1
fi
echo restart >>"$root/state/$mark"
