#!/usr/bin/env bash
#
# unpack RUN ADOPT: unpacks the gzipped tar on stdin to ~/RUN, for a worker that fetches its
# files by itself. Failures are on stderr. Status 3: ~/RUN belongs to the user and stays
# unchanged.

cd -- "$HOME" || exit 1
dir=$HOME/$1
# shellcheck disable=SC2034 # place.sh reads it
state=$HOME/.multihost/sync/$1
if foreign && [[ $2 != yes || $REPLY == file || $REPLY == dangling\ * ]]; then
  printf '%s is a %s that no run brought there; it is left as it is\n' "$dir" "${REPLY%% *}" >&2
  exit 3
fi
# Without the digest, the next sync takes the directory for incomplete.
(umask 077 && mkdir -p -- "$state") && rm -f -- "$state/digest" && take_place && cd -- "$dir" && exec tar -xzpf -
