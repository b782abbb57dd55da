#!/bin/bash
# SIZE DIGEST ARGUMENTS... Runs the script with the SHA-256 DIGEST. If SIZE is positive, the
# first SIZE bytes of stdin are the script, compressed. The worker keeps the script, unless
# DIGEST is "-". If SIZE is negative, this runs a kept script, which must have the length
# -SIZE. The runner has compared the script's hash when it connected (see clock.go).
# environment.sh runs before the script. A rename puts a script in place, so that the script
# is always whole. Another runner, or another worker with the same home, may be reading it.
# Put comments only here, because the rest is part of each command line.

set -- "$HOME/.multihost/kit/${2:0:16}" "$@"
if (($2 > 0)); then
  s=$(head -c "$2" | gzip -dc) || exit 74
  [[ $3 == - ]] || {
    [[ -d ${1%/*} ]] || { mkdir -p "${1%/kit/*}" && mkdir -m 700 "${1%/*}"; }
    IFS= read -r -d '' k <"$1"
    [[ $k == "$s" ]] || { printf %s "$s" >"$1.$$" && mv -f "$1.$$" "$1"; } || rm -f "$1.$$"
    k=("${1%/*}"/*)
    # shellcheck disable=SC2012 # names are hexadecimal
    ((${#k[@]} < 100)) || (cd "${1%/*}" && ls -t | tail -n +50 | xargs rm -f)
  } </dev/null >/dev/null 2>&1
else
  { IFS= read -r -d '' s <"$1"; } 2>/dev/null
  ((${#s} == -$2)) || {
    echo "multihost-kit: lacks $3" >&2
    exit 83
  }
fi
shift 3
eval "$s"
