#!/usr/bin/env bash
#
# Reads the settings of one worker, and in mode "apply" sets them to the wanted values.
#
# Arguments after the nonce: MODE (apply|check) PLATFORM (gce|gke) INSTALL (yes|no), then
# for each setting four words: NAME KIND KEY WANT.
#
# Lines of the answer, with fields separated by tabs:
#   result NAME WANT BEFORE AFTER OUTCOME LOST REASON
#   info   KEY VALUE
#   end
#
# A printed script has no nonce. Its PLATFORM and settings are in $table. Its output is for
# people, on a terminal or in the log of a pod. Its arguments, in upper or lower case, are
# check or apply, --require, PLATFORM=gce or gke, and TPU=no if no TPU is expected. It exits
# with 76 if the worker cannot train, and with --require also if any setting is not as
# wanted.
#
# One setting must not prevent another, so no failure aborts this script. It does not write
# a value that is right, and then needs no sudo.
#
# shellcheck disable=SC2154 # the prelude sets variables that are used here

export LC_ALL=C
# The script must not stop if the connection is lost between the change of a route and the
# check that the worker still has it.
trap '' PIPE HUP

declare -a table
require='' tpu=''
read_words() {
  local word
  mode=apply
  for word; do
    case $word in
      apply | check) mode=$word ;;
      --require) require=yes ;;
      PLATFORM=[gG][cC][eE]) platform=gce ;;
      PLATFORM=[gG][kK][eE]) platform=gke ;;
      TPU=[nN][oO]) tpu=no ;;
      TPU=[yY][eE][sS]) tpu=yes ;;
      *)
        printf 'preflight: unknown word %s: want check, apply, --require, PLATFORM=gce, PLATFORM=gke, TPU=yes or TPU=no\n' "$word" >&2
        exit 64
        ;;
    esac
  done
}
if [[ ! $nonce ]]; then
  platform=${table[0]} install=no
  read_words "$@"
  set -- "${table[@]:1}"
else
  mode=${1-} platform=${2-} install=${3-}
  shift 3
fi

proc="${MULTIHOST_ROOT_PROC-}/proc"
sys="${MULTIHOST_ROOT_SYS-}/sys"
dev="${MULTIHOST_ROOT_DEV-}/dev"

# A login without a profile may have no sbin in PATH. A worker with its own roots has its
# own tools, and must never use those of the machine.
if [[ -z ${MULTIHOST_ROOT_PROC-} ]]; then
  PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
fi

# result NAME WANT BEFORE AFTER OUTCOME LOST REASON reports on one setting.
result() {
  if [[ $nonce ]]; then say_fields result "$@"; else tell "$@"; fi
}

# tell NAME WANT BEFORE AFTER OUTCOME LOST REASON: prints a result for people. A worker is
# useless where Result.Severity returns Hard.
good=0 bad=0 useless=0
tell() {
  local name=$1 want=$2 before=$3 after=$4 outcome=$5 lost=$6 reason=$7
  ((good++))
  case $outcome in
    ok) reason="${after:-as wanted}" ;;
    changed) reason="$after, was ${before:-unset}" ;;
    failed)
      ((good--, bad++))
      [[ $lost == yes || $name == tpu_devices ]] && ((useless++))
      reason="is ${after:-unknown}${want:+, wanted $want}: $reason"
      ;;
  esac
  printf 'preflight: %-26s %-8s %s\n' "$name" "$outcome" "$reason"
}

# read_from COMMAND...: sets $out to what the command prints. No command delays the others:
# it is killed after 20 s, and $why says so. timeout(1) would be one more process. The
# status is not read, because bash 5.2 may wait for ever for a process substitution that has
# ended early. The output shows what failed.
out=''
read_from() {
  local from pid rc
  exec {from}< <(exec "$@" </dev/null 2>&1)
  pid=$!
  IFS= read -r -d '' -t 20 -u "$from" out
  rc=$?
  exec {from}<&-
  ((rc <= 128)) && return 0
  kill -s KILL "$pid" 2>/dev/null
  explain 124 '' "$1"
  return 1
}

