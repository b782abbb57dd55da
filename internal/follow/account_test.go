package follow

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestAccountOfARun(t *testing.T) {
	ok := Ending{Known: true}
	failed := Ending{Known: true, Exit: launch.Exit{Code: 3}}
	stopped := Ending{Known: true, Exit: launch.Exit{Code: 143, Signal: "TERM", Reason: "multihost stop by ann@desk"}}
	lost := Ending{Known: true, Err: &lostError{connection, time.Minute, errors.New("no route to host")}}
	gone := Ending{Known: true, Err: fmt.Errorf("slice %q is PREEMPTED: %w", "t-0", ErrSliceGone)}
	tail := Ending{Known: true, Exit: launch.Exit{Code: 134}, tail: true}
	left := Ending{Err: errors.New("context canceled")}
	const logs = "multihost logs r --worker=s0w1"
	for _, tt := range []struct {
		story string
		ends  Endings
		stop  *stopping
		want  event.Summary // without the fields that all rows have in common
		lines bool
		cause string // of stopping.end
	}{
		{story: "success", ends: Endings{ok, ok}, want: event.Summary{OK: true, Text: "run r succeeded on all 2 workers"}},
		{story: "success of one worker", ends: Endings{ok}, want: event.Summary{OK: true, Text: "run r succeeded on its worker"}},
		{story: "a failure", ends: Endings{ok, failed}, lines: true,
			want: event.Summary{ExitCode: 3, Text: "run r failed: s0w1 was first, exit code 3", FirstFail: "s0w1: exit code 3", Next: logs}},
		{story: "a failure that had the others stopped", ends: Endings{stopped, failed}, stop: &stopping{reason: failFastReason}, lines: true,
			want: event.Summary{ExitCode: 3, Text: "run r failed: s0w1 was first, exit code 3", FirstFail: "s0w1: exit code 3", Next: logs}},
		{story: "somebody else stopped it", ends: Endings{ok, stopped},
			want: event.Summary{ExitCode: 143, Text: "run r was stopped: multihost stop by ann@desk"}},
		{story: "the user stopped it", ends: Endings{stopped, stopped}, stop: &stopping{reason: "interrupted (SIGINT)", cause: &stage.Interrupted{Signal: syscall.SIGINT}}, cause: "interrupted (SIGINT)",
			want: event.Summary{ExitCode: 143, Text: "run r was stopped on all 2 workers: interrupted (SIGINT); no process of it is left", Next: "multihost logs r --worker=s0w0"}},
		{story: "a stop without proof", ends: Endings{stopped, left}, stop: &stopping{reason: "x", cause: errors.New("the timeout"), err: errors.New("it may run on s0w1")}, cause: "the timeout\nit may run on s0w1", lines: true,
			want: event.Summary{ExitCode: 143, Text: "run r: it may run on s0w1", FirstFail: "s0w0: " + stopped.Text(), Next: "multihost stop r"}},
		{story: "a stop without proof on a worker that was left", ends: Endings{left, stopped}, stop: &stopping{err: errors.New("it may run on s0w0")},
			want: event.Summary{ExitCode: LostCode, Text: "run r: it may run on s0w0", Next: "multihost stop r"}},
		{story: "a worker is lost", ends: Endings{ok, lost}, lines: true,
			want: event.Summary{ExitCode: LostCode, FirstFail: "s0w1: not reachable for 1m (--lost-timeout): no route to host",
				Text: "run r: s0w1 is lost, not reachable for 1m (--lost-timeout): no route to host; the command was not touched and may go on on s0w1",
				Next: "follow it again with: multihost attach r; end it with: multihost stop r"}},
		{story: "a slice is gone", ends: Endings{ok, gone}, lines: true,
			want: event.Summary{ExitCode: LostCode, Text: `run r failed: slice "t-0" is PREEMPTED: nothing runs there any more`, FirstFail: `s0w1: slice "t-0" is PREEMPTED: nothing runs there any more`, Next: logs}},
		{story: "a failure is excused", ends: Endings{ok, tail}, want: event.Summary{OK: true}},
	} {
		a := account{run: "r", ids: testkit.WorkerIDs(1, len(tt.ends)), ends: tt.ends, stop: tt.stop}
		a.code, a.first = tt.ends.verdict(false)
		got, lines := a.summary()
		tt.want.Run, tt.want.CommandCode = "r", a.code
		if diff := cmp.Diff(tt.want, got); diff != "" || lines != tt.lines {
			t.Errorf("%s: lines %v (-want +got):\n%s", tt.story, lines, diff)
		}
		cause := ""
		if err := tt.stop.end(a.code); err != nil {
			cause = err.Error()
		}
		if cause != tt.cause {
			t.Errorf("%s: ends with %q", tt.story, cause)
		}
	}
}

