package qr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/zones"

	"github.com/google/uuid"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

const (
	// acceptLimit is how long Create waits for the create operation, which normally ends
	// within seconds. Later, Wait shows what becomes of the request.
	acceptLimit = 2 * time.Minute
	// acceptSilence is how long Create says nothing while it waits for that operation.
	acceptSilence = 30 * time.Second
	// lastReadLimit limits the one read that finds out whether a resource was made although
	// the caller's context has ended.
	lastReadLimit = 10 * time.Second
	// inFlight is how often Create reads again, a second apart, if the caller has cut off a
	// request and the resource does not exist.
	inFlight = 2
	// recreateLimit is how long Create waits for the deletion of an older resource of the
	// same name.
	recreateLimit = 30 * time.Minute
	maxRecreate   = 10
)

// errInTheWay says that a resource of the same name is being deleted.
var errInTheWay = errors.New("a queued resource of this name is being deleted")

// Create requests a queued resource. It does not wait for its slices.
//
// Create is safe to repeat. If a resource of that name exists, is what r asks for, and has
// the same owner labels, Create returns it with created false. If it differs from r, Create
// does not touch it and returns a *ConflictError. If it is FAILED, SUSPENDING or SUSPENDED,
// Create returns a *StateError. If it is being deleted, Create waits until it is gone and
// then creates r.
//
// If created is true, the resource exists and is ours, even if err is not nil. The caller
// must then delete it or report that it exists.
//
// With a read-only client, Create returns a *gcp.ReadOnlyError if it would make the
// resource, and otherwise the usual result. If an older resource of the name is being
// deleted, res describes that one.
func (c *Client) Create(ctx context.Context, r Request) (res Resource, created bool, err error) {
	return c.create(ctx, r, c.accepted)
}

// Submit does what Create does, but does not wait until the API accepts the request. A
// later read shows whether the API refused it.
func (c *Client) Submit(ctx context.Context, r Request) (res Resource, created bool, err error) {
	return c.create(ctx, r, func(context.Context, Request, *tpuapi.Operation, string) (Resource, bool, error) {
		return r.justMade(c.now()), true, nil
	})
}

// A taking handles the operation of a request that Create has sent.
type taking func(ctx context.Context, r Request, op *tpuapi.Operation, what string) (Resource, bool, error)

func (c *Client) create(ctx context.Context, r Request, sent taking) (res Resource, created bool, err error) {
	if err := r.Validate(); err != nil {
		return Resource{}, false, err
	}
	if err := r.checkPlace(c.gcp.Zone(), c.now()); err != nil {
		return Resource{}, false, err
	}
	for try := 1; ; try++ {
		res, created, err = c.createOnce(ctx, r, sent)
		if !errors.Is(err, errInTheWay) {
			return res, created, c.explained(ctx, r, err)
		}
		if try == maxRecreate {
			return res, created, fmt.Errorf("create queued resource %q: %w", r.ID, err)
		}
		event.Notef(c.sink(), event.Info, "", "queued resource %q exists and is DELETING: it is created anew when it is gone", r.ID)
		gone := goneWait{id: r.ID, phase: "create", limit: recreateLimit}
		if err := c.awaitGone(ctx, gone); err != nil && !errors.Is(err, errNamesake) {
			return Resource{}, false, err
		}
		// The name may be in use for another moment after the resource has gone.
		if err := gcp.Sleep(ctx, c.gcp.Clock(), time.Second); err != nil {
			return Resource{}, false, err
		}
	}
}

// explained adds to a refusal what prevents the request, such as the holders of the quota,
// or what else the user can request, such as other zones that offer the type.
func (c *Client) explained(ctx context.Context, r Request, err error) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), inquiryLimit)
	defer cancel()
	switch {
	case zones.Refused(err.Error()):
		var unknown *zones.NoZoneError
		if err := zones.Explain(ctx, c.gcp, err); errors.As(err, &unknown) {
			return err
		}
		return &zones.NoTypeError{Type: r.Type.Name, Zone: c.gcp.Zone(), Zones: zones.Offering(ctx, c.gcp, r.Type.Name).Zones, Err: err}
	case gcp.ClassOf(err) == gcp.Quota:
		p := predicament{res: Resource{ID: r.ID, Type: r.Type.Name, Tier: r.Asks(), NodeCount: r.NodeCount, Labels: r.Labels, Failure: err.Error()}}
		p.others, p.dead = c.others(ctx, r.ID)
		e := &QuotaError{Err: err}
		e.Diagnosis, e.command = p.quota()
		return e
	case gcp.ClassOf(err) == gcp.Capacity:
		return &capacityError{tier: r.Asks(), error: err}
	}
	return err
}

