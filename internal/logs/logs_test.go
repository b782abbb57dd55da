package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/sshfan"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestTailOffset(t *testing.T) {
	read := int64(0)
	of := func(text string, n int) int64 {
		t.Helper()
		at, err := tailOffset(int64(len(text)), n, tailMost, func(offset int64, p []byte) error {
			read += int64(len(p))
			_, err := strings.NewReader(text).ReadAt(p, offset)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"a\nb\nc\n", 0, ""}, {"a\nb\nc\n", 1, "c\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc\n", 3, "a\nb\nc\n"}, {"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"a\nb\nc", 1, "c"}, {"a\nb\nc", 2, "b\nc"}, {"\n", 1, "\n"}, {"\n\n\n", 2, "\n\n"}, {"a\n\n", 1, "\n"}, {"abc", 1, "abc"},
	} {
		if got := c.text[of(c.text, c.n):]; got != c.want {
			t.Errorf("last %d lines of %q: %q, want %q", c.n, c.text, got, c.want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 { // compare with another way to count, over several windows
		var b strings.Builder
		for range random.IntN(3000) {
			b.WriteString(strings.Repeat("x", random.IntN(300)) + "\n")
		}
		lines := strings.SplitAfter(b.String(), "\n")
		lines = lines[:len(lines)-1]
		n := 1 + random.IntN(3500)
		if got, want := b.String()[of(b.String(), n):], strings.Join(lines[max(0, len(lines)-n):], ""); got != want {
			t.Fatalf("%d of %d lines: %d bytes, want %d", n, len(lines), len(got), len(want))
		}
	}
	// The ten lines of 10 GB are found without reading the 10 GB.
	read = 0
	size := int64(10 << 30)
	at, err := tailOffset(size, 10, tailMost, func(offset int64, p []byte) error {
		read += int64(len(p))
		for i := range p {
			p[i] = 'x'
			if (offset+int64(i)+1)%1000 == 0 {
				p[i] = '\n'
			}
		}
		return nil
	})
	if err != nil || read > 64<<10 || size-at < 9000 || size-at > 10000 {
		t.Errorf("10 lines of %d bytes: the last %d, with %d read, %v", size, size-at, read, err)
	}
}

// shown collects logs as text, with the seconds and the worker of each line.
type shown struct {
	begin time.Time
	text  strings.Builder
	err   error
}

func (s *shown) WriteLog(id tpu.WorkerID, at time.Time, p []byte) error {
	if at.IsZero() || s.begin.IsZero() {
		s.text.Write(p)
	} else {
		fmt.Fprintf(&s.text, "%g %s %s", at.Sub(s.begin).Seconds(), id, p)
	}
	return s.err
}

func (s *shown) Flush() error { return nil }

// logged makes the record and the logs of an ended run with two workers. The second worker failed
// first. In each log, the lines arrived one second apart.
func logged(t *testing.T) (runs.Deps, *testkit.Recorder, time.Time) {
	t.Helper()
	begin := time.Now().Truncate(time.Second).Add(-time.Hour)
	sink := &testkit.Recorder{}
	typed := &stage.Invocation{Sink: sink, Clock: gcp.SystemClock}
	d := runs.Deps{
		Reach:  &workers.Reach{Invocation: typed},
		Keeper: &record.Keeper{Of: typed, StateDir: t.TempDir()},
	}
	dir := record.RecordDir(d.StateDir, "r", 1)
	rec := &record.Record{Run: "r", Attempt: 1, Workers: 2, LogDir: dir, Ended: true, Code: 3, Slices: []record.Slice{{Name: "t", Workers: 2}},
		Attempts: []record.PastAttempt{{Attempt: 1, End: begin, Code: 3, LogDir: dir}}}
	if err := rec.Save(d.StateDir); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		id := tpu.WorkerID{Worker: i}
		now := begin.Add(time.Duration(i) * 500 * time.Millisecond)
		w := &record.ArrivalWriter{Path: record.ArrivalsPath(dir, id), Now: func() time.Time { return now }}
		var text []byte
		for n := range 5 {
			w.Mark(int64(len(text)))
			text = fmt.Appendf(text, "line %d\n", n)
			now = now.Add(time.Second)
		}
		if err := os.WriteFile(record.LogPath(dir, id), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	events := `{"v":1,"time":"2026-01-02T03:04:05Z","by":"1","kind":"attempt","run":"r","attempt":1}
{"v":1,"time":"2026-01-02T03:04:06Z","by":"1","kind":"summary","run":"r","attempt":1,"ok":false,"exit_code":3,"first_failure":"s0w1: exit code 3","text":"run r failed: s0w1 was first, exit code 3"}
`
	if err := os.WriteFile(filepath.Join(record.RunDir(d.StateDir, "r"), journal.Name), []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	return d, sink, begin
}

func TestLocalLogs(t *testing.T) {
	all := "0 s0w0 line 0\n0.5 s0w1 line 0\n1 s0w0 line 1\n1.5 s0w1 line 1\n2 s0w0 line 2\n2.5 s0w1 line 2\n3 s0w0 line 3\n3.5 s0w1 line 3\n4 s0w0 line 4\n4.5 s0w1 line 4\n"
	for name, c := range map[string]struct {
		o    LogOptions
		ago  time.Duration // age of the first line at the time Since
		text string
		note string
	}{
		"one worker":        {LogOptions{Tail: -1}, 0, "line 0\nline 1\nline 2\nline 3\nline 4\n", "log of s0w0, one of 2 workers"},
		"a named one":       {LogOptions{Tail: -1, Named: true}, 0, "line 0\nline 1\nline 2\nline 3\nline 4\n", ""},
		"the last lines":    {LogOptions{Tail: 2, Named: true}, 0, "line 3\nline 4\n", ""},
		"none":              {LogOptions{Tail: 0, Named: true}, 0, "", ""},
		"since":             {LogOptions{Tail: -1, Named: true}, 4500 * time.Millisecond, "4 s0w0 line 4\n", ""},
		"since, many":       {LogOptions{Tail: 3, Named: true}, 2500 * time.Millisecond, "2 s0w0 line 2\n3 s0w0 line 3\n4 s0w0 line 4\n", ""},
		"since, fewer":      {LogOptions{Tail: 1, Named: true}, 2500 * time.Millisecond, "4 s0w0 line 4\n", ""},
		"since later":       {LogOptions{Tail: -1, Named: true}, time.Minute, "", ""},
		"times":             {LogOptions{Tail: 2, Named: true, Times: true}, 0, "3 s0w0 line 3\n4 s0w0 line 4\n", ""},
		"all":               {LogOptions{Tail: -1, All: true}, 0, all, ""},
		"all, the last":     {LogOptions{Tail: 1, All: true}, 0, "4 s0w0 line 4\n4.5 s0w1 line 4\n", ""},
		"the first failure": {LogOptions{Tail: 1, FirstFailure: true}, 0, "line 4\n", "log of s0w1, which failed first"},
	} {
		t.Run(name, func(t *testing.T) {
			d, sink, begin := logged(t)
			if c.ago > 0 {
				c.o.Since = begin.Add(c.ago)
			}
			s := &shown{begin: begin}
			whole, err := LocalLog(t.Context(), d, "r", c.o, s)
			if !whole || err != nil || s.text.String() != c.text {
				t.Errorf("whole %v, %v:\n%s, want\n%s", whole, err, s.text.String(), c.text)
			}
			var notes []string
			for _, e := range sink.Events() {
				if n, ok := e.(event.Note); ok {
					notes = append(notes, n.Text)
				}
			}
			if got := strings.Join(notes, "\n"); got != c.note {
				t.Errorf("said %q, want %q", got, c.note)
			}
		})
	}
}

// A line without a recorded arrival gets the time of its fetch, and a note says so.
func TestLocalLogsUntimed(t *testing.T) {
	d, sink, begin := logged(t)
	dir := record.RecordDir(d.StateDir, "r", 1)
	if err := os.Remove(record.ArrivalsPath(dir, tpu.WorkerID{})); err != nil {
		t.Fatal(err)
	}
	s := &shown{begin: begin}
	if whole, err := LocalLog(t.Context(), d, "r", LogOptions{Tail: 2, Named: true, Times: true}, s); !whole || err != nil {
		t.Fatal(whole, err)
	}
	found := false
	for _, e := range sink.Events() {
		n, ok := e.(event.Note)
		found = found || ok && strings.Contains(n.Text, "2 lines of s0w0 came while this machine did not follow")
	}
	if !found {
		t.Errorf("events %+v", sink.Events())
	}
}

// slowSource gives a log in pieces of any length, and may fail at its end.
type slowSource struct {
	logSource
	text string
	err  error
}

func (s slowSource) copyFrom(_ context.Context, offset, _ int64, w io.Writer) error {
	for text := s.text[offset:]; len(text) > 0; {
		n := min(len(text), 3)
		if _, err := io.WriteString(w, text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return s.err
}

// Lines stay whole. An error of one log does not end the others. All logs end when the output is
// closed.
func TestMerge(t *testing.T) {
	away := errors.New("away")
	reader := func(s LogSink) *logReader {
		now := time.Now()
		l := newLogReader(runs.Deps{
			Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: gcp.SystemClock}},
		}, LogOptions{All: true, Tail: -1}, s)
		for i, text := range []string{"first\nand unfinished", "", "a\n\nb\n" + strings.Repeat("c\n", 100)} {
			one := &oneLog{id: tpu.WorkerID{Worker: i}, src: slowSource{text: text}, end: -1}
			if i == 2 {
				one.src = slowSource{text: text, err: away}
			}
			one.text = &logText{lines: true, arrivals: &record.Arrivals{}, now: now, live: 1 << 60, emit: func(at time.Time, p []byte) error { return l.emit(one.id, time.Time{}, p) }}
			l.logs = append(l.logs, one)
		}
		return l
	}
	s := &shown{}
	err := reader(s).merge(t.Context())
	if want := "first\nand unfinished" + "a\n\nb\n" + strings.Repeat("c\n", 100); s.text.String() != want {
		t.Errorf("%q, want %q", s.text.String(), want)
	}
	if !errors.Is(err, away) {
		t.Errorf("the error is %v", err)
	}
	gone := &shown{err: io.ErrClosedPipe}
	var failed *sinkError
	if err := reader(gone).merge(t.Context()); !errors.As(err, &failed) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("without a reader: %v", err)
	}
}

// Lines are passed on whole, except a very long line.
func TestLineHold(t *testing.T) {
	var got bytes.Buffer
	h := &lineHold{w: &got}
	for _, step := range []struct{ write, want string }{
		{"a", ""}, {"b\nc", "ab\n"}, {"\n", "ab\nc\n"}, {strings.Repeat("x", longestHeld+1), "ab\nc\n" + strings.Repeat("x", longestHeld+1)}, {"y", "ab\nc\n" + strings.Repeat("x", longestHeld+1)},
	} {
		if _, err := io.WriteString(h, step.write); err != nil || got.String() != step.want {
			t.Fatalf("%d bytes, want %d: %v", got.Len(), len(step.want), err)
		}
	}
	if err := h.rest(); err != nil || !strings.HasSuffix(got.String(), "xy") {
		t.Errorf("the rest: %v", err)
	}
}

// A worker's VM is gone if its slice is gone, or if the slice now has fewer VMs than in the
// record.
func TestLogsWithoutMachine(t *testing.T) {
	five := "line 0\nline 1\nline 2\nline 3\nline 4\n"
	short := &testkit.FixedSlices{All: []tpu.Slice{{Name: "t", Workers: make([]tpu.Worker, 1)}}}
	for name, c := range map[string]struct {
		cloud  *testkit.FixedSlices
		noCopy bool
		text   string
		said   string // in the note or in the error
	}{
		"not listed":          {short, false, five, "worker s0w1 is not among the machines of slice t: this machine's copy"},
		"not listed, no copy": {short, true, "", "worker s0w1 is not among the machines of slice t, and this machine has no copy of the log of s0w1"},
		"slice gone":          {&testkit.FixedSlices{}, false, five, "slice t is gone: this machine's copy"},
		"slice gone, no copy": {&testkit.FixedSlices{}, true, "", "slice t is gone, and this machine has no copy of the log of s0w1"},
	} {
		t.Run(name, func(t *testing.T) {
			d, sink, _ := logged(t)
			d.Cloud = c.cloud
			id := tpu.WorkerID{Worker: 1}
			rec, err := record.LoadRecord(d.StateDir, "r")
			testkit.Must(t, err)
			if c.noCopy {
				testkit.Must(t, os.Remove(record.LogPath(rec.LogDir, id)))
			}
			s := &shown{}
			err = newLogReader(d, LogOptions{Worker: id, Named: true, Tail: -1}, s).overSSH(t.Context(), rec)
			said := fmt.Sprint(err)
			for _, e := range sink.Events() {
				if n, ok := e.(event.Note); ok {
					said += "\n" + n.Text
				}
			}
			if (err != nil) != c.noCopy || s.text.String() != c.text || !strings.Contains(said, c.said) {
				t.Errorf("shown %q, said %q", s.text.String(), said)
			}
		})
	}
}

// If a slice is gone, logs -f shows this machine's copy. It does not do that if a bucket has a
// newer log.
func TestFollowWithoutMachine(t *testing.T) {
	for _, inBucket := range []bool{false, true} {
		d, _, _ := logged(t)
		d.Cloud = &testkit.FixedSlices{}
		rec, err := record.LoadRecord(d.StateDir, "r")
		testkit.Must(t, err)
		s := &shown{}
		l := newLogReader(d, LogOptions{Named: true, Follow: true, Tail: 2}, s)
		l.inBucket = inBucket
		want := "line 3\nline 4\n"
		if inBucket {
			want = ""
		}
		if err := l.overSSH(t.Context(), rec); s.text.String() != want || (err != nil) != inBucket || l.wrote == inBucket {
			t.Errorf("in a bucket %v: shown %q, want %q, %v", inBucket, s.text.String(), want, err)
		}
	}
}

// fullPipe is a LogSink whose Flush fails.
type fullPipe struct{ shown }

func (p *fullPipe) Flush() error { return io.ErrClosedPipe }

// followAll stops for all logs, even those without text, when the output is closed.
func TestFollowEndsWithoutReader(t *testing.T) {
	l := newLogReader(runs.Deps{
		Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: gcp.SystemClock}},
	}, LogOptions{All: true, Follow: true}, &fullPipe{})
	for i := range 3 {
		l.logs = append(l.logs, &oneLog{id: tpu.WorkerID{Worker: i}, conn: &sshfan.Conn{}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err := l.followAll(ctx, func(ctx context.Context, one *oneLog) error {
		if one.id.Worker == 1 {
			_, err := l.flushed(io.Discard).Write([]byte("x\n"))
			return fmt.Errorf("write output of s0w1: %w", err)
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	var failed *sinkError
	if !errors.As(err, &failed) || !errors.Is(err, io.ErrClosedPipe) || strings.Contains(err.Error(), "workers failed") {
		t.Errorf("the error is %v", err)
	}
}

// An attempt unknown to a worker is not shown as an empty log, and --all still shows the
// other logs.
func TestLogOfUnknownAttempt(t *testing.T) {
	for phase, want := range map[launch.Phase]error{launch.Unknown: launch.ErrUnknownRun, launch.Aborted: launch.ErrNotStarted, launch.Exited: nil, launch.Running: nil, launch.Lost: nil} {
		if n, err := sizeOf(launch.State{Ref: launch.Ref{Run: "r", Attempt: 7}, Phase: phase, LogSize: 5}, "t-w0"); !errors.Is(err, want) || n != 5 && err == nil {
			t.Errorf("%s: %d, %v", phase, n, err)
		}
	}
	unknown, broken := fmt.Errorf("read: %w", launch.ErrUnknownRun), errors.New("broken")
	for _, c := range []struct {
		all, inBucket bool
		errs          []error
		want          bool
	}{
		{true, false, []error{unknown, nil}, true}, {true, false, []error{nil, nil}, true}, {true, false, []error{unknown, unknown}, false},
		{true, false, []error{unknown, nil, broken}, false}, {true, true, []error{unknown, nil}, false}, {false, false, []error{unknown}, false},
	} {
		l := newLogReader(runs.Deps{
			Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: gcp.SystemClock}},
		}, LogOptions{All: c.all}, &shown{})
		l.inBucket = c.inBucket
		for range c.errs {
			l.logs = append(l.logs, &oneLog{})
		}
		if got := l.withoutUnknown(c.errs); got != c.want || got && l.logs[0].err != c.errs[0] {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// partSource is the beginning of a log, for example in a bucket.
type partSource struct {
	logSource
	text string
}

func (s partSource) size(context.Context) (int64, error) { return int64(len(s.text)), nil }

func (s partSource) copyFrom(_ context.Context, offset, end int64, w io.Writer) error {
	if offset >= int64(len(s.text)) || end > int64(len(s.text)) {
		return errors.New("416 Requested Range Not Satisfiable")
	}
	_, err := io.WriteString(w, s.text[offset:max(end, int64(len(s.text)))])
	return err
}

// If a worker gives only the beginning of a log, the rest comes from a bucket, as far as
// the bucket has it.
func TestGoOnInBucket(t *testing.T) {
	for _, c := range []struct {
		offset, end int64
		there, want string
	}{{2, 9, "012345", "2345"}, {2, 6, "012345", "2345"}, {6, 9, "012345", ""}, {7, 9, "012345", ""}, {2, -1, "012345", "2345"}, {0, 9, "", ""}} {
		var got strings.Builder
		one := &oneLog{end: c.end, text: &logText{offset: c.offset, emit: func(_ time.Time, p []byte) error { got.Write(p); return nil }}}
		err := one.goOnIn(t.Context(), partSource{text: c.there})
		if err == nil {
			err = one.copy(t.Context(), one.text)
		}
		if err != nil || got.String() != c.want {
			t.Errorf("%+v: %q, %v", c, got.String(), err)
		}
	}
}

// The hint names an existing worker of the run.
func TestHintOfAnotherWorker(t *testing.T) {
	first, last := tpu.WorkerID{}, tpu.WorkerID{Slice: 1} // two slices of one worker
	for shown, other := range map[tpu.WorkerID]string{first: "s1w0", last: "s0w0"} {
		sink := &testkit.Recorder{}
		l := newLogReader(runs.Deps{
			Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: sink, Clock: gcp.SystemClock}},
		}, LogOptions{}, nil)
		l.tellWhich(shown, []tpu.WorkerID{first, last}, nil)
		if n, ok := sink.Events()[0].(event.Note); !ok || n.Hint != "another one: --worker="+other+"; all of them: --all" {
			t.Errorf("of %s is said %+v", shown, n)
		}
	}
}

// The logs of many workers together do not fill the memory.
func TestPieces(t *testing.T) {
	for logs, want := range map[int]int64{1: 8 << 20, 8: 8 << 20, 64: 1 << 20, 256: 256 << 10, 4096: 64 << 10} {
		if got := pieceOf(logs); got != want {
			t.Errorf("of each of %d logs %d bytes are held, want %d", logs, got, want)
		}
	}
	most := 0
	text := strings.Repeat("x\n", 2<<20)
	if at, err := tailOffset(int64(len(text)), 1<<20, 256<<10, func(offset int64, p []byte) error {
		most = max(most, len(p))
		_, err := strings.NewReader(text).ReadAt(p, offset)
		return err
	}); at != 2<<20 || most != 256<<10 || err != nil {
		t.Errorf("the last lines begin at %d, with %d bytes at once, %v", at, most, err)
	}
}
