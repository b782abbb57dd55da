package logs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/launch"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/training"
	"multihost/internal/workers"
)

func TestWhereLogsAreRead(t *testing.T) {
	t.Parallel()
	again := []record.PastAttempt{{Attempt: 2, Again: true}}
	for _, tt := range []struct {
		story   string
		rec     *record.Record
		brought bool
		over    int
		want    place
	}{
		{"started elsewhere", nil, false, 0, placeThere},
		{"started elsewhere, attached to here for the first time", nil, true, 0, placeHere},
		{"started elsewhere, and its end was seen there", nil, false, 1, placeHere},
		{"detached", &record.Record{Attempt: 2}, false, 0, placeThere},
		{"followed on this machine", &record.Record{Attempt: 2}, true, 0, placeHere},
		{"ended, and followed to its end", &record.Record{Attempt: 2, Ended: true}, false, 0, placeHere},
		{"its runner was killed between two attempts", &record.Record{Attempt: 2, Ended: true, Attempts: again}, false, 0, placeThere},
		{"its runner is between two attempts", &record.Record{Attempt: 2, Ended: true, Attempts: again}, true, 0, placeHere},
		{"its end was seen there", &record.Record{Attempt: 2}, false, 2, placeHere},
		{"the workers knew a newer attempt, whose end was seen", &record.Record{Attempt: 2}, false, 3, placeHere},
		{"started again since its end was seen", &record.Record{Attempt: 3}, false, 2, placeThere},
	} {
		if got := placeOf(tt.rec, tt.brought, tt.over); got != tt.want {
			t.Errorf("%s: read %s, want %s", tt.story, got, tt.want)
		}
	}
}

func TestWhoIsAtARunIsSeenUntilItLeaves(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if follow.SomeoneAt(state, "r") {
		t.Error("somebody is at a run that nobody came to")
	}
	typed := &stage.Invocation{Sink: event.Discard}
	runner, attached := &record.Keeper{Of: typed, StateDir: state}, &record.Keeper{Of: typed, StateDir: state}
	runner.OpenJournal("r", "run", nil)
	attached.OpenJournal("r", "attach", nil)
	attached.OpenJournal("r", "attach", nil) // another attempt
	if !follow.SomeoneAt(state, "r") || follow.SomeoneAt(state, "other") {
		t.Error("two commands at a run are not seen, or seen at another")
	}
	runner.CloseJournal(stage.Outcome{}, nil)
	if !follow.SomeoneAt(state, "r") {
		t.Error("the second command is not seen when the first has left")
	}
	attached.CloseJournal(stage.Outcome{}, nil)
	if follow.SomeoneAt(state, "r") {
		t.Error("a command that has left is seen")
	}
}

// Two sources bring the same log, in pieces, at the same time.
func TestBytesOfALogCountOnce(t *testing.T) {
	t.Parallel()
	whole := []byte(testkit.Steps(0, 500, 1))
	id := tpu.WorkerID{}
	c := metrics.NewCollector(metrics.Options{Workers: []tpu.WorkerID{id}})
	log := &training.ReadLog{Stream: c.Stream(0)}
	var group sync.WaitGroup
	for seed := range uint64(3) {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for log.Offset() < int64(len(whole)) {
				from := log.Offset()
				w := log.From(from)
				rest := whole[from:]
				for range 3 {
					n := min(rng.IntN(400), len(rest))
					if _, err := w.Write(rest[:n]); err != nil {
						t.Error(err)
					}
					rest = rest[n:]
				}
			}
		})
	}
	group.Wait()
	log.Finish()
	a := c.Attempt(metrics.View{})
	if a.Steps != 500 || a.Last.Step != 499 || a.Restarts != 0 || a.Slices[0].Workers[0].LogBytes != int64(len(whole)) {
		t.Errorf("%d steps to %d, %d restarts, %d bytes; want 500 to 499 of %d bytes", a.Steps, a.Last.Step, a.Restarts, a.Slices[0].Workers[0].LogBytes, len(whole))
	}
	if got := log.LastLines(2); len(got) != 2 || got[1]+"\n" != testkit.Steps(499, 500, 1) {
		t.Errorf("last lines %q", got)
	}
}

