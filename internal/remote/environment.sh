#!/bin/bash
# Gives our scripts an environment of their own: the variables listed below, TMPDIR, and
# LC_ALL=C, whatever the start-up files of the login export. The bash options --norc,
# --noprofile and -p keep out start-up files, and functions and options from the
# environment. This script removes the rest. It starts no process.
#
# The array mh_login keeps the environment of the login, as NAME=VALUE, for the command of a
# user. Names that are not identifiers stay, such as those of exported functions: they
# cannot be removed. bash -p does not read them, but passes them on.
#
# What stays, and why:
#   HOME USER LOGNAME    the login
#   PATH                 where this machine has its programs
#   SSH_AUTH_SOCK        codesync logs in to other workers with this agent
#   GCE_METADATA_HOST    where the metadata server is
#   MULTIHOST_ROOT_*     where /proc, /sys, /dev and /tmp are
#   *_proxy *_PROXY      the way to Google's APIs
#   MULTIHOST_KEEP       names of further variables, separated by spaces, that the
#                        programs of this machine need
# Variables that bash itself updates stay, but are not exported.
#
# shellcheck disable=SC2163 # the names are meant
set +o posix
export LC_ALL=C
unset -v mh_login
mapfile -d '' -t mh_login <"/proc/$$/environ"
for s in "${mh_login[@]%%=*}"; do
  case $s in
    HOME | USER | LOGNAME | PATH | LC_ALL | SSH_AUTH_SOCK | GCE_METADATA_HOST | *_proxy | *_PROXY | MULTIHOST_ROOT_* | MULTIHOST_KEEP) ;;
    PWD | UID | EUID | EPOCH* | SECONDS | RANDOM | BASHPID | mh_login) export -n "$s" ;;
    *) [[ " ${MULTIHOST_KEEP-} " == *" $s "* ]] || {
      export -n "$s"
      unset -v "$s"
    } ;;
  esac
done 2>/dev/null
export TMPDIR="${MULTIHOST_ROOT_TMP-}/tmp"
