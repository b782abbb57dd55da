package main

import (
	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/xpkcmd"
)

func xpkCommand() *cli.Command {
	return xpkcmd.Command(xpkcmd.Kit{
		Group: group, Command: endsWith, Follower: follower,
		Act: func(f func(*xpkcmd.Call) error) cli.ActionFunc {
			return withSession(func(s *session, c *call) error {
				return interruptible(c.Context, f(&xpkcmd.Call{Call: clusterCall(s, c), Workloads: workloadCall(s, c)}))
			})
		},
	})
}
