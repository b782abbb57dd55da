#!/bin/sh
# id of a simulated worker, where files and processes belong to the user who runs the
# simulator.
uid=1001 name=${LOGNAME:-user} groups=' 4 20 24 1000' groupnames=' adm dialout cdrom google-sudoers'
root=${0%/bin/*}
# shellcheck source=/dev/null
. "$root/bin/rights.sh"
if is_root; then
  uid=0 name=root groups='' groupnames=''
fi
names='' what=''
for word; do
  case $word in
    -n | --name) names=yes ;;
    -r | --real) ;;
    -u | --user | -g | --group) what=one ;;
    -G | --groups) what=all ;;
    -un | -nu | -gn | -ng | -run) what=one names=yes ;;
    -Gn | -nG) what=all names=yes ;;
    -ru | -ur) what=one ;;
    [a-z_]*)
      # A login exists if it has a home.
      [ -d "${0%/bin/*}/home/$word" ] || {
        echo "id: '$word': no such user" >&2
        exit 1
      }
      name=$word uid=1001
      ;;
    *)
      PATH=/usr/bin:/bin exec id "$@"
      ;;
  esac
done
case $what:$names in
  one:yes) echo "$name" ;;
  one:) echo "$uid" ;;
  all:yes) echo "$name$groupnames" ;;
  all:) echo "$uid$groups" ;;
  *)
    [ -z "$names" ] || {
      echo 'id: cannot print only names or real IDs in default format' >&2
      exit 1
    }
    echo "uid=$uid($name) gid=$uid($name) groups=$uid($name)"
    ;;
esac
