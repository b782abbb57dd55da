package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// made returns a queued resource of user ann. In state ACTIVE its slices are READY.
func made(id, state string, nodes int, created time.Time) provision.Resource {
	r := qr.Resource{ID: id, State: state, Type: "v4-8", Tier: qr.OnDemand, NodeCount: nodes, CreateTime: created, Labels: provision.OwnerLabels(id, "ann")}
	for i := range nodes {
		r.Slices = append(r.Slices, qr.SliceState{Name: id + "-" + string(rune('0'+i)), State: map[bool]string{true: "READY", false: "CREATING"}[state == "ACTIVE"], Ready: state == "ACTIVE"})
	}
	return r.Neutral()
}

func TestIdleNeedsEvidence(t *testing.T) {
	clock := testkit.NewJumpClock()
	d := Deps{
		Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock}},
	}
	ago := func(age time.Duration) time.Time { return clock.Now().Add(-age) }
	ran := func(slice int, info launch.Info) []workers.FoundRun {
		return []workers.FoundRun{{Info: info, Workers: []tpu.WorkerID{{Slice: slice}}}}
	}
	ended := func(age time.Duration) launch.Info {
		return launch.Info{Phase: launch.Exited, Exit: &launch.Exit{End: ago(age)}}
	}
	for _, tt := range []struct {
		story string
		tier  provision.Tier
		slice time.Duration // age of the slices
		runs  []workers.FoundRun
		mute  bool // the second slice does not answer
		older time.Duration
		want  bool
		says  string
	}{
		{story: "old and nothing ran", slice: time.Hour, want: true, says: "nothing has run there for 1h00m"},
		{story: "made a moment ago", slice: time.Minute, says: "counts as left after 30m00s"},
		{story: "made a moment ago, but that is what is asked for", slice: time.Minute, older: time.Second, want: true},
		{story: "a run lives", slice: time.Hour, runs: ran(1, launch.Info{Owner: "bob@vm", Phase: launch.Running}), says: "of bob@vm lives there"},
		{story: "a run has just ended", slice: time.Hour, runs: ran(0, ended(time.Minute)), says: "counts as left"},
		{story: "a run lives on slices of another resource", slice: time.Hour, runs: ran(2, launch.Info{Phase: launch.Running}), want: true},
		{story: "one does not answer", slice: time.Hour, mute: true, says: "q-1 does not answer"},
		{story: "reserved capacity", tier: provision.Reserved, slice: time.Hour, says: "reserved capacity"},
	} {
		res := made("q", "ACTIVE", 2, ago(tt.slice))
		res.Tier = tt.tier
		ready := []tpu.Slice{
			{Index: 0, Name: "q-0", QueuedResource: "q", Created: ago(tt.slice)}, {Index: 1, Name: "q-1", QueuedResource: "q", Created: ago(tt.slice)},
			{Index: 2, Name: "other", QueuedResource: "other", Created: ago(0)},
		}
		got, why := idle(d, Leftover{res: res}, "q", ready, tt.runs, []bool{true, !tt.mute, true}, tt.older)
		if got != tt.want || !strings.Contains(why, tt.says) {
			t.Errorf("%s: idle = %v, %q, want %v, %q", tt.story, got, why, tt.want, tt.says)
		}
	}
}

