# shellcheck shell=bash disable=SC2154 # place.sh of package program stands before this text
# Runs an operation of multihost-agent on the lease of a run, for a runner.
#
#   NONCE put SUMS                 stdin is the program, compressed by gzip: kept
#   NONCE arm|adopt SUMS           stdin has the terms
#   NONCE renew SUMS RUN HOLD
#   NONCE look SUMS RUN
#
# SUMS has the hash of the program for each type of machine. The answers are the agent's, or
# "lacks TYPE" when the worker does not have the program. A worker that knows no lease of
# the run needs none to say so.
set -u
umask 022
nonce=$1 op=$2 sums=$3
shift 3
index=${MULTIHOST_ROOT_TMP-}/tmp/.multihost
store=${HOME:-/root}/.multihost/store/sha256

say() { printf '%s %s\n' "$nonce" "$*"; }

fail() {
  say error "${*//$'\n'/ }"
  exit 1
}

# arrived: prints the program that came on stdin.
arrived() { printf %s "$data" | base64 -d | gzip -dc; }

# at_hand SUM: keeps the program if this worker has it, as a content of a sync or from
# another login.
at_hand() {
  local file
  for file in "$store/${1:0:2}/$1" "$index/agent.$1."[0-9]*; do
    if [[ -f $file && -r $file ]] && keep_agent "$1" cat -- "$file"; then return; fi
  done
  return 1
}

# any_agent: sets $agent to the newest program that this login keeps, of whatever version.
# All versions look and renew alike.
any_agent() {
  local file newest=''
  for file in "${places[0]}"/*; do
    if [[ ${file##*/} =~ ^[0-9a-f]{64}$ && (! $newest || $file -nt $newest) ]]; then newest=$file; fi
  done
  [[ $newest ]] && runs "${newest##*/}" "$newest"
}

# publish: lets the guard of the slices, which root runs, and other logins have the program.
publish() {
  local file=$index/agent.$sum.$UID
  if [[ ! -d $index || -e $file ]]; then return; fi
  ln -- "$agent" "$file" || { cp -- "$agent" "$file.$$" && mv -f -- "$file.$$" "$file"; } || rm -f -- "$file.$$"
} 2>/dev/null

sum=''
if sum_here "$sums"; then sum=$REPLY; fi
case $op in
  put)
    data=$(base64 -w 0)
    if [[ ! $sum ]] || ! keep_agent "$sum" arrived; then fail "$why"; fi
    say kept
    exit
    ;;
  arm | adopt)
    [[ $sum ]] || fail "$why"
    if ! find_agent "$sum" && ! at_hand "$sum"; then
      # What is there and cannot be run would not run if it came again.
      [[ $why != *"cannot run"* ]] || fail "$why"
      say lacks "$(uname -m)"
      exit
    fi
    publish
    ;;
  *)
    if ! { [[ $sum ]] && { find_agent "$sum" || at_hand "$sum"; }; } && ! any_agent; then
      for file in "$index/$1.lease."[0-9]*; do
        if [[ -f $file ]]; then
          [[ $why != *"cannot run"* ]] || fail "$why"
          say lacks "$(uname -m)"
          exit
        fi
      done
      say lease no 0 0 0 never 0
      exit
    fi
    ;;
esac
exec "$agent" lease "$op" "$nonce" "$@"
