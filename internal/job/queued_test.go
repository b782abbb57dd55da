package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

type oneResource struct {
	provision.Provider
	res qr.Resource
}

func (o oneResource) Get(context.Context, string) (provision.Resource, error) {
	return o.res.Neutral(), nil
}

func (o oneResource) Undoing(id string, _ ...string) provision.Undoing { return undoing(id) }

// undoing returns the parts of an Undoing that messages need.
func undoing(id string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource", Delete: "multihost qr delete " + id + " --force"}}
}

// If the workers of one of two slices do not answer, its VMs are rebooted. The other slice
// stays as it is. The job reports the reason.
func TestASilentSliceBesideOneThatAnswersIsRebooted(t *testing.T) {
	t.Parallel()
	ready := []qr.SliceState{{Name: "m-0", State: "READY", Health: "HEALTHY", Ready: true}, {Name: "m-1", State: "READY", Health: "HEALTHY", Ready: true}}
	q := &queued{ours: true, Deps: Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{}, Cloud: oneResource{res: qr.Resource{State: "ACTIVE", Nodes: []string{"m-0", "m-1"}, Slices: ready}}}}}
	late := &provision.DeadlineError{Phase: provision.PhaseBoot, State: "ACTIVE", Silent: []string{"m-1"}}
	d, known := q.diagnose(t.Context(), late)
	if !q.left {
		t.Error("the slices that can be used are not known")
	}
	if !known || d.Step != provision.StepReset || d.Loss != provision.Infrastructure || !strings.Contains(d.Why, "m-1 is READY, but its workers do not all answer") {
		t.Errorf("at first: %+v, %v", d, known)
	}
	q.resets = 1
	if d, _ = q.diagnose(t.Context(), late); d.Step != provision.StepRecreate || !strings.Contains(d.Why, "m-1") {
		t.Errorf("after a reboot: %+v", d)
	}
}

// A hardCloud has one queued resource. Each kind of call first fails with its prepared
// errors, one after the other, and then succeeds.
type hardCloud struct {
	provision.Provider
	clock    gcp.Clock
	res      qr.Resource
	fails    map[string][]error
	calls    []string
	requests []provision.Request
	partly   bool // a failed Create has made a part
}

func (h *hardCloud) call(name string) error {
	h.calls = append(h.calls, name)
	next := h.fails[name]
	if len(next) == 0 {
		return nil
	}
	h.fails[name] = next[1:]
	return next[0]
}

func (h *hardCloud) Get(context.Context, string) (provision.Resource, error) {
	return h.res.Neutral(), h.call("get")
}

func (h *hardCloud) Create(_ context.Context, r provision.Request) (provision.Resource, bool, error) {
	h.requests = append(h.requests, r)
	if err := h.call("create"); err != nil && h.partly {
		return provision.Resource{ID: r.ID, State: "REQUESTED"}, true, err
	} else if err != nil {
		return provision.Resource{}, false, err
	}
	h.res = qr.Resource{ID: r.ID, State: "ACTIVE", CreateTime: h.clock.Now(), Nodes: []string{"m"}, Slices: []qr.SliceState{{Name: "m", State: "READY"}}}
	return h.res.Neutral(), true, nil
}

func (h *hardCloud) wait(context.Context, provision.Provider, string, provider.WaitOptions) (provision.Resource, []tpu.Slice, error) {
	err := h.call("wait")
	var state *provision.StateError
	if errors.As(err, &state) {
		h.res.State = state.State
	}
	return h.res.Neutral(), []tpu.Slice{{Name: "m"}}, err
}

func (h *hardCloud) Restart(context.Context, string) error { return h.call("reset") }

func (h *hardCloud) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	return true, h.call("delete")
}

func (h *hardCloud) Undoing(id string, _ ...string) provision.Undoing { return undoing(id) }

func (h *hardCloud) Slices(context.Context) ([]tpu.Slice, error) { return nil, h.call("slices") }

