package provider_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A shop is a provider with one resource of one slice.
type shop struct {
	kind, id string
	err      error
	asked    *[]string
}

func (s shop) note(format string, args ...any) {
	*s.asked = append(*s.asked, s.kind+" "+fmt.Sprintf(format, args...))
}

func (s shop) slices() []tpu.Slice {
	if s.err != nil {
		return nil
	}
	return []tpu.Slice{{Name: s.id, Workers: make([]tpu.Worker, 1)}}
}

func (s shop) resource() provision.Resource {
	return provision.Resource{ID: s.id, Commands: s.Undoing("").Commands, Slices: s.slices()}
}

func (s shop) Get(_ context.Context, id string) (provision.Resource, error) {
	if s.err != nil || id != s.id {
		return provision.Resource{}, cmp.Or(s.err, provision.ErrNotFound)
	}
	return s.resource(), nil
}

func (s shop) List(context.Context) ([]provision.Resource, error) {
	if s.err != nil {
		return nil, s.err
	}
	return []provision.Resource{s.resource()}, nil
}

func (s shop) Create(_ context.Context, r provision.Request) (provision.Resource, bool, error) {
	s.note("create %s", r.ID)
	return provision.Resource{}, true, nil
}

func (s shop) Restart(_ context.Context, id string) error {
	s.note("restart %s", id)
	return nil
}

func (s shop) Delete(_ context.Context, id string, _ provision.DeleteOptions) (bool, error) {
	s.note("delete %s", id)
	return id == s.id, s.err
}

func (s shop) Slices(context.Context) ([]tpu.Slice, error) { return s.slices(), s.err }

func (s shop) HostKeys(_ context.Context, slice tpu.Slice, _ int) ([]string, string, error) {
	s.note("keys of %s", slice.Name)
	return nil, "", nil
}

func (s shop) Admit(_ context.Context, slice tpu.Slice, _ provision.Login) (string, bool, error) {
	s.note("admit to %s", slice.Name)
	return "", false, nil
}

func (s shop) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: s.kind}, Parts: []provision.Part{{Look: s.kind}}, Peers: provision.Peers{Read: s.kind}}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var asked []string
	j := provider.Join(event.Discard, shop{"box", "b", nil, &asked}, shop{"tin", "a", nil, &asked})
	all, err := j.Slices(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("got %+v, %v", all, err)
	}
	for _, s := range all {
		_, _, err := j.HostKeys(ctx, s, 0)
		_, _, err2 := j.Admit(ctx, s, provision.Login{})
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
		}
	}
	if list, err := j.List(ctx); err != nil || len(list) != 2 || list[0].ID != "a" || list[0].Slices[0].Provider != "tin" {
		t.Errorf("got %+v, %v", list, err)
	}
	for id, kind := range map[string]string{"a": "tin", "b": "box"} {
		if r, err := j.Get(ctx, id); err != nil || r.Commands.Kind != kind || r.Slices[0].Provider != kind {
			t.Errorf("%s: got %+v, %v", id, r, err)
		}
	}
	if _, err := j.Get(ctx, "c"); !errors.Is(err, provision.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	_, _, err = j.Create(ctx, provision.Request{ID: "n"})
	deleted, err2 := j.Delete(ctx, "a", provision.DeleteOptions{})
	if err := errors.Join(err, err2, j.Restart(ctx, "a")); err != nil || !deleted {
		t.Errorf("got %v, %v", deleted, err)
	}
	if got, want := fmt.Sprint(asked), "[box keys of b box admit to b tin keys of a tin admit to a box create n tin delete a tin restart a]"; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if j.Undoing("").Commands.Kind != "box" || j.Undoing("c").Commands.Kind != "box" {
		t.Error("the words are not those of the first provider")
	}
	if u := j.Undoing("a"); u.Commands.Kind != "tin" || u.Parts[0].Look != "tin" || u.Peers.Read != "tin" {
		t.Errorf("what undoes a resource of the second provider: %+v", u)
	}
}