func TestTheWarningOfLeftoversIsOneLine(t *testing.T) {
	clock := testkit.NewJumpClock()
	typed := &stage.Invocation{Clock: clock}
	d := Deps{
		Reach:    &workers.Reach{Invocation: typed, Place: provision.Place{Project: "p", Zone: "us-central2-b"}},
		StateDir: t.TempDir(),
	}
	now := clock.Now()
	record := func(run, slice string, ended bool, end time.Time) {
		t.Helper()
		rec := &record.Record{Run: run, Attempt: 1, Project: "p", Zone: "us-central2-b", Created: end, Ended: ended,
			Slices: []record.Slice{{Name: slice}}, Attempts: []record.PastAttempt{{Attempt: 1, End: end}}}
		if err := rec.Save(d.StateDir); err != nil {
			t.Fatal(err)
		}
	}
	record("over", "idle-0", true, now.Add(-3*time.Hour))
	record("lives", "busy-0", false, now.Add(-3*time.Hour))
	record("just", "fresh-0", true, now.Add(-time.Minute))
	old := now.Add(-5 * time.Hour)
	bobs := made("bobs", "FAILED", 1, old)
	bobs.Labels = provision.OwnerLabels("bobs", "bob")
	foreign := made("foreign", "FAILED", 1, old)
	foreign.Labels = nil
	all := []provision.Resource{
		made("idle", "ACTIVE", 2, old), made("busy", "ACTIVE", 1, old), made("fresh", "ACTIVE", 1, old), made("unknown", "ACTIVE", 1, old),
		made("dead", "SUSPENDED", 0, old), made("mine", "FAILED", 0, old), bobs, foreign,
	}
	got := leftoverWarning(d, all, "ann", "mine")
	want := "left of your earlier runs: still there and billed, list price $25.76 an hour (2026-11-28): idle (2 slices, its last run ended 3h00m ago); dead and holding quota: dead"
	if got != want {
		t.Errorf("warning = %q\nwant      %q", got, want)
	}
	if got := leftoverWarning(d, all, "carol", ""); got != "" {
		t.Errorf("warning for somebody with nothing = %q", got)
	}
}

// remains is a provider that lists listed and records a deletion.
type remains struct {
	provision.Provider
	listed  []provision.Resource
	deleted string // the deleted resource and its run
}

func (r *remains) List(context.Context) ([]provision.Resource, error) { return r.listed, nil }

func (*remains) Undoing(string, ...string) provision.Undoing { return provision.Undoing{} }

func (*remains) Get(context.Context, string) (provision.Resource, error) {
	return provision.Resource{}, provision.ErrNotFound
}

func (r *remains) Delete(_ context.Context, id string, o provision.DeleteOptions) (bool, error) {
	r.deleted = id + " of " + o.OnlyRun
	return true, nil
}

// When one of two slices is lost, a command may still run on the other. gc asks this slice like
// any other.
func TestASliceThatIsLeftIsLookedAt(t *testing.T) {
	clock := testkit.NewJumpClock()
	ready := tpu.Slice{Name: "m-0", QueuedResource: "m", Condition: tpu.Usable, Workers: []tpu.Worker{{Name: "vm"}}, Created: clock.Now().Add(-time.Hour)}
	res := provision.Resource{ID: "m", Commands: provision.Commands{Kind: "slice request"}, Life: provision.Suspended, State: "PREEMPTED", NodeCount: 2,
		Labels: provision.OwnerLabels("m", "ann"), Slices: []tpu.Slice{ready, {Name: "m-1", Condition: tpu.Taken}}}
	typed := &stage.Invocation{Clock: clock, Sink: event.Discard}
	d := Deps{Reach: &workers.Reach{Invocation: typed, Cloud: &remains{listed: []provision.Resource{res}}}, StateDir: t.TempDir()}
	left, err := Leftovers(t.Context(), d, GCOptions{})
	if err != nil || len(left) != 1 || left[0].Useless {
		t.Errorf("listed %+v, %v", left, err)
	}
	if useless, why := idle(d, Leftover{res: res}, "m", []tpu.Slice{ready}, nil, []bool{true}, 0); !useless {
		t.Errorf("idle for an hour: it stays, %s", why)
	}
	if text := leftoverWarning(d, []provision.Resource{res}, "ann", ""); text != "" {
		t.Errorf("warning %q", text)
	}
	if got, want := res.Standing(), "state PREEMPTED, and is billed"; got != want {
		t.Errorf("standing %q, want %q", got, want)
	}
}

// back is a provider whose Get returns now. A slice has become ready again there, but Slices
// does not list it yet.
type back struct {
	remains
	now provision.Resource
}

func (b *back) Get(context.Context, string) (provision.Resource, error) { return b.now, nil }

func (*back) Slices(context.Context) ([]tpu.Slice, error) { return nil, nil }

