package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/clustercmd"
	"multihost/internal/fault"
)

func clusterCommand() *cli.Command {
	return clustercmd.Command(clustercmd.Kit{
		Group:   group,
		Command: endsWith,
		Act: func(f func(*clustercmd.Call) error) cli.ActionFunc {
			return withSession(func(s *session, c *call) error {
				return interruptible(c.Context, f(clusterCall(s, c)))
			})
		},
	})
}

// endsWith adds the kinds of errors with which a command can end.
func endsWith(c cli.Command, kinds ...fault.Kind) *cli.Command {
	return command(c, statusesOf(kinds)...)
}

// statusesOf returns the exit statuses for success and for errors of these kinds, in order.
func statusesOf(kinds []fault.Kind) []int {
	ends := []int{exitOK}
	for _, k := range kinds {
		ends = append(ends, statuses[k])
	}
	slices.Sort(ends)
	return ends
}

func clusterCall(s *session, c *call) *clustercmd.Call {
	of := &clustercmd.Call{
		Call: &c.Call, Machine: s.machine(c), View: s.view, Clusters: s.clusters, Networks: s.networks, DryRun: s.dryRun,
		Ready:   func() error { refuseConfirm(s, c); return ready(c) },
		CanAsk:  func() bool { return canConfirm(c, s.view) },
		Confirm: func(ctx context.Context, question string) error { return confirm(ctx, c, s.view, question) },
	}
	if s.cloud != nil {
		of.Project = s.cloud.Project()
	}
	return of
}
