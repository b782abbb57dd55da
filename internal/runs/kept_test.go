package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestTheQuestionNamesWhatGoes(t *testing.T) {
	t.Parallel()
	res := qr.Resource{ID: "k", State: "ACTIVE", Type: "v4-16", Tier: qr.OnDemand, Nodes: []string{"k-0", "k-1"}, Slices: make([]qr.SliceState, 2)}.Neutral()
	for _, c := range []struct {
		k    kept
		want string
	}{
		{kept{run: "k", res: res, ended: "exit code 0"}, "run k has ended (exit code 0). Delete queued resource k with its slices (k-0, k-1; list price $51.52 an hour, on demand, in us-central2-b (2026-11-28))?"},
		{kept{run: "k", res: res, ended: "exit code 0", part: "the log of s0w0 is not whole here: 1 of 5 bytes"},
			"run k has ended (exit code 0); the log of s0w0 is not whole here: 1 of 5 bytes, and the rest goes with the slices. Delete queued resource k with its slices (k-0, k-1; list price $51.52 an hour, on demand, in us-central2-b (2026-11-28))?"},
	} {
		if got := c.k.question(&deletions{}, "us-central2-b"); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// If workers of a job without runner do not end in time, stop names those that have not
// reported their end. It says whether the slices exist, who deletes them and what to type.
func TestAStopInTheBucketThatIsNotHeardSaysWhatIsTrue(t *testing.T) {
	t.Parallel()
	clock := testkit.NewJumpClock()
	now := clock.Now()
	cloud := &deletions{}
	r := &BucketRun{Deps: Deps{
		Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock}, Place: provision.Place{Project: "p", Zone: "z"}, Cloud: cloud},
	}, Desc: detach.Description{Run: "k", Resource: "k", Nodes: []string{"k-0", "k-1"}, Workers: 2}}
	seen := func(s, w int, phase string, ago time.Duration) detach.Seen {
		return detach.Seen{Worker: tpu.WorkerID{Slice: s, Worker: w}, Phase: phase, At: now.Add(-ago)}
	}
	state := detach.State{Attempt: 1, Seen: []detach.Seen{seen(0, 0, "ended", time.Minute), seen(0, 1, "running", 7*time.Minute), seen(1, 0, "running", 7*time.Minute+time.Second)},
		Ended: []detach.End{{}}}
	err := r.unstopped(state, "state ACTIVE, and is billed")
	const told = "stop: run k may still be running: it was told to stop in the bucket, but 3 of 4 workers have not said that they ended (s0w1,s1w0: running when last heard, 7m ago; s1w1: never heard); "
	const lives = "; a worker that lives reads the stop in the bucket and ends its command, and "
	if want := told + "queued resource k is there, state ACTIVE, and is billed" + lives + "the last of them deletes the slices"; err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var e *stage.Error
	if !errors.As(err, &e) || e.Hint() != "look again with: multihost stop k; to end it with its slices at once: multihost qr delete k --force --project=p --zone=z" {
		t.Errorf("hint %q", e.Hint())
	}
	r.Desc.Keep = detach.KeepAlways
	if got := r.unstopped(state, "").Error(); !strings.HasSuffix(got, "whether queued resource k exists is not known"+lives+"the slices stay (--keep)") {
		t.Errorf("kept: %s", got)
	}
}

// The slices of a record have gone. An active run of the same name counts as the same run
// only if it can be this user's.
func TestARunThatWasBegunAgain(t *testing.T) {
	t.Parallel()
	found := func(run, owner string, mine bool, phase launch.Phase) workers.FoundRun {
		return workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: run, Attempt: 2}, Owner: owner, Mine: mine, Phase: phase}}
	}
	job := record.Record{Run: "train", Prefix: "train", Owner: "ann@laptop"}
	run := record.Record{Run: "train", Prefix: "team", Owner: "ann@laptop"}
	for _, c := range []struct {
		story string
		rec   record.Record
		found workers.FoundRun
		want  bool
	}{
		{"a job, typed on another machine", job, found("train", "ann@desk", true, launch.Running), true},
		{"a job that has ended", job, found("train", "ann@desk", true, launch.Exited), true},
		{"a job that was never started", job, found("train", "ann@desk", true, launch.Aborted), false},
		{"a run on shared slices that has ended", run, found("train", "ann@laptop", true, launch.Exited), false},
		{"another login's", job, found("train", "bob@vm", false, launch.Running), false},
		{"another name", job, found("other", "ann@laptop", true, launch.Running), false},
		{"a run on shared slices", run, found("train", "ann@laptop", true, launch.Starting), true},
		{"a colleague's run on shared slices", run, found("train", "bob@vm", true, launch.Running), false},
	} {
		if got := isAgain(&c.rec, c.found); got != c.want {
			t.Errorf("%s: %v", c.story, got)
		}
	}
}

// deletions is a provider with one resource. It counts deletions.
type deletions struct {
	provision.Provider
	n   int
	res provision.Resource
	err error // error of Get
}

func (d *deletions) Get(context.Context, string) (provision.Resource, error) {
	return d.res, d.err
}

func (d *deletions) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	d.n++
	return true, nil
}

func (d *deletions) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource", Delete: "multihost qr delete " + id + " --force"}}
}

// parted is a provider whose resources have parts besides their slices.
type parted struct {
	deletions
	swept string
}

func (p *parted) Sweep(_ context.Context, id, run string, over bool) error {
	p.swept = fmt.Sprintf("%s of %s, over: %v", id, run, over)
	return nil
}

