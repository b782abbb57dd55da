# shellcheck shell=bash
# This is the startup script of a job's workers. Root runs it at every boot. With --going
# it is their shutdown script: see going.
#
# It needs nobody else. It fetches the description of the job and its files, prepares the
# worker, starts the command under the supervisor that a runner would use, stores the log
# and the end in the bucket, and deletes the queued resource once every worker has ended.
#
# It reads the description of the job from the instance attribute multihost-job, or from
# the file named by the first argument: lines KEY=VALUE. It may be started again at any
# time: a lock lets only one instance run, and finished steps are not repeated.
#
# Every wait in a loop here has a limit, except for the metadata server, the end of the
# command, the deletion of the queued resource, and, with --keep, for the bucket to take
# the whole log. No secret is in an argument, a file that stays, or the output. vm.sh of
# package gcp stands before this script.
set -u
export LC_ALL=C
umask 022
# shellcheck disable=SC2034 # vm.sh reads it
call_limit=600 # enough for large logs
root=${MULTIHOST_ROOT_TMP-}
nonce=mhjob$$

# Files that must survive a reboot are in $state. All others are in $scratch, in memory,
# so a command that fills the disk does not keep a worker from reporting how it ended.
state='' scratch=''

# Values that read_job sets if the job has them.
run='' project='' zone='' resource='' label=''
bucket='' prefix='' claim='' kit_sum='' code_sum='' slices=1 workers=1 nodes='' login=''
storage='' upload='' secretmanager=''
period=60 look=20 patience=600 log_timeout=1800 stale=1800 ttl=0 requested=0 keep=never keep_for=0
preflight=apply kill_stale=orphans numa=off adopt=no venv=no maxtext=no fail_fast=yes grace=30000 timeout=0 cloud_logging=no secrets=''
tail_words='' # empty: no failure is excused (--strict-exit)

# State of the attempt and of its end on this worker:
#   end_code     exit code
#   end_told     whether the bucket has the end
#   unsent       why the bucket does not have the whole log
#   unsent_told  whether control/unsent-... says so
#   failure      the reason that the other workers still have to be told if it failed
#   stop_untold  why all workers are to stop, if they still have to be told
#   not_begun    why the next attempt does not begin
#   not_again    the stop that keeps the next attempt from beginning after a reboot
#   stopping     why the command is being stopped
#   rebooted     how the machine ended the attempt
end_code='' end_told='' unsent='' unsent_told='' failure='' stop_untold='' not_begun='' not_again='' stopping='' rebooted=''

main() {
  local since waiting=''
  # The reader of our output may end before us. systemd ends the guest agent's runner of
  # scripts when its package is upgraded, and when the kernel kills any process of that
  # service, such as the command, for want of memory. This is a handler and not '',
  # because '' would be inherited.
  trap : PIPE
  if [[ ${1-} == --going ]]; then
    going
    return
  fi
  now
  since=$REPLY
  # A worker that gets nothing from its metadata server has no token either. It can only
  # ask again: if it left, no worker might delete the slices.
  until read_job "${1-}" && identify; do
    if [[ ${1-} ]]; then exit 1; fi
    if [[ $waiting != "$why" ]]; then note "waiting: $why"; fi
    waiting=$why
    now
    sleep "$((REPLY - since < patience ? 5 : 60))"
  done
  state=${HOME:-/root}/.multihost-job/$run scratch=$root/run/multihost-job/$run
  (umask 077 && mkdir -p -- "$state" "$scratch") || exit 1
  exec 8>"$state/lock"
  flock -n 8 || exit 0 # another instance is running
  date +%s >>"$state/boots"
  read -r first_boot <"$state/boots"
  # The time to live counts from the request, unless the clock of the requesting machine
  # was ahead of this one.
  born=$first_boot
  if ((requested > 0 && requested < born)); then born=$requested; fi
  rm -rf -- "$scratch/secrets" "$scratch/attempt" "$state/down"
  remember me "$slice $worker"
  note "worker $me of job $run"
  test_right
  detached
}

# note TEXT...: prints to the serial console and the journal, where the output of startup
# scripts goes.
note() { printf 'multihost: %s\n' "$*" 2>/dev/null || :; }

# remember NAME TEXT: writes TEXT to that file in $state, to survive reboots. It does not
# write the same text again: the disk may be full by then.
remember() {
  [[ -s $state/$1 && $(<"$state/$1") == "$2" ]] || printf '%s\n' "$2" >"$state/$1"
}

now() { printf -v REPLY '%(%s)T' -1; }

read_job() {
  local text key value
  if [[ ${1-} ]]; then
    text=$(<"$1") || {
      why="cannot read $1"
      return 1
    }
  else
    text=$(instance attributes/multihost-job) || {
      why="the metadata server does not tell: $text"
      return 1
    }
  fi
  while IFS='=' read -r key value; do
    case $key in
      run | project | zone | resource | label | bucket | prefix | claim | kit_sum | code_sum | slices | workers | nodes | login | \
        storage | upload | secretmanager | period | look | patience | log_timeout | stale | ttl | requested | keep | keep_for | \
        preflight | kill_stale | numa | adopt | venv | maxtext | fail_fast | grace | timeout | cloud_logging | secrets | tail_words)
        printf -v "$key" '%s' "$value"
        ;;
      *) is_undo "$key" "$value" || true ;;
    esac
  done < <(printf '%s\n' "$text")
  why="it has no run"
  [[ $run =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]
}

# if_any PATH: prints a value of the metadata server, nothing if it has none.
if_any() {
  local value
  if value=$(instance "$1"); then
    printf '%s' "$value"
    return
  fi
  [[ $value == *"error: 404"* ]]
}

