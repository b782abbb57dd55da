package remote

import "strings"

// Quote joins args into one line of POSIX shell words. A shell that reads the line sees
// exactly args, byte for byte, whatever they contain. Arguments of plain characters stay as
// they are, so that command lines are readable. All others get single quotes, which mean
// the same to all POSIX shells and bash (not to csh).
//
// An argument of a Unix program has no NUL byte, and neither has a command line. Quote
// keeps a NUL, and the worker's shell drops it or the rest of the line. So check for NUL
// where arguments come in.
//
// Quote is the only place in the project that builds a shell word.
func Quote(args ...string) string {
	var b strings.Builder
	for i, arg := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		quoteWord(&b, arg)
	}
	return b.String()
}

// CommandLine joins words into a line that a person can paste into a shell. Unlike Quote,
// it quotes only the value in a word --flag=value, as people do.
func CommandLine(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		flag, value, ok := strings.Cut(w, "=")
		if ok && strings.HasPrefix(flag, "--") && Quote(flag) == flag {
			quoted[i] = flag + "=" + Quote(value)
			continue
		}
		quoted[i] = Quote(w)
	}
	return strings.Join(quoted, " ")
}

func quoteWord(b *strings.Builder, word string) {
	if word != "" && strings.IndexFunc(word, needsQuotes) < 0 && plainStart(word) {
		b.WriteString(word)
		return
	}
	b.WriteByte('\'')
	for {
		before, after, found := strings.Cut(word, "'")
		b.WriteString(before)
		if !found {
			break
		}
		b.WriteString(`'\''`)
		word = after
	}
	b.WriteByte('\'')
}

// plainStart reports that no shell takes the word for an assignment. "A=1" as the first
// word of a line would be an assignment, not a command.
func plainStart(word string) bool {
	return !strings.Contains(word, "=")
}

// needsQuotes reports whether a word with r must be quoted. It lists the safe characters,
// on which shells agree, not the special ones, on which they differ.
func needsQuotes(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("%+,-./:@_=", r)
}
