package provider_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A shop sells one resource with one slice.
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
	return provision.Undoing{Commands: provision.Commands{Kind: s.kind}}
}

// Each call goes to the provider whose resource or slice it is about.
func TestJoin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var asked []string
	j := provider.Join(shop{"box", "b", nil, &asked}, shop{"tin", "a", nil, &asked})
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
	if got, want := fmt.Sprint(asked), "[box keys of b box admit to b tin keys of a tin admit to a box create n box delete a tin delete a tin restart a]"; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if j.Undoing("").Commands.Kind != "box" || j.Undoing("c").Commands.Kind != "box" {
		t.Error("the words are not those of the first provider")
	}
}

// Who may not see the slices of the second provider sees those of the first. Any other
// failure may hide slices, so it is told.
func TestJoinWithoutRights(t *testing.T) {
	t.Parallel()
	var asked []string
	denied, broken := &gcp.Error{Class: gcp.Permission}, errors.New("broken")
	for name, c := range map[string]struct {
		first, second error
		slices        int
		want          error
	}{
		"may not see the second": {nil, denied, 1, nil},
		"the second is broken":   {nil, broken, 0, broken},
		"may not see the first":  {denied, nil, 0, denied},
	} {
		j := provider.Join(shop{"box", "b", c.first, &asked}, shop{"tin", "a", c.second, &asked})
		all, err := j.Slices(t.Context())
		if !errors.Is(err, c.want) || len(all) != c.slices {
			t.Errorf("%s: got %+v, %v", name, all, err)
		}
		if list, err := j.List(t.Context()); !errors.Is(err, c.want) || len(list) != c.slices {
			t.Errorf("%s: got %+v, %v", name, list, err)
		}
		if c.first == nil {
			if _, err := j.Get(t.Context(), "b"); err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		}
		want := c.want
		if want == nil {
			want = provision.ErrNotFound
		}
		if _, err := j.Get(t.Context(), "none"); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
}

// What was found has the words of its own provider, however it was found.
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
	} {
		j := provider.Join(shop{"box", "b", nil, &asked}, shop{"tin", "a", nil, &asked})
		if err := find(j); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := provision.NameOf(j, "a"); got != "tin a" {
			t.Errorf("%s: it is called %q", name, got)
		}
		if _, _, err := j.Create(t.Context(), provision.Request{ID: "a"}); err != nil {
			t.Error(err)
		}
		if got := provision.NameOf(j, "a"); got != "box a" {
			t.Errorf("%s: what the first one makes is called %q", name, got)
		}
	}
	twins := provider.Join(shop{"box", "a", nil, &asked}, shop{"tin", "a", nil, &asked})
	if _, err := twins.List(t.Context()); err != nil || provision.NameOf(twins, "a") != "box a" {
		t.Errorf("one of two is called %q, %v", provision.NameOf(twins, "a"), err)
	}
}

// A provider that has shown slices and then refuses the question has not lost them: nobody
// may take them for gone.
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
		j := provider.Join(shop{"box", "b", nil, &asked}, tin)
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