// onHardCloud returns the ground of a job that has already run there.
func onHardCloud(fails map[string][]error) (*queued, *hardCloud) {
	clock := testkit.NewJumpClock()
	h := &hardCloud{clock: clock, fails: fails}
	d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock, Sink: event.Discard}, Cloud: h}}
	o := JobOptions{Budget: Budget{Preemptions: -1}}
	o.Request.ID, o.Request.NodeCount = "m", 1
	q := newQueued(d, o, &stage.Stopwatch{Sink: d.Sink, Clock: clock})
	q.await, q.ours, q.held.worked = h.wait, true, true
	q.occupied = func(context.Context) bool { return false }
	return q, h
}

var (
	errAway      = &gcp.Error{What: "call the API", Class: gcp.Unavailable}
	errNone      = &gcp.Error{What: "call the API", Class: gcp.NotFound}
	errSuspended = &provision.StateError{ID: "m", Life: provision.Suspended, State: "SUSPENDED"}
)

// Temporary failures do not end a job that has lost its slices. It repeats its requests
// until slices exist, and does each step once.
func TestWhatPassesEndsNoRecovery(t *testing.T) {
	silent := &provision.DeadlineError{Phase: provision.PhaseBoot, State: "ACTIVE", Silent: []string{"m"}}
	stuck := &provision.DeadlineError{ID: "m", Phase: "delete", State: "SUSPENDED"}
	conflict := &gcp.Error{What: "reset it", Class: gcp.Conflict}
	for _, tt := range []struct {
		story string
		fails map[string][]error
		calls string
	}{
		{"the API is away when the loss is looked at",
			map[string][]error{"wait": {errSuspended}, "get": {errAway, errAway}}, "create wait get get get delete create wait"},
		{"the API is away when the slices are asked for again",
			map[string][]error{"wait": {errSuspended}, "create": {nil, errAway, errAway}}, "create wait get delete create create create wait"},
		{"the quota is not given back yet",
			map[string][]error{"wait": {errSuspended}, "create": {nil, &gcp.Error{Class: gcp.Quota}}}, "create wait get delete create create wait"},
		{"the deletion takes longer than one should",
			map[string][]error{"wait": {errSuspended}, "delete": {stuck, stuck}}, "create wait get delete delete delete create wait"},
		{"the slices are taken away when they are to be rebooted",
			map[string][]error{"wait": {silent, errSuspended}, "reset": {conflict}}, "create wait get reset wait get delete create wait"},
	} {
		for _, partly := range []bool{false, true} {
			q, h := onHardCloud(maps.Clone(tt.fails))
			h.partly = partly
			sel, err := q.ready(t.Context(), func(*stage.Failure) error { return nil }, &stage.Failure{Cause: stage.Preempted})
			if got := strings.Join(h.calls, " "); err != nil || len(sel.Slices) != 1 || got != tt.calls {
				t.Errorf("%s, a part was made %v: %v\ngot  %s\nwant %s", tt.story, partly, err, got, tt.calls)
			}
		}
	}
}

// Lasting failures end the job, as do failures before it had slices.
func TestWhatStaysEndsAJob(t *testing.T) {
	denied := &gcp.Error{Class: gcp.Permission}
	q, _ := onHardCloud(map[string][]error{"wait": {errSuspended}, "create": {nil, denied}})
	if _, err := q.ready(t.Context(), func(*stage.Failure) error { return nil }, nil); !errors.Is(err, denied) {
		t.Errorf("it ended with %v, want that it is not permitted", err)
	}
	for _, partly := range []bool{false, true} {
		q, h := onHardCloud(map[string][]error{"create": {errAway}})
		q.ours, q.held.worked, h.partly = false, false, partly
		if _, err := q.ready(t.Context(), nil, nil); !errors.Is(err, errAway) || len(h.calls) != 1 {
			t.Errorf("a job that has at most a part yet, %v: %v after %q", partly, err, h.calls)
		}
	}
}

