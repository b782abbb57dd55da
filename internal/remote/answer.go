package remote

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"multihost/internal/fault"
)

// NewNonce returns a random word that marks the lines of one answer, so that nobody takes
// the output of start-up files for an answer. Everybody on the worker can see the nonce,
// like every argument of a script.
func NewNonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return "mh" + hex.EncodeToString(b[:])
}

// A Record is one line of a worker's answer: a word and the rest.
type Record struct{ Word, Rest string }

// Fields splits the rest into n words, the last of which is the whole remainder. Missing
// words are "", because a worker's answer may be incomplete.
func (r Record) Fields(n int) []string {
	f := strings.SplitN(r.Rest, " ", n)
	for len(f) < n {
		f = append(f, "")
	}
	return f
}

const (
	maxLine   = 16 << 10 // longest line of an answer, in bytes
	maxNoise  = 16 << 10 // limit in bytes for lines that are not records
	maxAnswer = 4 << 20  // limit in bytes for the answer of one command, such as a list of many runs
)

// ErrFlood ends the session of a command whose answer is longer than maxAnswer. Otherwise the
// caller would wait for the end of an endless answer.
var ErrFlood = fault.New(fault.Unavailable, fmt.Sprintf("it answers with more than %d MiB", maxAnswer>>20))

// An Answer parses the output of one of our scripts as it arrives. A line is a record if a
// word follows the nonce. The Answer keeps other lines only as far as they help to explain
// a failure. One command writes to an Answer. Its other methods may be called meanwhile.
type Answer struct {
	Nonce string
	Next  func(Record) (done bool) // optional: gets every record, and returns true if the Answer need not keep it
	Stray func(string)             // optional: gets every other line

	mu      sync.Mutex
	line    []byte
	size    int // bytes received, without the records that Next has taken
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

// ParseRecord reads one line. ok reports whether the line has the nonce and a word after
// it.
func ParseRecord(line, nonce string) (r Record, ok bool) {
	// The nonce may stand within the line, because start-up files may print text without a
	// final newline.
	_, text, found := strings.Cut(line, nonce+" ")
	if !found {
		return Record{}, false
	}
	word, rest, _ := strings.Cut(text, " ")
	return Record{word, rest}, word != ""
}

// Records returns the records in the Answer.
func (a *Answer) Records() []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records
}

// Failure returns the text of the first record "error", in a form for messages, or "".
func (a *Answer) Failure() string {
	for _, r := range a.Records() {
		if r.Word == "error" {
			return Clean(r.Rest, 500)
		}
	}
	return ""
}

// Noise returns the lines that were not records. The last one may be incomplete.
func (a *Answer) Noise() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Split(strings.TrimSpace(string(a.noise)+string(a.line)), "\n")
}

// consequence matches a message of a program that failed only because another program had
// failed. The message of the other program has the cause, and may come before or after.
var consequence = regexp.MustCompile(`: Broken pipe$|\btar: (Exiting with failure status|Error is not recoverable|Child returned status)`)

// Trouble returns the last line that was not a record, in a form for messages, or "". It
// prefers a line that names a cause.
func (a *Answer) Trouble() string {
	lines := a.Noise()
	last := lines[len(lines)-1]
	for _, line := range slices.Backward(lines) {
		if line = strings.TrimSpace(line); line != "" && !consequence.MatchString(line) {
			last = line
			break
		}
	}
	return Clean(last, 300)
}

// A Stream parses an answer up to the record "stream", and writes every byte after that to
// Raw.
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

// Clean makes a worker's text fit for one line of a message: valid UTF-8 without control
// characters, cut after limit bytes, with an ellipsis.
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