# identify: finds out which worker of the job this is, and where. It never guesses: a
# wrong guess would give two workers one identity.
identify() {
  local env line id endpoints
  why="the metadata server does not tell which worker this is"
  env=$(if_any attributes/tpu-env) && endpoints=$(if_any attributes/worker-network-endpoints) &&
    own=$(if_any network-interfaces/0/ip) || return
  endpoints=${endpoints%%,*} coordinator=${endpoints##*:}
  slice=0 worker=0 node=
  while IFS= read -r line; do
    case $line in
      WORKER_ID:*) worker=${line//[^0-9]/} ;;
      NODE_ID:*) node=${line#*: } node=${node//\'/} ;;
      MEGASCALE_SLICE_ID:*) slice=${line//[^0-9]/} ;;
      MEGASCALE_COORDINATOR_ADDRESS:*) coordinator=${line#*: } coordinator=${coordinator//\'/} coordinator=${coordinator%:*} ;;
    esac
  done < <(printf '%s\n' "$env")
  line=0
  for id in $nodes; do
    if [[ $id == "$node" ]]; then slice=$line; fi
    line=$((line + 1))
  done
  me=s${slice}w$worker
  index=$((slice * workers + worker)) total=$((slices * workers))
}

# header NAME: sets REPLY to this header of the last answer whose headers were stored.
header() {
  local name value
  REPLY=
  while IFS=': ' read -r name value; do
    if [[ ${name,,} == "$1" ]]; then REPLY=${value%$'\r'}; fi
  done <"$scratch/headers"
}

# entry KEY FILE: sets REPLY to the value in a file of lines KEY=VALUE.
entry() {
  local line
  REPLY=
  while IFS= read -r line; do
    if [[ $line == "$1="* ]]; then REPLY=${line#*=}; fi
  done <"$2"
}

# patiently COMMAND...: repeats the command until it succeeds or $patience seconds have
# passed. It retries a refusal like an outage, because a right that was given a minute ago
# is not known everywhere yet. Before the command starts, it reports what the worker waits
# for. The time to live ends the wait too.
patiently() {
  local end pause=1 said='' last
  now
  end=$((REPLY + patience))
  if ((ttl && born + ttl + grace / 1000 + 60 < end)); then end=$((born + ttl + grace / 1000 + 60)); fi
  until "$@"; do
    now
    if ((REPLY + pause > end)); then
      why="tried for $patience s; $why"
      return 1
    fi
    if [[ $why != "$said" && ${phase-} =~ ^(boot|preflight|logs)$ ]]; then
      said=$why last=$status
      report "$phase" "waiting: $why"
      why=$said status=$last
    fi
    sleep "$pause"
    pause=$((pause < 16 ? pause * 2 : 30))
  done
}

object() { # NAME: sets REPLY to the URL of the object
  REPLY=$prefix$1
  REPLY=$storage/b/$bucket/o/${REPLY//\//%2F}
}

fetch() { # NAME FILE
  local text
  object "$1"
  : >"$2.new"
  if api GET "$REPLY?alt=media" -o "$2.new"; then
    mv -f -- "$2.new" "$2"
    return
  fi
  if [[ $status != 000 && -s $2.new ]]; then
    IFS= read -r -d '' -n 400 text <"$2.new"
    explain "$text"
  fi
  rm -f -- "$2.new"
  return 1
}

# store NAME FILE [PRECONDITION]: writes the file to the object.
store() {
  REPLY=$prefix$1
  api POST "$upload/b/$bucket/o?uploadType=media&name=${REPLY//\//%2F}${3+&$3}" -T "$2" -H 'Content-Type: text/plain' -H 'Expect:'
}

store_text() { # NAME TEXT [PRECONDITION]
  printf '%s\n' "$2" 2>/dev/null >"$scratch/text" || no_room || return
  store "$1" "$scratch/text" "${@:3}"
}

# no_room: fails, so that an incomplete file is not uploaded.
no_room() {
  status=000 why="cannot write below $scratch"
  return 1
}

# report PHASE TEXT: reports the state of this worker, in the bucket and as a guest
# attribute, which can be read when the bucket cannot. The shutdown script's report is the
# last one.
report() {
  phase=$1 detail=$2
  now
  reported=$REPLY
  printf -v text 'phase=%s\nworker=%s\nattempt=%s\nat=%s\nmay_delete=%s\nlogin=%s\ndetail=%s' \
    "$phase" "$me" "${attempt:-0}" "$REPLY" "$right" "$login" "${detail//$'\n'/ }"
  if [[ $phase != "${told-}" ]]; then
    told=$phase
    note "$phase${detail:+: $detail}"
    attribute state "run=$run"$'\n'"$text"
  fi
  {
    flock -w 5 7
    if [[ $phase == down ]] || ! going_down; then store_text "workers/$me" "$text"; fi
  } 7>"${scratch%/going}/telling"
}

# The shutdown script may take this many seconds. Compute Engine gives a machine 30 when
# it is preempted, and more in all other cases; the rest of the machine has to end in them
# too.
going_limit=20

# going: the guest agent runs it when the machine is told to end. It reports that, and
# sends the rest of the log to the bucket. It ends no process.
going() {
  local work limit
  set -m # each job in a process group of its own
  last_words 8<&- &
  work=$!
  {
    sleep "$going_limit"
    kill -s KILL -- "-$work"
  } 2>/dev/null &
  limit=$!
  set +m
  wait "$work" 2>/dev/null # not -n, which forgets jobs that have ended before
  disown -a                # bash then prints nothing about the killed job
  kill -s KILL -- "-$limit" 2>/dev/null
}

# last_words: does the work of going with few processes, because all others on the machine
# are about to end too.
last_words() {
  local dir path tries
  # shellcheck disable=SC2034 # vm.sh reads it
  call_limit=10 part=last piece=16777216
  read_job && dir=${HOME:-/root}/.multihost-job/$run && [[ -s $dir/boots ]] || return
  runs='' attempt=0 right=''
  if [[ -s $dir/runs ]]; then
    runs=$(<"$dir/runs")
    newest_attempt
    attempt=$newest
  fi
  for path in "$dir"/told.*; do
    if [[ -e $path ]] && ((${path##*.} >= attempt)); then
      : >"$dir/down" # the attempt ended before, with its whole log; another may be about to begin
      return
    fi
  done
  if [[ ! -s $runs/$attempt/exit ]]; then
    # An end from here on is not the command's own.
    printf '\n' >"$dir/down.$attempt"
    : >"$dir/down"
  fi
  read -r slice worker <"$dir/me" || return
  me=s${slice}w$worker scratch=$root/run/multihost-job/$run/going
  (umask 077 && mkdir -p -- "$scratch") || return
  # shellcheck disable=SC2034 # vm.sh reads it
  if access_token; then held=$REPLY; fi
  if [[ -e $dir/down ]]; then tell_down & fi
  if ((attempt)); then
    for tries in 1 2 3; do
      if send_log; then break; fi
      sleep 1
    done
  fi
  wait
}

# tell_down: reports why the machine ends, if the metadata server says so.
tell_down() {
  local cause='' tries
  {
    read -r login <"$dir/login"
    IFS= read -r right <"$dir/right"
  } 2>/dev/null
  if [[ $(if_any preempted) == TRUE ]]; then
    cause=preempted
  elif [[ $(if_any maintenance-event) == TERMINATE* ]]; then
    cause='maintenance of its host'
  fi
  printf '%s\n' "$cause" >"$dir/down.$attempt"
  for tries in 1 2 3; do
    if report down "${cause:-told to end}"; then break; fi
    sleep 1
  done
}

# going_down: succeeds if the machine was told to end. If the machine still runs three
# minutes later, it does not count as ending.
going_down() {
  local since
  [[ -e $state/down ]] && since=$(stat -c %Y -- "$state/down") || return
  now
  since=$((REPLY - since))
  if ((${since#-} < 180)); then return 0; fi
  rm -f -- "$state"/down "$state"/down.*
  return 1
}

# hold: delays the report of an end while the machine goes down, because the machine has
# caused that end.
hold() {
  while going_down; do sleep "$look"; done
}

# test_right: finds out whether this worker may delete the queued resource.
test_right() {
  right=yes
  if ! may_delete 0; then
    right="unknown: ${why//$'\n'/ }"
    if [[ $status == 40[13] ]]; then right="no: ${why//$'\n'/ }"; fi
    note "may this worker delete the queued resource? $right"
  fi
  remember right "$right"
}

# await_login: waits for the login of ssh-keys, which the guest agent makes some time
# after the boot. If it does not come, the command runs as root. After a reboot the
# command runs as the same user as before, because the run is in that user's home: then
# there is no other login, only a longer wait.
await_login() {
  local end keys limit=120
  if [[ -s $state/login ]]; then
    login=$(<"$state/login") limit=$patience
  elif [[ ! $login ]]; then
    keys=$(instance attributes/ssh-keys) && login=${keys%%:*}
  fi
  login=${login:-root} login_missing=''
  now
  end=$((REPLY + limit))
  while [[ $login != root ]] && ! id -u "$login" >/dev/null 2>&1; do
    now
    if ((REPLY >= end)); then
      if [[ -s $state/login ]]; then
        why="login $login, which the run belongs to, was not there after $limit s"
        return 1
      fi
      login_missing=$login login=root
      break
    fi
    sleep 1
  done
  if [[ ! -s $state/login ]]; then printf '%s\n' "$login" >"$state/login"; fi
  why="login $login cannot run a command"
  home=$(as_login 60 bash --norc -c "printf %s \"\$HOME\"") && [[ $home ]] || return
  if [[ ! -d $home ]]; then make_home; fi
  runs=$home/.multihost/runs/$run
  remember runs "$runs"
}

# make_home: makes the login's home. A worker knows a login of OS Login at once, but only
# the first SSH login makes its home.
make_home() {
  mkhomedir_helper "$login" || install -d -o "$login" -g "$(id -g "$login")" -- "$home"
} >/dev/null 2>&1

# as_login SECONDS COMMAND...: runs a command as ssh would, without the variables that
# sudo sets and without our locale. It kills the command after that many seconds: a home
# that hangs must not keep a worker from its end.
as_login() {
  local -a who=(env -u LC_ALL)
  if [[ $login == root ]]; then
    who+=("HOME=${HOME:-/root}")
  else
    who+=(sudo -n -H -u "$login" -- env -u SUDO_COMMAND -u SUDO_USER -u SUDO_UID -u SUDO_GID)
  fi
  timeout -k 10 "$1" "${who[@]}" "${@:2}" 8<&-
}

# op SCRIPT ARG...: runs one operation of the supervisor's scripts as the login, and
# stores its answer in $scratch/answer. Our stdin is appended to the script. Apart from
# the grace time and $op_limit, all of them are short.
op_limit=120
op() {
  local name=$1 size
  shift
  size=$(stat -c %s -- "$scratch/kit/$name")
  cat -- "$scratch/kit/$name" - |
    as_login "$((grace / 1000 + op_limit))" bash --norc --noprofile -p -c "$(<"$scratch/kit/bootstrap")" "multihost-$name" "$size" "$nonce" "$@" >"$scratch/answer" 2>"$scratch/error"
}

answer() { # WORD: sets REPLY to the rest of the last line that begins with WORD
  local line found=1
  REPLY=
  while IFS= read -r line; do
    if [[ $line == "$nonce $1" || $line == "$nonce $1 "* ]]; then
      REPLY=${line#"$nonce $1"} REPLY=${REPLY# } found=0
    fi
  done <"$scratch/answer"
  return "$found"
}

# look_at ATTEMPT: sets $is to the state of the attempt: unknown, starting, running,
# exited, lost or aborted. The look itself records an end that nobody saw. Fails if the
# look failed.
look_at() {
  op status "$run" "$1" </dev/null
  is=unknown
  if answer phase; then
    is=$REPLY
    return 0
  fi
  why="the worker cannot be asked: $(tail -n 1 "$scratch/error")"
  return 1
}

detached() {
  local cause
  attempt=1
  report boot ''
  until prepare_job; do
    cause=$why
    wanted_attempt
    attempt=$((wanted > 1 ? wanted : 1))
    has_ended || give_up 77 "$cause"
    is=exited
    rest || return
  done
  if [[ $cloud_logging == yes ]]; then
    (
      exec 8<&-
      ops_agent
    ) &
  fi
  find_attempt
  while :; do
    if [[ $is == unknown ]]; then begin; fi
    if [[ $is == starting || $is == running ]]; then
      attend
    fi
    finish
    rest || break
    attempt=$next is=unknown
  done
}

prepare_job() {
  prepare_kit || {
    why="the job cannot be fetched: $why"
    return 1
  }
  await_login
}

# prepare_kit: unpacks the kit. It uses the one that an earlier boot fetched, if that is
# whole.
prepare_kit() {
  if ! kit_fits; then patiently fetch "starts/$claim/kit.tar.gz" "$state/kit.tar.gz" || return; fi
  why="kit.tar.gz is not what the job was started with"
  kit_fits || return
  why="kit.tar.gz cannot be unpacked"
  rm -rf -- "$scratch/kit" && mkdir -- "$scratch/kit" && tar -xzf "$state/kit.tar.gz" -C "$scratch/kit"
}

kit_fits() { [[ -s $state/kit.tar.gz && $(sha256sum <"$state/kit.tar.gz") == "$kit_sum"* ]]; }

# find_attempt: finds the newest attempt on this worker and its state. If a reboot ended
# that attempt, it tells the others so and begins the next one. It announces the next
# attempt first: a worker that sees that all have ended one attempt, and sees no newer
# one, deletes the queued resource. An attempt that had ended before the reboot does not
# cause another one.
find_attempt() {
  local quick=no
  newest_attempt
  if has_ended; then return; fi
  is=unknown
  if ((newest == 0)); then
    if ! patiently first_attempt; then
      give_up 77 "which attempt is to begin cannot be read: $why"
      is=exited
    elif [[ $here == ended ]]; then
      gave_up=$attempt end_told=yes is=exited
      : >"$state/told.$attempt"
    elif [[ $here == begun ]] && ! asked stop; then
      lose_disk
    fi
    return
  fi
  attempt=$newest
  wanted_attempt
  patiently look_at "$attempt" || is=running # attend looks again, and says why
  if went_down; then is=lost; fi
  case $is in
    lost)
      if asked stop || was_stopping; then
        not_again=$REPLY
        return
      fi
      attempt=$((newest + 1 > wanted ? newest + 1 : wanted))
      if quick_deaths; then quick=yes; fi
      if ! patiently announce; then
        not_begun="attempt $attempt did not begin, since the others could not be told: $why"
        attempt=$newest
        return
      fi
      next=$attempt attempt=$newest
      finish
      attempt=$next is=unknown
      if [[ $quick == yes ]]; then
        give_up 75 "the worker was rebooted three times within a minute of the start of the command"
        is=exited
      fi
      ;;
    aborted) is=unknown ;;
  esac
}

# first_attempt: sets $attempt to the attempt with which a worker without a record begins.
# A new slice of a run that has lost its first slices must not begin again at 1. It sets
# $here to what the bucket has of this worker in that attempt: begun if it has a log,
# ended if it has the end too. Then the disk is a new one, as after a repair.
first_attempt() {
  here=''
  wanted_attempt || return
  attempt=$((wanted > 1 ? wanted : 1))
  log_name
  object "$REPLY"
  if ! api GET "$REPLY"; then
    [[ $status == 404 ]]
    return
  fi
  api GET "$storage/b/$bucket/o?prefix=${prefix//\//%2F}ended%2F$attempt%2F$me." || return
  here=begun
  if [[ $reply == *'"name"'* ]]; then here=ended; fi
}

# lose_disk: ends the attempt that was lost with the disk, as after a reboot, and makes
# the next one begin.
lose_disk() {
  local lost=$attempt
  attempt=$((lost + 1))
  if ! patiently announce; then
    attempt=$lost
    give_up 70 "the worker has come back without its disk, and attempt $((lost + 1)) did not begin, since the others could not be told: $why"
    is=exited
    return
  fi
  next=$attempt attempt=$lost end_code=255 end_told=''
  printf 'code=255\nsignal=\nend=0\nsize=0\noom=0\nlost=1\ndropped=0\nreason=the worker was rebooted, with an empty disk\n' >"$scratch/exit"
  patiently tell_end
  attempt=$next end_told=''
}

# has_ended: succeeds if the others were told how the newest attempt ended on this worker,
# even if it was given up without a record.
has_ended() {
  local path told=0
  for path in "$state"/told.*; do
    if [[ -e $path ]] && ((${path##*.} > told)); then told=${path##*.}; fi
  done
  if ((told == 0 || told < ${newest:-0})); then return 1; fi
  attempt=$told gave_up=$told end_told=yes is=exited
  entry code "$state/told.$told"
  end_code=${REPLY:-unknown}
  entry reason "$state/told.$told"
  report_end "$REPLY"
}

# was_stopping: succeeds if the reboot interrupted a stop after which no attempt was to
# follow. REPLY is the reason of the stop.
was_stopping() {
  ((wanted <= attempt)) && [[ -s $runs/$attempt/stop ]] && IFS= read -r REPLY <"$runs/$attempt/stop"
}

# newest_attempt: sets $newest to the newest attempt that this worker has a record of.
newest_attempt() {
  local path
  newest=0
  for path in "$runs"/*/; do
    path=${path%/}
    path=${path##*/}
    if [[ $path =~ ^[0-9]+$ ]] && ((path > newest)); then newest=$path; fi
  done
}

# went_down: succeeds, with the reason in $rebooted, if the end of the machine ended the
# attempt, whatever the record says. There are two signs. Either the shutdown script noted
# it before the end. Or nobody reported the end in the same boot, because the machine
# ended too, and the supervisor was killed or the command died by TERM, which all
# processes get when a machine ends.
went_down() {
  local exit_file=$runs/$attempt/exit boot='' own='' cause=''
  if [[ $is != exited && $is != lost || -e $state/told.$attempt || ! -s $exit_file ]]; then return 1; fi
  entry code "$exit_file"
  if [[ $REPLY == 0 || $is == exited && -s $runs/$attempt/stop ]]; then return 1; fi
  if [[ -e $state/down.$attempt ]]; then
    IFS= read -r cause <"$state/down.$attempt"
  else
    {
      read -r _ _ boot _ <"$runs/$attempt/supervisor"
      read -r own <"${MULTIHOST_ROOT_PROC-}/proc/sys/kernel/random/boot_id"
    } 2>/dev/null
    entry signal "$exit_file"
    if [[ ! $boot || $boot == "$own" || $is == exited && $REPLY != TERM ]]; then return 1; fi
  fi
  rebooted="the worker was rebooted${cause:+: $cause}"
}

# quick_deaths: succeeds if each of the last three attempts ended with a reboot within a
# minute.
quick_deaths() {
  local i started seen
  for ((i = attempt - 1; i > attempt - 4; i--)); do
    if ((i < 1)); then return 1; fi
    read -r _ _ started _ <"$runs/$i/started" || return 1
    seen=$(stat -c %Y -- "$state/seen.$i" 2>/dev/null) || seen=0
    if ((seen - started / 1000000000 > 60)); then return 1; fi
  done 2>/dev/null
}

# wanted_attempt: sets $wanted to the attempt that the workers have agreed on: the highest
# that any worker began. Fails if it cannot be read.
wanted_attempt() {
  local read=no
  wanted=0 wanted_generation=0
  object control/attempt
  if api GET "$REPLY?alt=media" -D "$scratch/headers"; then
    read=yes
    reply=${reply%$'\n'}
    if [[ ! $reply =~ ^[0-9]{1,9}$ ]]; then
      why="control/attempt is no number: ${reply:0:40}"
      return 1
    fi
    wanted=$reply
    header x-goog-generation
    wanted_generation=$REPLY
  elif [[ $status == 404 ]]; then
    read=yes
  fi
  wanted=${wanted:-0} wanted_generation=${wanted_generation:-0}
  [[ $read == yes ]]
}

# announce: tells the other workers that a new attempt has begun.
announce() {
  wanted_attempt || return
  if ((wanted >= attempt)); then
    attempt=$wanted
    return
  fi
  store_text control/attempt "$attempt" "ifGenerationMatch=$wanted_generation"
}

# begin: does what a runner does before a command runs, and starts it.
begin() {
  local text
  if stop_before; then return; fi
  report preflight ''
  if ! prepare; then
    give_up "$code" "$why"
    is=exited
    return
  fi
  if stop_before; then return; fi
  report start "attempt $attempt"
  if [[ $cloud_logging == yes ]]; then agent_log; fi
  arm
  if answer started; then
    is=running
    touch -- "$state/seen.$attempt"
    report running "attempt $attempt${login_missing:+; login $login_missing was not there after two minutes, the command runs as root}"
    return
  fi
  text=$(grep -v '^mhjob' "$scratch/error" | tail -n 1)
  if answer failed || answer error; then text=$REPLY; fi
  if answer busy; then text="another run lives on this worker"; fi
  if answer already; then
    patiently look_at "$attempt" || is=running # attend looks again, and says why
    return
  fi
  give_up 70 "the command could not be started: ${text:-no answer}"
  is=exited
}

# stop_before: succeeds, and gives the attempt up, if the run is to stop before the
# attempt begins.
stop_before() {
  if expired; then
    stop_untold=$REPLY
  elif ! asked stop; then
    return 1
  fi
  give_up 143 "$REPLY"
  is=exited
}

# asked WHAT: succeeds if control/WHAT is in the bucket, with its reason in REPLY. An
# object without a reason counts too.
asked() {
  fetch "control/$1" "$scratch/asked" || return
  REPLY=
  IFS= read -r REPLY 2>/dev/null <"$scratch/asked"
  REPLY=${REPLY:-control/$1 is in the bucket}
}

# expired: succeeds if the time to live is over; REPLY says so.
expired() {
  now
  ((ttl && REPLY - born >= ttl)) || return
  REPLY="the time to live of $ttl s (--ttl) is over"
}

# prepare: prepares the worker for the command. If it fails, it sets $code and $why.
prepare() {
  local line name want outcome reason pid user command
  code=76 numa_nodes=0 numactl=no
  if [[ $preflight != off ]]; then
    timeout 600 bash "$scratch/kit/preflight" >"$scratch/preflight" 2>&1 8<&-
    while IFS=$'\037' read -r line name want _ _ outcome _ reason; do
      case $line in
        *result)
          [[ $outcome == failed ]] || continue
          note "preflight: $name is not $want: $reason"
          if [[ $name == tpu_devices || $preflight == require ]]; then
            why="preflight: $name: $reason"
            return 1
          fi
          ;;
        *info)
          if [[ $name == numa_nodes ]]; then numa_nodes=$want; fi
          if [[ $name == numactl ]]; then numactl=$want; fi
          ;;
      esac
    done < <(sed -n 's/^multihost-preflight 1\t\(result\|info\)\t/\1\t/p' "$scratch/preflight" | tr '\t' '\037') # read would merge the tabs around empty fields
    if [[ $preflight != check ]] && ! grep -q "^multihost-preflight 1.end" "$scratch/preflight"; then
      why="preflight did not end: $(tail -n 1 "$scratch/preflight")"
      return 1
    fi
  fi
  code=74
  unpack_code || return
  code=76
  if [[ $venv == yes ]]; then make_venv || return; fi
  op free "$kill_stale" "$grace" </dev/null
  code=69
  if answer holder; then
    read -r pid _ _ user _ _ _ _ _ command <<<"$REPLY"
    why="the TPU is in use by pid $pid of $user: $command; --kill-stale=all would end it"
    return 1
  fi
  code=77
  fetch_secrets
}

# unpack_code: unpacks the code into the run's directory, only once: files that a command
# changed there must survive a reboot.
unpack_code() {
  local mark=$state/unpacked
  [[ $code_sum == none || -e $mark && $(<"$mark") == "$code_sum" ]] && return
  patiently fetch "starts/$claim/script_dir_zip_$run.tar.gz" "$state/code.tar.gz" || return
  why="script_dir_zip_$run.tar.gz is not what the job was started with"
  [[ $(sha256sum <"$state/code.tar.gz") == "$code_sum"* ]] || return
  why=$(as_login 3600 bash --norc -c "$(<"$scratch/kit/unpack")" unpack "$run" "$adopt" <"$state/code.tar.gz" 2>&1) || {
    if (($? == 3)); then
      code=78 why="$why; another --run-name=NAME has a directory of its own, --adopt puts the files into this one"
    else
      why="unpack the code: $why"
    fi
    return 1
  }
  rm -f -- "$state/code.tar.gz"
  printf '%s\n' "$code_sum" >"$mark"
}

# make_venv: makes the virtual environment as a runner does with launch.MakeVenv.
make_venv() {
  local op_limit=1920
  op venv "$run" </dev/null
  why="make a virtual environment (--venv): "
  if answer refused; then
    if [[ $REPLY == python3-venv* ]]; then why+="the package python3-venv is not installed: "; fi
    why+=${REPLY#* }
    return 1
  elif answer path && venv_path=$REPLY && answer venv; then
    venv_dir=$REPLY
    return
  fi
  answer error
  why+=${REPLY:-no answer: $(tail -n 1 "$scratch/error")}
  return 1
}

# read_secret URL: reads a secret. It also succeeds if the secret does not exist, so that
# patiently does not retry.
read_secret() { api GET "$1" || [[ $status == 404 ]]; }

# fetch_secrets: writes NAME=VALUE of every secret to $scratch/secrets, each followed by a
# NUL. The file exists only until the command is started.
fetch_secrets() {
  local item ref owner name version decoded count=0
  (
    umask 077
    : >"$scratch/secrets"
  )
  for item in $secrets; do # NAME=sm://PROJECT/SECRET/VERSION
    ref=${item#*=sm://}
    IFS=/ read -r owner name version <<<"$ref"
    if ! patiently read_secret "$secretmanager/projects/$owner/secrets/$name/versions/$version:access" || [[ $status == 404 ]]; then
      rm -f -- "$scratch/secrets"
      why="read secret $ref: $why" reply=''
      return 1
    fi
    value_of data
    reply=''
    {
      printf '%s=' "${item%%=*}"
      printf %s "$REPLY" | base64 -d 2>/dev/null
      decoded=${PIPESTATUS[1]}
      printf '\0'
    } >>"$scratch/secrets"
    count=$((count + 1))
    # A NUL more than there are secrets means that a value contains one.
    if [[ ! $REPLY || $decoded != 0 ]] || (($(tr -cd '\0' <"$scratch/secrets" | wc -c) != count)); then
      rm -f -- "$scratch/secrets"
      why="read secret $ref: the answer has no value that fits into a variable"
      return 1
    fi
  done
}

# arm: gives the command to a supervisor of the login, as launch.Arm does over SSH: the
# files of the attempt follow the script on stdin, then the word go.
arm() {
  local kit=$scratch/kit dir=$scratch/attempt
  local -a files sizes words wrap
  rm -rf -- "$dir" && mkdir -m 700 -- "$dir" || return
  mapfile -d '' -t words <"$kit/argv"
  wrap_words
  printf '%s\0' "${words[@]:0:2}" "${wrap[@]}" "${words[@]:2}" >"$dir/argv"
  {
    variables
    cat -- "$kit/env" "$scratch/secrets"
  } >"$dir/env"
  rm -f -- "$scratch/secrets"
  cp -- "$kit/meta" "$kit/script" "$kit/limit" "$dir/"
  files=("$dir/meta" "$dir/argv" "$dir/env" "$dir/script" "$dir/limit")
  mapfile -t sizes < <(stat -c %s -- "${files[@]}")
  {
    cat -- "${files[@]}"
    rm -rf -- "$dir"
    printf 'go\n'
  } | op arm "$run" "$attempt" "${sizes[@]}"
}

wrap_words() {
  wrap=()
  if ((numa_nodes < 2)) || [[ $numactl != yes ]]; then return; fi
  case $numa in
    bind) wrap=(numactl --membind=0 --cpunodebind=0) ;;
    preferred) wrap=(numactl --preferred=0 --cpunodebind=0) ;;
  esac
}

# variables: prints the variables that this worker's command gets besides the user's own.
# A name without a value is unset: MEGASCALE variables would override the metadata of a
# job of several slices, and a job of one slice must have none.
variables() {
  printf '%s\0' MEGASCALE_COORDINATOR_ADDRESS MEGASCALE_NUM_SLICES MEGASCALE_SLICE_ID MEGASCALE_PORT \
    "MULTIHOST_SLICE_ID=$slice" "MULTIHOST_NUM_SLICES=$slices" "MULTIHOST_WORKER_ID=$worker" "MULTIHOST_NUM_WORKERS=$workers" \
    "MULTIHOST_PROCESS_ID=$index" "MULTIHOST_NUM_PROCESSES=$total" MULTIHOST_LOCAL_ID=0 \
    "MULTIHOST_COORDINATOR_IP=$coordinator" "MULTIHOST_WORKER_IP=$own"
  if [[ $maxtext == yes ]]; then
    printf '%s\0' "SLICE_ID=$slice" "WORKER_ID=$worker" "NODE_ID=$node" "ZONE=$zone" "PROJECT=$project"
  fi
  if [[ $venv == yes ]]; then
    printf '%s\0' PYTHONHOME "VIRTUAL_ENV=$venv_dir" "PATH=$venv_path"
  fi
}

# attend: watches the command until it has ended. If it cannot look at the command, it
# assumes for $patience seconds that the command runs. If it returns without an end,
# $missing says why.
attend() {
  local sent=0 begun=0 blind=0
  missing='' stopping=''
  while :; do
    look_at "$attempt"
    now
    case $is in
      exited | lost | aborted)
        hold
        return
        ;;
      starting | running) blind=0 ;;
      *)
        if ((blind == 0)); then blind=$REPLY; fi
        if ((REPLY - blind >= patience)); then
          missing="nothing was learned of the command for $patience s: ${why:-its record is gone}"
          return
        fi
        ;;
    esac
    touch -- "$state/seen.$attempt"
    if ((REPLY - sent >= period)); then
      sent=$REPLY
      send_log
      report running "attempt $attempt"
    fi
    if ((begun == 0)); then
      { read -r _ _ begun _ <"$runs/$attempt/started"; } 2>/dev/null
      begun=$((${begun:-0} / 1000000000))
    fi
    now # sending takes time and overwrites REPLY
    if [[ $stopping ]]; then
      if ((REPLY - stop_since >= grace / 1000 + patience)) || overdue; then
        missing="the command survives SIGKILL; it was stopped for: $stopping"
        return
      fi
      if ((REPLY - stop_asked >= 60)); then ask_to_stop; fi
      tell_stop
    elif expired; then
      # Clocks differ, so the others are told to end now too: otherwise their slices might
      # be deleted while their command runs.
      stop_untold=$REPLY
      stop_it "$REPLY"
      tell_stop
    elif ((timeout && begun && REPLY - begun >= timeout)); then
      stop_it "timeout of $timeout s (--timeout)"
    elif asked stop; then
      stop_it "$REPLY"
    elif [[ $fail_fast == yes ]] && asked "failed-$attempt"; then
      stop_it "$REPLY"
    else
      wanted_attempt
      if ((wanted > attempt)); then stop_it "attempt $wanted has begun"; fi
    fi
    sleep "$look"
  done
}

# overdue: succeeds if the time to live is over, and the time to stop the command after it
# too.
overdue() {
  now
  ((ttl && REPLY - born >= ttl + grace / 1000 + 60))
}

stop_it() {
  stopping=$1
  now
  stop_since=$REPLY
  note "stopping the command: $1"
  ask_to_stop
}

ask_to_stop() {
  now
  stop_asked=$REPLY
  op stop "$run" "$attempt" "$grace" "$stopping" </dev/null
}

# send_log: makes the bucket's copy of the log equal to the worker's. At every moment the
# copy is a prefix of the log. A piece is appended by composing, on condition that nobody
# else has appended meanwhile. The shutdown script, which may run beside the startup
# script, uses piece objects of its own.
piece=67108864 part=part
send_log() {
  local file=$runs/$attempt/output.log size have generation tries=0 sent
  log_name
  local name=$REPLY
  size=$(stat -c %s -- "$file" 2>/dev/null) || return
  while ((tries++ < 1000)); do
    object "$name"
    if api GET "$REPLY"; then
      value_of size
      have=$REPLY
      value_of generation
      generation=$REPLY
    elif [[ $status == 404 ]]; then
      have=0 generation=0
    else
      return 1
    fi
    if ((have >= size && generation > 0)); then return 0; fi
    tail -c "+$((have + 1))" -- "$file" | head -c "$((size - have < piece ? size - have : piece))" >"$scratch/piece" || no_room || return
    if ((generation == 0)); then
      store "$name" "$scratch/piece" ifGenerationMatch=0 || [[ $status == 412 ]] || return
      sent=$status
    else
      store "$name.$part" "$scratch/piece" || return
      append "$name" "$generation" || [[ $status == 412 ]] || return
      sent=$status
      object "$name.$part"
      api DELETE "$REPLY"
    fi
    if [[ $sent != 412 ]] && ((size - have <= piece)); then break; fi
  done
  rm -f -- "$scratch/piece"
}

append() { # NAME GENERATION
  printf '{"sourceObjects":[{"name":"%s","generation":"%s"},{"name":"%s"}],"destination":{"contentType":"text/plain"}}' \
    "$prefix$1" "$2" "$prefix$1.$part" >"$scratch/compose" || no_room || return
  object "$1"
  api POST "$REPLY/compose?ifGenerationMatch=$2" -H 'Content-Type: application/json' --data-binary "@$scratch/compose"
}

log_name() {
  REPLY=main_command_log_slice_${slice}_worker_$worker
  if ((attempt > 1)); then REPLY=attempt-$attempt/$REPLY; fi
}

# Names, below ended/N/, of the ends of this attempt that are failures.
failed=()

# The reason with which the command is stopped after another worker has failed. It names
# no worker: which one failed first is known from the clocks when all have ended.
fail_fast_reason='fail-fast: a worker failed'

# finish: stores how the attempt ended on this worker, after its log. The exit code is in
# the object's name, so one list call shows how a run ended.
finish() {
  local exit_file=$runs/$attempt/exit reason lost behind=0
  if [[ ${gave_up-} == "$attempt" ]]; then return; fi
  if [[ $is =~ ^(exited|lost)$ && ! $rebooted && ! $not_again ]]; then sweep; fi
  bring_log
  if [[ -s $exit_file ]]; then entry code "$exit_file"; else REPLY=; fi
  if [[ ! $REPLY =~ ^[0-9]{1,3}$ ]]; then
    give_up 70 "${missing:-the record of the attempt is gone from this worker}"
    is=exited
    return
  fi
  end_code=$((10#$REPLY)) end_told='' failure=''
  cp -- "$exit_file" "$scratch/exit"
  entry lost "$exit_file"
  lost=$REPLY
  entry reason "$exit_file"
  reason=$REPLY
  if [[ $lost == 1 && $end_code == 0 ]]; then end_code=255; fi # nobody saw the end, so it is no success
  if [[ $rebooted ]]; then end_code=255 reason=$rebooted; fi
  if [[ $not_begun ]]; then reason="${reason:+$reason, and }$not_begun"; fi
  # Without the stop, another attempt would have begun after the reboot: so the stop is
  # what ends the run.
  if [[ $not_again ]]; then end_code=143 reason="$not_again; $reason"; fi
  if [[ $rebooted || $not_begun || $not_again ]]; then
    {
      grep -v -e '^code=' -e '^signal=' -e '^lost=' -e '^reason=' -- "$exit_file"
      printf 'code=%s\nsignal=\nlost=1\nreason=%s\n' "$end_code" "${reason//$'\n'/ }"
    } >"$scratch/exit"
  fi
  if ((behind)) && [[ ! $reason && $lost != 1 ]]; then printf 'behind=%s\n' "$behind" >>"$scratch/exit"; fi
  note_skew
  # A worker that was stopped or rebooted has not failed.
  if [[ $not_begun ]]; then
    failure=$fail_fast_reason
  elif ((end_code)) && [[ ! -s $runs/$attempt/stop && $reason != *rebooted* ]]; then
    failure=$fail_fast_reason
    if is_tail; then
      printf 'tail=1\n' >>"$scratch/exit"
      if [[ $fail_fast != yes ]] || await_lead; then failure=''; fi
    fi
  fi
  not_begun='' rebooted=''
  if [[ $cloud_logging == yes ]]; then agent_end "$reason"; fi
  patiently tell_end
  report_end "$reason"
}

# bring_log: sends the rest of the log to the bucket. While the bucket refuses it,
# bring_log retries for $log_timeout seconds, because deleting the slices deletes the only
# copy. If the machine ended the command, or others have begun the next attempt, it waits
# only $patience seconds, so as not to delay that attempt.
bring_log() {
  local patience=$patience cause
  unsent='' unsent_told=''
  if send_log; then return; fi
  cause=$why
  if [[ ! $rebooted && ! $not_again ]] && ! { wanted_attempt && ((wanted > attempt)); }; then
    patience=$log_timeout
    report logs "the command has ended; waiting up to $log_timeout s (--log-timeout) for the bucket to take its log: $cause"
  fi
  patiently send_log || unsent=$why
  if [[ $unsent ]]; then note "the log could not be sent: $unsent"; fi
}

# bring_unsent: tries again to send the log that bring_log could not send.
bring_unsent() {
  local why
  if [[ ! $unsent ]] || ! send_log; then return; fi
  unsent=''
  if [[ $unsent_told ]]; then
    object "control/unsent-$attempt-$me"
    api DELETE "$REPLY" || : # the object delays the deletion by no more than $stale seconds
  fi
}

# sweep: ends the processes that the command has left in the background, and sets behind
# to their number.
sweep() {
  op stop "$run" "$attempt" "$grace" 'left behind by the command' </dev/null
  if answer counts; then behind=${REPLY%% *}; fi
  if ((behind)); then note "ended $behind processes that the command had left in the background"; fi
}

# note_skew: notes in $scratch/exit how many seconds the clock of this worker is ahead of
# that of Cloud Storage, if that is more than the time of the request leaves uncertain. It
# is needed to compare the ends of two workers.
note_skew() {
  local before date
  rm -f -- "$scratch/headers"
  now
  before=$REPLY
  object control/attempt
  api GET "$REPLY?alt=media" -D "$scratch/headers" || [[ $status == 404 ]] || return
  header date 2>/dev/null
  date=$(date -d "${REPLY:-none}" +%s 2>/dev/null) || return
  now
  if ((before - date > 2)); then
    printf 'skew=%s\n' "$((before - date))" >>"$scratch/exit"
  elif ((date - REPLY > 2)); then
    printf 'skew=%s\n' "$((REPLY - date))" >>"$scratch/exit"
  fi
}

# is_tail: succeeds if the end looks like a training's tail: a death by SIGABRT, of the
# command or of a program that its shell ran, or the distributed runtime's own words at
# the end of the output. An end that is not known, or that was caused by us or by the
# kernel for want of memory, is none.
is_tail() {
  local key
  if [[ ! $tail_words || $me == s0w0 ]]; then return 1; fi
  for key in lost oom reason; do
    entry "$key" "$scratch/exit"
    if [[ $REPLY && $REPLY != 0 ]]; then return 1; fi
  done
  entry signal "$scratch/exit"
  [[ $REPLY == ABRT || $end_code == 134 ]] || tail -n 20 -- "$runs/$attempt/output.log" 2>/dev/null | grep -a -q -E -e "$tail_words"
}

# await_lead: waits up to a minute for the end of worker 0, because the ends of two
# workers come in any order. Succeeds if worker 0's end excuses the end here.
await_lead() {
  local end
  now
  end=$((REPLY + 60))
  while :; do
    if api GET "$storage/b/$bucket/o?prefix=${prefix//\//%2F}ended%2F$attempt%2Fs0w0." && [[ $reply =~ \"name\":\ *\"[^\"]*/s0w0\.([0-9]+)\" ]]; then
      if [[ ${BASH_REMATCH[1]} != 0 ]]; then return 1; fi
      if fetch "ended/$attempt/s0w0.0" "$scratch/lead"; then
        excused "$scratch/exit"
        return
      fi
    elif asked "failed-$attempt" || asked stop; then
      return 1
    fi
    now
    if ((REPLY >= end)); then return 1; fi
    sleep "$((look < 5 ? look : 5))"
  done
}

# excused FILE: succeeds if the end in FILE is the tail of a training that worker 0 (whose
# end is in $scratch/lead) has ended with success: it came within a minute after that.
excused() {
  local end after slack=0
  entry tail "$1"
  if [[ $REPLY != 1 ]]; then return 1; fi
  end_of "$1" || return
  end=$REPLY
  end_of "$scratch/lead" || return
  after=$((end - REPLY))
  ((after >= -slack * 1000000000 && after < 60000000000))
}

# end_of FILE: sets REPLY to the time of that end in nanoseconds, corrected to the clock
# of Cloud Storage if the worker's differs. The correction is exact only to seconds;
# $slack allows for that.
end_of() {
  local at
  entry lost "$1"
  if [[ $REPLY == 1 ]]; then return 1; fi
  entry end "$1"
  at=$REPLY
  entry skew "$1"
  [[ $at =~ ^[0-9]{1,19}$ && $REPLY =~ ^(-?[0-9]{1,10})?$ ]] || return
  if ((${REPLY:-0})); then slack=2; fi
  REPLY=$((at - ${REPLY:-0} * 1000000000))
}

report_end() { report ended "attempt $attempt, exit code $end_code${1:+ ($1)}"; }

# tell_end: stores what the bucket does not yet have of how the attempt ended here. The
# end itself comes last: after a reboot, an end that was stored counts as complete.
tell_end() {
  tell_stop || return
  if [[ $failure ]]; then
    store_text "control/failed-$attempt" "$failure" ifGenerationMatch=0 || [[ $status == 412 ]] || return
    failure=''
  fi
  if [[ $unsent && ! $unsent_told ]]; then
    store_text "control/unsent-$attempt-$me" "$unsent" || return
    unsent_told=yes
  fi
  if [[ ! $end_told ]]; then
    store "ended/$attempt/$me.$end_code" "$scratch/exit" || return
    end_told=yes
    # An empty file fits on a full disk.
    cp -- "$scratch/exit" "$state/told.$attempt" 2>/dev/null || : >"$state/told.$attempt"
  fi
}

# tell_stop: tells the other workers of a stop that began here.
tell_stop() {
  if [[ ! $stop_untold ]]; then return 0; fi
  store_text control/stop "$stop_untold" ifGenerationMatch=0 || [[ $status == 412 ]] || return
  stop_untold=''
}

# give_up CODE WHY: stores that the attempt ended before its command could run or be
# followed to its end.
give_up() {
  hold
  gave_up=$attempt
  now
  printf 'code=%s\nsignal=\nend=%s000000000\nsize=0\noom=0\nlost=0\ndropped=0\nreason=%s\n' "$1" "$REPLY" "${2//$'\n'/ }" >"$scratch/exit"
  note_skew
  end_code=$1 end_told='' failure=''
  if (($1 != 143)); then failure=$fail_fast_reason; fi # a worker that is stopped has not failed
  if [[ $cloud_logging == yes ]]; then agent_end "$2"; fi
  tell_end
  report failed "$2"
}

# rest: is called after the command has ended. It waits for the other workers, and deletes
# the queued resource when there is nothing more to wait for. Succeeds if another attempt
# is wanted, in $next.
rest() {
  local since limit
  now
  since=$REPLY
  while :; do
    bring_unsent
    if [[ ! $end_told || $failure || $stop_untold ]]; then tell_end; fi
    wanted_attempt
    if another_wanted; then return 0; fi
    if overdue; then
      take_turn
      teardown "the time to live of $ttl s (--ttl) is over"
      return 1
    fi
    if all_ended && wanted_attempt && find_unsent; then
      now
      since=$REPLY
      # A rebooted worker announces the next attempt before it stores the end of this one.
      if another_wanted; then return 0; fi
      if kept; then
        if [[ $phase != kept ]]; then report kept "$why"; fi
        # Only the time to live can end it now.
        if ((ttl == 0)) && [[ ! $unsent ]] && [[ $keep == always || $keep_for == 0 && $judged == "$attempt" ]]; then return 1; fi
      else
        take_turn
        if wanted_attempt; then
          if another_wanted; then return 0; fi
          teardown 'every worker has ended'
          return 1
        fi
      fi
    else
      now
      limit=$stale
      if [[ $keep == on-failure ]]; then limit=$((stale + keep_for)); fi
      if [[ $status == 2?? ]]; then
        since=$REPLY
      elif ((REPLY - since >= limit)) && [[ $keep == never || $keep == on-failure && $keep_for != 0 ]]; then
        take_turn
        teardown "the bucket could not be read for $((REPLY - since)) s: $why"
        return 1
      fi
    fi
    now
    if ((REPLY - reported >= period)); then report "$phase" "$detail"; fi
    sleep "$look"
  done
}

# another_wanted: succeeds if the others have begun a newer attempt, and sets $next to it.
# This holds even if the run is to stop; begin then gives that attempt up. So the slices
# are not deleted before the workers that run it have ended it.
another_wanted() {
  next=$wanted
  ((wanted > attempt)) && [[ $is == exited || $is == lost ]]
}

# kept: succeeds if the queued resource is to stay though every worker has ended; $why
# says why.
kept() {
  why=--keep
  if [[ $keep == always ]]; then return 0; fi
  why=$part_logs
  if [[ $why ]]; then return 0; fi
  why='the run failed (--keep-on-failure)'
  if [[ $keep != on-failure ]] || ((failures == 0)) || all_excused; then return 1; fi
  now
  if [[ ${kept_of-} != "$attempt" ]]; then
    kept_of=$attempt kept_since=$REPLY
    if [[ -s $state/kept.$attempt ]]; then
      read -r kept_since <"$state/kept.$attempt"
    else
      printf '%s\n' "$REPLY" >"$state/kept.$attempt" 2>/dev/null # to survive a reboot
    fi
  fi
  ((keep_for == 0 || REPLY - kept_since < keep_for))
}

# find_unsent: sets part_logs to a text that names a worker whose log is not whole in the
# bucket, if one has reported that within the last $stale seconds; otherwise to nothing.
find_unsent() {
  local name
  part_logs=''
  api GET "$storage/b/$bucket/o?prefix=${prefix//\//%2F}control%2Funsent-$attempt-" -D "$scratch/headers" || return
  if [[ ! $reply =~ \"name\":\ *\"[^\"]*/control/unsent-[0-9]+-(s[0-9]+w[0-9]+)\" ]]; then return 0; fi
  name=${BASH_REMATCH[1]}
  reply=$(printf '%s\n' "$reply" | grep -o '"updated": *"[^"]*"' | sort | tail -n 1) # the newest
  age
  if ((REPLY < stale)); then part_logs="the log of $name is not whole in the bucket"; fi
}

# all_excused: succeeds if every failure in this attempt is a training's tail. It decides
# once for an attempt; $judged is the attempt that $verdict is about.
judged='' verdict=''
all_excused() {
  local name
  if [[ $judged == "$attempt" ]]; then
    [[ $verdict == excused ]]
    return
  fi
  verdict=excused
  if ((${#failed[@]} != failures)); then
    verdict=failed # one of them has not reported its end
  elif ! fetch "ended/$attempt/s0w0.0" "$scratch/lead"; then
    [[ $status == 404 ]] || return
    verdict=failed
  else
    for name in "${failed[@]}"; do
      fetch "ended/$attempt/$name" "$scratch/end" || return
      if ! excused "$scratch/end"; then
        verdict=failed
        break
      fi
    done
  fi
  judged=$attempt
  [[ $verdict == excused ]]
}

# take_turn: waits for a time that depends on the worker. Every worker deletes, but then
# usually a single request suffices.
take_turn() { sleep "$((index < 30 ? index : 30))"; }

# all_ended: succeeds if every worker has ended the attempt or is dead, which means that
# it has reported nothing for $stale seconds. It sets failures to the number of workers
# that did not end well, and failed to those of them that have reported their end.
all_ended() {
  local token='' text name ended=0 s w
  local -A seen=()
  failures=0 failed=()
  while :; do
    api GET "$storage/b/$bucket/o?prefix=${prefix//\//%2F}ended%2F$attempt%2F${token:+&pageToken=${token//+/%2B}}" || return
    text=$reply
    while IFS= read -r name; do
      if [[ $name =~ /ended/$attempt/(s[0-9]+w[0-9]+)\.([0-9]+)$ ]]; then
        seen[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
        if ((BASH_REMATCH[2])); then failures=$((failures + 1)) failed+=("${name##*/}"); fi
      fi
    done < <(printf '%s\n' "$text" | grep -o '"name": *"[^"]*"' | sed 's/.*"\([^"]*\)"$/\1/')
    value_of nextPageToken
    token=$REPLY
    if [[ ! $token ]]; then break; fi
  done
  ended=${#seen[@]}
  if ((ended >= total)); then return 0; fi
  for ((s = 0; s < slices; s++)); do
    for ((w = 0; w < workers; w++)); do
      if [[ ${seen[s${s}w$w]-} ]]; then continue; fi
      if ! age_of "workers/s${s}w$w"; then
        [[ $status == 404 ]] || return
        now # it has never reported
        REPLY=$((REPLY - first_boot))
      fi
      if ((REPLY < stale)); then
        status=200
        return 1
      fi
    done
  done
  failures=$((failures + 1))
  return 0
}

# age_of NAME: sets REPLY to how many seconds ago the object was written. It uses only the
# service's clock, because the clocks of two workers may differ.
age_of() {
  object "$1"
  api GET "$REPLY" -D "$scratch/headers" || return
  age
}

# age: sets REPLY to the age, in seconds, of the object in the last answer.
age() {
  local updated date
  value_of updated
  updated=$(date -d "${REPLY:-none}" +%s 2>/dev/null)
  header date
  date=$(date -d "${REPLY:-none}" +%s 2>/dev/null)
  REPLY=0
  if [[ $updated && $date ]]; then REPLY=$((date - updated)); fi
}

# teardown WHY: deletes the queued resource that this worker belongs to. It repeats the
# request until the worker itself is gone. It returns if the queued resource is another
# run's.
teardown() {
  local tries
  report deleting "$1"
  for ((tries = 0; ; tries++)); do
    if ! delete_resource "$label"; then
      report left "queued resource $resource: $why"
      return
    fi
    if [[ $status == 403 ]]; then right="no: $why"; fi
    report deleting "$1${why:+; $why}"
    # Somebody may grant the right, or the service may recover, days later.
    sleep "$((tries < 60 ? look * 3 : 600))"
  done
}

# agent_log: links the log of the attempt under a name that contains the worker.
agent_log() {
  local dir=$root/var/log/multihost/$run
  log_name
  mkdir -p -- "$dir" && ln -sfn -- "$runs/$attempt/output.log" "$dir/${REPLY//\//_}"
}

# agent_end REASON: writes how the attempt ended to a file beside the logs, because the
# logs have only the command's output.
agent_end() {
  local dir=$root/var/log/multihost/$run
  mkdir -p -- "$dir" &&
    printf 'multihost: attempt %s ended on slice %s worker %s at %s with exit status %s%s\n' \
      "$attempt" "$slice" "$worker" "$(date -u +%FT%TZ)" "$end_code" "${1:+: ${1//$'\n'/ }}" >>"$dir/ends_slice_${slice}_worker_$worker"
}

# ops_agent: makes Google's Ops Agent send the command's log to Cloud Logging. It replaces
# the whole configuration: a section that occurs twice makes it invalid.
ops_agent() {
  local config=$root/etc/google-cloud-ops-agent/config.yaml tries=0 file
  if ! systemctl cat google-cloud-ops-agent >/dev/null 2>&1; then
    while fuser /var/lib/dpkg/lock-frontend >/dev/null 2>&1 && ((tries++ < 60)); do sleep 10; done
    file=$state/ops-agent.sh
    if ! curl -sS -f --max-time 60 --retry 3 -o "$file" https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh ||
      ! timeout 900 bash "$file" --also-install >"$state/ops-agent.log" 2>&1; then
      note "the Ops Agent could not be installed: Cloud Logging gets nothing; see $state/ops-agent.log"
      return
    fi
  fi
  mkdir -p -- "${config%/*}"
  cat >"$config.new" <<YAML
# Written by multihost for run $run.
logging:
  receivers:
    ${run}_log:
      type: files
      include_paths: [$root/var/log/multihost/$run/*]
      record_log_file_path: true
  service:
    pipelines:
      ${run}_pipeline:
        receivers: [${run}_log]
YAML
  if ! cmp -s -- "$config.new" "$config"; then
    mv -f -- "$config.new" "$config"
    systemctl restart google-cloud-ops-agent || note 'the Ops Agent could not be restarted'
  fi
  rm -f -- "$config.new"
}

main "$@"
