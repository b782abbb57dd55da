package job

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"multihost/internal/config"
)

// shortestMasked is the shortest length of a secret value that is masked in output: the
// bytes of shorter values occur in ordinary words.
const shortestMasked = 8

// maskedWords returns what is masked in the output of a command: the lines of its
// secret values, longest first. Programs print a key of several lines line by line, and
// print a value from a file without the newline at its end.
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

// masked replaces a secret.
const masked = "***"

// maskSecrets replaces the secret values of env in text that was typed.
func maskSecrets(text string, env []config.EnvVar) string {
	for _, v := range env {
		if v.Secret && v.Value != "" {
			text = strings.ReplaceAll(text, v.Value, masked)
		}
	}
	return text
}

// A masker replaces words in a stream, wherever the borders of its chunks are. No word
// has a newline, so a whole line is never held back.
type masker struct {
	words [][]byte // longest first, none empty
	held  []byte   // may be the beginning of a word
	out   []byte
}

// next adds p to the stream and returns what can be shown of it. The result is valid
// until the next call.
func (m *masker) next(p []byte) []byte { return m.mask(p, true) }

// rest returns what was held back, at the end of the stream.
func (m *masker) rest() []byte { return m.mask(nil, false) }

// mask is next with more set, and rest without.
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

// find returns the first word of text that begins before limit. If several begin at the
// same place, it returns the longest.
func (m *masker) find(text []byte, limit int) (at, size int) {
	at = limit
	for _, w := range m.words {
		if i := bytes.Index(text, w); i >= 0 && i < at {
			at, size = i, len(w)
		}
	}
	return at, size
}

// mayBegin returns the index from which the end of text may be the beginning of a word.
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
