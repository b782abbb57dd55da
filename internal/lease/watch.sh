# shellcheck shell=bash
# The watch deletes the slices of a job whose runner has died. One watch runs on every
# worker, independent of any connection. With the VM's own token it deletes the queued
# resource when no runner has come to any worker, when nobody has renewed the lease
# and the command has ended on every worker, or when the time to live of the slices
# is over.
#
#   (no argument)         the startup script of the slices: root runs it at every
#                         boot. The terms are in the attribute multihost-lease
#   NONCE arm             from a runner over SSH; stdin has the terms and then the
#                         line "end"
#   NONCE adopt           as arm, but does not examine what this worker may do
#   NONCE renew RUN HOLD  from a runner, later: it lives, and may be silent for HOLD
#                         seconds
#   NONCE look RUN        only reports
#   - watch RUN           the watch itself
#
# The lease is a file of the login that renews it: when it changes, a runner lives.
# Its lines are the terms, which count from then on, also after a reboot. Every login
# can write such a file. So this script never evaluates its contents, takes no file
# name from it, and keeps only the values that it understands.
#
# No secret is in an argument, a file or the output. vm.sh of package gcp is sent in
# front of this text.
#
# shellcheck disable=SC2154 # vm.sh sets what is not set here
set -u
export LC_ALL=C
umask 022
index=${MULTIHOST_ROOT_TMP-}/tmp/.multihost
own=${HOME:-/root}/.multihost/lease
nonce=${1--} run=''

# The function terms sets these. Times are in seconds; 0 means never.
label='' nodes='' total=1
adopt=0 # limit from the boot until a runner comes for the first time
lease=0 # limit from the last renewal, and from the end of the command
fresh=0 # a runner whose newest renewal is older than this is gone
hold=0  # the runner announced that it may be silent for this long
ttl=0   # limit from the request
asked=0 # when the request was made, in seconds since 1970; 0: not known
grace=0 keep=never keep_for=0 look=20
adopted=no # yes, permanently, once a runner has come or a command has run here

main() {
  case ${2-boot} in
    boot) boot ;;
    arm | adopt) arm "$2" ;;
    renew) renew "$3" "$4" ;;
    look) tell "$3" ;;
    watch) watch "$3" ;;
  esac
}

say() { printf '%s %s\n' "$nonce" "$*"; }

fail() {
  say error "${*//$'\n'/ }"
  exit 1
}

note() { printf '%(%FT%TZ)T multihost: %s\n' -1 "$*"; }

# now and uptime answer in REPLY. Waits use the time since the boot, because setting
# the clock does not change it.
now() { printf -v REPLY '%(%s)T' -1; }
uptime() {
  read -r REPLY _ </proc/uptime
  REPLY=${REPLY%.*}
}

is_run() { [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; }

# terms reads lines KEY=VALUE from stdin. It sets the run only if none is known.
terms() {
  local key value
  while IFS='=' read -r key value; do
    case $key in
      total | adopt | lease | fresh | hold | ttl | asked | grace | keep_for | look)
        if [[ $value =~ ^[0-9]{1,11}$ ]]; then printf -v "$key" '%d' "$((10#$value))"; fi
        ;;
      run) if [[ ! $run ]] && is_run "$value"; then run=$value; fi ;;
      adopted) if [[ $value == yes ]]; then adopted=yes; fi ;;
      label | nodes | keep)
        if [[ $value =~ ^[A-Za-z0-9:/._=\ -]*$ ]]; then printf -v "$key" '%s' "$value"; fi
        ;;
      *) is_undo "$key" "$value" || true ;;
    esac
  done
  if ((look < 1)); then look=1; fi
}

# save stores the terms for after a reboot. A watch and an operation of a runner may
# save at the same time, so each writes a file of its own and renames it.
save() {
  local key
  { for key in run undo_look undo_going undo_delete undo_probe undo_peers label nodes total adopt lease fresh hold ttl asked grace keep keep_for look adopted; do
    printf '%s=%s\n' "$key" "${!key}"
  done >"$own/$run.terms.$BASHPID" && mv -f -- "$own/$run.terms.$BASHPID" "$own/$run.terms"; } 2>/dev/null
}

