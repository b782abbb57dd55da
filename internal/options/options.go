// Package options has the flags that several commands share. It reads command lines into
// validated options for packages. The flags of run and job are in one table, with all that
// the program must know about each.
//
// A function that reads a line refuses what is wrong, with [cmdline.Line.Refuse]. The
// caller asks the line for the refusal before it uses the result.
package options

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// An Option is a flag of run or job with all that the program must know about it. Tests
// find rows that lack something, or differ from what the program does.
type Option struct {
	flag cli.Flag

	// read reads the flag, and refuses a value that is wrong by itself. If it is nil, with
	// says where the flag is read: with another flag, or in one of the places below.
	read func(r reading)
	with string
	bad  string // a value to refuse; "": every value of the flag's kind is right

	// plan is the place where a dry run shows the flag: the path of a field in plan.Plan.
	// If a dry run does not show the flag, unplanned says why.
	plan, unplanned string

	// key is where a job without runner has the flag: a key of the job's metadata, or kit,
	// request or refused. If it has the flag nowhere, unneeded says why.
	key, unneeded string

	try string // a value other than the default, which changes the plan and the key
}

// Places that read flags without a read function of their own.
const (
	inSession   = "the session"
	withWorkers = "the choice of workers"
	withRequest = "the request of slices"
	withBucket  = "the bucket"
	withNotify  = "the notifier"
)

// Places where a job without runner has a flag without a key.
const (
	kit     = "the files with which the workers start the command"
	request = "the request of slices"
	refused = "it is refused"
)

// Reasons why a job without runner needs no such flag.
const (
	ofRun      = "it is a flag of run"
	notWatched = "no runner follows the command"
	noUpload   = "the workers fetch the code from the bucket"
	noLogin    = "no runner logs in to the workers"
)

// Name returns the flag's own name.
func (o Option) Name() string { return cmdline.Name(o.flag) }

// Bad returns a value to refuse, or "" if every value of the flag's kind is right.
func (o Option) Bad() string { return o.bad }

// Try returns a value that changes the plan and the key, or "".
func (o Option) Try() string { return o.try }

// Plan returns the path of the field of plan.Plan that shows the option, or "".
func (o Option) Plan() string { return o.plan }

// Key returns the key under which a job without runner has the option, or "" if the option
// is elsewhere or nowhere. isRefused reports whether such a job refuses the option.
func (o Option) Key() (key string, isRefused bool) {
	switch o.key {
	case kit, request:
		return "", false
	case refused:
		return "", true
	}
	return o.key, false
}

// OfBucket reports whether the option is about the bucket of a job without runner, and
// means nothing to other jobs.
func (o Option) OfBucket() bool { return o.with == withBucket }

// RunRows returns the options of run, and JobRows those of job, in the order of the help.
// The flags of job that describe the request are also in the table of package qr: see
// RequestFlags.
func RunRows() []Option {
	return slices.Concat(selectOptions(), HostOptions(), KubeOptions(), PatienceOptions(), sharedOptions(), WatchingOptions(), []Option{restartsOption()}, ownRunOptions(), LoginOptions())
}

func JobRows() []Option {
	return slices.Concat(ownJobOptions(), WaitOptions(), PatienceOptions(), sharedOptions(), WatchingOptions(), LoginOptions())
}

// FlagsOf returns the flags of options.
func FlagsOf(rows []Option) []cli.Flag {
	all := make([]cli.Flag, len(rows))
	for i, row := range rows {
		all[i] = row.flag
	}
	return all
}

// options are the options of run and job. The command run uses only the field Run.
type options = job.JobOptions

// Flags are the values of a command's flags.
type Flags = cli.Context

// A Call carries out one command line, with the values of its flags.
type Call struct {
	*Flags
	*cmdline.Line
}

// A Machine has the facts about this machine and its user that options need besides the
// command line.
type Machine struct {
	Lookup    config.Lookup // the environment
	Home      string        // the user's home directory
	StateDir  string        // directory for records and host keys
	User      string        // the user of multihost, as in config.LocalUser
	UserNote  string        // why User has this value, if that may surprise the user
	Account   string        // account in gcloud's configuration
	LeastTerm time.Duration // the shortest time that --ttl and --lease accept
}

// A reading is a command line whose options are being read.
type reading struct {
	*Call
	m    Machine
	name string // of the flag
	o    *options
}

// readOptions reads the options of a command.
func readOptions(c *Call, m Machine, rows []Option) (o options) {
	for _, row := range rows {
		if row.read != nil {
			row.read(reading{c, m, row.Name(), &o})
		}
	}
	return o
}

