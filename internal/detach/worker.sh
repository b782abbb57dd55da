#!/bin/bash
# The startup script of a job's workers. Root runs it at every boot.
#
# With mode=detached nobody else is needed: it fetches what the job is from the
# bucket, prepares the worker, hands the command to the same supervisor that a
# runner would use, brings its log and its end into the bucket, and deletes the
# queued resource once every worker has ended. With mode=attached a runner does
# the work, and this script only watches: when the runner has not renewed its
# lease and the command has ended, or the time to live is over, it deletes the
# queued resource.
#
# What the job is comes from the instance attribute multihost-job, or from the
# file named by the first argument: lines KEY=VALUE. It may be run again at any
# time: a lock lets one of them live, and what was done is not done twice.
#
# No loop here waits for something without a limit but for the end of the
# command; no secret is in an argument, a file that stays, or the output.
set -u
export LC_ALL=C
umask 022
metadata=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1
root=${MULTIHOST_ROOT_TMP-}
nonce=mhjob$$

# What read_job sets when the job says so.
mode=detached run='' project='' zone='' resource='' label=''
bucket='' prefix='' kit_sum='' code_sum='' slices=1 workers=1 nodes='' login=''
storage='' upload='' tpu='' secretmanager=''
period=60 look=20 patience=600 stale=1800 ttl=0 lease=1800 keep=never keep_for=0
preflight=apply numa=off venv=no fail_fast=yes grace=30000 timeout=0 cloud_logging=no secrets=''

main() {
  read_job "${1-}" || {
    note "no job is known to this worker: $why"
    exit 1
  }
  state=${HOME:-/root}/.multihost-job/$run
  (umask 077 && mkdir -p -- "$state") || exit 1
  exec 8>"$state/lock"
  flock -n 8 || exit 0 # another one lives
  date +%s >>"$state/boots"
  read -r first_boot <"$state/boots"
  rm -rf -- "$state/secrets" "$state/attempt"
  identify
  note "worker $me of job $run, mode $mode"
  test_right
  if [[ $mode == attached ]]; then
    await_login 1
    guard
  else
    detached
  fi
}

# note is for the serial console and the journal, where startup scripts print.
note() { printf 'multihost: %s\n' "$*"; }

now() { printf -v REPLY '%(%s)T' -1; }

read_job() {
  local text key value
  if [[ ${1-} ]]; then
    text=$(<"$1") || { why="cannot read $1"; return 1; }
  else
    text=$(instance attributes/multihost-job) || { why="the metadata server does not tell: $text"; return 1; }
  fi
  while IFS='=' read -r key value; do
    case $key in
      mode | run | project | zone | resource | label | bucket | prefix | kit_sum | code_sum | slices | workers | nodes | login | \
        storage | upload | tpu | secretmanager | period | look | patience | stale | ttl | lease | keep | keep_for | \
        preflight | numa | venv | fail_fast | grace | timeout | cloud_logging | secrets)
        printf -v "$key" '%s' "$value" ;;
    esac
  done <<<"$text"
  why="it has no run"
  [[ $run =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]
}

# instance PATH: a value of the metadata server.
instance() {
  curl -sS -f --max-time 10 --retry 6 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/instance/$1" 2>&1
}

# identify: which worker of the job this is.
identify() {
  local env line id
  env=$(instance attributes/tpu-env) || env=
  slice=0 worker=0 node=
  while IFS= read -r line; do
    case $line in
      WORKER_ID:*) worker=${line//[^0-9]/} ;;
      NODE_ID:*) node=${line#*: } node=${node//\'/} ;;
      MEGASCALE_SLICE_ID:*) slice=${line//[^0-9]/} ;;
      MEGASCALE_COORDINATOR_ADDRESS:*) coordinator=${line#*: } coordinator=${coordinator//\'/} coordinator=${coordinator%:*} ;;
    esac
  done <<<"$env"
  line=0
  for id in $nodes; do
    if [[ $id == "$node" ]]; then slice=$line; fi
    line=$((line + 1))
  done
  me=s${slice}w$worker
  index=$((slice * workers + worker)) total=$((slices * workers))
}

