package ui

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/testkit"
)

// update rewrites testdata/*.golden.
func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the golden files")
	flag.Parse()
	os.Exit(m.Run())
}

// A recorder is a terminal or two pipes. It records each write.
type recorder struct {
	mu   sync.Mutex
	text bytes.Buffer
	n    int
}

func (w *recorder) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	return w.text.Write(p)
}

func (w *recorder) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func out(slice, worker int, text string) event.Output {
	return event.Output{Slice: slice, Worker: worker, Data: []byte(text)}
}

// script is a run of two slices with two workers each, in which s1w0 fails. It runs on the
// fake clock of synctest. The lengths of its pauses are uneven, so that no step coincides
// with a timer of the view.
func script(r *Renderer) {
	at := func(d time.Duration, events ...event.Event) {
		time.Sleep(d)
		for _, e := range events {
			r.Emit(e)
			synctest.Wait() // chance must not decide how writes are grouped
		}
		synctest.Wait()
	}
	at(0, event.Note{Level: event.Info, Text: "logs: /state/runs/r1"},
		event.Note{Level: event.Debug, Text: "dial s0w0"},
		event.Phase{Name: "connect", State: event.Started})
	for i := range 4 {
		at(137*time.Millisecond, event.Progress{Phase: "connect", Done: i + 1, Total: 4, Waiting: []string{"s0w1,s1w[0-1]", "s1w[0-1]", "s1w1", ""}[i]})
	}
	at(0, event.Phase{Name: "connect", State: event.Done, Detail: "4/4 workers", Elapsed: 400 * time.Millisecond})
	at(1013*time.Millisecond, event.State{Resource: "queued resource", Name: "q7", State: "ACTIVE", Elapsed: 200 * time.Second},
		event.Note{Level: event.Warn, Text: "rto_min failed on s1w1: Operation not permitted", Hint: "multihost preflight check"},
		event.Phase{Name: "run", State: event.Started, Detail: "4 workers"})
	for step := range 2 {
		for w := range 4 {
			at(7*time.Millisecond, out(w/2, w%2, fmt.Sprintf("completed step: %d, seconds: 1.0%d0, loss: 3.2\nsame line %d\n", step, w, step)))
		}
		at(2009 * time.Millisecond)
	}
	at(0, event.Progress{Phase: "run", Done: 0, Total: 4, Waiting: "s[0-1]w[0-1]"})
	at(0, out(0, 0, "  0%|\r 50%|##\r"), out(0, 0, "100%|####\r\n"), out(0, 0, "partial λ"))
	at(40021 * time.Millisecond)
	at(0, out(0, 0, " done\n"))
	trace := "Traceback (most recent call last):\n  File \"train.py\", line 3\nValueError: \x1b[31mbad\x1b[0m value\nafter\n"
	at(0, out(1, 0, trace))
	at(59*time.Millisecond, out(1, 1, trace), out(0, 1, "RuntimeError: other\n"))
	at(2017*time.Millisecond, event.WorkerDone{Slice: 1, Worker: 0, Code: 7, End: time.Now()})
	at(11*time.Millisecond,
		event.WorkerDone{Slice: 1, Worker: 1, Code: 137, Signal: "KILL", Reason: "fail-fast", End: time.Now()},
		event.WorkerDone{Slice: 0, Worker: 0, Code: 143, Signal: "TERM", Reason: "fail-fast", End: time.Now()},
		event.WorkerDone{Slice: 0, Worker: 1, Code: 143, Signal: "TERM", Reason: "fail-fast", End: time.Now()},
		event.Phase{Name: "run", State: event.Failed, Detail: "s1w0 failed"},
		event.Result{Name: "runs", Text: "RUN  STATE\nr1   failed", Data: map[string]string{"run": "r1"}},
		event.Summary{Run: "r1", Attempt: 1, ExitCode: 7, Text: "run \"r1\" failed", FirstFail: "s1w0: exit code 7",
			LastLines: []string{"ValueError: \x1b[31mbad", "after"}, LogDir: "/state/runs/r1",
			Phases: []event.PhaseTime{{Name: "connect", Elapsed: 400 * time.Millisecond}, {Name: "run", Elapsed: 47 * time.Second}},
			Skew:   12 * time.Millisecond})
}