// Before it deletes a resource, gc reads its state again.
func TestASliceThatIsReadyAgainIsNotDeleted(t *testing.T) {
	t.Parallel()
	slice := tpu.Slice{Name: "m-0", QueuedResource: "m", Condition: tpu.Making}
	res := provision.Resource{ID: "m", Life: provision.Suspended, State: "PREEMPTED", NodeCount: 2, Slices: []tpu.Slice{slice}}
	l := Leftover{Kind: "slice request", Name: "m", State: res.State, Run: "r", Useless: true, res: res}
	for _, ready := range []bool{true, false} {
		cloud := &back{now: res}
		if ready {
			slice.Condition, slice.Workers = tpu.Usable, []tpu.Worker{{Name: "vm"}}
			cloud.now.Slices = []tpu.Slice{slice}
		}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}, Cloud: cloud}}
		if err := Collect(t.Context(), d, GCOptions{}, []Leftover{l}); err != nil || (cloud.deleted == "") != ready {
			t.Errorf("ready %v: deleted %q, %v", ready, cloud.deleted, err)
		}
	}
}

// The remains of a resource without slices are also deleted, unless somebody is making a
// new resource of that name.
func TestPartsWithoutSlicesAreDeleted(t *testing.T) {
	for life, want := range map[provision.Life]string{provision.Failed: "m of r", provision.Requested: "", provision.Absent: ""} {
		cloud := &remains{}
		if life != provision.Absent {
			cloud.listed = []provision.Resource{{ID: "m", Commands: provision.Commands{Kind: "slice request"}, Life: life}}
		}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}, Cloud: cloud}}
		err := Collect(t.Context(), d, GCOptions{}, []Leftover{{Kind: "slice request", Name: "m", Run: "r", Useless: true}})
		if err != nil || cloud.deleted != want {
			t.Errorf("%s: deleted %q, want %q, %v", life, cloud.deleted, want, err)
		}
	}
}

// inParts is a provider of resources with several parts. It can read only one part.
type inParts struct{ provision.Provider }

func (inParts) ItemsOf(provision.Request) []provision.Item { return nil }

func (inParts) Items(context.Context, string) ([]provision.Item, error) {
	return []provision.Item{{Kind: "template", Name: "m"}}, errors.New("read policy: denied")
}

// The parts and costs of a dead resource depend on its provider.
func TestPartsOfLeftovers(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	whole := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said}, Cloud: &testkit.FixedSlices{}}}
	parts := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said}, Cloud: inParts{}}}
	stopped := provision.Resource{Slices: make([]tpu.Slice, 1)}
	half := provision.Resource{Slices: []tpu.Slice{{Condition: tpu.Taken, Billed: time.Unix(1, 0)}}}
	for _, tt := range []struct {
		d    Deps
		res  provision.Resource
		want string
	}{
		{whole, stopped, "it gives no slices any more and holds quota until it is deleted"},
		{parts, stopped, "it gives no slices any more, and the boot disks of its VMs are billed until it is deleted"},
		{parts, half, "it gives no slices any more, and those of its VMs that still run are billed until it is deleted"},
		{parts, provision.Resource{Free: true}, "it gives no slices any more; what is left of it is free, and holds no quota"},
	} {
		if got := deadEvidence(tt.d, tt.res); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	dead := provision.Resource{ID: "m", Life: provision.Failed, Labels: provision.OwnerLabels("m", "ann")}
	for want, free := range map[string]bool{"": true, "left of your earlier runs: dead and holding quota: m": false} {
		dead.Free = free
		if got := leftoverWarning(whole, []provision.Resource{dead}, "ann", ""); got != want {
			t.Errorf("warning %q, want %q", got, want)
		}
	}
	left := []Leftover{{Kind: "box", Name: "m"}}
	addParts(t.Context(), whole, left)
	if len(left[0].Parts) > 0 || len(said.Notes()) > 0 {
		t.Errorf("got %+v, said %v", left[0].Parts, said.Notes())
	}
	addParts(t.Context(), parts, left)
	if text := LeftoverTable(left); !strings.HasSuffix(text, "\nbox m:\n  template m: free\n") || !said.Said(event.Warn, "not all parts could be read: read policy: denied") {
		t.Errorf("got %s, said %v", text, said.Notes())
	}
}

