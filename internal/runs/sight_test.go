package runs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// zoneSlice returns a slice with one worker.
func zoneSlice(name string, index int, c tpu.Condition) tpu.Slice {
	return tpu.Slice{Name: name, Index: index, Condition: c, State: "READY", Health: "POOR: a chip is hot", Workers: make([]tpu.Worker, 1)}
}

// foundOn returns a run that worker 0 of each of the slices knows.
func foundOn(run string, of int, slices ...int) workers.FoundRun {
	f := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: run, Attempt: 1}, Slices: of}}
	for _, s := range slices {
		f.Workers = append(f.Workers, tpu.WorkerID{Slice: s})
	}
	return f
}

func TestWhatIsNotSeenOfARun(t *testing.T) {
	t.Parallel()
	t0, t1, t2 := zoneSlice("t-0", 0, tpu.Usable), zoneSlice("t-1", 1, tpu.Usable), zoneSlice("t-2", 2, tpu.Usable)
	ill, other := zoneSlice("t-1", 0, tpu.Ill), zoneSlice("x-1", 0, tpu.Ill)
	ofResource := other
	t0.QueuedResource, ofResource.QueuedResource = "q", "q"
	for _, row := range []struct {
		name string
		f    workers.FoundRun
		see  sight
		want string // a part of the text; "": the whole run was seen
	}{
		{"all slices know it", foundOn("r", 2, 0, 1), sight{slices: []tpu.Slice{t0, t1}}, ""},
		{"another slice of the name does not answer", foundOn("r", 2, 0, 1), sight{slices: []tpu.Slice{t0, t1, t2}, away: []tpu.Slice{t2}}, ""},
		{"one of two does not answer", foundOn("r", 2, 0), sight{slices: []tpu.Slice{t0, t1}, away: []tpu.Slice{t1}}, "may still run on t-1, which"},
		{"one of two is ill", foundOn("r", 2, 0), sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill, other}}, "may still run on t-1 (health POOR), which"},
		{"one of the same queued resource is ill", foundOn("r", 2, 0), sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ofResource}}, "may still run on x-1 (health POOR), which"},
		{"one of two is gone", foundOn("r", 2, 0), sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{other}}, "gone or were made again since: 1 of 2"},
		{"one of two was made anew", foundOn("r", 2, 0), sight{slices: []tpu.Slice{t0, t1}}, "gone or were made again since: 1 of 2"},
		{"one is gone, another is ill", foundOn("r", 3, 0), sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill}}, "may still run on t-1 (health POOR), which"},
		{"an older version does not tell how many", foundOn("r", 0, 0), sight{slices: []tpu.Slice{t0}}, ""},
		{"and a slice is ill", foundOn("r", 0, 0), sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill}}, "may still run on t-1"},
	} {
		rec := &record.Record{Run: "r", Unseen: unseen(row.f, row.see)}
		got := ""
		if rec.Unseen != nil {
			got = partText(rec)
		}
		if (got == "") != (row.want == "") || !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if err := Part(rec, stage.Follow, "again"); (err == nil) != (row.want == "") {
			t.Errorf("%s: following ends with %v", row.name, err)
		}
		if err := mayRunOn(rec); (err == nil) != !strings.Contains(row.want, "may still run") {
			t.Errorf("%s: stop ends with %v", row.name, err)
		}
	}
}

func TestWhichSlicesThatAreNotReadyAreAsked(t *testing.T) {
	t.Parallel()
	t0, t1 := zoneSlice("t-0", 0, tpu.Usable), zoneSlice("t-1", 1, tpu.Usable)
	ill, named, other, making := zoneSlice("t-1", 0, tpu.Ill), zoneSlice("r-1", 0, tpu.Serviced), zoneSlice("x-1", 0, tpu.Ill), zoneSlice("t-2", 0, tpu.Making)
	making.Workers = nil
	for _, row := range []struct {
		name  string
		see   sight
		match []workers.FoundRun
		want  string
	}{
		{"a run of which nothing lacks", sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill}}, []workers.FoundRun{foundOn("r", 1, 0)}, ""},
		{"a run that lacks a slice", sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill, other, making}}, []workers.FoundRun{foundOn("r", 2, 0)}, "t-1"},
		{"who was asked in vain is not asked again", sight{slices: []tpu.Slice{t0, t1}, away: []tpu.Slice{t1}}, []workers.FoundRun{foundOn("r", 2, 0)}, ""},
		{"a run that nobody knows", sight{slices: []tpu.Slice{t0}, away: []tpu.Slice{ill, named}}, nil, "r-1"},
	} {
		also, rest := alsoAsked(row.see, row.match, "r")
		var names []string
		for _, s := range also {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != row.want || len(also)+len(rest) != len(row.see.away) {
			t.Errorf("%s: %q are asked, want %q; %d of %d are left", row.name, got, row.want, len(rest), len(row.see.away))
		}
	}
}

func TestASuccessOfAPartIsNone(t *testing.T) {
	t.Parallel()
	whole := &follow.Following{Rec: &record.Record{Run: "r"}}
	if err := EndOf(whole); err != nil {
		t.Errorf("the whole run: %v", err)
	}
	part := &follow.Following{Rec: &record.Record{Run: "r", Unseen: &record.Unseen{Slices: []string{"t-1"}}}, Ref: launch.Ref{Run: "r"}}
	if err := EndOf(part); err == nil || !strings.Contains(err.Error(), "t-1") {
		t.Errorf("a part: %v", err)
	}
}

// TestAttachEndsAsTheRun: attach ends with the same exit status as the runner that stopped
// the run.
func TestAttachEndsAsTheRun(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]int{stage.TimeoutPassed(time.Hour).Text: 75, stage.StandsStill: 75, follow.StopBy + "ann@desk": 143} {
		exit := launch.Exit{Code: 143, Signal: "TERM", Reason: reason}
		f := &follow.Following{Deps: follow.Deps{Keeper: &record.Keeper{ExitStatus: func(error) int { return 75 }}}, Rec: &record.Record{Run: "r"},
			Ends: []follow.Ending{{Known: true, Exit: exit}}, Sum: &event.Summary{ExitCode: 143, CommandCode: 143}}
		if err := EndOf(f); (err != nil) != (want == 75) || f.Sum.ExitCode != want || f.Sum.CommandCode != 143 {
			t.Errorf("%s: %v, status %d, want %d", reason, err, f.Sum.ExitCode, want)
		}
	}
}

// If slices go after the time that the user asked for, attach reports that this time is
// over. If they go earlier, attach reports the slices as lost.
func TestAttachToSlicesWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	clock := testkit.NewJumpClock()
	for left, over := range map[time.Duration]bool{0: true, -time.Hour: true, time.Hour: false} {
		typed := &stage.Invocation{Clock: clock}
		f := &follow.Following{Deps: follow.Deps{Reach: &workers.Reach{Invocation: typed}, Keeper: &record.Keeper{ExitStatus: func(error) int { return 75 }}}, Rec: &record.Record{Run: "r"},
			Workers: &workers.Connected{Slices: []tpu.Slice{{Until: clock.Now().Add(left)}}},
			Ends:    []follow.Ending{{Known: true, Err: follow.ErrSliceGone}}, Sum: &event.Summary{Run: "r", ExitCode: follow.LostCode}}
		err := EndOf(f)
		if errors.Is(err, stage.ErrExpired) != over || (f.Sum.ExitCode == 75) != over {
			t.Errorf("%s before the end: %v, status %d", left, err, f.Sum.ExitCode)
		}
	}
}
