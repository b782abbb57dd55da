# shellcheck shell=bash disable=SC2154 # vm.sh of package gcp, place.sh of package program and $sums stand before this text
# The startup script of a job's workers. root runs it at every boot, and with $1 = --going
# as the shutdown script. It gets multihost-agent from the bucket, keeps it by the SHA-256
# in this text, and runs it until nothing is left to do. If it cannot, it reports why and
# retries. It deletes the slices only if two things hold. It could not run the program for a
# long time. And no other worker has reported anything, or the bucket cannot be read for as
# long. Otherwise the other workers delete them.
set -u
shopt -s execfail
export LC_ALL=C
umask 022
run='' bucket='' prefix='' claim='' storage=''
patience=600 stale=1800 look=20 ttl=0 requested=0 keep=never keep_for=0 grace=30000 told='' printed='' pause=1 blind=''
packed=${MULTIHOST_ROOT_TMP-}/run/multihost-agent.gz

job() {
  local key value
  deletions=()
  while IFS='=' read -r key value || [[ $key ]]; do
    case $key in
      run | bucket | prefix | claim | storage | patience | stale | look | ttl | requested | keep | keep_for | grace) printf -v "$key" '%s' "$value" ;;
      deletion) deletions+=("$value") ;;
    esac
  done < <(instance attributes/multihost-job)
  [[ $run =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]
}

objects() { REPLY=$storage/b/$bucket/o$1${prefix//\//%2F}$2; }

# work: gets the program and runs it. On failure, $why says why. If the program runs for
# more than a minute, it counts as successfully begun, and the patience begins anew.
work() {
  local sum began
  sum_here "$sums" || return
  sum=$REPLY
  if ! find_agent "$sum"; then
    mkdir -p -- "${packed%/*}"
    objects / "starts%2F$claim%2Fmultihost-agent-$sum.gz?alt=media"
    fetch "$REPLY" "$packed" && keep_agent "$sum" gzip -dc "$packed" || return
  fi
  began=$SECONDS
  "$agent" job && return
  why="multihost-agent has ended with status $?"
  if ((SECONDS - began > 60)); then SECONDS=0; fi
  return 1
}

# tell PHASE TEXT: reports on the console, and in a guest attribute. It reports the same
# text again only if the attribute could not be set.
tell() {
  if [[ $printed != "$1$2" ]]; then printf 'multihost: %s: %s\n' "$1" "$2" && printed=$1$2; fi
  if [[ $told == "$1$2" ]]; then return; fi
  attribute state "$(printf 'run=%s\nphase=%s\nattempt=0\nat=%(%s)T\nmay_delete=unknown\ndetail=%s' "$run" "$1" -1 "${2//$'\n'/ }")" && told=$1$2
}

# alone: succeeds if the bucket has no report of any worker, or cannot be read for so long
# that the slices must be deleted.
alone() {
  local -a strings
  objects '?prefix=' workers%2F
  if api GET "$REPLY"; then blind='' && json_strings "$reply" '/items/*/name' && [[ ! ${strings[0]} ]]; else late "$((SECONDS - ${blind:=$SECONDS}))"; fi
}

# late SECONDS: succeeds if the worker had no program for so long that the slices must be
# deleted. After the time to live, other workers have the grace time and a minute more to
# end.
late() {
  ((ttl && requested && EPOCHSECONDS >= requested + ttl + grace / 1000 + 60)) ||
    { [[ $keep == never || $keep == on-failure && $keep_for != 0 ]] && (($1 >= patience + stale + keep_for)); }
}

until job; do sleep 5; done
if [[ ${1-} == --going ]]; then
  sum_here "$sums" && find_agent "$REPLY" && exec "$agent" job --going
  exit
fi
until work; do
  if ((SECONDS < patience)); then tell boot "waiting: $why"; else tell failed "the job cannot be fetched: tried for $patience s; $why"; fi
  if late "$SECONDS" && alone; then delete_resources "${deletions[@]}" || exit; fi
  sleep "$((pause = pause < look ? pause * 2 : look))"
done