func inUTC() time.Time { return time.Now().UTC() }

func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
	}{
		{"tty-first", Options{Mode: Auto, Width: func() int { return 60 }}},
		{"tty-all-color", Options{Mode: TTY, Stream: All, Color: true, Width: func() int { return 60 }}},
		{"plain-first", Options{Mode: Plain}},
		{"plain-all-debug", Options{Mode: Plain, Stream: All, Debug: true}},
		{"plain-none", Options{Mode: Plain, Stream: None}},
		{"plain-first-times", Options{Mode: Plain, Clock: true, Timestamps: true, Now: inUTC}},
		{"plain-all-times", Options{Mode: Plain, Stream: All, Clock: true, Timestamps: true, Now: inUTC}},
		{"json-all-times", Options{Mode: JSON, Stream: All, Clock: true, Timestamps: true, Now: inUTC}},
		{"json-all", Options{Mode: JSON, Stream: All}},
		{"json-first", Options{Mode: JSON, Stream: First}},
		{"quiet", Options{Mode: Quiet}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// One writer for both streams, so that the golden file shows the order.
				both := new(recorder)
				tc.o.Stdout, tc.o.Stderr = both, both
				tc.o.IsTerminal = func(io.Writer) bool { return strings.HasPrefix(tc.name, "tty") }
				r := New(tc.o)
				script(r)
				if err := r.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				// Make our own escapes readable, with a line for each redraw.
				got := strings.NewReplacer("\r\x1b[K", "<erase>\n", "\x1b", "<esc>").Replace(both.String())
				if tc.o.Mode == JSON { // JSON has times anyway
					tc.name = strings.TrimSuffix(tc.name, "-times")
				}
				file := filepath.Join("testdata", tc.name+".golden")
				if update() {
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("output differs (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestStdoutIsDataOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stdout, stderr := new(recorder), new(recorder)
		r := New(Options{Mode: Plain, Stdout: stdout, Stderr: stderr})
		script(r)
		r.Close()
		if strings.Contains(stdout.String(), "multihost:") || strings.Contains(stdout.String(), "connect:") {
			t.Errorf("messages on standard output:\n%s", stdout)
		}
		if strings.Contains(stderr.String(), "completed step") {
			t.Errorf("streams on standard error:\n%s", stderr)
		}
		stdout, stderr = new(recorder), new(recorder)
		r = New(Options{Mode: JSON, Stream: All, Stdout: stdout, Stderr: stderr})
		script(r)
		r.Close()
		if got := stderr.String(); got != "" {
			t.Errorf("JSON mode wrote for people: %q", got)
		}
	})
}

// viewOf returns the standard output of plain mode.
func viewOf(t *testing.T, stream Stream, chunks ...event.Output) string {
	t.Helper()
	w := new(recorder)
	r := New(Options{Mode: Plain, Stream: stream, Stdout: w, Stderr: io.Discard})
	for _, c := range chunks {
		r.Emit(c)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	return w.String()
}

func TestLines(t *testing.T) {
	long := strings.Repeat("é", maxLine) // twice maxLine bytes
	for _, tc := range []struct {
		name   string
		chunks []string
		want   string
	}{
		{"cut anywhere", []string{"a", "b\nc", "\n"}, "ab\nc\n"},
		{"no newline at the end", []string{"last"}, "last\n"},
		{"CRLF", []string{"a\r\nb\r", "\nc\r\r\n"}, "a\nb\nc\n"},
		{"progress bar", []string{"1%\r", "2%\r3%", "\r4%\nnext\n"}, "4%\nnext\n"},
		{"progress bar that ends with a return", []string{"1%\r2%\r", "\n"}, "2%\n"},
		{"progress bar cut before the return", []string{"1%", "\r2%", "\n"}, "2%\n"},
		{"progress bar of two states and a return", []string{"1%\r2%\r", "3%\r\n"}, "3%\n"},
		{"returns alone", []string{"a\r", "\r", "\r\nb\r", "\rc\n"}, "a\nc\n"},
		{"rune cut", []string{"\xce", "\xbb\n"}, "λ\n"},
		{"invalid", []string{"a\xffb\xc3\n"}, "a\uFFFDb\uFFFD\n"},
		{"controls", []string{"\x00\x1b]0;title\x07\b\x7f\tx\n"}, "^@^[]0;title^G^H^?\tx\n"},
		{"C1 and direction", []string{"\u009b31m\u202eabc\n"}, "\\u009b31m\\u202eabc\n"},
		{"empty lines", []string{"\n\n"}, "\n\n"},
		{"long in one chunk", []string{"x" + long + "\n"}, "x" + strings.Repeat("é", maxLine/2-1) + fmt.Sprintf("… (+%d bytes)\n", 2*maxLine+1-(maxLine-1))},
		{"long in pieces", []string{"x" + long[:6], long[6:], "yz\nshort\n"}, "x" + strings.Repeat("é", maxLine/2-1) + fmt.Sprintf("… (+%d bytes)\nshort\n", 2*maxLine+3-(maxLine-1))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var chunks []event.Output
			for _, c := range tc.chunks {
				chunks = append(chunks, out(0, 0, c))
			}
			if got := viewOf(t, First, chunks...); got != tc.want {
				t.Errorf("got %.200q\nwant %.200q", got, tc.want)
			}
		})
	}
}

func TestFirstShowsErrorsOfOthers(t *testing.T) {
	got := viewOf(t, First,
		out(0, 0, "step 1\n"), out(0, 1, "step 1\nRuntimeError: x\n"), out(1, 0, "RuntimeError: x\n"),
		out(0, 0, "fatal: shared\n"), out(1, 1, "fatal: shared\n"))
	want := "step 1\nfatal: shared\ns0w1,s1w0 │ RuntimeError: x\n"
	if got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// Lines of other workers are checked before they are made visible. This must not change
// which lines are shown.
func TestSiftedLinesAreThoseThatWouldBeKept(t *testing.T) {
	t.Parallel()
	parts := []string{
		"I0706 16:50:26.2 all is well", "E0706 16:50:26.2 it is not", "I0706 16:50:26.2 Traceback (most recent call last)",
		"Traceback (most recent call last)", "  File x", "ValueError: y", "0 errors", "an error", "\x1b[31merror\x1b[0m", "I0706 16:50:26.2 \x1b]0;x",
		"nothing", "", "\t", "50%\r100%", "end\r", "\xff error", strings.Repeat("x", maxLine) + " failed", "failed" + strings.Repeat("y", maxLine),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var text string
		for range 1 + rng.IntN(8) {
			text += parts[rng.IntN(len(parts))] + "\n"
		}
		var plain, sifted stream
		for data := []byte(text); len(data) > 0; {
			n := min(len(data), 1+rng.IntN(60))
			if rng.IntN(2) == 0 {
				n = len(data)
			}
			plain.lines, plain.lineEnds, sifted.lines, sifted.lineEnds = nil, nil, nil, nil
			plain.split(data[:n])
			plain.keepErrors()
			sifted.split(sifted.sift(data[:n]))
			sifted.keepErrors()
			data = data[n:]
			if !bytes.Equal(plain.lines, sifted.lines) || !slices.Equal(plain.lineEnds, sifted.lineEnds) {
				t.Fatalf("%q:\ngot  %q\nwant %q", text, sifted.lines, plain.lines)
			}
		}
	}
}

// Almost all chunks begin within a line. Only that line is made visible, not the whole
// chunk.
func TestAChunkThatBeginsWithinALineIsSifted(t *testing.T) {
	quiet := "I0706 16:50:26.2 all is well\n"
	var s stream
	s.split(s.sift([]byte(quiet + quiet[:10])))
	s.lines, s.lineEnds = nil, nil
	if rest := s.sift([]byte(quiet[10:] + strings.Repeat(quiet, 100) + "an error\n" + quiet[:5])); string(rest) != quiet[:5] {
		t.Errorf("%q is left to split", rest)
	}
	if got, want := string(s.lines), quiet+"an error\n"; got != want {
		t.Errorf("made visible:\n%q\nwant\n%q", got, want)
	}
}

func TestCutToWidth(t *testing.T) {
	for _, tc := range []struct {
		s     string
		width int
		want  string
	}{
		{"short", 10, "short"},
		{"exactly", 7, "exactly"},
		{"too long", 7, "too lo…"},
		{"日本語です", 10, "日本語です"},
		{"日本語です", 9, "日本語で…"},
		{"日本語です", 8, "日本語…"},
		{"e\u0301e\u0301", 2, "e\u0301e\u0301"},
		{"a\tb", 3, "a b"},
		{"x", 0, ""},
		{"日本", 1, "…"},
	} {
		got := cutToWidth(tc.s, tc.width)
		if got != tc.want {
			t.Errorf("cutToWidth(%q, %d) = %q, want %q", tc.s, tc.width, got, tc.want)
		}
		n := 0
		for _, c := range got {
			n += runeWidth(c)
		}
		if n > tc.width {
			t.Errorf("cutToWidth(%q, %d) takes %d columns", tc.s, tc.width, n)
		}
	}
}

// The status line is redrawn at most ten times a second. It is never wider than the
// terminal, even after a change of the terminal's size. At the end it has gone.
func TestStatusLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stdout, stderr := new(recorder), new(recorder)
		width := 40
		var mu sync.Mutex
		r := New(Options{Mode: TTY, Stdout: stdout, Stderr: stderr, Width: func() int {
			mu.Lock()
			defer mu.Unlock()
			return width
		}})
		r.Emit(event.Phase{Name: "queue", State: event.Started})
		for i := range 1000 {
			r.Emit(event.Progress{Phase: "queue", Done: i, Total: 1000, Waiting: "queued resource “日本語”", Limit: time.Minute})
			if i%10 == 0 {
				r.Emit(out(0, 0, "line\n"))
			}
			if i == 500 {
				mu.Lock()
				width = 20
				mu.Unlock()
			}
			time.Sleep(time.Millisecond)
		}
		r.Close()
		draws := strings.Split(stderr.String(), "\r\x1b[K")
		if n := len(draws) - 1; n < 8 || n > 11 {
			t.Errorf("%d redraws in one second", n)
		}
		if last := draws[len(draws)-1]; last != "" {
			t.Errorf("status line left on the terminal: %q", last)
		}
		for i, d := range draws {
			n := 0
			for _, c := range d {
				n += runeWidth(c)
			}
			if limit := 40 - i/7*20; n >= limit {
				t.Errorf("redraw %d takes %d columns: %q", i, n, d)
			}
		}
		if got := strings.Count(stdout.String(), "line\n"); got != 100 {
			t.Errorf("%d lines shown, want 100", got)
		}
		if stdout.n > 25 {
			t.Errorf("%d writes for one second of output", stdout.n)
		}
	})
}