// asBool, asText, asNumber, asTime and asOneOf return functions that read a flag into a field.
func asBool(field func(o *options) *bool) func(r reading) {
	return func(r reading) { *field(r.o) = r.Bool(r.name) }
}

func asText(field func(o *options) *string) func(r reading) {
	return func(r reading) { *field(r.o) = r.String(r.name) }
}

func asNumber(field func(o *options) *int) func(r reading) {
	return func(r reading) {
		*field(r.o) = r.Int(r.name)
		r.NotNegative(r, r.name)
	}
}

func asTime(field func(o *options) *time.Duration) func(r reading) {
	return func(r reading) {
		*field(r.o) = r.Duration(r.name)
		r.NotNegative(r, r.name)
	}
}

func asOneOf[T ~string](field func(o *options) *T, allowed ...T) func(r reading) {
	return func(r reading) {
		words := make([]string, len(allowed))
		for i, a := range allowed {
			words[i] = string(a)
		}
		*field(r.o) = T(r.String(r.name))
		r.OneOf(r.name, r.String(r.name), words...)
	}
}

// asTerm returns a function that reads a time after which workers delete the slices.
func asTerm(field func(o *options) *time.Duration) func(r reading) {
	return func(r reading) {
		d := r.Duration(r.name)
		if d != 0 && d < r.m.LeastTerm {
			r.Refuse(cmdline.Usagef("--%s=%s: it must be 1m or more, or 0", r.name, d), r.name)
		}
		*field(r.o) = d
	}
}

// asWaitTime returns a function that reads how long to wait for slices.
func asWaitTime(field func(o *options) *time.Duration) func(r reading) {
	return func(r reading) { *field(r.o) = waitTime(r.Call, r.name) }
}

func readCommand(r reading) {
	r.o.Run.Script, r.o.Run.Argv = r.String("command"), r.Argv
	refuseCommand(r.Call, r.o.Run.Script)
}

// readRunName reads --run-name, or makes a name.
func readRunName(r reading) {
	name := r.String(r.name)
	if name == "" {
		name = config.RunName(r.m.User, time.Now(), rand.Reader)
	}
	if err := config.CheckRunName(name); err != nil {
		r.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--run-name: %w", err)}, r.name)
	}
	r.o.Run.Run = name
}

// readScriptDir reads --script-dir, which --use-existing-folder excludes.
func readScriptDir(r reading) {
	if r.Bool("use-existing-folder") {
		return
	}
	r.o.Run.Dir = scriptDir(r.Call)
}

// scriptDir returns the absolute path that --script-dir names.
func scriptDir(c *Call) (path string) {
	dir := c.String("script-dir")
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = &cmdline.UsageError{Err: fmt.Errorf("--script-dir=%s: there is no such directory", dir)}
	case err != nil:
		err = &cmdline.ConfigError{Err: fmt.Errorf("--script-dir: %w", err)}
	case !info.IsDir():
		err = &cmdline.UsageError{Err: fmt.Errorf("--script-dir=%s: it is no directory", dir)}
	default:
		path, err = filepath.Abs(dir)
	}
	c.Refuse(err, "script-dir")
	return path
}

func readSyncTimeout(r reading) {
	r.o.Run.SyncTimeout = time.Duration(r.Int(r.name)) * time.Second
	if r.o.Run.SyncTimeout <= 0 {
		r.Refuse(cmdline.Usagef("--%s=%d: it must be more than 0", r.name, r.Int(r.name)), r.name)
	}
}

func readPlatform(r reading) {
	r.o.Run.Platform = Platform(r.Call, r.String(r.name), r.name)
}

func readNUMA(r reading) {
	var err error
	if r.o.Run.NUMA, err = preflight.ParseNUMA(r.String(r.name)); err != nil {
		r.Refuse(&cmdline.UsageError{Err: err}, r.name)
	}
}

func readMaxLog(r reading) {
	var err error
	if r.o.Run.MaxLog, err = config.ParseSize(r.String(r.name)); err != nil {
		r.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--%s: %w", r.name, err)}, r.name)
	}
}

func readWatch(r reading) { r.o.Run.Watch = Watch(r.Call) }

func readInterrupt(r reading) { checkOnInterrupt(r.Call) }

func readProcesses(r reading) {
	if r.o.Run.Processes = r.Int(r.name); r.o.Run.Processes < 1 {
		r.Refuse(cmdline.Usagef("--%s=%d: it must be 1 or more", r.name, r.o.Run.Processes), r.name)
	}
}

