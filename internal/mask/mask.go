// Package mask hides the values of secret variables when a log is shown.
package mask

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"multihost/internal/config"
)

// shortestMasked is the least length of a secret value that is masked in output. Shorter
// values occur in ordinary words.
const shortestMasked = 8

// MaskedWords returns what to mask in the output of a command: the lines of its secret values,
// longest first. A secret of several lines becomes one word for each line, because a word must
// not contain a newline.
func MaskedWords(env []config.EnvVar) [][]byte {
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

// Masked is shown instead of a secret.
const Masked = "***"

// MaskSecrets replaces the secret values of env in typed text.
func MaskSecrets(text string, env []config.EnvVar) string {
	for _, v := range env {
		if v.Secret && v.Value != "" {
			text = strings.ReplaceAll(text, v.Value, Masked)
		}
	}
	return text
}

// A Masker replaces words in a stream, also words that are split between chunks. No word has a
// newline, so a Masker never holds back a whole line.
type Masker struct {
	Words [][]byte // longest first, none empty
	held  []byte   // end of the stream so far, if it may begin a word
	out   []byte
}

// Next adds p to the stream and returns what can be shown. The result is valid until the
// next call.
func (m *Masker) Next(p []byte) []byte { return m.Mask(p, true) }

// Rest returns the bytes held back. Call it at the end of the stream.
func (m *Masker) Rest() []byte { return m.Mask(nil, false) }

// Mask does what Next does if more is set, otherwise what Rest does.
func (m *Masker) Mask(p []byte, more bool) []byte {
	if len(m.Words) == 0 {
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

// find returns the place and size of the first word in text that begins before limit. If
// several begin there, it takes the longest.
func (m *Masker) find(text []byte, limit int) (at, size int) {
	at = limit
	for _, w := range m.Words {
		if i := bytes.Index(text, w); i >= 0 && i < at {
			at, size = i, len(w)
		}
	}
	return at, size
}

// mayBegin returns the first index from which the rest of text may be the beginning of a word.
func (m *Masker) mayBegin(text []byte) int {
	from := max(0, len(text)-len(m.Words[0])+1)
	for i := from; i < len(text); i++ {
		for _, w := range m.Words {
			if w[0] == text[i] && len(w) > len(text)-i && bytes.HasPrefix(w, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}

// EndOfText returns the last n lines of a text with secrets masked.
func EndOfText(data []byte, n int, secrets [][]byte) []string {
	whole := Masker{Words: secrets}
	lines := strings.Split(string(whole.Mask(data, false)), "\n")
	return lines[max(0, len(lines)-n):]
}
