package renewal

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestWhatTheWorkersWillDo(t *testing.T) {
	t.Parallel()
	const after = "its workers delete it 1h after the command has ended, if nobody is attached"
	for want, h := range map[string]lease.Held{
		"":    {Lease: time.Hour},
		after: {Watched: true, Lease: time.Hour},
		after + "; after a failure they keep it (--keep-on-failure)":         {Watched: true, Lease: time.Hour, KeepOnFailure: true},
		after + "; after a failure 2h after it (--keep-on-failure)":          {Watched: true, Lease: time.Hour, KeepOnFailure: true, KeepFor: 2 * time.Hour},
		after + "; they delete it 24h after its request in any case (--ttl)": {Watched: true, Lease: time.Hour, TTL: 24 * time.Hour},
		"its workers delete it 24h after its request in any case (--ttl)":    {Watched: true, TTL: 24 * time.Hour},
	} {
		if got := Text(h, time.Time{}); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// A text that is true for several resources is shown once. The lease of one resource is
// shown even if another has none.
func TestWhatBecomesOfSeveralResources(t *testing.T) {
	t.Parallel()
	hour, day := lease.Held{Watched: true, TTL: time.Hour}, lease.Held{Watched: true, TTL: 24 * time.Hour}
	all := []tpu.Slice{{QueuedResource: "a"}, {QueuedResource: "a"}, {QueuedResource: "b"}, {}}
	for _, tt := range []struct {
		held map[string]lease.Held
		want string
	}{
		{nil, ""},
		{map[string]lease.Held{"a": hour}, Text(hour, time.Time{})},
		{map[string]lease.Held{"a": hour, "b": hour}, Text(hour, time.Time{})},
		{map[string]lease.Held{"a": hour, "b": day}, Text(hour, time.Time{}) + "; " + Text(day, time.Time{})},
	} {
		if got := whatBecomes(all, tt.held); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.held, got, tt.want)
		}
	}
}

type cloud struct{ provision.Provider }

func (cloud) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource"}}
}

// The user learns the effect of the lease once, and again after it has changed.
func TestALeaseIsToldOnce(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	clock := testkit.NewJumpClock()
	d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: clock}, Place: provision.Place{Project: "p"}, Cloud: cloud{}}}
	l := &Lease{Deps: d, terms: &Terms{Terms: lease.Terms{Run: "m", Lease: time.Hour, TTL: 24 * time.Hour}, Foreign: true}, holds: true, expires: clock.Now().Add(time.Hour)}
	team := &workers.Connected{Slices: []tpu.Slice{{QueuedResource: "m", Workers: make([]tpu.Worker, 3)}}, IDs: testkit.WorkerIDs(1, 3)}
	none := make([]error, 3)
	denied := []error{&lease.RightError{Status: 403, Account: "a@b", Text: "denied"}, &lease.RightError{Status: 403, Account: "a@b", Text: "denied"}, nil}
	l.tell(team, none, denied, []error{nil, nil, errors.New("no port")})
	for _, want := range []string{"s0w[0-1] may not delete queued resource m", "s0w2 and the other workers cannot tell each other", "have a startup script that is not ours"} {
		if !said.Said(event.Warn, want) {
			t.Errorf("%q is not said: %v", want, said.Notes())
		}
	}
	for _, want := range []string{"the workers delete queued resource m 1h after the command has ended (--lease)", "is deleted at "} {
		if !said.Said(event.Info, want) {
			t.Errorf("%q is not said: %v", want, said.Notes())
		}
	}
	before := len(said.Notes())
	l.tell(team, none, denied, []error{nil, nil, errors.New("no port")})
	if more := said.Notes()[before:]; len(more) > 0 {
		t.Errorf("said again: %v", more)
	}
	l.tell(team, []error{errors.New("disk full"), nil, nil}, none, none)
	if !said.Said(event.Warn, "s0w0: nobody there will delete queued resource m if this machine dies: disk full") {
		t.Errorf("said %v", said.Notes())
	}
	if got := l.WhoDeletes(); !strings.HasPrefix(got, "its workers delete it 1h after") {
		t.Errorf("who deletes: %q", got)
	}
}