# boot is the startup script. Startup scripts have to end, so it starts the watch as a
# process of its own.
boot() {
  local text
  text=$(instance attributes/multihost-lease) || {
    note "the metadata server does not tell of a lease: $text"
    exit 1
  }
  terms < <(printf '%s\n' "$text")
  is_run "$run" || exit 1
  prepare
  # Terms from a runner override those of the metadata, whether it gave them before the
  # reboot or, over SSH, since then.
  newest
  if [[ $REPLY ]]; then
    terms < <(head -c 65536 -- "$REPLY")
    adopted=yes
  fi
  if [[ $REPLY || ! -s $own/$run.terms ]]; then save || fail "write $own/$run.terms"; fi
  start "$(<"$0")"
}

arm() { # arm or adopt
  local text
  text=$(head -c 65536)
  # Incomplete terms would be different terms.
  [[ $text == *$'\n'end ]] || fail 'the terms did not arrive whole'
  text=${text%$'\n'end}
  terms < <(printf '%s\n' "$text")
  is_run "$run" || fail "no run is called $run"
  prepare
  write_lease "$text"
  adopted=yes
  save || fail "write $own/$run.terms"
  # If there is no limit to watch any more, the watch that boot started ends by itself.
  # shellcheck disable=SC2154 # the bootstrap of package sshfan has our text there
  if ((lease || ttl)); then start "$s"; fi
  if [[ $1 == adopt ]]; then
    tell "$run"
    return
  fi
  test_right
  if ((total > 1)); then attribute armed "run=$run" || say apart "${status:-000}"; fi
  tell "$run"
}

# prepare makes the directories: the one that all logins share, as package launch
# makes it, and our own.
prepare() {
  local error=''
  if [[ ! -d $index ]]; then error=$(mkdir -m 1777 -- "$index" 2>&1); fi
  if [[ ! -d $index || -L $index ]]; then fail "${error:-make $index: it is no directory}"; fi
  error=$(umask 077 && mkdir -p -- "$own" 2>&1) || fail "$error"
}

# start TEXT starts a watch that runs TEXT, unless a watch already lives.
start() {
  local file=$own/$run.sh tries
  if watched; then return; fi
  { printf '%s\n' "$1" >"$file.$BASHPID" && mv -f -- "$file.$BASHPID" "$file"; } 2>/dev/null || fail "write $file"
  # shellcheck disable=SC2094
  (cd / && exec setsid bash --norc --noprofile -p "$file" - watch "$run" </dev/null >>"$own/$run.log" 2>&1) &
  for ((tries = 0; tries < 200; tries++)); do
    if watched; then return; fi
    sleep 0.05
  done
  # A watch without a limit ends at once.
  if [[ $(tail -n 1 "$own/$run.log") == *' multihost: dismissed' ]]; then return; fi
  fail "the watch did not start: $(tail -n 1 "$own/$run.log")"
}

# watched succeeds if a watch lives, whatever login runs it. The watch holds the lock
# of the file that watched answers in REPLY; the file names its process and the time
# of the first boot.
watched() {
  for REPLY in "$index/$run.watch."[0-9]*; do
    if [[ -s $REPLY && ! -L $REPLY ]] && ! is_free "$REPLY"; then return 0; fi
  done
  return 1
}

# is_free FILE succeeds if no process holds the lock of FILE. The shell opens the file,
# because flock would open it with O_CREAT: that would create a missing file, and the
# kernel refuses O_CREAT for another login's file in a sticky directory that all can
# write.
is_free() { { flock -s -n 7; } 7<"$1" 2>/dev/null; }

