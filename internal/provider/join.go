package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Joined makes several providers look like one. The first provider makes what is requested,
// and its words are used while no resource is known. Joined finds what exists, whichever
// provider made it, and keeps the words of that provider.
type Joined struct {
	provision.Provider // the first one
	all                []provision.Provider
	*memory
}

// A memory is what a Joined has found out. It is safe for concurrent use.
type memory struct {
	mu    sync.Mutex
	owner map[string]provision.Provider // the provider that had a resource of this name when it was last seen
	shows map[int]bool                  // indexes of providers that have shown something

	sink   event.Sink
	warned map[int]bool     // indexes of providers without an answer, about which the user knows
	asked  bool             // the user asks for what all providers have; see Expect
	unseen map[string]error // by kind: why the last call of Slices has no slices of a provider
}

var (
	_ provision.Explainer  = (*Joined)(nil)
	_ provision.Doorkeeper = (*Joined)(nil)
	_ provision.Partial    = (*Joined)(nil)

	_ provision.Numberer = (*Joined)(nil)
)

// besideLimit is how long Joined waits for the list of a provider that it does not need.
// The client of an API repeats a failed call for minutes, and a command on slices of
// another provider would wait that long.
const besideLimit = 30 * time.Second

// againLimit replaces besideLimit for a provider that did not answer before: a long command
// lists the slices many times.
const againLimit = 5 * time.Second

var errBeside = fmt.Errorf("no answer in %v", besideLimit)

// A TwinError says that several providers have a resource of the same name, or would have.
type TwinError struct {
	Verb string               // the refused action: "create", "delete"
	ID   string               // the name
	Has  []provision.Commands // commands for the existing resources
}

func (e *TwinError) Error() string {
	kinds := make([]string, len(e.Has))
	for i, c := range e.Has {
		kinds[i] = "a " + c.Kind
	}
	if len(kinds) == 1 {
		return fmt.Sprintf("%s %q: %s of this name exists", e.Verb, e.ID, kinds[0])
	}
	return fmt.Sprintf("%s %q: %s of this name exist", e.Verb, e.ID, strings.Join(kinds, " and "))
}

// Fault returns fault.Unavailable.
func (e *TwinError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns what to do.
func (e *TwinError) Hint() string {
	if len(e.Has) == 1 {
		return "choose another name, or look at it with: " + e.Has[0].Show
	}
	for _, c := range e.Has { // a command that works on one provider only does not touch the other's resource
		if !strings.HasPrefix(c.Delete, "multihost slices ") {
			return "delete one of them first, if you need it no longer: " + c.Delete
		}
	}
	return "see both with: " + e.Has[0].List
}

// Join returns the slices of several providers in one list, and marks each slice with the
// word of its provider for resources, Undoing("").Commands.Kind.
//
// A provider may refuse to list what it has, and a provider other than the first may be
// unavailable. Slices and List then continue with the others, and send one warning to sink.
// They fail if that provider has shown something before, or if the first provider refuses
// and the others have nothing. A call about one resource fails if no provider that answers
// has it.
func Join(sink event.Sink, first provision.Provider, others ...provision.Provider) *Joined {
	return &Joined{first, append([]provision.Provider{first}, others...), &memory{
		owner: map[string]provision.Provider{}, shows: map[int]bool{}, sink: sink, warned: map[int]bool{}, unseen: map[string]error{},
	}}
}

// Unwrap returns the first provider.
func (j *Joined) Unwrap() provision.Provider { return j.Provider }

// of returns the provider that calls its resources kind, or else the first provider.
func (j *Joined) of(kind string) provision.Provider {
	for _, p := range j.all {
		if p.Undoing("").Commands.Kind == kind {
			return p
		}
	}
	return j.Provider
}

// Of returns the provider that calls its resources kind, if p is or wraps a Joined of
// several providers, and otherwise p.
func Of(p provision.Provider, kind string) provision.Provider {
	if j, ok := provision.As[*Joined](p); ok && kind != "" {
		return j.of(kind)
	}
	return p
}

// mark marks slices with the word of their provider.
func mark(list []tpu.Slice, p provision.Provider) []tpu.Slice {
	for i := range list {
		list[i].Provider = p.Undoing("").Commands.Kind
	}
	return list
}

// note remembers that the provider at index i has shown a resource of this name.
func (j *Joined) note(i int, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.memory.owner[id], j.shows[i] = j.all[i], true
}

// Assume notes that a resource of this name belongs to the provider that calls its
// resources kind, unless Joined has seen the resource.
func (j *Joined) Assume(kind, id string) {
	p := j.of(kind)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.memory.owner[id] == nil && kind != "" {
		j.memory.owner[id] = p
	}
}

// Undoing implements provision.Provider, with the answer of the provider that had the
// resource when it was last seen.
func (j *Joined) Undoing(id string, slices ...string) provision.Undoing {
	j.mu.Lock()
	p := cmp.Or(j.memory.owner[id], j.Provider)
	j.mu.Unlock()
	return p.Undoing(id, slices...)
}

// Create implements provision.Provider. The first provider makes the resource. The error is
// a *TwinError if another provider answers that it has a resource of this name.
func (j *Joined) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	for _, p := range j.all {
		if p == j.Provider {
			continue
		}
		beside, cancel := context.WithTimeoutCause(ctx, besideLimit, errBeside)
		twin, err := p.Get(beside, r.ID)
		cancel()
		if ctx.Err() != nil {
			return provision.Resource{}, false, context.Cause(ctx)
		}
		if err == nil || twin.ID != "" {
			return provision.Resource{}, false, &TwinError{Verb: "create", ID: r.ID, Has: []provision.Commands{p.Undoing(r.ID).Commands}}
		}
	}
	j.mu.Lock()
	j.memory.owner[r.ID] = j.Provider
	j.mu.Unlock()
	return j.Provider.Create(ctx, r)
}

