#!/bin/bash
# Reads JSON. The functions work on $text, and leave in it what comes after that which
# they have read.
#
# shellcheck disable=SC2154 # arm.sh sets json

# json_string KEY... answers with the string to which the keys lead in $json, an object.
# Fails if there is none, or if what comes before it is no JSON.
json_string() {
  local text=$json
  while (($#)); do
    json_object "$1" || return
    shift
  done
  json_text
}

json_space() { text=${text#"${text%%[! $'\t\r\n']*}"}; }

# json_object KEY goes to the value of that member of an object; without KEY it reads the
# whole object.
json_object() {
  json_space
  [[ $text == '{'* ]] || return
  text=${text#?}
  json_space
  while [[ $text != '}'* ]]; do
    json_text || return
    local name=$REPLY
    json_space
    [[ $text == :* ]] || return
    text=${text#?}
    if (($#)) && [[ $name == "$1" ]]; then return; fi
    json_value && json_next '}' || return
  done
  text=${text#?}
  (($# == 0))
}

# json_next END goes to the next element, or to the END that comes after the last.
json_next() {
  json_space
  if [[ $text == ,* ]]; then
    text=${text#?}
    json_space
    [[ $text != "$1"* ]]
  else
    [[ $text == "$1"* ]]
  fi
}

json_value() {
  local word
  json_space
  case $text in
    \"*) json_text ;;
    '{'*) json_object ;;
    '['*)
      text=${text#?}
      json_space
      while [[ $text != ']'* ]]; do
        json_value && json_next ']' || return
      done
      text=${text#?}
      ;;
    *)
      word=${text%%[], $'\t\r\n'\}]*}
      text=${text:${#word}}
      [[ $word == true || $word == false || $word == null || $word == ?(-)[0-9]*([-+.0-9eE]) ]]
      ;;
  esac
}

# json_text answers with a string.
json_text() {
  local part all='' code
  json_space
  [[ $text == \"* ]] || return
  text=${text#?}
  while :; do
    part=${text%%[\"\\]*}
    [[ $part != "$text" ]] || return # it does not end
    all+=$part
    text=${text:${#part}}
    if [[ $text == \"* ]]; then
      text=${text#?}
      REPLY=$all
      return
    fi
    code=${text:1:1}
    text=${text:2}
    case $code in
      [\"\\/]) all+=$code ;;
      [bfnrt])
        printf -v part %b "\\$code"
        all+=$part
        ;;
      u)
        [[ $text == [0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]* ]] || return
        printf -v part %b "\\u${text:0:4}"
        all+=$part
        text=${text:4}
        ;;
      *) return 1 ;;
    esac
  done
}
