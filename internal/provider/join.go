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

// Joined makes several providers look like one. The first provider makes new resources. Joined
// finds existing resources of all providers, and describes each in the words of its own provider.
// While no resource is known, it uses the words of the first provider.
type Joined struct {
	provision.Provider // the first of all
	all                []provision.Provider
	*memory
}

// A memory holds what a Joined has found out. It is safe for concurrent use.
type memory struct {
	mu    sync.Mutex
	owner map[string]provision.Provider // provider that had the resource when it was last seen, by name of the resource
	shows map[int]bool                  // indexes of providers that have shown something

	sink   event.Sink
	warned map[int]bool     // indexes of providers that did not answer and about which warn has told the user
	asked  bool             // Expect was called
	unseen map[string]error // why the last call of Slices had no slices of a provider, by its kind
}

var (
	_ provision.Explainer  = (*Joined)(nil)
	_ provision.Doorkeeper = (*Joined)(nil)
	_ provision.Partial    = (*Joined)(nil)

	_ provision.Numberer = (*Joined)(nil)
)

// besideLimit is how long Joined waits for the list of a provider that it does not need. Without
// this limit, a command on slices of another provider would wait for minutes, because API clients
// retry that long.
const besideLimit = 30 * time.Second

// againLimit replaces besideLimit for a provider that did not answer before. A long command lists
// the slices many times and would wait each time.
const againLimit = 5 * time.Second

var errBeside = fmt.Errorf("no answer in %v", besideLimit)

// A TwinError says that several providers have a resource of the same name, or that Create would
// make a second one.
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
	for _, c := range e.Has { // a command of one provider does not touch the other's resource
		if !strings.HasPrefix(c.Delete, "multihost slices ") {
			return "delete one of them first, if you need it no longer: " + c.Delete
		}
	}
	return "see both with: " + e.Has[0].List
}

// Join returns a Joined of several providers. The field Provider of each slice is then its
// provider's word for resources, Undoing("").Commands.Kind.
//
// If a provider refuses to list what it has, or a provider other than the first is unavailable,
// Slices and List continue with the others and send one warning to sink. They fail if that
// provider has shown something before, or if the first provider refuses and the others have
// nothing. A call about one resource asks the providers in order until one has it; see Owner.
func Join(sink event.Sink, first provision.Provider, others ...provision.Provider) *Joined {
	return &Joined{first, append([]provision.Provider{first}, others...), &memory{
		owner: map[string]provision.Provider{}, shows: map[int]bool{}, sink: sink, warned: map[int]bool{}, unseen: map[string]error{},
	}}
}

// Unwrap returns the first provider.
func (j *Joined) Unwrap() provision.Provider { return j.Provider }

// of returns the provider whose word for resources is kind, or else the first provider.
func (j *Joined) of(kind string) provision.Provider {
	for _, p := range j.all {
		if p.Undoing("").Commands.Kind == kind {
			return p
		}
	}
	return j.Provider
}

// Of returns the provider whose word for resources is kind, if p is or wraps a Joined. Otherwise
// Of returns p.
func Of(p provision.Provider, kind string) provision.Provider {
	if j, ok := provision.As[*Joined](p); ok && kind != "" {
		return j.of(kind)
	}
	return p
}

// mark sets the field Provider of slices to p's word for resources.
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

// Assume records that the provider for kind owns the resource id. It changes nothing if the owner
// is known or kind is "".
func (j *Joined) Assume(kind, id string) {
	p := j.of(kind)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.memory.owner[id] == nil && kind != "" {
		j.memory.owner[id] = p
	}
}

// Undoing implements provision.Provider. It asks the provider that had the resource when it was
// last seen, or else the first provider.
func (j *Joined) Undoing(id string, slices ...string) provision.Undoing {
	j.mu.Lock()
	p := cmp.Or(j.memory.owner[id], j.Provider)
	j.mu.Unlock()
	return p.Undoing(id, slices...)
}

// Create implements provision.Provider. The first provider makes the resource. If another
// provider has a resource of this name, the error is a *TwinError.
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

// dispensable reports whether a list can continue without the provider at index i, which has
// returned err.
func (j *Joined) dispensable(i int, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.shows[i] {
		return false
	}
	return refused(err) || i > 0 && (Survivable(err) || errors.Is(err, errBeside))
}

// Expect says that the user asked for the slices of all providers. After Expect, a provider's
// refusal is a warning. Otherwise it is a note for --debug, because many users have no rights on
// one of the APIs, and no slices there.
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

// each calls list for every provider. missing has the errors of dispensable providers, by index.
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
			if !listed[r.ID] { // Get describes the first of two resources with one name
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

// Owner returns the first provider with a resource of this name, and the resource. If no provider
// has one, Owner returns the first provider and ErrNotFound, or the error of a provider that
// refused. Any other error ends the search, and Owner returns it. So does a refusal of the
// provider that had the resource before.
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

// Sole does what Owner does, for a call that must not act on the wrong one of two resources. If
// several providers have a resource of this name, the error is a *TwinError. If one provider has
// the resource and another does not answer, Sole warns and returns the resource.
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

// LedBy returns a Joined with the same providers and memory as j. p is its first provider.
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
	for _, p := range j.all { // a resource without slices may still have other parts
		if deleted, err := p.Delete(ctx, id, o); deleted || err != nil {
			return deleted, err
		}
	}
	return false, nil
}

// Doomed returns the resource that Delete would delete, even if the resource has no slices. The
// error is that of Sole.
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