func TestWhatGivesTheRightToDelete(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		cure string
	}{
		{errors.New("broken"), ""},
		{&lease.RightError{Status: 403, Text: "ACCESS_TOKEN_SCOPE_INSUFFICIENT"}, "--scopes=cloud-platform"},
		{&lease.RightError{Status: 403, Account: "a@b"}, "add-iam-policy-binding p --member=serviceAccount:a@b"},
		{&lease.RightError{Status: 500}, ""},
	} {
		if got := rightCure(tt.err, "p", "roles/tpu.admin"); (got == "") != (tt.cure == "") || !strings.Contains(got, tt.cure) {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.cure)
		}
	}
	if got := rightCure(&lease.RightError{Status: 403, Account: "a@b"}, "p", ""); got != "" {
		t.Errorf("where the right is another one: %q", got)
	}
}

// The end of the time to live ends the waits that depend on it. Afterwards, the lease knows
// that the time has passed.
func TestTheTimeToLive(t *testing.T) {
	t.Parallel()
	clock := testkit.NewJumpClock()
	var none *Lease
	if none.Expired() != nil || none.WhoDeletes() != "" || none.Arm(t.Context(), nil) != nil {
		t.Error("no lease does something")
	}
	none.Leave(t.Context(), nil, 0)
	l := &Lease{Deps: Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock}}}, terms: &Terms{Terms: lease.Terms{TTL: time.Hour}}}
	ctx, over := l.UntilExpiry(t.Context())
	if over(); ctx != t.Context() && ctx.Err() != nil || l.Expired() != nil {
		t.Error("a lease without an end has ended")
	}
	l.expires = clock.Now().Add(time.Minute)
	if l.Expired() != nil {
		t.Error("it has ended too early")
	}
	ctx, over = l.UntilExpiry(t.Context()) // this clock skips every wait
	defer over()
	<-ctx.Done()
	if err := l.Expired(); !errors.Is(err, stage.ErrExpired) || !stage.Is(err, stage.Timeout) || !strings.Contains(err.Error(), "--ttl=1h") {
		t.Errorf("it has ended with %v", err)
	}
}

func TestLeasesByResource(t *testing.T) {
	t.Parallel()
	team := &workers.Connected{Slices: []tpu.Slice{{QueuedResource: "m"}, {QueuedResource: "n"}, {}}, IDs: testkit.WorkerIDs(3, 1)}
	held := HeldBy(team, []lease.Held{{Watched: true, Lease: time.Hour}, {}, {Watched: true}})
	if len(held) != 1 || held["m"].Lease != time.Hour {
		t.Errorf("held %v", held)
	}
}

// A worker that cannot hold the lease is named, and the run continues.
func TestALeaseThatNoWorkerHolds(t *testing.T) {
	t.Parallel()
	fleet := localworker.Fleet{}
	slice := fleet.Slice(t, "m", 1)
	slice.QueuedResource = "m"
	on, said := onworkers.Deps(t, fleet, cloud{})
	d := Deps{Reach: on.Reach}
	team, err := d.Connect(t.Context(), tpu.Selection{Slices: []tpu.Slice{slice}}, nil)
	testkit.Must(t, err)
	defer team.Close()
	terms := &Terms{Terms: lease.Terms{Run: "m", Lease: time.Hour, Adopt: time.Hour, Undoing: cloud{}.Undoing("m")}}
	l := &Lease{Deps: d, Terms: func() *Terms { return terms }}
	if err := l.Arm(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	if !said.Said(event.Warn, "s0w0: nobody there will delete queued resource m if this machine dies: ") || l.WhoDeletes() != "" {
		t.Errorf("said %v; %q", said.Notes(), l.WhoDeletes())
	}
	l.Leave(t.Context(), team, time.Minute)
	if held := Attach(t.Context(), d, team, "m")(); len(held) != 0 {
		t.Errorf("held %v", held)
	}
	if held := HeldBy(team, Looks(t.Context(), team, d.Agents.Sums(), "m")); len(held) != 0 {
		t.Errorf("held %v", held)
	}
	terms = nil
	if err := l.Arm(t.Context(), team); err != nil || l.terms != nil {
		t.Errorf("without terms: %v", err)
	}
}

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// If the workers hold no lease, the text names the end that the provider sets.
func TestABoundThatNoWorkerKeeps(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 11, 30, 18, 0, 0, 0, time.Local)
	const end = "its slices are taken away at Mon 18:00:00 (--max-run-duration)"
	if got := (&Lease{terms: &Terms{}, until: until}).WhoDeletes(); got != end {
		t.Errorf("who deletes: %q", got)
	}
	if got := Text(lease.Held{Watched: true, TTL: time.Hour}, until); got != "its workers delete it 1h after its request in any case (--ttl); "+end {
		t.Errorf("got %q", got)
	}
}
