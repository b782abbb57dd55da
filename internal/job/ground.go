package job

import (
	"context"
	"fmt"
	"time"

	"multihost/internal/follow"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A ground provides the slices of a run's attempts: existing slices, or slices that the job
// makes and makes again.
type ground interface {
	// ready waits for the slices and returns them when it makes sense to connect to every
	// worker. after is the failure for which the budget has already paid the next attempt.
	// after is nil the first time.
	ready(ctx context.Context, pay func(*stage.Failure) error, after *stage.Failure) (tpu.Selection, error)
	// look finds out what happened to the slices. The function reach says whether the
	// workers of a slice answer.
	look(ctx context.Context, used []tpu.Slice, reach func(slice string) provision.Reach) (provision.Decision, error)
}

// standing is the ground of Run. It provides slices that somebody else made and that Run
// does not make again.
type standing struct {
	*workers.Reach
	watch   *stage.Stopwatch
	prefix  string
	numbers tpu.Numbers
	partial bool
	found   tpu.Selection
}

// returnLimit limits how long existing slices may take to be READY again after a loss.
const returnLimit = 15 * time.Minute

func (s *standing) ready(ctx context.Context, _ func(*stage.Failure) error, after *stage.Failure) (_ tpu.Selection, err error) {
	if after == nil {
		s.found, err = s.DiscoverPhase(ctx, s.watch, s.prefix, s.numbers, s.partial)
		return s.found, err
	}
	begin := s.Clock.Now()
	for {
		var why string
		nodes, err := s.Cloud.Slices(ctx)
		if err == nil {
			if why, err = s.absent(nodes); err != nil {
				return s.found, err
			}
			if why == "" {
				return s.found, nil
			}
		}
		if s.Clock.Now().Sub(begin) > returnLimit {
			if err != nil {
				why = err.Error()
			}
			return s.found, &stage.Error{Stage: stage.Discover, Err: err, Text: fmt.Sprintf("slices are not usable for %s: %s", stage.AsTyped(returnLimit), why)}
		}
		if err := stage.Sleep(ctx, s.Clock, 5*time.Second); err != nil {
			return s.found, err
		}
	}
}

// absent returns why the slices cannot be used now, or "". An error means that they can
// never be used again.
func (s *standing) absent(nodes []tpu.Slice) (why string, err error) {
	for i, have := range s.found.Slices {
		if again := made(nodes, have); again != nil {
			have.UID = again.UID // a further attempt begins anew, so it can use other VMs
		}
		if gone := follow.LostSlice(nodes, have); gone != "" {
			return "", &stage.Error{Stage: stage.Discover, Text: gone, Advice: "multihost job makes slices again that were taken away"}
		}
		for _, n := range nodes {
			if n.Name != have.Name {
				continue
			}
			if ok, text := n.Ready(); !ok {
				why = fmt.Sprintf("slice %q: %s", n.Name, text)
			}
			n.Index = have.Index
			s.found.Slices[i] = n
		}
	}
	return why, nil
}

// made returns the slice that the provider itself has made, or is making, in place of s; nil
// if there is none.
func made(nodes []tpu.Slice, s tpu.Slice) *tpu.Slice {
	for i, n := range nodes {
		if n.Name == s.Name && n.UID != s.UID && n.Remade {
			return &nodes[i]
		}
	}
	return nil
}

func (s *standing) look(ctx context.Context, used []tpu.Slice, reach func(string) provision.Reach) (provision.Decision, error) {
	nodes, err := s.Cloud.Slices(ctx)
	if err != nil {
		return provision.Decision{}, err
	}
	for _, have := range used {
		if made(nodes, have) != nil {
			return provision.Decision{Step: provision.StepRecreate, Loss: provision.Infrastructure, Why: follow.LostSlice(nodes, have)}, nil
		}
	}
	return lookAt(nodes, used, reach), nil
}

// lookAt decides from the API's list what happened to the slices of an attempt.
func lookAt(nodes, used []tpu.Slice, reach func(string) provision.Reach) provision.Decision {
	return provision.Decide(provision.Sight{Life: provision.Active, Existed: true, Slices: sights(nodes, used, reach)})
}

// sights returns the present state of an attempt's slices. A slice of the same name with
// another id is another slice.
func sights(nodes, used []tpu.Slice, reach func(string) provision.Reach) []provision.SliceSight {
	all := make([]provision.SliceSight, len(used))
	for i, s := range used {
		var now tpu.Slice
		for _, n := range nodes {
			if n.Name == s.Name && n.UID == s.UID {
				now = n
			}
		}
		now.Name = s.Name
		all[i] = provision.SightOf(now)
		all[i].Reach = reach(s.Name)
	}
	return all
}