// If nothing changes during a wait, a line shows a sign of life. If something changes all
// the time, a line comes every 30 s.
func TestPlainStatusPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stderr := new(recorder)
		r := New(Options{Mode: Plain, Stdout: io.Discard, Stderr: stderr})
		r.Emit(event.Phase{Name: "queue", State: event.Started})
		for i := range 300 {
			r.Emit(event.Progress{Phase: "queue", Done: i, Total: 300})
			time.Sleep(time.Second)
		}
		if got := strings.Count(stderr.String(), "\n"); got != 10 {
			t.Errorf("%d lines in 5 minutes of change:\n%s", got, stderr)
		}
		time.Sleep(time.Hour)
		if got := strings.Count(stderr.String(), "\n"); got != 16 {
			t.Errorf("%d lines after an hour of no change:\n%s", got, stderr)
		}
		r.Close()
	})
}

// The bar shows how much of a copy is done, and never more than all of it.
func TestBytesHaveABar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stdout, stderr := new(recorder), new(recorder)
		r := New(Options{Mode: TTY, Stdout: stdout, Stderr: stderr, Width: func() int { return 120 }})
		r.Emit(event.Phase{Name: "copy", State: event.Started})
		for _, row := range []struct {
			done int64
			want string
		}{
			{0, "[--------------------] copy: 1/4, 0 %, 0 B of 8.0 MB, waiting for s0w1"},
			{4_000_000, "[##########----------] copy: 1/4, 50 %, 4.0 MB of 8.0 MB, waiting for s0w1"},
			{9_000_000, "[####################] copy: 1/4, "},
		} {
			r.Emit(event.Progress{Phase: "copy", Done: 1, Total: 4, Bytes: row.done, All: 8_000_000, Waiting: "s0w1"})
			time.Sleep(2 * time.Second) // fake time: the line is drawn again after a while
			synctest.Wait()
			if got := stderr.String() + stdout.String(); !strings.Contains(got, row.want) {
				t.Errorf("%d bytes: got %q, want %q in it", row.done, got, row.want)
			}
		}
		r.Close()
	})
}

