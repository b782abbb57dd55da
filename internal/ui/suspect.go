package ui

import "bytes"

// isTraceback reports whether a line is the head of a Python traceback, also after a log
// prefix.
func isTraceback(line []byte) bool {
	return bytes.Contains(line, []byte("Traceback (most recent call last)"))
}

// looksLikeError reports whether a line should be shown although its worker's output is
// not. It is a heuristic on words, made to miss little and to stay quiet in a healthy
// run:
//
//   - words, in any case: error, fatal, panic, exception, failed, failure,
//     killed, aborted, segfault, segmentation, OOM, unhandled, uncaught,
//     terminated, refused, denied, unreachable; names that end in Error or
//     Exception (ValueError)
//   - phrases: out of memory, core dumped, no space left, timed out
//   - status words of gRPC and XLA in capitals: RESOURCE_EXHAUSTED,
//     DEADLINE_EXCEEDED, UNAVAILABLE, INTERNAL, ABORTED, DATA_LOSS, CANCELLED
//   - the level letter E or F of a glog or absl prefix (E0706 16:50:26.2 …)
//   - not: counts of zero ("0 errors", "no error", "errors: 0"), identifiers
//     (error_rate, --on-error), lines whose log level is info or debug
func looksLikeError(line []byte) bool {
	switch glogLevel(line) {
	case 'E', 'F':
		return true
	case 'I':
		return false
	}
	if !mayBeSuspect(line) {
		return false
	}
	var low [20]byte
	prevStart, prevEnd := 0, 0
	for i := 0; ; {
		for i < len(line) && !isWordByte(line[i]) {
			i++
		}
		if i == len(line) {
			return false
		}
		from := i
		for i < len(line) && isWordByte(line[i]) {
			i++
		}
		word := line[from:i]
		if n := len(word); n >= 3 && n <= len(low) && mayBegin(word[0]) {
			for k, c := range word {
				if c >= 'A' && c <= 'Z' {
					c |= 0x20
				}
				low[k] = c
			}
			switch string(low[:n]) {
			case "info", "debug":
				// Only a level at the beginning of the line counts, not the word in a
				// sentence.
				if from < 48 && (isUpper(word) || i < len(line) && line[i] == ':' && prevEnd == 0) {
					return false
				}
			case "error", "errors", "exception", "exceptions", "failed", "failure", "failures", "fatal", "aborted", "killed":
				if !isNone(line[prevStart:prevEnd]) && !isZero(line[i:]) && !isOption(line, from) {
					return true
				}
			case "panic", "segfault", "segmentation", "oom", "unhandled", "uncaught", "terminated",
				"refused", "denied", "unreachable", "fault":
				if !isNone(line[prevStart:prevEnd]) && !isOption(line, from) {
					return true
				}
			case "memory":
				if bytes.HasSuffix(bytes.ToLower(line[max(0, from-8):from]), []byte("out of ")) {
					return true
				}
			case "dumped":
				if bytes.EqualFold(line[prevStart:prevEnd], []byte("core")) {
					return true
				}
			case "space":
				if bytes.EqualFold(line[prevStart:prevEnd], []byte("no")) && bytes.HasPrefix(line[i:], []byte(" left")) {
					return true
				}
			case "out":
				if bytes.EqualFold(line[prevStart:prevEnd], []byte("timed")) {
					return true
				}
			case "resource_exhausted", "deadline_exceeded", "unavailable", "internal", "data_loss", "cancelled":
				if isUpper(word) && i < len(line) && line[i] == ':' {
					return true
				}
			}
		}
		if n := len(word); n > 5 && word[0] >= 'A' && word[0] <= 'Z' && (word[n-1] == 'r' || word[n-1] == 'n') &&
			(bytes.HasSuffix(word, []byte("Error")) || n > 9 && bytes.HasSuffix(word, []byte("Exception"))) {
			return true
		}
		prevStart, prevEnd = from, i
	}
}

// mayBeSuspect reports whether a line contains the first three letters of a word that
// looksLikeError knows. All lines pass here, and nearly no line of a healthy run contains
// any.
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
	beginning = 1 + iota // of a word only
	anywhere
)

// trigrams says where in a word three letters, of five bits each, must be to belong to a
// word that looksLikeError knows; 0 means that no such word begins with them.
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

// mayBegin reports whether c begins a word that looksLikeError knows.
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
