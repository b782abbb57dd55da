#!/usr/bin/env bash
#
# Writes the data that the worker script receives under TOKEN to stdout, while it arrives.
# It may start before the worker script. Incomplete output means that the script was
# stopped.

export LC_ALL=C
unset PERL5OPT PERL5LIB
spool=$HOME/.multihost/store/incoming/relay.$1
for ((tries = 0; tries < 300; tries++)); do
  [[ ! -f $spool/data ]] || break
  sleep 0.1 # both scripts start at the same time
done
read -r pid <"$spool/pid" || exit 1
exec 3<"$spool/data" || exit 1
if command -v perl >/dev/null; then
  # perl costs a third as much as tail and head, and two of these scripts run on a worker.
  # shellcheck disable=SC2016
  exec perl -e '($pid, $over) = @ARGV; for ($ended = 0; !$ended; select(undef, undef, undef, 0.05)) {
		$ended = -e $over || !kill(0, $pid);
		while (sysread(STDIN, $piece, 65536)) {
			for ($at = 0; $at < length $piece; $at += $n) {
				$n = syswrite(STDOUT, $piece, length($piece) - $at, $at) || exit 1;
			}
		}
	}' "$pid" "$spool/over" <&3
fi
ended=''
until [[ $ended ]]; do
  [[ ! -e $spool/over ]] && kill -0 "$pid" 2>/dev/null || ended=yes
  cat <&3 2>/dev/null || exit 1
  [[ $ended ]] || sleep 0.2
done
