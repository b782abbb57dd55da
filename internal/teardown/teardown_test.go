package teardown

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

var (
	errAway = &gcp.Error{What: "call the API", Class: gcp.Unavailable}
	errGone = &gcp.Error{Class: gcp.NotFound}
	errNo   = &gcp.Error{What: "call the API", Class: gcp.Permission}
)

// A cloud is a provider of one resource. Each call returns the next prepared error. After the
// last one, calls succeed.
type cloud struct {
	provision.Provider
	life    provision.Life
	gets    []error
	deletes []error
	calls   []string
}

func (c *cloud) answer(name string, next *[]error) (err error) {
	c.calls = append(c.calls, name)
	if len(*next) > 0 {
		err, *next = (*next)[0], (*next)[1:]
	}
	return err
}

func (c *cloud) Get(context.Context, string) (provision.Resource, error) {
	return provision.Resource{ID: "m", Life: c.life, State: "ACTIVE", Labels: map[string]string{provision.LabelRun: "m"}}, c.answer("get", &c.gets)
}

func (c *cloud) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	if err := c.answer("delete", &c.deletes); err != nil {
		return false, err
	}
	c.gets = append(c.gets, errGone)
	return true, nil
}

func (c *cloud) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource", Delete: "multihost qr delete " + id + " --force"}}
}

// A parted is a cloud whose resources have parts besides their slices.
type parted struct{ *cloud }

func (p parted) Sweep(_ context.Context, id, run string, _ bool) error {
	return p.answer("sweep "+id+" of "+run, &p.deletes)
}

// After somebody else has deleted the slices, the job deletes what is left of their
// request.
func TestPartsThatAreLeftAreSwept(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errNo} {
		said, c := &testkit.Recorder{}, &cloud{gets: []error{errGone}, deletes: []error{err}}
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: testkit.NewJumpClock()}, Cloud: parted{c}}
		_, failed := (&Job{Reach: d, ID: "m", Run: "r"}).End(t.Context(), stage.Outcome{Started: true}, nil)
		if got := strings.Join(c.calls, ", "); got != "get, sweep m of r" || failed != nil || said.Said(event.Warn, "parts of queued resource m, which cost nothing, may be left") != (err != nil) {
			t.Errorf("%v: calls %s, %v, said %v", err, got, failed, said.Notes())
		}
	}
}

func TestWhySlicesStay(t *testing.T) {
	t.Parallel()
	sighup, sigterm := &stage.Interrupted{Signal: syscall.SIGHUP}, &stage.Interrupted{Signal: syscall.SIGTERM}
	failed, ran := stage.Outcome{Started: true, Code: 1}, stage.Outcome{Started: true}
	expired := &stage.Error{Stage: stage.Timeout, Err: stage.ErrExpired}
	partly := &provision.DeadlineError{Phase: provision.PhaseSlices, Missing: make([]provision.Missing, 1)}
	for _, tt := range []struct {
		story string
		k     Keeping
		out   stage.Outcome
		err   error
		done  bool
		why   string
		hold  bool
	}{
		{story: "a success", k: Keeping{OnFailure: true}, out: ran},
		{story: "a failure", out: failed},
		{story: "--detach", out: stage.Outcome{Started: true, Detached: true}, why: "the run goes on"},
		{story: "--keep", k: Keeping{Always: true}, out: ran, why: "--keep"},
		{story: "--keep when the time to live is over", k: Keeping{Always: true}, out: ran, err: expired},
		{story: "logs that are not whole here", out: stage.Outcome{Started: true, KeepLogs: true}, why: "logs are whole on its workers only"},
		{story: "the terminal is gone while it runs", out: ran, err: sighup, why: "the terminal is gone (SIGHUP), the run goes on"},
		{story: "the terminal is gone before it runs", err: sighup, why: "the terminal is gone (SIGHUP): the same command goes on with it"},
		{story: "a stop", k: Keeping{OnFailure: true}, out: failed, err: sigterm},
		{story: "an answer to stop", k: Keeping{OnFailure: true}, out: failed, err: &stage.Interrupted{Signal: syscall.SIGINT, Answer: stage.Stop}},
		{story: "--keep, and some slices did not come", k: Keeping{Always: true}, err: partly},
		{story: "--keep-on-failure, and some slices did not come", k: Keeping{OnFailure: true}, err: partly},
		{story: "--keep-on-failure", k: Keeping{OnFailure: true}, out: failed, why: "--keep-on-failure"},
		{story: "--keep-on-failure after an error", k: Keeping{OnFailure: true}, err: errNo, why: "--keep-on-failure"},
		{story: "--keep-on-failure for an hour", k: Keeping{OnFailure: true, For: time.Hour}, out: failed, hold: true},
		{story: "--keep-on-failure for an hour, but it must end", k: Keeping{OnFailure: true, For: time.Hour}, out: failed, done: true},
	} {
		if why, hold := tt.k.decide(tt.out, tt.err, tt.done); why != tt.why || hold != tt.hold {
			t.Errorf("%s: %q, hold %v; want %q, %v", tt.story, why, hold, tt.why, tt.hold)
		}
	}
}

