package announce

import (
	"context"
	"errors"
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

// A reader is a cloud whose policy can be read.
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
		may     string // "" if AskRight asks nothing
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
		if mtu := MTUFor(t.Context(), d, provision.Request{}, &network.Options{MTU: 8896}); mtu != 8896 {
			t.Errorf("%s: MTU %d", tt.story, mtu)
		}
	}
}