// If the resource of a job is gone, another command may make one of the same name. The job
// leaves it alone.
func TestANamesakeOfWhatIsGone(t *testing.T) {
	gone := &provision.StateError{ID: "m", Life: provision.Absent, State: provision.NotFound}
	suspended := &provision.StateError{ID: "m", Life: provision.Suspended, State: "SUSPENDED"}
	for _, tt := range []struct {
		story string
		fails map[string][]error
		calls string
		gone  bool
	}{
		{"the wait sees that it is gone", map[string][]error{"wait": {gone}}, "create wait get", true},
		{"the look after the wait does", map[string][]error{"wait": {suspended}, "get": {errNone}}, "create wait get", true},
		{"it is made again by this job", map[string][]error{"wait": {suspended, errAway}}, "create wait get delete create wait", false},
	} {
		q, h := onHardCloud(maps.Clone(tt.fails))
		_, err := q.ready(t.Context(), func(*stage.Failure) error { return nil }, &stage.Failure{Cause: stage.Preempted})
		if got := strings.Join(h.calls, " "); err == nil || got != tt.calls || q.gone != tt.gone {
			t.Errorf("%s: %v, gone %v\ngot  %s\nwant %s", tt.story, err, q.gone, got, tt.calls)
		}
	}
	q, _ := onHardCloud(map[string][]error{"get": {errNone}})
	if _, err := q.look(t.Context(), nil, nil); err != nil || !q.gone {
		t.Errorf("a look after a loss: %v, gone %v", err, q.gone)
	}
}

func TestWhetherAnotherCommandHasMadeAResource(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		story string
		known time.Time // of the job's own resource
		made  time.Time // of the present resource
		slice string
		want  bool
	}{
		{"the same", made, made, "1", false},
		{"the same before it has slices", made, made, "", false},
		{"a later one", made, made.Add(time.Minute), "2", true},
		{"a later one before it has slices", made, made.Add(time.Minute), "", true},
		{"the time is that of the oldest part, which is gone", made, made.Add(time.Second), "1", false},
		{"only an earlier part is left", made, made.Add(-time.Second), "", false},
		{"this job has waited for none", time.Time{}, made, "1", false},
	} {
		known := sightingOf(provision.Resource{CreateTime: tt.known, Slices: []tpu.Slice{{UID: "0"}, {UID: "1"}}})
		res := provision.Resource{CreateTime: tt.made}
		if tt.slice != "" {
			res.Slices = []tpu.Slice{{UID: tt.slice}}
		}
		if got := known.another(res); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}

// After a job has requested its resource again, it may end before it has waited for the
// resource. It then does not take the resource for another command's.
func TestAResourceThatTheJobHasMadeAgainIsItsOwn(t *testing.T) {
	for _, tt := range []struct {
		story string
		fails map[string][]error
		made  bool // the request has arrived
	}{
		{"interrupted after the answer", nil, true},
		{"interrupted before the answer", map[string][]error{"create": {context.Canceled}}, false},
	} {
		q, h := onHardCloud(tt.fails)
		q.known = sighting{made: h.clock.Now().Add(-time.Hour), slices: []string{"0"}}
		_, created, err := q.create(t.Context())
		now := provision.Resource{ID: "m", CreateTime: h.clock.Now()}
		if created != tt.made || (err == nil) != tt.made || q.ending(&runner{}).Remade(now) {
			t.Errorf("%s: created %v, %v; remade %v", tt.story, created, err, q.ending(&runner{}).Remade(now))
		}
	}
}

// When the slices' run duration has passed, the job that used them ends. The same job given
// again makes new slices.
func TestSlicesWhoseTimeIsOver(t *testing.T) {
	for _, worked := range []bool{true, false} {
		q, h := onHardCloud(map[string][]error{"wait": {errSuspended}})
		q.held.worked, q.held.inherited = worked, !worked
		q.Cloud = overCloud{h}
		_, err := q.ready(t.Context(), func(f *stage.Failure) error { return f }, nil)
		want := "create wait get delete create wait"
		if worked {
			want = "create wait get"
		}
		if got := strings.Join(h.calls, " "); errors.Is(err, stage.ErrExpired) != worked || (err == nil) == worked || got != want {
			t.Errorf("worked %v: %v after %q, want %q", worked, err, got, want)
		}
	}
	q, h := onHardCloud(nil)
	h.res = qr.Resource{State: "SUSPENDED"}
	q.Cloud = overCloud{h}
	r := newRunner(q.Deps, attempt.Options{}, true)
	r.ground, r.used = q, []tpu.Slice{{Name: "m"}}
	if f := r.inquest().judge(t.Context(), stage.Outcome{}, remote.ErrConnectionLost); f.Cause != stage.Expired || !errors.Is(f.Err, stage.ErrExpired) || f.Why != f.Err.Error() {
		t.Errorf("an attempt: got %v of %v", f, f.Err)
	}
}

