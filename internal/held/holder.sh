#!/bin/bash
# holder UNTIL LEASE: process 1 of a pod that waits for commands. It only sleeps. bash reaps
# the processes that commands leave behind.
#
# It ends with 0 at the time UNTIL (seconds since 1970), and when nobody has used the pod
# for LEASE seconds. 0 means never. The pod is in use while a command of a run lives in it.
# To show other use, multihost writes the file "used" whenever it begins something in the
# pod, and regularly while it is connected.
#
# On SIGTERM it ends with 143. An end with 0 would tell Kubernetes that the pod is complete,
# and no other pod would take its place. The end of process 1 kills all other processes of
# the pod, so the commands first get SIGTERM and some time.
tmp=${MULTIHOST_ROOT_TMP-}/tmp
used=$tmp/.multihost-used seen=$tmp/.multihost-seen index=$tmp/.multihost
until=$1 lease=$2 at='' sleeper=''

uptime() {
  read -r up _ </proc/uptime
  up=${up%.*}
}

# lives succeeds while a run holds the lock of the pod.
lives() { [[ -e $index/lock ]] && ! { flock -s -n 7; } 7<"$index/lock"; }

# end_commands SECONDS: sends TERM to the commands, and waits until they have ended. Then it
# leaves followers 3 s to read the last output and the exit status.
end_commands() {
  local limit entry line pid start stat
  local -a fields
  uptime
  limit=$((up + $1))
  lives || return
  for entry in "$index"/*.run; do
    while IFS= read -r line; do
      if [[ ! $line =~ ^started=([1-9][0-9]*)\ ([0-9]+) ]]; then continue; fi
      pid=${BASH_REMATCH[1]} start=${BASH_REMATCH[2]}
      stat=$(<"/proc/$pid/stat") || continue
      read -ra fields <<<"${stat##*) }"
      if [[ ${fields[19]} == "$start" ]]; then kill -TERM -- "-$pid"; fi
    done <"$entry"
  done 2>/dev/null
  while lives && ((up < limit)); do
    sleep 0.1
    uptime
  done
  sleep 3
}

leave() {
  trap '' TERM INT
  end_commands 22
  if [[ $sleeper ]]; then kill "$sleeper"; fi
  exit 143
}
trap leave TERM INT

: >"$used"
: >"$seen"
uptime
at=$up
look=$((lease ? lease / 4 : 60))
look=$((look > 60 ? 60 : look < 1 ? 1 : look))
if ((! until && ! lease)); then look=86400; fi
while :; do
  uptime
  if [[ $used -nt $seen ]]; then
    at=$up
    : >"$seen"
  fi
  if ((lease)) && lives; then at=$up; fi
  printf -v now '%(%s)T' -1
  if ((until && now >= until)); then
    trap '' TERM INT
    end_commands 60
    exit 0
  fi
  if ((lease && up - at >= lease)); then exit 0; fi
  pause=$look
  if ((until && until - now < pause)); then pause=$((until - now)); fi
  sleep "$pause" &
  sleeper=$!
  wait "$sleeper"
done