// refused reports whether err says that the user may not see what the provider has.
func refused(err error) bool { return gcp.ClassOf(err) == gcp.Permission }

// dispensable reports whether a list can do without the provider at index i, which has
// returned err.
func (j *Joined) dispensable(i int, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.shows[i] {
		return false
	}
	return refused(err) || i > 0 && (Survivable(err) || errors.Is(err, errBeside))
}

// Expect says that the user asks for what all providers have, so that a refusal is a
// warning. Otherwise it is a note for --debug: many users have no rights on one of the
// APIs, and no slices there.
func (j *Joined) Expect() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = true
}

// warn tells the user, once, that the provider at index i did not answer.
func (j *Joined) warn(i int, err error) {
	j.mu.Lock()
	first, level := !j.warned[i], event.Warn
	if i > 0 && refused(err) && !j.asked {
		level = event.Debug
	}
	j.warned[i] = true
	j.mu.Unlock()
	if first {
		event.Notef(j.sink, level, gcp.Hint(err), "%s did not list its slices: %v", j.all[i].Undoing("").Commands.Service, err)
	}
}

// patience is how long a list waits for the provider at index i.
func (j *Joined) patience(i int) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.warned[i] {
		return againLimit
	}
	return besideLimit
}

// each calls list for every provider. It returns, by index, the errors of the providers
// that the list does without.
func (j *Joined) each(ctx context.Context, list func(ctx context.Context, i int, p provision.Provider) (found int, err error)) (missing map[int]error, err error) {
	missing = map[int]error{}
	found := 0
	for i, p := range j.all {
		beside, cancel := ctx, context.CancelFunc(func() {})
		if i > 0 && j.dispensable(i, errBeside) {
			beside, cancel = context.WithTimeoutCause(ctx, j.patience(i), errBeside)
		}
		n, err := list(beside, i, p)
		cancel()
		switch {
		case err == nil:
			found += n
		case ctx.Err() != nil || !j.dispensable(i, err):
			return nil, err
		default:
			missing[i] = err
		}
	}
	if err := missing[0]; err != nil && found == 0 {
		return nil, err
	}
	for i, err := range missing {
		j.warn(i, err)
	}
	return missing, nil
}

// Slices implements provision.Provider.
func (j *Joined) Slices(ctx context.Context) ([]tpu.Slice, error) {
	all := []tpu.Slice{}
	missing, err := j.each(ctx, func(ctx context.Context, i int, p provision.Provider) (int, error) {
		list, err := p.Slices(ctx)
		if err != nil {
			return 0, err
		}
		if len(list) > 0 {
			j.mu.Lock()
			j.shows[i] = true
			j.mu.Unlock()
		}
		all = append(all, mark(list, p)...)
		return len(list), nil
	})
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.unseen)
	for i, err := range missing {
		j.unseen[j.all[i].Undoing("").Commands.Kind] = err
	}
	return all, nil
}

// Unseen implements provision.Partial.
func (j *Joined) Unseen(kind string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unseen[kind]
}

