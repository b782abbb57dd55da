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
		Group: group,
		Command: func(c cli.Command, follows bool, kinds ...fault.Kind) *cli.Command {
			ends := []int{exitOK}
			for _, k := range kinds {
				ends = append(ends, statuses[k])
			}
			slices.Sort(ends)
			if follows {
				ends = slices.Insert(append(ends, exitHangup, exitInterrupt, exitTerminate), 1, statusOfCommand)
			}
			return command(c, ends...)
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
