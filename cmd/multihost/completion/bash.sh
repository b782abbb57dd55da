# shellcheck shell=bash
# Completion of multihost for bash. Use it now:
#   source <(multihost completion bash)
# and in every shell:
#   multihost completion bash >~/.local/share/bash-completion/completions/multihost
_multihost() {
  local line kind='' word
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ -z $kind ]]; then
      kind=$line
      continue
    fi
    word=${line%%$'\t'*}
    COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]}" __complete bash "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
  type compopt >/dev/null 2>&1 || return 0 # bash 3 of macOS
  case $kind in
    open) compopt -o nospace ;;
    files) compopt -o default ;;
    dirs) compopt -o dirnames ;;
  esac
}
complete -F _multihost multihost
