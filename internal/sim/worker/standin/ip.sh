#!/bin/bash -p
# ip of a simulated worker: the IPv4 routes are lines of a file, as ip prints them. The
# links are the directories below the worker's own /sys/class/net.
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
routes=$root/state/route
net=$root/sys/class/net
json='' oneline='' family=4

fail() {
  local status=$1
  shift
  echo "$*" >&2
  exit "$status"
}

unknown() { fail 255 "Command \"$2\" is unknown, try \"ip $1 help\"."; }

may_write() {
  if may "ip-$1"; then
    return 0
  fi
  fail 2 'RTNETLINK answers: Operation not permitted'
}

# field WORD ROUTE: prints the word after WORD in ROUTE.
field() {
  local want=$1 words i
  read -ra words <<<"$2"
  for ((i = 1; i < ${#words[@]} - 1; i++)); do
    if [[ ${words[i]} == "$want" ]]; then
      [[ ${words[i + 1]} == lock ]] && ((i++))
      echo "${words[i + 1]}"
      return
    fi
  done
}

# metrics are the words that ip prints last, in the kernel's order.
metrics=(mtu window rtt rttvar ssthresh cwnd advmss reordering hoplimit initcwnd rto_min initrwnd quickack congctl)

route_json() {
  local line=$1 name value out more=''
  out="{\"dst\":\"${line%% *}\""
  value=$(field via "$line") && [[ -n $value ]] && out+=",\"gateway\":\"$value\""
  out+=",\"dev\":\"$(field dev "$line")\""
  value=$(field proto "$line") && [[ -n $value ]] && out+=",\"protocol\":\"$value\""
  value=$(field scope "$line") && [[ -n $value ]] && out+=",\"scope\":\"$value\""
  value=$(field src "$line") && [[ -n $value ]] && out+=",\"prefsrc\":\"$value\""
  value=$(field metric "$line") && [[ -n $value ]] && out+=",\"metric\":$value"
  out+=',"flags":[]'
  for name in "${metrics[@]}"; do
    value=$(field "$name" "$line")
    [[ -n $value ]] && more+=",\"$name\":${value%ms}"
  done
  [[ -n $more ]] && out+=",\"metrics\":[{${more#,}}]"
  echo "$out}"
}

route_show() {
  local dest='' dev='' line out=()
  while (($#)); do
    case $1 in
      dev)
        dev=$2
        shift
        ;;
      table | proto | scope | type)
        [[ $2 == main || $1 != table ]] || return 0
        shift
        ;;
      to | root | match | exact) ;;
      *) dest=$1 ;;
    esac
    shift
  done
  if [[ -n $dev && ! -d $net/$dev ]]; then
    fail 1 "Cannot find device \"$dev\""
  fi
  [[ $dest == 0.0.0.0/0 || $dest == 0/0 ]] && dest=default
  [[ $family == 6 ]] || while read -r line; do
    [[ -z $dest || ${line%% *} == "$dest" ]] || continue
    [[ -z $dev || $(field dev "$line") == "$dev" ]] || continue
    if [[ -n $json ]]; then
      out+=("$(route_json "$line")")
    elif [[ -n $dev ]]; then
      echo "${line/ dev $dev/} "
    else
      echo "$line "
    fi
  done <"$routes"
  if [[ -n $json ]]; then
    local IFS=,
    echo "[${out[*]}]"
  fi
}

# route_parse WORD...: sets line to what ip would print about the route in its arguments. It
# sets boot if they contain proto boot, which ip does not print.
boot=''
route_parse() {
  local dest='' via='' dev='' proto='' scope='' src='' metric='' more='' name value lock
  local -A given=()
  while (($#)); do
    case $1 in
      to) ;;
      via | dev | proto | protocol | scope | src | metric | preference | table)
        (($# > 1)) || fail 255 'Command line is not complete. Try option "help"'
        case $1 in
          via) via=$2 ;;
          dev) dev=$2 ;;
          proto*) proto=$2 ;;
          scope) scope=$2 ;;
          src) src=$2 ;;
          metric | preference) metric=$2 ;;
        esac
        shift
        ;;
      mtu | window | rtt | rttvar | ssthresh | cwnd | advmss | reordering | hoplimit | \
        initcwnd | rto_min | initrwnd | quickack | congctl)
        (($# > 1)) || fail 255 'Command line is not complete. Try option "help"'
        name=$1 lock=''
        if [[ $2 == lock && $name != rto_min && $# -gt 2 ]]; then
          lock='lock '
          shift
        fi
        value=$2
        if [[ $name == rto_min ]]; then
          # As in the kernel, a rto_min is always locked. ip prints a word for that but does
          # not accept it.
          if [[ ! $value =~ ^([0-9]+)(ms|s)?$ ]]; then
            fail 255 "Error: argument \"$value\" is wrong: \"rto_min\" value is invalid"
          fi
          value=${BASH_REMATCH[1]}
          [[ ${BASH_REMATCH[2]} == s ]] && value=$((value * 1000))
          value=${value}ms lock='lock '
        fi
        given[$name]="$name $lock$value"
        shift
        ;;
      onlink) ;;
      *)
        [[ -z $dest ]] || fail 255 "Error: either \"to\" is duplicate, or \"$1\" is a garbage."
        [[ $1 == default || $1 =~ ^[0-9]+(\.[0-9]+){0,3}(/[0-9]+)?$ ]] ||
          fail 1 "Error: any valid prefix is expected rather than \"$1\"."
        dest=$1
        ;;
    esac
    shift
  done
  dest=${dest:-default}
  [[ $dest == 0.0.0.0/0 || $dest == 0/0 ]] && dest=default
  if [[ -n $dev && ! -d $net/$dev ]]; then
    fail 1 "Cannot find device \"$dev\""
  fi
  [[ -n $dev || -z $via ]] || dev=ens8
  [[ -z $dev || -n $via ]] || scope=${scope:-link}
  for name in "${metrics[@]}"; do
    more+=${given[$name]:+ ${given[$name]}}
  done
  [[ $proto == boot ]] && boot=yes proto=''
  [[ $scope == global ]] && scope=''
  [[ $metric == 0 ]] && metric=''
  line="$dest${via:+ via $via}${dev:+ dev $dev}${proto:+ proto $proto}${scope:+ scope $scope}${src:+ src $src}${metric:+ metric $metric}$more"
}

route_change() {
  local verb=$1 line old found='' exists='' lines=()
  shift
  route_parse "$@"
  may_write route
  while read -r old; do
    [[ $old == "$line" && ($verb == *pend || -n $found) ]] && exists=yes
    # A change affects only the first route with that destination and metric, a deletion the
    # first route that matches the arguments.
    if [[ -z $found && ${old%% *} == "${line%% *}" ]] && same "$verb" "$old" "$line"; then
      found=yes
      [[ $verb == del ]] || lines+=("$line")
    else
      lines+=("$old")
    fi
  done <"$routes"
  case $verb:$exists in
    change:yes | replace:yes | append:yes | prepend:yes) fail 2 'RTNETLINK answers: File exists' ;;
  esac
  case $verb:$found in
    append:* | prepend:*) add_peer "$verb" ;;
    change:) fail 2 'RTNETLINK answers: No such file or directory' ;;
    del:) fail 2 'RTNETLINK answers: No such process' ;;
    add:yes) fail 2 'RTNETLINK answers: File exists' ;;
    add: | replace:) lines+=("$line") ;;
  esac
  if [[ $verb != del && $line != *' dev '* ]]; then
    fail 2 'RTNETLINK answers: No such device'
  fi
  if ((${#lines[@]})); then
    printf '%s\n' "${lines[@]}" >"$routes"
  else
    : >"$routes"
  fi
}

same() {
  local name a b
  case $1 in
    append | prepend) return 1 ;;
    del) ;;
    *)
      [[ $(field metric "$2") == "$(field metric "$3")" ]]
      return
      ;;
  esac
  for name in via dev metric proto src "${metrics[@]}"; do
    a=$(field "$name" "$2") b=$(field "$name" "$3")
    [[ $name == proto && -n $boot ]] && a=${a:-boot} b=boot
    [[ -z $b || $a == "$b" ]] || return 1
  done
}