func TestTheEndOfAJob(t *testing.T) {
	t.Parallel()
	failed, ran := stage.Outcome{Started: true, Code: 1}, stage.Outcome{Started: true}
	slow := errors.New("no capacity")
	for _, tt := range []struct {
		story  string
		cloud  cloud
		k      Keeping
		out    stage.Outcome
		err    error
		leaves string // why the resource of an earlier runner stays
		taken  string // why another runner's command keeps the slices
		remade bool
		calls  string
		said   string
		hint   string // hint for the case that the lease has ended
		fails  bool   // the teardown returns an error
	}{
		{story: "a success", out: ran, calls: "get delete get", said: "queued resource m and its slices are deleted: nothing of this job is billed"},
		{story: "the API is away for a while", cloud: cloud{gets: []error{errAway, errAway}, deletes: []error{errAway}}, out: ran, calls: "get get get delete delete get", said: "nothing of this job is billed"},
		{story: "somebody has deleted it", cloud: cloud{gets: []error{errGone}}, out: ran, calls: "get", said: "queued resource m is gone: nothing of this job is billed"},
		{story: "it is gone after an error", cloud: cloud{gets: []error{errGone}}, err: slow, calls: "get", said: "queued resource m is gone: ", hint: "longer than 1h (--lease)"},
		{story: "it may not be read", cloud: cloud{gets: []error{errNo}}, out: ran, calls: "get", fails: true},
		{story: "it may not be deleted", cloud: cloud{deletes: []error{errNo}}, out: ran, calls: "get delete", fails: true},
		{story: "it was gone, and somebody has made it again", err: slow, remade: true, calls: "get", said: "it was deleted, and another command has made it again"},
		{story: "it was gone, and is", cloud: cloud{gets: []error{errGone}}, err: slow, remade: true, calls: "get", said: "queued resource m is gone: nothing of this job is billed", hint: "longer than 1h (--lease)"},
		{story: "an earlier runner's", err: slow, leaves: "nobody knows", calls: "get", said: "queued resource m stays as it was, "},
		{story: "--keep", k: Keeping{Always: true}, out: ran, calls: "get", said: "queued resource m stays (--keep), "},
		{story: "--keep says how to delete it", k: Keeping{Always: true}, out: ran, calls: "get", said: "delete it with: "},
		{story: "--detach", out: stage.Outcome{Started: true, Detached: true}, calls: "get", said: "end the command with: multihost stop m; "},
		{story: "--keep while it is being deleted", cloud: cloud{life: provision.Deleting}, k: Keeping{Always: true}, out: ran, calls: "get", said: "queued resource m is being deleted, and is billed until it is gone"},
		{story: "another runner's command", out: failed, taken: "a command lives on it", calls: "get", said: "queued resource m stays, state ACTIVE, and is billed once it has slices: a command lives on it"},
		{story: "another runner's command, before ours has started", err: slow, taken: "a command lives on it", calls: "get delete get", said: "nothing of this job is billed"},
		{story: "failed slices are kept for an hour", k: Keeping{OnFailure: true, For: time.Hour}, out: failed, calls: "get get delete get", said: "keeping the failed slices until "},
		{story: "they are kept, and a command is started on them", k: Keeping{OnFailure: true, For: time.Hour}, out: failed, taken: "a command lives on it", calls: "get get", said: "a command lives on it"},
		{story: "they are kept after an error, and a command is started on them", k: Keeping{OnFailure: true, For: time.Hour}, err: slow, taken: "a command lives on it", calls: "get get", said: "a command lives on it"},
		{story: "they are kept, and somebody deletes them", cloud: cloud{gets: []error{nil, errGone}}, k: Keeping{OnFailure: true, For: time.Hour}, out: failed, taken: "a command lives on it", calls: "get get", said: "queued resource m is gone: nothing of this job is billed"},
		{story: "somebody deletes them already", cloud: cloud{life: provision.Deleting}, k: Keeping{OnFailure: true, For: time.Hour}, out: failed, calls: "get delete get", said: "nothing of this job is billed"},
		{story: "somebody makes it again", cloud: cloud{gets: []error{nil, nil}}, out: ran, calls: "get delete get", said: "its slices are deleted: another command has made it again"},
		{story: "whether it is made again is not known", cloud: cloud{gets: []error{nil, errNo}}, out: ran, calls: "get delete get", said: "whether another command has made it again is not known"},
	} {
		said, last := &testkit.Recorder{}, 0
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: testkit.NewJumpClock()}, Place: provision.Place{Project: "p", Zone: "z"}, Cloud: &tt.cloud}
		j := &Job{Reach: d, ID: "m", Run: "m", Keeping: tt.k, Lease: time.Hour,
			Leaves:     func(context.Context, provision.Life, error) string { return tt.leaves },
			Taken:      func(context.Context) string { return tt.taken },
			Remade:     func(provision.Resource) bool { return tt.remade },
			WhoDeletes: func() string { return "its workers delete it" },
			Last:       func(provision.Resource) { last++ },
		}
		out, err := j.End(t.Context(), tt.out, tt.err)
		if got := strings.Join(tt.cloud.calls, " "); got != tt.calls {
			t.Errorf("%s: calls %s, want %s", tt.story, got, tt.calls)
		}
		if out != tt.out || tt.err != nil && !errors.Is(err, tt.err) || stage.Is(err, stage.Teardown) != tt.fails {
			t.Errorf("%s: %+v, %v", tt.story, out, err)
		}
		if deletes := strings.Contains(tt.calls, "delete"); (last == 1) != deletes {
			t.Errorf("%s: the last word before a deletion was said %d times", tt.story, last)
		}
		if tt.said != "" && !said.Said(event.Info, tt.said) && !said.Said(event.Warn, tt.said) {
			t.Errorf("%s: said %v, want %q", tt.story, said.Notes(), tt.said)
		}
		for _, n := range said.Notes() {
			if lease := strings.Contains(n.Hint, "(--lease)"); lease != (tt.hint != "") || !strings.Contains(n.Hint, tt.hint) {
				t.Errorf("%s: hint %q, want %q", tt.story, n.Hint, tt.hint)
			}
		}
	}
}

