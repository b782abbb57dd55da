# shellcheck shell=bash disable=SC2034,SC2154
# What a job's startup script finds on a stage where time is told: in place of the
# functions and commands that reach out of it, and before its last line, which
# begins it. The stage listens on descriptor 3 and answers on 4.
clock=$STAGE_CLOCK

# ask WORD...: the stage does it, and says a status, two texts, which are then in
# $said and $also, and what time it is then.
ask() {
  local code
  printf '%s\0' "$#" "$@" >&3
  IFS= read -r -d '' -u 4 code && IFS= read -r -d '' -u 4 said && IFS= read -r -d '' -u 4 also &&
    IFS= read -r -d '' -u 4 clock || exit 1
  return "$code"
}

now() { REPLY=$clock; }

sleep() { ask sleep "$1"; }

date() { if [[ $1 == +%s ]]; then printf '%s\n' "$clock"; else command date "$@"; fi; }

# Calls of the metadata server and the API. How curl is made to do them is vm.sh's.
instance() {
  local code
  ask instance "$1"
  code=$?
  printf '%s' "$said"
  return "$code"
}

attribute() { ask attribute "$@"; }

api() {
  reply=''
  ask api "$@"
  status=$also
  if [[ $status == 000 ]]; then
    why=$said
    return 1
  fi
  reply=$said
  if [[ $status == 2?? ]]; then return 0; fi
  explain "$reply"
  return 1
}

# The files of the supervisor are made by the stage.
op() {
  if [[ $1 == arm ]]; then command cat >/dev/null; fi
  ask op "$runs" "$nonce" "$@"
  printf '%s' "$said" >"$scratch/answer"
  : >"$scratch/error"
}

# Of all that runs under a limit here, only the preflight is not run as the login.
timeout() {
  ask preflight
  printf 'multihost-preflight 1\tend\n'
}

as_login() { printf '%s' "$HOME"; }
id() { return 0; }

# When a command was last seen, by the clock of the stage.
touch() { printf '%s' "$clock" >"${*: -1}"; }
stat() { if [[ $2 == %Y ]]; then cat -- "${*: -1}"; else command stat "$@"; fi; }
