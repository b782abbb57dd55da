# shellcheck shell=bash disable=SC2154 # vm.sh of package gcp, place.sh of package program, text.sh and $sums stand before this text
# The startup script of a job's slices, which root runs at every boot. If root keeps
# multihost-agent, the script starts its watch. Otherwise it guards the slices until a
# runner brings the program. It cannot fetch the program: a job with a runner has no bucket,
# and metadata has room for only a tenth of the program. If the worker cannot run the
# program at all, the guard is the last resort. So it needs only curl and the programs of
# every image, and no Python, which a user's own image may lack. It knows fewer cases than
# the watch. In a case that it does not know, the slices stay until their time to live has
# passed.
#
# The attribute multihost-lease has the terms. Every login can write a lease file, so its
# contents are never evaluated.
set -u
shopt -s execfail
export LC_ALL=C
umask 022
index=${MULTIHOST_ROOT_TMP-}/tmp/.multihost
own=${HOME:-/root}/.multihost/lease

# Times are in seconds; 0 means never.
run='' peers='' nodes='' total=1 adopt=0 lease=0 hold=0 ttl=0 asked=0 grace=0 keep=never keep_for=0 look=20
adopted=no # yes, for ever, once a runner has come or a command has run here
deletions=()

note() { printf '%(%FT%TZ)T multihost: %s\n' -1 "$*"; }

