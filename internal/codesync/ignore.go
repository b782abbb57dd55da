package codesync

import (
	"bytes"
	"strings"
)

// The matcher below follows gitignore(5) and git's own code where the manual is
// silent; TestIgnoreLikeGit compares the two on generated patterns. The known
// libraries translate patterns to regular expressions and differ from git in
// anchoring, in ** and in names that are not UTF-8.

// A rule is one line of an ignore file.
type rule struct {
	pattern  string
	negated  bool
	dirOnly  bool
	anchored bool // matched against the path below the file's directory; otherwise against the name
}

// parseRules reads the text of an ignore file.
func parseRules(text []byte) []rule {
	var rules []rule
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		if r, ok := parseRule(string(line)); ok {
			rules = append(rules, r)
		}
	}
	return rules
}

func parseRule(line string) (r rule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	line = trimSpaces(line)
	if strings.HasPrefix(line, "!") {
		r.negated = true
		line = line[1:]
	}
	if strings.HasSuffix(line, "/") {
		r.dirOnly = true
		line = line[:len(line)-1]
	}
	r.anchored = strings.Contains(line, "/")
	r.pattern = strings.TrimPrefix(line, "/")
	return r, line != ""
}

// trimSpaces drops trailing spaces that no backslash protects.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = min(i+1, len(line))
	}
	return line[:end]
}

// match reports whether the rule matches path, which is relative to the directory of the
// rule's file.
func (r rule) match(path string, isDir bool) bool {
	if r.dirOnly && !isDir {
		return false
	}
	if !r.anchored {
		return wildmatch(r.pattern, path[strings.LastIndexByte(path, '/')+1:], false)
	}
	// git compares the part before the first special character separately, so two stars
	// right after it count as if they began the pattern.
	literal := strings.IndexAny(r.pattern, `*?[\`)
	if literal < 0 {
		return r.pattern == path
	}
	if !strings.HasPrefix(path, r.pattern[:literal]) {
		return false
	}
	return wildmatch(r.pattern[literal:], path[literal:], true)
}

// An ignoreFile is the rules of one directory.
type ignoreFile struct {
	base  string // directory with a trailing slash, or "" for the top
	above string // for a file above the top: the path from its directory to the top, with a trailing slash
	rules []rule
}

// ignored reports whether files, outermost first, exclude path: the last rule that
// matches wins.
func ignored(files []ignoreFile, path string, isDir bool) bool {
	for i := len(files) - 1; i >= 0; i-- {
		below := files[i].above + strings.TrimPrefix(path, files[i].base)
		rules := files[i].rules
		for j := len(rules) - 1; j >= 0; j-- {
			if rules[j].match(below, isDir) {
				return !rules[j].negated
			}
		}
	}
	return false
}

// wildmatch reports whether the whole text matches the glob pattern. With paths, only a
// slash, or ** between slashes, matches a slash.
func wildmatch(pattern, text string, paths bool) bool {
	m := matcher{pattern: pattern, text: text, paths: paths}
	return m.match(0, 0)
}

// A matcher remembers the pairs of positions that failed, so that patterns with many
// stars do not take exponential time.
type matcher struct {
	pattern, text string
	paths         bool
	failed        map[[2]int]bool
}

func (m *matcher) match(p, t int) bool {
	for p < len(m.pattern) {
		c := m.pattern[p]
		if c == '*' {
			return m.matchStar(p, t)
		}
		if t == len(m.text) {
			return false
		}
		switch c {
		case '?':
			if m.paths && m.text[t] == '/' {
				return false
			}
			p++
		case '[':
			next, ok := m.matchClass(p, m.text[t])
			if !ok {
				return false
			}
			p = next
		case '\\':
			p++
			if p == len(m.pattern) {
				return false
			}
			c = m.pattern[p]
			fallthrough
		default:
			if m.text[t] != c {
				return false
			}
			p++
		}
		t++
	}
	return t == len(m.text)
}

// matchStar matches from the stars at p on.
func (m *matcher) matchStar(p, t int) bool {
	at := [2]int{p, t}
	if m.failed[at] {
		return false
	}
	end := p
	for end < len(m.pattern) && m.pattern[end] == '*' {
		end++
	}
	rest := m.pattern[end:]
	slashes := !m.paths
	if m.paths && end-p > 1 && (p == 0 || m.pattern[p-1] == '/') &&
		(rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`)) {
		slashes = true
		// "**/" also matches no directory at all.
		if rest != "" && rest[0] == '/' && m.match(end+1, t) {
			return true
		}
	}
	for i := t; ; i++ {
		if m.match(end, i) {
			return true
		}
		if i == len(m.text) || !slashes && m.text[i] == '/' {
			break
		}
	}
	if m.failed == nil {
		m.failed = map[[2]int]bool{}
	}
	m.failed[at] = true
	return false
}

// matchClass matches c with the bracket expression at p and returns the
// position behind it.
func (m *matcher) matchClass(p int, c byte) (next int, ok bool) {
	s := m.pattern
	p++
	negated := p < len(s) && (s[p] == '!' || s[p] == '^')
	if negated {
		p++
	}
	matched := false
	var low byte // the lower end of a possible range; 0: none
	for first := true; ; first = false {
		if p >= len(s) {
			return 0, false
		}
		b := s[p]
		switch {
		case b == ']' && !first:
			if m.paths && c == '/' {
				return 0, false
			}
			return p + 1, matched != negated
		case b == '-' && low != 0 && p+1 < len(s) && s[p+1] != ']':
			p++
			high := s[p]
			if high == '\\' {
				p++
				if p >= len(s) {
					return 0, false
				}
				high = s[p]
			}
			matched = matched || low <= c && c <= high
			low = 0
		case b == '[' && p+1 < len(s) && s[p+1] == ':':
			end := strings.IndexByte(s[p+2:], ']')
			if end < 0 {
				return 0, false
			}
			name := s[p+2 : p+2+end]
			if !strings.HasSuffix(name, ":") {
				// No class after all: a plain bracket.
				matched = matched || c == '['
				low = '['
				break
			}
			in, known := inClass(strings.TrimSuffix(name, ":"), c)
			if !known {
				return 0, false
			}
			matched = matched || in
			p += 2 + end
			low = 0
		default:
			if b == '\\' {
				p++
				if p >= len(s) {
					return 0, false
				}
				b = s[p]
			}
			matched = matched || b == c
			low = b
		}
		p++
	}
}

func inClass(name string, c byte) (in, known bool) {
	lower, upper, digit := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
	graph := '!' <= c && c <= '~'
	switch name {
	case "alnum":
		return lower || upper || digit, true
	case "alpha":
		return lower || upper, true
	case "blank":
		return c == ' ' || c == '\t', true
	case "cntrl":
		return c < ' ' || c == 0x7f, true
	case "digit":
		return digit, true
	case "graph":
		return graph, true
	case "lower":
		return lower, true
	case "print":
		return graph || c == ' ', true
	case "punct":
		return graph && !lower && !upper && !digit, true
	case "space":
		return c == ' ' || '\t' <= c && c <= '\r', true
	case "upper":
		return upper, true
	case "xdigit":
		return digit || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F', true
	}
	return false, false
}