// A list continues without a provider that refuses, and without the second provider if that is
// unavailable. It warns once. If a provider does not answer, a resource that the others do not
// have does not count as gone.
func TestJoinWithoutAnswers(t *testing.T) {
	t.Parallel()
	var asked []string
	denied, busy, broken := &gcp.Error{Class: gcp.Permission}, &gcp.Error{Class: gcp.Unavailable}, errors.New("broken")
	for name, c := range map[string]struct {
		first, second error
		want          error  // error of the lists
		slices        string // names of the slices in the lists
		lost          error  // the error for a resource that no provider shows
	}{
		"may not see the second":    {nil, denied, nil, "b", denied},
		"the second is unavailable": {nil, busy, nil, "b", busy},
		"the second is broken":      {nil, broken, broken, "", broken},
		"may not see the first":     {denied, nil, nil, "a", denied},
		"may see none":              {denied, denied, denied, "", denied},
		"the first is unavailable":  {busy, nil, busy, "", busy},
	} {
		var notes []event.Event
		sink := event.SinkFunc(func(e event.Event) { notes = append(notes, e) })
		j := provider.Join(sink, shop{"box", "b", c.first, &asked}, shop{"tin", "a", c.second, &asked})
		all, err := j.Slices(t.Context())
		if got := namesOf(all); !errors.Is(err, c.want) || got != c.slices {
			t.Errorf("%s: got slices %q, %v", name, got, err)
		}
		if list, err := j.List(t.Context()); !errors.Is(err, c.want) || len(list) != len(c.slices) {
			t.Errorf("%s: got %+v, %v", name, list, err)
		}
		if want := len(c.slices); len(notes) != want {
			t.Errorf("%s: %d notes, want %d: %+v", name, len(notes), want, notes)
		}
		if c.want == nil && j.Unseen("tin") != c.second {
			t.Errorf("%s: unseen because of %v", name, j.Unseen("tin"))
		}
		if _, err := j.Get(t.Context(), "none"); !errors.Is(err, c.lost) {
			t.Errorf("%s: got %v, want %v", name, err, c.lost)
		}
		if deleted, err := j.Delete(t.Context(), "none", provision.DeleteOptions{}); deleted || !errors.Is(err, c.lost) {
			t.Errorf("%s: deleted: %v, %v, want %v", name, deleted, err, c.lost)
		}
		if c.slices != "" {
			if deleted, err := j.Delete(t.Context(), c.slices, provision.DeleteOptions{}); err != nil || !deleted {
				t.Errorf("%s: delete %s: %v, %v", name, c.slices, deleted, err)
			}
		}
		if len(c.slices) == 1 && len(notes) != 1 {
			t.Errorf("%s: it warns again: %+v", name, notes)
		}
	}
}

func namesOf(all []tpu.Slice) (names string) {
	for _, s := range all {
		names += s.Name
	}
	return names
}

// Joined does not make a second resource of one name. If two exist, it deletes neither.
func TestTwins(t *testing.T) {
	t.Parallel()
	var asked []string
	box, tin := shop{"box", "a", nil, &asked}, shop{"tin", "a", nil, &asked}
	var twin *provider.TwinError
	for name, j := range map[string]*provider.Joined{
		"create at the first":  provider.Join(event.Discard, shop{"box", "b", nil, &asked}, tin),
		"create at the second": provider.Join(event.Discard, box, shop{"tin", "b", nil, &asked}).LedBy(shop{"tin", "b", nil, &asked}),
	} {
		if _, created, err := j.Create(t.Context(), provision.Request{ID: "a"}); created || !errors.As(err, &twin) || len(twin.Has) != 1 {
			t.Errorf("%s: got %v, %v", name, created, err)
		}
	}
	both := provider.Join(event.Discard, box, tin)
	deleted, err := both.Delete(t.Context(), "a", provision.DeleteOptions{})
	if !errors.As(err, &twin) || deleted {
		t.Fatalf("got %v, %v", deleted, err)
	}
	if got, want := twin.Error(), `delete "a": a box and a tin of this name exist`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(asked) > 0 {
		t.Errorf("asked %v", asked)
	}
	unasked := provider.Join(event.Discard, shop{"box", "b", nil, &asked}, shop{"tin", "a", errors.New("broken"), &asked})
	if _, created, err := unasked.Create(t.Context(), provision.Request{ID: "a"}); err != nil || !created {
		t.Errorf("if the other one cannot be asked: %v, %v", created, err)
	}
}

