// Package suspect finds the lines of a command's output that look like an error.
package suspect

import "bytes"

// Traceback reports whether a line begins a Python traceback, perhaps after a log prefix.
func Traceback(line []byte) bool {
	return bytes.Contains(line, []byte("Traceback (most recent call last)"))
}

// Line reports whether to show a line although the output of its worker is not shown. It
// judges by words. It should miss little, and report nothing in a healthy run:
//
//   - words, in any case: error, fatal, panic, exception, failed, failure,
//     killed, aborted, segfault, segmentation, OOM, unhandled, uncaught,
//     terminated, refused, denied, unreachable; names that end in Error or
//     Exception (ValueError)
//   - phrases: out of memory, core dumped, no space left, timed out
//   - status words of gRPC and XLA in capitals: RESOURCE_EXHAUSTED,
//     DEADLINE_EXCEEDED, UNAVAILABLE, INTERNAL, ABORTED, DATA_LOSS, CANCELLED
//   - the level letter E or F of a glog or absl prefix (E0706 16:50:26.2 …)
//   - not: counts of zero ("0 errors", "no error", "errors: 0"), identifiers (error_rate,
//     --on-error), lines with the log level info or debug
func Line(line []byte) bool {
	switch glogLevel(line) {
	case 'E', 'F':
		return true
	case 'I':
		return false
	}
	if !mayBeSuspect(line) {
		return false
	}
	w := word{line: line}
	for i := 0; i < len(line); {
		if !isWordByte(line[i]) {
			i++
			continue
		}
		w.prevFrom, w.prevTo, w.from = w.from, w.to, i
		for i < len(line) && isWordByte(line[i]) {
			i++
		}
		w.to = i
		switch w.says() {
		case harmless:
			return false
		case suspicious:
			return true
		}
	}
	return false
}

// A word is a word of a line, with the word before it.
type word struct {
	line             []byte
	from, to         int
	prevFrom, prevTo int // 0, 0: there is no word before it
}

func (w *word) text() []byte     { return w.line[w.from:w.to] }
func (w *word) previous() []byte { return w.line[w.prevFrom:w.prevTo] }
func (w *word) after() []byte    { return w.line[w.to:] }

// A meaning is what a word says about its line.
type meaning byte

const (
	nothing meaning = iota
	harmless
	suspicious
)

// says returns what the word says about the line.
func (w *word) says() meaning {
	text := w.text()
	var low [20]byte
	if n := len(text); n >= 3 && n <= len(low) && mayBegin(text[0]) {
		for k, c := range text {
			if c >= 'A' && c <= 'Z' {
				c |= 0x20
			}
			low[k] = c
		}
		if c := clueOf(string(low[:n])); c != none {
			if v := c.judge(w); v != nothing {
				return v
			}
		}
	}
	if isErrorName(text) {
		return suspicious
	}
	return nothing
}

// A clue says when a word counts.
type clue byte

const (
	none      clue = iota
	level          // if it is the log level of the line
	countable      // unless its number is zero or it is a part of a name
	plain          // unless "no" stands before it or it is a part of a name
	ofMemory       // behind "out of"
	ofCore         // behind "core"
	noSpace        // between "no" and "left"
	timedOut       // behind "timed"
	status         // in capitals, and a colon follows
)

// clueOf returns when a word, in small letters, counts. Each word here has 3 to 20 letters,
// and its first three are in trigrams. A switch is several times faster than a map.
func clueOf(word string) clue {
	switch word {
	case "info", "debug":
		return level
	case "error", "errors", "exception", "exceptions", "failed", "failure", "failures", "fatal", "aborted", "killed":
		return countable
	case "panic", "segfault", "segmentation", "oom", "unhandled", "uncaught", "terminated", "refused", "denied", "unreachable", "fault":
		return plain
	case "memory":
		return ofMemory
	case "dumped":
		return ofCore
	case "space":
		return noSpace
	case "out":
		return timedOut
	case "resource_exhausted", "deadline_exceeded", "unavailable", "internal", "data_loss", "cancelled":
		return status
	}
	return none
}

// judge returns what a word with this clue says about its line.
func (c clue) judge(w *word) meaning {
	found := false
	switch c {
	case level:
		// A level counts only at the beginning of the line, not in a sentence.
		if w.from < 48 && (isUpper(w.text()) || w.colon() && w.prevTo == 0) {
			return harmless
		}
	case countable:
		found = !isNone(w.previous()) && !isZero(w.after()) && !isOption(w.line, w.from)
	case plain:
		found = !isNone(w.previous()) && !isOption(w.line, w.from)
	case ofMemory:
		found = bytes.HasSuffix(bytes.ToLower(w.line[max(0, w.from-8):w.from]), []byte("out of "))
	case ofCore:
		found = bytes.EqualFold(w.previous(), []byte("core"))
	case noSpace:
		found = bytes.EqualFold(w.previous(), []byte("no")) && bytes.HasPrefix(w.after(), []byte(" left"))
	case timedOut:
		found = bytes.EqualFold(w.previous(), []byte("timed"))
	case status:
		found = isUpper(w.text()) && w.colon()
	}
	if found {
		return suspicious
	}
	return nothing
}