func TestWhatTheWorkersKeepOfAVerdict(t *testing.T) {
	failed := Ending{Known: true, Exit: launch.Exit{Code: 3}}
	for _, tt := range []struct {
		story string
		ends  Endings
		want  bool
	}{
		{"one of two has failed", Endings{{Known: true}, failed}, true},
		{"the only worker has failed", Endings{failed}, false},
		{"success", Endings{{Known: true}, {Known: true}}, false},
		{"it was stopped", Endings{{Known: true, Exit: launch.Exit{Code: 143, Reason: "stop"}}, {Known: true}}, false},
		{"nobody knows the end", Endings{{Err: errors.New("left")}, {Known: true}}, false},
	} {
		a := account{ends: tt.ends}
		a.code, a.first = tt.ends.verdict(false)
		if got := a.toKeep(); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}

// A stop does not wait for logs if the time to live has passed. It does not wait either if
// the command deletes the slices and nothing proves that all workers have stopped.
func TestWhenTheSlicesGoAfterAStop(t *testing.T) {
	unproven := errors.New("it may still run")
	for _, tt := range []struct {
		story   string
		stop    *stopping
		deletes bool
		want    bool
	}{
		{"no stop", nil, true, false},
		{"proven", &stopping{}, true, false},
		{"not proven", &stopping{err: unproven}, true, true},
		{"not proven, and the slices stay", &stopping{err: unproven}, false, false},
		{"--ttl", &stopping{cause: fmt.Errorf("x: %w", stage.ErrExpired)}, false, true},
	} {
		if got := tt.stop.slicesGo(tt.deletes); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}

func TestLogsThatAreNotWhole(t *testing.T) {
	full := &PartLog{ID: tpu.WorkerID{Worker: 1}, Have: 10, Written: 30, err: fmt.Errorf("write: %w", syscall.ENOSPC)}
	unread := &PartLog{ID: tpu.WorkerID{Worker: 2}, Have: 5, err: errors.New("the worker could not be read to its end")}
	gone := &PartLog{ID: tpu.WorkerID{Worker: 1}, Have: 10, Written: 30, err: errors.New(`slice "t" is gone`), gone: true}
	for _, tt := range []struct {
		story string
		parts Parts
		ok    bool
		text  string
		next  string
		note  string
		hint  string
	}{
		{"the disk is full", Parts{full}, true, "done; the log of s0w1 is not whole here: 10 of 30 bytes (write: no space left on device)",
			"free some space for /logs, then bring the rest with: multihost attach r", "", ""},
		{"the run has failed, too", Parts{full, unread}, false, "done; the logs of s0w[1-2] are not whole here: 15 bytes, of how many is not known (write: no space left on device; the worker could not be read to its end)",
			"", "the logs of s0w[1-2] are not whole here: 15 bytes, of how many is not known; the rest is on the workers, for as long as their slices are there", "free some space for /logs, then bring the rest with: multihost attach r"},
		{"the rest is gone", Parts{gone}, true, `done; the log of s0w1 is not whole here: 10 of 30 bytes (slice "t" is gone)`, "", "", ""},
		{"the rest is gone after a failure", Parts{gone}, false, `done; the log of s0w1 is not whole here: 10 of 30 bytes (slice "t" is gone)`, "",
			"the log of s0w1 is not whole here: 10 of 30 bytes; the rest is gone with the slices", ""},
	} {
		sum := event.Summary{Run: "r", LogDir: "/logs", OK: tt.ok, Text: "done", ExitCode: 1}
		if tt.ok {
			sum.ExitCode = 0
		}
		note := tt.parts.addTo(&sum)
		if sum.OK || sum.Text != tt.text || sum.Next != tt.next || tt.ok && sum.ExitCode != stage.PartLogCode {
			t.Errorf("%s: %+v", tt.story, sum)
		}
		if (note != nil) != (tt.note != "") || note != nil && (note.Text != tt.note || note.Hint != tt.hint) {
			t.Errorf("%s: %+v", tt.story, note)
		}
	}
}

func TestWaitForLogs(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var w LogWait
	if left := w.Left(begin, time.Minute); left != time.Minute {
		t.Errorf("at the begin %v are left", left)
	}
	if left := w.Left(begin.Add(40*time.Second), time.Hour); left != 20*time.Second {
		t.Errorf("later %v are left", left)
	}
	for _, tt := range []struct {
		at  time.Duration
		due bool
	}{{0, true}, {59 * time.Second, false}, {time.Minute, true}, {90 * time.Second, false}} {
		if got := w.Due(begin.Add(tt.at)); got != tt.due {
			t.Errorf("after %v: %v", tt.at, got)
		}
	}
}

// A summary that names the deleted slice says nothing more of the lost logs. Any other
// summary does.
func TestLogsOfSlicesThatGoDuringAStop(t *testing.T) {
	gone := Ending{Known: true, Err: fmt.Errorf("slice %q is PREEMPTED: %w", "t-0", ErrSliceGone)}
	for _, tt := range []struct {
		story  string
		stop   *stopping
		ends   Endings
		bucket string
		want   string
	}{
		{"a user stops the run", &stopping{cause: errors.New("interrupted")}, Endings{gone, {Known: true}}, "", "the log of s0w0 is not whole here: 0 bytes, of how many is not known"},
		{"fail-fast", &stopping{}, Endings{gone, {Known: true}}, "", ""},
		{"no stop", nil, Endings{gone, {Known: true}}, "", ""},
		{"a bucket has the rest", &stopping{cause: errors.New("interrupted")}, Endings{gone, {Known: true}}, "b", ""},
		{"nothing is gone", &stopping{cause: errors.New("interrupted")}, Endings{{Known: true}, {Known: true}}, "", ""},
	} {
		f := &Following{Deps: Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{}}}, Workers: &workers.Connected{IDs: testkit.WorkerIDs(2, 1)}, Rec: &record.Record{LogDir: t.TempDir(), Bucket: tt.bucket}, Ends: tt.ends}
		f.goneWhileStopped(tt.stop)
		parts := f.Ends.partly()
		if got := parts.String(); got != tt.want || parts.there() {
			t.Errorf("%s: %q, the rest is there: %v; want %q", tt.story, got, parts.there(), tt.want)
		}
	}
}