# add_peer: puts $line after the routes with the same destination and metric, or before them
# to prepend it. Routes are in the order of their metrics.
add_peer() {
  local old mine theirs all=() line_added=''
  mine=$(field metric "$line")
  for old in "${lines[@]}"; do
    theirs=$(field metric "$old")
    if [[ -z $line_added && ${old%% *} == "${line%% *}" ]] &&
      ((${theirs:-0} > ${mine:-0} || ${theirs:-0} == ${mine:-0} && ${#1} == 7)); then
      all+=("$line")
      line_added=yes
    fi
    all+=("$old")
  done
  [[ -n $line_added ]] || all+=("$line")
  lines=("${all[@]}")
}

address() {
  local a
  read -r a <"$root/state/address"
  echo "$a"
}

# mac: prints the hardware address that GCE gives to an address.
mac() {
  local a
  IFS=. read -ra a < <(address)
  printf '42:01:%02x:%02x:%02x:%02x' "${a[@]}"
}

links() {
  if [[ -n $1 ]]; then
    [[ -d $net/$1 ]] || fail 1 "Device \"$1\" does not exist."
    echo "$1"
    return
  fi
  echo lo
  local d
  for d in "$net"/*; do
    [[ ${d##*/} == lo ]] || echo "${d##*/}"
  done
}

