package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/job"
	"multihost/internal/tpu"
)

func cpCommand() *cli.Command {
	return command(cli.Command{
		Name:      "cp",
		Usage:     "copy files and directories to workers, or from them",
		ArgsUsage: "SOURCE… DEST",
		Description: `Either the sources or DEST are on workers. A name on workers begins with their
names and a colon. If a local name looks like that, write ./s0w0:x.

  multihost cp data.json all:/tmp/ --tpu-prefix=train
  multihost cp 'part-{slice}-{worker}.bin' all:part.bin --tpu-prefix=train
  multihost cp 's0w*:~/train/profile' profiles --tpu-prefix=train
  multihost cp 'all:/tmp/*.log' 'logs-{slice}-{worker}/' --tpu-prefix=train

Names on workers are relative to the home directory. Sources on workers may be
patterns. If DEST ends with a slash or is a directory, the files keep their names
in it; otherwise DEST is the new name. {slice} and {worker} in a local name stand
for the numbers of each worker. Without them, the files of several workers go
into one directory for each worker: DEST/s0w0/…

Modes, times, symbolic links and empty directories are kept. A file takes its
place, or the place of an earlier one, only when a digest proves that it has
arrived whole. A copy to workers changes nothing on any worker until everything
has arrived on all of them. In a copy from workers, each worker succeeds or fails
by itself.

Files from workers may lie in the directory of your program. A later run does not
ship them, unless you change them, git tracks them, or .multihostignore has their
names with a ! before them.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "exclude-workers", Usage: "leave out the workers that `PATTERN` names"},
		}, quickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o, up := copyOptions(s, c)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			if up {
				return interruptible(c.Context, d.CopyTo(c.Context, o))
			}
			return interruptible(c.Context, d.CopyFrom(c.Context, o))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitIO, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// copyOptions reads which files to copy, and whether they go to workers.
func copyOptions(s *session, c *call) (o job.CopyOptions, up bool) {
	o.Workers, o.Except = namedWorkers(s, c), parsePattern(c, "exclude-workers")
	up, err := copiedFiles(c, &o)
	c.Refuse(err, cmdline.Word, cmdline.Dashes)
	return o, up
}

// copiedFiles reads the sources and the destination from the words of the command.
func copiedFiles(c *call, o *job.CopyOptions) (up bool, err error) {
	words := slices.Concat(c.Words, c.Argv)
	if len(words) < 2 {
		return false, &usageError{Err: errors.New("multihost cp needs a source and a destination"), Advice: "type: multihost cp FILE all:FILE, or multihost cp s0w0:FILE FILE"}
	}
	names := make([]string, len(words)) // the workers before each colon, "" for a local name
	for i, w := range words {
		if pattern, rest, ok := cutWorkers(w); ok {
			names[i], words[i] = pattern, rest
		} else if w == "" {
			return false, usagef("multihost cp: a name is empty")
		}
	}
	last := len(words) - 1
	o.Sources, o.Dest = words[:last], words[last]
	whose := names[last]
	up = whose != ""
	if !up {
		whose = names[0]
	}
	for i, name := range names {
		if i < last && up && name != "" {
			return up, usagef("multihost cp: %q and %q are both on workers; multihost copies to or from this machine", word(c, i), word(c, last))
		}
		if i < last && !up && name != whose {
			return up, usagef("multihost cp: the sources are on different workers (%q, %q)", word(c, 0), word(c, i))
		}
	}
	if whose == "" {
		for _, w := range words {
			name, file, _ := strings.Cut(w, ":")
			if likely := likelyWorkers(name); likely != "" && file != "" {
				return up, &usageError{Err: fmt.Errorf("multihost cp: %q names no workers", name), Advice: "did you mean " + likely + ":" + file + "?"}
			}
		}
		return up, &usageError{Err: errors.New("multihost cp: neither the sources nor the destination are on workers"), Advice: "names on workers begin with the workers and a colon: all:FILE, s0w3:FILE, s0w*:FILE"}
	}
	o.Only, err = tpu.ParsePattern(whose)
	return up, err
}

// word returns the i-th word of the command line.
func word(c *call, i int) string { return slices.Concat(c.Words, c.Argv)[i] }

// cutWorkers cuts s0w3:name into the workers and the name; ok is false for a local name.
func cutWorkers(word string) (workers, name string, ok bool) {
	workers, name, ok = strings.Cut(word, ":")
	if !ok {
		return "", word, false
	}
	if _, err := tpu.ParsePattern(workers); err != nil {
		return "", word, false
	}
	return workers, name, true
}
