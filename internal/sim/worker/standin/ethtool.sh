#!/bin/bash -p
# ethtool of a simulated worker: its features are lines "name on|off" of a file.
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
features=$root/state/features

fixed() { listed "$1" fixed; }

device() {
  [[ -n $1 && -d $root/sys/class/net/$1 ]] && return
  echo 'netlink error: no device matches name (offset 24)' >&2
  echo 'netlink error: No such device' >&2
  exit 92
}

may_write() {
  if may ethtool; then
    return 0
  fi
  echo 'netlink error: Operation not permitted' >&2
  exit 1
}

case ${1-} in
  -k | --show-features | --show-offload)
    device "${2-}"
    echo "Features for $2:"
    while read -r name value; do
      note=''
      fixed "$name" && note=' [fixed]'
      echo "$name: $value$note"
    done <"$features"
    ;;
  -K | --features | --offload)
    device "${2-}"
    shift 2
    may_write
    unchanged=''
    while (($# >= 2)); do
      name=$1 value=$2
      case $name in
        tso) name=tcp-segmentation-offload ;;
        gso) name=generic-segmentation-offload ;;
        gro) name=generic-receive-offload ;;
        sg) name=scatter-gather ;;
      esac
      old='' text=''
      while read -r feature state; do
        if [[ $feature == "$name" ]]; then
          old=$state state=$value
        fi
        text+="$feature $state"$'\n'
      done <"$features"
      if [[ -z $old ]]; then
        echo 'netlink error: bit name not found (offset 52)' >&2
        echo 'netlink error: Operation not supported' >&2
        exit 2
      fi
      if [[ $value != on && $value != off ]]; then
        echo "ethtool (-K): flag '$name' for parameter '$value' is not followed by 'on' or 'off'" >&2
        exit 1
      fi
      if [[ $old != "$value" ]] && fixed "$name"; then
        printf 'Actual changes:\n%s: %s [requested %s]\n' "$name" "$old" "$value"
        unchanged=yes
      else
        printf %s "$text" >"$features"
      fi
      shift 2
    done
    if [[ -n $unchanged ]]; then
      echo 'Could not change any device features' >&2
      exit 1
    fi
    ;;
  -i | --driver)
    device "${2-}"
    printf 'driver: gve\nversion: 1.0.0\n'
    ;;
  --version) echo 'ethtool version 5.16' ;;
  *)
    echo 'ethtool: bad command line argument(s)' >&2
    echo 'For more information run ethtool -h' >&2
    exit 1
    ;;
esac
