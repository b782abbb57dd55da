#!/bin/bash -p
# sysctl of a simulated worker: reads and writes the files below the worker's own /proc/sys.
# To write, it needs root, which means sudo.
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
names='' values='' quiet='' ignore='' write='' all='' status=0

may_write() {
  if may "$1"; then
    return 0
  fi
  echo "sysctl: permission denied on key \"$1\"" >&2
  return 1
}

show() {
  local key=$1 value
  while IFS= read -r value; do
    if [[ -n $names ]]; then
      echo "$key"
    elif [[ -n $values ]]; then
      echo "$value"
    else
      echo "$key = $value"
    fi
  done <"$2"
}

one() {
  local key=${1%%=*} value
  key=${key//[[:space:]]/}
  [[ $key == *.* ]] || key=${key//\//.}
  local file=$root/proc/sys/${key//.//}
  if [[ -n $write && $1 != *=* ]]; then
    echo "sysctl: \"$1\" must be of the form name=value" >&2
    return 1
  fi
  if [[ ! -f $file ]]; then
    [[ -z $ignore ]] || return 0
    echo "sysctl: cannot stat /proc/sys/${key//.//}: No such file or directory" >&2
    return 1
  fi
  if [[ $1 == *=* ]]; then
    may_write "$key" || return 1
    value=${1#*=}
    value=${value#"${value%%[![:space:]]*}"}
    echo "$value" >"$file" || return 1
    [[ -n $quiet ]] && return 0
  fi
  show "$key" "$file"
}

words=()
while (($#)); do
  case $1 in
    -n | --values) values=yes ;;
    -N | --names) names=yes ;;
    -q | --quiet) quiet=yes ;;
    -e | --ignore) ignore=yes ;;
    -w | --write) write=yes ;;
    -a | -A | -X | --all) all=yes ;;
    -[nNqew][nNqew]*) set -- "$1" "${1:0:2}" "-${1:2}" "${@:2}" ;;
    -V | --version)
      echo 'sysctl from procps-ng 3.3.17'
      exit
      ;;
    -*)
      echo "sysctl: the simulator does not model option '$1'" >&2
      exit 1
      ;;
    *) words+=("$1") ;;
  esac
  shift
done

if [[ -n $all ]]; then
  cd "$root/proc/sys" || exit 1
  while IFS= read -r file; do
    file=${file#./}
    show "${file//\//.}" "$file"
  done < <(find . -type f | sort)
  exit
fi
if ((${#words[@]} == 0)); then
  echo 'Usage: sysctl [options] [variable[=value] ...]' >&2
  exit 1
fi
for word in "${words[@]}"; do
  one "$word" || status=1
done
# procps 3.3.17 of Ubuntu 22.04 exits with 255 where later versions exit with 1.
((status == 0)) || exit 255