// readXLA reads presets and flags, and refuses those that are wrong on any worker.
func readXLA(r reading) {
	presets, flags := r.StringSlice("xla-preset"), r.StringSlice("xla-flag")
	r.o.Run.XLAPresets, r.o.Run.XLAFlags = presets, flags
	if len(presets)+len(flags) == 0 {
		return
	}
	generation := ""
	if ty, err := tpu.ParseType(r.String("tpu-type")); err == nil { // a flag of job
		generation = ty.Generation.Name
	}
	check := func(wanted xla.Request, flags ...string) {
		if err := xla.Load().CheckNames(wanted); err != nil {
			r.Refuse(&cmdline.UsageError{Err: err}, flags...)
		}
	}
	check(xla.Request{Presets: presets}, "xla-preset")
	check(xla.Request{Flags: flags}, "xla-flag")
	check(xla.Request{Presets: presets, Generation: generation}, "xla-preset", "tpu-type")
	check(xla.Request{Flags: flags, Generation: generation}, "xla-flag", "tpu-type")
}

// readEnvironment collects the command's variables from files, then from --env, then from
// secrets. Of equal names, the later one wins.
func readEnvironment(r reading) {
	add := func(flag string, vars []config.EnvVar, err error) {
		if err != nil {
			r.Refuse(&cmdline.UsageError{Err: err}, flag)
		}
		for _, v := range vars {
			refuseVariable(r.Call, flag, v.Name, v.Value)
		}
		r.o.Run.Env = append(r.o.Run.Env, vars...)
	}
	for _, path := range r.StringSlice("env-file") {
		vars, err := config.ReadEnvFile(r.Context, path)
		switch {
		case r.Context.Err() != nil:
			r.Refuse(context.Cause(r.Context))
		case err != nil:
			r.Refuse(&cmdline.ConfigError{Err: fmt.Errorf("--env-file: %w", err)}, "env-file")
		}
		add("env-file", vars, nil)
	}
	vars, err := config.ParseEnvAssignments(r.StringSlice("env"))
	add("env", vars, err)
	var names []string
	for _, text := range r.StringSlice("secret-env") {
		if !strings.Contains(text, "=sm://") {
			names = append(names, text)
			continue
		}
		secret, err := detach.ParseSecret(text)
		if err != nil {
			r.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--secret-env: %w", err)}, "secret-env")
			continue
		}
		refuseVariable(r.Call, "secret-env", secret.Name, "")
		r.o.Run.Secrets = append(r.o.Run.Secrets, secret)
	}
	secrets, err := config.SecretEnv(r.m.Lookup, names)
	add("secret-env", secrets, err)
}

// refuseVariable refuses an environment variable that the command cannot have.
func refuseVariable(c *Call, flag, name, value string) {
	if strings.HasPrefix(name, "MULTIHOST_") {
		c.Refuse(cmdline.Usagef("environment variable %q: names beginning with MULTIHOST_ are set by multihost", name), flag)
	}
	if err := (launch.EnvVar{Name: name, Value: value}).Validate(); err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, flag)
	}
}

func readPreemptions(r reading) {
	var err error
	if r.o.Budget.Preemptions, err = config.ParseLimit(r.String(r.name)); err != nil {
		r.Refuse(cmdline.Usagef("--%s=%s: it is a number from 0, or unlimited", r.name, r.String(r.name)), r.name)
	}
}

func readKeepOnFailure(r reading) {
	keep := r.Generic(r.name).(*cmdline.Optional)
	if !keep.Given || keep.Text == "false" {
		return
	}
	r.o.KeepOnFailure = true
	if keep.Text == "true" {
		return
	}
	var err error
	if r.o.KeepFor, err = time.ParseDuration(keep.Text); err != nil || r.o.KeepFor <= 0 {
		r.Refuse(cmdline.Usagef("--%s=%s: it is a time such as 2h or 30m", r.name, keep.Text), r.name)
	}
}

// RefuseRunnerless refuses the flags that a job without runner cannot obey, in the order on
// the line.
func RefuseRunnerless(c *Call) {
	rows := slices.DeleteFunc(JobRows(), func(o Option) bool { return o.key != refused || c.Typed[o.Name()] == "" })
	slices.SortStableFunc(rows, func(a, b Option) int { return cmp.Compare(c.Place(a.Name()), c.Place(b.Name())) })
	for _, o := range rows {
		c.Refuse(cmdline.Usagef("--%s: it does nothing for a job without runner (--detach with --bucket-name)", o.Name()), o.Name(), "detach", "bucket-name")
	}
}
