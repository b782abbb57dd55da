package xla

import "strings"

// A word is one piece of a text of flags.
type word struct {
	text     string // as it was written
	dashes   string // the dashes at its beginning; "--" is right
	name     string
	value    string // without quotes
	hasValue bool
}

// right reports whether the word has the form of a flag.
func (w word) right() bool { return w.dashes == "--" && w.name != "" }

// dashes are the kinds of dashes in documents and word processors.
const dashes = "-‐‑‒–—−"

func parseWord(text string) word {
	w := word{text: text}
	rest := strings.TrimLeft(text, dashes)
	w.dashes = text[:len(text)-len(rest)]
	w.name, w.value, w.hasValue = strings.Cut(rest, "=")
	if n := len(w.value); n >= 2 && (w.value[0] == '\'' || w.value[0] == '"') && w.value[n-1] == w.value[0] {
		w.value = w.value[1 : n-1]
	}
	return w
}

// split splits a text of flags at its spaces. As in XLA's own parser, quotes directly after
// = hold together a value with spaces. A quote that is never closed is an ordinary
// character. The words, joined with spaces, split in the same way again.
func split(text string) []word {
	var words []word
	for i := 0; i < len(text); {
		if isBlank(text[i]) {
			i++
			continue
		}
		start := i
		for i < len(text) && !isBlank(text[i]) {
			quote := text[i]
			if (quote == '\'' || quote == '"') && i > start && text[i-1] == '=' {
				if end := strings.IndexByte(text[i+1:], quote); end >= 0 {
					i += end + 1
				}
			}
			i++
		}
		words = append(words, parseWord(text[start:i]))
	}
	return words
}

func isBlank(b byte) bool {
	return b == ' ' || b == '\t' || b == '\n' || b == '\r' || b == '\v' || b == '\f'
}

func join(words []word) string {
	parts := make([]string, len(words))
	for i, w := range words {
		parts[i] = w.text
	}
	return strings.Join(parts, " ")
}

// Words splits a text of flags into its words.
func Words(text string) []string {
	var out []string
	for _, w := range split(text) {
		out = append(out, w.text)
	}
	return out
}
