# shellcheck shell=bash disable=SC2154 # the including script sets dir and state
#
# Decides whether a sync may fill ~/RUN, which is $dir. $state/place identifies the
# directory that a sync made or took over. Any other directory belongs to the user, unless
# it is empty.

# is_ours: succeeds if $dir is the directory in $state/place. That file has the directory's
# inode and, if the file system has it, the time of its creation. The time decides, because
# an inode number is soon used again. Both survive a reboot and a copy of the disk, unlike a
# device number. Sets $REPLY to both values of $dir.
is_ours() {
  local inode='' made='' written had_inode='' had_made='' last=0
  REPLY=''
  {
    read -r inode made _
    while read -r _ _ written; do
      ((written <= last)) || last=$written
    done
  } < <(stat -L --printf='%i %.9W %Y\n' -- "$dir" "$state/digest" "$state/fingerprint" "$state/manifest" 2>/dev/null)
  [[ $inode ]] || return 1
  REPLY="$inode $made"
  [[ $made =~ ^[1-9][0-9]*\. ]] || made=''
  if ! { read -r had_inode had_made _ <"$state/place"; } 2>/dev/null; then
    # Earlier versions of multihost wrote no place file. They made the directory before the
    # files in $state.
    ((last > 0)) && [[ -z $made || ${made%.*} -le $((last + 60)) ]]
    return
  fi
  [[ $had_made =~ ^[1-9][0-9]*\. ]] || had_made=''
  if [[ $made && $had_made ]]; then [[ $made == "$had_made" ]]; else [[ $inode == "$had_inode" ]]; fi
}

# is_empty: succeeds if $dir has no entries.
is_empty() {
  local found
  found=$(find -L "$dir" -mindepth 1 -maxdepth 1 -print -quit 2>/dev/null) && [[ -z $found ]]
}

# foreign: succeeds if $dir is not ours. $REPLY says what it is: "directory", "file", "link
# TARGET" for a link to a directory, "dangling TARGET" for any other link.
foreign() {
  REPLY=''
  if [[ ! -e $dir && ! -L $dir ]]; then return 1; fi
  if [[ ! -d $dir ]]; then
    REPLY='file'
    [[ ! -L $dir ]] || REPLY="dangling $(readlink -- "$dir")"
    return 0
  fi
  # Call is_ours twice: if workers share a home, another worker may have made the directory
  # meanwhile.
  if is_ours || is_empty || is_ours; then return 1; fi
  REPLY='directory'
  [[ ! -L $dir ]] || REPLY="link $(readlink -- "$dir")"
}

# take_place: makes the directory and records it as ours. An interruption leaves an empty
# directory.
take_place() {
  [[ -d $dir ]] || mkdir -p -- "$dir" || return
  ! is_ours || [[ ! -s $state/place ]] || return 0
  [[ $REPLY ]] && printf '%s\n' "$REPLY" >"$state/place.new" && mv -f -- "$state/place.new" "$state/place"
}
