package qr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"

	"github.com/google/uuid"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// DefaultDeleteLimit is how long Delete waits if DeleteOptions give no limit.
const DefaultDeleteLimit = 30 * time.Minute

// reissueAfter is how long a deletion may show no effect before Delete requests it again.
const reissueAfter = 30 * time.Second

// DeleteOptions say what may be deleted and how long it may take.
type DeleteOptions struct {
	// Force deletes the slices of the resource, too. Without it, Delete does not touch a
	// resource with slices, and returns a *NodesError.
	Force bool
	// If OnlyRun is not "", Delete deletes only a resource with the label of this run. It
	// does not touch any other and returns an *OwnerError.
	OnlyRun string
	// With Async, Delete returns as soon as the API has accepted the request.
	Async bool
	Limit time.Duration // 0: DefaultDeleteLimit; negative: none
	Poll  gcp.Backoff   // as in WaitOptions
}

// Delete deletes a queued resource and waits until it is gone. deleted reports whether
// there was one; if not, there is no error. Delete repeats a deletion without effect, which
// happens to FAILED and SUSPENDED resources. A *DeadlineError means that the resource is
// not gone yet, and says what is left.
func (c *Client) Delete(ctx context.Context, id string, opts DeleteOptions) (deleted bool, err error) {
	res, err := c.Get(ctx, id)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		return false, nil
	case err != nil:
		return false, err
	}
	if err := mayDelete(res, opts); err != nil {
		return false, err
	}
	wait := goneWait{id: id, made: res.CreateTime, phase: "delete", limit: opts.Limit, poll: opts.Poll, force: opts.Force, issue: true}
	if wait.limit == 0 {
		wait.limit = DefaultDeleteLimit
	}
	if opts.Async {
		if res.State == "DELETING" {
			return true, nil
		}
		_, err := c.requestDelete(ctx, id, opts.Force)
		return err == nil, err
	}
	start := c.now()
	c.emit(event.Phase{Name: "delete", State: event.Started, Detail: id})
	err = c.awaitGone(ctx, wait)
	if errors.Is(err, errNamesake) {
		c.emit(event.Phase{Name: "delete", State: event.Done, Detail: err.Error(), Elapsed: c.now().Sub(start)})
		return true, nil // slices of these names belong to the new resource
	}
	if err != nil {
		c.emit(event.Phase{Name: "delete", State: event.Failed, Detail: err.Error(), Elapsed: c.now().Sub(start)})
		return false, err
	}
	c.emit(event.Phase{Name: "delete", State: event.Done, Detail: id + " is gone", Elapsed: c.now().Sub(start)})
	return true, c.leftovers(ctx, res)
}

func mayDelete(res Resource, opts DeleteOptions) error {
	if opts.OnlyRun != "" && res.Labels[LabelRun] != provision.LabelValue(opts.OnlyRun) {
		return &OwnerError{ID: res.ID, Owner: res.Owner(), Want: opts.OnlyRun}
	}
	if opts.Force || res.State == "DELETING" || len(res.Slices) == 0 {
		return nil
	}
	names := make([]string, len(res.Slices))
	for i, s := range res.Slices {
		names[i] = s.Name
	}
	return &NodesError{ID: res.ID, State: res.State, Nodes: names}
}