// The newest step comes first, because a narrow terminal cuts the end. Only the phase of the
// step shows it.
func TestTrainingIsInTheStatusLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stdout, stderr := new(recorder), new(recorder)
		r := New(Options{Mode: TTY, Stdout: stdout, Stderr: stderr, Width: func() int { return 120 }})
		step := event.Training{Step: 57, StepSeconds: 2.001, TFLOPs: 131.52, MFU: 0.6676, Tokens: 4093.9, Loss: "3.25"}
		r.Emit(step) // no command runs, so no line can show it
		r.Emit(event.Phase{Name: "run", State: event.Started})
		r.Emit(event.Progress{Phase: "run", Total: 64, Waiting: "s0w[0-63]"})
		r.Emit(step)
		time.Sleep(time.Second)
		want := "run: step 57, 2.001 s, 131.5 TFLOP/s/device, MFU 66.8 %, 4094 tokens/s/device, loss 3.25, 0/64"
		if got := stderr.String() + stdout.String(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
		r.Emit(event.Stall{Text: "no step for 10m00s: s0w3 stopped first", Hint: "where they stand: multihost dump r"})
		r.Emit(event.Summary{Run: "r", OK: true, Text: "run r succeeded", Training: []string{"steps 0 to 57, median 2.001 s"}})
		r.Close()
		for _, want := range []string{
			"multihost: warning: no step for 10m00s: s0w3 stopped first\nmultihost: hint: where they stand: multihost dump r\n",
			"\n  training: steps 0 to 57, median 2.001 s\n",
		} {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("got %q, want %q in it", stderr, want)
			}
		}
	})
}

