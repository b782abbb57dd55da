package provider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A bakery is a provider that makes two slices of v6e-16. Each slice comes at its own time.
type bakery struct {
	provision.Provider
	clock   gcp.Clock
	ready   [2]time.Time
	deletes *int
	refuses error
	away    [2]time.Time // begin and end of an outage of the API
	gets    *int         // nil: not counted
}

func (b bakery) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "slice request", Delete: "delete " + id}}
}

func (b bakery) Get(_ context.Context, id string) (provision.Resource, error) {
	if b.gets != nil {
		*b.gets++
	}
	if now := b.clock.Now(); !now.Before(b.away[0]) && now.Before(b.away[1]) {
		return provision.Resource{}, &gcp.Error{What: "read it", Class: gcp.Unavailable}
	}
	r := provision.Resource{ID: id, Zone: "us-east5-a", Type: "v6e-16", Tier: provision.OnDemand, NodeCount: 2, Nodes: []string{"m-0", "m-1"}, Life: provision.Active, State: "ACTIVE"}
	for i, at := range b.ready {
		if b.clock.Now().Before(at) {
			r.Missing = append(r.Missing, provision.Missing{Name: r.Nodes[i], Why: "no machines"})
			continue
		}
		r.Slices = append(r.Slices, tpu.Slice{Name: r.Nodes[i], UID: r.Nodes[i], Type: r.Type, Condition: tpu.Usable, Billed: at, Workers: make([]tpu.Worker, 4)})
	}
	switch len(r.Missing) {
	case 1:
		r.Life, r.State = provision.Provisioning, "WAITING_FOR_SLICES"
	case 2:
		r.Life, r.State, r.Missing = provision.Waiting, "WAITING", nil
	}
	return r, nil
}

func (b bakery) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	*b.deletes++
	return true, b.refuses
}

// Slices that have come wait for the others until their deadline, and are then deleted.
func TestSlicesWaitForOthersUntilTheirDeadline(t *testing.T) {
	t.Parallel()
	const never = 1000 * time.Hour
	for _, tt := range []struct {
		story         string
		first, second time.Duration // times after the beginning of the wait
		slices, queue time.Duration // limits
		phase         string        // the phase that has not ended; "": all slices have come
		lasts         time.Duration
	}{
		{"all come at once", time.Hour, time.Hour, time.Minute, 0, "", time.Hour},
		{"in time", time.Hour, 80 * time.Minute, 30 * time.Minute, 0, "", 80 * time.Minute},
		{"too late", time.Hour, never, 30 * time.Minute, 0, "slices", 90 * time.Minute},
		{"an earlier command has seen the first one", -20 * time.Minute, never, 30 * time.Minute, 0, "slices", 10 * time.Minute},
		{"long before", -20 * time.Hour, never, 30 * time.Minute, 0, "slices", 0},
		{"without a deadline", time.Hour, 9 * time.Hour, 0, 0, "", 9 * time.Hour},
		{"only the queue has a limit", 50 * time.Minute, never, 0, time.Hour, "queue", time.Hour},
		{"the queue has a limit, too", 50 * time.Minute, never, 30 * time.Minute, time.Hour, "slices", 80 * time.Minute},
	} {
		clock, said, deletes := testkit.NewJumpClock(), &testkit.Recorder{}, 0
		start := clock.Now()
		b := bakery{clock: clock, ready: [2]time.Time{start.Add(tt.first), start.Add(tt.second)}, deletes: &deletes}
		_, all, err := provider.WaitTogether(t.Context(), b, "m", provider.WaitOptions{SlicesLimit: tt.slices, QueueLimit: tt.queue, Clock: clock, Sink: said})
		if took := clock.Now().Sub(start); took < tt.lasts || took > tt.lasts+20*time.Second {
			t.Errorf("%s: it took %s, want %s", tt.story, took, tt.lasts)
		}
		if tt.phase == "" {
			if err != nil || len(all) != 2 || deletes != 0 {
				t.Errorf("%s: got %v, %v after %d deletions", tt.story, all, err, deletes)
			}
			continue
		}
		var late *provision.DeadlineError
		gives := tt.phase == provision.PhaseSlices
		if !errors.As(err, &late) || late.Phase != tt.phase || provision.GivesBack(err) != gives || (deletes == 1) != gives || fault.Of(err) != fault.Temporary {
			t.Errorf("%s: got %v after %d deletions", tt.story, err, deletes)
		}
		if !gives || t.Failed() {
			continue
		}
		usd := late.Cost[:strings.IndexByte(late.Cost, ' ')]
		want := fmt.Sprintf(`wait for slice request "m": 1 of 2 slices came within 30m00s of the first one (--slices-deadline); missing is m-1: no machines; cost of the others: %s so far, list price $43.20 an hour (%s)`, usd, tpu.PriceDate)
		if err.Error() != want {
			t.Errorf("%s: got  %v\nwant %s", tt.story, err, want)
		}
		if !said.Said(event.Warn, "its slices that have come are given back") {
			t.Errorf("%s: said %v", tt.story, said.Notes())
		}
	}
}