// leftovers returns an error that names the slices left without their queued resource,
// because they are billed. If it cannot read them, it returns an error, too, because some
// may be left.
func (c *Client) leftovers(ctx context.Context, res Resource) error {
	nodes, err := c.Slices(ctx)
	if err != nil {
		return fmt.Errorf("queued resource %q is gone, but whether slices of it are left is not known: %w", res.ID, err)
	}
	var left []string
	for _, s := range slicesOf(res, nodes) {
		if s.State != "DELETING" {
			left = append(left, s.Name)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return &LeftoverError{ID: res.ID, Slices: left, zone: c.gcp.Zone()}
}

// requestDelete requests the deletion. It ignores NotFound.
func (c api) requestDelete(ctx context.Context, id string, force bool) (*tpuapi.Operation, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	request := uuid.NewString()
	var op *tpuapi.Operation
	err = c.gcp.Do(ctx, fmt.Sprintf("delete queued resource %q", id), func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.QueuedResources.Delete(c.qrName(id)).Force(force).RequestId(request).Context(ctx).Do()
		return err
	})
	if gcp.ClassOf(err) == gcp.NotFound {
		return nil, nil
	}
	return op, err
}

// A goneWait is a wait for the end of a queued resource.
type goneWait struct {
	id    string
	made  time.Time // creation time of the resource; zero: that of the first read
	phase string    // for events and errors
	limit time.Duration
	poll  gcp.Backoff
	issue bool // request the deletion, again if it has no effect
	force bool
}

// A deletion is the state of the request to delete a queued resource.
type deletion struct {
	op     *tpuapi.Operation
	issued time.Time // zero: not requested yet
	failed error     // why the last request or operation failed
}

// errNamesake says that the resource is gone and a new one has its name.
var errNamesake = errors.New("gone; another one of this name has been made since")

// judge decides whether the wait is over, and with which error. res and err are the result
// of a read. ended is why the caller has stopped waiting, or nil.
func (w *goneWait) judge(res Resource, err, ended error) (over bool, why error) {
	switch class := gcp.ClassOf(err); {
	case class == gcp.NotFound:
		return true, nil
	case ended != nil:
		return true, fmt.Errorf("wait until queued resource %q is gone: %w", w.id, ended)
	case err != nil:
		return !provider.Survivable(err), err
	}
	if w.made.IsZero() {
		w.made = res.CreateTime
	}
	if !res.CreateTime.Equal(w.made) {
		return true, errNamesake
	}
	return false, nil
}

// awaitGone reads until the resource is not found. With wait.issue, it requests the
// deletion. It does not touch a newer resource of the same name, and returns errNamesake.
func (c *Client) awaitGone(ctx context.Context, wait goneWait) error {
	start := c.now()
	ctx = gcp.Unattended(ctx) // this loop has its own limit
	begin := start            // when the limit begins: at the first request for the deletion
	pace := provider.Pacer{Policy: provider.PollDefaults(wait.poll)}
	var del deletion
	state := ""
	for {
		res, err := c.Get(ctx, wait.id)
		if over, why := wait.judge(res, err, context.Cause(ctx)); over {
			return why
		}
		if wait.issue && del.issued.IsZero() {
			begin = c.now()
		}
		left := wait.limit - c.now().Sub(begin)
		// Check the limit right after a read, so that the error has the present state. But
		// request the deletion at least once.
		if wait.limit > 0 && left <= 0 && (!wait.issue || !del.issued.IsZero()) {
			return goneDeadline(wait, res, err, del.failed)
		}
		if err == nil {
			if res.State != state {
				state = res.State
				pace.Reset()
				c.emit(event.State{Resource: "queued resource", Name: wait.id, State: state, Elapsed: c.now().Sub(start)})
			}
			if wait.issue {
				if err := c.pushDeletion(ctx, wait, res, &del); err != nil {
					return err
				}
			}
			c.emit(event.Progress{Phase: wait.phase, Total: res.NodeCount, Done: res.NodeCount - len(res.Slices), Waiting: wait.id,
				Detail: res.State, Elapsed: c.now().Sub(start), Limit: max(wait.limit, 0)})
		}
		pause := pace.Next()
		if wait.limit > 0 {
			pause = min(pause, max(left, time.Millisecond))
		}
		if err := gcp.Sleep(ctx, c.gcp.Clock(), pause); err != nil {
			return fmt.Errorf("wait until queued resource %q is gone: %w", wait.id, err)
		}
	}
}

func goneDeadline(wait goneWait, res Resource, readErr, failed error) error {
	e := &DeadlineError{Commands: commands(wait.id), ID: wait.id, Phase: wait.phase, Limit: wait.limit, Life: LifeOf(res.State), State: res.State, Err: readErr}
	if n := len(res.Slices); n > 0 {
		e.Detail = fmt.Sprintf("%d slices still exist", n)
	}
	if failed != nil {
		e.Detail = strings.TrimPrefix(e.Detail+"; the last try to delete it failed: "+failed.Error(), "; ")
	}
	return e
}

// pushDeletion requests the deletion, again if an earlier request has failed or shows no
// effect. It returns only errors that a repetition cannot change.
func (c *Client) pushDeletion(ctx context.Context, wait goneWait, res Resource, del *deletion) error {
	if res.State == "DELETING" && del.issued.IsZero() {
		del.issued = c.now() // somebody else has requested it
		return nil
	}
	if !del.issued.IsZero() {
		if res.State == "DELETING" {
			return nil
		}
		ended := del.ended(ctx, c.api)
		if class := gcp.ClassOf(del.failed); ended && (class == gcp.Permission || class == gcp.Invalid) {
			return del.failed
		}
		if c.now().Sub(del.issued) < reissueAfter && !ended {
			return nil
		}
		event.Notef(c.sink(), event.Info, "", "queued resource %q is still %s: its deletion is asked for again", wait.id, res.State)
	}
	op, err := c.requestDelete(ctx, wait.id, wait.force)
	if err != nil {
		switch class := gcp.ClassOf(err); {
		case class == gcp.Conflict && !wait.force:
			return &NodesError{ID: wait.id, State: res.State, Err: err}
		case ctx.Err() != nil, provider.Survivable(err), class == gcp.Conflict:
			// Another operation runs on the resource, or the API does not answer. The next
			// read shows more.
			del.failed = err
		default:
			return err
		}
	}
	del.op, del.issued = op, c.now()
	return nil
}

// ended reports whether the operation of the last deletion has ended with an
// error.
func (del *deletion) ended(ctx context.Context, c api) bool {
	if del.op == nil || del.op.Name == "" {
		return false
	}
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return false
	}
	name := del.op.Name
	err = c.gcp.Do(ctx, "read operation", func(ctx context.Context) error {
		op, err := svc.Projects.Locations.Operations.Get(name).Context(ctx).Do()
		if err == nil {
			del.op = op
		}
		return err
	})
	if err != nil || !del.op.Done || del.op.Error == nil {
		return false
	}
	_, del.failed = c.gcp.WaitTPU(ctx, del.op, "delete")
	return true
}
