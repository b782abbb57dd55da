#!/bin/bash
# Functions for scripts on a VM: they read the metadata server, call Google's APIs with the
# VM's own token, and delete the VM's own resource. The provider of the slices gives each
# deletion as data. json.sh of package remote follows this file, then the script that uses
# both.
#
# A failed call leaves its HTTP status in $status (000: no answer) and a text in $why. No
# token is in an argument, a file or these texts.
metadata=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance
reply='' status='' why=''

# instance PATH: prints a value of the metadata server. If it fails, it prints the error and
# returns 1. Only the last try may print errors, so that errors of earlier tries do not get
# into the value.
instance() {
  local value
  value=$(curl -s -f --max-time 10 --retry 6 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/$1") ||
    value=$(curl -sS -f --max-time 10 -H 'Metadata-Flavor: Google' "$metadata/$1" 2>&1) || {
    printf '%s' "$value"
    return 1
  }
  printf '%s' "$value"
}

# attribute KEY TEXT: sets a guest attribute of this worker, which other machines can read.
attribute() {
  status=$(curl -sS -o /dev/null -w '%{http_code}' --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary "$2" \
    "$metadata/guest-attributes/multihost/$1" 2>/dev/null)
  [[ $status == 2?? ]]
}

# access_token sets $REPLY to the VM's token. It asks for a new one each time, because
# tokens expire. It never shows the server's text, because even a malformed text may contain
# a token.
access_token() {
  local json
  local -a strings
  why='no access token'
  if ! json=$(instance service-accounts/default/token); then
    said "$json"
  elif ! json_strings "$json" /access_token || [[ ! ${strings[0]} ]]; then
    why+=': the answer of the metadata server has none'
  else
    REPLY=${strings[0]} why=''
    return
  fi
  return 1
}

# said TEXT: adds curl's first message in TEXT to $why, at most 200 characters of it.
said() {
  if [[ $1 =~ curl:\ [^$'\n']* ]]; then why+=": ${BASH_REMATCH[0]:0:200}"; fi
}

# api METHOD URL CURL-ARGS...: calls an API and puts the answer into $reply, unless
# CURL-ARGS has -o. curl gets the token on stdin, because every user of the VM can read
# arguments. URL may come from a user of the VM, so curl must not take it for an option or a
# file.
api() {
  local method=$1 url=$2 REPLY
  shift 2
  reply='' status=000
  access_token || return
  if ! reply=$(
    set -o pipefail
    printf 'header = "Authorization: Bearer %s"\n' "$REPLY" |
      curl -sS -K - -X "$method" -w '\n%{http_code}' --connect-timeout 10 --max-time 60 --speed-limit 1 --speed-time 60 --globoff --proto =http,https "$@" --url "$url" 2>&1
  ); then
    # An answer that broke off after its status counts as none.
    why='no answer'
    said "$reply"
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
  local -a strings
  if json_strings "$1" /error/message && [[ ${strings[0]} ]]; then text=${strings[0]}; fi
  text=${text:0:400}
  why="HTTP status $status: ${text//[$'\n\r']/ }"
}

# fetch URL FILE: downloads a file through an API.
fetch() {
  if api GET "$1" -o "$2"; then return; fi
  if [[ $status != 000 ]]; then explain "$(head -c 400 -- "$2")"; fi
  return 1
}

# delete_resources DELETION...: calls delete_resource for each. The group that made this VM
# comes last, and the one after it first: function after of package agent says why.
# delete_resources continues after a failure. It fails if every resource that is left
# belongs to another run. The caller may retry until the run's own resources are gone,
# because an accepted deletion may fail later.
delete_resources() {
  local deletion trouble='' foreign='' there='' own i
  local -a strings all=("${@-}")
  if (($# > 1)) && own=$(instance attributes/created-by); then
    for ((i = 1; i <= $#; i++)); do
      if json_strings "${!i}" /read && [[ ${strings[0]} == */zones/"${own#*/zones/}" ]]; then
        all=("${@:i+1}" "${@:1:i}")
        break
      fi
    done
  fi
  for deletion in "${all[@]}"; do
    if ! delete_resource "$deletion"; then
      foreign=$why
    elif [[ $why ]]; then
      trouble+=${trouble:+; }$why
    fi
  done
  if [[ $there || $trouble ]]; then foreign=''; fi
  why=${trouble:-$foreign}
  [[ ! $foreign ]]
}

# delete_resource DELETION: reads a resource and then requests its deletion. DELETION is
# JSON, a Deletion of package agent, which says how to delete the resource. If the resource
# could not be read, or lacks the proof in its field, it stays. Only the resource that was
# read is deleted. delete_resource fails if the resource belongs to another run. If it
# succeeds and $why is empty, it has requested the deletion, or the resource is gone.
# Otherwise $why has a text, and the caller may retry. If the resource belongs to the run
# and may still exist, delete_resource sets the variable "there".
delete_resource() {
  local key read='' method='' url='' proof_path='' proof_value='' going_path='' going_value='' REPLY
  local -a strings
  why=''
  for key in read method url proof/path proof/value going/path going/value; do
    if json_strings "$1" "/$key"; then printf -v "${key/\//_}" %s "${strings[0]}"; fi
  done
  if [[ ! $proof_value ]]; then
    why='it stays: the terms do not say how it is deleted'
  elif [[ ${url%%\?*} != "$read" ]]; then
    why='the terms name another resource to delete: it stays'
  elif ! api GET "$read"; then
    why="it cannot be read: $why"
    if [[ $status == 404 ]]; then why=''; fi # it is gone; continue with the next one
  elif ! json_strings "$reply" "$proof_path" || [[ $reply =~ ^[[:space:]]*\{[[:space:]]*\}[[:space:]]*$ ]]; then
    why='it cannot be read: the answer is no JSON object'
  elif ! all_are "$proof_value"; then
    why='it is not of this run: it stays'
    return 1
  elif [[ $going_path ]] && json_strings "$reply" "$going_path" && all_are "$going_value"; then
    there=yes # it is already being deleted
  elif api "$method" "$url"; then
    there=yes why=''
  elif [[ $status == 404 ]]; then
    why=''
  fi
  return 0
}

# all_are VALUE: succeeds if all $strings are VALUE.
all_are() {
  local text
  for text in "${strings[@]}"; do
    if [[ $text != "$1" ]]; then return 1; fi
  done
}