// When the slices of a run have gone, the parts that are left are deleted, but not slices
// that another command may be making. A dry run deletes nothing.
func TestThePartsOfARunWithoutSlicesAreSwept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		readOnly       bool
		stopping, want string
	}{
		{false, "stopped by ann", "k of r, over: true"},
		{false, "", "k of r, over: false"},
		{true, "", ""},
	} {
		cloud := &parted{deletions: deletions{err: provision.ErrNotFound}}
		r := &BucketRun{Deps: Deps{
			Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: testkit.NewJumpClock()}, Cloud: cloud, ReadOnly: c.readOnly},
		}, Desc: detach.Description{Run: "r", Resource: "k"}}
		r.sweep(t.Context(), detach.State{Stopping: c.stopping})
		if cloud.swept != c.want || cloud.n > 0 {
			t.Errorf("%+v: swept %q after %d deletions", c, cloud.swept, cloud.n)
		}
	}
}

// When the slices of a run have gone, attach deletes the parts that are left. The check
// that notices this, which logs also makes, deletes nothing.
func TestOnlyAttachSweepsARunThatHasNoEnd(t *testing.T) {
	w, d, _, put := inBucket(t)
	cloud := &parted{deletions: deletions{Provider: w, err: provision.ErrNotFound}}
	d.Cloud = cloud
	put("workers/s0w0", "phase=running\nattempt=1\nmay_delete=yes\n")
	r, err := FindBucketRun(t.Context(), d, "r")
	testkit.Must(t, err)
	state, err := r.Store.State(t.Context(), "r")
	testkit.Must(t, err)
	const gone = "is gone, and only 0 of 2 workers ended in the bucket"
	if err := r.StillThere(t.Context(), state); err == nil || !strings.Contains(err.Error(), gone) || cloud.swept != "" {
		t.Errorf("the look: %v, swept %q", err, cloud.swept)
	}
	if _, err := Attach(t.Context(), d, "r", attachOptions); err == nil || !strings.Contains(err.Error(), gone) || cloud.swept != "r of r, over: false" {
		t.Errorf("attach: %v, swept %q", err, cloud.swept)
	}
}

// Without a terminal, nobody can agree to lose the only copy of a log.
func TestTheOnlyCopyOfALogStaysUnlessSomebodySaysSo(t *testing.T) {
	t.Parallel()
	part := kept{run: "k", ended: "exit code 0", res: qr.Resource{ID: "k", State: "ACTIVE"}.Neutral(), part: "the log of s0w0 is not whole here: 1 of 5 bytes"}
	begun := errors.New("run other lives there by now")
	yes := func(context.Context, string) error { return nil }
	for _, c := range []struct {
		story   string
		confirm func(context.Context, string) error
		change  func(*kept)
		deletes bool
	}{
		{"nobody is asked", nil, nil, false},
		{"nobody is asked, and the logs are whole", nil, func(k *kept) { k.part = "" }, true},
		{"somebody says yes", yes, nil, true},
		{"somebody says yes after something has begun", yes, func(k *kept) { k.again = func(context.Context) error { return begun } }, false},
	} {
		cloud := &deletions{}
		typed := &stage.Invocation{Sink: event.Discard, Clock: testkit.NewJumpClock()}
		d := Deps{
			Reach:  &workers.Reach{Invocation: typed, Cloud: cloud},
			Keeper: &record.Keeper{Of: typed, StateDir: t.TempDir()},
		}
		k := part
		if c.change != nil {
			c.change(&k)
		}
		err := deleteKept(t.Context(), d, StopOptions{Confirm: c.confirm}, k)
		if deleted := cloud.n > 0; deleted != c.deletes || (err == nil) != c.deletes {
			t.Errorf("%s: deleted %v, %v", c.story, deleted, err)
		}
	}
}

// TestAStopDeletesWhatNoWorkerMayDelete: if no worker may delete the slices, stop deletes
// them with the user's rights.
func TestAStopDeletesWhatNoWorkerMayDelete(t *testing.T) {
	t.Parallel()
	var request qr.Request
	request.Mark("k", "ann")
	mine := qr.Resource{ID: "k", State: "ACTIVE", Labels: request.Labels}
	no, yes := detach.Seen{MayDelete: "HTTP 403"}, detach.Seen{MayDelete: "yes"}
	for _, tt := range []struct {
		story   string
		cloud   deletions
		seen    []detach.Seen
		text    string
		deletes bool
	}{
		{"nobody may", deletions{res: mine.Neutral()}, []detach.Seen{no, no}, "run k: ended on all workers", true},
		{"one may", deletions{res: mine.Neutral()}, []detach.Seen{no, yes}, "run k: ended on all workers, which delete queued resource k", false},
		{"nobody has said", deletions{res: mine.Neutral()}, nil, "run k: ended on all workers, which delete queued resource k", false},
		{"it is gone", deletions{err: provision.ErrNotFound}, []detach.Seen{no}, "run k: ended on all workers, and queued resource k is gone", false},
		{"another one has its name", deletions{res: qr.Resource{ID: "k", State: "ACTIVE"}.Neutral()}, []detach.Seen{no}, "run k: ended on all workers, and queued resource k is gone", false},
	} {
		r := &BucketRun{Deps: Deps{
			Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: testkit.NewJumpClock()}, Cloud: &tt.cloud},
		}, Desc: detach.Description{Run: "k", Resource: "k"}}
		text, ours := afterEnd(t.Context(), r, detach.State{Seen: tt.seen})
		if text != tt.text || (ours != nil) != tt.deletes {
			t.Errorf("%s: %q, deletes %v", tt.story, text, ours != nil)
		}
	}
}