// The test switches between this machine's files and another source, both ways. Some
// workers of the run have no file here.
func TestALogIsReadOnFromWhereTheLocalOneEnds(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	w0, w1 := tpu.WorkerID{}, tpu.WorkerID{Slice: 1}
	dir := filepath.Join(state, "logs")
	here := &record.Record{Run: "r", Attempt: 1, LogDir: dir, Bucket: "b"}
	testkit.Must(t, here.Save(state))
	whole := testkit.Steps(0, 30, 1)
	tenth, twentieth := len(testkit.Steps(0, 10, 1)), len(testkit.Steps(0, 20, 1))
	testkit.Append(t, record.LogPath(dir, w0), whole[:tenth])
	r := OpenReview(state, "r", training.TrainingOptions{})
	look := func(want ...int64) Look {
		t.Helper()
		l, err := r.Look(metrics.View{}, time.Unix(0, 0))
		testkit.Must(t, err)
		var got []int64
		for _, s := range l.Document.Newest().Slices {
			for _, w := range s.Workers {
				got = append(got, w.Steps)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("steps %v, want %v", got, want)
		}
		return l
	}
	look(10)
	there := *here
	there.Slices = []record.Slice{{Name: "t-0", Workers: 1, Type: "v5litepod-4"}, {Name: "t-1", Workers: 1, Type: "v5litepod-4"}}
	r.far = &onlooker{review: r, far: Far{Clock: gcp.SystemClock}}
	logs, err := r.far.takeUp(&there)
	testkit.Must(t, err)
	if at := logs[w0].Offset(); at != int64(tenth) || logs[w1].Offset() != 0 {
		t.Errorf("read on from %d and %d, want %d and 0", at, logs[w1].Offset(), tenth)
	}
	_, _ = logs[w0].From(int64(tenth)).Write([]byte(whole[tenth:twentieth]))
	_, _ = logs[w1].From(0).Write([]byte(whole[:tenth]))
	look(20, 10)
	testkit.Append(t, record.LogPath(dir, w0), whole[tenth:]) // a command now copies the rest of the log
	testkit.Append(t, record.LogPath(dir, w1), whole)
	look(30, 30)
	if again, err := r.far.takeUp(&there); err != nil || again[w1].Offset() != int64(len(whole)) {
		t.Errorf("read on from elsewhere: %v, %v", again[w1], err)
	}
	r.far.tellStart(&there, []tpu.WorkerID{w0, w1})
	r.far.note(event.WorkerDone{Slice: 1, Code: 3})
	r.far.end(event.Summary{Run: "r", Attempt: 1, ExitCode: 3, Text: "run r failed", FirstFail: "s1w0: exit code 3"})
	l := look(30, 30)
	a := l.Document.Newest()
	if v := l.Story.Verdict(journal.Known{Logs: true, Ended: a.Ended}, time.Unix(0, 0)); !l.Ended || v.State != journal.Failed || !a.Ended || *a.ExitCode != 3 {
		t.Errorf("the end: %+v, ended %v, %+v", v, l.Ended, a)
	}
	if e, ok := l.Story.Newest().Ending(w1); !ok || e.Text != "exit code 3" {
		t.Errorf("s1w0 ended: %+v, %v", e, ok)
	}
	if rec, err := record.LoadRecord(state, "r"); err != nil || rec.Ended || len(rec.Slices) > 0 {
		t.Errorf("the record was written to: %+v, %v", rec, err)
	}
}

// A command that follows a run may stop or leave it in several ways. An onlooker must never stop
// a run. The test ends a read in each of these ways.
func TestWhoReadsStopsNobody(t *testing.T) {
	testkit.NoLeaks(t)
	keys := t.TempDir()
	key := filepath.Join(keys, "key")
	identity, _, err := sshkey.Ensure(key, func() (*sshkey.Identity, error) { return sshkey.Load(key, nil) })
	testkit.Must(t, err)
	for name, cause := range map[string]error{
		"q":       context.Canceled,
		"Ctrl-C":  &stage.Interrupted{},
		"stop it": &stage.Interrupted{Answer: stage.Stop},
	} {
		var mu sync.Mutex
		var said []event.Event
		sink := event.SinkFunc(func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, e)
		})
		state := t.TempDir()
		fleet, err := sshfan.New(sshfan.Config{Identity: identity, Sink: event.Discard, ReadOnly: true, KnownHosts: filepath.Join(state, "known"), RetryFor: time.Minute, ConnectTimeout: time.Second})
		testkit.Must(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		opening, stopOpening := context.WithCancel(t.Context())
		stopOpening()
		conns, errs := fleet.Open(opening, []sshfan.Host{{Name: "s0w0", User: "ann", Pin: "1/0", Addr: func(context.Context) (string, error) { return "", errors.New("no address") }}})
		clock := testkit.NewFastClock()
		f := &follow.Following{
			Deps: follow.Deps{
				Reach:  &workers.Reach{Invocation: &stage.Invocation{Clock: clock, Sink: sink}, Cloud: &testkit.FixedSlices{All: []tpu.Slice{{Name: "t", UID: "1", State: "READY", Condition: tpu.Usable}}}},
				Keeper: &record.Keeper{StateDir: state},
			},
			Workers: &workers.Connected{IDs: testkit.WorkerIDs(1, 1), Conns: []remote.Conn{conns[0]}, Away: errs, HangUp: fleet.Close, Slices: []tpu.Slice{{Name: "t", UID: "1", State: "READY", Condition: tpu.Usable}}},
			Ref:     launch.Ref{Run: "r", Attempt: 1}, Rec: &record.Record{Run: "r", Attempt: 1, LogDir: filepath.Join(state, "logs")}, Watch: &stage.Stopwatch{Sink: sink, Clock: clock},
			FailFast: true, Timeout: time.Millisecond, Attached: false, Watching: follow.WatchOptions{StallTimeout: -1},
			Reads: []*training.ReadLog{{Stream: metrics.NewCollector(metrics.Options{Workers: testkit.WorkerIDs(1, 1)}).Stream(0)}},
		}
		done := make(chan error, 1)
		go func() {
			_, err := f.Do(ctx)
			done <- err
		}()
		for len(f.OutOfReach()) == 0 {
			<-clock.After(time.Second)
		}
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
		fleet.Close()
		for _, e := range said {
			if n, ok := e.(event.Note); ok && n.Level == event.Warn && len(n.Text) > 8 && n.Text[:8] == "stopping" {
				t.Errorf("%s: %s", name, n.Text)
			}
		}
		if entries, _ := os.ReadDir(state); len(entries) > 0 {
			t.Errorf("%s: it has written %v", name, entries)
		}
	}
}

func TestWorkersOutOfReachAreToldTogether(t *testing.T) {
	t.Parallel()
	away := map[tpu.WorkerID]string{}
	for i := range 3 {
		away[tpu.WorkerID{Slice: 1, Worker: i}] = "connection refused"
	}
	away[tpu.WorkerID{}] = `slice "t-0" is gone`
	if got := fmt.Sprint(foldAway(away)); got != `[out of reach: s0w0: slice "t-0" is gone out of reach: s1w[0-2]: connection refused]` {
		t.Error(got)
	}
}
