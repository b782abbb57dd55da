package announce

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A reader is a cloud with a readable policy.
type reader struct {
	cloud
	account  string
	bindings []gcp.Binding
	policy   error
	scopes   bool
}

func (r reader) DefaultServiceAccount(context.Context) string  { return r.account }
func (r reader) Policy(context.Context) ([]gcp.Binding, error) { return r.bindings, r.policy }
func (r reader) MayCallAPI(provision.Request) bool             { return r.scopes }
func (r reader) DeletionRoles() (string, []string) {
	return "q.delete", []string{"roles/q.admin", "roles/editor"}
}

func TestWhetherTheWorkersMayDelete(t *testing.T) {
	t.Parallel()
	editor := []gcp.Binding{{Role: "roles/editor", Members: []string{"serviceAccount:a@b"}}}
	for _, tt := range []struct {
		story   string
		cloud   provision.Provider
		deletes bool
		may     string // "": AskRight asks nothing
		warned  string
	}{
		{"no worker is to delete", reader{account: "a@b", scopes: true}, false, "", ""},
		{"a cloud that does not tell", cloud{}, true, "", ""},
		{"an editor", reader{account: "a@b", scopes: true, bindings: editor}, true, MayDelete, ""},
		{"no role", reader{account: "c@d", scopes: true, bindings: editor}, true, MayNotDelete, "add-iam-policy-binding p --member=serviceAccount:c@d --role=roles/q.admin"},
		{"a policy that cannot be read", reader{account: "a@b", scopes: true, policy: errors.New("denied")}, true, MayUnknown, ""},
		{"an account that is not known", reader{scopes: true}, true, MayUnknown, ""},
		{"scopes without the API", reader{account: "a@b"}, true, MayNotDelete, "add --scopes=cloud-platform"},
	} {
		said := &testkit.Recorder{}
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}, Place: provision.Place{Project: "p"}, Cloud: tt.cloud}
		answer, over := AskRight(t.Context(), d, provision.Request{}, tt.deletes)
		r := answer()
		over()
		if (r == nil) != (tt.may == "") || r != nil && r.May != tt.may {
			t.Errorf("%s: %+v, want %q", tt.story, r, tt.may)
		}
		TellRight(d, r, "q", WhenRunnerDies)
		hint := ""
		if said.Said(event.Warn, "the workers may not delete ") {
			hint = said.Notes()[0].Hint
		}
		if (hint == "") != (tt.warned == "") || !strings.Contains(hint, tt.warned) {
			t.Errorf("%s: said %v, want %q", tt.story, said.Notes(), tt.warned)
		}
	}
}

// A request for a missing resource is announced and confirmed. A network that the
// command makes has its own MTU.
func TestWhatIsAskedForIsAnnounced(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	for _, tt := range []struct {
		story string
		cloud cloud
		want  error
		lines int
	}{
		{"it is there", cloud{res: qr.Resource{State: "ACTIVE"}}, nil, 0},
		{"it is not there", cloud{err: &gcp.Error{Class: gcp.NotFound}}, no, 1},
	} {
		said := &testkit.Recorder{}
		v := &stage.Invocation{Sink: said, Clock: gcp.SystemClock, Confirm: func(context.Context, string) error { return no }}
		d := Deps{Reach: &workers.Reach{Invocation: v, Cloud: tt.cloud}}
		lines := func() (n int) {
			for _, e := range said.Events() {
				if _, ok := e.(event.Request); ok {
					n++
				}
			}
			return n
		}
		err := AskFor(t.Context(), d, provision.Request{ID: "q"})
		var declined *Declined
		if !errors.Is(err, tt.want) || errors.As(err, &declined) != (tt.want != nil) || lines() != tt.lines {
			t.Errorf("%s: %v, %d lines", tt.story, err, lines())
		}
		WouldAskFor(d, provision.Request{ID: "q"}, 0)
		if lines() != tt.lines+1 {
			t.Errorf("%s: a dry run says nothing", tt.story)
		}
		if mtu, err := MTUFor(t.Context(), d, provision.Request{}, &network.Options{MTU: 8896}); mtu != 8896 || err != nil {
			t.Errorf("%s: MTU %d", tt.story, mtu)
		}
	}
}