# A failed call of an API leaves its status in $status, 000 when there was no
# answer, and words for people in $why.

# api METHOD URL CURL-ARGS…: the answer goes to $state/reply. The token goes to
# curl on stdin, for arguments can be read by everybody.
api() {
  local method=$1 url=$2 token
  shift 2
  : >"$state/reply"
  token=$(curl -sS -f --max-time 10 --retry 3 -H 'Metadata-Flavor: Google' "$metadata/instance/service-accounts/default/token" 2>&1)
  if [[ ! $token =~ \"access_token\":\ *\"([^\"]+)\" ]]; then
    status=000 why="no access token: ${token:0:200}"
    return 1
  fi
  token=${BASH_REMATCH[1]}
  status=$(printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl -sS -K - -X "$method" -o "$state/reply" -w '%{http_code}' --connect-timeout 10 --max-time 600 "$@" "$url" 2>"$state/error") ||
    status=000
  if [[ $status == 2?? ]]; then return 0; fi
  why="HTTP status $status: $(tr -s '\n\r' '  ' <"$state/reply" | head -c 300)"
  if [[ $status == 000 ]]; then why="no answer: $(head -c 200 "$state/error")"; fi
  return 1
}

# patiently COMMAND…: again and again, until it succeeds or $patience seconds
# have passed. A right that was given a minute ago is not known everywhere yet,
# so a refusal is tried again like an outage.
patiently() {
  local end pause=1
  now
  end=$((REPLY + patience))
  until "$@"; do
    now
    if ((REPLY + pause > end)); then
      why="tried for $patience s; $why"
      return 1
    fi
    sleep "$pause"
    pause=$((pause < 16 ? pause * 2 : 30))
  done
}

value_of() { # KEY: of the JSON in $state/reply
  local text
  text=$(<"$state/reply")
  REPLY=
  [[ $text =~ \"$1\":\ *\"?([^\",}]*) ]] && REPLY=${BASH_REMATCH[1]}
}

object() { # NAME: its address
  REPLY=$prefix$1
  REPLY=$storage/b/$bucket/o/${REPLY//\//%2F}
}

fetch() { # NAME FILE
  object "$1"
  api GET "$REPLY?alt=media" && mv -f -- "$state/reply" "$2"
}

# store NAME FILE [PRECONDITION]: the file becomes the object.
store() {
  REPLY=$prefix$1
  api POST "$upload/b/$bucket/o?uploadType=media&name=${REPLY//\//%2F}${3+&$3}" -T "$2" -H 'Content-Type: text/plain' -H 'Expect:'
}

store_text() { # NAME TEXT [PRECONDITION]
  printf '%s\n' "$2" >"$state/text"
  store "$1" "$state/text" "${@:3}"
}

# report PHASE TEXT: where this worker is, for whoever looks: into the bucket,
# and as a guest attribute, which can be read when the bucket cannot.
report() {
  phase=$1 detail=$2
  now
  reported=$REPLY
  printf -v text 'phase=%s\nworker=%s\nattempt=%s\nat=%s\nmay_delete=%s\nlogin=%s\ndetail=%s' \
    "$phase" "$me" "${attempt:-0}" "$REPLY" "$may_delete" "$login" "${detail//$'\n'/ }"
  if [[ $phase != "${told-}" ]]; then
    told=$phase
    note "$phase${detail:+: $detail}"
    curl -sS -f -o /dev/null --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary "run=$run"$'\n'"$text" \
      "$metadata/instance/guest-attributes/multihost/state" 2>/dev/null
  fi
  [[ $mode == attached ]] || store_text "workers/$me" "$text"
}

# test_right finds out whether this worker may delete the queued resource, by
# asking to delete one that does not exist: who may is told that it is not
# there, who may not is refused.
test_right() {
  local probe
  probe=multihost-probe-$(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \n')
  api DELETE "$(resource_url "$probe")"
  case $status in
    2?? | 404) may_delete=yes ;;
    401 | 403) may_delete="no: ${why//$'\n'/ }" ;;
    *) may_delete="unknown: ${why//$'\n'/ }" ;;
  esac
  if [[ $may_delete != yes ]]; then note "may this worker delete the queued resource? $may_delete"; fi
}

resource_url() { printf '%s/projects/%s/locations/%s/queuedResources/%s' "$tpu" "$project" "$zone" "$1"; }

# await_login SECONDS: the guest agent makes the login of ssh-keys some time
# after the boot. Without it root has to do.
# Whoever it was at the first boot stays it: the run is in that home.
await_login() {
  local end keys
  if [[ -s $state/login ]]; then
    login=$(<"$state/login")
  elif [[ ! $login ]]; then
    keys=$(instance attributes/ssh-keys) && login=${keys%%:*}
  fi
  login=${login:-root} login_missing=''
  now
  end=$((REPLY + $1))
  while [[ $login != root ]] && ! id -u "$login" >/dev/null 2>&1; do
    now
    if ((REPLY >= end)); then
      login_missing=$login login=root
      break
    fi
    sleep 1
  done
  home=$(as_login bash --norc -c "printf %s \"\$HOME\"")
  runs=$home/.multihost/runs/$run
}

# as_login COMMAND…: as ssh would run it: not with what sudo says of itself.
as_login() {
  if [[ $login == root ]]; then
    HOME=${HOME:-/root} "$@" 8<&-
  else
    sudo -n -H -u "$login" -- env -u SUDO_COMMAND -u SUDO_USER -u SUDO_UID -u SUDO_GID "$@" 8<&-
  fi
}

# op SCRIPT ARG…: one operation of the supervisor's scripts, as the login; its
# answer is in $state/answer. What comes on stdin follows the script.
op() {
  local name=$1 size
  shift
  size=$(stat -c %s -- "$state/kit/$name")
  cat -- "$state/kit/$name" - |
    as_login bash --norc --noprofile -p -c "$(<"$state/kit/bootstrap")" "multihost-$name" "$size" "$nonce" "$@" >"$state/answer" 2>"$state/error"
}

answer() { # WORD: the rest of the last line that begins with it
  local line found=1
  REPLY=
  while IFS= read -r line; do
    if [[ $line == "$nonce $1" || $line == "$nonce $1 "* ]]; then
      REPLY=${line#"$nonce $1"} REPLY=${REPLY# } found=0
    fi
  done <"$state/answer"
  return "$found"
}

# look_at ATTEMPT: what became of it, in $is: unknown, starting, running, exited,
# lost or aborted. An end that nobody saw is recorded by looking.
look_at() {
  op status "$run" "$1" </dev/null
  is=unknown
  if answer phase; then is=$REPLY; fi
}

detached() {
  attempt=1
  report boot ''
  if ! prepare_kit; then
    give_up 77 "the job cannot be fetched: $why"
    is=exited
    rest
    return
  fi
  await_login 120
  printf '%s\n' "$login" >"$state/login"
  if [[ $cloud_logging == yes ]]; then
    (exec 8<&-; ops_agent) &
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

prepare_kit() {
  patiently fetch kit.tar.gz "$state/kit.tar.gz" || return
  why="kit.tar.gz is not what the job was started with"
  [[ $(sha256sum <"$state/kit.tar.gz") == "$kit_sum"* ]] || return
  why="kit.tar.gz cannot be unpacked"
  rm -rf -- "$state/kit" && mkdir -- "$state/kit" && tar -xzf "$state/kit.tar.gz" -C "$state/kit"
}

# find_attempt: the newest attempt on this worker, and what became of it. One
# that a reboot ended is told to the others, and the next one begins.
find_attempt() {
  local path newest=0
  for path in "$runs"/*/; do
    path=${path%/}
    path=${path##*/}
    if [[ $path =~ ^[0-9]+$ ]] && ((path > newest)); then newest=$path; fi
  done
  is=unknown
  wanted_attempt
  if ((newest == 0)); then
    attempt=$((wanted > 1 ? wanted : 1))
    return
  fi
  attempt=$newest
  look_at "$attempt"
  case $is in
    lost)
      finish
      if fetch control/stop "$state/stop"; then return; fi
      attempt=$((newest + 1 > wanted ? newest + 1 : wanted)) is=unknown
      if quick_deaths; then
        give_up 75 "the worker was rebooted three times within a minute of the start of the command"
        is=exited
        return
      fi
      announce
      ;;
    aborted) is=unknown ;;
  esac
}

# quick_deaths: the last three attempts ended with a reboot within a minute.
quick_deaths() {
  local i started seen
  for ((i = attempt - 1; i > attempt - 4; i--)); do
    if ((i < 1)); then return 1; fi
    read -r _ _ started _ <"$runs/$i/started" || return 1
    seen=$(stat -c %Y -- "$state/seen.$i" 2>/dev/null) || seen=0
    if ((seen - started / 1000000000 > 60)); then return 1; fi
  done 2>/dev/null
}

# wanted_attempt: the attempt that the workers have agreed on; the highest that
# anybody began.
wanted_attempt() {
  wanted=0 wanted_generation=0
  object control/attempt
  if api GET "$REPLY?alt=media" -D "$state/headers"; then
    wanted=$(head -c 20 "$state/reply")
    wanted=${wanted//[^0-9]/}
    wanted_generation=$(tr -d '\r' <"$state/headers" | sed -n 's/^[Xx]-[Gg]oog-[Gg]eneration: //p')
  fi
  wanted=${wanted:-0} wanted_generation=${wanted_generation:-0}
}

# announce tells the other workers that a new attempt has begun.
announce() {
  local tries
  for ((tries = 0; tries < 5; tries++)); do
    wanted_attempt
    if ((wanted >= attempt)); then
      attempt=$wanted
      return
    fi
    store_text control/attempt "$attempt" "ifGenerationMatch=$wanted_generation" && return
  done
}

# begin does what a runner does before a command runs, and starts it.
begin() {
  local text
  if fetch control/stop "$state/stop"; then
    give_up 143 "$(<"$state/stop")"
    is=exited
    return
  fi
  report preflight ''
  if ! prepare; then
    give_up "$code" "$why"
    is=exited
    return
  fi
  report start "attempt $attempt"
  if [[ $cloud_logging == yes ]]; then agent_log; fi
  arm
  if answer started; then
    is=running
    touch -- "$state/seen.$attempt"
    report running "attempt $attempt${login_missing:+; login $login_missing was not there after two minutes, the command runs as root}"
    return
  fi
  text=$(grep -v '^mhjob' "$state/error" | tail -n 1)
  if answer failed || answer error; then text=$REPLY; fi
  if answer busy; then text="another run lives on this worker"; fi
  if answer already; then
    look_at "$attempt"
    return
  fi
  give_up 70 "the command could not be started: ${text:-no answer}"
  is=exited
}

# prepare sets $code and $why when it fails.
prepare() {
  local line name want outcome reason
  code=76 numa_nodes=0 numactl=no
  if [[ $preflight != off ]]; then
    timeout 600 bash "$state/kit/preflight" >"$state/preflight" 2>&1 8<&-
    while IFS=$'\t' read -r line name want _ _ outcome _ reason; do
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
    done < <(sed -n 's/^multihost-preflight 1\t\(result\|info\)\t/\1\t/p' "$state/preflight")
    if [[ $preflight != check ]] && ! grep -q "^multihost-preflight 1.end" "$state/preflight"; then
      why="preflight did not end: $(tail -n 1 "$state/preflight")"
      return 1
    fi
  fi
  code=74
  unpack_code || return
  code=76
  if [[ $venv == yes ]]; then make_venv || return; fi
  op free orphans "$grace" </dev/null
  code=77
  fetch_secrets
}

# unpack_code fills the run's directory once: what a command wrote over it must
# be there after a reboot.
unpack_code() {
  local mark=$state/unpacked
  [[ $code_sum == none || -e $mark && $(<"$mark") == "$code_sum" ]] && return
  patiently fetch "script_dir_zip_$run.tar.gz" "$state/code.tar.gz" || return
  why="script_dir_zip_$run.tar.gz is not what the job was started with"
  [[ $(sha256sum <"$state/code.tar.gz") == "$code_sum"* ]] || return
  # shellcheck disable=SC2016 # for that shell
  why=$(as_login bash --norc -c 'mkdir -p -- "$HOME/$1" && cd -- "$HOME/$1" && tar -xzpf -' unpack "$run" <"$state/code.tar.gz" 2>&1) || {
    why="unpack the code: $why"
    return 1
  }
  rm -f -- "$state/code.tar.gz"
  printf '%s\n' "$code_sum" >"$mark"
}

# make_venv: images of TPU VMs have venv or virtualenv, some neither.
make_venv() {
  local dir=$home/.multihost/venv/$run module
  if [[ -x $dir/bin/python ]]; then return; fi
  for module in venv virtualenv; do
    why=$(as_login timeout 600 python3 -m "$module" "$dir" 2>&1) && return
    why=${why##*$'\n'}
  done
  why="make a virtual environment (--venv): $why"
  return 1
}

# fetch_secrets has NAME=VALUE of every secret in $state/secrets, each ended by
# a NUL, for as long as it takes to start the command.
fetch_secrets() {
  local item name ref
  (umask 077; : >"$state/secrets")
  for item in $secrets; do
    name=${item%%=*} ref=${item#*=sm://}
    if ! patiently api GET "$secretmanager/projects/${ref%%/*}/secrets/$(secret_path "${ref#*/}"):access"; then
      rm -f -- "$state/secrets"
      why="read secret $ref: $why"
      : >"$state/reply"
      return 1
    fi
    value_of data
    : >"$state/reply"
    {
      printf '%s=' "$name"
      printf %s "$REPLY" | base64 -d
      printf '\0'
    } >>"$state/secrets"
  done
}

secret_path() { # SECRET[/VERSION]
  if [[ $1 == */* ]]; then printf '%s/versions/%s' "${1%%/*}" "${1#*/}"; else printf '%s/versions/latest' "$1"; fi
}

# arm hands the command to a supervisor of the login, as launch.Arm does over
# SSH: the files of the attempt follow the script on stdin, then the word go.
arm() {
  local kit=$state/kit dir=$state/attempt file
  local -a sizes=() words wrap
  rm -rf -- "$dir" && mkdir -m 700 -- "$dir" || return
  mapfile -d '' -t words <"$kit/argv"
  wrap_words
  printf '%s\0' "${words[@]:0:2}" "${wrap[@]}" "${words[@]:2}" >"$dir/argv"
  {
    variables
    cat -- "$kit/env" "$state/secrets"
  } >"$dir/env"
  rm -f -- "$state/secrets"
  for file in supervise start meta script limit; do cp -- "$kit/$file" "$dir/$file"; done
  for file in supervise start meta argv env script limit; do sizes+=("$(stat -c %s -- "$dir/$file")"); done
  {
    for file in supervise start meta argv env script limit; do cat -- "$dir/$file"; done
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

# variables: what the command of this worker finds besides the user's own.
# MEGASCALE variables would override the metadata of a job of several slices,
# and one slice must have none.
variables() {
  local endpoints first own
  endpoints=$(instance attributes/worker-network-endpoints) || endpoints=
  first=${endpoints%%,*}
  own=$(instance network-interfaces/0/ip) || own=
  coordinator=${coordinator:-${first##*:}}
  printf '%s\0' MEGASCALE_COORDINATOR_ADDRESS MEGASCALE_NUM_SLICES MEGASCALE_SLICE_ID MEGASCALE_PORT \
    "MULTIHOST_SLICE_ID=$slice" "MULTIHOST_NUM_SLICES=$slices" "MULTIHOST_WORKER_ID=$worker" "MULTIHOST_NUM_WORKERS=$workers" \
    "MULTIHOST_PROCESS_ID=$index" "MULTIHOST_NUM_PROCESSES=$total" MULTIHOST_LOCAL_ID=0 \
    "MULTIHOST_COORDINATOR_IP=$coordinator" "MULTIHOST_WORKER_IP=$own"
  if [[ $venv == yes ]]; then
    printf '%s\0' PYTHONHOME "VIRTUAL_ENV=$home/.multihost/venv/$run" "PATH=$home/.multihost/venv/$run/bin:$(as_login bash --norc -c "printf %s \"\$PATH\"")"
  fi
}

# attend stays with the command until it has ended.
attend() {
  local sent=0 begun=0
  { read -r _ _ begun _ <"$runs/$attempt/started"; } 2>/dev/null
  begun=$((begun / 1000000000))
  while :; do
    look_at "$attempt"
    if [[ $is != starting && $is != running ]]; then return; fi
    touch -- "$state/seen.$attempt"
    now
    if ((REPLY - sent >= period)); then
      sent=$REPLY
      send_log
      report running "attempt $attempt"
    fi
    if [[ ! ${stopping-} ]]; then
      now # what was sent has taken its time, and REPLY
      if ((ttl && REPLY - first_boot >= ttl)); then
        stop_it "the time to live of $ttl s (--ttl) is over"
      elif ((timeout && REPLY - begun >= timeout)); then
        stop_it "timeout of $timeout s (--timeout)"
      elif fetch control/stop "$state/stop"; then
        stop_it "$(<"$state/stop")"
      elif [[ $fail_fast == yes ]] && fetch "control/failed-$attempt" "$state/stop"; then
        stop_it "$(<"$state/stop")"
      else
        wanted_attempt
        if ((wanted > attempt)); then stop_it "attempt $wanted has begun"; fi
      fi
      if [[ ${stopping-} ]]; then continue; fi
    fi
    sleep "$look"
  done
}

stop_it() {
  stopping=$1
  note "stopping the command: $1"
  op stop "$run" "$attempt" "$grace" "$1" </dev/null
}

# send_log makes the bucket's copy of the log equal to the worker's. The copy is
# at every moment a prefix of it: a piece is appended by composing, on condition
# that nobody else has done so.
piece=67108864
send_log() {
  local file=$runs/$attempt/output.log size have generation tries=0
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
    tail -c "+$((have + 1))" -- "$file" | head -c "$((size - have < piece ? size - have : piece))" >"$state/piece"
    if ((generation == 0)); then
      store "$name" "$state/piece" ifGenerationMatch=0 || [[ $status == 412 ]] || return
    else
      store "$name.part" "$state/piece" || return
      append "$name" "$generation" || [[ $status == 412 ]] || return
      object "$name.part"
      api DELETE "$REPLY"
    fi
  done
  rm -f -- "$state/piece"
}

append() { # NAME GENERATION
  printf '{"sourceObjects":[{"name":"%s","generation":"%s"},{"name":"%s"}],"destination":{"contentType":"text/plain"}}' \
    "$prefix$1" "$2" "$prefix$1.part" >"$state/compose"
  object "$1"
  api POST "$REPLY/compose?ifGenerationMatch=$2" -H 'Content-Type: application/json' --data-binary "@$state/compose"
}

log_name() {
  REPLY=main_command_log_slice_${slice}_worker_$worker
  if ((attempt > 1)); then REPLY=attempt-$attempt/$REPLY; fi
}

# finish records how the attempt ended on this worker, after its log. The status
# is in the name, so that one list tells how a run ended.
finish() {
  local exit_file=$runs/$attempt/exit code reason
  if [[ ${gave_up-} == "$attempt" ]]; then return; fi
  stopping=
  patiently send_log || note "the log could not be sent: $why"
  if [[ ! -s $exit_file ]]; then
    give_up 70 "the record of the attempt is gone from this worker"
    return
  fi
  code=$(sed -n 's/^code=//p' "$exit_file")
  reason=$(sed -n 's/^reason=//p' "$exit_file")
  patiently store "ended/$attempt/$me.$code" "$exit_file"
  report ended "attempt $attempt, exit code $code${reason:+ ($reason)}"
  # Who was stopped, or rebooted, has not failed.
  if ((code)) && [[ ! -s $runs/$attempt/stop && $reason != *rebooted* ]]; then
    store_text "control/failed-$attempt" "$me failed, exit code $code" ifGenerationMatch=0
  fi
}

# give_up CODE WHY: the attempt did not come to run the command.
give_up() {
  gave_up=$attempt
  now
  printf 'code=%s\nsignal=\nend=%s000000000\nsize=0\noom=0\nlost=0\ndropped=0\nreason=%s\n' "$1" "$REPLY" "${2//$'\n'/ }" >"$state/exit"
  store "ended/$attempt/$me.$1" "$state/exit"
  report failed "$2"
  store_text "control/failed-$attempt" "$me failed: $2" ifGenerationMatch=0
}

# rest is what a worker does when its command has ended: it waits for the others,
# and deletes the queued resource when there is nothing more to wait for.
# Succeeds when another attempt is wanted, in $next.
rest() {
  local since
  now
  since=$REPLY
  while :; do
    wanted_attempt
    if ((wanted > attempt)) && [[ $is == exited || $is == lost ]] && ! fetch control/stop "$state/stop"; then
      next=$wanted
      return 0
    fi
    now
    if ((ttl && REPLY - first_boot >= ttl + grace / 1000 + 60)); then
      teardown "the time to live of $ttl s (--ttl) is over"
      return 1
    fi
    if all_ended; then
      if ((failures)) && [[ $keep == on-failure ]]; then
        if ((keep_for == 0)); then
          report kept 'the run failed (--keep-on-failure)'
          return 1
        fi
        now
        since_kept=${since_kept:-$REPLY}
        if ((REPLY - since_kept < keep_for)); then
          sleep "$look"
          continue
        fi
      fi
      if [[ $keep == always ]]; then
        report kept --keep
        return 1
      fi
      teardown 'every worker has ended'
      return 1
    elif [[ $status == 000 || $status == [345]?? ]] && now && ((REPLY - since >= stale)) && [[ $keep == never ]]; then
      teardown "the bucket could not be read for $((REPLY - since)) s: $why"
      return 1
    fi
    now
    if ((REPLY - reported >= period)); then report "$phase" "$detail"; fi
    sleep "$look"
  done
}

# all_ended: every worker has ended the attempt, or is dead: said nothing for
# $stale seconds. failures is how many did not end well.
all_ended() {
  local token='' text name ended=0 s w at
  local -A seen=()
  failures=0
  while :; do
    api GET "$storage/b/$bucket/o?prefix=${prefix//\//%2F}ended%2F$attempt%2F${token:+&pageToken=$token}" || return
    text=$(<"$state/reply")
    while IFS= read -r name; do
      if [[ $name =~ /ended/$attempt/(s[0-9]+w[0-9]+)\.([0-9]+)$ ]]; then
        seen[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
        if ((BASH_REMATCH[2])); then failures=$((failures + 1)); fi
      fi
    done < <(grep -o '"name": *"[^"]*"' <<<"$text" | sed 's/.*"\([^"]*\)"$/\1/')
    value_of nextPageToken
    token=$REPLY
    if [[ ! $token ]]; then break; fi
  done
  ended=${#seen[@]}
  if ((ended >= total)); then return 0; fi
  for ((s = 0; s < slices; s++)); do
    for ((w = 0; w < workers; w++)); do
      if [[ ${seen[s${s}w$w]-} ]]; then continue; fi
      at=$first_boot
      if fetch "workers/s${s}w$w" "$state/other"; then
        at=$(sed -n 's/^at=//p' "$state/other")
      elif [[ $status != 404 ]]; then
        return 1
      fi
      now
      if ((REPLY - ${at:-0} < stale)); then
        status=200
        return 1
      fi
    done
  done
  failures=$((failures + 1))
  return 0
}

# teardown WHY: deletes the queued resource that this worker belongs to, after a
# look at what it is. Workers take turns, so that one request does as a rule.
teardown() {
  local tries url
  report deleting "$1"
  url=$(resource_url "$resource")
  sleep "$((index < 30 ? index : 30))"
  for ((tries = 0; tries < 60; tries++)); do
    if api GET "$url"; then
      # value_of finds the first state, which is that of the resource.
      if ! grep -qF "\"$label\"" <(sed 's/": *"/=/' "$state/reply"); then
        report left "queued resource $resource is not of this run: it stays"
        return
      fi
      if ! grep -q '"state": *"DELETING"' "$state/reply"; then
        api DELETE "$url?force=true" || may_delete="no: $why"
      fi
    elif [[ $status == 403 ]]; then # it may delete what it may not read
      api DELETE "$url?force=true" || may_delete="no: $why"
    fi
    report deleting "$1${why:+; $why}"
    sleep "$((look * 3))"
  done
  report left "queued resource $resource could not be deleted: $why"
}

# guard is the watch over a job that a runner follows.
guard() {
  local renewed living was='' right_told=''
  attempt=0
  while :; do
    if [[ $login == root && $login_missing ]]; then
      login=$login_missing
      await_login 1
    fi
    now
    renewed=$(stat -c %Y -- "$home/.multihost/lease/$run" 2>/dev/null) || renewed=$first_boot
    if [[ ! $right_told && -d $home/.multihost/lease ]]; then
      right_told=yes
      # shellcheck disable=SC2016 # for that shell
      printf '%s\n' "$may_delete" | as_login bash --norc -c 'cat >"$HOME/.multihost/lease/$1.right"' right "$run"
    fi
    living=no
    if run_lives; then living=yes; fi
    if [[ $living != "$was" ]] || ((REPLY - ${reported:-0} >= 600)); then
      was=$living told=
      report "$([[ $living == yes ]] && echo running || echo idle)" ''
    fi
    if ((ttl && REPLY - first_boot >= ttl)); then
      teardown "the time to live of $ttl s (--ttl) is over"
      return
    fi
    if [[ $living == no ]] && ((REPLY - renewed >= lease)) && ! others_run; then
      teardown "nobody has renewed the lease for $lease s and the command has ended"
      return
    fi
    sleep "$look"
  done
}

# run_lives: the newest attempt has begun and not ended, and was not cut short by
# a reboot.
run_lives() {
  local path pid boot
  for path in "$runs"/*/; do
    if [[ -s $path/exit || ! -s $path/supervisor ]]; then continue; fi
    read -r pid _ boot _ <"$path/supervisor"
    [[ $boot == "$(<"${MULTIHOST_ROOT_PROC-}/proc/sys/kernel/random/boot_id")" ]] || continue
    if [[ -d /proc/$pid ]]; then return 0; fi
    read -r pid _ <"$path/started" && [[ -d /proc/$pid ]] && return 0
  done 2>/dev/null
  return 1
}

# others_run: another worker of the job has said within half an hour that its
# command runs. Whoever cannot be asked is taken as ended.
others_run() {
  local id text at said="run=$run\\\\nphase=running[^\"]*\\\\nat=([0-9]+)"
  for id in $nodes; do
    api POST "$tpu/projects/$project/locations/$zone/nodes/$id:getGuestAttributes" -H 'Content-Type: application/json' \
      --data-binary '{"queryPath":"multihost/"}' || continue
    text=$(<"$state/reply")
    now
    while [[ $text =~ $said ]]; do
      at=${BASH_REMATCH[1]}
      if ((REPLY - at < 1800)); then return 0; fi
      text=${text#*"${BASH_REMATCH[0]}"}
    done
  done
  return 1
}

# agent_log gives the log of the attempt a name that tells its worker.
agent_log() {
  local dir=$root/var/log/multihost/$run
  log_name
  mkdir -p -- "$dir" && ln -sfn -- "$runs/$attempt/output.log" "$dir/${REPLY//\//_}"
}

# ops_agent has Google's Ops Agent send the command's log to Cloud Logging. Its
# configuration is written whole: a section that is there twice makes it invalid.
ops_agent() {
  local config=$root/etc/google-cloud-ops-agent/config.yaml tries=0 file
  if [[ ! -e $config && ! $root ]]; then
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
