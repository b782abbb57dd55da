package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/workloadcmd"
	"multihost/internal/fault"
)

func workloadCommand() *cli.Command {
	return workloadcmd.Command(workloadcmd.Kit{
		Group:    group,
		Command:  endsWith,
		Follower: follower,
		Act: func(f func(*workloadcmd.Call) error) cli.ActionFunc {
			return withSession(func(s *session, c *call) error {
				w := workloadCall(s, c)
				if !w.InKubeconfig() {
					c.Refuse(s.unset)
				}
				return interruptible(c.Context, f(w))
			})
		},
	})
}

// follower completes a command that can end with errors of these kinds, or with the exit
// status of the user's command.
func follower(c cli.Command, kinds ...fault.Kind) *cli.Command {
	return command(c, slices.Insert(append(statusesOf(kinds), exitHangup, exitInterrupt, exitTerminate), 1, statusOfCommand)...)
}

func workloadCall(s *session, c *call) *workloadcmd.Call {
	return &workloadcmd.Call{
		Call: &c.Call, Machine: s.machine(c), View: s.view, Sink: s.sink, Clusters: s.clusters, Cloud: s.cloud, Agents: agents,
		DryRun: s.dryRun, UserAgent: "multihost/" + version(),
		Ready:   func() error { refuseConfirm(s, c); return ready(c) },
		Confirm: func(ctx context.Context, question string) error { return confirm(ctx, c, s.view, question) },
		Status:  func(code int) error { return &statusError{code} },
	}
}
