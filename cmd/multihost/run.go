package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

func runCommand() *cli.Command {
	return command(cli.Command{
		Name:      "run",
		Usage:     "run a command on every worker of slices that exist",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Ships the current directory to every worker of the slices, tunes the workers'
network, frees the TPU, starts the command on all workers at once and follows
it to its end. Nothing starts anywhere before every worker is ready.

  multihost run --tpu-prefix=train --command='bash setup.sh && python3 train.py'
  multihost run --tpu-prefix=train -- python3 train.py --steps=100

--command is one bash script. Words after -- are run as they are, without a
shell.

MaxText's upper-case names work, too: multihost run --help=all lists them.

The environment of the command has MULTIHOST_RUN, MULTIHOST_ATTEMPT,
MULTIHOST_SLICE_ID, MULTIHOST_NUM_SLICES, MULTIHOST_WORKER_ID,
MULTIHOST_NUM_WORKERS (of its slice), MULTIHOST_PROCESS_ID,
MULTIHOST_NUM_PROCESSES, MULTIHOST_WORKER_IP and MULTIHOST_COORDINATOR_IP.

With --max-restarts a command that fails is started again on the same slices;
also when a worker is lost, if its slice comes back. If the slices are taken
away, the run ends. multihost job makes them again.

On a terminal, Ctrl-C asks whether to stop the command or to leave it running.
Elsewhere it stops the command on every worker and proves it; a second Ctrl-C
leaves at once. If you close the terminal, the command goes on: see multihost
attach.`,
		Flags: slices.Concat(selectFlags(), hostFlags(), commandFlags(), watchFlags(), []cli.Flag{
			maxRestartsFlag(),
			&cli.IntFlag{Name: "processes-per-worker", Value: 1, Usage: "start `K` processes of the command on each worker, for example one for each GPU"},
			&cli.BoolFlag{Name: "use-existing-folder", Aliases: []string{"USE_EXISTING_FOLDER"}, Usage: "copy nothing; the command runs in the directory that the run --run-name left on the workers"},
		}, sshFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := runOptions(s, c)
			w := namedWorkers(s, c)
			o.Prefix, o.Slices, o.AllowPartial = w.Prefix, w.Slices, w.Partial
			if o.Processes = c.Int("processes-per-worker"); o.Processes < 1 {
				c.Refuse(usagef("--processes-per-worker=%d: it must be 1 or more", o.Processes), "processes-per-worker")
			}
			if o.UseExisting && c.String("run-name") == "" {
				c.Refuse(&usageError{Err: errors.New("--use-existing-folder needs the run whose folder it is"), Advice: "add --run-name=NAME"}, "use-existing-folder")
			}
			told := notifyOptions(s, c, o.Run, o.Env)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			onInterrupts(s, c, d)
			defer warnOfLeftovers(s, c, d, o.Prefix)()
			if s.dryRun {
				return s.showPlan(c, func() (job.Plan, error) { return d.PlanRun(c.Context, o) })
			}
			return notified(c, told, d, func() (job.Outcome, error) { return d.Run(c.Context, o) })
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPreflight, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// showPlan shows the plan of a dry run.
func (s *session) showPlan(c *call, plan func() (job.Plan, error)) error {
	made, err := plan()
	if err != nil {
		return interruptible(c.Context, err)
	}
	s.view.Emit(event.Result{Name: "plan", Text: made.String(), Data: made})
	return nil
}

// withSession returns the action of a command that needs a session.
func withSession(action func(s *session, c *call) error) cli.ActionFunc {
	return act(func(c *call) error {
		s, err := open(c)
		if err != nil {
			return err
		}
		defer s.close()
		return withSimSlices(c, action(s, c))
	})
}

// withSimSlices adds to an error about slices that do not exist how a simulator gets
// some.
func withSimSlices(c *call, err error) error {
	var none *tpu.NoSlicesError
	if !c.Bool("sim") || !errors.As(err, &none) || len(none.Present) > 0 {
		return err
	}
	return &noSliceError{error: err, Advice: "--sim starts a simulator without slices; give it some with: --sim-slices=" + none.Prefix + ":1xv5litepod-16"}
}

// outcome turns the result of a run into the error that sets the exit status.
func outcome(out job.Outcome, err error) error {
	if status := out.Status(); err == nil && status != 0 {
		return &statusError{status}
	}
	return err
}

// runOptions reads the flags that run and job share.
func runOptions(s *session, c *call) job.RunOptions {
	o := job.RunOptions{
		Run:         c.String("run-name"),
		UseExisting: c.Bool("use-existing-folder"),
		NoIgnore:    c.Bool("no-ignore"),
		Adopt:       c.Bool("adopt"),
		Home:        c.home,
		SyncTimeout: time.Duration(c.Int("scp-timeout-secs")) * time.Second,
		Relay:       codesync.Relay(c.String("relay")),
		RelayFanout: c.Int("relay-fanout"),
		Script:      c.String("command"),
		Argv:        c.Argv,
		Preflight:   c.String("preflight"),
		Skew:        job.SkewMode(c.String("skew")),
		Platform:    platform(c, c.String("platform"), "platform"),
		Install:     c.Bool("install"),
		Venv:        c.Bool("venv"),
		LogDir:      c.String("log-dir"),
		Detach:      c.Bool("detach"),
		Timeout:     c.Duration("timeout"),
		FailFast:    c.Bool("fail-fast"),
		Grace:       c.Duration("grace"),
		Replace:     c.Bool("replace"),
		KillStale:   launch.FreePolicy(c.String("kill-stale")),
		StrictExit:  c.Bool("strict-exit"),
		Patience:    job.Patience{Lost: c.Duration("lost-timeout"), Quiet: c.Duration("quiet-after"), Log: c.Duration("log-timeout")},
		Env:         environment(s, c),
		Secrets:     storedSecrets(c),
		Watch:       watchOptions(c),
		XLAPresets:  c.StringSlice("xla-preset"),
		XLAFlags:    c.StringSlice("xla-flag"),
		StartLimit:  c.Duration("start-timeout"),
		MaxRestarts: c.Int("max-restarts"),
	}
	if len(c.Words) > 0 {
		c.Refuse(strayWord(c, c.Words[0]), cmdline.Word)
	}
	refuseCommand(c, o.Script)
	if o.SyncTimeout <= 0 {
		c.Refuse(usagef("--scp-timeout-secs=%d: it must be more than 0", c.Int("scp-timeout-secs")), "scp-timeout-secs")
	}
	c.NotNegative(c, "relay-fanout", "timeout", "grace", "start-timeout", "max-restarts", "lost-timeout", "log-timeout", "quiet-after")
	c.OneOf("preflight", o.Preflight, "apply", "require", "check", "off")
	c.OneOf("skew", string(o.Skew), string(job.SkewCheck), string(job.SkewWarn), string(job.SkewOff))
	c.OneOf("relay", string(o.Relay), string(codesync.RelayAuto), string(codesync.RelayOn), string(codesync.RelayOff))
	c.OneOf("kill-stale", string(o.KillStale), string(launch.FreeOrphans), string(launch.FreeAll))
	checkOnInterrupt(c)
	var err error
	if o.NUMA, err = preflight.ParseNUMA(c.String("numa")); err != nil {
		c.Refuse(&usageError{Err: err}, "numa")
	}
	if o.Run == "" {
		login, _ := config.LocalUser(s.lookup, s.account)
		o.Run = config.RunName(login, time.Now(), rand.Reader)
	}
	if err := config.CheckRunName(o.Run); err != nil {
		c.Refuse(&usageError{Err: fmt.Errorf("--run-name: %w", err)}, "run-name")
	}
	checkXLA(c)
	if o.MaxLog, err = parseSize(c.String("max-log")); err != nil {
		c.Refuse(&usageError{Err: fmt.Errorf("--max-log: %w", err)}, "max-log")
	}
	o.Dir, err = scriptDir(c.String("script-dir"), o.UseExisting)
	c.Refuse(err, "script-dir")
	if o.Watch.OnStall == job.StallRestart && o.MaxRestarts == 0 {
		c.Refuse(&usageError{Err: errors.New("--on-stall=restart: no restart is allowed"), Advice: "add --max-restarts=3, or some other number"}, "on-stall", "max-restarts")
	}
	if o.Detach && o.MaxRestarts > 0 {
		c.Refuse(usagef("--max-restarts and --detach: nobody would be there to start it again"), "max-restarts", "detach")
	}
	if c.Bool("sim") && o.Detach && c.String("bucket-name") == "" {
		c.Refuse(&usageError{Err: errors.New("--sim and --detach: the simulator ends with this command, and the run with it"),
			Advice: "start a simulator that stays: multihost sim up --background; eval \"$(multihost sim env)\""}, "sim", "detach")
	}
	return o
}

// checkXLA refuses presets and flags that are wrong on any worker.
func checkXLA(c *call) {
	generation := ""
	if ty, err := tpu.ParseType(c.String("tpu-type")); err == nil { // a flag of job
		generation = ty.Generation.Name
	}
	check := func(r xla.Request, flags ...string) {
		if err := xla.Load().CheckNames(r); err != nil {
			c.Refuse(asUsage(err), flags...)
		}
	}
	presets, flags := c.StringSlice("xla-preset"), c.StringSlice("xla-flag")
	if len(presets)+len(flags) == 0 {
		return
	}
	check(xla.Request{Presets: presets}, "xla-preset")
	check(xla.Request{Flags: flags}, "xla-flag")
	check(xla.Request{Presets: presets, Generation: generation}, "xla-preset", "tpu-type")
	check(xla.Request{Flags: flags, Generation: generation}, "xla-flag", "tpu-type")
}

// strayWord returns the error for a word that is neither a flag nor after --.
func strayWord(c *call, word string) error {
	hint := "quote the command: --command='…', or put its words after --"
	switch word {
	case "help":
		hint = "type: multihost " + strings.Join(c.Line.Path, " ") + " --help"
	case "true", "false":
		hint = "the value of a switch stands after =, as in --allow-partial=" + word + "; a program of that name after --"
	}
	return &usageError{Err: fmt.Errorf("word %q is neither a flag nor after --", word), Advice: hint}
}

func scriptDir(dir string, unused bool) (string, error) {
	if unused {
		return "", nil
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", &usageError{Err: fmt.Errorf("--script-dir=%s: there is no such directory", dir)}
	case err != nil:
		return "", &configError{Err: fmt.Errorf("--script-dir: %w", err)}
	case !info.IsDir():
		return "", &usageError{Err: fmt.Errorf("--script-dir=%s: it is no directory", dir)}
	}
	return filepath.Abs(dir)
}

// environment collects the command's variables: files first, then --env, then
// secrets; later ones win.
func environment(s *session, c *call) (all []config.EnvVar) {
	add := func(flag string, vars []config.EnvVar, err error) {
		if err != nil {
			c.Refuse(asUsage(err), flag)
		}
		for _, v := range vars {
			refuseVariable(c, flag, v.Name, v.Value)
		}
		all = append(all, vars...)
	}
	for _, path := range c.StringSlice("env-file") {
		vars, err := config.ReadEnvFile(c.Context, path)
		switch {
		case c.Context.Err() != nil:
			c.Refuse(context.Cause(c.Context))
		case err != nil:
			c.Refuse(&configError{Err: fmt.Errorf("--env-file: %w", err), Advice: hintOf(err)}, "env-file")
		}
		add("env-file", vars, nil)
	}
	vars, err := config.ParseEnvAssignments(c.StringSlice("env"))
	add("env", vars, err)
	var names []string
	for _, text := range c.StringSlice("secret-env") {
		if !strings.Contains(text, "=sm://") {
			names = append(names, text)
		}
	}
	secrets, err := config.SecretEnv(s.lookup, names)
	add("secret-env", secrets, err)
	return all
}

// refuseVariable refuses an environment variable that the command cannot have.
func refuseVariable(c *call, flag, name, value string) {
	if strings.HasPrefix(name, "MULTIHOST_") {
		c.Refuse(usagef("environment variable %q: names beginning with MULTIHOST_ are set by multihost", name), flag)
	}
	if err := (launch.EnvVar{Name: name, Value: value}).Validate(); err != nil {
		c.Refuse(asUsage(err), flag)
	}
}

// storedSecrets returns the secrets that workers read from Secret Manager.
func storedSecrets(c *call) (all []detach.Secret) {
	for _, text := range c.StringSlice("secret-env") {
		if !strings.Contains(text, "=sm://") {
			continue
		}
		secret, err := detach.ParseSecret(text)
		if err != nil {
			c.Refuse(&usageError{Err: fmt.Errorf("--secret-env: %w", err)}, "secret-env")
			continue
		}
		refuseVariable(c, "secret-env", secret.Name, "")
		all = append(all, secret)
	}
	return all
}

// interruptible returns the cause of ctx's end in place of the error that the end made a
// waiting command return. A *job.Error is kept beside the cause.
func interruptible(ctx context.Context, err error) error {
	var told *job.Error
	if err == nil || ctx.Err() == nil {
		return err
	}
	if errors.As(err, &told) {
		return errors.Join(context.Cause(ctx), err)
	}
	return context.Cause(ctx)
}

// parseSize reads a number of bytes with an optional kB, MB or GB; none is -1.
func parseSize(text string) (int64, error) {
	if text == "none" {
		return -1, nil
	}
	upper := strings.ToUpper(text)
	scale := int64(1)
	for _, unit := range []struct {
		suffix string
		scale  int64
	}{{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}} {
		if rest, ok := strings.CutSuffix(upper, unit.suffix); ok {
			upper, scale = strings.TrimSpace(rest), unit.scale
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(upper, "B"), 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/scale {
		return 0, fmt.Errorf("size %q: want a number with kB, MB or GB, or none", text)
	}
	return n * scale, nil
}