// A resource without slices costs nothing. gc says this also if a command may still be making
// the slices.
func TestFreePartsAreCalledFree(t *testing.T) {
	t.Parallel()
	for life, want := range map[provision.Life]string{
		provision.Requested: "it has no slices and costs nothing; unless a command is making it now, remove it with: delete m",
		provision.Failed:    "it gives no slices any more; what is left of it is free, and holds no quota",
	} {
		res := provision.Resource{ID: "m", Commands: provision.Commands{Kind: "slice request", Delete: "delete m"}, Life: life, Free: true, Labels: provision.OwnerLabels("m", "ann")}
		typed := &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}
		d := Deps{Reach: &workers.Reach{Invocation: typed, Cloud: &remains{listed: []provision.Resource{res}}}, StateDir: t.TempDir()}
		left, err := Leftovers(t.Context(), d, GCOptions{})
		if err != nil || len(left) != 1 || left[0].Useless != (life == provision.Failed) || left[0].Evidence != want {
			t.Errorf("%s: %+v, %v; want %q", life, left, err, want)
		}
	}
}

// gc does not say that slices are on their way while they are being taken away. A command may
// still run on them.
func TestSlicesThatEndAreNotOnTheirWay(t *testing.T) {
	t.Parallel()
	for life, want := range map[provision.Life]string{
		provision.Suspending:   "its slices are being taken away; a command may still run there",
		provision.Provisioning: "it is on its way; whether somebody waits for it is not known",
	} {
		res := provision.Resource{ID: "m", Life: life, Labels: provision.OwnerLabels("m", "ann"), Slices: []tpu.Slice{{Name: "m-0", Condition: tpu.Ill}}}
		typed := &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}
		d := Deps{Reach: &workers.Reach{Invocation: typed, Cloud: &remains{listed: []provision.Resource{res}}}, StateDir: t.TempDir()}
		if left, err := Leftovers(t.Context(), d, GCOptions{}); err != nil || len(left) != 1 || left[0].Useless || left[0].Evidence != want {
			t.Errorf("%s: %+v, %v; want %q", life, left, err, want)
		}
	}
}

// parts is a provider of resources with several parts. It records calls of Sweep.
type parts struct {
	remains
	swept []string
}

func (*parts) Items(context.Context, string) ([]provision.Item, error) { return nil, nil }
func (*parts) ItemsOf(provision.Request) []provision.Item              { return nil }

func (p *parts) Sweep(_ context.Context, id, run string, over bool) error {
	p.swept = append(p.swept, fmt.Sprintf("%s of %s, over: %v", id, run, over))
	return nil
}

// A command deletes the free parts that the user's earlier runs left. It leaves parts that
// somebody is making, parts of other users, and its own parts. In a dry run it leaves
// everything.
func TestFreeRemainsOfEarlierRunsAreSwept(t *testing.T) {
	t.Parallel()
	res := func(id, user string, life provision.Life, slices ...tpu.Slice) provision.Resource {
		return provision.Resource{ID: id, Commands: provision.Commands{Kind: "slice request"}, Life: life, Labels: provision.OwnerLabels(id, user), Slices: slices, Free: life.Dead() && len(slices) == 0}
	}
	for readOnly, want := range map[bool][]string{false: {"free of free, over: false"}, true: nil} {
		cloud := &parts{}
		cloud.listed = []provision.Resource{
			res("free", "ann", provision.Failed), res("young", "ann", provision.Requested), res("bobs", "bob", provision.Failed), res("mine", "ann", provision.Failed),
			res("vms", "ann", provision.Failed, tpu.Slice{Name: "vms-0", Condition: tpu.Halted}), {ID: "nobodys", Life: provision.Failed},
		}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}, Cloud: cloud, ReadOnly: readOnly}, StateDir: t.TempDir()}
		sweep(t.Context(), d, cloud.listed, "ann", "mine")
		if !slices.Equal(cloud.swept, want) {
			t.Errorf("read only %v: swept %q, want %q", readOnly, cloud.swept, want)
		}
	}
}
