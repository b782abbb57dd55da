#!/usr/bin/env bash
#
# Makes ~/RUN equal to a manifest, from the content store of this login.
#
#   check   RUN DIGEST ADOPT                    same | differs [BASE DIGEST]
#   look    RUN DIGEST ENTRIES                  gzip of the manifest on stdin; lacks. Changes nothing
#   plan    RUN DIGEST MAXAGE MAXBYTES KEEP OWNER ADOPT - BASE PIECE...
#                                               gzip of the new parts of the manifest on
#                                               stdin; filled | missing
#   receive RUN DIGEST MAXAGE MAXBYTES KEEP OWNER ADOPT FORM
#                                               tar of contents on stdin, and FORM is gzip or plain; filled | missing
#   feed    RUN DIGEST MAXAGE MAXBYTES KEEP OWNER ADOPT FORM TOKEN SIZE SERVE
#                                               as receive, with SIZE bytes on stdin; other
#                                               workers read them with SERVE
#   fetch   RUN DIGEST MAXAGE MAXBYTES KEEP OWNER ADOPT FORM TOKEN SIZE SERVE HOST PORT USER KEY
#                                               as feed, but the bytes come from a worker,
#                                               by its command SERVE
#
# While a run of that name is active, the answer is "busy OWNER", and nothing changes. If no
# sync made ~/RUN, the answer is "foreign WHAT", and nothing changes. With ADOPT=yes, a sync
# takes over a directory.
#
# Before "missing N" and "lacks N GONE", lines "hash HASH..." have N hashes. missing has the
# word "relays" if fetch works here. GONE is how many files of an earlier sync would be
# removed. After "broken TEXT" the caller may retry the step. feed and fetch serve other
# workers until their stdin ends. The manifest has six fields for each entry, each followed
# by a NUL: kind (f, d or l), mode, size, hash, path, link target. Entries are sorted by
# path. The digest is the SHA-256 of the manifest.
#
# shellcheck disable=SC2154 # the prelude sets variables that are used here

# When the connection ends, the script continues and keeps all contents that have arrived
# whole.
trap '' PIPE HUP
# The last part of a pipeline runs in this shell.
shopt -s lastpipe

step=${1-} run=${2-} digest=${3-} max_age=${4-0} max_bytes=${5-0} keep=${6-0}
owner=${7-} adopt=${8-} form=${9-} token=${10-} size=${11-} serve=${12-} peer_host=${13-} peer_port=${14-} peer_user=${15-} peer_key=${16-}

