package codesync

import (
	"bytes"
	"strings"
)

// The matcher below follows gitignore(5), and git's own code where the manual is silent.
// TestIgnoreLikeGit compares the two on generated patterns. The known libraries translate
// patterns to regular expressions. They differ from git in anchoring, in ** and in names
// that are not UTF-8.

// A rule is one line of an ignore file.
type rule struct {
	pattern  string
	negated  bool
	dirOnly  bool
	anchored bool // compared with the path below the file's directory, otherwise with the name
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
	// git compares the part before the first special character separately. So two stars
	// right after that part work as at the beginning of the pattern.
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

// ignored reports whether files exclude path. The outermost file comes first. The last rule
// that matches decides.
func ignored(files []ignoreFile, path string, isDir bool) bool {
	excluded, _ := judged(files, path, isDir)
	return excluded
}

// judged is ignored, and also reports whether any rule matches.
func judged(files []ignoreFile, path string, isDir bool) (excluded, matched bool) {
	for i := len(files) - 1; i >= 0; i-- {
		below := files[i].above + strings.TrimPrefix(path, files[i].base)
		rules := files[i].rules
		for j := len(rules) - 1; j >= 0; j-- {
			if rules[j].match(below, isDir) {
				return !rules[j].negated, true
			}
		}
	}
	return false, false
}

// wildmatch reports whether the glob pattern matches the whole text. With paths, only a
// slash, or ** between slashes, matches a slash.
func wildmatch(pattern, text string, paths bool) bool {
	m := matcher{pattern: pattern, text: text, paths: paths}
	return m.match(0, 0)
}

// A matcher remembers the pairs of positions that failed, so that patterns with many stars
// do not take exponential time.
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
		// "**/" also matches the empty text.
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

// matchClass matches c with the bracket expression at p. It returns the position behind the
// expression.
func (m *matcher) matchClass(p int, c byte) (next int, ok bool) {
	b := bracket{pattern: m.pattern, at: p + 1, c: c}
	negated := b.at < len(b.pattern) && (b.pattern[b.at] == '!' || b.pattern[b.at] == '^')
	if negated {
		b.at++
	}
	for first := true; b.at < len(b.pattern); first = false {
		if b.pattern[b.at] == ']' && !first {
			if m.paths && c == '/' {
				return 0, false
			}
			return b.at + 1, b.matched != negated
		}
		if !b.element() {
			return 0, false
		}
	}
	return 0, false
}

// A bracket matches c with the elements of a bracket expression, one after the other.
type bracket struct {
	pattern string
	at      int // of the next element
	c       byte
	matched bool // an element so far matches c
	low     byte // lower end of a possible range; 0: none
}

// element matches one element: a character, the rest of a range, or a class. It returns
// false if the element is incomplete or unknown.
func (b *bracket) element() bool {
	rest := b.pattern[b.at:]
	switch {
	case rest[0] == '-' && b.low != 0 && len(rest) > 1 && rest[1] != ']':
		b.at++
		high, ok := b.char()
		b.match(b.low, high)
		b.low = 0
		return ok
	case strings.HasPrefix(rest, "[:"):
		return b.class(rest[len("[:"):])
	}
	c, ok := b.char()
	b.match(c, c)
	b.low = c
	return ok
}

// char reads one character, which a backslash may protect.
func (b *bracket) char() (c byte, ok bool) {
	if b.pattern[b.at] == '\\' {
		b.at++
	}
	if b.at == len(b.pattern) {
		return 0, false
	}
	b.at++
	return b.pattern[b.at-1], true
}

// class matches the character class that the text rest begins with.
func (b *bracket) class(rest string) bool {
	text, _, closed := strings.Cut(rest, "]")
	if !closed {
		return false
	}
	name, isClass := strings.CutSuffix(text, ":")
	if !isClass { // a plain bracket
		b.at++
		b.match('[', '[')
		b.low = '['
		return true
	}
	ranges, known := classes[name]
	for ; ranges != ""; ranges = ranges[2:] {
		b.match(ranges[0], ranges[1])
	}
	b.at += len("[:") + len(text) + len("]")
	b.low = 0
	return known
}

// match notes whether c is between low and high.
func (b *bracket) match(low, high byte) {
	b.matched = b.matched || low <= b.c && b.c <= high
}

// classes are the characters of each class, in pairs: the first and the last of a range.
var classes = map[string]string{
	"alnum":  "azAZ09",
	"alpha":  "azAZ",
	"blank":  "  \t\t",
	"cntrl":  "\x00\x1f\x7f\x7f",
	"digit":  "09",
	"graph":  "!~",
	"lower":  "az",
	"print":  " ~",
	"punct":  "!/:@[`{~",
	"space":  "  \t\r",
	"upper":  "AZ",
	"xdigit": "09afAF",
}
