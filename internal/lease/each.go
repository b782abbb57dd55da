package lease

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/remote"
)

// Each calls arm for all workers at the same time. It sends the agent to the workers that
// lack it, and calls arm for them again. It skips a nil workers[i]. If pass is not nil,
// Each calls it with one agent and the numbers of the workers that lack it. With pass,
// these workers pass the agent on to each other, if that is faster. Each sends the agent
// from this machine to the workers that still lack it. errs[i] belongs to workers[i].
func Each(ctx context.Context, workers []remote.Runner, agents program.Set, pass func(ctx context.Context, agent program.Program, lacking []int), arm func(ctx context.Context, i int) error) []error {
	errs := make([]error, len(workers))
	each := func(which []int, f func(i int) error) {
		var wg sync.WaitGroup
		for _, i := range which {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
	}
	var all []int
	for i, w := range workers {
		if w != nil {
			all = append(all, i)
		}
	}
	each(all, func(i int) error { return remote.Again(ctx, nil, func() error { return arm(ctx, i) }) })
	lacking := map[string][]int{}
	for _, i := range all {
		var lacks *LacksError
		if errors.As(errs[i], &lacks) {
			lacking[lacks.Machine] = append(lacking[lacks.Machine], i)
		}
	}
	for _, machine := range slices.Sorted(maps.Keys(lacking)) {
		which := lacking[machine]
		p, err := agents.ForMachine(machine)
		if err == nil && pass != nil && len(which) > 1 {
			pass(ctx, p, which)
		}
		each(which, func(i int) error { return bring(ctx, workers[i], agents, func() error { return arm(ctx, i) }) })
	}
	return errs
}

// ArmOne is Arm for a single worker, and sends the agent if the worker lacks it.
func ArmOne(ctx context.Context, r remote.Runner, agents program.Set, t Terms) error {
	return bring(ctx, r, agents, func() error {
		_, err := Arm(ctx, r, agents.Sums(), t)
		return err
	})
}

// RenewOne renews a lease like Renew. If the worker lacks the agent, RenewOne sends it.
func RenewOne(ctx context.Context, r remote.Runner, agents program.Set, run string, silent time.Duration) (held Held, err error) {
	err = bring(ctx, r, agents, func() error {
		held, err = Renew(ctx, r, agents.Sums(), run, silent)
		return err
	})
	return held, err
}

// bring calls arm, and sends the agent if the worker lacks it.
func bring(ctx context.Context, r remote.Runner, agents program.Set, arm func() error) error {
	err := remote.Again(ctx, nil, arm)
	var lacks *LacksError
	if !errors.As(err, &lacks) {
		return err
	}
	if err := remote.Again(ctx, nil, func() error { return Send(ctx, r, agents, lacks.Machine) }); err != nil {
		return err
	}
	return remote.Again(ctx, nil, arm)
}
