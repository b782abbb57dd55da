package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// said is a worker that answers every operation with the same text. The text may be endless.
type said struct {
	stdout, stderr string // N stands for the nonce
	endless        bool
}

func (said) Name() string               { return "s0w0" }
func (said) ClockOffset() time.Duration { return 0 }

func (s said) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	cmd = cmd.Whole()
	nonce := strings.Fields(cmd.Line[strings.LastIndex(cmd.Line, "multihost-"):])[3]
	for ctx.Err() == nil {
		for text, w := range map[string]io.Writer{s.stdout: cmd.Stdout, s.stderr: cmd.Stderr} {
			if _, err := io.WriteString(w, strings.ReplaceAll(text, "N", nonce)); err != nil {
				return remote.Status{}, err
			}
		}
		if !s.endless {
			return remote.Status{}, nil
		}
	}
	return remote.Status{}, context.Cause(ctx)
}

func TestAnAnswerWithoutEndIsNotWaitedFor(t *testing.T) {
	testkit.OnlyInAll(t, "TestAHostileWorkerHarmsNobody of cmd/multihost")
	t.Parallel()
	s := spec("r", "true")
	for name, worker := range map[string]said{
		"noise":       {stdout: strings.Repeat("noise\n", 5000)},
		"one line":    {stdout: strings.Repeat("x", 30000)},
		"records":     {stdout: strings.Repeat("N run r 1\n", 1000)},
		"errors":      {stderr: strings.Repeat("tail: \x1b[2J\n", 3000)},
		"empty lines": {stdout: strings.Repeat("\n", 30000)},
		"sizes":       {stdout: strings.Repeat("N size 1\n", 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worker.endless = true
			for op, f := range map[string]func() error{
				"arm":    func() error { _, err := Arm(t.Context(), worker, s); return err },
				"status": func() error { _, err := Status(t.Context(), worker, s.Ref()); return err },
				"list":   func() error { _, err := List(t.Context(), worker); return err },
				"digest": func() error { _, _, err := Digest(t.Context(), worker, s.Ref(), 1); return err },
				"stop":   func() error { _, err := Stop(t.Context(), worker, s.Ref(), StopOptions{Reason: "test"}); return err },
				"free":   func() error { _, err := FreeTPU(t.Context(), worker, FreeOptions{}); return err },
				"follow": func() error {
					// Follow would retry for ever, so Lost ends it.
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					_, err := Follow(ctx, worker, s.Ref(), 0, io.Discard, FollowOptions{Lost: func(error, int64) { leave() }})
					return err
				},
			} {
				if err := f(); !errors.Is(err, remote.ErrFlood) || len(err.Error()) > 500 {
					t.Errorf("%s: %v", op, err)
				}
			}
		})
	}
}

// A run of days sends a size for each piece of its log. Nothing keeps these sizes.
func TestTheSizesOfALongLogAreNotKept(t *testing.T) {
	t.Parallel()
	heard := 0
	a := &remote.Answer{Nonce: "N", Next: func(r remote.Record) bool { heard++; return r.Word == "size" }}
	for i := range 300_000 { // 20 GB in pieces of the smallest usual size
		if _, err := fmt.Fprintf(a, "N size %d\n", i*65536); err != nil {
			t.Fatalf("after %d sizes: %v", i, err)
		}
	}
	fmt.Fprintln(a, "N end")
	if heard != 300_001 || len(a.Records()) != 1 || a.Records()[0].Word != "end" {
		t.Errorf("heard %d, kept %d", heard, len(a.Records()))
	}
}

// A worker may send any number. No number may become an impossible offset, size or end.
func TestNumbersThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"-1", "9223372036854775807", "99999999999999999999999", "NaN", "", "0x10", "1e9"} {
		w := said{
			stdout: "N stream " + n + "\n",
			stderr: strings.ReplaceAll("N run r 1\nN phase exited\nN exit code #\nN exit size #\nN exit end #\nN exit dropped #\nN end\n", "#", n),
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var out bytes.Buffer
		exit, err := Follow(ctx, w, Ref{"r", 1}, 0, &out, FollowOptions{})
		cancel()
		var short *TruncatedError
		if err != nil && !errors.As(err, &short) {
			t.Errorf("%q: %v", n, err)
		}
		if exit.LogSize < 0 || exit.Dropped < 0 || exit.Code < 0 || exit.Code > 255 || out.Len() > 0 {
			t.Errorf("%q: %+v", n, exit)
		}
	}
}
