#!/bin/bash -p
# pkill, pgrep and killall of a simulated worker: the real pgrep chooses processes, of which
# only the worker's own count.
root=${0%/bin/*}
me=${0##*/}
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
signal=TERM quiet='' words=() status=0

while (($#)); do
  case $1 in
    --signal | -s)
      if [[ $me == pgrep ]]; then
        words+=("$1" "$2")
      else
        signal=$2
      fi
      shift
      ;;
    --signal=*) signal=${1#*=} ;;
    -q | -w | -e | -v | -I)
      [[ $me == killall ]] || words+=("$1")
      quiet=yes
      ;;
    -[A-Z][A-Z0-9]* | -[0-9]*) signal=${1#-} ;;
    *) words+=("$1") ;;
  esac
  shift
done

declare -A own=()
while read -r pid; do own[$pid]=yes; done < <("$root/bin/sim-processes")
unset "own[$$]"

# choose ARGUMENT...: prints pgrep's lines about the worker's own processes.
choose() {
  local pid rest found=1
  while read -r pid rest; do
    [[ -n $pid && -n ${own[$pid]-} ]] || continue
    found=0
    echo "$pid${rest:+ $rest}"
  done < <(pgrep "$@")
  return "$found"
}

case $me in
  pgrep) choose "${words[@]}" ;;
  pkill)
    mapfile -t pids < <(choose "${words[@]}" | cut -d ' ' -f 1)
    ((${#pids[@]})) || exit 1
    kill -s "${signal#SIG}" "${pids[@]}" 2>/dev/null
    ;;
  killall)
    for name in "${words[@]}"; do
      mapfile -t pids < <(choose -x -- "$name")
      if ((${#pids[@]})); then
        kill -s "${signal#SIG}" "${pids[@]}" 2>/dev/null
        continue
      fi
      [[ -n $quiet ]] || echo "$name: no process found" >&2
      status=1
    done
    exit "$status"
    ;;
esac