[[ -n $HOME && -d $HOME ]] || fail "the login has no home directory"
[[ $run == .multihost/agent || $run =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || fail "bad run name"
cd -P -- "$HOME" || fail "cannot enter the home directory"
home=$PWD
dir=$home/$run
state=$home/.multihost/sync/$run
store=$home/.multihost/store/sha256
incoming=$home/.multihost/store/incoming
store_lock=$home/.multihost/store/lock
pruned=$home/.multihost/store/pruned grown=$home/.multihost/store/grown
manifest=$state/manifest.$digest # the manifest of the files that this step brings
stage='' spool=''

clean_up() {
  [[ -z $stage ]] || rm -rf -- "$stage"
  [[ -z $spool ]] || rm -rf -- "$spool"
}
trap clean_up EXIT

# with_names COMMAND...: runs COMMAND with the elements of $names as further arguments, if
# there are any. Few names take one process, and xargs would take two more. Starting
# processes takes most of the time of a small sync.
names=()
with_names() {
  if ((${#names[@]} == 0)); then
    return
  elif fit; then
    "$@" "${names[@]}"
  else
    printf '%s\0' "${names[@]}" | xargs -0 -r "$@"
  fi
}

# fit: succeeds if $names fit on a command line. Linux allows many more names than $few.
few=1000
fit() {
  ((${#names[@]} <= few)) || return
  local IFS=/ all
  all="${names[*]}"
  ((${#all} < 100000))
}

# with_names_of FILE COMMAND...: is with_names for the names in FILE, each followed by a
# NUL.
with_names_of() {
  local file=$1
  shift
  mapfile -d '' -t -n $((few + 1)) names <"$file" || return
  if fit; then with_names "$@"; else xargs -0 -r -a "$file" "$@"; fi
}

# look_at_all prints one line, followed by a NUL, for each entry of the last sync. The line
# changes when the entry is changed, replaced or given another mode, because nothing can set
# ctime back. The line of a directory changes only when the directory is replaced or gets
# another mode, because a run may put files into it. Call it in a subshell, because it
# changes the directory.
look_at_all() {
  local status=0
  cd -- "$dir" 2>/dev/null || exit
  with_names_of "$state/directories" stat --printf='d %f %i %n\0' -- 2>/dev/null || status=$?
  with_names_of "$state/paths" stat --printf='f %f %s %i %.9Z %n\0' -- 2>/dev/null || status=$?
  return "$status"
}

check() {
  local have=''
  [[ -f $state/digest && -f $state/paths && -f $state/seen && -d $dir ]] &&
    read -r have _ <"$state/digest" && [[ $have == "$digest" ]] && unchanged
}

# unchanged: succeeds if the output of look_at_all equals $state/seen. If all
# names fit on one command line, one process looks at all of them.
unchanged() {
  local - i count line name IFS=$'\n'
  local -a seen lines
  mapfile -d '' -t -n $((few + 1)) names <"$state/directories"
  count=${#names[@]}
  mapfile -d '' -t -O "$count" -n $((few + 1)) names <"$state/paths"
  if ! fit; then
    look_at_all | cmp -s -- - "$state/seen"
    return
  fi
  mapfile -d '' -t seen <"$state/seen"
  ((${#seen[@]} == ${#names[@]})) || return
  ((${#names[@]} > 0)) || return 0
  set -f
  # shellcheck disable=SC2207 # lines are meant, and no here-string: /tmp may be full
  lines=($(cd -- "$dir" && exec stat --printf='%f %s %i %.9Z\n' -- "${names[@]}" 2>/dev/null))
  ((${#lines[@]} == ${#names[@]})) || return # a name is missing
  for i in "${!lines[@]}"; do
    line=${lines[i]} name=${names[i]}
    if ((i >= count)); then
      [[ ${seen[i]} == "f $line $name" ]] || return
    else
      line=${line% *} # without a directory's time and size
      [[ ${seen[i]} == "d ${line%% *} ${line##* } $name" ]] || return
    fi
  done
}

# last_run: reports the run that was synced last, and the digest of its manifest.
last_run() {
  local newest='' file sum
  for file in "$home"/.multihost/sync/*/digest; do
    [[ -f $file && -f ${file%digest}manifest && (-z $newest || $file -nt $newest) ]] && newest=$file
  done
  [[ $newest ]] && read -r sum _ <"$newest" && newest=${newest%/digest} && say differs "${newest##*/}" "$sum"
}

prepare() {
  if [[ ! -d $state || ! -d $store || ! -d $incoming ]]; then
    [[ -d $home/.multihost ]] || mkdir -p "$home/.multihost" || fail "cannot make ~/.multihost"
    (umask 077 && mkdir -p "$state" "$store" "$incoming") || fail "cannot make ~/.multihost/store"
  fi
  # Only one sync at a time may fill a run directory. An interrupted one may need a moment
  # to end.
  exec 9>"$state/lock" 8>"$store_lock" || fail "cannot make lock files in ~/.multihost"
  flock -w 60 9 || fail "another sync into ~/$run is under way"
  # The shared lock keeps others from pruning the store.
  flock -s -w 600 8 || fail "the content store is locked"
}

# take_manifest PIECE...: writes the manifest from its pieces. A piece is a number of new
# bytes, or OFFSET+LENGTH of the manifest of the run $token. Without pieces stdin has the
# whole manifest.
take_manifest() {
  local sum
  if (($# == 0)); then
    gzip -dc
  elif [[ " $* " =~ \ [0-9]+\  ]]; then
    gzip -dc | put_together "$@"
  else
    while IFS= read -r -d '' sum; do :; done # no new bytes
    put_together "$@"
  fi >"$manifest" || fail "cannot write ~/.multihost/sync/$run"
  read -r sum _ < <(sha256sum <"$manifest")
  if [[ $sum != "$digest" ]]; then
    say broken "the manifest did not arrive whole"
    exit 1
  fi
}

# put_together PIECE...: writes the pieces to stdout. The new bytes are on stdin.
put_together() {
  local piece old=$home/.multihost/sync/$token/manifest
  [[ -f $old ]] || old=/dev/null # the digest will be wrong
  for piece; do
    case $piece in
      0+*) head -c "${piece#*+}" -- "$old" ;;
      *+*) tail -c "+$((${piece%+*} + 1))" -- "$old" 2>/dev/null | head -c "${piece#*+}" ;;
      *) head -c "$piece" ;;
    esac || return
  done
}

# hash_in DIRECTORY: prints a line "HASH", two characters, "NAME" for each of $names, which
# are contents in DIRECTORY. On a processor with instructions for hashes, openssl is eight
# times as fast as coreutils. Call it in a subshell, because it changes the directory.
hash_in() {
  local -a command=(sha256sum --)
  ! command -v openssl >/dev/null || command=(openssl dgst -sha256 -r)
  cd -- "$1" || exit
  ((${#names[@]} == 0)) || ! fit || exec "${command[@]}" "${names[@]}"
  with_names "${command[@]}"
}

# sum_of NUMBER...: sets $REPLY to the sum. It skips other words, because a crash may have
# damaged the file.
sum_of() {
  local number
  REPLY=0
  for number; do
    [[ ! $number =~ ^[1-9][0-9]{0,15}$ ]] || ((REPLY += number))
  done
}

# receive_contents: unpacks the archive and moves undamaged contents to the store.
declare -A proven=() # contents that this step has received and hashed
receive_contents() {
  local in sum name prefix tar_failed='' unzip=''
  local -a there=() whole=()
  local -A prefixes=()
  in=$(mktemp -d "$incoming/XXXXXXXX") || fail "cannot make a directory in ~/.multihost/store"
  [[ $form == plain ]] || unzip=z
  # -m gives contents the present time, because the store is pruned by age. -b: 64 KiB at a
  # time.
  tar "-x${unzip}mf" - -b 128 -C "$in" --no-same-owner || tar_failed=yes
  mapfile -d '' -t there < <(exec find "$in" -maxdepth 1 -type f -printf '%s ./%f\0')
  names=("${there[@]#* }")
  while read -r sum name; do
    name=${name#\*}
    name=${name#./}
    if [[ $sum == "$name" && $name =~ ^[0-9a-f]{64}$ ]]; then
      prefixes[${name:0:2}]=1 proven[$name]=1
      whole+=("$in/$name" "$store/${name:0:2}/$name")
    fi
  done < <(hash_in "$in")
  # Add the size before storing, so that prune never counts too few bytes.
  sum_of "${there[@]%% *}"
  printf '%s\n' "$REPLY" >>"$grown" || tar_failed=yes
  names=()
  for prefix in "${!prefixes[@]}"; do
    [[ -d $store/$prefix ]] || names+=("$store/$prefix")
  done
  with_names mkdir -p -- || tar_failed=yes
  names=("${whole[@]}")
  rename_names || tar_failed=yes
  rm -rf -- "$in"
  if [[ -n $tar_failed ]]; then
    [[ ! -s $spool/said ]] || cat -- "$spool/said" >&2
    say broken "the files did not arrive whole"
    exit 1
  fi
}

# take_in COMMAND...: writes the output of COMMAND into a spool file. While the file grows,
# this script reads it, and so do the workers that fetch from this worker.
take_in() {
  local old pid
  [[ $token =~ ^[A-Za-z0-9]+$ ]] || fail "bad token"
  # Remove spools that a SIGKILL left.
  for old in "$incoming"/relay.*/pid; do
    [[ -f $old ]] && read -r pid <"$old" && ! kill -0 "$pid" 2>/dev/null && rm -rf -- "${old%/pid}"
  done
  spool=$incoming/relay.$token
  if ! { mkdir -- "$spool" && echo $$ >"$spool/pid" && : >"$spool/data"; }; then
    say broken "cannot write ~/.multihost/store"
    exit 1
  fi
  {
    exec 8>&- 9>&-
    # ssh does not report why it cannot write its output.
    "$@" >>"$spool/data" || has_space || echo "No space left on device" >&2
    : >"$spool/over"
  } >/dev/null 2>"$spool/said" &
  receive_contents < <(exec 8>&- 9>&- && eval "$serve")
}

has_space() {
  local free size
  read -r free size < <(stat -f -c '%a %S' -- "$spool") && ((free * size >= 65536))
}

# feed: writes the runner's bytes in large pieces.
feed() { dd bs=64k count="$size" iflag=fullblock,count_bytes status=none <&7; }

# fetch: writes the bytes that the worker at $peer_host serves. ssh may use only the
# runner's forwarded agent, and the host key that the runner has verified. fetch ends when
# the runner closes the connection.
fetch() {
  local ssh watch algorithms=${peer_key%% *}
  [[ $algorithms != ssh-rsa ]] || algorithms=rsa-sha2-512,rsa-sha2-256
  printf 'peer %s\n' "$peer_key" >"$spool/known_hosts"
  ssh -F /dev/null -T -o BatchMode=yes -o LogLevel=ERROR \
    -o StrictHostKeyChecking=yes -o HostKeyAlias=peer -o HostKeyAlgorithms="$algorithms" \
    -o UserKnownHostsFile="$spool/known_hosts" -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no \
    -o IdentityFile=none -o PreferredAuthentications=publickey -o ForwardAgent=no -o ControlPath=none \
    -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o Compression=no \
    -o Ciphers=^aes128-gcm@openssh.com -o KexAlgorithms=^curve25519-sha256 \
    -p "$peer_port" -l "$peer_user" -- "$peer_host" "$serve" </dev/null &
  ssh=$!
  {
    read -r -u 7
    kill "$ssh"
  } &
  watch=$!
  wait "$ssh"
  kill "$watch"
}

# keep_serving: waits until stdin ends. Other workers read the spool until then.
keep_serving() {
  exec 8>&- 9>&-
  cat <&7 >/dev/null
}

can_fetch() {
  # Older versions of OpenSSH do not tell the agent the host of a login.
  [[ $(ssh -V 2>&1) =~ ^OpenSSH_([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 809))
}

# Element i of each array belongs to entry i.
kinds=() modes=() sizes=() hashes=() paths=() targets=()

add_entry() {
  case "/$5/" in
    */../* | *//* | */./*) fail "bad path in the manifest" ;;
  esac
  kinds+=("$1") modes+=("$2") sizes+=("$3") hashes+=("$4") paths+=("$5") targets+=("$6")
}

read_manifest() {
  local i
  local -a all
  mapfile -d '' -t all <"$1"
  for ((i = 0; i + 5 < ${#all[@]}; i += 6)); do
    add_entry "${all[i]}" "${all[i + 1]}" "${all[i + 2]}" "${all[i + 3]}" "${all[i + 4]}" "${all[i + 5]}"
  done
}

# find_work: fills the arrays with the entries that may differ between the directory and the
# manifest. It fills $old with entries of the earlier sync, six elements each, that the
# manifest may lack. After a complete sync, an entry may differ if the two manifests differ
# there, or if somebody has changed it since. Otherwise every entry may differ.
old=() all_used=''
find_work() {
  find_differences && return
  all_used=yes # tell_missing marks all contents of the run as used
  old=() kinds=() modes=() sizes=() hashes=() paths=() targets=()
  read_manifest "$manifest"
  read_old
}

read_old() { [[ ! -f $state/manifest ]] || mapfile -d '' -t old <"$state/manifest"; }

# find_differences fails if it cannot find the differences. Each step writes a file, so that
# its failure is visible.
find_differences() {
  local - line i path fields work=$state/work
  local -a all=()
  local -A touched=()
  set -o pipefail
  [[ -f $state/digest && -f $state/seen && -f $state/manifest ]] || return 1
  { look_at_all || :; } | sort -z >"$work.now" && sort -z -- "$state/seen" >"$work.seen" &&
    comm -z -3 -- "$work.seen" "$work.now" >"$work.touched" &&
    records "$state/manifest" >"$work.had" && records "$manifest" >"$work.wanted" &&
    comm -z -3 -- "$work.had" "$work.wanted" | sort -z -t $'\2' -k 5,5 >"$work.differs" || return 1
  while IFS= read -r -d '' line; do
    line=${line#$'\t'}
    # If a directory was changed, everything below it may differ too.
    [[ $line == f* ]] || return 1
    touched["/${line#* * * * * }"]=1
  done <"$work.touched"
  while IFS=$'\2' read -r -d '' -a fields; do
    fields=("${fields[@]//$'\3b'/$'\2'}")
    fields=("${fields[@]//$'\3a'/$'\3'}")
    if [[ ${fields[0]} == $'\t'* ]]; then
      add_entry "${fields[0]#$'\t'}" "${fields[@]:1:4}" "${fields[5]-}"
      touched["/${fields[4]}"]=''
    else
      old+=("${fields[@]:0:5}" "${fields[5]-}")
    fi
  done <"$work.differs"
  [[ ${touched[*]} == *1* ]] || return 0
  mapfile -d '' -t all <"$manifest"
  for ((i = 0; i + 5 < ${#all[@]}; i += 6)); do
    path=${all[i + 4]}
    [[ -z ${touched["/$path"]-} ]] || add_entry "${all[i]}" "${all[i + 1]}" "${all[i + 2]}" "${all[i + 3]}" "$path" "${all[i + 5]}"
  done
}

# records FILE: prints each entry of a manifest as one record, with \2 between its fields.
records() { sed -z 'N;N;N;N;N;s/\x03/\x03a/g;s/\x02/\x03b/g;s/\x00/\x02/g' -- "$1" | sort -z; }

blob() { blob=$store/${1:0:2}/$1; }
blob=

# find_contents: sets $missing to the hashes of contents that the store lacks, and $here to
# the store's files of the other contents.
missing=() here=()
find_contents() {
  local i hash
  local -A seen=()
  missing=() here=()
  for i in "${!kinds[@]}"; do
    hash=${hashes[i]}
    [[ ${kinds[i]} == f && -z ${seen[$hash]-} ]] || continue
    blob "$hash"
    [[ -f $blob ]] || seen[$hash]=missing
    : "${seen[$hash]:=here}"
  done
  for hash in "${!seen[@]}"; do
    if [[ ${seen[$hash]} == missing ]]; then
      missing+=("$hash")
    else
      blob "$hash"
      here+=("$blob")
    fi
  done
}

# tell_missing: if the store lacks contents, reports them and exits.
tell_missing() {
  find_contents
  # A new time of modification keeps used contents in the store.
  names=("${here[@]}")
  with_names touch -c --
  ((${#missing[@]} > 0)) || return 0
  local relays=''
  [[ $step != plan ]] || ! can_fetch || relays=' relays'
  say_missing
  say missing "${#missing[@]}$relays"
  exit 0
}

# say_missing: reports the contents that find_contents did not find.
say_missing() {
  local i
  for ((i = 0; i < ${#missing[@]}; i += 100)); do
    say hash "${missing[@]:i:100}"
  done
}

# through_link PATH: succeeds if a parent directory of PATH is a link that the run put
# there. Write and remove nothing through it.
declare -A way=()
through_link() {
  local path=$1 parent=${1%/*}
  [[ $parent != "$path" ]] || return 1
  if [[ -z ${way[$parent]-} ]]; then
    if [[ -L $dir/$parent ]] || through_link "$parent"; then
      way[$parent]='link'
    else
      way[$parent]='plain'
    fi
  fi
  [[ ${way[$parent]} == link ]]
}

# find_gone: sets $gone to the files in $old that the manifest lacks, and $gone_dirs to the
# directories in $old that it lacks.
gone=() gone_dirs=()
find_gone() {
  gone=() gone_dirs=()
  local i path
  local -A wanted=()
  for i in "${!paths[@]}"; do
    # If a directory replaces a file, or a file a directory, the path counts as another
    # entry.
    if [[ ${kinds[i]} == d ]]; then wanted["d${paths[i]}"]=1; else wanted["f${paths[i]}"]=1; fi
  done
  for ((i = 0; i + 5 < ${#old[@]}; i += 6)); do
    path=${old[i + 4]}
    if [[ ${old[i]} == d ]]; then
      [[ -n ${wanted["d$path"]-} ]] || gone_dirs+=("$path")
    elif [[ -z ${wanted["f$path"]-} ]]; then
      through_link "$path" && continue
      if [[ -L $dir/$path || -e $dir/$path && ! -d $dir/$path ]]; then
        gone+=("$dir/$path")
      fi
    fi
  done
}

removed=0
remove_gone() {
  local i path
  find_gone
  removed=${#gone[@]}
  names=("${gone[@]}")
  with_names rm -f -- || fail "cannot remove files of the earlier sync"
  # Remove the deepest first. A directory stays if the run has put files into it.
  for ((i = ${#gone_dirs[@]} - 1; i >= 0; i--)); do
    path=${gone_dirs[i]}
    through_link "$path" && continue
    [[ -d $dir/$path && ! -L $dir/$path ]] && rmdir --ignore-fail-on-non-empty -- "$dir/$path"
  done
}

make_directories() {
  local i path
  names=()
  for i in "${!kinds[@]}"; do
    [[ ${kinds[i]} == d ]] || continue
    path=$dir/${paths[i]}
    # Parents come first. So none of a path's parents is still a link.
    if [[ -L $path || -e $path && ! -d $path ]]; then
      rm -f -- "$path" || fail "cannot replace ${paths[i]@Q}"
    fi
    [[ -d $path ]] || names+=("$path")
  done
  with_names mkdir -p -- || fail "cannot make directories in ~/$run"
}

# find_changed: sets $changed to the indices of the files whose content differs from the
# manifest.
changed=()
find_changed() {
  local i line
  local -A sums=()
  changed=() names=()
  for i in "${!kinds[@]}"; do
    [[ ${kinds[i]} == f && -f $dir/${paths[i]} && ! -L $dir/${paths[i]} ]] && names+=("${paths[i]}")
  done
  if ((${#names[@]} > 0)); then
    while IFS= read -r -d '' line; do
      sums["${line:66}"]=${line:0:64}
    done < <(cd -- "$dir" && with_names sha256sum -z -- 2>/dev/null)
  fi
  for i in "${!kinds[@]}"; do
    [[ ${kinds[i]} == f ]] || continue
    if [[ -d $dir/${paths[i]} && ! -L $dir/${paths[i]} ]]; then
      fail "${paths[i]@Q} is a directory with files that the run made in ~/$run; remove it or use another run name"
    fi
    [[ ${sums["${paths[i]}"]-} == "${hashes[i]}" ]] || changed+=("$i")
  done
}

# place_files: copies contents from the store, verifies their hashes and renames them. It
# makes no hard links, because a run may write into its files but not into the store.
staged=()
place_files() {
  local i line spoilt=
  local -a plain=() again=()
  local -A first=()
  ((${#changed[@]} > 0)) || return 0
  stage=$(mktemp -d "$dir/.multihost-sync.XXXXXXXX") || fail "cannot write to ~/$run"
  # One cp copies many contents. Each further file with the same content needs a cp of its
  # own.
  for i in "${changed[@]}"; do
    blob "${hashes[i]}"
    if [[ -z ${first[${hashes[i]}]-} ]]; then
      first[${hashes[i]}]=1
      staged[i]=${hashes[i]}
      plain+=("$blob")
    else
      staged[i]=${hashes[i]}.$i
      again+=("$blob" "$stage/${staged[i]}")
    fi
  done
  names=("${plain[@]}")
  with_names cp --reflink=auto -t "$stage" -- || fail "cannot copy to ~/$run"
  if ((${#again[@]} > 0)); then
    printf '%s\0' "${again[@]}" | xargs -0 -r -n 2 -P 8 cp --reflink=auto -- || fail "cannot copy to ~/$run"
  fi
  names=()
  for i in "${changed[@]}"; do
    [[ ${proven[${hashes[i]}]-} ]] || names+=("${staged[i]}")
  done
  if ((${#names[@]} > 0)); then
    while read -r line; do
      i=${line:66:64}
      if [[ ${line:0:64} != "$i" ]]; then
        blob "$i"
        rm -f -- "$blob"
        spoilt=yes
      fi
    done < <(hash_in "$stage")
  fi
  [[ -z $spoilt ]] || tell_missing
  set_modes "$stage" "${changed[@]}"
  names=()
  for i in "${changed[@]}"; do
    names+=("$stage/${staged[i]}" "$dir/${paths[i]}")
  done
  rename_names || fail "cannot write to ~/$run"
  rm -rf -- "$stage"
  stage=''
}

# rename_names: renames files. $names are OLD and NEW in turn. One perl renames all of them,
# and mv would need one process for each. mv is for a machine without perl, and for a
# directory on another file system.
rename_names() {
  # shellcheck disable=SC2016 # for perl
  local -a command=(perl -e '$/ = "\0"; $arguments = @ARGV;
		while (defined($old = $arguments ? shift : <STDIN>)) {
			chomp($old, $new = $arguments ? shift : <STDIN>);
			rename($old, $new) || $!{EXDEV} && !system("mv", "-fT", "--", $old, $new) || die "rename to $new: $!\n" }')
  if ((${#names[@]} == 0)); then
    return
  elif ! command -v perl >/dev/null; then
    printf '%s\0' "${names[@]}" | xargs -0 -r -n 2 -P 8 mv -fT --
  elif fit; then
    "${command[@]}" -- "${names[@]}"
  else
    printf '%s\0' "${names[@]}" | "${command[@]}"
  fi
}

# set_modes WHERE INDEX...: runs one chmod for each different mode, in the directory or in
# the stage.
set_modes() {
  local where=$1 i mode
  shift
  local -A have=()
  for i; do
    have[${modes[i]}]=1
  done
  for mode in "${!have[@]}"; do
    names=()
    for i; do
      [[ ${modes[i]} == "$mode" ]] || continue
      if [[ $where == "$dir" ]]; then names+=("$dir/${paths[i]}"); else names+=("$where/${staged[i]}"); fi
    done
    with_names chmod "$mode" -- || fail "cannot set modes in ~/$run"
  done
}

place_links() {
  local i
  for i in "${!kinds[@]}"; do
    [[ ${kinds[i]} == l ]] || continue
    if [[ -d $dir/${paths[i]} && ! -L $dir/${paths[i]} ]]; then
      fail "${paths[i]@Q} is a directory with files that the run made in ~/$run; remove it or use another run name"
    fi
    ln -sfnT -- "${targets[i]}" "$dir/${paths[i]}" || fail "cannot make the link ${paths[i]@Q}"
  done
}

# in_use: succeeds if a run of that name is active, or about to start, with the files here.
# Sets $REPLY to its owner.
in_use() {
  local path sup start boot at pid begun line who
  boot_id
  # shellcheck disable=SC2034 # alive reads it
  boot=${REPLY:-none}
  for path in "$home/.multihost/runs/$run"/*/supervisor; do
    path=${path%/*} sup='' start='' at='' pid='' begun='' who=''
    [[ ! -s $path/exit ]] || continue
    { read -r sup start at _ <"$path/supervisor"; } 2>/dev/null
    { read -r pid begun _ <"$path/started"; } 2>/dev/null
    { [[ $sup ]] && alive "$sup" "$start" "$at"; } || { [[ $pid ]] && alive "$pid" "$begun" "$at"; } || continue
    while IFS= read -r line; do
      [[ $line != owner=* ]] || who=${line#*=}
    done 2>/dev/null <"$path/meta"
    REPLY=$who
    return 0
  done
  return 1
}

refuse_in_use() {
  say busy "$REPLY"
  exit 1
}

# refuse_foreign ADOPT: refuses to change files of the user at ~/RUN. With ADOPT, only a
# directory can be taken over.
refuse_foreign() {
  if foreign && [[ $1 != yes || $REPLY == file || $REPLY == dangling\ * ]]; then
    say foreign "$REPLY"
    exit 1
  fi
}

fill() {
  local i was='' file
  local -a dirs=() kept=()
  if [[ ! -f $manifest ]]; then
    say broken "another sync into ~/$run came between"
    exit 1
  fi
  refuse_foreign "$adopt"
  find_work
  tell_missing
  ! in_use || refuse_in_use
  # From here on the directory has neither all old nor all new files. A run that is
  # armed later notices that. This script notices a run that was armed before.
  { IFS= read -r was <"$state/digest"; } 2>/dev/null
  [[ ! -e $state/digest ]] || rm -f -- "$state/digest" || fail "cannot write ~/.multihost/sync/$run"
  if in_use; then
    [[ -z $was ]] || printf '%s\n' "$was" >"$state/digest"
    refuse_in_use
  fi
  take_place || fail "cannot write ~/$run"
  # List the old files and the new ones, so that the next sync can remove both if this script
  # is stopped.
  : >>"$state/manifest" || fail "cannot write ~/.multihost/sync/$run"
  cat "$state/manifest" "$manifest" >"$state/manifest.both" || fail "cannot write ~/.multihost/sync/$run"
  [[ -w $dir ]] || fail "cannot write to ~/$run"
  for file in "$dir"/.multihost-sync.*; do
    [[ ! -d $file ]] || rm -rf -- "$file"
  done
  remove_gone
  mv -f -- "$state/manifest.both" "$state/manifest"
  make_directories
  find_changed
  place_files
  place_links
  local -A new=()
  for i in "${changed[@]}"; do new[$i]=1; done
  for i in "${!kinds[@]}"; do
    case ${kinds[i]} in
      d) dirs+=("$i") ;;
      f) [[ -n ${new[$i]-} ]] || kept+=("$i") ;;
    esac
  done
  # The run may have changed modes of files with unchanged content.
  set_modes "$dir" "${kept[@]}"
  set_modes "$dir" "${dirs[@]}"
  finish
}

# finish: records the contents of the directory, the digest last.
finish() {
  local file
  if ! { mv -f -- "$manifest" "$state/manifest" &&
    (cd -- "$state" && exec sed -z -n -e '/^d$/{n;n;n;n;w directories' -e 'n;d};n;n;n;n;w paths' -e n -- manifest) &&
    (look_at_all) >"$state/seen" &&
    replace "$state/digest" "$digest $owner"; }; then
    fail "cannot write ~/.multihost/sync/$run"
  fi
  # Also removes files of a killed sync.
  names=()
  for file in "$state"/manifest.?* "$state"/work.* "$state"/digest.?*; do
    [[ ! -e $file ]] || names+=("$file")
  done
  with_names rm -f --
  keep_used
}

# keep_used: marks the contents of a run as used, once a day. So the contents of a run with
# frequent syncs stay in the store. A sync itself looks only at new contents.
keep_used() {
  local now_s at=0
  now_ns
  now_s=$((REPLY / 1000000000))
  { read -r at _ <"$state/used"; } 2>/dev/null
  sum_of "$at"
  at=$REPLY
  ((now_s - at >= 86400 || now_s < at)) || return 0
  [[ $all_used ]] || sed -z -n '/^f$/{n;n;n;s/^../&\/&/p;n;n;d};n;n;n;n;n' -- "$state/manifest" |
    (cd -- "$store" && xargs -0 -r touch -c --) || return 0
  printf '%s\n' "$now_s" >"$state/used"
}

# must_prune: succeeds if it is time to prune. $pruned has the time of the last prune and
# the bytes that it left in the store. $grown has the bytes that came later. A prune is due
# once a day, and when both numbers of bytes together exceed the limit of the store.
# Contents used within $keep stay. If these alone exceed the limit, the next prune waits
# until they are older, or until the bytes that came later exceed a tenth of the limit.
must_prune() {
  local now_s at had came
  local -a lines=()
  now_ns
  now_s=$((REPLY / 1000000000))
  { mapfile -t lines <"$grown"; } 2>/dev/null
  sum_of "${lines[@]}"
  came=$REPLY lines=()
  { mapfile -t lines <"$pruned"; } 2>/dev/null
  sum_of "${lines[0]-}"
  at=$REPLY
  sum_of "${lines[1]-}"
  had=$REPLY
  ((now_s - at >= 86400 || now_s < at)) ||
    ((had + came > max_bytes && (now_s - at > keep || came > max_bytes / 10)))
}

# prune: removes contents that were not used within $max_age and $keep. If the store is still
# too large, prune also removes those with the oldest last use. It looks at everything in the
# store. While another sync of this login runs, prune does nothing, because that sync will
# prune.
prune() {
  local used size path total now_s cut
  local -a lines=()
  must_prune || return 0
  flock -n 8 || return 0 # the exclusive lock replaces the shared one
  now_ns
  now_s=$((REPLY / 1000000000))
  find "$incoming" -mindepth 1 -maxdepth 1 -mmin +1440 -exec rm -rf -- {} +
  cut=$((now_s - (max_age > keep ? max_age : keep)))
  find "$store" -type f ! -newermt "@$cut" -delete
  mapfile -t lines < <(find "$store" -type f -printf '%s\n')
  sum_of "${lines[@]}"
  total=$REPLY
  if ((total > max_bytes)); then
    lines=()
    # Remove a tenth more, so that the next content does not start a prune again.
    while IFS=' ' read -r -d '' used size path; do
      ((total > max_bytes - max_bytes / 10 && now_s - ${used%.*} > keep)) || break
      lines+=("$path")
      ((total -= size))
    done < <(find "$store" -type f -printf '%T@ %s %p\0' | sort -zn)
    ((${#lines[@]} == 0)) || printf '%s\0' "${lines[@]}" | xargs -0 -r rm -f --
  fi
  printf '%s\n' "$now_s" "$total" >"$pruned" && : >"$grown"
  # Remove the state of run directories that no longer exist.
  for path in "$home/.multihost/sync"/*/digest; do
    [[ -f $path ]] || continue
    path=${path%/digest}
    [[ -e $home/${path##*/} ]] || find "$path" -maxdepth 0 -mmin +1440 -exec rm -rf -- {} +
  done
}

case $step in
  check)
    if check; then
      say same
    else
      refuse_foreign "${4-}"
      last_run || say differs
    fi
    ;;
  look)
    read_manifest <(gzip -dc)
    if ((${#kinds[@]} != $4)); then
      say broken "the manifest did not arrive whole"
      exit 1
    fi
    find_contents
    read_old
    find_gone
    say_missing
    say lacks "${#missing[@]}" "${#gone[@]}"
    ;;
  plan | receive | feed | fetch)
    prepare
    exec 7<&0
    case $step in
      plan) take_manifest "${@:11}" ;;
      receive) receive_contents ;;
      *) take_in "$step" ;;
    esac
    fill
    prune
    say filled "$removed"
    [[ -z $spool ]] || keep_serving
    ;;
  *) fail "unknown step" ;;
esac