// A stalled writer blocks from the first byte until its release.
type stalled struct {
	release chan struct{}
	recorder
}

func (w *stalled) Write(p []byte) (int, error) {
	<-w.release
	return w.recorder.Write(p)
}

func TestStalledReader(t *testing.T) {
	volume := 100 << 20
	if testkit.RaceDetector {
		volume = 16 << 20
	}
	for _, mode := range []Mode{Plain, TTY, JSON} {
		for _, stream := range []Stream{First, All} {
			t.Run(string(mode)+"-"+string(stream), func(t *testing.T) {
				volume := volume
				if (mode == Plain) != (stream == All) || mode == JSON {
					volume = min(volume, 24<<20) // fills the view twice
				}
				w := &stalled{release: make(chan struct{})}
				r := New(Options{Mode: mode, Stream: stream, Stdout: w, Stderr: w})
				line := strings.Repeat("x", 90) + " error: y\n"
				chunk := []byte(strings.Repeat(line, 320)) // 32 KiB
				var wg sync.WaitGroup
				for worker := range 8 {
					wg.Go(func() {
						for range volume / 8 / len(chunk) {
							r.Emit(event.Output{Worker: worker, Data: chunk})
						}
					})
				}
				for i := range 10000 {
					r.Emit(event.Note{Level: event.Warn, Text: fmt.Sprintf("retry %d: %01000d", i, i)})
				}
				wg.Wait()
				var ms runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&ms)
				if ms.HeapAlloc > 64<<20 {
					t.Errorf("heap is %d MB", ms.HeapAlloc>>20)
				}
				r.Emit(event.Summary{Run: "r1", Text: "the end"})
				r.Emit(event.Result{Name: "x", Text: "answer", Data: "answer"})
				close(w.release)
				if err := r.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				got := w.String()
				for _, want := range []string{"the end", "answer", "view fell behind"} {
					if !strings.Contains(got, want) {
						t.Errorf("%q is missing at the end: …%q", want, got[max(0, len(got)-300):])
					}
				}
			})
		}
	}
}

