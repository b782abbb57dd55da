#!/bin/bash -p
# lsof of a simulated worker: lists the worker's own processes that hold a file. A path
# below /dev is a device of the worker.
root=${0%/bin/*}
terse='' status=0 files=()

while (($#)); do
  case $1 in
    -t) terse=yes ;;
    -w | +w | -n | -P | -l | --) ;;
    -[wnPlt][wnPlt]*) set -- "$1" "${1:0:2}" "-${1:2}" "${@:2}" ;;
    -* | +*)
      echo "lsof: the simulator does not model option '$1'" >&2
      exit 1
      ;;
    *) files+=("$1") ;;
  esac
  shift
done
if ((${#files[@]} == 0)); then
  echo 'lsof: the simulator models only names of files' >&2
  exit 1
fi

header='' pids=()
for file in "${files[@]}"; do
  path=$file
  [[ $path == /dev/* && $path != "$root"/* ]] && path=$root$path
  if [[ ! -e $path ]]; then
    echo "lsof: status error on $file: No such file or directory" >&2
    status=1
    continue
  fi
  found=''
  while read -r pid fd; do
    found=yes
    pids+=("$pid")
    [[ -z $terse ]] || continue
    [[ -n $header ]] || printf '%-9s %7s %-8s %4s %5s %18s %9s %5s %s\n' \
      COMMAND PID USER FD TYPE DEVICE SIZE/OFF NODE NAME
    header=yes
    read -r user command < <(ps -o user=,comm= -p "$pid")
    printf '%-9s %7s %-8s %3su %5s %18s %9s %5s %s\n' \
      "${command:0:9}" "$pid" "${user:0:8}" "$fd" CHR 511,0 0t0 321 "$file"
  done < <("$root/bin/sim-processes" "$(realpath -- "$path")")
  [[ -n $found ]] || status=1
done
if [[ -n $terse ]] && ((${#pids[@]})); then
  printf '%s\n' "${pids[@]}" | sort -nu
fi
exit "$status"
