// Package deliver copies multihost-agent to the workers of a run that lack it. As in a
// sync, the runner sends the agent to a few workers, and these pass it on.
package deliver

import (
	"context"

	"multihost/internal/agent/program"
	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/lease"
	"multihost/internal/remote"
)

// Each calls arm for all workers at the same time. If a worker lacks the agent, Each copies
// it there and calls arm again. Each skips targets without Conn. It uses only the relay
// settings of o. Each prints nothing. errs[i] belongs to targets[i].
func Each(ctx context.Context, agents program.Set, o codesync.Options, targets []codesync.Target, arm func(ctx context.Context, i int) error) []error {
	o.Sink = event.Discard
	workers := make([]remote.Runner, len(targets))
	for i, t := range targets {
		if t.Conn != nil {
			workers[i] = t.Conn
		}
	}
	pass := func(ctx context.Context, agent program.Program, lacking []int) {
		some := make([]codesync.Target, len(lacking))
		for n, i := range lacking {
			some[n] = targets[i]
		}
		codesync.PushFile(ctx, o, some, agent.SHA256, agent.Unpack)
	}
	return lease.Each(ctx, workers, agents, pass, arm)
}