# terms reads lines KEY=VALUE from stdin. It sets the run only if no run is known.
terms() {
  local key value
  local -a all=()
  while IFS='=' read -r key value; do
    case $key in
      total | adopt | lease | hold | ttl | asked | grace | keep_for | look)
        if [[ $value =~ ^[0-9]{1,11}$ ]]; then printf -v "$key" %d "$((10#$value))"; fi
        ;;
      run) if [[ ! $run && $value =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then run=$value; fi ;;
      adopted) if [[ $value == yes ]]; then adopted=yes; fi ;;
      keep) if [[ $value == never || $value == on-failure ]]; then keep=$value; fi ;;
      peers | nodes) printf -v "$key" %s "$value" ;;
      deletion) all+=("$value") ;;
    esac
  done
  if ((${#all[@]})); then deletions=("${all[@]}"); fi
  if ((look < 1)); then look=1; fi
}

# take_agent succeeds if root keeps the program. It first copies the program if a runner's
# login has put it into the index. If the program cannot run, the guard tries again after 10
# minutes, or when another login has put it there.
offered=none offered_at=0
take_agent() {
  local sum file offer
  sum_here "$sums" || return 1
  sum=$REPLY
  offer=$(stat -c '%n %i %Y' -- "$index/agent.$sum."[0-9]* 2>/dev/null)
  if [[ $offer == "$offered" ]] && ((SECONDS - offered_at < 600)); then return 1; fi
  offered=$offer offered_at=$SECONDS
  if find_agent "$sum"; then return; fi
  for file in "$index/agent.$sum."[0-9]*; do
    if [[ -f $file && ! -L $file ]] && keep_agent "$sum" cat -- "$file"; then return; fi
  done
  return 1
}

# own_files makes the index and the file of the watch ours. The login that made the index
# could put links in the place of our files.
own_files() {
  local file=$index/$run.watch.$UID
  mkdir -m 1777 -- "$index" 2>/dev/null || { chown -h -- "$UID" "$index" && [[ -d $index && ! -L $index ]] && chmod 1777 -- "$index"; } || return
  if [[ -f $file && ! -L $file && -O $file ]]; then return; fi
  rm -f -- "$file" && (set -C && : >"$file")
}

guard() {
  local told='' told_at=0 seen='' up since='' renewed idle again=0 trouble='' born stat
  until given=$(instance attributes/multihost-lease) && terms < <(printf '%s\n' "$given") && [[ $run ]]; do sleep 20; done
  exec >>"$own/$run.log" 2>&1
  own_files && exec 8>>"$index/$run.watch.$UID" && flock -w 5 8 || exit 0
  if [[ ! -s $own/$run.born ]]; then printf '%s\n' "$EPOCHSECONDS" >"$own/$run.born"; fi
  read -r born <"$own/$run.born"
  if [[ ! $born =~ ^[1-9][0-9]{0,11}$ ]]; then born=$EPOCHSECONDS; fi
  stat=$(<"/proc/$$/stat")
  read -ra stat <<<"${stat##*) }"
  printf '%s %s %s\n' "$$" "${stat[19]}" "$born" >"$index/$run.watch.$UID"
  if [[ -s $own/$run.terms ]]; then terms <"$own/$run.terms"; fi
  note "guarding run $run until a runner brings multihost-agent"
  while :; do
    why=''
    if take_agent; then exec "$agent" lease boot 8 "$run"; fi
    if [[ $why && $why != "$trouble" ]]; then note "the guard goes on: $why"; fi
    trouble=${why:-$trouble}
    observe
    share
    if ((up >= again)) && due; then delete || exit 1; fi
    sleep "$((look < 2 ? look : 2))" 8<&-
  done
}

# observe sets state: running if a command is active here, awaited if a runner may start
# one. It keeps the newest lease for after a reboot. Its times count from the boot,
# independent of the clock.
observe() {
  local file newest='' sight was=$adopted
  read -r up _ </proc/uptime
  up=${up%.*}
  if [[ ! $since ]]; then since=$up renewed=$up idle=$up; fi
  sight=$(stat -c '%n %y' -- "$index/$run.lease."[0-9]* 2>/dev/null)
  if [[ $sight && $sight != "$seen" ]]; then
    seen=$sight renewed=$up adopted=yes
    for file in "$index/$run.lease."[0-9]*; do
      if [[ -f $file && ! -L $file && (! $newest || $file -nt $newest) ]]; then newest=$file; fi
    done
    if [[ $newest ]]; then
      given=$(lease_text "$newest")
      terms < <(printf '%s\n' "$given")
    fi
  fi
  state=none
  if [[ -e $index/lock ]] && ! { flock -s -n 7; } 7<"$index/lock"; then
    state=running idle=$up adopted=yes
  elif [[ $seen ]] && ((up - renewed < (lease > hold ? lease : hold))); then
    state=awaited
  elif compgen -G "$index/[0-9]*-$run-[0-9]*.run" >/dev/null; then
    adopted=yes
  fi
  if [[ $newest || $adopted != "$was" ]]; then
    printf '%s\nadopted=yes\n' "$given" >"$own/$run.terms.new" && mv -f -- "$own/$run.terms.new" "$own/$run.terms"
  fi
}

# share tells the other workers the state after a change, and every 10 minutes.
share() {
  if ((total < 2)) || [[ $state == "$told" ]] && ((up - told_at < 600)); then return; fi
  if attribute lease "run=$run state=$state at=$EPOCHSECONDS"; then told=$state told_at=$up; fi
}

# due succeeds if this worker thinks that the slices are to be deleted. It sets reason.
due() {
  local limit=$((lease > hold ? lease : hold)) begin=$((asked == 0 || asked > born ? born : asked))
  if ((ttl && EPOCHSECONDS >= begin + ttl)); then
    reason="the time to live of $ttl s (--ttl) is over"
    # The runner, or the watch that ends the command, has the grace time and a minute more.
    [[ $adopted == no ]] || ((EPOCHSECONDS >= begin + ttl + grace + 60))
  elif [[ $adopted == no ]]; then
    reason="no runner has come within $adopt s of the boot"
    ((adopt && up - since >= adopt))
  else
    if ((lease == 0)) || [[ $state == running || $keep == on-failure && $keep_for == 0 ]]; then return 1; fi
    if [[ $keep == on-failure ]] && ((keep_for > limit)); then limit=$keep_for; fi
    reason="nobody has renewed the lease for $((up - renewed)) s, and the command has ended"
    ((up - renewed >= limit && up - idle >= limit))
  fi
}

# others_ended succeeds if no other worker reports a command that is active or may start. A
# worker without a report may still have one. If no runner has come here, no worker has one.
others_ended() {
  local node text spoke workers
  local -a all said
  if ((total < 2)) || [[ $reason == *--ttl* && $adopted == yes ]]; then return 0; fi
  read -ra all <<<"$nodes"
  for node in "${all[@]}"; do
    workers=$((total / ${#all[@]})) spoke=0
    if ! ask "$node"; then
      if [[ $status == 404 ]]; then continue; fi # the slice is gone
      note "not deleted: whether the command runs is not known of slice $node: $why"
      again=$((up + look * 3))
      return 1
    fi
    for text in "${said[@]}"; do
      if [[ ! $text =~ ^"run=$run state="([a-z]+)" at="([0-9]{1,11})$ ]]; then continue; fi
      spoke=$((spoke + 1))
      case ${BASH_REMATCH[1]} in
        kept) return 1 ;; # at any age: that worker's watch has ended
        running | awaited)
          if ((EPOCHSECONDS - 10#${BASH_REMATCH[2]} <= 1800)); then
            again=$((up + (total < 200 ? 3 * total : 600))) # every worker asks all others
            return 1
          fi
          ;;
      esac
    done
    if ((spoke < workers)) && [[ $adopted == yes ]]; then
      note "not deleted: whether the command runs is not known of slice $node: $spoke of $workers workers have told"
      again=$((up + 600))
      return 1
    fi
  done
}

# ask SLICE reads the reports of the workers of a slice into the array said. If the slice
# has a list of its VMs, ask sets workers to the number of VMs that can run a command.
# $peers says how to ask: JSON, Peers of package agent. If ask fails, $why says why. $status
# is 404 if the slice does not exist.
ask() {
  local key list='' names='' states='' idle='' more='' read='' body='' told='' name i
  local -a strings vms=()
  said=() status=000 why='the terms do not say how it is read'
  for key in list names states idle more read body told; do
    if json_strings "$peers" "/$key"; then printf -v "$key" %s "${strings[0]}"; fi
  done
  if [[ ! $read ]]; then return 1; fi
  if [[ ! $list ]]; then
    hear "${read//\{slice\}/$1}"
    return
  fi
  api POST "${list//\{slice\}/$1}" -H 'Content-Type: application/json' --data-binary '' || return
  status=000 why='the list of its VMs is not whole'
  if ! json_strings "$reply" "$more" || [[ ${strings[0]} ]]; then return 1; fi
  json_strings "$reply" "$names"
  vms=("${strings[@]}") workers=0
  json_strings "$reply" "$states"
  for i in "${!vms[@]}"; do
    name=${vms[i]##*/}
    if [[ ! $name || ! ${strings[i]-} || " $idle " == *" ${strings[i]} "* ]]; then continue; fi
    workers=$((workers + 1))
    name=${read//\{vm\}/$name}
    if ! hear "${name//\{slice\}/$1}" && [[ $status != 404 ]]; then return 1; fi # 404: the VM has no report
  done
  status=200
}

# hear URL adds the texts at URL to said.
hear() {
  local -a strings request=()
  local method=GET
  if [[ $body ]]; then method=POST request=(-H 'Content-Type: application/json' --data-binary "$body"); fi
  api "$method" "$1" "${request[@]}" || return
  status=000 why='the answer is no JSON object'
  json_strings "$reply" "$told" || return
  said+=("${strings[@]}")
}

# delete requests the deletion at a random time, if no command is active anywhere. It fails
# if the slices belong to another run. Usually the first worker deletes for all workers.
delete() {
  local ours=yes
  sleep "$((RANDOM % (total < 600 ? total : 600))).$((RANDOM % 1000))" 8<&-
  observe
  if ! due || ! others_ended; then return 0; fi
  observe
  due || return 0
  note "deleting the slices: $reason"
  again=$((up + look * 3))
  delete_resources "${deletions[@]}" || ours=no
  if [[ $why ]]; then note "$why"; fi
  [[ $ours == yes ]]
}

if [[ ${1-} == guard ]]; then
  guard
  exit
fi
(umask 077 && mkdir -p -- "$own")
if take_agent && "$agent" lease boot; then exit; fi # otherwise the guard tries again
# Startup scripts must end, so the guard is a process of its own.
text=$(<"$0")
cd / && exec setsid --fork bash --norc --noprofile -p -c "$text" multihost-guard guard </dev/null >/dev/null 2>&1