# attempt COMMAND...: runs the command. After a failure, $why is the cause in a few words.
why=
attempt() {
  local out rc
  out=$(exec timeout -k 5 20 "$@" </dev/null 2>&1 >/dev/null)
  rc=$?
  ((rc == 0)) && return 0
  explain "$rc" "$out" "$1"
  return 1
}

explain() {
  local rc=$1 out=$2 command=$3 line
  why=
  while IFS= read -r line; do
    [[ -n ${line// /} ]] && why=$line
  done <<<"$out"
  case $why in
    "RTNETLINK answers: "*) why=${why#RTNETLINK answers: } ;;
    "sysctl: "*) why=${why#sysctl: } ;;
    tee:*": "*) why=${why##*: } ;;
  esac
  if ((rc == 124 || rc == 137)); then
    why="$command did not end within 20 s"
  elif [[ -z $why ]]; then
    why="$command ended with status $rc"
  fi
  [[ $platform == gke ]] && explain_container
}

# explain_container: adds to $why the right that the container lacks.
explain_container() {
  case $why in
    *"Read-only file system"*)
      why+=" (a container may write there only with securityContext: privileged: true)"
      ;;
    *"peration not permitted"* | *"ermission denied"*)
      [[ $net_admin == no ]] && why+=" (the container lacks NET_ADMIN)"
      ;;
  esac
}

# get_capabilities: sets $net_admin to yes or no, or to an empty text if the kernel does not
# say. NET_ADMIN is bit 12 of linux/capability.h.
net_admin=''
get_capabilities() {
  local key value
  [[ -r $proc/self/status ]] || return
  while read -r key value; do
    [[ $key == CapEff: ]] || continue
    net_admin=no
    ((16#$value >> 12 & 1)) && net_admin=yes
  done <"$proc/self/status"
}

# get_root COMMAND...: finds out once how to act as root. $root is the command prefix. If
# there is no way, $no_root says why. COMMAND is the trial if sudo must be tried. Then $ran
# is yes, whether COMMAND succeeded or not.
root=() no_root='' root_known='' ran=''
get_root() {
  ran=''
  if [[ -z $root_known ]]; then
    root_known=yes
    if [[ $(id -u) == 0 ]]; then
      root=()
    elif ! have sudo; then
      no_root="not root, and sudo is not installed"
      [[ $platform == gke ]] && no_root="not root: run the container as root (securityContext: runAsUser: 0) with NET_ADMIN"
    elif (($# > 0)) && ran=yes && attempt sudo -n "$@"; then
      root=(sudo -n)
    elif attempt sudo -n true; then
      root=(sudo -n)
    else
      no_root="no root rights: $why"
    fi
  fi
  why=$no_root
  [[ -z $no_root ]]
}

# write_file FILE VALUE
write_file() {
  get_root || return 1
  local out rc
  out=$(printf '%s\n' "$2" | timeout -k 5 20 "${root[@]}" tee "$1" 2>&1 >/dev/null)
  rc=$?
  ((rc == 0)) && return 0
  explain "$rc" "$out" tee
  return 1
}

# write_value FILE VALUE: uses sysctl(8) for files below /proc/sys.
write_value() {
  local key=${1#"$proc/sys/"}
  if [[ $key == "$1" ]] || ! have sysctl; then
    write_file "$1" "$2"
    return
  fi
  get_root && attempt "${root[@]}" sysctl -q -w "${key//\//.}=$2"
}

# write_sysctls SETTING...: writes all values of /proc/sys that are not as wanted with one
# call of sysctl(8), which continues after a value that it cannot write. do_value then reads
# each value, and writes one that is still not as wanted alone. $before_all has the values
# from before.
declare -A before_all=()
write_sysctls() {
  local -a keys=()
  while (($# >= 4)); do
    if [[ $2 == sysctl ]] && read_value "$proc/sys/$3" && [[ $value != "$4" ]]; then
      before_all["$proc/sys/$3"]=$value
      keys+=("${3//\//.}=$4")
    fi
    shift 4
  done
  ((${#keys[@]} > 1)) && have sysctl || return
  local -a write=(sysctl -q -w "${keys[@]}")
  get_root "${write[@]}" && [[ -z $ran ]] && attempt "${root[@]}" "${write[@]}"
}

# read_value FILE: sets $value to the first line of the file, with single spaces.
value=
read_value() {
  local -a words=()
  value=
  read -r -a words 2>/dev/null <"$1" || [[ ${#words[@]} -gt 0 ]] || return 1
  value=${words[*]}
}

do_value() { # NAME FILE WANT ABSENT: for a value that is one file of the kernel
  local name=$1 file=$2 want=$3 absent=$4 before
  if [[ ! -e $file ]]; then
    result "$name" "$want" "" "" skipped no "$absent"
    return
  fi
  if ! read_value "$file"; then
    result "$name" "$want" "" "" failed no "cannot read $file"
    return
  fi
  before=${before_all["$file"]-$value}
  if [[ $before == "$want" ]]; then
    result "$name" "$want" "$before" "$before" ok no ""
  elif [[ $value == "$want" ]]; then
    result "$name" "$want" "$before" "$value" changed no ""
  elif [[ $mode != apply ]]; then
    result "$name" "$want" "$before" "$before" failed no "not as wanted"
  elif ! write_value "$file" "$want"; then
    result "$name" "$want" "$before" "$before" failed no "$why"
  elif read_value "$file" && [[ $value == "$want" ]]; then
    result "$name" "$want" "$before" "$value" changed no ""
  else
    result "$name" "$want" "$before" "$value" failed no "wrote $want, reads back ${value:-nothing}"
  fi
}

# --- default routes ---------------------------------------------------------

# list_routes: puts the IPv4 default routes into $routes, as ip prints them, in the kernel's
# order, and default routes of another type (unreachable ...) into $nowhere. $listed means
# that this script has not changed the routes since then.
routes=() nowhere=() listed=''
list_routes() {
  local out line failed=''
  routes=() nowhere=() listed=''
  read_from ip -4 -o route show default || return 1
  while IFS= read -r line; do
    case $line in
      "default "*) routes+=("$line") ;;
      *" default "*) nowhere+=("${line#* }") ;;
      *[!\ ]*) failed=$out ;;
    esac
  done <<<"$out"
  if [[ $failed && ${#routes[@]} == 0 ]]; then
    explain 1 "$failed" ip
    return 1
  fi
  listed=yes
  return 0
}

# parse_route LINE KEY: sets $words to the route as `ip route add` takes it, without KEY,
# and $has to the present value of KEY. $id has the properties by which the kernel
# distinguishes routes. Adds the interfaces to $devices.
words=() has='' id='' devices=()
parse_route() {
  local line=${1//\\/ } key=$2 word metric=0 tos=0 nhid=
  local -a in=()
  read -r -a in <<<"$line"
  words=() has=
  local i
  for ((i = 0; i < ${#in[@]}; i++)); do
    word=${in[i]}
    case $word in
      "$key")
        [[ ${in[i + 1]-} == lock ]] && ((i++))
        ((i++))
        has=${in[i]-}
        ;;
      # ip prints these words about the state of a route, but does not accept them.
      linkdown | dead | offload | rt_offload | trap | rt_trap | offload_failed | unresolved) ;;
      nhid)
        nhid=yes
        ((i++))
        words+=(nhid "${in[i]-}")
        ;;
      via)
        ((i++))
        local via=(via "${in[i]-}")
        if [[ ${in[i]-} == inet* ]]; then
          ((i++))
          via+=("${in[i]-}")
        fi
        # ip does not accept a next hop together with a next hop id.
        [[ -z $nhid ]] && words+=("${via[@]}")
        ;;
      dev)
        ((i++))
        add_device "${in[i]-}"
        [[ -z $nhid ]] && words+=(dev "${in[i]-}")
        ;;
      metric)
        ((i++))
        metric=${in[i]-}
        words+=(metric "$metric")
        ;;
      tos)
        ((i++))
        tos=${in[i]-}
        words+=(tos "$tos")
        ;;
      *) words+=("$word") ;;
    esac
  done
  id="$tos/$metric"
}

add_device() {
  local known
  for known in "${devices[@]}"; do
    [[ $known == "$1" ]] && return
  done
  [[ -n $1 ]] && devices+=("$1")
}

# with_attribute KEY VALUE: sets $changed to $words with the attribute, which ip wants
# before the next hops of a multipath route.
with_attribute() {
  local word added=
  changed=()
  for word in "${words[@]}"; do
    if [[ $word == nexthop && -z $added ]]; then
      changed+=("$1" "$2")
      added=yes
    fi
    changed+=("$word")
  done
  [[ -n $added ]] || changed+=("$1" "$2")
}

# same_time A B: succeeds if the times A and B are equal. Some versions of ip print 5ms as
# 5000us or .005s.
same_time() {
  local a=$1 b=$2
  case $a in
    5000us | 0.005s | .005s | 5.0ms | 5.00ms) a=5ms ;;
  esac
  [[ $a == "$b" ]]
}

# scan_routes KEY: fills $specs (the words of each route), $values, $ids, $names.
specs=() values=() ids=() names=()
scan_routes() {
  local line key=$1
  specs=() values=() ids=() names=()
  for line in "${routes[@]}"; do
    devices=()
    parse_route "$line" "$key"
    specs+=("${words[*]}")
    values+=("${has:-unset}")
    ids+=("$id")
    names+=("${devices[*]:-route}")
  done
}

# show_values: sets $shown to the values of all routes or interfaces, in one string.
show_values() {
  local i out=
  if ((${#values[@]} == 1)); then
    shown=${values[0]}
    return
  fi
  for i in "${!values[@]}"; do
    out+="${out:+, }${names[i]// /+}: ${values[i]}"
  done
  shown=$out
}
shown=

do_route() { # NAME KEY WANT
  local name=$1 key=$2 want=$3 i j before after seen problem="" lost=no lost_why="" outcome=ok tried=""
  local -A peers=()
  if ! have ip; then
    result "$name" "$want" "" "" skipped no "ip is not installed (package iproute2)"
    return
  fi
  if ! list_routes; then
    result "$name" "$want" "" "" failed no "$why"
    return
  fi
  if ((${#routes[@]} == 0)); then
    result "$name" "$want" "" "" failed no "no IPv4 default route"
    return
  fi
  scan_routes "$key"
  show_values
  before=$shown
  local -a saved=("${specs[@]}") was=("${values[@]}") saved_ids=("${ids[@]}") saved_names=("${names[@]}")
  for i in "${nowhere[@]}"; do
    parse_route "$i" "$key"
    ids+=("$id")
  done
  for i in "${ids[@]}"; do
    ((peers[$i] += 1))
  done

  for i in "${!saved[@]}"; do
    same_time "${was[i]}" "$want" && continue
    outcome=failed
    if [[ $mode != apply ]]; then
      problem="not as wanted"
      continue
    fi
    if ! get_root; then
      problem=$why
      continue
    fi
    tried=yes listed=''
    if ((${peers[${saved_ids[i]}]} == 1)); then
      read -r -a words <<<"${saved[i]}"
      with_attribute "$key" "$want"
      attempt "${root[@]}" ip route change "${changed[@]}" || problem=$why
    else
      lock_peers && change_peer "${saved[i]}" "${saved_ids[i]}" "$key" "$want" || problem=$why
      unlock_peers
    fi
  done

  if [[ -n $tried ]]; then
    if ! restore_routes "$key" "${saved[@]}"; then
      lost=yes lost_why=$why
    fi
    if [[ -n $listed ]] || list_routes; then
      scan_routes "$key"
    else
      values=()
    fi
    outcome=changed
    for i in "${!saved[@]}"; do
      seen=no
      for j in "${!specs[@]}"; do
        [[ ${specs[j]} == "${saved[i]}" ]] || continue
        seen=yes
        same_time "${values[j]-}" "$want" || { seen=no && break; }
      done
      [[ $seen == yes ]] && continue
      outcome=failed
      [[ -n $problem ]] || problem="${saved_names[i]}: changed, but reads back otherwise"
    done
    if [[ $lost == yes ]]; then
      outcome=failed
      problem="a default route was lost and could not be put back: $lost_why"
    fi
  fi
  show_values
  after=$shown
  [[ $outcome == failed ]] || problem=
  result "$name" "$want" "$before" "$after" "$outcome" "$lost" "$problem"
}
changed=()

# lock_peers: lets only one script at a time change peers. Otherwise another script may just
# have removed a plain route, and "del" of that route would remove the changed one.
lock_peers() {
  [[ -r $sys/class/net ]] && have flock || return 0
  exec {peers_lock}<"$sys/class/net"
  flock -w 20 "$peers_lock" && return 0
  why="another preflight changes the routes of this worker"
  return 1
}

unlock_peers() {
  [[ -n $peers_lock ]] && exec {peers_lock}<&-
  peers_lock=
}
peers_lock=''

# change_peer SPEC ID KEY WANT: gives the attribute to a default route that has peers:
# default routes with the same metric and tos.
#
# This is what Linux 6.18 with iproute2 6.1 does with peers:
# - "change" and "replace" put the route in the place of the first peer, whatever
#   that is, even an unreachable route. If the route is the second of two peers, the
#   first one is lost. The place is never empty in between.
# - "append" adds the route as the last peer. "append" and "change" fail with File
#   exists if a later peer is already that route with those attributes.
# - "del" removes the first peer that has everything that the command names. It does not
#   compare what the command does not name: without src any src matches, without proto
#   any proto, without rto_min any rto_min. It does not compare the flag onlink.
# - "ip -batch" sends one message after another. It can be interrupted between two of them.
# - A packet goes to the first peer whose gateway is known to answer. Among peers
#   whose gateways are all unknown, the kernel takes turns.
# - IPv6 peers are the next hops of one route: "change" drops all but one of them,
#   and a route from a router advertisement loses its lifetime. This script
#   changes no IPv6 route.
#
# So this function changes the first peer in its place. It appends every other peer again
# with the attribute, and only then deletes the one without. If it is interrupted, each
# default route is still there, at worst twice, with and without the attribute. The next run
# continues from there. At the end the peers have their old order.
change_peer() {
  local spec=$1 at=$2 key=$3 want=$4 again=${5-} i first='' old='' new=''
  list_routes || return 1
  for i in "${nowhere[@]}"; do
    parse_route "$i" "$key"
    [[ $id == "$at" ]] && first=none
  done
  scan_routes "$key"
  for i in "${!specs[@]}"; do
    [[ ${ids[i]} == "$at" ]] || continue
    first=${first:-$i}
    [[ ${specs[i]} == "$spec" ]] || continue
    if ! same_time "${values[i]}" "$want"; then
      old=${old:-$i}
    elif [[ -z $old ]]; then
      new=$i
    fi
  done
  [[ -n $old ]] || return 0
  local value=${values[old]}
  if [[ -n $new && -z $again ]]; then
    # A DHCP client that renews its lease appends the plain route after ours. "del" would
    # then remove ours first. So we delete ours while the plain one is there, which then
    # stays behind its peers, where the client put it.
    delete_peer "$spec" "$at" "$key" "${values[new]}" || return 1
    change_peer "$@" again
    return
  fi
  local verb=append
  if [[ $old == "$first" ]]; then
    verb=change
  else
    find_peer "$spec" "$at" "$key" "$value" || return 1
  fi
  read -r -a words <<<"$spec"
  with_attribute "$key" "$want"
  if attempt "${root[@]}" ip route "$verb" "${changed[@]}"; then
    [[ $verb == change ]] && return 0
  else
    [[ $why == *"File exists" ]] || return 1
  fi
  delete_peer "$spec" "$at" "$key" "$value"
}

# delete_peer SPEC ID KEY VALUE: deletes a default route that also exists with another value
# of the attribute.
delete_peer() {
  find_peer "$@" && attempt "${root[@]}" ip route del "${changed[@]}"
}

# find_peer SPEC ID KEY VALUE: sets $changed to the route as "ip route del" takes it. Fails
# if the kernel would delete another peer.
find_peer() {
  local spec=$1 at=$2 key=$3 value=$4 i
  list_routes || return 1
  scan_routes "$key"
  read -r -a words <<<"$spec"
  [[ " $spec " == *" proto "* ]] || words=("${words[0]}" proto boot "${words[@]:1}")
  changed=("${words[@]}")
  [[ $value == unset ]] || with_attribute "$key" "$value"
  for i in "${!specs[@]}"; do
    [[ ${ids[i]} == "$at" && ($value == unset || ${values[i]} == "$value") ]] || continue
    fits "${specs[i]}" || continue
    [[ ${specs[i]} == "$spec" && ${values[i]} == "$value" ]] && return 0
    why="the kernel cannot tell it from the default route ${specs[i]#default }"
    return 1
  done
  why="a default route went away meanwhile"
  return 1
}

# fits SPEC: succeeds if the route SPEC has all of $words, so that "del" might remove it.
fits() {
  local spec=" $1 " word
  [[ $spec == *" proto "* ]] || spec+="proto boot "
  for word in "${words[@]}"; do
    [[ $word == onlink || $spec == *" $word "* ]] || return 1
  done
}

# restore_routes KEY SPEC...: adds each missing default route. Fails if one is still missing
# at the end.
restore_routes() {
  local key=$1 spec have_spec round missing
  shift
  for round in 1 2; do
    list_routes || return 1
    scan_routes "$key"
    missing=0
    for spec; do
      for have_spec in "${specs[@]}"; do
        [[ $have_spec == "$spec" ]] && continue 2
      done
      missing=1
      ((round == 1)) || continue
      listed=''
      read -r -a words <<<"$spec"
      attempt "${root[@]}" ip route add "${words[@]}" ||
        attempt "${root[@]}" ip route append "${words[@]}"
    done
    ((missing == 0)) && return 0
  done
  return 1
}

# route_devices: sets $devices to the interfaces of the default routes.
route_devices() {
  local line
  devices=()
  have ip || return 1
  [[ -n $listed ]] || list_routes || return 1
  for line in "${routes[@]}"; do
    parse_route "$line" rto_min
  done
  ((${#devices[@]} > 0))
}

# --- interfaces -------------------------------------------------------------

# feature DEVICE KEY: sets $value to on, off or absent. $fixed says whether the driver fixed
# the value.
fixed=
feature() {
  local out line
  value='' fixed=''
  read_from ethtool -k "$1" || return 1
  if [[ $out != *"Features for "* ]]; then
    explain 1 "$out" ethtool
    return 1
  fi
  while IFS= read -r line; do
    line=${line#"${line%%[! $'\t']*}"}
    if [[ $line == "$2: "* ]]; then
      line=${line#*: }
      value=${line%% *}
      [[ $line == *"[fixed]"* ]] && fixed=yes
      return 0
    fi
  done <<<"$out"
  why="the driver of $1 has no $2"
  value=absent
  return 0
}

do_feature() { # NAME KEY WANT
  local name=$1 key=$2 want=$3 d before="" problem="" outcome=ok
  if ! have ethtool; then
    result "$name" "$want" "" "" skipped no "ethtool is not installed (package ethtool)${install_error:+: $install_error}"
    return
  fi
  if ! route_devices; then
    result "$name" "$want" "" "" skipped no "no default route names an interface"
    return
  fi
  local -a list=("${devices[@]}") first=() last=()
  for d in "${list[@]}"; do
    if ! feature "$d" "$key"; then
      first+=(unknown) last+=(unknown)
      outcome=failed problem="$d: $why"
      continue
    fi
    first+=("$value")
    if [[ $value == "$want" ]]; then
      last+=("$value")
    elif [[ $value == absent || -n $fixed ]]; then
      last+=("$value")
      [[ -n $fixed ]] && why="fixed to $value by the driver of $d"
      [[ $outcome == failed ]] || outcome=skipped problem=$why
    elif [[ $mode != apply ]]; then
      last+=("$value")
      outcome=failed problem="not as wanted"
    elif ! get_root || ! attempt "${root[@]}" ethtool -K "$d" "$key" "$want"; then
      last+=("$value")
      outcome=failed problem=$why
    elif feature "$d" "$key" && [[ $value == "$want" ]]; then
      last+=("$value")
      [[ $outcome == failed || $outcome == skipped ]] || outcome=changed
    else
      last+=("$value")
      outcome=failed problem="$d: set to $want, reads back ${value:-nothing}"
    fi
  done
  names=("${list[@]}") values=("${first[@]}")
  show_values
  before=$shown
  values=("${last[@]}")
  show_values
  result "$name" "$want" "$before" "$shown" "$outcome" no "$problem"
}

do_mtu() { # the MTU of the network, or the one wanted between slices
  local name=$1 whose=$2 want=$3 d problem="" outcome=ok
  if ! route_devices; then
    result "$name" "$want" "" "" skipped no "no default route names an interface"
    return
  fi
  names=("${devices[@]}") values=()
  for d in "${devices[@]}"; do
    if ! read_value "$sys/class/net/$d/mtu"; then
      values+=(unknown)
      outcome=failed problem="cannot read the mtu of $d"
      continue
    fi
    values+=("$value")
    if [[ -n $want && $value != "$want" ]]; then
      outcome=failed problem="$d has mtu $value, its network $want"
      [[ $whose == slices ]] && problem="$d has mtu $value; between slices $want is wanted"
    fi
  done
  show_values
  result "$name" "$want" "$shown" "$shown" "$outcome" no "$problem"
}

# --- tools and devices ------------------------------------------------------

# install_tools: installs the packages of all missing tools with one call.
install_error='' installed=' '
install_tools() {
  local tool log rc
  local -a missing=()
  for tool in numactl ethtool; do
    have "$tool" || missing+=("$tool")
  done
  ((${#missing[@]} > 0)) || return 0
  if ! have apt-get; then
    install_error="apt-get is not here"
    return 0
  fi
  if ! get_root; then
    install_error=$why
    return 0
  fi
  if ! apt install "${missing[@]}"; then
    # A new image may have no package lists yet.
    case $log in
      *"Unable to locate package"* | *"no installation candidate"* | *"Failed to fetch"*)
        apt update && apt install "${missing[@]}"
        ;;
    esac
  fi
  hash -r
  for tool in "${missing[@]}"; do
    if have "$tool"; then
      installed+="$tool "
    elif [[ -z $install_error ]]; then
      install_error="apt-get installed no $tool"
    fi
  done
}

# apt WORD...: runs apt-get with a time limit. $install_error names the process that holds
# the lock.
apt() {
  local line
  install_error=
  log=$(timeout -k 10 600 "${root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
    apt-get -q -y -o DPkg::Lock::Timeout=180 "$@" 2>&1 </dev/null)
  rc=$?
  ((rc == 0)) && return 0
  install_error="apt-get $1 ended with status $rc"
  while IFS= read -r line; do
    line=${line//$'\r'/ }
    case $line in
      *"held by process "*)
        line=${line##*held by process }
        install_error="the dpkg lock is held by process ${line%%)*})"
        return 1
        ;;
      "E: "*) install_error=${line#E: } ;;
    esac
  done <<<"$log"
  ((rc == 124 || rc == 137)) && install_error="apt-get $1 did not end within 600 s"
  return 1
}

do_tool() { # NAME TOOL WANT
  if [[ $installed == *" $2 "* ]]; then
    result "$1" "$3" missing installed changed no ""
  elif have "$2"; then
    result "$1" "$3" installed installed ok no ""
  elif [[ -n $install_error ]]; then
    result "$1" "$3" missing missing failed no "$install_error"
  else
    result "$1" "$3" missing missing skipped no "$2 is not installed (package $2)"
  fi
}

count_devices() {
  local path
  count=0
  # The control node /dev/vfio/vfio is no device.
  for path in "$dev"/accel[0-9]* "$dev"/vfio/[0-9]*; do
    [[ -e $path ]] && ((count++))
  done
}
count=0

do_devices() { # NAME WANT
  local want=$2 outcome=ok problem=""
  case $tpu in
    no) want=none ;;
    yes) [[ $want == none ]] && want=1+ ;;
  esac
  case $want in
    none) outcome=skipped problem="not a TPU worker" ;;
    1+)
      ((count > 0)) || outcome=failed problem="no TPU device below /dev/accel* or /dev/vfio/*"
      [[ $count == 0 && $platform == gke ]] && problem+=" (does the container ask for google.com/tpu, and for all of the node's?)"
      [[ $count == 0 && ! $nonce ]] && problem+="; on a host without TPU: TPU=no"
      ;;
    *)
      ((count == want)) || problem="$count TPU devices, $want expected"
      ((count >= want)) || outcome=failed
      ;;
  esac
  result "$1" "$want" "$count" "$count" "$outcome" no "$problem"
}

tell_worker() {
  local path nodes=0 key kb
  for path in "$sys"/devices/system/node/node[0-9]*; do
    [[ -e $path ]] && ((nodes++))
  done
  say_fields info numa_nodes "$nodes"
  if [[ -r $sys/devices/system/node/node0/meminfo ]]; then
    while read -r _ _ key kb _; do
      [[ $key == MemTotal: ]] && say_fields info node0_kb "$kb"
    done <"$sys/devices/system/node/node0/meminfo"
  fi
  if [[ -r $proc/meminfo ]]; then
    while read -r key kb _; do
      [[ $key == MemTotal: ]] && say_fields info total_kb "$kb"
    done <"$proc/meminfo"
  fi
  have numactl && say_fields info numactl yes
  say_fields info devices "$count"
  read_value "$proc/sys/kernel/random/boot_id" && say_fields info boot_id "$value"
}

# tell_pod: says which capability a container lacks, and whether the settings apply to the
# pod only: the interface of a pod network is no device of the node.
tell_pod() {
  if [[ $net_admin == no ]]; then
    echo "preflight: this container lacks the capability NET_ADMIN: routes and interfaces stay as they are;" \
      "add it with securityContext: capabilities: {add: [NET_ADMIN]}, or with privileged: true"
  fi
  local d
  route_devices || return 0
  for d in "${devices[@]}"; do
    [[ -e $sys/class/net/$d/device ]] && return 0
  done
  echo "preflight: this pod has a network of its own (no hostNetwork: true): the settings hold for this pod only," \
    "and its traffic takes the node's virtual interfaces on the way"
}

# conclude: prints the last line for people and exits.
conclude() {
  echo "preflight: $good of $((good + bad)) settings are as wanted or not there"
  if ((useless > 0)) || [[ $require == yes && $bad -gt 0 ]]; then
    exit 76
  fi
  exit 0
}

[[ $platform == gke ]] && get_capabilities
[[ ! $nonce && $platform == gke ]] && tell_pod
count_devices
[[ $install == yes ]] && install_tools
[[ $mode == apply ]] && write_sysctls "$@"
while (($# >= 4)); do
  case $2 in
    sysctl) do_value "$1" "$proc/sys/$3" "$4" "this kernel has no ${3//\//.}" ;;
    file) do_value "$1" "${MULTIHOST_ROOT_SYS-}$3" "$4" "tcp_cubic is not loaded" ;;
    route) do_route "$1" "$3" "$4" ;;
    feature) do_feature "$1" "$3" "$4" ;;
    mtu) do_mtu "$1" "$3" "$4" ;;
    tool) do_tool "$1" "$3" "$4" ;;
    devices) do_devices "$1" "$4" ;;
  esac
  shift 4
done
[[ ! $nonce ]] && conclude
tell_worker
say end