func TestWhatIsSettled(t *testing.T) {
	gone := Ending{Known: true, Err: ErrSliceGone}
	for _, tt := range []struct {
		story  string
		ends   Endings
		bucket bool
		want   bool
	}{
		{"all ends are known", Endings{{Known: true}, {Known: true, Exit: launch.Exit{Code: 1}}}, false, true},
		{"one was left", Endings{{Known: true}, {}}, false, false},
		{"one is lost", Endings{{Known: true, Err: errors.New("lost")}}, false, false},
		{"a slice is gone", Endings{gone}, false, true},
		{"a slice is gone, and a bucket knows more", Endings{gone}, true, false},
	} {
		if got := tt.ends.settled(tt.bucket); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}

func TestEndingOfAWorker(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end := now.Add(-time.Minute)
	broken, cause := errors.New("broken pipe"), &lostError{connection, time.Minute, errors.New("away")}
	for _, tt := range []struct {
		story string
		exit  launch.Exit
		err   error
		left  bool
		cause error
		known bool
		text  string
		at    time.Time
	}{
		{"the command has ended", launch.Exit{Code: 2, End: end}, nil, false, nil, true, "exit code 2", end.Add(-time.Second)},
		{"it has ended while all were left", launch.Exit{Code: 2, End: end}, nil, true, cause, true, "exit code 2", end.Add(-time.Second)},
		{"nobody saw the end", launch.Exit{Code: 255, Lost: true, End: end}, nil, false, nil, true, launch.Exit{Code: 255, Lost: true, End: end}.String(), now},
		{"all were left", launch.Exit{}, broken, true, cause, false, "broken pipe", now},
		{"it was given up", launch.Exit{}, broken, false, cause, true, cause.Error(), now},
		{"it answers that it knows no such run", launch.Exit{}, broken, false, nil, true, "broken pipe", now},
	} {
		got := endingOf(tt.exit, tt.err, tt.left, tt.cause, time.Second, now)
		if got.Known != tt.known || got.Text() != tt.text || !got.at.Equal(tt.at) {
			t.Errorf("%s: %+v: %s", tt.story, got, got.Text())
		}
	}
}

func TestASilentWorker(t *testing.T) {
	for want, s := range map[string]launch.Silence{
		"s0w1: no output for 10m00s, and it does not answer: away":       {Since: 10 * time.Minute, Err: errors.New("away")},
		"s0w1: no output for 10m00s, and no process of the run is alive": {Since: 10 * time.Minute},
		"s0w1: no output for 10m00s, process alive":                      {Since: 10 * time.Minute, State: launch.State{Left: 2}, CPU: -1},
		"s0w1: no output for 10m00s, process alive, CPU 98 %":            {Since: 10 * time.Minute, State: launch.State{Left: 2}, CPU: 0.98},
	} {
		if got := quietText(tpu.WorkerID{Worker: 1}, s); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
