package config

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// An EnvVar is one environment variable of the command on the workers.
type EnvVar struct {
	Name  string
	Value string
	// Secret says that multihost masks the value in all its output. Only SecretEnv sets it.
	Secret bool
}

// ValueOf returns the value of a variable for the command. If vars has several, it is the last
// one.
func ValueOf(vars []EnvVar, name string) (value string, ok bool) {
	for _, v := range vars {
		if v.Name == name {
			value, ok = v.Value, true
		}
	}
	return value, ok
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkEnv returns an error if name and value cannot be an environment variable. The
// error never contains the value, which may be a secret.
func checkEnv(name, value string) error {
	switch {
	case name == "":
		return errors.New("the name is empty: want NAME=VALUE")
	case !envName.MatchString(name):
		return fmt.Errorf("name %q: want letters, digits and underscores, not beginning with a digit", name)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("value of %q holds a NUL byte", name)
	}
	return nil
}

// ParseEnvAssignments parses the values of --env, each NAME=VALUE. The value is everything after
// the first "=", taken literally. ParseEnvAssignments keeps the order and repeated names; see
// ValueOf.
func ParseEnvAssignments(assignments []string) ([]EnvVar, error) {
	var vars []EnvVar
	for _, a := range assignments {
		name, value, ok := strings.Cut(a, "=")
		if !ok {
			return nil, fmt.Errorf("--env %q: want NAME=VALUE (--secret-env=NAME passes a variable of this machine)", a)
		}
		if err := checkEnv(name, value); err != nil {
			return nil, fmt.Errorf("--env: %w", err)
		}
		vars = append(vars, EnvVar{Name: name, Value: value})
	}
	return vars, nil
}

// SecretEnv reads the variables with these names from this machine's environment. A
// variable that is not set is an error, because an empty secret would only fail later on
// the workers.
func SecretEnv(lookup Lookup, names []string) ([]EnvVar, error) {
	var vars []EnvVar
	for _, name := range names {
		if strings.Contains(name, "=") {
			name, _, _ = strings.Cut(name, "=")
			return nil, fmt.Errorf("--secret-env %q: want a name only; the value is taken from this machine's environment", name)
		}
		value, ok := lookup(name)
		if err := checkEnv(name, value); err != nil {
			return nil, fmt.Errorf("--secret-env: %w", err)
		}
		if !ok {
			return nil, fmt.Errorf("--secret-env %q: the variable is not set on this machine", name)
		}
		vars = append(vars, EnvVar{Name: name, Value: value, Secret: true})
	}
	return vars, nil
}

// envFileLimit is far above any real environment: the kernel gives a process
// about 2 MiB for arguments and environment together.
const envFileLimit = 1 << 20

// ReadEnvFile reads a file of environment variables:
//
//	# a comment; blank lines are skipped
//	NAME=value            the value ends at the end of the line or at " #"
//	export NAME=value     "export" is allowed and has no effect
//	NAME='a $literal'     no character is special in single quotes
//	NAME="two\nlines"     \n \t \r \" \\ and \$ are escapes in double quotes
//
// Blanks around an unquoted value are dropped. Quoted values may span lines; only a comment
// may follow the closing quote. Variables and commands are not expanded. A line may end in
// CR LF, and the file may begin with a byte order mark. Errors are those of ReadText. A
// fault in the text is a *FileError with the line, and never with the value.
func ReadEnvFile(ctx context.Context, path string) ([]EnvVar, error) {
	data, err := ReadText(ctx, path, envFileLimit)
	if err != nil {
		return nil, err
	}
	vars, line, err := parseEnv(data)
	if err != nil {
		return nil, &FileError{Path: path, Line: line, Err: err}
	}
	return vars, nil
}

// parseEnv parses the text of an environment file. With an error, it also returns the first
// line of the faulty assignment.
func parseEnv(text string) (vars []EnvVar, line int, err error) {
	rest := text
	next := 1
	for rest != "" {
		line = next
		var raw string
		raw, after := cutLine(rest)
		trimmed := strings.TrimLeft(raw, " \t")
		if strings.TrimSpace(trimmed) == "" || trimmed[0] == '#' {
			rest, next = after, next+1
			continue
		}
		name, ok := assignedName(trimmed)
		if !ok {
			return nil, line, errors.New("want NAME=VALUE")
		}
		// The value begins after the first "=" of this line. A quoted value may be longer
		// than the line.
		start := strings.IndexByte(rest, '=') + 1
		value, used, err := envValue(rest[start:])
		if err != nil {
			return nil, line, fmt.Errorf("%s: %w", nameOr(name), err)
		}
		if err := checkEnv(name, value); err != nil {
			return nil, line, err
		}
		vars = append(vars, EnvVar{Name: name, Value: value})
		next += strings.Count(rest[:start+used], "\n")
		rest = rest[start+used:]
	}
	return vars, line, nil
}

func nameOr(name string) string {
	if name == "" {
		return "assignment"
	}
	return name
}

// cutLine splits s after its first line and drops the line end.
func cutLine(s string) (line, rest string) {
	line, rest, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

func assignedName(line string) (name string, ok bool) {
	name, _, ok = strings.Cut(line, "=")
	if after, found := strings.CutPrefix(name, "export"); found && after != "" && strings.TrimLeft(after, " \t") != after {
		name = strings.TrimLeft(after, " \t")
	}
	return name, ok
}

// envValue reads the value at the start of s. The result used is the number of bytes read, with
// the line end.
func envValue(s string) (value string, used int, err error) {
	lead := len(s) - len(strings.TrimLeft(s, " \t"))
	body := s[lead:]
	if body == "" || (body[0] != '"' && body[0] != '\'') {
		line, rest := cutLine(s)
		for i := range len(line) {
			if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
				line = line[:i]
				break
			}
		}
		return strings.Trim(line, " \t"), len(s) - len(rest), nil
	}
	var n int
	if body[0] == '\'' {
		end := strings.IndexByte(body[1:], '\'')
		if end < 0 {
			return "", 0, errors.New("single quote is not closed")
		}
		value, n = body[1:1+end], end+2
	} else if value, n, err = doubleQuoted(body); err != nil {
		return "", 0, err
	}
	tail, rest := cutLine(body[n:])
	if t := strings.TrimLeft(tail, " \t"); t != "" && t[0] != '#' {
		return "", 0, errors.New("text after the closing quote")
	}
	return value, len(s) - len(rest), nil
}

// doubleQuoted reads the quoted string at the start of s.
func doubleQuoted(s string) (value string, used int, err error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), i + 1, nil
		case c == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case '"', '\\', '$':
				b.WriteByte(s[i])
			default: // no escape: keep both characters
				b.WriteByte('\\')
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, errors.New("double quote is not closed")
}
