#!/bin/bash
# What scripts on a VM ask of Google with the VM's own token: the metadata server,
# the APIs, and the deletion of the queued resource that it belongs to. It stands
# before the script that uses it.
#
# A failed call leaves its HTTP status in $status, 000 when there was no answer,
# and words for people in $why. No token is in an argument, a file or an answer.
metadata=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance
call_limit=60 # seconds that a call of an API may take
call_pause=60 # and how many of them nothing may come or go
held='' # the token of all calls, where one is held
reply='' status='' why=''

# instance PATH: a value of the metadata server, or why there is none. Only the
# last try may print errors: those of tries that a later one made up for must not
# get into the value.
instance() {
  local value
  value=$(curl -s -f --max-time 10 --retry 6 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/$1") ||
    value=$(curl -sS -f --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/$1" 2>&1) || {
    printf '%s' "$value"
    return 1
  }
  printf '%s' "$value"
}

# attribute KEY TEXT: a guest attribute of this worker, which others can read.
attribute() {
  status=$(curl -sS -o /dev/null -w '%{http_code}' --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary "$2" \
    "$metadata/guest-attributes/multihost/$1" 2>/dev/null)
  [[ $status == 2?? ]]
}

# access_token: the VM's, in REPLY. It is asked for anew each time, for it ends
# some time, unless one is held.
access_token() {
  REPLY=$held
  if [[ $REPLY ]]; then return 0; fi
  REPLY=$(curl -sS -f --max-time 10 --retry 3 -H 'Metadata-Flavor: Google' "$metadata/service-accounts/default/token" 2>&1)
  if [[ ! $REPLY =~ \"access_token\":\ *\"([^\"]+)\" ]]; then
    why="no access token: ${REPLY:0:200}"
    return 1
  fi
  REPLY=${BASH_REMATCH[1]}
}

# api METHOD URL CURL-ARGS...: the answer is in $reply, unless -o says where. The
# token goes to curl on stdin, for arguments can be read by everybody.
api() {
  local method=$1 url=$2 REPLY
  shift 2
  reply='' status=000
  access_token || return
  if ! reply=$(
    set -o pipefail
    printf 'header = "Authorization: Bearer %s"\n' "$REPLY" |
      curl -sS -K - -X "$method" -w '\n%{http_code}' --connect-timeout 10 --max-time "$call_limit" --speed-limit 1 --speed-time "$call_pause" "$@" "$url" 2>&1
  ); then
    # Also when the answer broke off after its status: half of one is none.
    why='no answer'
    if [[ $reply =~ curl:\ [^$'\n']* ]]; then why="no answer: ${BASH_REMATCH[0]:0:200}"; fi
    reply=''
    return 1
  fi
  status=${reply##*$'\n'} reply=${reply%$'\n'*}
  if [[ $status == 2?? ]]; then return 0; fi
  explain "$reply"
  return 1
}

# explain ANSWER: why a call failed, from what came with its status.
explain() {
  local text=$1
  if [[ $text =~ \"message\":\ *\"([^\"]+)\" ]]; then text=${BASH_REMATCH[1]}; fi
  text=${text:0:400}
  why="HTTP status $status: ${text//[$'\n\r']/ }"
}

# value_of KEY: the first of that name in $reply.
value_of() {
  REPLY=
  [[ $reply =~ \"$1\":\ *\"?([^\",}]*) ]] && REPLY=${BASH_REMATCH[1]}
}

# may_delete URL CURL-ARGS...: whether this VM may delete that queued resource. It
# asks to delete one that does not exist: who may is told that it is not there,
# who may not is refused.
may_delete() {
  api DELETE "${1%/*}/multihost-probe-$(cksum <<<"$1" | cut -d " " -f 1)" "${@:2}" || [[ $status == 404 ]]
}

# delete_queued URL LABEL: asks for the deletion of a queued resource, after a look
# at what it is: nothing is deleted unread. Fails when it does not bear the label,
# KEY=VALUE; then it is another's. $why is empty unless something else kept it
# from being deleted: it may be tried again.
delete_queued() {
  why=''
  if ! api GET "$1" || [[ $reply != *'"name":'* ]]; then
    why="it cannot be read: ${why:-the answer is none}"
    return 0
  fi
  if [[ ! $reply =~ \""${2%%=*}"\":\ *\""${2#*=}"\" ]]; then
    why='it is not of this run: it stays'
    return 1
  fi
  if [[ $reply =~ \"state\":\ *\"DELETING\" ]] || api DELETE "$1?force=true"; then why=''; fi
  return 0
}