func TestDoomed(t *testing.T) {
	asked := []string{}
	first, second := shop{kind: "one", id: "a", asked: &asked}, shop{kind: "two", id: "b", asked: &asked}
	j := provider.Join(event.Discard, first, ruin{second})
	for id, kind := range map[string]string{"a": "one", "b": "two"} {
		if res, err := j.Doomed(t.Context(), id); err != nil || res.Commands.Kind != kind {
			t.Errorf("%s: got %+v, %v", id, res, err)
		}
	}
	if _, err := j.Doomed(t.Context(), "c"); !errors.Is(err, provision.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// A ruin lists a resource that has no slices any more.
type ruin struct{ shop }

func (ruin) Get(context.Context, string) (provision.Resource, error) {
	return provision.Resource{}, provision.ErrNotFound
}

// A resource or slice has the words of its own provider, however it was found.
func TestAFoundResourceHasTheWordsOfItsProvider(t *testing.T) {
	t.Parallel()
	var asked []string
	for name, find := range map[string]func(*provider.Joined) error{
		"get": func(j *provider.Joined) error {
			_, err := j.Get(t.Context(), "a")
			return err
		},
		"list": func(j *provider.Joined) error {
			_, err := j.List(t.Context())
			return err
		},
		"told": func(j *provider.Joined) error {
			j.Assume("tin", "a")
			j.Assume("", "n") // a resource that nobody knows
			return nil
		},
	} {
		j := provider.Join(event.Discard, shop{"box", "b", nil, &asked}, shop{"tin", "a", nil, &asked})
		if err := find(j); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := provision.NameOf(j, "a"); got != "tin a" {
			t.Errorf("%s: it is called %q", name, got)
		}
		if _, _, err := j.Create(t.Context(), provision.Request{ID: "n"}); err != nil {
			t.Error(err)
		}
		if got := provision.NameOf(j, "n"); got != "box n" {
			t.Errorf("%s: what the first one makes is called %q", name, got)
		}
	}
	twins := provider.Join(event.Discard, shop{"box", "a", nil, &asked}, shop{"tin", "a", nil, &asked})
	if _, err := twins.List(t.Context()); err != nil || provision.NameOf(twins, "a") != "box a" {
		t.Errorf("one of two is called %q, %v", provision.NameOf(twins, "a"), err)
	}
}

// If a provider has shown slices and later refuses to list them, the list fails. The slices must
// not count as gone.
func TestALostRightHidesNothingThatWasSeen(t *testing.T) {
	t.Parallel()
	var asked []string
	refusal := &gcp.Error{Class: gcp.Permission}
	for name, see := range map[string]func(*provider.Joined) error{
		"slices": func(j *provider.Joined) error {
			_, err := j.Slices(t.Context())
			return err
		},
		"list": func(j *provider.Joined) error {
			_, err := j.List(t.Context())
			return err
		},
		"get": func(j *provider.Joined) error {
			_, err := j.Get(t.Context(), "a")
			return err
		},
	} {
		tin := &shop{"tin", "a", nil, &asked}
		j := provider.Join(event.Discard, shop{"box", "b", nil, &asked}, tin)
		if err := see(j); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		tin.err = refusal
		_, err := j.Slices(t.Context())
		_, err2 := j.Get(t.Context(), "a")
		_, err3 := j.LedBy(tin).List(t.Context())
		_, err4 := j.Delete(t.Context(), "a", provision.DeleteOptions{})
		for _, err := range []error{err, err2, err3, err4} {
			if !errors.Is(err, refusal) {
				t.Errorf("%s: after that, got %v", name, err)
			}
		}
	}
}

// A user without rights on an API, and without slices there, does not get a warning about
// it from each command.
func TestARefusalIsAWarningWhereAllIsAskedFor(t *testing.T) {
	var asked []string
	for _, want := range []event.Level{event.Debug, event.Warn} {
		said := &testkit.Recorder{}
		j := provider.Join(said, shop{"box", "b", nil, &asked}, shop{"tin", "a", &gcp.Error{Class: gcp.Permission}, &asked})
		if want == event.Warn {
			j.Expect()
		}
		if _, err := j.Slices(t.Context()); err != nil || len(said.Notes()) != 1 || said.Notes()[0].Level != want {
			t.Errorf("got %+v, %v; want a note of level %s", said.Notes(), err, want)
		}
	}
}
