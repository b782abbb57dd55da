package job

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"multihost/internal/config"
)

// shortestMasked is the length from which secret values are masked in output:
// the bytes of shorter ones are found in ordinary words.
const shortestMasked = 8

// maskedWords are what is masked in the output of a command: the lines of its
// secret values, longest first. Programs print a key of several lines line by
// line, and a value that came from a file without the newline at its end.
func maskedWords(env []config.EnvVar) [][]byte {
	var words [][]byte
	for _, v := range env {
		if !v.Secret {
			continue
		}
		for line := range strings.Lines(v.Value) {
			if line = strings.TrimSpace(line); len(line) >= shortestMasked {
				words = append(words, []byte(line))
			}
		}
	}
	slices.SortFunc(words, func(a, b []byte) int { return cmp.Or(len(b)-len(a), bytes.Compare(a, b)) })
	return slices.CompactFunc(words, bytes.Equal)
}

// masked stands for a secret.
const masked = "***"

// maskSecrets replaces the secret values of env in what was typed.
func maskSecrets(text string, env []config.EnvVar) string {
	for _, v := range env {
		if v.Secret && v.Value != "" {
			text = strings.ReplaceAll(text, v.Value, masked)
		}
	}
	return text
}

// A masker replaces words in a stream, whatever the borders of its chunks. No
// word has a newline, so no whole line is ever held back.
type masker struct {
	words [][]byte // longest first, none empty
	held  []byte   // may be the beginning of a word
	out   []byte
}

// next returns what can be shown of the stream once p has come. It is valid
// until the next call.
func (m *masker) next(p []byte) []byte { return m.mask(p, true) }

// rest returns what was held back, at the end of the stream.
func (m *masker) rest() []byte { return m.mask(nil, false) }

// mask is next, and rest when no more is to come.
func (m *masker) mask(p []byte, more bool) []byte {
	if len(m.words) == 0 {
		return p
	}
	text := p
	if len(m.held) > 0 {
		text = append(m.held, p...)
	}
	m.out = m.out[:0]
	for {
		hold := len(text)
		if more {
			hold = m.mayBegin(text)
		}
		at, size := m.find(text, hold)
		if size == 0 {
			m.out = append(m.out, text[:hold]...)
			m.held = append(m.held[:0], text[hold:]...)
			return m.out
		}
		m.out = append(append(m.out, text[:at]...), "***"...)
		text = text[at+size:]
	}
}

// find returns the first word of text that begins before limit, of those that
// begin there the longest.
func (m *masker) find(text []byte, limit int) (at, size int) {
	at = limit
	for _, w := range m.words {
		if i := bytes.Index(text, w); i >= 0 && i < at {
			at, size = i, len(w)
		}
	}
	return at, size
}

// mayBegin returns where the end of text begins that may be the beginning of a
// word.
func (m *masker) mayBegin(text []byte) int {
	from := max(0, len(text)-len(m.words[0])+1)
	for i := from; i < len(text); i++ {
		for _, w := range m.words {
			if w[0] == text[i] && len(w) > len(text)-i && bytes.HasPrefix(w, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}