# write_lease TEXT replaces this login's lease file. Renaming makes sure that a reader
# sees either the old text or the new one.
write_lease() {
  local error new=$index/.$run.lease.$UID.$BASHPID
  error=$({ printf '%s\n' "$1" >"$new" && mv -f -- "$new" "$index/$run.lease.$UID"; } 2>&1) ||
    fail "write $index/$run.lease.$UID: $error"
}

renew() {
  run=$1
  is_run "$run" || fail "no run is called $run"
  newest
  if [[ $REPLY ]]; then write_lease "$(
    grep -v '^hold=' <"$REPLY"
    printf 'hold=%s' "$2"
  )"; fi
  tell "$run"
}

# tell RUN reports the terms that count here, and whether a watch lives.
tell() {
  local file text born=0
  run=$1
  is_run "$run" || fail "no run is called $run"
  newest
  file=$REPLY
  if [[ $file ]]; then terms <"$file"; fi
  text=no
  if watched; then
    { read -r _ _ born <"$REPLY"; } 2>/dev/null
    if [[ $file ]]; then text=yes; fi
  fi
  now
  if [[ ! $born =~ ^[1-9][0-9]{0,11}$ ]]; then born=$REPLY; fi
  local now=$REPLY
  begin
  say lease "$text" "$lease" "$ttl" "$((now - REPLY))" "$keep" "$keep_for"
}

# begin answers in REPLY with the start of the time to live: the time of the request,
# or the first boot when that time is not known or later (then the clock of the runner
# was ahead of this one).
begin() {
  REPLY=$born
  if ((asked > 0 && asked < born)); then REPLY=$asked; fi
}

# newest answers in REPLY with the lease file that was written last; empty: there is
# none.
newest() {
  local file
  REPLY=
  for file in "$index/$run.lease."[0-9]*; do
    if [[ -f $file && ! -L $file ]] && [[ ! $REPLY || $file -nt $REPLY ]]; then REPLY=$file; fi
  done
}

# test_right reports whether this worker may delete the queued resource.
test_right() {
  local account pause=$((RANDOM % (2 * total))) # milliseconds, because thousands of workers ask at once
  sleep "$((pause / 1000)).$(printf %03d "$((pause % 1000))")"
  if may_delete 3; then
    say right yes
    return
  fi
  account=$(instance service-accounts/default/email) || account=-
  if [[ $account == *[[:space:]]* ]]; then account=-; fi
  say right no "$status" "$account" "${why//$'\n'/ }"
}

# The watch. Times in $up, $renewed, $idle and $again are since the boot.

watch() {
  run=$1 state='' told='' told_at=0 tries=0 again=0 stopped='' seen=''
  is_run "$run" || exit 1
  prepare
  if [[ ! -s $own/$run.born ]]; then
    now
    printf '%s\n' "$REPLY" >"$own/$run.born"
  fi
  read -r born <"$own/$run.born"
  [[ $born =~ ^[1-9][0-9]{0,11}$ ]] || exit 1
  exec 8>>"$index/$run.watch.$UID" || exit 1
  flock -w 5 8 || exit 0
  # package launch reads which process this is, so that it does not stop it with the run.
  start_time
  printf '%s %s %s\n' "$$" "$REPLY" "$born" >"$index/$run.watch.$UID" || exit 1
  if [[ -s $own/$run.terms ]]; then terms <"$own/$run.terms"; fi
  uptime
  renewed=$REPLY idle=$REPLY since=$REPLY # the startup script has just run
  note "watching run $run"
  while :; do
    uptime
    up=$REPLY
    refresh
    observe
    # The lease file stays: it tells a later watch that a runner has come.
    if ((lease == 0 && ttl == 0)) && [[ $adopt == 0 || $adopted == yes ]]; then
      state=kept
      share
      note 'dismissed'
      rm -f -- "$index/$run.watch.$UID"
      return
    fi
    share
    if ((up >= again)) && due && others_ended; then delete || return; fi
    sleep "$look" 8<&-
  done
}

