//go:build unix

package follow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
	"multihost/internal/training"
	"multihost/internal/workers"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// A started is a run on workers, and its Following.
type started struct {
	*Following
	said    *testkit.Recorder
	workers []*localworker.Worker
}

// start starts each script on a worker of its own, which is a process of this machine.
func start(t *testing.T, scripts ...string) *started {
	t.Helper()
	fleet, ref := localworker.Fleet{}, launch.Ref{Run: "r", Attempt: 1}
	slice := fleet.Slice(t, "t", len(scripts))
	d, said := onworkers.Deps(t, fleet, &testkit.FixedSlices{All: []tpu.Slice{slice}})
	s := &started{said: said, workers: fleet["t"]}
	s.Following = &Following{
		Deps:    Deps{Reach: d.Reach, Keeper: d.Keeper},
		Workers: &workers.Connected{Slices: []tpu.Slice{slice}, IDs: testkit.WorkerIDs(1, len(scripts))},
		Ref:     ref, Rec: &record.Record{Run: "r", Attempt: 1, Workers: len(scripts), LogDir: t.TempDir()},
		Watch: &stage.Stopwatch{Sink: said, Clock: d.Clock}, FailFast: true, Grace: 100 * time.Millisecond,
		Patience: Patience{Lost: time.Minute, Log: time.Minute}, Watching: WatchOptions{StallTimeout: -1},
	}
	for i, script := range scripts {
		s.workers[i].Start(t, launch.Spec{Run: "r", Attempt: 1, Owner: "ann@laptop", Script: script})
		c := s.workers[i].Connect(s.Workers.IDs[i].String(), false, time.Minute)
		t.Cleanup(c.Close)
		s.Workers.Conns = append(s.Workers.Conns, remote.Conn(c))
	}
	return s
}

// log returns this machine's copy of a worker's output.
func (s *started) log(worker int) string {
	text, _ := os.ReadFile(s.Rec.LogPath(tpu.WorkerID{Worker: worker}))
	return string(text)
}

func TestARunThatSucceeds(t *testing.T) {
	t.Parallel()
	s := start(t, "printf 'one\\n'; echo two >&2", "echo from $MULTIHOST_RUN; sleep 300 </dev/null >/dev/null 2>&1 &")
	out, err := s.Do(t.Context())
	if err != nil || out.Code != 0 || out.PartLogs || out.KeepLogs || !s.Rec.Ended {
		t.Errorf("%+v, %v, recorded end: %v", out, err, s.Rec.Ended)
	}
	if s.log(0) != "one\ntwo\n" || s.log(1) != "from r\n" {
		t.Errorf("logs %q and %q", s.log(0), s.log(1))
	}
	if want := "warning: run r: the command ended and left 1 process in the background, which ended with it, on s0w1; its own status was 0"; s.Sum.Text != want || s.Sum.LeftBehind != 1 {
		t.Errorf("%+v", s.Sum)
	}
	if st := s.StatusOf(); st.Running != "" || !st.Ended || !st.Ours {
		t.Errorf("status %+v", st)
	}
}

func TestAFailureStopsTheOthers(t *testing.T) {
	t.Parallel()
	s := start(t, "echo begun; exec sleep 300", "echo last words; exit 3")
	out, err := s.Do(t.Context())
	if err != nil || out.Code != 3 || !s.Rec.Ended {
		t.Errorf("%+v, %v", out, err)
	}
	if want := "run r failed: s0w1 was first, exit code 3"; s.Sum.Text != want || !slices.Equal(s.Sum.LastLines, []string{"last words"}) {
		t.Errorf("%+v", s.Sum)
	}
	if !s.said.Said(event.Warn, "stopping run r on all workers: "+failFastReason) {
		t.Errorf("said %+v", s.said.Notes())
	}
	if s.Ends[0].Exit.Reason != failFastReason {
		t.Errorf("worker 0 ended with %+v", s.Ends[0])
	}
}

// The workers learn that a user knows how the run ended and has its logs, unless this
// command deletes their slices next.
func TestTheEndThatAUserHasSeen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story, script string
		deletes, want bool
	}{
		{"a success", "true", false, true},
		{"a failure", "exit 3", false, true},
		{"a failure on slices that go", "exit 3", true, false},
	} {
		s := start(t, tt.script)
		s.Deletes = tt.deletes
		if _, err := s.Do(t.Context()); err != nil {
			t.Errorf("%s: %v", tt.story, err)
		}
		infos, err := launch.List(t.Context(), s.Workers.Conns[0])
		if err != nil || len(infos) != 1 || infos[0].Seen != tt.want {
			t.Errorf("%s: %+v, %v", tt.story, infos, err)
		}
	}
}

// No byte of a log is lost with a connection.
func TestAConnectionThatBreaks(t *testing.T) {
	t.Parallel()
	s := start(t, "echo one\n"+localworker.UntilAllowed+"echo two")
	go func() {
		testkit.Eventually(t, "the first line", func() bool { return s.log(0) == "one\n" })
		s.workers[0].Cut()
		s.workers[0].Allow(t)
	}()
	if out, err := s.Do(t.Context()); err != nil || out.Code != 0 || s.log(0) != "one\ntwo\n" {
		t.Errorf("%+v, %v, log %q", out, err, s.log(0))
	}
}