// An overCloud is a hardCloud that takes its slices back when their time is over.
type overCloud struct{ *hardCloud }

func (o overCloud) Get(ctx context.Context, id string) (provision.Resource, error) {
	res, err := o.hardCloud.Get(ctx, id)
	res.Over = res.Life == provision.Suspended
	return res, err
}

// If some slices do not come in time, a job that has never run ends. A job that has run
// gives the slices back and requests them again.
func TestSlicesThatDoNotComeInTime(t *testing.T) {
	late := func(phase string) error {
		return &provision.DeadlineError{ID: "m", Phase: phase, Total: 2, Missing: []provision.Missing{{Name: "m-1", Why: "no machines"}}}
	}
	for _, tt := range []struct {
		story   string
		worked  bool
		phase   string
		missing int // slices that are missing when the job looks
		calls   string
	}{
		{"it has never run", false, provision.PhaseSlices, 1, "create wait get"},
		{"it has run", true, provision.PhaseSlices, 1, "create wait get delete create wait"},
		{"the last one has come meanwhile", false, provision.PhaseSlices, 0, "create wait get wait"},
		{"the limit of the queue is over", true, provision.PhaseQueue, 1, "create wait get"},
	} {
		cause := late(tt.phase)
		q, h := onHardCloud(map[string][]error{"wait": {cause}})
		q.held.worked = tt.worked
		q.Cloud = partlyCloud{h, tt.missing}
		_, err := q.ready(t.Context(), func(f *stage.Failure) error { return f }, nil)
		ends := strings.HasSuffix(tt.calls, "get")
		if got := strings.Join(h.calls, " "); got != tt.calls || ends != errors.Is(err, cause) || !ends && err != nil {
			t.Errorf("%s: %v after %q, want %q", tt.story, err, got, tt.calls)
		}
	}
}

// A partlyCloud is a hardCloud with missing slices.
type partlyCloud struct {
	*hardCloud
	missing int
}

func (p partlyCloud) Get(ctx context.Context, id string) (provision.Resource, error) {
	res, err := p.hardCloud.Get(ctx, id)
	res.Life, res.Missing = provision.Provisioning, make([]provision.Missing, p.missing)
	return res, err
}

// A limit counts only for its own state. Time in which nobody could look does not count.
// Slices that were made or repaired meanwhile are not deleted.
func TestALimitOfAnotherStateDeletesNothing(t *testing.T) {
	ready := []qr.SliceState{{Name: "m", State: "READY", Health: "HEALTHY"}}
	for _, tt := range []struct {
		story string
		late  provision.DeadlineError
		now   string
		step  provision.Step
	}{
		{"made at last", provision.DeadlineError{Phase: provision.PhaseProvision, State: "PROVISIONING"}, "ACTIVE", provision.StepWait},
		{"made while the API was away", provision.DeadlineError{Phase: provision.PhaseProvision, Err: errAway}, "ACTIVE", provision.StepWait},
		{"well at last", provision.DeadlineError{Phase: provision.PhaseBoot, State: "ACTIVE"}, "ACTIVE", provision.StepWait},
		{"booting, for all that is known, while the API was away", provision.DeadlineError{Phase: provision.PhaseBoot, Err: errAway}, "ACTIVE", provision.StepWait},
		{"made for too long", provision.DeadlineError{Phase: provision.PhaseProvision, State: "PROVISIONING"}, "PROVISIONING", provision.StepRecreate},
		{"queued for too long", provision.DeadlineError{Phase: provision.PhaseQueue, State: "ACCEPTED"}, "WAITING_FOR_RESOURCES", provision.StepGiveUp},
		{"queued for too long, whoever looks", provision.DeadlineError{Phase: provision.PhaseQueue, Err: errAway}, "WAITING_FOR_RESOURCES", provision.StepGiveUp},
		{"its turn came in the last moment", provision.DeadlineError{Phase: provision.PhaseQueue, State: "WAITING_FOR_RESOURCES"}, "PROVISIONING", provision.StepWait},
	} {
		q, h := onHardCloud(nil)
		h.res = qr.Resource{State: tt.now, Nodes: []string{"m"}, Slices: ready}
		if d, known := q.diagnose(t.Context(), &tt.late); !known || d.Step != tt.step {
			t.Errorf("%s: %+v, want to %s", tt.story, d, tt.step)
		}
	}
}

