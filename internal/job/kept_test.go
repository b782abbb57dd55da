package job

import (
	"errors"
	"strings"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/qr"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestTheQuestionNamesWhatGoes(t *testing.T) {
	t.Parallel()
	res := qr.Resource{ID: "k", State: "ACTIVE", Type: "v4-16", Tier: qr.OnDemand, Nodes: []string{"k-0", "k-1"}, Slices: make([]qr.SliceState, 2)}
	for _, c := range []struct {
		k    kept
		want string
	}{
		{kept{run: "k", res: res, ended: "exit code 0"}, "run k has ended (exit code 0). Delete queued resource k with its slices (k-0, k-1; list price $51.52 an hour, on demand, in us-central2-b (2026-11-28))?"},
		{kept{run: "k", res: res, ended: "exit code 0", part: "the log of s0w0 is not whole here: 1 of 5 bytes"},
			"run k has ended (exit code 0); the log of s0w0 is not whole here: 1 of 5 bytes, and the rest goes with the slices. Delete queued resource k with its slices (k-0, k-1; list price $51.52 an hour, on demand, in us-central2-b (2026-11-28))?"},
	} {
		if got := c.k.question("us-central2-b"); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// When the workers of a job without runner do not end in time, stop says who has not said
// so, whether the slices exist, who deletes them and what to type.
func TestAStopInTheBucketThatIsNotHeardSaysWhatIsTrue(t *testing.T) {
	t.Parallel()
	clock := testkit.NewJumpClock()
	now := clock.Now()
	r := &detachedRun{Deps: &Deps{Project: "p", Zone: "z", Clock: clock}, desc: detach.Description{Run: "k", Resource: "k", Nodes: []string{"k-0", "k-1"}, Workers: 2}}
	seen := func(s, w int, phase string, ago time.Duration) detach.Seen {
		return detach.Seen{Worker: tpu.WorkerID{Slice: s, Worker: w}, Phase: phase, At: now.Add(-ago)}
	}
	state := detach.State{Attempt: 1, Seen: []detach.Seen{seen(0, 0, "ended", time.Minute), seen(0, 1, "running", 7*time.Minute), seen(1, 0, "running", 7*time.Minute+time.Second)},
		Ended: []detach.End{{}}}
	err := r.unstopped(state, "state ACTIVE, and is billed")
	const told = "stop: run k may still be running: it was told to stop in the bucket, but 3 of 4 workers have not said that they ended (s0w1,s1w0: running when last heard, 7m ago; s1w1: never heard); "
	const lives = "; a worker that lives reads the stop in the bucket and ends its command, and "
	if want := told + "queued resource k is there, state ACTIVE, and is billed" + lives + "the last of them deletes the queued resource"; err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var e *Error
	if !errors.As(err, &e) || e.Hint() != "look again with: multihost stop k; to end it with its slices at once: multihost qr delete k --force --project=p --zone=z" {
		t.Errorf("hint %q", e.Hint())
	}
	r.desc.Keep = detach.KeepAlways
	if got := r.unstopped(state, "").Error(); !strings.HasSuffix(got, "whether queued resource k exists is not known"+lives+"the queued resource stays (--keep)") {
		t.Errorf("kept: %s", got)
	}
}
