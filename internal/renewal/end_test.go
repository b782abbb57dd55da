package renewal

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// The user is warned of each end once, an hour ahead. The context ends before it, in time
// to stop the command.
func TestTheEndOfTheLongestRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story       string
		left, grace time.Duration
		waits       []time.Duration
		says        string
	}{
		{"long before", 5 * time.Hour, 30 * time.Second, []time.Duration{4 * time.Hour, 58*time.Minute + 30*time.Second}, "in 1h00m, at Fri "},
		{"within the hour", 30 * time.Minute, 30 * time.Second, []time.Duration{28*time.Minute + 30*time.Second}, "in 30m00s, at Fri "},
		{"a short run", time.Minute, 30 * time.Second, []time.Duration{54 * time.Second}, "in 1m00s, at Fri "},
	} {
		said, clock := &testkit.Recorder{}, testkit.NewJumpClock()
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: clock}}
		end := clock.Now().Add(tt.left)
		e := End{}
		ctx, over := e.Until(t.Context(), d, []tpu.Slice{{}, {Until: end.Add(time.Hour)}, {Until: end}}, tt.grace)
		<-ctx.Done()
		over()
		if err := context.Cause(ctx); !errors.Is(err, stage.ErrExpired) || !stage.Is(err, stage.Timeout) || !strings.Contains(err.Error(), "--max-run-duration") {
			t.Errorf("%s: it has ended with %v", tt.story, err)
		}
		if got := clock.Waits(); !slices.Equal(got, tt.waits) {
			t.Errorf("%s: waits %v, want %v", tt.story, got, tt.waits)
		}
		if !said.Said(event.Warn, tt.says) || !said.Said(event.Warn, " before") {
			t.Errorf("%s: said %v", tt.story, said.Notes())
		}
		before := len(said.Notes())
		e.Warn(t.Context(), d, []tpu.Slice{{Until: end}})()
		if more := said.Notes()[before:]; len(more) > 0 {
			t.Errorf("%s: said again: %v", tt.story, more)
		}
	}
}

func TestSlicesWithoutAnEnd(t *testing.T) {
	t.Parallel()
	ctx, over := (&End{}).Until(t.Context(), nil, []tpu.Slice{{}}, 0)
	over()
	if ctx != t.Context() || Taken([]tpu.Slice{{}}, time.Now()) != nil {
		t.Error("slices without an end have one")
	}
}

// The reason is also on the workers. A runner that reads it there ends like the runner that
// stopped the command.
func TestTheReasonOfTheEndIsReadBack(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	err := Taken([]tpu.Slice{{Until: end}}, end)
	if back := stage.EndOfRunner(err.Error()); !errors.Is(err, stage.ErrExpired) || back == nil || back.Error() != err.Error() {
		t.Errorf("%v is read back as %v", err, back)
	}
	if Taken([]tpu.Slice{{Until: end}}, end.Add(-time.Second)) != nil {
		t.Error("it is taken too early")
	}
}
