#!/bin/bash
# get: PATH... Sends files. After the line "stream BYTES", where BYTES is an estimate,
# stdout is a tar archive of the files. stderr then has the messages of tar, if any, the
# status of tar, and the digest of the archive.
set -u -o pipefail

main() {
  local path dir name sum status size
  local -a found=() words=()
  cd -- "${HOME:?}" || fail "enter $HOME"
  for path; do
    path=${path/#'~/'/./}
    path=${path%"${path##*[!/]}"}
    if [[ -e $path || -L $path ]]; then
      found+=("$path")
      continue
    fi
    matches "$path"
    if ((${#matched[@]} == 0)); then fail "$path: there is no such file or directory"; fi
    found+=("${matched[@]}")
  done
  for path in "${found[@]}"; do
    dir=.
    if [[ $path == */* ]]; then dir=${path%/*}/; fi
    name=./${path##*/}
    dir=$(cd -- "$dir" && pwd -P && echo x) || fail "$dir cannot be entered"
    words+=(-C "${dir%$'\nx'}" "$name")
  done
  size=$(du -cbs -- "${found[@]}" 2>/dev/null | tail -n 1)
  exec 3>&1
  say stream "${size%%[!0-9]*}"
  sum=$(
    exec 6>&1
    tar -c -f - --format=posix --hard-dereference "${words[@]}" | tee >(exec sha256sum >&6) >&3
  )
  status=$?
  printf '\n' >&2
  say sent "$status" "${sum%% *}" >&2
}

# matches PATTERN: sets the array matched to the names that match.
matches() {
  local IFS=
  shopt -s nullglob
  # shellcheck disable=SC2206 # names are to be expanded, and IFS splits nothing
  matched=($1)
  shopt -u nullglob
  if ((${#matched[@]} == 1)) && [[ ! -e ${matched[0]} && ! -L ${matched[0]} ]]; then matched=(); fi
}

main "$@"
