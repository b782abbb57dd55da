#!/bin/sh
# apt-get of a simulated worker: reports packages as installed that a worker has, and
# restores a program that a fault has removed.
root=${0%/bin/*}
if [ "$("$root/bin/id" -u)" != 0 ]; then
  echo 'E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)' >&2
  echo 'E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?' >&2
  exit 100
fi
verb=''
while [ $# -gt 0 ]; do
  case $1 in
    -o | -c) shift ;;
    -*) ;;
    *)
      if [ -z "$verb" ]; then
        verb=$1
      else
        case $1 in
          numactl | ethtool | lsof | iproute2 | procps | net-tools | curl | git | tar | gzip | psmisc) ;;
          *)
            echo "E: Unable to locate package $1" >&2
            exit 100
            ;;
        esac
        if [ "$verb" = install ]; then
          case $1 in
            numactl | ethtool)
              # If a program is missing, bin is a directory of this worker.
              if [ ! -e "$root/bin/$1" ]; then
                link=$(readlink "$root/bin/sudo")
                ln -s "${link%/*}/$1" "$root/bin/$1" || exit 100
                echo "Setting up $1 ..."
                shift
                continue
              fi
              ;;
          esac
          echo "$1 is already the newest version."
        fi
      fi
      ;;
  esac
  shift
done
case $verb in
  install) echo '0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.' ;;
  update) echo 'Reading package lists... Done' ;;
  *)
    echo "E: The simulator does not model '$verb'" >&2
    exit 100
    ;;
esac
