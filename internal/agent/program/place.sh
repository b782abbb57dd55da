# shellcheck shell=bash
# Functions that keep multihost-agent on a worker, by its SHA-256, where this login can run
# it. A home or /tmp may be full, or mounted without exec, so there are three places. The
# places and the programs in them must belong to this login, and the hash comes from the
# sender of this script. So no other login can have written a program that runs.
places=("${HOME:-/root}/.multihost/agent" "${MULTIHOST_ROOT_TMP-}/tmp/.multihost-agent-$UID" "${MULTIHOST_ROOT_DEV-}/dev/shm/multihost-agent-$UID")
agent='' why=''

# sum_here SUMS: sets REPLY to the hash for this machine. SUMS is "x86_64=SHA256 ...".
sum_here() {
  local type
  type=$(uname -m)
  if [[ " $1" != *" $type="* ]]; then
    why="there is no multihost-agent for machines of type $type"
    return 1
  fi
  REPLY=" $1"
  REPLY=${REPLY##*" $type="}
  REPLY=${REPLY%% *}
}

# runs SUM FILE: succeeds if FILE is ours, has that hash and can run here, and sets $agent
# to FILE. If FILE exists but cannot be used, $why says why.
runs() {
  local sum error
  if [[ ! -f $2 || -L $2 || ! -O $2 ]]; then return 1; fi
  sum=$(sha256sum <"$2")
  if [[ ${sum%% *} != "$1" ]]; then
    why="$2 is not multihost-agent with the SHA-256 $1"
    return 1
  fi
  if ! error=$("$2" check 2>&1); then
    why="cannot run $2: ${error##*: }"
    return 1
  fi
  # shellcheck disable=SC2034 # what follows this text reads it
  agent=$2
}

# find_agent SUM: sets $agent to the program of this login that has the hash SUM.
find_agent() {
  local place
  why=''
  for place in "${places[@]}"; do
    if [[ -O $place && ! -L $place ]] && runs "$1" "$place/$1"; then return; fi
  done
  return 1
}

# keep_agent SUM COMMAND...: keeps the program that COMMAND prints, and sets $agent. It
# calls COMMAND once for each place that it tries. It also keeps a program that cannot run,
# so that nobody sends it again.
keep_agent() {
  local sum=$1 place new error reasons=''
  shift
  for place in "${places[@]}"; do
    new=$place/.$sum.$$
    if ! error=$({ (umask 077 && mkdir -p -- "$place") && [[ -O $place && ! -L $place ]] && "$@" >"$new" && chmod 755 -- "$new"; } 2>&1); then
      why="write $place: ${error##*: }"
    elif ! runs "$sum" "$new" && [[ $why != "cannot run"* ]]; then
      : # $why says why
    elif ! error=$(mv -f -- "$new" "$place/$sum" 2>&1); then
      why="write $place: ${error##*: }"
    elif runs "$sum" "$place/$sum"; then
      forget "$place"
      return
    fi
    rm -f -- "$new"
    reasons+="; $why"
  done
  why=${reasons#; }
  return 1
}

# forget PLACE: removes all but the three newest programs in PLACE.
forget() {
  local -a old
  # shellcheck disable=SC2012 # names are hexadecimal
  mapfile -t old < <(cd -- "$1" && ls -t 2>/dev/null | tail -n +4)
  if ((${#old[@]})); then (cd -- "$1" && rm -f -- "${old[@]}"); fi
}