// Standard output stalls. That must not delay messages on standard error, which leads
// elsewhere.
func TestStalledStdoutAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stalled{release: make(chan struct{})}
		stderr := new(recorder)
		r := New(Options{Mode: Plain, Stdout: w, Stderr: stderr})
		r.Emit(out(0, 0, "a line\n"))
		synctest.Wait()
		r.Emit(event.Note{Level: event.Info, Text: "still here"})
		synctest.Wait()
		if got, want := stderr.String(), "multihost: still here\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		close(w.release)
		r.Close()
	})
}

type failing struct{ err error }

func (w failing) Write([]byte) (int, error) { return 0, w.err }

func TestWriteErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string // error that Close returns
	}{
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}, ""},
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, "write standard output: write /dev/stdout: no space left on device"},
	} {
		for mode, want := range map[Mode]int{Plain: 2, JSON: 1} { // in JSON, the summary is data
			synctest.Test(t, func(t *testing.T) {
				stderr := new(recorder)
				r := New(Options{Mode: mode, Stdout: failing{tc.err}, Stderr: stderr})
				for range 100 {
					r.Emit(out(0, 0, "line\n"))
					time.Sleep(time.Second)
				}
				r.Emit(event.Summary{Run: "r1", OK: true, Text: "fine"})
				err := r.Close()
				if got := fmt.Sprint(err); got != tc.want && (err != nil || tc.want != "") {
					t.Errorf("%s: Close: %v, want %q", mode, err, tc.want)
				}
				if got := stderr.String(); strings.Count(got, "\n") != want || !strings.Contains(got, "nothing more is shown") || strings.Contains(got, "multihost: fine") != (want == 2) {
					t.Errorf("%s: standard error:\n%s", mode, got)
				}
			})
		}
	}
}

// hesitant is a non-blocking terminal that is full at every second write.
type hesitant struct {
	recorder
	calls int
}

func (w *hesitant) Write(p []byte) (int, error) {
	if w.calls++; w.calls%2 == 1 && len(p) > 1 {
		n, _ := w.recorder.Write(p[:1])
		return n, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EAGAIN}
	}
	return w.recorder.Write(p)
}

func TestNonBlockingTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(hesitant)
		r := New(Options{Mode: Plain, Stdout: w, Stderr: io.Discard})
		r.Emit(out(0, 0, "one\ntwo\n"))
		if err := r.Close(); err != nil || w.String() != "one\ntwo\n" {
			t.Errorf("Close: %v, output %q", err, w)
		}
	})
}

func TestJSONRoundTrip(t *testing.T) {
	want := "plain\nλ cut\t\"quoted\\ \x1b[31m\u009b \u2028 日本 \xff\xfe raw \xce"
	for _, size := range []int{1, 2, 3, 7, 1000} {
		w := new(recorder)
		r := New(Options{Mode: JSON, Stream: All, Stdout: w, Stderr: io.Discard})
		for i := 0; i < len(want); i += size {
			r.Emit(event.Output{Slice: 1, Worker: 2, Data: []byte(want[i:min(i+size, len(want))])})
		}
		r.Emit(event.WorkerDone{Slice: 1, Worker: 2})
		r.Close()
		var got []byte
		dec := json.NewDecoder(strings.NewReader(w.String()))
		for {
			var line struct {
				V             int
				Time          time.Time
				Kind          string
				Slice, Worker int
				Text, Base64  string
			}
			if err := dec.Decode(&line); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if line.V != 1 || line.Time.IsZero() || line.Slice != 1 || line.Worker != 2 {
				t.Errorf("line %+v", line)
			}
			if line.Kind != "output" {
				continue
			}
			raw, err := base64.StdEncoding.DecodeString(line.Base64)
			if err != nil {
				t.Fatal(err)
			}
			got = append(append(got, line.Text...), raw...)
		}
		if string(got) != want {
			t.Errorf("chunks of %d: got %q\nwant %q", size, got, want)
		}
	}
}

