package ops

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestACaptureKeepsBothEndsWhateverThePieces(t *testing.T) {
	var whole []byte
	for i := range 300 {
		whole = fmt.Appendf(whole, "%d,", i)
	}
	for _, limit := range []int{2, 16, 500, 5000} {
		var first *capture
		for _, piece := range []int{1, 3, 7, 64, len(whole)} {
			c := newCapture(limit)
			for rest := whole; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				c.Write(rest[:min(piece, len(rest))])
			}
			kept := limit / 2
			if 2*kept >= len(whole) {
				if c.text() != string(whole) || c.cut() != 0 {
					t.Fatalf("limit %d, pieces of %d: %q", limit, piece, c.text())
				}
			} else if !strings.HasPrefix(c.text(), string(whole[:kept])) || !strings.HasSuffix(c.text(), string(whole[len(whole)-kept:])) || c.cut() != int64(len(whole)-2*kept) {
				t.Fatalf("limit %d, pieces of %d: %q, %d cut", limit, piece, c.text(), c.cut())
			}
			if first == nil {
				first = c
			}
			if c.key() != first.key() {
				t.Fatalf("limit %d, pieces of %d: another key", limit, piece)
			}
		}
	}
	a, b := newCapture(4), newCapture(4)
	a.Write(bytes.Repeat([]byte("x"), 100))
	b.Write([]byte(strings.Repeat("x", 50) + "y" + strings.Repeat("x", 49)))
	if a.key() == b.key() {
		t.Error("a difference in what was not kept is not seen")
	}
}
