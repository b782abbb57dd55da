package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/ops"
	"multihost/internal/options"
)

func cpCommand() *cli.Command {
	return command(cli.Command{
		Name:      "cp",
		Usage:     "copy files and directories to workers, or from them",
		ArgsUsage: "SOURCE… DEST",
		Description: `Either the sources or DEST are on workers. To name a file on
workers, write the workers, a colon and the path: s0w0:x. If a local name looks like
that, write ./s0w0:x.

  multihost cp data.json all:/tmp/ --tpu-prefix=train
  multihost cp 'part-{slice}-{worker}.bin' all:part.bin --tpu-prefix=train
  multihost cp 's0w*:~/train/profile' profiles --tpu-prefix=train
  multihost cp 'all:/tmp/*.log' 'logs-{slice}-{worker}/' --tpu-prefix=train

Names on workers are relative to the home directory. Sources on workers may be
patterns. If DEST ends with a slash or is a directory, the files keep their names
in it; otherwise DEST is the new name. {slice} and {worker} in a local name stand
for the numbers of each worker. Without them, the files of several workers go
into one directory for each worker: DEST/s0w0/…

Modes, times, symbolic links and empty directories are kept. A file gets its name,
and replaces an earlier file of that name, only when a digest proves that all of it
has arrived. A copy to workers changes nothing on any worker until everything has
arrived on all of them. If a copy from one worker fails, the copies from the others
still succeed.

Files from workers may lie in the directory of your program. A later run does not
ship them, unless you change them, git tracks them, or .multihostignore has their
names with a ! before them.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "exclude-workers", Usage: "leave out the workers that `PATTERN` names"},
		}, options.QuickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o, up := options.Copy(&c.Call, s.hosts != nil)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			if up {
				return interruptible(c.Context, ops.CopyTo(c.Context, opsDeps(d), o))
			}
			return interruptible(c.Context, ops.CopyFrom(c.Context, opsDeps(d), o))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitIO, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}
