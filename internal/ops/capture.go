package ops

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"multihost/internal/event"
)

// A capture keeps the beginning and the end of a stream, and a digest of all of it. Two
// streams with equal keys are equal.
type capture struct {
	limit int // limit of head and of tail, in bytes
	head  []byte
	tail  []byte // the last bytes; a ring when it is full
	at    int    // position of the oldest byte in the ring
	size  int64
	sum   hash.Hash
}

func newCapture(limit int) *capture { return &capture{limit: max(limit/2, 1), sum: sha256.New()} }

// Write takes all of p.
func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.size += int64(n)
	c.sum.Write(p)
	if room := c.limit - len(c.head); room > 0 {
		k := min(room, len(p))
		c.head = append(c.head, p[:k]...)
		p = p[k:]
	}
	if len(p) > c.limit {
		p = p[len(p)-c.limit:]
	}
	if room := c.limit - len(c.tail); room > 0 && len(p) > 0 {
		k := min(room, len(p))
		c.tail = append(c.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.at:], p)
		c.at = (c.at + k) % len(c.tail)
		p = p[k:]
	}
	return n, nil
}

func (c *capture) key() string { return fmt.Sprint(c.size, " ", string(c.sum.Sum(nil))) }

// cut returns how many bytes in the middle were dropped.
func (c *capture) cut() int64 { return c.size - int64(len(c.head)) - int64(len(c.tail)) }

// text returns the kept bytes. If bytes were dropped, a line in the middle says so.
func (c *capture) text() string {
	end := string(c.tail[c.at:]) + string(c.tail[:c.at])
	if c.cut() == 0 {
		return string(c.head) + end
	}
	return string(c.head) + fmt.Sprintf("\n… %s are not shown; --log-dir=DIR keeps all of it …\n", event.Bytes(c.cut())) + end
}

// ExecOutput is output in JSON: Text, or Base64 if it is not UTF-8.
type ExecOutput struct {
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	Bytes  int64  `json:"bytes"`         // bytes that the worker wrote
	Cut    int64  `json:"cut,omitempty"` // number of bytes dropped in the middle
}

func (c *capture) output() ExecOutput {
	o := ExecOutput{Bytes: c.size, Cut: c.cut()}
	text := string(c.head) + string(c.tail[c.at:]) + string(c.tail[:c.at])
	if utf8.ValidString(text) {
		o.Text = text
	} else {
		o.Base64 = []byte(text)
	}
	return o
}

// changes returns the lines in which c differs from the output from, each after + or -. It
// returns nil if these are not much fewer than the lines of c, or if either output was cut.
func (c *capture) changes(from *capture) []string {
	const fewest = 4 // not worth it for shorter outputs
	if c == from || c.cut() > 0 || from.cut() > 0 {
		return nil
	}
	text := c.text()
	lines := strings.Count(text, "\n")
	if lines < fewest {
		return nil
	}
	var changes []string
	for i, line := range strings.Split(string(diff.Diff("", []byte(from.text()), "", []byte(text))), "\n") {
		// The first three lines are the header. Context lines begin with a space,
		// positions with @.
		if i > 2 && line != "" && (line[0] == '+' || line[0] == '-') {
			changes = append(changes, line[:1]+" "+line[1:])
		}
	}
	if len(changes) > lines/2 {
		return nil
	}
	return changes
}
