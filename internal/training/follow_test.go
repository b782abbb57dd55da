package training

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A pausedClock does something at each pause.
type pausedClock struct {
	*testkit.JumpClock
	at func(pause int)
	n  int
}

func (c *pausedClock) After(d time.Duration) <-chan time.Time {
	c.n++
	c.at(c.n)
	return c.JumpClock.After(d)
}

func TestFollowShowsEachNewStep(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	rec := &record.Record{Run: "r", Attempt: 1, LogDir: state, Command: "train", Created: time.Unix(1000, 0),
		Slices: []record.Slice{{Name: "t-0", Workers: 1, Type: "v5litepod-4"}}, Attempts: []record.PastAttempt{{Attempt: 1, Begin: time.Unix(1000, 0), LogDir: state}}}
	testkit.Must(t, rec.Save(state))
	log := record.LogPath(state, tpu.WorkerID{})
	testkit.Append(t, log, testkit.Steps(0, 3, 1))
	open := func() *Training {
		all, err := OpenTraining(state, "r", TrainingOptions{})
		testkit.Must(t, err)
		_, err = all.Update()
		testkit.Must(t, err)
		return all
	}
	clock := &pausedClock{JumpClock: testkit.NewJumpClock(), at: func(pause int) {
		switch pause {
		case 5:
			testkit.Append(t, log, testkit.Steps(3, 5, 1))
		case 60: // nothing has come for more than half a minute
			rec.Ended = true
			testkit.Must(t, rec.Save(state))
		}
	}}
	var sink testkit.Recorder
	testkit.Must(t, open().Follow(t.Context(), clock, &sink, "r"))
	var steps []int64
	for _, e := range sink.Events() {
		if r, ok := e.(event.Result); ok {
			steps = append(steps, r.Data.(event.Training).Step)
		}
	}
	if len(steps) != 2 || !slices.IsSorted(steps) || clock.n < 60 {
		t.Errorf("steps %d after %d pauses", steps, clock.n)
	}
	if notes := sink.Notes(); len(notes) != 1 || !strings.Contains(notes[0].Text, "do not grow") || !strings.Contains(notes[0].Hint, "multihost attach r") {
		t.Errorf("said %+v, want once that the logs do not grow", notes)
	}

	rec.Ended = false
	testkit.Must(t, rec.Save(state))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := &stoppedClock{testkit.NewJumpClock(), cancel}
	if err := open().Follow(ctx, stopped, &sink, "r"); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted view ends with %v", err)
	}
}

// A stoppedClock ends the context at the first pause, which never ends.
type stoppedClock struct {
	*testkit.JumpClock
	end func()
}

func (c *stoppedClock) After(time.Duration) <-chan time.Time {
	c.end()
	return nil
}