// No event type may have a field with the name of a common field of all lines.
func TestJSONFields(t *testing.T) {
	for _, e := range []event.Event{event.Note{}, event.Phase{}, event.Progress{}, event.State{}, event.WorkerDone{}, event.Attempt{}, event.AttemptEnd{}, event.Result{}, event.Summary{}} {
		line := appendJSONEvent(nil, e, time.Unix(1, 0))
		var all map[string]any
		if err := json.Unmarshal(line, &all); err != nil {
			t.Errorf("%s: %v: %s", e.Kind(), err, line)
		}
		own, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(own, &fields); err != nil {
			t.Fatal(err)
		}
		if len(all) != len(fields)+3 || all["kind"] != e.Kind() {
			t.Errorf("%s: fields overlap: %s", e.Kind(), line)
		}
	}
	got := string(appendJSONEvent(nil, event.Result{Data: func() {}}, time.Unix(1, 0)))
	if !strings.Contains(got, `"kind":"error"`) {
		t.Errorf("a result that cannot be encoded gives %s", got)
	}
}

func TestPrintError(t *testing.T) {
	var b bytes.Buffer
	PrintError(&b, false, errors.New("create \"q\": quota\nsecond \x1b line"), "type: multihost qr list")
	want := "multihost: error: create \"q\": quota\n  second ^[ line\nmultihost: hint: type: multihost qr list\n"
	if b.String() != want {
		t.Errorf("got %q\nwant %q", b.String(), want)
	}
	b.Reset()
	if err := PrintErrorJSON(&b, time.Unix(0, 0), errors.New("x"), "", 69); err != nil {
		t.Error(err)
	}
	want = `{"v":1,"time":"1970-01-01T00:00:00Z","kind":"error","text":"x","exit_code":69}` + "\n"
	if b.String() != want {
		t.Errorf("got %q\nwant %q", b.String(), want)
	}
}

func TestEmitAfterClose(t *testing.T) {
	w := new(recorder)
	r := New(Options{Mode: Plain, Stdout: w, Stderr: w})
	r.Close()
	r.Emit(out(0, 0, "late\n"))
	r.Emit(event.Note{Level: event.Info, Text: "late"})
	if err := r.Close(); err != nil || w.String() != "" {
		t.Errorf("Close: %v, output %q", err, w)
	}
}

// Checking eight bytes at a time must give the same result as checking single bytes.
func TestPlainPrefix(t *testing.T) {
	t.Parallel()
	for at := range 20 {
		for c := range 256 {
			line := []byte("abcdefgh\tjklmnopqrst")
			line[at] = byte(c)
			want := len(line)
			if c < 0x20 && c != '\t' || c >= 0x7f {
				want = at
			}
			if got := plainPrefix(line); got != want {
				t.Errorf("%q: got %d, want %d", line, got, want)
			}
		}
	}
}

// While the workers are silent, the status line shows how long they have been, in place of
// the time of the phase.
func TestSilenceIsCounted(t *testing.T) {
	for _, mode := range []Mode{TTY, Plain} {
		synctest.Test(t, func(t *testing.T) {
			screen := new(recorder)
			r := New(Options{Mode: mode, Stdout: screen, Stderr: screen, Width: func() int { return 60 }})
			r.Emit(event.Phase{Name: "run", State: event.Started})
			r.Emit(event.Progress{Phase: "run", Total: 4})
			time.Sleep(61 * time.Second)
			since := time.Now().Add(-20 * time.Second)
			r.Emit(event.Progress{Phase: "run", Total: 4, Silent: "s0w1", SilentSince: &since})
			time.Sleep(110*time.Second + 50*time.Millisecond)
			r.Emit(event.Progress{Phase: "run", Total: 4})
			time.Sleep(time.Minute)
			r.Close()
			text := strings.ReplaceAll(screen.String(), "\r\x1b[K", "\n")
			want := []string{"\nrun: 0/4, 1m00s\n", "\nrun: 0/4, nothing heard from s0w1 for 20 s\n", "\nrun: 0/4, nothing heard from s0w1 for 2m05s\n", "\nrun: 0/4, 3m50s\n"}
			if mode == Plain {
				want = []string{"run: 0/4 (5 s)\nrun: 0/4, nothing heard from s0w1 for 20 s\nrun: 0/4 (2m51s)\n"}
			}
			for _, w := range want {
				if !strings.Contains(text, w) {
					t.Errorf("%s: %q is missing:\n%s", mode, w, text)
				}
			}
		})
	}
}