// A capacityError is a refusal for lack of free machines.
type capacityError struct {
	error
	tier Tier // the requested tier
}

func (e *capacityError) Unwrap() error { return e.error }

// Hint tells the user to try later, or in another zone, or with another tier. For a
// reservation, it names only the reservations of the zone.
func (e *capacityError) Hint() string {
	const elsewhere = ": try again later, or in another zone with --zone=ZONE"
	switch e.tier {
	case OnDemand:
		return "the zone has no free machines of this type now" + elsewhere + "; --spot or --flex-start may get some sooner"
	case Reserved, ReservationBound:
		return "the reservation has no free room for this request: see what is reserved with: gcloud alpha compute tpus reservations list --zone=ZONE"
	}
	return fmt.Sprintf("the zone has no free machines of this type for tier %s now%s; another tier may get some sooner", e.tier, elsewhere)
}

func (c *Client) createOnce(ctx context.Context, r Request, sent taking) (Resource, bool, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return Resource{}, false, err
	}
	body := r.Body(c.gcp.Project(), c.gcp.Zone(), c.now())
	what := fmt.Sprintf("create queued resource %q", r.ID)
	request := uuid.NewString()
	tries := 0
	var op *tpuapi.Operation
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		tries++
		op, err = svc.Projects.Locations.QueuedResources.Create(c.parent(), body).
			QueuedResourceId(r.ID).RequestId(request).Context(ctx).Do()
		return err
	})
	var refused *gcp.ReadOnlyError
	switch class := gcp.ClassOf(err); {
	case err == nil:
		return sent(ctx, r, op, what)
	case errors.As(err, &refused):
		return c.refused(ctx, r, body, err)
	case class == gcp.AlreadyExists, class == gcp.Conflict:
		return c.existing(ctx, r, body, tries > 1, err)
	case tries > 0 && (ctx.Err() != nil || class == gcp.Unavailable || class == gcp.Timeout):
		return c.unanswered(ctx, r, body, err)
	}
	return Resource{}, false, err
}

// accepted waits, for at most acceptLimit, until the API has accepted or refused the
// request. It reads both the operation and the resource, because the operation may continue
// long after the API has accepted the resource.
func (c *Client) accepted(ctx context.Context, r Request, op *tpuapi.Operation, what string) (Resource, bool, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return Resource{}, true, err
	}
	start := c.now()
	said := start
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		now := c.now()
		if op.Done || now.Sub(start) > acceptLimit {
			return true, nil
		}
		if now.Sub(said) >= acceptSilence {
			said = now
			c.emit(event.Note{Level: event.Info, Text: fmt.Sprintf("the API has not said for %s whether it accepts queued resource %s; waiting at most %s", event.Duration(now.Sub(start)), r.ID, event.Duration(acceptLimit))})
		}
		got, err := c.operation(ctx, svc, op.Name, what)
		if err == nil {
			op = got
		}
		if err != nil && !provider.Survivable(err) && gcp.ClassOf(err) != gcp.NotFound {
			return false, err
		}
		if op.Done {
			return true, nil
		}
		res, err := c.read(ctx, r.ID)
		return err == nil && res.State != "" && res.State != "CREATING", nil
	})
	if err == nil && op.Done {
		_, err = c.gcp.WaitTPU(ctx, op, what)
	}
	if err != nil {
		return c.afterFailure(ctx, r, err)
	}
	res, err := c.read(ctx, r.ID)
	if err != nil && ctx.Err() == nil {
		// The API has accepted the request. If the resource is still unreadable, Wait
		// reports that.
		res, err = r.justMade(start), nil
	}
	return res, true, err
}

// operation reads an operation. what is the name of its work in errors.
func (c api) operation(ctx context.Context, svc *tpuapi.Service, name, what string) (op *tpuapi.Operation, err error) {
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.Operations.Get(name).Context(ctx).Do()
		return err
	})
	return op, err
}

// justMade returns the resource that r makes, before the API reports it.
func (r Request) justMade(at time.Time) Resource {
	return Resource{ID: r.ID, State: "CREATING", Type: r.Type.Name, NodeCount: r.NodeCount,
		Nodes: r.NodeNames(), Labels: r.Labels, Tier: r.tier(), CreateTime: at}
}

