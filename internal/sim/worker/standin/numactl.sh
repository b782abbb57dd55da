#!/bin/bash -p
# numactl of a simulated worker: checks that the worker has the given nodes, and runs the
# command unbound.
root=${0%/bin/*}
nodes=$root/sys/devices/system/node

last() {
  local n=0
  while [[ -d $nodes/node$((n + 1)) ]]; do ((n++)); done
  echo "$n"
}

usage() {
  echo
  echo 'usage: numactl [--interleave= | -i <nodes>] [--preferred= | -p <node>]'
  echo '               [--cpunodebind= | -N <nodes>] [--membind= | -m <nodes>]'
  echo '               [--localalloc | -l] command args ...'
  echo '       numactl [--show | -s]'
  echo '       numactl [--hardware | -H]'
  exit 1
} >&2

check() {
  local part from to n
  [[ $1 == all ]] && return
  for part in ${1//,/ }; do
    part=${part#[+!]}
    from=${part%-*} to=${part#*-}
    if [[ ! $from =~ ^[0-9]+$ || ! $to =~ ^[0-9]+$ ]]; then
      echo "<$1> is invalid" >&2
      usage
    fi
    for ((n = from; n <= to; n++)); do
      if [[ ! -d $nodes/node$n ]]; then
        echo "libnuma: Warning: node argument $n is out of range" >&2
        echo >&2
        echo "<$1> is invalid" >&2
        usage
      fi
    done
  done
}

hardware() {
  local end n m
  end=$(last)
  if ((end == 0)); then
    echo 'available: 1 nodes (0)'
  else
    echo "available: $((end + 1)) nodes (0-$end)"
  fi
  for ((n = 0; n <= end; n++)); do
    IFS=- read -r from to <"$nodes/node$n/cpulist"
    echo "node $n cpus: $(seq -s ' ' "$from" "$to")"
    read -r _ _ _ kb _ <"$nodes/node$n/meminfo"
    echo "node $n size: $((kb / 1024)) MB"
    echo "node $n free: $((kb / 1024 - 4096)) MB"
  done
  echo 'node distances:'
  printf 'node '
  for ((m = 0; m <= end; m++)); do printf '%4d' "$m"; done
  echo
  for ((n = 0; n <= end; n++)); do
    printf '%3d: ' "$n"
    for ((m = 0; m <= end; m++)); do printf '%4d' $((n == m ? 10 : 21)); done
    echo
  done
}

(($#)) || usage
while (($#)); do
  case $1 in
    --hardware | -H)
      hardware
      exit
      ;;
    --show | -s)
      printf 'policy: default\npreferred node: current\n'
      exit
      ;;
    --membind=* | --cpunodebind=* | --interleave=* | --preferred=*) check "${1#*=}" ;;
    --membind | -m | --cpunodebind | -N | --interleave | -i | --preferred | -p)
      (($# > 1)) || usage
      check "$2"
      shift
      ;;
    --localalloc | -l | --all | -a) ;;
    --)
      shift
      break
      ;;
    -*) usage ;;
    *) break ;;
  esac
  shift
done
(($#)) || usage
if ! command -v -- "$1" >/dev/null; then
  echo "numactl: execution of \`$1': No such file or directory" >&2
  exit 1
fi
exec "$@"