// colon reports whether a colon follows the word.
func (w *word) colon() bool { return w.to < len(w.line) && w.line[w.to] == ':' }

// isErrorName reports whether a word is the name of a kind of error, such as ValueError.
func isErrorName(word []byte) bool {
	n := len(word)
	if n <= 5 || word[0] < 'A' || word[0] > 'Z' || word[n-1] != 'r' && word[n-1] != 'n' {
		return false
	}
	return bytes.HasSuffix(word, []byte("Error")) || n > 9 && bytes.HasSuffix(word, []byte("Exception"))
}

// mayBeSuspect reports whether a line contains the first three letters of a word that Line
// knows. All lines come here, and almost no line of a healthy run contains such letters.
func mayBeSuspect(line []byte) bool {
	three := uint(0)
	for i, c := range line {
		three = three<<5&0x7fff | uint(c&31) // ignores case
		switch trigrams[three] {
		case anywhere:
			return true
		case beginning:
			if i < 3 || !isWordByte(line[i-3]) {
				return true
			}
		}
	}
	return false
}

const (
	beginning = 1 + iota // only at the beginning of a word
	anywhere
)

// trigrams has an entry for each group of three letters, five bits a letter. The entry says
// where a group makes a line suspect: at the beginning of a word, or anywhere. 0 means
// nowhere.
var trigrams = func() (table [1 << 15]byte) {
	for _, t := range []string{
		"inf", "deb", "fai", "fat", "abo", "kil", "pan", "seg", "oom", "unh", "unc", "ter", "ref", "den", "unr", "fau",
		"mem", "dum", "spa", "out", "res", "dea", "una", "int", "dat", "can", "err", "exc",
	} {
		where := byte(beginning)
		if t == "err" || t == "exc" { // anywhere, as in ValueError
			where = anywhere
		}
		table[uint(t[0]&31)<<10|uint(t[1]&31)<<5|uint(t[2]&31)] = where
	}
	return table
}()

// mayBegin reports whether c begins a word that Line knows.
func mayBegin(c byte) bool {
	switch c | 0x20 {
	case 'a', 'c', 'd', 'e', 'f', 'i', 'k', 'm', 'o', 'p', 'r', 's', 't', 'u':
		return true
	}
	return false
}

func isWordByte(c byte) bool {
	return c|0x20-'a' < 26 || c-'0' < 10 || c == '_'
}

func isUpper(word []byte) bool {
	for _, c := range word {
		if c >= 'a' && c <= 'z' {
			return false
		}
	}
	return true
}

func isNone(word []byte) bool {
	switch len(word) {
	case 1:
		return word[0] == '0'
	case 2, 4, 7:
		return bytes.EqualFold(word, []byte("no")) || bytes.EqualFold(word, []byte("zero")) || bytes.EqualFold(word, []byte("without"))
	}
	return false
}

// isZero reports whether "=0" or ": 0" follows a word.
func isZero(after []byte) bool {
	if len(after) == 0 || after[0] != '=' && after[0] != ':' {
		return false
	}
	after = bytes.TrimLeft(after[1:], " ")
	if len(after) == 0 || after[0] != '0' {
		return false
	}
	return len(after) == 1 || !isWordByte(after[1]) && after[1] != '.' && after[1] != 'x'
}

// isOption reports whether the word at from is a part of a flag or a path: --on-error,
// stderr/error.
func isOption(line []byte, from int) bool {
	return from > 0 && (line[from-1] == '-' || line[from-1] == '/' || line[from-1] == '.')
}

// Info reports whether a line begins with a glog or absl prefix of level I. Such a line is
// never suspect.
func Info(line []byte) bool { return glogLevel(line) == 'I' }

// glogLevel returns the letter of a glog or absl prefix such as "E0706 16:", or 0.
func glogLevel(line []byte) byte {
	if len(line) < 7 || line[5] != ' ' {
		return 0
	}
	for _, c := range line[1:5] {
		if c < '0' || c > '9' {
			return 0
		}
	}
	if c := line[6]; c < '0' || c > '9' {
		return 0
	}
	switch c := line[0]; c {
	case 'I', 'W', 'E', 'F':
		return c
	}
	return 0
}