// afterFailure finds out whether a failed create left a resource.
func (c *Client) afterFailure(ctx context.Context, r Request, cause error) (Resource, bool, error) {
	readCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReadLimit)
	defer cancel()
	res, err := c.read(readCtx, r.ID)
	if err != nil {
		// A failed operation normally leaves no resource. If the API has accepted the
		// request and the wait was interrupted, the resource exists.
		return Resource{ID: r.ID}, ctx.Err() != nil && gcp.ClassOf(err) != gcp.NotFound, cause
	}
	return res, sameOwner(res, r), cause
}

func sameOwner(res Resource, r Request) bool {
	return res.Labels[LabelRun] == r.Labels[LabelRun] && res.Labels[LabelUser] == r.Labels[LabelUser] &&
		res.Labels[LabelTool] == r.Labels[LabelTool]
}

// takenBy returns the error for a refusal that names an existing slice. It returns nil if
// that slice cannot be read or is being deleted, or if an earlier try of the same request
// made it.
func (c *Client) takenBy(ctx context.Context, r Request, refusal error) *TakenError {
	taken := takenSlice(refusal)
	if taken == nil {
		return nil
	}
	s, err := c.Slice(ctx, taken.Slice)
	if err != nil || s.State == "DELETING" || s.QueuedResource == r.ID {
		return nil
	}
	return taken
}

// existing decides about an existing resource of the same name. repeated means that an
// earlier try in this call may have made it.
func (c *Client) existing(ctx context.Context, r Request, body *tpuapi.QueuedResource, repeated bool, cause error) (Resource, bool, error) {
	res, err := c.read(ctx, r.ID)
	var taken *TakenError
	if gcp.ClassOf(err) == gcp.NotFound && gcp.ClassOf(cause) == gcp.AlreadyExists {
		taken = c.takenBy(ctx, r, cause)
	}
	switch {
	case taken != nil:
		return Resource{}, false, taken
	case gcp.ClassOf(err) == gcp.NotFound && gcp.ClassOf(cause) == gcp.AlreadyExists:
		return Resource{}, false, errInTheWay // it was just deleted
	case err != nil && gcp.ClassOf(err) == gcp.NotFound:
		return Resource{}, false, cause
	case err != nil:
		return Resource{}, false, err
	case res.State == "DELETING":
		return Resource{}, false, errInTheWay
	}
	if diffs := r.differences(res, body); len(diffs) > 0 {
		return res, false, &ConflictError{Commands: commands(r.ID), ID: r.ID, Owner: res.Owner(), Differences: diffs}
	}
	created := repeated && r.Labels[LabelRun] != ""
	if err := provision.NewStateError(res.Neutral()); err != nil {
		return res, created, err
	}
	if !created {
		event.Notef(c.sink(), event.Info, "", "queued resource %q exists already and is what was asked for (%s): it is used", r.ID, res.State)
	}
	return res, created, nil
}

// refused finds out how the API would have answered a request that a read-only client has
// not sent. If the API would have made the resource, now or once an older one is gone,
// refused returns refusal, the error of the client.
func (c *Client) refused(ctx context.Context, r Request, body *tpuapi.QueuedResource, refusal error) (Resource, bool, error) {
	res, _, err := c.existing(ctx, r, body, false, refusal)
	if errors.Is(err, errInTheWay) {
		return Resource{ID: r.ID, State: "DELETING"}, false, refusal
	}
	return res, false, err
}

// unanswered handles a create request without an answer. The resource may exist.
func (c *Client) unanswered(ctx context.Context, r Request, body *tpuapi.QueuedResource, cause error) (Resource, bool, error) {
	readCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReadLimit)
	defer cancel()
	res, err := c.read(readCtx, r.ID)
	for range inFlight { // a request that was cut off may still arrive
		if ctx.Err() == nil || gcp.ClassOf(err) != gcp.NotFound || gcp.Sleep(readCtx, c.gcp.Clock(), time.Second) != nil {
			break
		}
		res, err = c.read(readCtx, r.ID)
	}
	if err != nil || len(r.differences(res, body)) > 0 {
		return Resource{}, false, cause
	}
	if ctx.Err() != nil {
		return res, true, cause
	}
	return res, true, nil
}
