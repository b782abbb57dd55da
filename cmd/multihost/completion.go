package main

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/complete"
	"multihost/internal/event"
	"multihost/internal/sim"
)

// Completion has two halves. A script for each shell passes the typed words to this
// program, and the program answers. So completion always knows what this binary knows, and
// the scripts need not change with the program.

var (
	//go:embed completion/bash.sh
	bashCompletion string
	//go:embed completion/zsh.zsh
	zshCompletion string
	//go:embed completion/fish.fish
	fishCompletion string
)

// completionScripts returns the scripts by shell.
func completionScripts() map[string]string {
	return map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
}

func completionCommand() *cli.Command {
	return command(cli.Command{
		Name:      "completion",
		Usage:     "print the script that lets a shell complete multihost's commands, flags and names",
		ArgsUsage: "bash|zsh|fish",
		Description: `Completes commands, flags and their values: accelerator types, runtime versions,
zones, XLA presets, and the names of runs on this machine, of slices and of
queued resources. For the last two it asks the API, with a limit of 2 seconds, and
keeps the answer for a minute.

  source <(multihost completion bash)
  source <(multihost completion zsh)
  multihost completion fish | source

Each script says at its beginning how to load it in every shell.`,
		Action: act(func(c *call) error {
			shell := c.OneWord("shell", "")
			script := completionScripts()[shell]
			if script == "" {
				c.Refuse(&usageError{Err: fmt.Errorf("no completion for %q", shell), Advice: "the shells are bash, zsh and fish"}, cmdline.Word)
			}
			return show(c, event.Result{Name: "completion", Text: script, Data: completionScript{shell, script}})
		}),
	}, exitOK, exitUsage)
}

// completionScript is the result of completion.
type completionScript struct {
	Shell  string `json:"shell"`
	Script string `json:"script"`
}

// namesLimit limits the time that the API may take to return names. A user who has pressed
// Tab does not wait longer. Tests on busy machines raise it.
var namesLimit = 2 * time.Second

// completions say how values and words are completed.
func completions(p process) cmdline.CompleteRules {
	s := complete.Sources{Lookup: p.lookup, Home: p.home, Ask: p.quiet().namesOf}
	for _, f := range sim.Faults() {
		s.Faults = append(s.Faults, complete.Fault{Name: f.Name, What: f.What, Args: f.Args})
	}
	return s.Rules([]string{"script-dir", "log-dir", "state-dir", "sim-dir"})
}

// namesOf asks the API for the names that a user can type at this place of a command line.
// It returns none if it would have to start a simulator for that.
func (p process) namesOf(q *cmdline.Query) (names complete.Names) {
	c := &call{process: p}
	c.Line = q.Line()
	if c.Line == nil || c.Setting("sim") == "true" || len(c.Line.Path) == 0 {
		return names
	}
	program := c.program()
	cmdline.FindCommand(program.App.Commands, c.Line.Path...).Action = withSession(func(s *session, c *call) (err error) {
		if err = ready(c); err != nil || s.all == nil {
			return err
		}
		roots, err := s.cloud.Roots()
		if err != nil {
			return err
		}
		asking := complete.Asking{
			Place: s.cloud.Project() + "/" + s.cloud.Zone() + " at " + roots.TPU, StateDir: s.stateDir, Limit: namesLimit,
			Slices: s.all.Slices, Queued: s.queue.IDs,
		}
		if c.Line.Path[0] == "slices" {
			asking.Place, asking.Queued = asking.Place+" with all providers", s.all.IDs
		}
		names, err = complete.Ask(c.Context, asking)
		return err
	})
	_ = c.Run(q.Context, program.App) // errors are ignored: then there are no names
	return names
}
