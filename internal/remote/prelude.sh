#!/bin/bash
# The beginning of every script that answers to a program. The first argument is the nonce,
# a word that marks the lines of the answer: the output of the login's start-up files does
# not have it. A line has the form
#
#   NONCE WORD REST
#
# WORD says what the line is about. "error" says why the script failed. REST consists of
# words, and the last one may contain spaces, or of fields separated by tabs (see
# say_fields).
#
# The scripts run in an environment of their own, see environment.sh. Functions return texts
# in REPLY, because that starts no process. $(exec PROGRAM) starts one process fewer than
# $(PROGRAM).
nonce=$1
shift

# say WORD TEXT... prints one line of the answer.
say() { printf '%s %s\n' "$nonce" "$*"; }

# say_fields WORD FIELD... prints one line whose fields may be empty or contain spaces.
say_fields() {
  local line=$1 separator=' ' field
  shift
  for field; do
    field=${field//[$'\t\n\r']/ }
    line+=$separator${field:0:400}
    separator=$'\t'
  done
  say "$line"
}

# fail TEXT... says why the script fails, and ends the script.
fail() {
  say error "${*//$'\n'/ }"
  exit 1
}

# have NAME succeeds if there is a program called NAME.
have() { type -P "$1" >/dev/null; }

# now_ns puts the time of the worker's clock into REPLY. All times in our scripts are in
# nanoseconds.
now_ns() { REPLY=${EPOCHREALTIME/[.,]/}000; }

# split TEXT puts the words of TEXT into the array fields. A here-string may need a file in
# /tmp, which may be full.
split() {
  local - IFS=$' \t\n'
  set -f
  # shellcheck disable=SC2206 # words are meant
  fields=($1)
}

# boot_id puts the id of the kernel's present boot into REPLY, or an empty text if it has
# none.
boot_id() {
  REPLY=
  { IFS= read -r REPLY <"${MULTIHOST_ROOT_PROC-}/proc/sys/kernel/random/boot_id"; } 2>/dev/null || :
}

# stat_of PID puts the fields of /proc/PID/stat from the state on into the array fields.
# Fails if the process is dead.
stat_of() {
  local stat=''
  { IFS= read -r -d '' stat <"/proc/$1/stat"; } 2>/dev/null
  [[ $stat ]] || return 1
  split "${stat##*) }"
  [[ ${fields[0]} != [ZX] ]]
}

# start_of PID puts the start time of the process, in ticks, into REPLY. Together with the
# boot id, it distinguishes the process from a later one with the same number. Fails if the
# process is dead.
start_of() {
  local fields
  REPLY=
  stat_of "$1" || return 1
  REPLY=${fields[19]}
}

# alive PID START BOOT succeeds if the process that started at START in BOOT is still alive.
# $boot is the id of the present boot.
#
# shellcheck disable=SC2154 # the scripts set boot
alive() {
  [[ ${3:--} == "$boot" ]] && start_of "$1" && [[ $REPLY == "$2" ]]
}

# replace FILE TEXT writes a file whose only line is TEXT. It uses a rename, so that nobody
# reads a part of the text.
replace() {
  printf '%s\n' "$2" >"$1.$$" && mv -f -- "$1.$$" "$1" && return
  rm -f -- "$1.$$"
  return 1
}
