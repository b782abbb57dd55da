package launch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// A hose is a worker whose command has printed size bytes. The worker sends them in the
// requested pieces.
type hose struct {
	size  int64
	chunk []byte
}

func (*hose) Name() string               { return "s0w0" }
func (*hose) ClockOffset() time.Duration { return 0 }

func (h *hose) Run(_ context.Context, cmd remote.Cmd) (remote.Status, error) {
	line := cmd.Whole().Line
	nonce := strings.Fields(line[strings.LastIndex(line, "multihost-"):])[3]
	fmt.Fprintf(cmd.Stdout, "%s stream %d\n", nonce, h.size)
	left := h.size
	for orders := bufio.NewScanner(cmd.Stdin); left > 0 && orders.Scan(); {
		want, err := strconv.ParseInt(orders.Text(), 10, 64)
		if err != nil {
			return remote.Status{}, err
		}
		for want > 0 && left > 0 {
			n := min(want, left, int64(len(h.chunk)))
			if _, err := cmd.Stdout.Write(h.chunk[:n]); err != nil {
				return remote.Status{}, err
			}
			want, left = want-n, left-n
		}
		fmt.Fprintf(cmd.Stderr, "%s size %d\n", nonce, h.size)
	}
	for _, text := range []string{"run r 1", "dir /home/x", "phase exited", "exit code 0", fmt.Sprintf("exit size %d", h.size), "end"} {
		fmt.Fprintf(cmd.Stderr, "%s %s\n", nonce, text)
	}
	return remote.Status{}, nil
}

// Following a log allocates for each piece, not for each line.
func TestFollowingAllocatesNothingALine(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	h := &hose{size: 256 << 20, chunk: []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 320))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Follow(t.Context(), h, Ref{"r", 1}, 0, io.Discard, FollowOptions{}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	lines := float64(h.size / 100)
	if per := float64(after.Mallocs-before.Mallocs) / lines; per > 0.01 {
		t.Errorf("%.3f allocations a line", per)
	}
	if per := float64(after.TotalAlloc-before.TotalAlloc) / lines; per > 2 {
		t.Errorf("%.1f bytes allocated a line", per)
	}
}

// BenchmarkFollow measures how long it takes to follow one worker's log.
func BenchmarkFollow(b *testing.B) {
	h := &hose{size: 16 << 20, chunk: []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 320))}
	b.SetBytes(h.size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Follow(b.Context(), h, Ref{"r", 1}, 0, io.Discard, FollowOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
