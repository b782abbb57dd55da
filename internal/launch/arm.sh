#!/bin/bash
# arm: RUN ATTEMPT SIZES... [PYTHON CODE]. Takes the worker's lock, writes the payload from
# stdin to files, and starts a supervisor. Then it reads lines from stdin. It answers
# "clock" with the worker's time. It passes "go" or "go TIME" on to the supervisor; see
# start.sh. After any other line, or the end of stdin, it leaves nothing behind. The texts
# of the supervisor's scripts are in variables. With PYTHON, arm also reports the versions
# that this interpreter finds. With CODE=1 it also reports the digest of the code in the
# command's directory.
#
# shellcheck disable=SC2034,SC2154 # lib.sh reads and sets variables of this script
main() {
  local run=$1 attempt=$2 python=${9-} code=${10-0} mask dir entry line order error synced='' disk=''
  local -a words vars lines=()
  shift 2
  while read -r line mask; do
    if [[ $line == Umask: ]]; then break; fi
  done 2>/dev/null </proc/self/status
  if [[ $line != Umask: ]]; then mask=$(umask); fi
  umask 077
  enter
  dir=$home/.multihost/runs/$run/$attempt
  entry=$index/$UID-$run-$attempt.run
  prepare_index
  exec 9<"$index/lock" || fail "open $index/lock"
  # A run that is about to end needs a moment to release the lock.
  error=$(exec flock -w 0.3 9 2>&1) || if (($? == 1)); then busy; else fail "lock $index/lock: ${error:-flock fails}"; fi
  if [[ -e $dir/started ]]; then
    say already
    exit 1
  fi
  if [[ -e $dir || -L $dir ]]; then error=$(exec rm -rf -- "$dir" 2>&1) || fail "$error"; fi
  error=$(exec mkdir -p -- "$dir" 2>&1) || fail "$error"
  say boot "$boot"
  mapfile -t lines < <(exec stat -f -c '%t:%i:%b:%S %a %b %S' -- "$dir" "$index" 2>/dev/null)
  if ((${#lines[@]} == 2)); then # otherwise one of the two is unknown, and neither is reported
    disk=${lines[0]#* }
    say disk output "$disk"
    if [[ ${lines[0]%% *} != "${lines[1]%% *}" ]]; then say disk tmp "${lines[1]#* }"; fi
  fi
  error=$(exec mkfifo -- "$dir/control" "$dir/output" 2>&1) || abandon "$dir" "$error"
  # The errors of bash go through a FIFO. A file would fail on a full disk, and $(unpack)
  # would start one more process.
  exec 5<>"$dir/output"
  if ! unpack "$dir" "$@" 2>&5; then
    while IFS= read -r -t 0.1 -u 5 line; do error=$line; done
    abandon "$dir" "write below $dir: $error"
  fi
  exec 5<&-
  if [[ -s $dir/secrets ]]; then secrets "$dir"; fi

  if [[ $python ]]; then
    mapfile -d '' -t words <"$dir/argv"
    mapfile -d '' -t vars <"$dir/env" # read it now: the supervisor empties it
    survey
  fi
  # The supervisor reads its order from a FIFO that this script holds open for writing. If
  # this script dies, the supervisor sees the end of the FIFO. If the connection breaks in
  # the middle of the order, a later connection can still give the order. bash starts a
  # background child with SIGINT ignored, and exec undoes that. The child leads no process
  # group, so setsid need not fork.
  exec 4<>"$dir/control"
  exec 8< <(exec setsid bash --norc --noprofile -p "$dir/supervise" \
    "$nonce" "$run" "$attempt" "$dir" "$entry" "$mask" "$disk" </dev/null 2>>"$dir/supervisor.log" 3<&- 7<&-)
  exec 9<&-
  IFS= read -r line <&8 ||
    abandon "$dir" "the supervisor did not start: $(tail -n 1 "$dir/supervisor.log" 2>/dev/null)"
  if [[ $python ]]; then tell_versions; fi
  # Report whose code is in the directory. A sync that begins later finds the supervisor and
  # changes no code.
  { IFS= read -r synced <"$home/.multihost/sync/$run/digest"; } 2>/dev/null
  say synced "$synced"
  # From now on, a stop finds the supervisor. So look now for earlier stops.
  for order in "$home/.multihost/runs/$run"/*/stopped; do
    if { IFS= read -r synced <"$order"; } 2>/dev/null; then say stopped "$synced"; fi
  done
  printf '%s\n' "$line"
  order=clock
  while [[ $order == clock ]]; do
    IFS= read -r order || order=
    if [[ $order == clock ]]; then
      now_ns
      say clock "$REPLY"
    fi
  done
  # After "go", hold the FIFO open until the command has started. start.sh would take the
  # end of the FIFO for an order.
  if [[ $order == go || $order == "go "* ]]; then printf '%s\n' "$order" >&4; else exec 4>&-; fi
  while IFS= read -r line <&8; do printf '%s\n' "$line"; done
}

abandon() { # DIR TEXT
  rm -rf -- "$1"
  rmdir -- "${1%/*}" 2>/dev/null
  fail "$2"
}

# survey starts two programs. One reports on descriptor 7 the versions that the command will
# find. The other reports on descriptor 3 the digest of the code. Each gives up after 5 s.
# survey imports no package, because jax would take the TPU.
survey() {
  local entry
  local -a environment through_env
  surveyor=''
  exec 7< <(
    exec 9<&- 2>/dev/null
    at_work
    inherit_run "$run" "$attempt" "$dir"
    python=${python/#"~/"/"$HOME/"}
    # If exec fails, the subshell ends, even with execfail. So look for the program first.
    for entry in "${environment[@]}"; do
      if [[ $entry == PATH=* ]]; then PATH=${entry#PATH=}; fi
    done
    if ! have "$python"; then
      echo python none
      exit
    fi
    become "$python" -c "$versions" </dev/null
  )
  surveyor=$!
  if ((code)); then
    exec 3< <(
      exec 9<&- 2>/dev/null
      at_work
      exec timeout -k 1 5 bash --norc --noprofile -p -c "$code_digest"
    )
  fi
}

# at_work enters the command's directory, if it exists already.
at_work() {
  cd -- "$HOME" || exit
  cd -- "${words[0]}" || :
}

tell_versions() {
  local line status most=8
  while ((most-- > 0)); do
    IFS= read -r -t 5 -u 7 line
    status=$?
    if ((status > 128)); then kill -s KILL "$surveyor" 2>/dev/null; fi
    if ((status)); then break; fi
    say version "$line"
  done
  exec 7<&-
  if ((code)); then
    IFS= read -r -t 7 -u 3 line && say version code "${line:0:12}"
    exec 3<&-
  fi
}

# The names of the packages' metadata directories contain the versions. importlib.metadata
# also reads these directories, but takes twice the time.
versions='
import os, sys
print("python", sys.version.split()[0])
seen = set()
for path in sys.path:
    try:
        names = sorted(os.listdir(path)) if path else []
    except OSError:
        continue
    for name in names:
        base, kind = os.path.splitext(name)
        package, _, rest = base.partition("-")
        package = package.lower().replace("_nightly", "")
        if kind in (".dist-info", ".egg-info") and package in ("jax", "jaxlib", "libtpu") and package not in seen:
            seen.add(package)
            print(package, rest.split("-")[0])
'

# shellcheck disable=SC2016 # for another shell
code_digest='
set -o pipefail
find . -xdev -name ".?*" -prune -o -name __pycache__ -prune -o -type f -size -1025k \
  \( -name "*.py" -o -name "*.sh" -o -name "*.y*ml" -o -name "*.json" -o -name "*.toml" -o -name "*.gin" -o -name "*.cfg" \) -print0 |
  sort -z | xargs -0 -r sha256sum -- | sha256sum
'

prepare_index() {
  local error=
  if [[ ! -d $index ]]; then error=$(mkdir -m 1777 -- "$index" 2>&1); fi
  if [[ ! -d $index || -L $index ]]; then fail "${error:-make $index: it is no directory}"; fi
  if [[ ! -e $index/lock ]]; then
    error=$(
      umask 022
      set -C
      exec 2>&1
      : >"$index/lock"
    )
  fi
  [[ -r $index/lock && ! -L $index/lock ]] || fail "${error:-read $index/lock: it is no readable file}"
}

# secrets DIR reads the secrets in the lines NAME ADDRESS of DIR/secrets, with the VM's own
# token. It appends their values to DIR/env, which the supervisor empties before the command
# starts. No value is on a command line.
secrets() {
  local dir=$1 metadata=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance/service-accounts/default
  local name url token='' status trouble data json nuls=0
  exec 5<>"$dir/output"
  ask 2 --noproxy '*' --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/token"
  if ((status != 200)); then no_secret "$dir" - 0 "no access token: $trouble"; fi
  if ! json_strings "$json" /access_token || [[ ! ${strings[0]} ]]; then no_secret "$dir" - 0 'no access token: the answer of the metadata server has none'; fi
  token=${strings[0]}
  nuls=$(tr -cd '\0' <"$dir/env" | wc -c)
  while read -r name url; do
    ask 3 --connect-timeout 10 --max-time 15 "$url"
    if ((status != 200)); then no_secret "$dir" "$name" "$status" "$trouble"; fi
    data=
    if json_strings "$json" /payload/data; then data=${strings[0]}; fi
    nuls=$((nuls + 1))
    # A wrong number of NULs means that the value contains a NUL.
    if ! {
      printf '%s=' "$name"
      printf %s "$data" | base64 -d && printf '\0'
    } 2>/dev/null >>"$dir/env" || [[ ! $data ]] || (($(tr -cd '\0' <"$dir/env" | wc -c) != nuls)); then
      no_secret "$dir" "$name" 0 'the answer has no value that fits into a variable'
    fi
  done <"$dir/secrets"
  exec 5<&-
}

# ask RETRIES ARG... calls curl with ARGs and the token. It retries up to RETRIES times while
# the network or the server has trouble. It also gives up if a try fails later than 40 s
# after the start of the first try. status and json come from the last try. status is 0 if
# that try got no whole answer. If status is not 200, trouble says why. The messages of curl
# go through descriptor 5. ask does not use curl --retry, because that would mix the answers
# of all tries.
ask() {
  local tries=$1 pause=1 line error until_ns
  shift
  now_ns
  until_ns=$((REPLY + 40000000000))
  while :; do
    json=$(
      set -o pipefail
      if [[ $token ]]; then printf 'header = "Authorization: Bearer %s"\n' "$token"; fi |
        curl -q -sS -K - -w '\n%{http_code}' "$@" 2>&5
    )
    error=$?
    if ((error == 0)); then
      status=${json##*$'\n'} json=${json%$'\n'*}
      if [[ $status != 408 && $status != 429 && $status != 5?? ]]; then break; fi
    else
      status=0 json='' # a part of an answer is no answer
      case $error in
        5 | 6 | 18 | 28 | 35 | 52 | 56) ;; # no name server, a time limit, a broken connection
        *) break ;;
      esac
    fi
    now_ns
    if ((tries-- == 0 || REPLY > until_ns)); then break; fi
    sleep "$pause"
    pause=$((pause * 2))
  done
  if ((status == 200)); then return; fi
  if ((! error)); then
    trouble="HTTP status $status"
    if [[ $token ]]; then # without a token, do not show the answer: it may contain one
      trouble=$json
      if json_strings "$json" /error/message && [[ ${strings[0]} ]]; then trouble=${strings[0]}; fi
      trouble=${trouble//"$token"/***}
    fi
  else
    trouble="curl fails with status $error"
    while IFS= read -r -t 0.1 -u 5 line; do
      if [[ $line == *curl:* ]]; then trouble=$line; fi
    done
  fi
  trouble=${trouble:0:400}
}

no_secret() { # DIR NAME STATUS TEXT
  local account
  rm -rf -- "$1"
  rmdir -- "${1%/*}" 2>/dev/null
  account=$(curl -q -sS -f --noproxy '*' --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/email" 2>/dev/null) || account=-
  if [[ $account == *[[:space:]]* ]]; then account=-; fi
  say secret "$2" "$3" "$account" "$(printf %s "$4" | tr -s '\n\r' '  ')"
  exit 1
}

# unpack DIR SIZES... writes the files of the attempt, in the order in which they come.
# Files that only a runner sends are last. exit.new gets its full size now, so that even on
# a full disk the end of the command can be recorded.
unpack() {
  local dir=$1 file
  shift
  printf '%s\n' "$text_lib" "$text_supervise" >"$dir/supervise" || return
  printf '%s\n' "$text_lib" "$text_start" >"$dir/start" || return
  printf '%s\n' "$text_processes" >"$dir/processes" || return
  printf '%s\0' "${mh_login[@]}" >"$dir/login" || return
  # If a file is incomplete, unpack fails before anything reads a secret or a version.
  for file in meta argv env script limit secrets; do
    received "$dir/$file" "${1-0}" || return
    if (($#)); then shift; fi
  done
  for file in output.log dropped lost relay; do
    : >"$dir/$file" || return
  done
  printf '%4000s\n' '' >"$dir/exit.new" || return
}

# received FILE SIZE writes the next SIZE bytes of stdin to FILE. For up to 4096 bytes it
# starts no process.
received() {
  local word='' got=0
  : >"$1" || return
  if (($2 > 4096)); then
    head -c "$2" >"$1" || return
    size_of "$1"
    got=$REPLY
  fi
  while ((got < $2)) && IFS= read -r -d '' -n $(($2 - got)) word; do
    printf %s "$word" || return
    got=$((got + ${#word}))
    if ((got == $2)); then break; fi
    printf '\0' || return # the NUL at the end of the word
    got=$((got + 1))
  done >>"$1"
  if ((got != $2)); then
    echo 'the files did not arrive whole' >&2
    return 1
  fi
}

busy() {
  local file
  now_ns
  say busy "$REPLY"
  for file in "$index"/*.run; do
    [[ -f $file ]] || continue
    look_entry "$file"
    if [[ $phase == running || $phase == starting ]]; then
      tell "$entry_run" "$entry_attempt" "$entry_dir"
      say login "$entry_login"
      say owner "$entry_owner"
      say command "$entry_command"
    fi
  done
  exit 1
}

main "$@"