// List implements provision.Provider.
func (j *Joined) List(ctx context.Context) ([]provision.Resource, error) {
	all := []provision.Resource{}
	listed := map[string]bool{}
	_, err := j.each(ctx, func(ctx context.Context, i int, p provision.Provider) (int, error) {
		list, err := p.List(ctx)
		if err != nil {
			return 0, err
		}
		for _, r := range list {
			mark(r.Slices, p)
			if !listed[r.ID] { // of two resources of one name, Get describes the first
				listed[r.ID] = true
				j.note(i, r.ID)
			}
		}
		all = append(all, list...)
		return len(list), nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b provision.Resource) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// IDs returns the names of all resources.
func (j *Joined) IDs(ctx context.Context) ([]string, error) {
	all, err := j.List(ctx)
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = r.ID
	}
	return ids, err
}

// Get implements provision.Provider. The first provider with a resource of this name
// describes it.
func (j *Joined) Get(ctx context.Context, id string) (provision.Resource, error) {
	_, r, err := j.Owner(ctx, id)
	return r, err
}

// Owner returns the first provider with a resource of this name, and the resource. Without
// one, it returns the first provider and ErrNotFound, or the error of a provider that did
// not answer.
func (j *Joined) Owner(ctx context.Context, id string) (provision.Provider, provision.Resource, error) {
	var none, unknown error
	for i, p := range j.all {
		r, err := p.Get(ctx, id)
		mark(r.Slices, p)
		switch {
		case err == nil, r.ID != "":
			j.note(i, id)
			return p, r, err
		case errors.Is(err, provision.ErrNotFound):
			none = cmp.Or(none, err)
		case refused(err) && !j.had(p, id):
			unknown = cmp.Or(unknown, err)
		default:
			return p, r, err
		}
	}
	return j.Provider, provision.Resource{}, cmp.Or(unknown, none)
}

// had reports whether p had the resource when it was last seen.
func (j *Joined) had(p provision.Provider, id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.memory.owner[id] == p
}

// Sole is Owner for a call that must not hit the wrong one of two resources. If several
// providers have a resource of this name, the error is a *TwinError. If one provider has
// it, a provider that does not answer counts as one without it, and the user is warned.
func (j *Joined) Sole(ctx context.Context, id, verb string) (provision.Provider, provision.Resource, error) {
	owner, res, unread := j.Owner(ctx, id)
	if unread != nil && res.ID == "" {
		return owner, res, unread
	}
	has := []provision.Commands{owner.Undoing(id).Commands}
	for i, p := range j.all {
		if p == owner {
			continue
		}
		beside, cancel := context.WithTimeoutCause(ctx, besideLimit, errBeside)
		twin, err := p.Get(beside, id)
		cancel()
		switch {
		case ctx.Err() != nil:
			return owner, res, context.Cause(ctx)
		case err == nil || twin.ID != "":
			has = append(has, p.Undoing(id).Commands)
		case !errors.Is(err, provision.ErrNotFound):
			j.warn(i, err)
		}
	}
	if len(has) > 1 {
		return owner, res, &TwinError{Verb: verb, ID: id, Has: has}
	}
	return owner, res, unread
}

// LedBy returns j with p, one of its providers, as the first.
func (j *Joined) LedBy(p provision.Provider) *Joined { return &Joined{p, j.all, j.memory} }

// Restart implements provision.Provider.
func (j *Joined) Restart(ctx context.Context, id string) error {
	p, _, err := j.Owner(ctx, id)
	if err != nil {
		return err
	}
	return p.Restart(ctx, id)
}

// Delete implements provision.Provider. If several providers have a resource of this name,
// it deletes none and returns a *TwinError.
func (j *Joined) Delete(ctx context.Context, id string, o provision.DeleteOptions) (bool, error) {
	owner, res, err := j.Sole(ctx, id, "delete")
	switch {
	case err == nil, res.ID != "" && !errors.As(err, new(*TwinError)):
		return owner.Delete(ctx, id, o)
	case !errors.Is(err, provision.ErrNotFound):
		return false, err
	}
	for _, p := range j.all { // a resource without slices may have parts
		if deleted, err := p.Delete(ctx, id, o); deleted || err != nil {
			return deleted, err
		}
	}
	return false, nil
}

// Doomed returns the resource that Delete would delete, even if it has only parts without
// slices. The error is that of Sole.
func (j *Joined) Doomed(ctx context.Context, id string) (provision.Resource, error) {
	_, res, err := j.Sole(ctx, id, "delete")
	if !errors.Is(err, provision.ErrNotFound) {
		return res, err
	}
	all, unread := j.List(ctx)
	for _, r := range all {
		if r.ID == id {
			return r, nil
		}
	}
	return res, cmp.Or(unread, err)
}

// HostKeys implements provision.Provider.
func (j *Joined) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	return j.of(s.Provider).HostKeys(ctx, s, worker)
}

// Admit implements provision.Provider.
func (j *Joined) Admit(ctx context.Context, s tpu.Slice, l provision.Login) (user string, changed bool, err error) {
	return j.of(s.Provider).Admit(ctx, s, l)
}

// Door implements provision.Doorkeeper. It returns the zero Door if the slice's provider is
// no Doorkeeper.
func (j *Joined) Door(ctx context.Context, s tpu.Slice, l provision.Login) (provision.Door, error) {
	keeper, ok := provision.As[provision.Doorkeeper](j.of(s.Provider))
	if !ok {
		return provision.Door{}, nil
	}
	return keeper.Door(ctx, s, l)
}

// Number implements provision.Numberer.
func (j *Joined) Number(s tpu.Slice) string {
	if n, ok := provision.As[provision.Numberer](j.of(s.Provider)); ok {
		return n.Number(s)
	}
	return ""
}

// Explain implements provision.Explainer.
func (j *Joined) Explain(ctx context.Context, r provision.Resource, waited time.Duration) provision.Explanation {
	if e, ok := provision.As[provision.Explainer](j.of(r.Commands.Kind)); ok {
		return e.Explain(ctx, r, waited)
	}
	return provision.Explanation{}
}
