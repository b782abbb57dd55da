#compdef multihost
# Completion of multihost for zsh. Use it now:
#   source <(multihost completion zsh)
# and in every shell, where the directory is in $fpath:
#   multihost completion zsh >~/.zfunc/_multihost
_multihost() {
	local kind='' line word about prefix
	local -a values lines open open_lines
	while IFS= read -r line; do
		if [[ -z $kind ]]; then
			kind=$line
			continue
		fi
		word=${line%%$'\t'*}
		about=${line#*$'\t'}
		[[ $about == "$line" || -z $about ]] || about="$word  -- $about"
		[[ -n $about && $about != "$line" ]] || about=$word
		if [[ $word == *= ]]; then
			open+=("$word") open_lines+=("$about")
		else
			values+=("$word") lines+=("$about")
		fi
	done < <("${(Q)words[1]}" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
	case $kind in
	files | dirs)
		[[ $PREFIX != --*=* ]] || compset -P '*='
		if [[ $kind == dirs ]]; then _files -/; else _files; fi
		return
		;;
	esac
	(( ${#open} == 0 )) || compadd -l -S '' -d open_lines -a -- open
	if [[ $kind == open ]]; then
		(( ${#values} == 0 )) || compadd -l -S '' -d lines -a -- values
	else
		(( ${#values} == 0 )) || compadd -l -d lines -a -- values
	fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
	_multihost "$@"
else
	compdef _multihost multihost
fi