# link_show WITH ...: prints links, with their addresses if WITH is not empty.
link_show() {
  local with=$1 dev='' name n mtu sep=$'\n' out=() list
  shift
  while (($#)); do
    case $1 in
      dev) ;;
      up | scope | global) ;;
      *) dev=$1 ;;
    esac
    shift
  done
  [[ -n $oneline ]] && sep="\\"
  list=$(links "$dev") || exit
  for name in $list; do
    read -r mtu <"$net/$name/mtu"
    n=2
    [[ $name == lo ]] && n=1
    if [[ -n $json ]]; then
      out+=("{\"ifindex\":$n,\"ifname\":\"$name\",\"mtu\":$mtu,\"operstate\":\"UP\"${with:+,\"addr_info\":[{\"family\":\"inet\",\"local\":\"$(address)\",\"prefixlen\":32}]}}")
      continue
    fi
    local head="$n: $name: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu $mtu qdisc mq state UP mode DEFAULT group default qlen 1000"
    local hw
    hw="link/ether $(mac) brd ff:ff:ff:ff:ff:ff"
    local inet
    inet="inet $(address)/32 metric 100 scope global dynamic $name"
    if [[ $name == lo ]]; then
      head="$n: lo: <LOOPBACK,UP,LOWER_UP> mtu $mtu qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000"
      hw='link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00'
      inet='inet 127.0.0.1/8 scope host lo'
    fi
    case $with:$oneline in
      :*) printf '%s%s    %s\n' "$head" "$sep" "$hw" ;;
      *:yes) printf '%s: %s    %s\\       valid_lft forever preferred_lft forever\n' "$n" "$name" "$inet" ;;
      *) printf '%s\n    %s\n    %s\n       valid_lft forever preferred_lft forever\n' "${head/ mode DEFAULT/}" "$hw" "$inet" ;;
    esac
  done
  if [[ -n $json ]]; then
    local IFS=,
    echo "[${out[*]}]"
  fi
}

link_set() {
  local dev=''
  while (($#)); do
    case $1 in
      dev)
        dev=$2
        shift
        ;;
      up) ;;
      mtu)
        [[ -d $net/$dev ]] || fail 1 "Cannot find device \"$dev\""
        may_write link
        echo "$2" >"$net/$dev/mtu"
        shift
        ;;
      *)
        [[ -z $dev ]] || fail 255 "Error: either \"dev\" is duplicate, or \"$1\" is a garbage."
        dev=$1
        ;;
    esac
    shift
  done
}

while [[ ${1-} == -* ]]; do
  case $1 in
    -o | -oneline) oneline=yes ;;
    -j | -json) json=yes ;;
    -4 | -d | -details | -p | -pretty | -N) ;;
    -6) family=6 ;;
    -f | -family)
      [[ $2 == inet6 ]] && family=6
      shift
      ;;
    -V | -Version)
      echo 'ip utility, iproute2-5.15.0, libbpf 0.5.0'
      exit
      ;;
    *) fail 255 "Option \"$1\" is unknown, try \"ip -help\"." ;;
  esac
  shift
done
object=${1-} verb=${2-show}
shift
(($#)) && shift
case $object in
  r | ro | route | routes)
    case $verb in
      s | sh | show | l | ls | list) route_show "$@" ;;
      c | ch | change | chg) route_change change "$@" ;;
      replace) route_change replace "$@" ;;
      a | add) route_change add "$@" ;;
      append) route_change append "$@" ;;
      prepend) route_change prepend "$@" ;;
      d | del | delete) route_change del "$@" ;;
      get)
        echo "$1 via 10.128.0.1 dev ens8 src $(address) uid $(id -u) "
        echo '    cache '
        ;;
      *) unknown route "$verb" ;;
    esac
    ;;
  l | link)
    case $verb in
      s | sh | show | l | ls | list) link_show '' "$@" ;;
      set) link_set "$@" ;;
      *) unknown link "$verb" ;;
    esac
    ;;
  a | ad | addr | address)
    case $verb in
      s | sh | show | l | ls | list) link_show yes "$@" ;;
      *) unknown address "$verb" ;;
    esac
    ;;
  '') fail 255 'Usage: ip [ OPTIONS ] OBJECT { COMMAND | help }' ;;
  *) fail 1 "Object \"$object\" is unknown, try \"ip help\"." ;;
esac