// placed is a cloud that says what its zone has.
type placed struct {
	cloud
	machine, reservation error
}

func (p placed) Machine(context.Context, tpu.Type) (string, error) { return "m", p.machine }
func (p placed) Image(context.Context, tpu.Type) (string, error)   { return "", nil }
func (p placed) Reserved(context.Context, string, tpu.Type, int) (provision.ReservedCapacity, error) {
	return provision.ReservedCapacity{}, p.reservation
}

// An only is a cloud whose only network is mtu9k.
type only struct{ err error }

func (o only) Show(_ context.Context, name string) (network.Info, error) {
	if name == "mtu9k" {
		return network.Info{Name: name, MTU: 8896}, nil
	}
	if o.err != nil {
		return network.Info{}, o.err
	}
	return network.Info{}, &network.MissingError{Network: name}
}

// If a request names something that does not exist, it is refused before its price is
// shown.
func TestWhatDoesNotExistIsRefusedBeforeThePrice(t *testing.T) {
	t.Parallel()
	gone, denied := &gcp.Error{What: "read", Class: gcp.NotFound}, &gcp.Error{What: "read", Class: gcp.Permission}
	noZone := errors.New(`The requested zone "z" is not supported.`)
	none := cloud{err: gone}
	for _, tt := range []struct {
		story string
		cloud provision.Provider
		nets  only
		r     provision.Request
		want  string // in the error; "": announced
	}{
		{"all is there", placed{cloud: none}, only{}, provision.Request{Network: "mtu9k", Reservation: "r"}, ""},
		{"the network", none, only{}, provision.Request{Network: "nope"}, `network "nope": not found`},
		{"the network, named by its path", none, only{}, provision.Request{Network: "projects/p/global/networks/nope"}, `network "nope": not found`},
		{"the default network", none, only{}, provision.Request{}, `network "default": not found`},
		{"a network of two", none, only{}, provision.Request{Interfaces: []provision.Interface{{Network: "mtu9k"}, {Network: "nope"}}}, `network "nope": not found`},
		{"the network of another project", none, only{}, provision.Request{Network: "projects/other/global/networks/nope"}, ""},
		{"a network that may not be read", none, only{denied}, provision.Request{Network: "nope"}, ""},
		{"the zone of the TPU API", cloud{err: noZone}, only{}, provision.Request{Network: "mtu9k"}, noZone.Error()},
		{"the machine type", placed{cloud: none, machine: gone}, only{}, provision.Request{Network: "mtu9k"}, "read"},
		{"a machine type that may not be read", placed{cloud: none, machine: denied}, only{}, provision.Request{Network: "mtu9k"}, ""},
		{"the reservation", placed{cloud: none, reservation: gone}, only{}, provision.Request{Network: "mtu9k", Reservation: "r"}, "read"},
		{"a reservation that may not be read", placed{cloud: none, reservation: denied}, only{}, provision.Request{Network: "mtu9k", Reservation: "r"}, ""},
		{"the network of what is there already", cloud{res: qr.Resource{State: "ACTIVE"}}, only{}, provision.Request{Network: "nope"}, "-"},
	} {
		said := &testkit.Recorder{}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}, Cloud: tt.cloud, Place: provision.Place{Project: "p", Zone: "z"}}, Networks: tt.nets}
		tt.r.ID = "q"
		err := AskFor(t.Context(), d, tt.r)
		if refused := tt.want != "" && tt.want != "-"; (err != nil) != refused || refused && !strings.Contains(err.Error(), tt.want) || len(said.Events()) > 0 != (tt.want == "") {
			t.Errorf("%s: %v; said %v", tt.story, err, said.Events())
		}
	}
}

func TestAShortRunIsWarnedOf(t *testing.T) {
	t.Parallel()
	for limit, warned := range map[time.Duration]bool{0: false, time.Minute: true, shortRun: false} {
		said := &testkit.Recorder{}
		Tell(said, event.Request{MaxRun: limit})
		if got := said.Said(event.Warn, "--max-run-duration=1m counts from the moment when the VMs begin to run"); got != warned || len(said.Events()) == 0 {
			t.Errorf("%s: said %v", limit, said.Notes())
		}
	}
}
