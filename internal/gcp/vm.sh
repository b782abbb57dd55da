#!/bin/bash
# Functions for scripts on a VM: they read the metadata server, call Google's APIs
# with the VM's own token, and delete the resource that the VM belongs to. How that is
# done is data of the provider of the slices. This file is prepended to the script that
# uses it.
#
# A failed call leaves its HTTP status in $status (000 if there was no answer) and
# a text for people in $why. No token appears in an argument, a file or an answer.
metadata=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance
call_limit=60 # seconds that an API call may take
call_pause=60 # seconds that a call may last without any data sent or received
held=''       # a fixed token for all calls; empty: use that of the VM
reply='' status='' why=''

# How the resource is deleted, as package provision describes it in Undoing. The script
# that uses this file sets them.
undo_look=''   # address that tells of the resource
undo_going=''  # regular expression: such an answer says that it is being deleted already
undo_delete='' # address that takes the DELETE
undo_probe=''  # address of a resource that does not exist
# shellcheck disable=SC2034 # for the scripts that use this file
undo_peers='' # address of the guest attributes of a slice, whose name replaces {slice}

# is_undo KEY VALUE: sets one of the above. It fails for other keys, and for a value that
# is none: the script that reads it may not trust who wrote it.
is_undo() {
  case $1 in
    undo_look | undo_going | undo_delete | undo_probe | undo_peers) ;;
    *) return 1 ;;
  esac
  [[ $2 =~ ^[A-Za-z0-9:/._=?{}*\"\ -]*$ ]] && printf -v "$1" '%s' "$2"
}

# instance PATH: prints a value of the metadata server. If it fails, it prints the
# error and returns 1. Only the last try may print errors: the errors of tries before
# a successful one must not get into the value.
instance() {
  local value
  value=$(curl -s -f --max-time 10 --retry 6 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/$1") ||
    value=$(curl -sS -f --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/$1" 2>&1) || {
    printf '%s' "$value"
    return 1
  }
  printf '%s' "$value"
}

# attribute KEY TEXT: sets a guest attribute of this worker, which others can read.
attribute() {
  status=$(curl -sS -o /dev/null -w '%{http_code}' --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary "$2" \
    "$metadata/guest-attributes/multihost/$1" 2>/dev/null)
  [[ $status == 2?? ]]
}

# access_token: puts the VM's token, or $held if set, into REPLY. It asks for a new
# token each time, because tokens expire.
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

# api METHOD URL CURL-ARGS...: calls an API and puts the answer into $reply, unless
# CURL-ARGS has -o. The token goes to curl on stdin, because every user of the VM
# can read arguments.
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
    # This includes an answer that broke off after its status: half of an answer
    # counts as none.
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

# explain ANSWER: sets $why from $status and the answer of a failed call.
explain() {
  local text=$1
  if [[ $text =~ \"message\":\ *\"([^\"]+)\" ]]; then text=${BASH_REMATCH[1]}; fi
  text=${text:0:400}
  why="HTTP status $status: ${text//[$'\n\r']/ }"
}

# value_of KEY: puts the first value of KEY in $reply into REPLY.
value_of() {
  REPLY=
  [[ $reply =~ \"$1\":\ *\"?([^\",}]*) ]] && REPLY=${BASH_REMATCH[1]}
}

# may_delete RETRIES: succeeds if this VM may delete its resource. It asks to delete one
# that does not exist: a caller with the permission gets 404, any other caller is refused.
may_delete() {
  api DELETE "$undo_probe" --retry "$1" || [[ $status == 404 ]]
}

# delete_resource LABEL: reads the resource and then requests its deletion. It never
# deletes a resource that it could not read, nor another one than it has read. It fails if
# no labels in it have LABEL (KEY=VALUE): then it belongs to another run. In the text of a
# user, quotes are escaped, so such a text looks like no labels. If it succeeds, $why is
# empty, or says why the deletion was not requested; the caller may try again.
delete_resource() {
  why=''
  if ! api GET "$undo_look" || [[ $reply != *'"name":'* ]]; then
    why="it cannot be read: ${why:-the answer is none}"
    return 0
  fi
  if [[ ! $reply =~ \"labels\":\ *\{[^{}]*\""${1%%=*}"\":\ *\""${1#*=}"\" ]]; then
    why='it is not of this run: it stays'
    return 1
  fi
  if [[ ${undo_delete%%\?*} != "$undo_look" ]]; then
    why='the terms name another resource to delete: it stays'
    return 1
  fi
  if [[ $undo_going && $reply =~ $undo_going ]] || api DELETE "$undo_delete"; then why=''; fi
  return 0
}
