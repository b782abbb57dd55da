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
		Group:   group,
		Command: endsWith,
		Follower: func(c cli.Command, kinds ...fault.Kind) *cli.Command {
			return command(c, slices.Insert(append(statusesOf(kinds), exitHangup, exitInterrupt, exitTerminate), 1, statusOfCommand)...)
		},
		Act: func(f func(*workloadcmd.Call) error) cli.ActionFunc {
			return withSession(func(s *session, c *call) error {
				w := &workloadcmd.Call{
					Call: &c.Call, Machine: s.machine(c), View: s.view, Sink: s.sink, Clusters: s.clusters, Cloud: s.cloud, Agents: agents,
					DryRun: s.dryRun, UserAgent: "multihost/" + version(),
					Ready:   func() error { refuseConfirm(s, c); return ready(c) },
					Confirm: func(ctx context.Context, question string) error { return confirm(ctx, c, s.view, question) },
					Status:  func(code int) error { return &statusError{code} },
				}
				if !w.InKubeconfig() {
					c.Refuse(s.unset)
				}
				return interruptible(c.Context, f(w))
			})
		},
	})
}
