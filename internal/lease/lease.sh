# shellcheck shell=bash disable=SC2154 # prelude.sh of package remote, place.sh of package program and text.sh stand before this text
# Runs an operation of multihost-agent on the lease of a run, for a runner.
#
#   put SUMS                       stdin is the program, compressed by gzip: kept
#   arm|adopt SUMS                 stdin has the terms
#   renew SUMS RUN HOLD
#   look SUMS RUN
#
# SUMS has the hash of the program for each type of machine. The agent writes the answers.
# Without the program, the worker answers "lacks TYPE", except that it can report an unknown
# lease. The terms still become this login's lease, because the guard of the slices must
# know of the runner.
set -u
umask 022
op=$1 sums=$2
shift 2
index=${MULTIHOST_ROOT_TMP-}/tmp/.multihost
store=${HOME:-/root}/.multihost/store/sha256

# arrived: prints the program that came on stdin.
arrived() { printf %s "$data" | base64 -d | gzip -dc; }

# at_hand SUM: keeps the program if this worker already has it, from a sync or from another
# login.
at_hand() {
  local file
  for file in "$store/${1:0:2}/$1" "$index/agent.$1."[0-9]*; do
    if [[ -f $file && -r $file ]] && keep_agent "$1" cat -- "$file"; then return; fi
  done
  return 1
}

# any_agent: sets $agent to this login's newest program, of any version. All versions look
# and renew in the same way.
any_agent() {
  local file newest=''
  for file in "${places[0]}"/*; do
    if [[ ${file##*/} =~ ^[0-9a-f]{64}$ && (! $newest || $file -nt $newest) ]]; then newest=$file; fi
  done
  [[ $newest ]] && runs "${newest##*/}" "$newest"
}

# publish: gives the program to other logins and to the slices' guard, which runs as root.
publish() {
  local file=$index/agent.$sum.$UID
  if [[ ! -d $index || -e $file ]]; then return; fi
  ln -T -- "$agent" "$file" || { cp --remove-destination -- "$agent" "$file.$$" && mv -fT -- "$file.$$" "$file"; } || rm -f -- "$file.$$"
} 2>/dev/null

# leave_terms TEXT: replaces this login's lease of $run. Another login may own the index, so
# never write through a link.
leave_terms() {
  local new=$index/.$run.lease.$UID.$$
  { rm -f -- "$new" && (set -C && printf '%s\n' "$1" >"$new") && mv -fT -- "$new" "$index/$run.lease.$UID"; } 2>/dev/null || rm -f -- "$new"
}

# without_agent: does the part of the operation that needs no program, and answers that the
# program is missing.
without_agent() {
  local text file newest='' named=$'\nrun=([A-Za-z0-9][A-Za-z0-9._-]*)\n'
  if [[ $op == arm || $op == adopt ]]; then
    text=$(head -c 65536)
    if [[ $text == *$'\n'end && $'\n'$text =~ $named ]]; then
      run=${BASH_REMATCH[1]}
      leave_terms "${text%$'\n'end}"
    fi
  else
    for file in "$index/$run.lease."[0-9]*; do
      if [[ -f $file && ! -L $file && (! $newest || $file -nt $newest) ]]; then newest=$file; fi
    done
    if [[ ! $newest ]]; then
      say lease no 0 0 0 never 0
      exit
    fi
    if [[ $op == renew ]]; then leave_terms "$(lease_text "$newest" | grep -v '^hold=' && printf 'hold=%s' "$hold")"; fi
  fi
  # If the program exists and cannot run, sending it again would not help.
  if [[ ! $sum && $op != look || $why == *"cannot run"* ]]; then fail "$why"; fi
  say lacks "$(uname -m)"
  exit
}

sum='' run=${1-} hold=${2-}
if sum_here "$sums"; then sum=$REPLY; fi
case $op in
  put)
    data=$(base64 -w 0)
    if [[ ! $sum ]] || ! keep_agent "$sum" arrived; then fail "$why"; fi
    say kept
    exit
    ;;
  arm | adopt)
    if [[ ! $sum ]] || ! find_agent "$sum" && ! at_hand "$sum"; then without_agent; fi
    publish
    ;;
  *)
    if ! { [[ $sum ]] && { find_agent "$sum" || at_hand "$sum"; }; } && ! any_agent; then without_agent; fi
    ;;
esac
exec "$agent" lease "$op" "$nonce" "$@"