// Only the cloud knows whether a killed command was preempted. So the job waits for its
// answer, even for a long time. Otherwise the job would end with a failure of the command.
func TestALossIsJudgedWhenTheCloudAnswers(t *testing.T) {
	away := make([]error, 50)
	for i := range away {
		away[i] = errAway
	}
	q, h := onHardCloud(map[string][]error{"get": away})
	h.res = qr.Resource{State: "SUSPENDED", StateInitiator: "SERVICE", Tier: qr.Spot}
	r := &inquest{Reach: q.Reach, ground: q, patient: true}
	if cause, why := r.settle(t.Context(), signs{killed: true, why: "s0w0: killed by SIGTERM"}); cause != stage.Preempted {
		t.Errorf("it is taken for %s: %s", cause, why)
	}
}

// A command was killed. While the slices look healthy, the job waits until the cloud says
// why. It reports once what it waits for.
func TestTheWaitForTheCauseOfALossIsTold(t *testing.T) {
	q, h := onHardCloud(nil)
	said := &testkit.Recorder{}
	q.Sink = said
	h.res = qr.Resource{State: "ACTIVE", Nodes: []string{"m"}, Slices: []qr.SliceState{{Name: "m", State: "READY", Health: "HEALTHY"}}}
	r := &inquest{Reach: q.Reach, ground: q, patient: true}
	begin := q.Clock.Now()
	if cause, why := r.settle(t.Context(), signs{killed: true, why: "s0w0: killed by SIGKILL"}); cause != stage.Application || q.Clock.Now().Sub(begin) < settleLimit {
		t.Errorf("it is taken for %s after %s: %s", cause, q.Clock.Now().Sub(begin), why)
	}
	var texts []string
	for _, n := range said.Notes() {
		texts = append(texts, n.Text)
	}
	if want := []string{"s0w0: killed by SIGKILL; waiting up to 1m for the cloud to say whether it took a slice away"}; !slices.Equal(texts, want) {
		t.Errorf("said %q, want %q", texts, want)
	}
}

// If the user detaches while the job finds out why an attempt failed, the slices stay.
func TestAnInterruptCountsWhileALossIsJudged(t *testing.T) {
	away := make([]error, 50)
	for i := range away {
		away[i] = errAway
	}
	q, h := onHardCloud(map[string][]error{"get": away})
	ctx, cancel := context.WithCancelCause(t.Context())
	want := &stage.Interrupted{Signal: syscall.SIGINT, Answer: stage.Detach}
	q.Sink, q.Cloud = event.Discard, cancelling{h, func() { cancel(want) }}
	f := &follow.Following{Deps: follow.Deps{Reach: q.Reach}, Workers: &workers.Connected{IDs: []tpu.WorkerID{{}}}, Ends: []follow.Ending{{Known: true, Exit: launch.Exit{Code: 143, Signal: "TERM"}}}}
	r := newRunner(q.Deps, attempt.Options{}, true)
	r.ground, r.now, r.books.Restarts = q, &attempt.Attempt{Follow: f}, 1
	out := stage.Outcome{Code: 143, Started: true}
	for _, story := range []string{"during the first call", "before it"} {
		failure := r.inquest().judge(ctx, out, nil)
		if failure.Cause != stage.UserStop {
			t.Errorf("%s: it is taken for %v", story, failure)
		}
		if _, err := r.finish(out, nil, failure, ""); !errors.Is(err, want) {
			t.Errorf("%s: it ends with %v, want %v", story, err, want)
		}
	}
}

// A cancelling interrupts the job at its first call.
type cancelling struct {
	*hardCloud
	interrupt func()
}

func (c cancelling) Get(ctx context.Context, id string) (provision.Resource, error) {
	c.interrupt()
	return c.hardCloud.Get(ctx, id)
}

