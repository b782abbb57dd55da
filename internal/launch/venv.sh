#!/bin/bash
# venv: RUN. Makes the Python virtual environment of a run, ~/.multihost/venv/RUN, unless a
# complete one exists. Reports its directory and the PATH for a command that uses it. The
# file .whole in the directory says that the environment is complete. Without it, for
# example after a reboot, venv replaces the environment.
#
# shellcheck disable=SC2034,SC2154 # lib.sh reads and sets variables of this script
main() {
  local run=$1 dir error
  local -a environment through_env
  enter
  dir=$home/.multihost/venv/$run
  inherit
  # PYTHONHOME would lead python to the libraries of another interpreter.
  environment+=(PYTHONHOME)
  error=$(exec mkdir -p -- "${dir%/*}" 2>&1) || fail "$error"
  { exec 9>"${dir%/*}/.lock"; } 2>/dev/null || fail "write ${dir%/*}/.lock"
  # A venv.sh without connection continues and keeps the lock until its end.
  error=$(exec flock -w 600 9 2>&1) || fail "lock ${dir%/*}/.lock: ${error:-another one has been made there for 10 minutes}"
  if [[ ! -e $dir/.whole || ! -x $dir/bin/python ]]; then
    forget_old
    make
  fi
  for REPLY in "${environment[@]}"; do
    if [[ $REPLY == PATH=* ]]; then say path "$dir/bin:${REPLY#PATH=}"; fi
  done
  say venv "$dir"
}

# make tries venv and then virtualenv. Images of TPU VMs have one of them, and some have
# neither.
make() {
  local first second status missing=-
  first=$(python -m venv --clear "$dir" 2>&1)
  status=$?
  if ((status)) && ! second=$(python -m virtualenv --clear "$dir" 2>&1); then
    if ((status == 127)); then
      missing=python3-venv first='there is no python3'
    elif ((status == 124)); then
      first='it took more than 10 minutes'
    elif [[ $first == *"ensurepip is not"* || $first == *"No module named"* ]]; then
      missing=python3-venv
    fi
    # Debian's long message about ensurepip ends with a path, so its last line says nothing.
    if [[ $first == *"ensurepip is not"* ]]; then first='ensurepip is not available'; fi
    say refused "$missing" "python3 -m venv: ${first##*$'\n'}; python3 -m virtualenv: ${second##*$'\n'}"
    exit 1
  fi
  : >"$dir/.whole" || fail "write $dir/.whole"
}

# python ARG... runs python3 with the login's environment. So it is the python3 that a
# command would find.
python() (become timeout -k 10 600 python3 "$@" </dev/null)

# forget_old removes a virtual environment that is more than 30 days old if its run has no
# other files on this worker.
forget_old() {
  local file old
  while IFS= read -r -d '' file; do
    old=${file%/.whole}
    if [[ $old != "$dir" && ! -d $home/.multihost/runs/${old##*/} ]]; then rm -rf -- "$old"; fi
  done < <(exec find "${dir%/*}" -mindepth 2 -maxdepth 2 -name .whole -mtime +30 -print0 2>/dev/null)
}

main "$@"