// Each row has an event that ends a following, and says whether the command continues.
func TestWhatEndsAFollowing(t *testing.T) {
	for _, tt := range []struct {
		story  string
		set    func(*Following)
		cause  error
		err    string
		lives  bool
		phrase string // part of a note
	}{
		{"Ctrl-C", nil, &stage.Interrupted{Signal: syscall.SIGINT}, "interrupted (SIGINT)", false, "stopping run r on all workers: interrupted (SIGINT)"},
		{"Ctrl-C with the answer to detach", nil, &stage.Interrupted{Signal: syscall.SIGINT, Answer: stage.Detach}, "detached", true, "left run r: it continues on s0w0"},
		{"Ctrl-C of attach", func(f *Following) { f.Attached = true }, &stage.Interrupted{Signal: syscall.SIGINT}, "interrupted (SIGINT)", true, "left run r"},
		{"--timeout", func(f *Following) { f.Timeout = 200 * time.Millisecond }, nil, "timeout: --timeout=200ms has passed", false, "stopping run r on all workers: --timeout=200ms has passed"},
		{"the slice is taken away", func(f *Following) {
			f.Cloud = &testkit.FixedSlices{}
			f.Clock = testkit.NewFastClock()
		}, nil, "", false, "lost the connection"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			s := start(t, "echo begun; exec sleep 300")
			if tt.set != nil {
				tt.set(s.Following)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				testkit.Eventually(t, "the first line", func() bool { return s.log(0) == "begun\n" })
				if tt.cause != nil {
					cancel(tt.cause)
				} else if tt.err == "" {
					s.workers[0].Leave()
				}
			}()
			out, err := s.Do(ctx)
			if tt.err == "" {
				if err != nil || out.Code != LostCode || !strings.Contains(s.Sum.Text, `slice "t" is gone`) {
					t.Errorf("%+v, %v, %+v", out, err, s.Sum)
				}
				s.workers[0].Return()
			} else if err == nil || err.Error() != tt.err {
				t.Errorf("%+v, %v", out, err)
			}
			if !slices.ContainsFunc(s.said.Notes(), func(n event.Note) bool { return strings.Contains(n.Text, tt.phrase) }) {
				t.Errorf("said %+v", s.said.Notes())
			}
			if tt.err == "" {
				return // the test cannot know what runs there
			}
			state, err := launch.Status(t.Context(), s.Workers.Conns[0], s.Ref)
			if err != nil || (state.Exit == nil) != tt.lives || s.Rec.Ended == tt.lives {
				t.Errorf("it lives on: %v, want %v; %v", state.Exit == nil, tt.lives, err)
			}
		})
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	s := start(t, "echo one\n"+localworker.UntilAllowed+"exit 4", "echo other")
	collector := metrics.NewCollector(metrics.Options{Workers: s.Workers.IDs})
	for i := range s.Workers.IDs {
		s.Reads = append(s.Reads, &training.ReadLog{Stream: collector.Stream(i)})
	}
	s.Attached = true
	testkit.Eventually(t, "the other's end", func() bool {
		s.Once(t.Context())
		return s.Ends[1].Known
	})
	if s.Sum != nil || s.Ends[0].Known {
		t.Errorf("the run has ended: %+v", s.Ends)
	}
	s.workers[0].Allow(t)
	testkit.Eventually(t, "the end", func() bool {
		s.Once(t.Context())
		return s.Sum != nil
	})
	if s.Sum.ExitCode != 4 || s.Sum.Text != "run r failed: s0w0 was first, exit code 4" || !slices.Equal(s.Reads[0].LastLines(9), []string{"one"}) {
		t.Errorf("%+v, read %q", s.Sum, s.Reads[0].LastLines(9))
	}
	if files, _ := os.ReadDir(s.Rec.LogDir); len(files) > 0 {
		t.Errorf("%d files were written", len(files))
	}
	s.workers[0].Leave()
	s.Workers.Away = []error{errors.New("away"), nil}
	s.Once(t.Context())
	if got := fmt.Sprint(s.OutOfReach()); got != "map[s0w0:away]" {
		t.Errorf("out of reach: %s", got)
	}
	s.workers[0].Return()
}

// If the local disk had no room for the rest of a log, the rest comes at the end.
func TestTheRestOfALogIsBrought(t *testing.T) {
	t.Parallel()
	s := start(t, "echo one; echo two", "echo other")
	testkit.Must(t, os.WriteFile(s.Rec.LogPath(tpu.WorkerID{}), []byte("one\n"), 0o600))
	s.Ends = Endings{{Known: true, part: &PartLog{Have: 4, err: syscall.ENOSPC}}, {Known: true}}
	testkit.Eventually(t, "the end", func() bool {
		state, err := launch.Status(t.Context(), s.Workers.Conns[0], s.Ref)
		return err == nil && state.Exit != nil
	})
	s.Clock = testkit.NewFastClock()
	s.bringLogs(t.Context())
	if s.Ends.partly() != nil || s.log(0) != "one\ntwo\n" || !s.said.Said(event.Info, "the log of s0w0 is whole again") {
		t.Errorf("%v, log %q, said %+v", s.Ends.partly(), s.log(0), s.said.Notes())
	}
	s.Ends[0].part = &PartLog{Have: 4, err: syscall.ENOSPC}
	s.Cloud = &testkit.FixedSlices{}
	s.logs = LogWait{}
	s.bringLogs(t.Context())
	if parts := s.Ends.partly(); parts.there() || parts.why() != `slice "t" is gone` {
		t.Errorf("%v: %s", parts, parts.why())
	}
}
