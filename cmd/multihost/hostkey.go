package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/options"
	"multihost/internal/runs"
	"multihost/internal/tpu"
)

func hostkeyCommand() *cli.Command {
	return group(cli.Command{
		Name:  "hostkey",
		Usage: "accept the changed host key of a worker",
		Subcommands: []*cli.Command{command(cli.Command{
			Name: "forget", Usage: "forget the pinned host key of one worker; the next connection pins its new key", ArgsUsage: "WORKER",
			Flags: slices.Concat(options.SelectFlags(), options.SSHFlags()),
			Action: withSession(func(s *session, c *call) error {
				id, err := tpu.ParseWorkerID(c.OneWord("worker", ""))
				if err != nil {
					c.Refuse(&usageError{Err: err}, cmdline.Word)
				} else if c.String("tpu-prefix") == "" {
					c.Refuse(&usageError{Err: errors.New("which slices? --tpu-prefix is missing"), Advice: fmt.Sprintf("type: multihost hostkey forget %s --tpu-prefix=NAME; multihost slices list shows what is there", id)})
				}
				numbers := options.Slices(&c.Call)
				d, err := s.workers(c)
				if err != nil {
					return err
				}
				removed, err := runs.ForgetHostKey(c.Context, runsDeps(d), c.String("tpu-prefix"), numbers, id)
				if err != nil {
					return interruptible(c.Context, err)
				}
				text := fmt.Sprintf("forgot the host key of %s", id)
				if !removed {
					text = fmt.Sprintf("no host key of %s is pinned: nothing to forget", id)
				}
				s.view.Emit(event.Note{Level: event.Info, Text: text})
				return nil
			}),
		}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)},
	})
}
