#!/bin/bash
# The beginning of every script that answers to a program. The first argument is the
# nonce, a word that marks the lines of the answer: lines that start-up files of the
# login print do not have it. A line is
#
#   NONCE WORD REST
#
# The word says what the line is about. "error" says why the script failed. REST has words,
# of which the last may contain spaces; or fields separated by tabs, see say_fields.
#
# The scripts run in an environment of their own: see environment.sh. Functions answer in
# REPLY, because that starts no process. Where a program is needed, $(exec PROGRAM) starts
# one process less than $(PROGRAM).
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

# fail TEXT... says why the script fails, and ends it.
fail() {
  say error "${*//$'\n'/ }"
  exit 1
}

# have NAME succeeds if there is a program of that name.
have() { type -P "$1" >/dev/null; }

# now_ns answers with the time by the worker's clock. Every time in our scripts is in
# nanoseconds.
now_ns() { REPLY=${EPOCHREALTIME/[.,]/}000; }

# split TEXT puts the words of TEXT into the array fields. It uses no here-string: bash
# may need a file in /tmp for one, and /tmp may be full.
split() {
  local - IFS=$' \t\n'
  set -f
  # shellcheck disable=SC2206 # words are meant
  fields=($1)
}

# boot_id answers with the id that the kernel got when it started; empty if it has none.
boot_id() {
  REPLY=
  { IFS= read -r REPLY <"${MULTIHOST_ROOT_PROC-}/proc/sys/kernel/random/boot_id"; } 2>/dev/null || :
}

# stat_of PID puts the fields of /proc/PID/stat, from the state on, into the array
# fields. Fails when the process is dead.
stat_of() {
  local stat=''
  { IFS= read -r -d '' stat <"/proc/$1/stat"; } 2>/dev/null
  [[ $stat ]] || return 1
  split "${stat##*) }"
  [[ ${fields[0]} != [ZX] ]]
}

# start_of PID answers with the start time of the process in ticks. Together with the
# boot id, it distinguishes the process from a later one of the same number. Fails
# when the process is dead.
start_of() {
  local fields
  REPLY=
  stat_of "$1" || return 1
  REPLY=${fields[19]}
}

# alive PID START BOOT succeeds if the process that was started then still lives. $boot
# is the id of the present boot.
#
# shellcheck disable=SC2154 # the scripts set boot
alive() {
  [[ ${3:--} == "$boot" ]] && start_of "$1" && [[ $REPLY == "$2" ]]
}

# replace FILE TEXT writes a file whose only line is TEXT. Nobody sees a part of it.
replace() {
  printf '%s\n' "$2" >"$1.$$" && mv -f -- "$1.$$" "$1" && return
  rm -f -- "$1.$$"
  return 1
}