// If the user detaches while failed slices are kept, they stay. If the user stops, they are
// deleted.
func TestAnInterruptWhileFailedSlicesAreKept(t *testing.T) {
	t.Parallel()
	for answer, want := range map[stage.Answer]string{stage.Detach: "detached while failed slices were kept", stage.Stop: ""} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&stage.Interrupted{Signal: syscall.SIGINT, Answer: answer})
		j := &Job{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: gcp.SystemClock}, Cloud: &cloud{}}, ID: "m", Keeping: Keeping{OnFailure: true, For: time.Hour}}
		if why := j.hold(ctx); why != want {
			t.Errorf("%s: %q, want %q", answer, why, want)
		}
		if st := j.StatusOf(); !st.Kept.IsZero() || st.Resource != "" {
			t.Errorf("%s: status %+v", answer, st)
		}
	}
}

// An error keeps its advice only if it holds without the slices.
func TestAnErrorAfterTheSlicesAreDeleted(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("no capacity"), &launch.SecretError{}} {
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: event.Discard, Clock: testkit.NewJumpClock()}, Cloud: &cloud{}}
		j := &Job{Reach: d, ID: "m", Leaves: func(context.Context, provision.Life, error) string { return "" }, Taken: func(context.Context) string { return "" }, Remade: func(provision.Resource) bool { return false },
			WhoDeletes: func() string { return "" }, Last: func(provision.Resource) {}}
		_, got := j.End(t.Context(), stage.Outcome{}, err)
		var secret *launch.SecretError
		if same := got == err; same != errors.As(err, &secret) {
			t.Errorf("%T: ends with %T", err, got)
		}
	}
}