start_time() {
  local stat
  stat=$(<"/proc/$$/stat")
  stat=${stat##*) }
  # shellcheck disable=SC2086 # words are meant
  set -- $stat
  REPLY=${20}
}

# refresh reads the newest lease file if anybody has renewed the lease since the last
# call.
refresh() {
  local -a files=("$index/$run.lease."[0-9]*)
  local sight=''
  if [[ -e ${files[0]} ]]; then sight=$(stat -c '%n %y' -- "${files[@]}" 2>/dev/null); fi
  if [[ $sight == "$seen" ]]; then return; fi
  seen=$sight
  newest
  if [[ ! $REPLY ]]; then return; fi
  terms < <(head -c 65536 -- "$REPLY")
  renewed=$up adopted=yes
  save
}

# observe sets state:
#
#   - running: the worker's lock is held, so the command of some run lives here;
#   - succeeded, failed: the command of our run has ended;
#   - awaited: a living runner has not started the command yet;
#   - none: otherwise. There is no runner, or the worker was rebooted.
observe() {
  if [[ -e $index/lock ]] && ! is_free "$index/lock"; then
    state=running idle=$up adopted=yes
    return
  fi
  state=none
  entry
  if [[ $code == 0 ]]; then
    state=succeeded
  elif [[ $entry ]]; then
    state=failed
  elif [[ $seen ]] && ((up - renewed < (lease > hold ? lease : hold))); then
    state=awaited
  fi
  if [[ $entry ]]; then adopted=yes; fi
}

# entry sets entry to the file of the newest attempt of our run in the index, and code
# and pid to what that file says; each is empty or 0 if not known.
entry() {
  local file key value newest=0
  entry='' code='' pid=0
  for file in "$index"/[0-9]*-"$run"-[0-9]*.run; do
    if [[ ${file##*/} =~ ^[0-9]{1,10}-"$run"-([0-9]{1,9})\.run$ && -f $file && ! -L $file ]] && ((10#${BASH_REMATCH[1]} > newest)); then
      newest=$((10#${BASH_REMATCH[1]})) entry=$file
    fi
  done
  if [[ ! $entry ]]; then return; fi
  while IFS='=' read -r key value; do
    case $key in
      exit_code) code=$value ;;
      started) if [[ $value =~ ^[0-9]{1,10}\  ]]; then pid=${value%% *}; fi ;;
    esac
  done <"$entry"
}

# share writes the state into the guest attributes for the other workers: when it has
# changed, and every 10 minutes.
share() {
  if ((total < 2)) || [[ $state == "$told" ]] && ((up - told_at < 600)); then return; fi
  now
  if attribute lease "run=$run state=$state at=$REPLY"; then told=$state told_at=$up; fi
}

# due succeeds if, as far as this worker can tell, the queued resource is to be deleted
# now. It sets why to the reason.
due() {
  local quiet=$((up - renewed)) limit=$((lease > hold ? lease : hold)) over
  begin
  over=$((REPLY + ttl))
  now
  if ((ttl && REPLY >= over)); then
    why="the time to live of $ttl s (--ttl) is over"
    # A living runner stops the command and deletes the slices itself.
    if [[ $state == running ]]; then
      if ((quiet > fresh || REPLY >= over + grace)); then stop_command; fi
      last_moment
      return
    fi
    # If no runner has come, there is none to wait for.
    if [[ $adopted == no ]]; then return 0; fi
    ((quiet > fresh || REPLY >= over + grace + 60))
    return
  fi
  if [[ $adopted == no ]]; then
    why="no runner has come within $adopt s of the boot"
    ((adopt && up - since >= adopt))
    return
  fi
  if ((lease == 0)) || [[ $state == running ]]; then return 1; fi
  if [[ $keep == on-failure && $state != succeeded ]]; then
    if ((keep_for == 0)); then return 1; fi
    if ((keep_for > limit)); then limit=$keep_for; fi
  fi
  why="nobody has renewed the lease for $quiet s, and the command has ended"
  ((quiet >= limit && up - idle >= limit))
}

# last_moment succeeds if the time to live, the grace time and 30 s more are over, so
# that commands have had time to end by themselves.
last_moment() {
  local over
  begin
  over=$((REPLY + ttl))
  now
  ((REPLY >= over + grace + 30))
}

# stop_command sends TERM to the command once; the deletion of its VM does the rest. It
# signals only processes of the login that wrote the entry, because any login can write
# one.
stop_command() {
  if [[ $stopped ]]; then return; fi
  stopped=yes
  note "stopping the command: $why"
  entry
  if [[ $entry ]] && ((pid > 1)); then pkill -TERM -s "$pid" -u "$(stat -c %u -- "$entry")"; fi
}

# others_ended succeeds if every other worker reports that its command has ended, or
# has reported nothing for half an hour. The workers' states are in guest attributes. A
# worker without any is not known to have ended. When the time to live is over, the
# watch waits for this no longer than last_moment.
others_ended() {
  local node text spoke expected over='' said="run=$run state=([a-z]+) at=([0-9]{1,11})" body='{"queryPath":"multihost/lease"}'
  local -a all
  if ((total < 2)); then return 0; fi
  if [[ $why == *--ttl* ]]; then
    if last_moment; then return 0; fi
    over=yes
  fi
  if [[ ! $told && $adopted == yes ]]; then
    if [[ $over ]]; then return 1; fi
    note "not deleted: the workers cannot tell each other whether the command runs, for guest attributes are not taken"
    again=$((up + 600))
    return 1
  fi
  read -ra all <<<"$nodes"
  expected=$((total / (${#all[@]} ? ${#all[@]} : 1)))
  now
  for node in "${all[@]}"; do
    if ! api POST "${undo_peers//\{slice\}/$node}" -H 'Content-Type: application/json' --data-binary "$body"; then
      if [[ $status == 404 ]]; then continue; fi # the slice is gone
      unknown "slice $node: $why"
      return 1
    fi
    text=$reply spoke=0
    while [[ $text =~ $said ]]; do
      text=${text#*"${BASH_REMATCH[0]}"} spoke=$((spoke + 1))
      # "kept" counts at any age, because that worker's watch has ended.
      if [[ ${BASH_REMATCH[1]} == kept && ! $over ]]; then return 1; fi
      if ((REPLY - 10#${BASH_REMATCH[2]} > 1800)); then continue; fi
      case ${BASH_REMATCH[1]} in
        running) return 1 ;;
        awaited) if [[ ! $over ]]; then return 1; fi ;;
        failed | none)
          if [[ ! $over && $adopted == yes && $keep == on-failure ]] && ((keep_for == 0 || up - idle < keep_for)); then return 1; fi
          ;;
      esac
    done
    # If no runner has come here, nothing was started: missing reports do not matter.
    if ((spoke < expected)) && [[ $adopted == yes ]]; then
      unknown "slice $node: $spoke of $expected workers have told"
      return 1
    fi
  done
}

# unknown TEXT logs that it is not known whether the command runs elsewhere. Unless the
# time to live is over, it puts off the next try.
unknown() {
  note "not deleted: whether the command runs is not known of $1"
  if [[ ! $over ]]; then later; fi
}

# delete asks the API for the deletion. Every worker does so, at a random time, so that
# usually a single request is made. Fails when the resource belongs to another run.
delete() {
  # The first of many workers asks within a second or two, the last within minutes.
  sleep "$((RANDOM % (total < 600 ? total : 600))).$((RANDOM % 1000))" 8<&-
  uptime
  up=$REPLY
  refresh
  observe
  due || return 0
  note "deleting $undo_look: $why"
  if ! delete_resource "$label"; then
    note "$why"
    return 1
  fi
  if [[ $why ]]; then note "$why"; fi
  later
}

# later sets the time of the next try: a missing permission may be granted, or the
# service may work again, even after days.
later() {
  tries=$((tries + 1))
  again=$((up + (tries < 20 ? look * 3 : 600)))
}

main "$@"
