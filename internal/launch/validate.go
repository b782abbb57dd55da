package launch

import (
	"fmt"
	"regexp"
	"strings"

	"multihost/internal/fault"
)

// An InputError says why no worker can start this command or use this environment.
type InputError struct {
	text, hint string
}

func (e *InputError) Error() string { return e.text }

// Fault returns fault.Usage.
func (e *InputError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead, or "" if the error says it.
func (e *InputError) Hint() string { return e.hint }

func badInput(hint, format string, args ...any) error {
	return &InputError{fmt.Sprintf(format, args...), hint}
}

const (
	// LongestWord is MAX_ARG_STRLEN of Linux, 32 pages: the length of the longest argument
	// and of the longest NAME=VALUE, including the NUL.
	LongestWord = 128 << 10
	// mostBytes limits all arguments and variables of a program together. It is three
	// quarters of 8 MiB, which is Linux's limit for any stack limit.
	mostBytes = 6 << 20
)

// Validate returns an *InputError for the first part of s with which no worker can start
// the command. It needs no worker, so call it before you make slices.
func (s Spec) Validate() error {
	if err := s.Ref().check(); err != nil {
		return badInput("", "%v", err)
	}
	if (len(s.Argv) == 0) == (s.Script == "") {
		return badInput("", "run %q: want either an argv or a script", s.Run)
	}
	if strings.ContainsRune(s.Script, 0) {
		return badInput("", "the script of run %q has a NUL byte, where bash stops reading", s.Run)
	}
	total := 0
	for _, words := range [][]string{s.Wrap, s.Argv, {s.WorkDir, s.Owner}} {
		for _, w := range words {
			if strings.ContainsRune(w, 0) {
				return badInput("", "argument %q: a NUL byte cannot be part of an argument", s.masked(w))
			}
			if len(w) >= LongestWord {
				return badInput("put the text into a file of the shipped directory", "an argument of the command has %d bytes, Linux takes %d", len(w), LongestWord-1)
			}
			total += len(w) + 1
		}
	}
	for _, v := range s.Env {
		if err := v.Validate(); err != nil {
			return err
		}
		total += len(v.Name) + len(v.Value) + 2
	}
	if total > mostBytes {
		return badInput("put some of it into a file of the shipped directory", "the arguments and variables of the command have %d bytes, Linux takes %d", total, mostBytes)
	}
	for _, v := range s.Stored {
		if err := checkVar(v.Name); err != nil {
			return err
		}
		if strings.ContainsAny(v.url(), " \t\n\x00") {
			return badInput("", "secret of %q: %q is no address", v.Name, v.url())
		}
	}
	for _, name := range s.Unset {
		if err := checkVar(name); err != nil {
			return err
		}
	}
	return nil
}

// Validate returns an *InputError if no command can start with the variable.
func (v EnvVar) Validate() error {
	if err := checkVar(v.Name); err != nil {
		return err
	}
	if strings.ContainsRune(v.Value, 0) {
		return badInput("", "environment variable %q: a NUL byte cannot be part of a value", v.Name)
	}
	if most := LongestWord - len(v.Name) - len("=") - 1; len(v.Value) > most {
		return badInput("put the text into a file of the shipped directory", "environment variable %q: its value has %d bytes, Linux takes %d", v.Name, len(v.Value), most)
	}
	return nil
}

var varName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// shellOwns are variables that bash itself sets or unsets. Bash starts the command, so the
// user's values do not reach the command.
var shellOwns = map[string]bool{
	"BASHOPTS": true, "BASH_ARGC": true, "BASH_ARGV": true, "BASH_LINENO": true, "BASH_SOURCE": true, "BASH_VERSINFO": true,
	"EUID": true, "PIPESTATUS": true, "PPID": true, "SHELLOPTS": true, "SHLVL": true, "UID": true, "_": true,
}

// checkVar refuses names that bash cannot export, and names that bash or start.sh sets.
func checkVar(name string) error {
	switch {
	case shellOwns[name]:
		return badInput("set it where it is needed: --command='env "+name+"=VALUE PROGRAM'; or use another name", "environment variable %q: bash, which starts the command, sets it itself", name)
	case strings.HasPrefix(name, "mh_"):
		return badInput("use another name", "environment variable %q: names beginning with mh_ are those of the script that starts the command", name)
	case name == "MULTIHOST_RUN", name == "MULTIHOST_ATTEMPT", name == "MULTIHOST_RUN_DIR":
		return badInput("use another name", "environment variable %q: multihost sets it itself", name)
	case !varName.MatchString(name):
		return badInput("", "environment variable %q: want letters, digits and '_', not beginning with a digit", name)
	}
	return nil
}
