package sshfan

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync"
)

// NewNonce makes the word that marks the lines of one answer, so that what a
// login's start-up files print is never taken for one. Like all that is given to a
// script it can be seen by everybody on the worker.
func NewNonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return "mh" + hex.EncodeToString(b[:])
}

// A Record is one line of a worker's answer: a word and the rest.
type Record struct{ Word, Rest string }

// Fields returns the rest as n words; the last one is what remains. Missing ones
// are empty: a worker's answer is not trusted to be complete.
func (r Record) Fields(n int) []string {
	f := strings.SplitN(r.Rest, " ", n)
	for len(f) < n {
		f = append(f, "")
	}
	return f
}

const (
	maxLine   = 16 << 10 // of an answer
	maxNoise  = 16 << 10 // that is kept of what is none
	maxAnswer = 4 << 20  // of one command: a list of many runs
)

// ErrFlood ends a command whose answer has no end: nobody waits for it, and
// nothing of it is kept.
var ErrFlood = fmt.Errorf("it answers with more than %d MiB", maxAnswer>>20)

// An Answer parses what a script of ours prints, as it arrives: lines in which a
// word follows the nonce. Others are kept only as far as they help to tell what
// went wrong. It is written to by one command, and may be asked meanwhile.
type Answer struct {
	Nonce string
	Next  func(Record) (done bool) // optional: hears every record; one that it is done with is not kept
	Stray func(string)             // optional: hears every other line

	mu      sync.Mutex
	line    []byte
	size    int // of what came, without the records that Next was done with
	noise   []byte
	records []Record
}

// Write fails with ErrFlood after 4 MiB.
func (a *Answer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		head, rest, found := bytes.Cut(p, []byte{'\n'})
		if room := maxLine - len(a.line); len(head) > room {
			a.size += len(head) - room
			head = head[:room]
		}
		a.line = append(a.line, head...)
		if !found {
			if a.size+len(a.line) > maxAnswer {
				return 0, ErrFlood
			}
			break
		}
		p = rest
		a.take(string(a.line))
		a.line = a.line[:0]
		if a.size > maxAnswer {
			return 0, ErrFlood
		}
	}
	return n, nil
}

func (a *Answer) take(line string) {
	r, ok := ParseRecord(line, a.Nonce)
	if ok && a.Next != nil && a.Next(r) {
		return
	}
	if a.size += len(line) + 1; !ok {
		if a.Stray != nil {
			a.Stray(line)
		}
		if len(a.noise) < maxNoise && line != "" {
			a.noise = append(append(a.noise, line...), '\n')
		}
		return
	}
	a.records = append(a.records, r)
}

// ParseRecord reads one line; ok says that the nonce is in it.
func ParseRecord(line, nonce string) (r Record, ok bool) {
	// Start-up files may print without a newline at the end.
	_, text, found := strings.Cut(line, nonce+" ")
	if !found {
		return Record{}, false
	}
	word, rest, _ := strings.Cut(text, " ")
	return Record{word, rest}, word != ""
}

// Records are the records that were kept.
func (a *Answer) Records() []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records
}

// Failure is the text of the first record "error", fit for a message; "" when
// there is none.
func (a *Answer) Failure() string {
	for _, r := range a.Records() {
		if r.Word == "error" {
			return Clean(r.Rest, 500)
		}
	}
	return ""
}

// Noise are the lines that were no records, the last one perhaps in part.
func (a *Answer) Noise() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Split(strings.TrimSpace(string(a.noise)+string(a.line)), "\n")
}

// Trouble is the last line that was no record, fit for a message; "" when there
// was none.
func (a *Answer) Trouble() string {
	lines := a.Noise()
	return Clean(lines[len(lines)-1], 300)
}

// A Stream takes an answer until the record "stream", and gives every byte after
// it to Raw.
type Stream struct {
	Answer
	Raw       io.Writer
	streaming bool
}

func (s *Stream) Write(p []byte) (int, error) {
	n := len(p)
	for !s.streaming && len(p) > 0 {
		end := bytes.IndexByte(p, '\n') + 1
		if end == 0 {
			end = len(p)
		}
		if _, err := s.Answer.Write(p[:end]); err != nil {
			return n - len(p), err
		}
		p = p[end:]
		s.streaming = s.last().Word == "stream"
	}
	if len(p) == 0 {
		return n, nil
	}
	m, err := s.Raw.Write(p)
	return n - len(p) + m, err
}

func (a *Answer) last() Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.records) == 0 {
		return Record{}
	}
	return a.records[len(a.records)-1]
}

// Clean makes text of a worker fit for one line of a message: no control
// characters, no more than limit bytes and a mark, valid UTF-8.
func Clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return ' '
		case r < 0x20 || r == 0x7f || 0x80 <= r && r < 0xa0 || r == 0x2028 || r == 0x2029 || 0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069:
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}
