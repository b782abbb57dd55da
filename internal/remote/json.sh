#!/bin/bash
# Reads JSON with bash alone, because a worker may have no program that does.

# json_strings JSON PATH puts the texts at PATH of the object JSON into the array strings.
# PATH has names, each after a slash. * stands for all elements of a list. A missing value,
# a value that is no text, and an empty list give an empty text. json_strings fails if JSON
# is not a whole object. It ignores the escapes in texts that PATH does not reach.
json_strings() {
  local - IFS=/ state=value depth=0 i=0 piece text tail
  local -a pieces want good=(1) open=('') mark=()
  set -f
  # shellcheck disable=SC2206 # names are meant
  want=(${2#/})
  strings=()
  # After a split at quotes, texts and other tokens alternate. Texts may be long.
  mapfile -d '"' -t pieces < <(printf %s "$1")
  while ((i < ${#pieces[@]})); do
    piece=${pieces[i++]}
    while [[ $piece =~ ^[[:space:]]*([]\{\}:,[]|[^][:space:]\{\}:,[]+) ]]; do
      piece=${piece:${#BASH_REMATCH}}
      json_token "${BASH_REMATCH[1]}" || return
    done
    if ((i == ${#pieces[@]})); then break; fi
    piece=${pieces[i++]}
    text=$piece
    while tail=${piece##*[!\\]} && ((${#tail} % 2 && i < ${#pieces[@]})); do # an escaped quote belongs to the text
      piece=${pieces[i++]}
      text+=\"$piece
    done
    json_token \" || return
  done
  [[ $state == over ]] || return
  if ((! ${#strings[@]})); then strings=(''); fi
}

# json_token TOKEN reads one token. The token of a text is a quote. good[D] is 1 if the
# names up to depth D are those of the path. mark[D] is the number of strings before the
# present element.
json_token() {
  case $state$1 in
    value'{' | element'{' | value'[' | element'[')
      if ((! depth)) && [[ $1 != '{' ]]; then return 1; fi
      mark[depth++]=${#strings[@]}
      open[depth]=$1 good[depth]=0 state=name
      if [[ $1 == '[' ]]; then
        state=element
        if [[ ${want[depth - 1]-} == '*' ]]; then good[depth]=${good[depth - 1]}; fi
      fi
      ;;
    name\" | next\")
      json_text || return
      good[depth]=0 state=colon
      if ((depth <= ${#want[@]})) && [[ $REPLY == "${want[depth - 1]}" && $REPLY != '*' ]]; then good[depth]=${good[depth - 1]}; fi
      ;;
    colon:) state=value ;;
    comma,)
      state=value
      if [[ ${open[depth]} == '{' ]]; then state=next; fi
      ;;
    name'}' | comma'}' | element']' | comma']')
      if [[ $1 == '}' && ${open[depth]} != '{' || $1 == ']' && ${open[depth]} != '[' ]]; then return 1; fi
      if ((good[depth])) && [[ $state == element ]]; then strings+=(''); fi
      depth=$((depth - 1))
      json_end
      ;;
    value* | element*)
      if ((! depth)); then return 1; fi
      mark[depth]=${#strings[@]}
      if [[ $1 != '"' ]]; then
        [[ $1 =~ ^(true|false|null|-?[0-9][-+.0-9eE]*)$ ]] || return
      elif ((depth == ${#want[@]} && good[depth])); then
        json_text || return
        strings+=("$REPLY")
      fi
      json_end
      ;;
    *) return 1 ;;
  esac
}

# json_end ends a value.
json_end() {
  state=comma
  if ((! depth)); then
    state=over
  elif [[ ${open[depth]} == '[' ]] && ((good[depth] && mark[depth] == ${#strings[@]})); then
    strings+=('')
  fi
}

# json_text puts $text into REPLY with its escapes resolved.
json_text() {
  local part
  REPLY=
  while [[ $text == *\\* ]]; do
    part=${text%%\\*}
    text=${text:${#part}+1}
    case $text in
      [\"\\/]*) REPLY+=$part${text:0:1} ;;
      [bfnrt]*) printf -v REPLY '%s%s%b' "$REPLY" "$part" "\\${text:0:1}" ;;
      u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]*)
        printf -v REPLY '%s%s%b' "$REPLY" "$part" "\\${text:0:5}"
        text=${text:4}
        ;;
      *) return 1 ;;
    esac
    text=${text:1}
  done
  REPLY+=$text
}
