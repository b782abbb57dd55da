package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

func (p *program) hostkeyCommand() *cli.Command {
	return p.group(cli.Command{
		Name:  "hostkey",
		Usage: "accept the changed host key of a worker",
		Subcommands: []*cli.Command{command(cli.Command{
			Name: "forget", Usage: "forget the pinned host key of one worker; the next connection pins the key it then has", ArgsUsage: "WORKER",
			Flags: flags(selectFlags(), sshFlags()),
			Action: p.withSession(func(s *session, c *cli.Context) error {
				id, err := tpu.ParseWorkerID(p.oneArgument("multihost hostkey forget", "worker"))
				if err != nil {
					p.inv.refuse(&usageError{err: err}, positional)
				} else if c.String("tpu-prefix") == "" {
					p.inv.refuse(&usageError{err: errors.New("which slices? --tpu-prefix is missing"), hint: fmt.Sprintf("type: multihost hostkey forget %s --tpu-prefix=NAME; multihost qr list shows what is there", id)})
				}
				numbers := p.slicesOf(c)
				d, err := s.workers(p, c)
				if err != nil {
					return err
				}
				removed, err := d.ForgetHostKey(c.Context, c.String("tpu-prefix"), numbers, id)
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
