#!/bin/bash
# put: DEST MANY. Takes files as a tar archive on stdin, in pieces: a line with a number of
# bytes, and these bytes. The last piece has 0 bytes. Prints the digest of what has arrived.
# If the line "put" follows, puts the files into place. Until then they are in a directory
# beside that place, which the script removes when stdin ends, and when the script ends for
# any other reason.
#
# MANY=1: DEST is a directory, even if it does not exist yet.
set -u -o pipefail
dest=$1 many=$2 stage=''

clear_stage() {
  if [[ $stage ]]; then
    chmod -R u+rwX -- "$stage" 2>/dev/null
    rm -rf -- "$stage"
  fi
}

main() {
  local base order error sum
  trap clear_stage EXIT
  trap 'exit 1' HUP INT TERM PIPE
  cd -- "${HOME:?}" || fail "enter $HOME"
  case $dest in
    '~' | '') dest=. ;;
    '~'/*) dest=./${dest#"~/"} ;;
    /*) ;;
    *) dest=./$dest ;;
  esac
  if [[ $dest == */ || -d $dest ]]; then many=1; fi
  base=$dest
  if ((! many)); then base=$(dirname -- "$dest"); fi
  while [[ $base == ?*/ ]]; do base=${base%/}; done
  while [[ ! -d $base ]]; do
    if [[ -e $base || -L $base ]]; then fail "$base is no directory"; fi
    base=$(dirname -- "$base")
  done
  error=$(mktemp -d -- "$base/.multihost-cp.XXXXXXXXXX" 2>&1) || fail "$error"
  stage=$error
  say ready
  error=$(pieces 2>&1 | tar -x -p --no-same-owner --delay-directory-restore -C "$stage" -f - 2>&1) || fail "$error"
  sum=$(digest 2>&1) || fail "$sum"
  dry=1
  error=$(put_all 2>&1) || fail "$error"
  dry=0
  say arrived "${sum%% *}"
  IFS= read -r order || order=
  if [[ $order != put ]]; then exit 1; fi
  error=$(put_all 2>&1) || fail "$error"
  say put
}

# pieces: prints the archive. Fails unless the archive is whole.
pieces() {
  local n
  while IFS= read -r n && [[ $n =~ ^[0-9]{1,9}$ ]]; do
    if ((n == 0)); then return; fi
    head -c "$n" || return
  done
  return 1
}

# digest: prints the digest of all names and kinds, of the targets of links, and of the
# contents.
digest() {
  cd -- "$stage" || return
  {
    find . -mindepth 1 -printf '%y %p %l\0' | sort -z &&
      find . -type f -print0 | sort -z | xargs -0 -r sha256sum -z --
  } | sha256sum
}

# put_all: moves everything to its place. If dry is 1, only checks whether that is possible.
put_all() {
  local entry name
  if ((dry)); then
    :
  elif ((many)); then mkdir -p -- "$dest" || return; else mkdir -p -- "$(dirname -- "$dest")" || return; fi
  for entry in "$stage"/* "$stage"/.[!.]* "$stage"/..?*; do
    if [[ ! -e $entry && ! -L $entry ]]; then continue; fi
    name=${entry##*/}
    if ((many)); then place "$entry" "$dest/$name" || return; else place "$entry" "$dest" || return; fi
  done
}

# place FROM TO: merges FROM into a directory TO. Anything else replaces what is there, at
# once. If dry is 1, only checks.
place() {
  local entry
  if [[ -d $1 && ! -L $1 && -d $2 ]]; then
    for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
      if [[ ! -e $entry && ! -L $entry ]]; then continue; fi
      if ((! dry)); then chmod u+w -- "$1" || return; fi
      place "$entry" "$2/${entry##*/}" || return
    done
  elif [[ -d $2 && ! -L $2 ]]; then
    echo "$2 is a directory, and what is to take its place is none"
    return 1
  elif [[ -d $1 && ! -L $1 && (-e $2 || -L $2) ]]; then
    echo "$2 is no directory, and what is to take its place is one"
    return 1
  elif ((dry)); then
    if [[ -d ${2%/*} && ! -w ${2%/*} ]]; then
      echo "${2%/*}: Permission denied"
      return 1
    fi
  elif [[ -d $1 && ! -L $1 ]]; then
    chmod_move "$1" "$2"
  else
    mv -fT -- "$1" "$2"
  fi
}

# chmod_move FROM TO: moves a directory. During the move, it gives the directory the right
# to write, without which it cannot get another parent.
chmod_move() {
  local mode
  mode=$(stat -c %a -- "$1") && chmod u+w -- "$1" && mv -fT -- "$1" "$2" && chmod "$mode" -- "$2"
}

main
