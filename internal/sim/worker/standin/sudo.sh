#!/bin/sh
# sudo of a simulated worker. The command runs as the same user, with the environment that
# sudo's env_reset leaves and the variables that keep it inside the worker. So a script that
# depends on its environment fails under sudo here, as on a real worker.
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
preserve='' keep='' user=root shell='' batch='' check=''

usage() {
  echo 'usage: sudo [-EHnS] [-u user] [VAR=value] [-i | -s] [command [arg ...]]' >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --)
      shift
      break
      ;;
    -n | --non-interactive) batch=yes ;;
    -E | --preserve-env) preserve=yes ;;
    --preserve-env=*) keep="$keep $(printf %s "${1#*=}" | tr , ' ')" ;;
    -H | --set-home | -S | --stdin | -k | --reset-timestamp) ;;
    -K | -v | --validate | -l | --list) check=yes ;;
    -i | --login | -s | --shell) shell=yes ;;
    -u | --user | -g | --group)
      [ $# -gt 1 ] || usage
      case $1 in -u | --user) user=$2 ;; esac
      shift
      ;;
    --user=*) user=${1#*=} ;;
    -u*) user=${1#-u} ;;
    -[nEHSkis][nEHSkis]*)
      # This word has several letters.
      rest=${1#-?}
      first=${1%"$rest"}
      shift
      set -- "$first" "-$rest" "$@"
      continue
      ;;
    -*) usage ;;
    *) break ;;
  esac
  shift
done

if [ -e "$root/state/no-sudo" ]; then
  if [ -z "$batch" ]; then
    echo 'sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper' >&2
  fi
  echo 'sudo: a password is required' >&2
  exit 1
fi
[ -z "$check" ] || exit 0

home=$root/home/$user
if [ "$user" = root ]; then
  home=$root/root
elif [ ! -d "$home" ]; then
  echo "sudo: unknown user $user" >&2
  exit 1
fi

command=''
for word; do
  case $word in
    [A-Za-z_]*=*) ;;
    *)
      command=$word
      break
      ;;
  esac
done
if [ -n "$shell" ]; then
  if [ -n "$command" ]; then
    set -- bash -c "$*"
  else
    set -- "$@" bash
  fi
  command=bash
fi
[ -n "$command" ] || usage

caller=${LOGNAME:-user} uid=1001
! is_root || uid=0
PATH=$root/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ ! -e "$root/programs" ] || PATH=$root/bin:$root/programs # some programs are missing
export PATH
if ! command -v -- "$command" >/dev/null 2>&1; then
  echo "sudo: $command: command not found" >&2
  exit 1
fi

# Each step puts assignments before the words of the command.
set -- \
  "USER=$user" "LOGNAME=$user" \
  "SUDO_USER=$caller" "SUDO_UID=$uid" "SUDO_GID=$uid" "SUDO_COMMAND=$command" \
  "TMPDIR=$root/tmp" \
  "MULTIHOST_SIM_WORKER=$root" MULTIHOST_KEEP=MULTIHOST_SIM_WORKER \
  "MULTIHOST_ROOT_PROC=$root" "MULTIHOST_ROOT_SYS=$root" \
  "MULTIHOST_ROOT_DEV=$root" "MULTIHOST_ROOT_TMP=$root" \
  "GCE_METADATA_HOST=${GCE_METADATA_HOST-}" \
  "$@"
[ -z "$preserve" ] || exec env "$@"
for name in TERM LANG LANGUAGE LC_ALL LC_CTYPE LC_MESSAGES COLORS DISPLAY $keep; do
  eval "value=\${$name-} isset=\${$name+yes}"
  # shellcheck disable=SC2154 # set by the eval above
  [ -z "$isset" ] || set -- "$name=$value" "$@"
done
exec env -i "PATH=$PATH" SHELL=/bin/bash "HOME=$home" "$@"
