#!/bin/bash -p
# fuser of a simulated worker: lists the worker's own processes that hold a file, and with
# -k sends them a signal. A path below /dev is a device of the worker.
root=${0%/bin/*}
kill='' signal=KILL silent='' status=1 files=()

while (($#)); do
  case $1 in
    -k | --kill) kill=yes ;;
    -s | --silent) silent=yes ;;
    -v | --verbose | -a | --all | --) ;;
    -[A-Z][A-Z0-9]* | -[1-9]*) signal=${1#-} ;;
    -[ksva][ksva]*) set -- "$1" "${1:0:2}" "-${1:2}" "${@:2}" ;;
    -*)
      echo "fuser: the simulator does not model option '$1'" >&2
      exit 1
      ;;
    *) files+=("$1") ;;
  esac
  shift
done
if ((${#files[@]} == 0)); then
  echo 'No process specification given' >&2
  exit 1
fi
for file in "${files[@]}"; do
  path=$file
  [[ $path == /dev/* && $path != "$root"/* ]] && path=$root$path
  if [[ ! -e $path ]]; then
    echo "Specified filename $file does not exist." >&2
    continue
  fi
  mapfile -t pids < <("$root/bin/sim-processes" "$(realpath -- "$path")" | cut -d ' ' -f 1 | sort -nu)
  ((${#pids[@]})) || continue
  status=0
  if [[ -z $silent ]]; then
    printf '%s:' "$file" >&2
    printf ' %5d' "${pids[@]}"
    echo >&2
  fi
  [[ -z $kill ]] || kill -s "$signal" "${pids[@]}" 2>/dev/null
done
exit "$status"
