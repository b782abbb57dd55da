#!/bin/bash
# Functions for all scripts of this directory. They are sent in front of each script, after
# the prelude of package remote.
#
# The scripts run in an environment of their own: see environment.sh of package remote. The
# command gets the login's environment: see inherit and become.
#
# shellcheck disable=SC2034,SC2154 # these functions share variables with the scripts
set -u

# index is a directory that every login of the worker can read. It has one file for each
# attempt, and the lock of the active run.
index=${MULTIHOST_ROOT_TMP-}/tmp/.multihost

# cgroup_of PID sets REPLY to the control group of the process in the unified hierarchy.
cgroup_of() {
  local line
  REPLY=
  while IFS= read -r line; do
    if [[ $line == 0::* ]]; then REPLY=${line#0::}; fi
  done 2>/dev/null <"/proc/$1/cgroup"
}

# enter goes to the home directory and sets $home and $boot.
enter() {
  cd -P -- "${HOME:?}" 2>/dev/null || fail "home directory ${HOME-} cannot be entered"
  home=$PWD
  boot_id
  boot=${REPLY:-none}
}

# look DIR reads the state of an attempt into phase and the variables below. It looks
# at the supervisor before the exit file, because a supervisor writes that file before
# it ends.
look() {
  local dir=$1 key value
  sup=0 sup_start=0 sup_boot='' armed=0 pid=0 start=0 at=0 waiter=0 supervised=0
  exit_lines=() exit_lost=0
  if [[ ! -d $dir ]]; then
    phase=unknown
    return
  fi
  { read -r sup sup_start sup_boot armed <"$dir/supervisor"; } 2>/dev/null
  if alive "${sup:=0}" "$sup_start" "$sup_boot"; then supervised=1; fi
  { read -r pid start at waiter <"$dir/started"; } 2>/dev/null
  if [[ -s $dir/exit ]]; then
    while IFS='=' read -r key value; do
      [[ $key == [a-z]* ]] || continue
      exit_lines+=("$key $value")
      if [[ $key == lost ]]; then exit_lost=$value; fi
    done <"$dir/exit"
    phase=exited
    if ((exit_lost)); then phase=lost; fi
  elif ((${pid:=0} == 0)); then
    phase=aborted
    if ((supervised)); then phase=starting; fi
  elif ((supervised)) || alive "$pid" "$start" "$sup_boot"; then
    phase=running
  else
    phase=lost
  fi
}

# tell RUN ATTEMPT DIR prints the state that look found, as lines of the answer.
tell() {
  local line
  say run "$1" "$2"
  say dir "$3"
  say phase "$phase"
  say supervisor "$sup" "$supervised" "$armed"
  say started "$pid" "$at"
  for line in "${exit_lines[@]}"; do say exit "$line"; done
}

size_of() {
  REPLY=0
  [[ -s $1 ]] || return 0 # most files are empty, and this test starts no process
  REPLY=$(exec stat -c %s -- "$1" 2>/dev/null) || REPLY=0
}

log_size() { size_of "$1/output.log"; }

# limit_of DIR sets REPLY to the largest length of the log in bytes.
limit_of() {
  local text=
  { read -r text <"$1/limit"; } 2>/dev/null
  REPLY=${text:-$no_limit}
}

no_limit=4000000000000000000

# dropped_of DIR sets REPLY to the number of output bytes that are not in the log.
dropped_of() {
  local size
  size_of "$1/dropped"
  size=$REPLY
  size_of "$1/lost"
  REPLY=$((size + REPLY))
}

# followers_of DIR sets REPLY to the number of processes that follow the output of the
# attempt. It adds the files of ended followers to the array stale.
followers_of() {
  local file p began at count=0
  for file in "$1"/follower.[0-9]*; do
    p=0
    { read -r p began at <"$file"; } 2>/dev/null || continue
    if alive "$p" "$began" "$at"; then count=$((count + 1)); else stale+=("$file"); fi
  done
  REPLY=$count
}

# disk_of PATH sets REPLY to the free blocks, all blocks and the bytes of a block.
disk_of() { REPLY=$(exec stat -f -c '%a %b %S' -- "$1" 2>/dev/null); }

# doze SECONDS sleeps without starting a process. It reads from a socket, or else from a
# pipe, to which nobody writes.
doze() {
  if [[ ! ${mh_never-} ]] && ! { exec {mh_never}<>/dev/udp/127.0.0.1/9 || exec {mh_never}<> <(:); } 2>/dev/null; then
    sleep "$1"
  else
    read -r -t "$1" -u "$mh_never" _ || :
  fi
}

# mark_lost DIR WHY records that nobody saw the end, unless an end is already recorded.
mark_lost() {
  local size
  # Wait for the relay: it may still move output of the command to the log.
  flock -s -w 2 "$1/relay" true 2>/dev/null
  log_size "$1"
  size=$REPLY
  dropped_of "$1"
  {
    printf 'code=255\nsignal=\nend=0\nsize=%s\noom=0\nlost=1\ndropped=%s\nreason=%s\n' \
      "$size" "$REPLY" "$2" >"$1/exit.$$" &&
      mv -n -- "$1/exit.$$" "$1/exit"
    rm -f -- "$1/exit.$$"
  } 2>/dev/null
}

# settle DIR does what look does, and also records an end that nobody saw.
settle() {
  local why='the supervisor was killed'
  look "$1"
  if [[ $phase == lost && ! -s $1/exit && -w $1 ]]; then
    if [[ $sup_boot != "$boot" ]]; then why='the worker was rebooted'; fi
    if [[ -s $1/stop ]]; then why="$why; $(<"$1/stop")"; fi
    mark_lost "$1" "$why"
    look "$1"
  fi
}

# processes DIR fills the array pids with the living processes of the run, after look has
# found that run. These are
#
#   - its session, unless another process now has the session's number or the machine was
#     rebooted. The session has its number as long as it has members, even if its leader is
#     dead;
#   - processes whose environment names the run's directory;
#   - processes whose output is the run's pipe;
#   - processes without a parent in the control group of the SSH session that started the
#     run, while no other run is active on the worker. The relay of the run is not among
#     them: it reads the pipe and ends by itself. Neither is the watch of package lease,
#     which outlives the run;
#   - the descendants of all these.
processes() {
  local leader=$pid dir=$1 scope='' path target p
  local -A ours=() parents=() apart=()
  if [[ $sup_boot != "$boot" ]]; then
    leader=0
  elif [[ -d /proc/$pid ]] && start_of "$pid" && [[ $REPLY != "$start" ]]; then
    leader=0
  fi
  { read -r scope <"$dir/scope"; } 2>/dev/null
  if [[ $sup_boot != "$boot" ]]; then
    scope=
  elif [[ $scope && $phase != running && $phase != starting ]]; then
    { flock -s -n 7; } 7<"$index/lock" 2>/dev/null || scope=
  fi
  search "$dir"
  for p in "${marked[@]}"; do
    if own "$p"; then ours[$p]=1; fi
  done
  for target in "${opened[@]}"; do
    path=${target%% *} target=${target#* }
    p=${path#/proc/}
    p=${p%%/*}
    if [[ ${target% (deleted)} != "$dir/output" ]] || ! own "$p"; then
      continue
    elif [[ $path == */0 ]]; then
      apart[$p]=1
    elif [[ $path == */[12] ]]; then
      ours[$p]=1
    fi
  done
  for path in "$index"/*.watch.[0-9]*; do
    if [[ ! -f $path || ! -r $path ]]; then continue; fi
    while read -r p target _; do
      if start_of "$p" && [[ $REPLY == "$target" ]]; then apart[$p]=1; fi
    done <"$path"
  done
  everybody
  if [[ $scope ]]; then
    for p in "${!parents[@]}"; do
      if ((parents[$p] == 1 && p != sup)) && [[ ! ${apart[$p]-} ]]; then
        cgroup_of "$p"
        if [[ $REPLY == "$scope" ]]; then ours[$p]=1; fi
      fi
    done
  fi
  kin
}

# own PID succeeds if the process lives and belongs to this login. For root every process
# counts, because a command of root may start processes as other users.
own() { [[ -O /proc/$1 || $EUID == 0 && -d /proc/$1 ]]; }

# everybody fills the map "parents" with the parent of every living process. If $leader is
# above 1, it adds the processes of that session to the map "ours". It removes dead
# processes from "ours". It must be as fast as ps(1), because there may be thousands of
# processes.
everybody() {
  local path p text
  for path in /proc/[0-9]*/stat; do
    p=${path#/proc/}
    p=${p%/stat}
    text=
    IFS= read -r -d '' text <"$path"
    text=${text##*) }
    if [[ ! $text || $text == [ZX]* ]]; then
      unset -v "ours[$p]"
      continue
    fi
    text=${text#* }
    parents[$p]=${text%% *}
    text=${text#* * }
    if ((leader > 1 && ${text%% *} == leader)); then ours[$p]=1; fi
  done 2>/dev/null
}

# kin adds to the map "ours" all descendants of the processes in it. The map "parents" shows
# which they are. Then kin sets the array pids to the processes in "ours", without this
# process and its ancestors.
kin() {
  local p more=1
  while ((more)); do
    more=0
    for p in "${!parents[@]}"; do
      if [[ ! ${ours[$p]-} && ${ours[${parents[$p]}]-} ]]; then
        ours[$p]=1
        more=1
      fi
    done
  done
  p=$$
  while ((p > 1)); do
    unset -v "ours[$p]"
    p=${parents[$p]-0}
  done
  pids=("${!ours[@]}")
}

# cpu_time sets REPLY to the processor time, in milliseconds, of the processes in pids and
# their ended children. A tick of /proc is a hundredth of a second on every Linux.
cpu_time() {
  local fields p sum=0
  for p in "${pids[@]}"; do
    if stat_of "$p"; then sum=$((sum + fields[11] + fields[12] + fields[13] + fields[14])); fi
  done
  REPLY=$((sum * 10))
}

send() { # SIGNAL PID
  kill -s "$1" "$2" 2>/dev/null && return
  start_of "$2" && sudo -n kill -s "$1" "$2" 2>/dev/null
}

# end_all GRACE_MS FIND ends the processes that the function FIND puts into pids. It sends
# TERM, waits for the grace time and sends KILL. It returns when FIND finds no process, or
# 10 s after KILL. pids then has the survivors. FIND is slow, so it runs again only when its
# processes are gone or a limit has passed. The pauses between looks grow.
end_all() {
  local signal=TERM limit_ns pause_ms=20 p gone
  local -A done_to=()
  found=0 killed=0
  now_ns
  limit_ns=$((REPLY + $1 * 1000000))
  while :; do
    "$2"
    if ((${#pids[@]} == 0)); then return; fi
    for p in "${pids[@]}"; do
      if [[ ${done_to[$p]-} == "$signal" ]]; then continue; fi
      if [[ ! ${done_to[$p]-} ]]; then found=$((found + 1)); fi
      if [[ $signal == KILL ]]; then killed=$((killed + 1)); fi
      done_to[$p]=$signal
      send "$signal" "$p"
      send CONT "$p" # a stopped process gets TERM only when it continues
    done
    gone=0
    while ((! gone)); do
      printf -v REPLY '%d.%03d' $((pause_ms / 1000)) $((pause_ms % 1000))
      doze "$REPLY"
      pause_ms=$((pause_ms < 500 ? pause_ms * 3 / 2 : 500))
      gone=1
      for p in "${pids[@]}"; do
        if start_of "$p"; then gone=0; fi
      done
      now_ns
      if ((REPLY > limit_ns)); then break; fi
    done
    if ((gone)); then continue; fi
    if [[ $signal == KILL ]]; then return; fi
    signal=KILL
    limit_ns=$((REPLY + 10000000000))
  done
}

# devices puts the TPU device files of the worker into the array device_files. It skips the
# control node /dev/vfio/vfio. It also skips a device if the system reports a vendor other
# than Google.
devices() {
  local root=${MULTIHOST_ROOT_DEV-}/dev file
  device_files=()
  for file in "$root"/accel[0-9]* "$root"/vfio/[0-9]*; do
    if [[ -e $file ]] && may_be_tpu "$file"; then device_files+=("$file"); fi
  done
}

may_be_tpu() {
  local sys=${MULTIHOST_ROOT_SYS-}/sys name=${1##*/} file known=0 vendor
  local -a vendors=("$sys/class/accel/$name/device/vendor")
  if [[ $1 == */vfio/* ]]; then
    vendors=("$sys/kernel/iommu_groups/$name"/devices/*/vendor)
    for file in "$sys"/bus/pci/devices/*/iommu_group; do
      if [[ -L $file && $(readlink -- "$file") == */"$name" ]]; then vendors+=("${file%/*}/vendor"); fi
    done
  fi
  for file in "${vendors[@]}"; do
    vendor=
    { read -r vendor <"$file"; } 2>/dev/null
    if [[ $vendor == 0x1ae0 ]]; then return 0; fi
    if [[ $vendor ]]; then known=1; fi
  done
  ((! known))
}

# privileged sets as_root to the words in front of a command that needs root. If root is not
# available, it sets blind to the reason. It tries once.
as_root=() blind='' tried_root=''
privileged() {
  local error
  if ((EUID == 0)) || [[ $tried_root ]]; then return; fi
  tried_root=1
  if ! type -P sudo >/dev/null; then
    blind='sudo is not installed'
  elif error=$(timeout -k 1 20 sudo -n true 2>&1); then # sudo may wait for a name server
    as_root=(sudo -n)
  else
    error=${error##*$'\n'}
    blind=${error:-sudo is refused}
  fi
}

# search [DIR] fills the arrays opened and mapped with lines "/proc/PID/fd/N FILE" and
# "/proc/PID/maps:... FILE" for the devices in device_files. If there are devices, it looks
# as root where possible, and sets as_root and blind as privileged does. With DIR it adds
# the open outputs of that attempt to opened. With DIR it also fills the array marked with
# the processes whose environment names the attempt. One shell does all of it, because each
# sudo takes two processes.
search() {
  local fd='' line file mark='' output=/ devices=${MULTIHOST_ROOT_DEV-}/dev
  local -a words
  opened=() mapped=() marked=() searched=1
  if [[ ${1-} ]]; then mark=MULTIHOST_RUN_DIR=$1 output=${1//[][*?\\]/?}"/output*"; fi
  devices=${devices//[][*?\\]/?}
  words=(sh -c "$searching" search "$output" "$devices/accel*" "$devices/vfio/*" "$mark")
  for file in "${device_files[@]}"; do
    words+=(-e " $file")
  done
  if ((EUID && ${#device_files[@]})) && [[ ! $tried_root ]]; then
    tried_root=1
    if type -P sudo >/dev/null; then
      begin_search sudo -n "${words[@]}" || blind=${REPLY:-sudo is refused}
    else
      blind='sudo is not installed'
    fi
    if [[ ! $blind ]]; then as_root=(sudo -n); fi
  fi
  if [[ ! $fd ]]; then begin_search "${as_root[@]}" "${words[@]}" || return 0; fi
  while IFS= read -r line; do
    case ${line#/proc/*/} in
      fd/*) opened+=("$line") ;;
      maps:*) mapped+=("$line") ;;
      environ)
        line=${line#/proc/}
        marked+=("${line%/environ}")
        ;;
    esac
  done <&"$fd"
  exec {fd}<&-
}
device_files=() searched=''

# shellcheck disable=SC2016 # for another shell
searching='
echo begins
exec 2>/dev/null
find /proc/[0-9]*/fd -maxdepth 1 \( -lname "$1" -o -lname "$2" -o -lname "$3" \) -printf "%p %l\n"
if [ -n "$4" ]; then grep -lzFx -e "$4" /proc/[0-9]*/environ; fi
shift 4
if [ $# -gt 0 ]; then exec grep -HsF "$@" /proc/[0-9]*/maps; fi
'

# begin_search COMMAND... begins the search and sets fd to its output. On failure fd is
# empty, and REPLY says why. sudo may wait for a name server.
begin_search() {
  local line=''
  REPLY=
  exec {fd}< <(exec "$@" 2>&1)
  while IFS= read -r -t 20 -u "$fd" line; do
    if [[ $line == begins ]]; then return; fi
    REPLY=${line:-$REPLY}
  done
  exec {fd}<&-
  fd=''
  return 1
}

# holders [FOUND] sets the map "holding", from pid to device. The map has the processes that
# have a TPU device open, or still mapped after closing it, without this process and its
# ancestors. With FOUND it uses the results of the last search.
holders() {
  local file line pid
  local -a fields
  local -A excluded=()
  declare -gA holding=()
  if ((${#device_files[@]} == 0)); then return; fi
  if [[ ! ${1-} ]]; then search; fi
  pid=$$
  while ((pid > 1)); do
    excluded[$pid]=1
    stat_of "$pid" || break
    pid=${fields[1]}
  done
  for line in "${opened[@]}" "${mapped[@]}"; do
    line=${line% (deleted)}
    pid=${line#/proc/}
    pid=${pid%%/*}
    for file in "${device_files[@]}"; do
      if [[ $line == *" $file" && ! ${excluded[$pid]-} ]]; then
        holding[$pid]=${file#"${MULTIHOST_ROOT_DEV-}"}
      fi
    done
  done
}

# run_dir PID sets REPLY to the attempt directory of the process, by its environment or its
# output, or to "".
run_dir() {
  local entry fd
  REPLY=
  while IFS= read -r -d '' entry; do
    if [[ $entry == MULTIHOST_RUN_DIR=/* ]]; then
      REPLY=${entry#*=}
      return
    fi
  done < <(
    if [[ -r /proc/$1/environ ]]; then exec cat "/proc/$1/environ"; else exec "${as_root[@]}" cat "/proc/$1/environ"; fi 2>/dev/null
  )
  for fd in 1 2; do
    entry=$(exec "${as_root[@]}" readlink "/proc/$1/fd/$fd" 2>/dev/null)
    if [[ ${entry% (deleted)} == /*/.multihost/runs/*/*/output ]]; then
      REPLY=${entry%/*}
      return
    fi
  done
}

# run_lives DIR succeeds if the attempt is active. It may belong to any login.
run_lives() {
  local file key value lives=0
  if [[ $1 == "$home"/.multihost/runs/* ]]; then
    look "$1"
    [[ $phase == running || $phase == starting ]]
    return
  fi
  for file in "$index"/*.run; do
    value=
    { read -r value <"$file"; } 2>/dev/null
    [[ $value == "dir=$1" ]] || continue
    look_entry "$file"
    if [[ $phase == running || $phase == starting ]]; then lives=1; fi
  done
  ((lives))
}

# look_entry FILE does what look does, for a file of the index. That file has all that is
# known of another login's run.
look_entry() {
  local key value fields
  sup=0 sup_start=0 sup_boot='' armed=0 pid=0 start=0 at=0 waiter=0 supervised=0
  exit_lines=() exit_lost=0 phase=aborted
  entry_dir='' entry_run='' entry_attempt=0 entry_login='' entry_owner='' entry_command='' entry_venv=0 entry_slices=0
  while IFS='=' read -r key value; do
    case $key in
      dir) entry_dir=$value ;;
      run) entry_run=$value ;;
      attempt) entry_attempt=$value ;;
      login) entry_login=$value ;;
      owner) entry_owner=$value ;;
      command) entry_command=$value ;;
      venv) entry_venv=$value ;;
      slices) entry_slices=$value ;;
      supervisor)
        split "$value 0 0 0 0"
        sup=${fields[0]} sup_start=${fields[1]} sup_boot=${fields[2]} armed=${fields[3]}
        ;;
      started)
        split "$value 0 0 0 0"
        pid=${fields[0]} start=${fields[1]} at=${fields[2]} waiter=${fields[3]}
        ;;
      exit_*)
        exit_lines+=("${key#exit_} $value")
        if [[ $key == exit_lost ]]; then exit_lost=$value; fi
        ;;
    esac
  done 2>/dev/null <"$1"
  if alive "$sup" "$sup_start" "$sup_boot"; then supervised=1; fi
  if ((${#exit_lines[@]})); then
    phase=exited
    if ((exit_lost)); then phase=lost; fi
  elif ((supervised)); then
    phase=starting
    if ((pid)); then phase=running; fi
  elif ((pid)); then
    phase=lost
    if alive "$pid" "$start" "$sup_boot"; then phase=running; fi
  fi
}

# show WORD PID DEVICE prints a line of the answer about a process.
show() {
  local uid age user args dir ref=- attempt=0 lives=0 mine=0 container=- text
  read -r uid age user args < <(LC_ALL=C.UTF-8 ps -ww -o uid= -o etimes= -o user:32= -o args= -p "$2" 2>/dev/null) || return
  if ((uid == UID)); then mine=1; fi
  run_dir "$2"
  dir=$REPLY
  if [[ $dir == */.multihost/runs/*/* ]]; then
    attempt=${dir##*/}
    ref=${dir%/*}
    ref=${ref##*/}
    if run_lives "$dir"; then lives=1; fi
  fi
  text=$(cat "/proc/$2/cgroup" 2>/dev/null)
  if [[ $text =~ ([a-z]*)[-:/]([0-9a-f]{64}) ]]; then container=${BASH_REMATCH[1]:-docker}:${BASH_REMATCH[2]}; fi
  say "$1" "$2" "$mine" "$age" "$user" "$container" "$ref" "$attempt" "$lives" "${3:--}" "${args:0:300}"
}

# inherit fills the array environment with the login's variables from mh_login: NAME=VALUE
# sets a variable, NAME unsets one. It fills the array through_env with words for env(1),
# which sets the variables that bash does not let scripts change. These words are on a
# command line, so they contain no value of a user. Variables that change how bash works
# come last.
inherit() {
  local entry level='' path='' more where=PWD
  local -a late=()
  environment=(TMPDIR OLDPWD SHLVL LC_ALL) through_env=()
  for entry in "${mh_login[@]}"; do
    case ${entry%%=*} in
      '' | _ | "$entry" | [0-9]* | *[!0-9A-Za-z_]*) ;; # bash passes it on, or sets it
      PWD) where=PWD= ;;
      UID | EUID | PPID | SHELLOPTS | BASHOPTS | BASH_VERSINFO) through_env+=("$entry") ;;
      SHLVL) level=${entry#*=} ;;
      PATH) path=${entry#*=} ;;
      LC_* | LANG | IFS | POSIXLY_CORRECT | BASH_* | EXECIGNORE) late+=("$entry") ;;
      *) environment+=("$entry") ;;
    esac
  done
  if [[ ! $level ]]; then
    through_env=(-u SHLVL "${through_env[@]}")
  elif [[ $level =~ ^[0-9]{1,3}$ ]]; then
    environment+=("SHLVL=$((10#$level + 1))") # bash lowers SHLVL by one at "exec"
  else
    environment+=("SHLVL=$level")
  fi
  more=$HOME/.local/bin
  case :$path: in
    *:"$more":*) ;;
    *) path+=:$more ;;
  esac
  environment+=("PATH=$path" "$where" "${late[@]}")
}

# become COMMAND... is exec with the variables of the array environment. While it sets them
# it uses no variable of its own, because the login may use any name. It unsets each name
# first, because bash treats some names (SECONDS, RANDOM) specially until they are unset.
# become first checks that the program can run, because an error of bash would name a line
# of this script.
become() {
  set -- "${environment[@]}" -- "$@"
  while [[ $1 != -- ]]; do
    if [[ $1 == PWD= ]]; then
      export PWD # the current directory
    else
      unset -v "${1%%=*}"
      # shellcheck disable=SC2163 # NAME=VALUE is meant
      if [[ $1 == *=* ]]; then export "$1"; fi
    fi
    shift
  done 2>/dev/null # bash complains about locales that the worker lacks
  shift
  if [[ $1 != */* ]]; then
    type -P -- "$1" >/dev/null || cannot_run "$1" 127 'command not found'
  elif [[ ! -e $1 ]]; then
    cannot_run "$1" 127 'No such file or directory'
  elif [[ -d $1 ]]; then
    cannot_run "$1" 126 'Is a directory'
  elif [[ ! -x $1 ]]; then
    cannot_run "$1" 126 'Permission denied'
  fi
  exec -- "$@"
}

cannot_run() { # PROGRAM CODE WHY
  printf 'multihost: %s: %s\n' "$1" "$3" >&2
  exit "$2"
}

# inherit_run RUN ATTEMPT DIR fills the array environment for a run's command: first the
# login's variables, then the run's, then the array vars, which has the variables to unset
# and to set.
inherit_run() {
  local entry buffered=PYTHONUNBUFFERED=1
  inherit
  for entry in "${mh_login[@]}"; do
    if [[ $entry == PYTHONUNBUFFERED=?* ]]; then buffered=$entry; fi
  done
  environment+=("$buffered" "MULTIHOST_RUN=$1" "MULTIHOST_ATTEMPT=$2" "MULTIHOST_RUN_DIR=$3" "${vars[@]}")
}
