package provider

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Joined makes several providers look like one. The first provider makes what is requested,
// and its words are used if no resource is known. Joined finds what exists, whichever
// provider made it. Such a resource then has the words of its own provider.
type Joined struct {
	provision.Provider // the first one
	all                []provision.Provider
	*memory
}

// A memory is what a Joined has found. It is safe for concurrent use.
type memory struct {
	mu    sync.Mutex
	owner map[string]provision.Provider // who had a resource of this name when it was last seen
	shows map[int]bool                  // the places of providers that have shown something
}

var (
	_ provision.Explainer  = (*Joined)(nil)
	_ provision.Doorkeeper = (*Joined)(nil)
)

// Join returns the slices of several providers in one list. Each calls its resources by a
// word of its own, Undoing("").Commands.Kind, which Joined notes in its slices. If the user
// has no right to see the slices of the second or a later provider, Join leaves these out.
func Join(first provision.Provider, others ...provision.Provider) *Joined {
	return &Joined{first, append([]provision.Provider{first}, others...), &memory{owner: map[string]provision.Provider{}, shows: map[int]bool{}}}
}

// Unwrap returns the first provider.
func (j *Joined) Unwrap() provision.Provider { return j.Provider }

// of returns the provider whose resources are called kind; the first one if there is none.
func (j *Joined) of(kind string) provision.Provider {
	for _, p := range j.all {
		if p.Undoing("").Commands.Kind == kind {
			return p
		}
	}
	return j.Provider
}

// mark notes whose slices these are.
func mark(list []tpu.Slice, p provision.Provider) []tpu.Slice {
	for i := range list {
		list[i].Provider = p.Undoing("").Commands.Kind
	}
	return list
}

// note remembers that the provider at place i shows a resource of this name.
func (j *Joined) note(i int, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.memory.owner[id], j.shows[i] = j.all[i], true
}

// Undoing implements provision.Provider. The commands are those of the provider that had the
// resource when it was last seen.
func (j *Joined) Undoing(id string, slices ...string) provision.Undoing {
	u := j.Provider.Undoing(id, slices...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.memory.owner[id]; p != nil {
		u.Commands = p.Undoing(id).Commands
	}
	return u
}

// Create implements provision.Provider: the first one makes the resource.
func (j *Joined) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	j.mu.Lock()
	j.memory.owner[r.ID] = j.Provider
	j.mu.Unlock()
	return j.Provider.Create(ctx, r)
}

// seen reports whether the error of the provider at place i hides nothing that the user may
// see.
func (j *Joined) seen(i int, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return err == nil || i > 0 && !j.shows[i] && gcp.ClassOf(err) == gcp.Permission
}

// Slices implements provision.Provider.
func (j *Joined) Slices(ctx context.Context) ([]tpu.Slice, error) {
	all := []tpu.Slice{}
	for i, p := range j.all {
		list, err := p.Slices(ctx)
		if !j.seen(i, err) {
			return nil, err
		}
		if len(list) > 0 {
			j.mu.Lock()
			j.shows[i] = true
			j.mu.Unlock()
		}
		all = append(all, mark(list, p)...)
	}
	return all, nil
}

// List implements provision.Provider.
func (j *Joined) List(ctx context.Context) ([]provision.Resource, error) {
	all := []provision.Resource{}
	listed := map[string]bool{}
	for i, p := range j.all {
		list, err := p.List(ctx)
		if !j.seen(i, err) {
			return nil, err
		}
		for _, r := range list {
			mark(r.Slices, p)
			if !listed[r.ID] { // of two, Get describes the first one
				listed[r.ID] = true
				j.note(i, r.ID)
			}
		}
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b provision.Resource) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// Get implements provision.Provider: the first provider that has a resource of this name
// describes it.
func (j *Joined) Get(ctx context.Context, id string) (provision.Resource, error) {
	_, r, err := j.Owner(ctx, id)
	return r, err
}

// Owner returns the provider that has a resource of this name, and the resource. If no
// provider has one, Owner returns the first provider and ErrNotFound.
func (j *Joined) Owner(ctx context.Context, id string) (provision.Provider, provision.Resource, error) {
	var none error
	for i, p := range j.all {
		r, err := p.Get(ctx, id)
		mark(r.Slices, p)
		switch {
		case err == nil, r.ID != "":
			j.note(i, id)
			return p, r, err
		case i == 0 && !errors.Is(err, provision.ErrNotFound), !errors.Is(err, provision.ErrNotFound) && !j.seen(i, err):
			return p, r, err
		case i == 0:
			none = err
		}
	}
	return j.Provider, provision.Resource{}, none
}

// LedBy returns the same with p, one of them, as the first one.
func (j *Joined) LedBy(p provision.Provider) *Joined { return &Joined{p, j.all, j.memory} }

// Restart implements provision.Provider.
func (j *Joined) Restart(ctx context.Context, id string) error {
	p, _, err := j.Owner(ctx, id)
	if err != nil {
		return err
	}
	return p.Restart(ctx, id)
}

// Delete implements provision.Provider.
func (j *Joined) Delete(ctx context.Context, id string, o provision.DeleteOptions) (bool, error) {
	for i, p := range j.all {
		deleted, err := p.Delete(ctx, id, o)
		if deleted || !j.seen(i, err) {
			return deleted, err
		}
	}
	return false, nil
}

// HostKeys implements provision.Provider.
func (j *Joined) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	return j.of(s.Provider).HostKeys(ctx, s, worker)
}

// Admit implements provision.Provider.
func (j *Joined) Admit(ctx context.Context, s tpu.Slice, l provision.Login) (user string, changed bool, err error) {
	return j.of(s.Provider).Admit(ctx, s, l)
}

// Door implements provision.Doorkeeper. If the provider of the slice is no Doorkeeper, Door
// returns the zero Door.
func (j *Joined) Door(ctx context.Context, s tpu.Slice, l provision.Login) (provision.Door, error) {
	keeper, ok := provision.As[provision.Doorkeeper](j.of(s.Provider))
	if !ok {
		return provision.Door{}, nil
	}
	return keeper.Door(ctx, s, l)
}

// Explain implements provision.Explainer.
func (j *Joined) Explain(ctx context.Context, r provision.Resource, waited time.Duration) provision.Explanation {
	if e, ok := provision.As[provision.Explainer](j.of(r.Commands.Kind)); ok {
		return e.Explain(ctx, r, waited)
	}
	return provision.Explanation{}
}
