package runs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// told is a cloud whose workers have set guest attributes.
type told struct {
	provision.Provider
	texts map[string][]string // by slice
	asked atomic.Int64
}

func (c *told) Attributes(_ context.Context, slice, key string) ([]string, error) {
	c.asked.Add(1)
	if key != "state" {
		return nil, errors.New("no such key")
	}
	texts, ok := c.texts[slice]
	if !ok {
		return nil, provision.ErrNotFound
	}
	return texts, nil
}

// Workers that cannot begin say why in guest attributes, which need no bucket. A user who
// asks about the run reads the reason once.
func TestWorkersThatCannotBeginAreTold(t *testing.T) {
	t.Parallel()
	const (
		refused = "run=k\nphase=failed\nattempt=0\nat=1\nmay_delete=unknown\ndetail=the job cannot be fetched: tried for 600 s; HTTP status 403: refused"
		waits   = "run=k\nphase=boot\nattempt=0\nat=1\nmay_delete=unknown\ndetail=waiting: HTTP status 403: refused"
		agents  = "run=k\nphase=boot\nworker=s0w0\nattempt=1\nat=1\nmay_delete=yes\ndetail=waiting: HTTP status 403: refused" // the text that the program writes
	)
	for name, c := range map[string]struct {
		texts map[string][]string
		seen  []tpu.WorkerID
		want  string // a part of the warning
		phase string
		asked int64
	}{
		"all": {map[string][]string{"k-0": {refused, refused}, "k-1": {refused, refused}}, nil,
			"run k cannot begin on 4 of 4 workers: the job cannot be fetched: tried for 600 s; HTTP status 403: refused", "failed", 2},
		"one, which tries on": {map[string][]string{"k-0": {waits}}, nil, "run k waits to begin on 1 of 4 workers: HTTP status 403: refused", "boot", 2},
		"for several reasons": {map[string][]string{"k-0": {waits, refused}, "k-1": {waits}}, nil,
			"run k cannot begin on 1 of 4 workers: the job cannot be fetched: tried for 600 s; HTTP status 403: refused; for other reasons on 2", "failed", 2},
		"none where all have reported": {map[string][]string{"k-0": {refused, refused}}, []tpu.WorkerID{{}, {Worker: 1}}, "", "", 1},
		"one beside one that has":      {map[string][]string{"k-0": {refused, agents}}, []tpu.WorkerID{{}}, "run k cannot begin on 1 of 4 workers: the job cannot be fetched: tried for 600 s; HTTP status 403: refused", "failed", 2},
		"none of another run":          {map[string][]string{"k-0": {"run=x" + refused[5:]}}, nil, "", "", 2},
		"none that runs":               {map[string][]string{"k-0": {"run=k\nphase=running\ndetail=x"}}, nil, "", "", 2},
		"none without a reason":        {map[string][]string{"k-0": {"run=k\nphase=boot\ndetail="}}, nil, "", "", 2},
		"none that says something":     {map[string][]string{"k-0": {"what?", ""}}, nil, "", "", 2},
		"nobody":                       {nil, nil, "", "", 2},
	} {
		cloud, sink, clock := &told{texts: c.texts}, &testkit.Recorder{}, testkit.NewJumpClock()
		r := &BucketRun{Deps: Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: sink, Clock: clock}, Cloud: cloud}}, Desc: detach.Description{Run: "k", Nodes: []string{"k-0", "k-1"}, Workers: 2}}
		state := detach.State{}
		for _, id := range c.seen {
			state.Seen = append(state.Seen, detach.Seen{Worker: id, Phase: "boot"})
		}
		for range 3 { // only the first look asks
			if phase := WarnUnable(t.Context(), r, state); phase != c.phase {
				t.Errorf("%s: phase %q, want %q", name, phase, c.phase)
			}
		}
		notes := sink.Notes()
		if cloud.asked.Load() != c.asked || len(notes) > 1 || (len(notes) == 1) != (c.want != "") {
			t.Errorf("%s: asked %d times, told %+v", name, cloud.asked.Load(), notes)
		}
		if len(notes) == 1 && (notes[0].Text != c.want || notes[0].Level != event.Warn || notes[0].Hint != "the workers try on; to give the run up, type: multihost stop k") {
			t.Errorf("%s: got %+v, want %q", name, notes[0], c.want)
		}
		<-clock.After(time.Minute)
		if WarnUnable(t.Context(), r, state); cloud.asked.Load() != 2*c.asked || len(sink.Notes()) != len(notes) {
			t.Errorf("%s: a minute later: asked %d times, told %+v", name, cloud.asked.Load(), sink.Notes())
		}
	}
}