// While slices wait for others, the view shows what they cost.
func TestWhatWaitingSlicesCost(t *testing.T) {
	t.Parallel()
	clock, said, deletes := testkit.NewJumpClock(), &testkit.Recorder{}, 0
	b := bakery{clock: clock, ready: [2]time.Time{clock.Now(), clock.Now().Add(time.Hour)}, deletes: &deletes}
	_, _, err := provider.Wait(t.Context(), b, "m", provider.WaitOptions{SlicesLimit: 2 * time.Hour, Clock: clock, Sink: said})
	testkit.Must(t, err)
	shown := ""
	for _, e := range said.Events() {
		if p, ok := e.(event.Progress); ok && p.Phase == provision.PhaseSlices {
			shown = p.Detail
			if p.Limit != 2*time.Hour || p.Done != 1 || p.Total != 2 {
				t.Errorf("got %+v", p)
			}
		}
	}
	if !strings.HasPrefix(shown, "WAITING_FOR_SLICES, $43.") && !strings.HasPrefix(shown, "WAITING_FOR_SLICES, $42.") || !strings.Contains(shown, " so far, list price $43.20 an hour") {
		t.Errorf("at the end it shows %q", shown)
	}
	if !said.Said(event.Info, "they are given back at ") || !said.Said(event.Info, "slice request \"m\" has 1 of 2 slices: $") {
		t.Errorf("said %v", said.Notes())
	}
}

// If the deletion fails, the user reads the reason and the command that repeats it.
func TestSlicesThatCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	clock, deletes := testkit.NewJumpClock(), 0
	b := bakery{clock: clock, ready: [2]time.Time{clock.Now(), clock.Now().Add(time.Hour)}, deletes: &deletes, refuses: errors.New("no right")}
	_, _, err := provider.WaitTogether(t.Context(), b, "m", provider.WaitOptions{SlicesLimit: time.Minute, Clock: clock})
	if !errors.Is(err, b.refuses) || !provision.GivesBack(err) || !strings.Contains(gcp.Hint(err), "delete m") {
		t.Errorf("got %v, hint %q", err, gcp.Hint(err))
	}
}

// If the API is away when the deadline of slices passes, its next answer decides. Until
// then the slices stay.
func TestTheDeadlineOfSlicesPassesWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{true, false} {
		clock, deletes, gets := testkit.NewJumpClock(), 0, 0
		start := clock.Now()
		b := bakery{clock: clock, ready: [2]time.Time{start, start.Add(50 * time.Minute)}, deletes: &deletes, gets: &gets,
			away: [2]time.Time{start.Add(20 * time.Minute), start.Add(time.Hour)}}
		if !comes {
			b.ready[1] = start.Add(1000 * time.Hour)
		}
		_, all, err := provider.WaitTogether(t.Context(), b, "m", provider.WaitOptions{SlicesLimit: 30 * time.Minute, Clock: clock})
		if took := clock.Now().Sub(start); took < time.Hour || took > time.Hour+20*time.Second || gets > 1000 {
			t.Errorf("the other comes: %v; it took %s and %d reads", comes, took, gets)
		}
		if comes != (err == nil && len(all) == 2 && deletes == 0) || comes == provision.GivesBack(err) {
			t.Errorf("the other comes: %v; got %v, %v after %d deletions", comes, all, err, deletes)
		}
	}
}
