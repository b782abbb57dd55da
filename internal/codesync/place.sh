# shellcheck shell=bash disable=SC2154 # who reads this sets dir and state
#
# Whether ~/RUN is ours to fill: $dir, of which $state/place says what a sync made
# or took over. Anything else with something in it is the user's.

# is_ours: $state/place has the inode of the directory and when it was made. The
# latter decides where the file system tells it, since an inode is soon used again.
# Both outlive a reboot and a copy of the disk, which the number of a device does not.
# $REPLY is both as they are now.
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
		# Earlier versions wrote down what they had brought, and had made the directory
		# before that.
		((last > 0)) && [[ -z $made || ${made%.*} -le $((last + 60)) ]]
		return
	fi
	[[ $had_made =~ ^[1-9][0-9]*\. ]] || had_made=''
	if [[ $made && $had_made ]]; then [[ $made == "$had_made" ]]; else [[ $inode == "$had_inode" ]]; fi
}

# is_empty: nobody misses what is not there.
is_empty() {
	local found
	found=$(find -L "$dir" -mindepth 1 -maxdepth 1 -print -quit 2>/dev/null) && [[ -z $found ]]
}

# foreign: what lies there is not ours. $REPLY says what it is: "directory", "file",
# "link TARGET" for one that leads to a directory, "dangling TARGET" for another one.
foreign() {
	REPLY=''
	if [[ ! -e $dir && ! -L $dir ]]; then return 1; fi
	if [[ ! -d $dir ]]; then
		REPLY='file'
		[[ ! -L $dir ]] || REPLY="dangling $(readlink -- "$dir")"
		return 0
	fi
	# Twice: where workers share a home, another one may have made it meanwhile.
	if is_ours || is_empty || is_ours; then return 1; fi
	REPLY='directory'
	[[ ! -L $dir ]] || REPLY="link $(readlink -- "$dir")"
}

# take_place makes the directory, which is ours from then on. What is interrupted
# before it is written down leaves an empty one.
take_place() {
	[[ -d $dir ]] || mkdir -p -- "$dir" || return
	! is_ours || [[ ! -s $state/place ]] || return 0
	[[ $REPLY ]] && printf '%s\n' "$REPLY" >"$state/place.new" && mv -f -- "$state/place.new" "$state/place"
}