// attach says that the slices of a job are billed, and until when.
func TestWhatIsBilledOfARun(t *testing.T) {
	t.Parallel()
	all := []tpu.Slice{{Name: "m-0", QueuedResource: "m"}, {Name: "m-1", QueuedResource: "m"}, {Name: "x"}}
	for _, tt := range []struct {
		run  string
		held map[string]lease.Held
		err  error
		said string
	}{
		{run: "m", said: "queued resource m was made for this run: unless its job still runs somewhere to delete it, it stays and is billed"},
		{run: "m", held: map[string]lease.Held{"m": {Watched: true, Lease: time.Hour}}, said: "else its workers delete it 1h after the command has ended"},
		{run: "other"},
		{run: "m", err: errNo},
	} {
		said := &testkit.Recorder{}
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}, Cloud: &cloud{gets: []error{tt.err}}}
		SayBilled(t.Context(), d, tt.run, all, tt.held)
		if notes := said.Notes(); tt.said == "" && len(notes) > 0 || tt.said != "" && (len(notes) != 1 || !said.Said(event.Warn, tt.said)) {
			t.Errorf("%s, %v: said %v", tt.run, tt.err, notes)
		}
	}
}

// endless is a cloud whose deletion lasts as long as its context.
type endless struct {
	cloud
	begun chan struct{}
}

func (e *endless) Delete(ctx context.Context, _ string, _ provision.DeleteOptions) (bool, error) {
	close(e.begun)
	<-ctx.Done()
	return false, context.Cause(ctx)
}

// After a first signal during the deletion, the user learns at once what continues, and
// what a second signal does. After the second one, the message says what may be billed, and
// nothing about a canceled context.
func TestSignalsDuringTheDeletion(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} { // whether the first signal ended the run
		said, leave := &testkit.Recorder{}, make(chan struct{})
		c := &endless{begun: make(chan struct{})}
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock, Leave: leave}, Place: provision.Place{Project: "p", Zone: "z"}, Cloud: c}
		j := &Job{Reach: d, ID: "m", Leaves: func(context.Context, provision.Life, error) string { return "" }, Taken: func(context.Context) string { return "" },
			Remade: func(provision.Resource) bool { return false }, WhoDeletes: func() string { return "" }, Last: func(provision.Resource) {}}
		ctx, cancel := context.WithCancelCause(t.Context())
		signal := &stage.Interrupted{Signal: syscall.SIGTERM}
		if before {
			cancel(signal)
		}
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err = j.End(ctx, stage.Outcome{Started: true}, nil)
		}()
		<-c.begun
		if said.Said(event.Warn, "is being deleted") != before {
			t.Errorf("before the signal: %v", said.Notes())
		}
		cancel(signal)
		testkit.Eventually(t, "what goes on is said", func() bool {
			return said.Said(event.Warn, "terminated (SIGTERM): queued resource m is being deleted, and this goes on until it is done; another signal, such as Ctrl-C, ends this command at once: what is not deleted by then may stay, and is billed")
		})
		hint := "delete it with: multihost qr delete m --force --project=p --zone=z"
		if n := said.Notes(); len(n) != 1 || n[0].Hint != "then "+hint {
			t.Errorf("said %v", n)
		}
		close(leave)
		<-done
		var e *stage.Error
		if want := `teardown: delete queued resource "m": a second signal ended this command; it may still exist and be billed`; !errors.As(err, &e) || e.Error() != want || e.Hint() != hint {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