// A further request for slices does not wait for --valid-after again.
func TestTheTimeOfARequestIsWaitedForOnce(t *testing.T) {
	for _, tt := range []struct{ after, ran, want time.Duration }{
		{6 * time.Hour, 7 * time.Hour, 0},
		{6 * time.Hour, time.Hour, 5 * time.Hour},
		{0, time.Hour, 0},
	} {
		q, h := onHardCloud(map[string][]error{"wait": {errSuspended}})
		q.o.Request.ValidAfterDuration = tt.after
		q.o.Request.ValidAfterTime = q.Clock.Now().Add(30 * time.Minute)
		pay := func(*stage.Failure) error {
			<-q.Clock.After(tt.ran)
			return nil
		}
		if _, err := q.ready(t.Context(), pay, nil); err != nil || len(h.requests) != 2 {
			t.Fatal(err, len(h.requests))
		}
		first, again := h.requests[0], h.requests[1]
		if first.ValidAfterDuration != tt.after || first.ValidAfterTime.IsZero() || again.ValidAfterDuration != tt.want || !again.ValidAfterTime.IsZero() {
			t.Errorf("%s after a request for %s it is asked for %s, %s", tt.ran, tt.after, again.ValidAfterDuration, again.ValidAfterTime)
		}
	}
}

// If the answer to a request is lost, the request may have made slices. If the job cannot
// find out, it says so.
func TestWhatMayExistIsSaid(t *testing.T) {
	for _, tt := range []struct {
		err  error
		said string
	}{
		{errAway, "whether queued resource m exists is not known"},
		{&gcp.Error{Class: gcp.NotFound}, ""},
		{nil, "queued resource m was there before"},
	} {
		q, _ := onHardCloud(map[string][]error{"get": {tt.err}})
		notes := &testkit.Recorder{}
		q.Sink = notes
		teardown.NotOurs(t.Context(), q.Reach, "m", "was there before")
		if tt.said == "" && len(notes.Notes()) > 0 || tt.said != "" && !notes.Said(event.Warn, tt.said) {
			t.Errorf("%v: said %q", tt.err, notes.Notes())
		}
	}
}

// Before the first request, multihost tells the user the price and asks. For the same
// slices it does neither again. A job that loses slices which it has taken over tells the
// user what it requests, and asks nobody, because the user may be asleep.
func TestARequestIsAnnouncedAndConfirmedOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story           string
		worked          bool
		no              error
		changed         bool
		lines, asked    int
		declinedAtFirst bool
	}{
		{story: "the first request and one more", lines: 1, asked: 1},
		{story: "the further request is for something else", changed: true, lines: 2, asked: 1},
		{story: "slices that were taken over are lost", worked: true, lines: 1},
		{story: "the user says no", no: errors.New("no"), lines: 1, asked: 1, declinedAtFirst: true},
	} {
		var sink testkit.Recorder
		asked := 0
		q, _ := onHardCloud(nil)
		q.held.worked, q.Sink = tt.worked, &sink
		q.Confirm = func(context.Context, string) error {
			asked++
			return tt.no
		}
		var no *announce.Declined
		if err := q.announce(t.Context()); errors.As(err, &no) != tt.declinedAtFirst || !errors.Is(err, tt.no) {
			t.Errorf("%s: %v", tt.story, err)
		}
		if tt.changed {
			q.o.Request.Tier = provision.Spot
		}
		if err := q.announce(t.Context()); err != nil {
			t.Errorf("%s: at the second time: %v", tt.story, err)
		}
		lines := 0
		for _, e := range sink.Events() {
			if _, ok := e.(event.Request); ok {
				lines++
			}
		}
		if lines != tt.lines || asked != tt.asked {
			t.Errorf("%s: %d lines, asked %d times, want %d and %d", tt.story, lines, asked, tt.lines, tt.asked)
		}
	}
}

// If the user answers no, a lost resource of an earlier runner stays as it is.
func TestNothingIsDeletedForARequestThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	q, h := onHardCloud(nil)
	q.held.worked = false
	q.Confirm = func(context.Context, string) error { return errors.New("no") }
	_, err := q.ready(t.Context(), func(*stage.Failure) error { return nil }, nil)
	testkit.Must(t, err)
	q.held.worked, h.fails, h.calls = false, map[string][]error{"wait": {errSuspended}}, nil
	_, err = q.ready(t.Context(), func(*stage.Failure) error { return nil }, nil)
	var no *announce.Declined
	if !errors.As(err, &no) || strings.Join(h.calls, " ") != "wait get" {
		t.Errorf("ended with %v after the calls %v, want a no after wait and get", err, h.calls)
	}
}
