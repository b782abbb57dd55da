// Package attempt makes one attempt of a run on connected workers. First it decides, from
// reads alone. A dry run shows that decision. Then it prepares the workers, starts the
// command on all of them or on none, and follows it.
//
// # Decisions
//
//   - Only a worker knows its missing files, its settings and the holders of its TPU. For
//     these, a dry run uses the run's own operations in a form that changes nothing.
//     gcp.Config.ReadOnly and sshfan.Config.ReadOnly refuse every change.
//   - Idempotent operations (check, preflight, freeing the TPU) are repeated after a break
//     of the connection. If the boot id of a worker has changed since the preflight, the
//     start ends with an error, because the settings are gone.
//   - MULTIHOST_WORKER_IP is in the command's environment, because workers that talk to
//     each other need their own address.
package attempt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/preflight"
	"multihost/internal/record"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

type Deps struct {
	*workers.Reach
	*record.Keeper
	Networks settings.Networks // nil: do not read networks
	Roots    gcp.Roots         // of the APIs that workers call themselves

	// Checked is called before the first request, after all checks without a request. It
	// may be nil.
	Checked func()
}

// Options describes one start of a command on existing slices.
type Options struct {
	Prefix       string
	Slices       tpu.Numbers // only the slices with these numbers in their names; the run numbers them anew
	AllowPartial bool
	Run          string // name, and the working directory below the login's home

	Dir         string // local directory to sync
	Home        string // the user's home directory, which must not be synced by accident
	UseExisting bool   // sync nothing, use the existing working directory
	Adopt       bool   // sync into a directory that no sync made
	NoIgnore    bool
	SyncTimeout time.Duration  // longest time without progress of one worker's sync
	Relay       codesync.Relay // whether workers pass files on
	RelayFanout int            // number of workers that get the files from this machine; 0: one of each slice

	Script  string   // exactly one of Script and Argv
	Argv    []string // runs without a shell
	Env     []config.EnvVar
	Venv    bool // run in the run's Python virtual environment
	MaxText bool // set the variables that MaxText's multihost_job.py sets

	XLAPresets, XLAFlags []string // see internal/xla

	Skew      SkewMode
	Preflight string // apply, require, check or off
	Platform  preflight.Platform
	Install   bool
	NUMA      preflight.NUMA

	Secrets []detach.Secret // workers read them

	LogDir     string // "": below Deps.StateDir
	Detach     bool
	Processes  int           // processes of the command on each worker; 0 means 1
	Timeout    time.Duration // limit of the command, from its start; 0: no limit
	FailFast   bool
	Grace      time.Duration     // time between TERM and KILL
	Replace    bool              // stop an active run on these slices
	MaxLog     int64             // bytes of output that a worker keeps; 0: default, -1: no limit
	KillStale  launch.FreePolicy // whose processes to stop to free the TPU
	StrictExit bool
	Watch      follow.WatchOptions
	Patience   follow.Patience

	StartLimit  time.Duration // longest time from the first supervisor to the last start; 0: no limit
	MaxRestarts int           // further attempts of Run; Job has its own budget
}

// A Run is what a run sends to its workers: the command, the files and the compiler's
// flags. It is the same in all attempts.
type Run struct {
	Deps
	O     Options
	Watch *stage.Stopwatch
	Job   bool // a job: it makes the slices, and takes over the command of an earlier runner

	Tree    *codesync.Tree     // nil before Check, and with --use-existing-folder
	syncing *workers.HeardSink // shows the sync of the tree
	flags   []config.EnvVar    // variables with the compiler's flags; nil: not yet known
}

// Close deletes the packed files of the sync.
func (r *Run) Close() {
	if r.Tree != nil {
		r.Tree.Close()
	}
}

func (r *Run) settings() settings.Deps {
	return settings.Deps{Reach: r.Reach, Networks: r.Networks}
}

// Flags returns the variables with the compiler's flags, or nil if not yet known.
func (r *Run) Flags() []config.EnvVar { return r.flags }

// Check finds errors before the first request, while no slices cost money: a command that
// no worker could start, an unreadable directory, a log directory that cannot be written.
// accelerator is the slices' type, or "".
func (r *Run) Check(ctx context.Context, accelerator string) error {
	if err := r.checkCommand(); err != nil {
		return err
	}
	if err := r.Access.Check(); err != nil {
		return err
	}
	if err := r.scan(ctx); err != nil {
		return err
	}
	if err := r.probeLogDir(); err != nil {
		return err
	}
	if accelerator != "" {
		if _, err := r.xlaFlags(accelerator); err != nil {
			return err
		}
		return r.checkCommand()
	}
	return nil
}

// checkCommand lets package launch check the known parts of the command.
func (r *Run) checkCommand() error {
	s := launch.Spec{
		Run: r.O.Run, Attempt: 1, Owner: r.Owner, WorkDir: r.O.Run, Argv: r.O.Argv, Script: r.O.Script, MaxLog: r.O.MaxLog,
		Env: LaunchEnv(r.O.Env), Stored: r.stored(),
	}
	s.Env = append(s.Env, LaunchEnv(r.flags)...)
	if n := r.O.Processes; n > 1 {
		s.Processes, s.Grace = n, r.O.Grace
	}
	if err := s.Validate(); err != nil {
		return &stage.Error{Stage: stage.Input, Err: err}
	}
	return nil
}

// ChecksDone reports that all checks without a request have succeeded.
func (r *Run) ChecksDone() {
	if r.Checked != nil {
		r.Checked()
	}
}

// scan reads the directory before any request to the cloud, so that a local mistake
// costs nothing.
func (r *Run) scan(ctx context.Context) error {
	if r.O.UseExisting {
		return nil
	}
	r.syncing = &workers.HeardSink{Sink: r.Sink, Waits: func(int) bool { return true }}
	tree, err := codesync.Scan(ctx, codesync.Options{
		Dir: r.O.Dir, NoIgnore: r.O.NoIgnore, Sink: r.syncing, Home: r.O.Home, Stall: r.O.SyncTimeout, Owner: r.Owner, Adopt: r.O.Adopt,
		Relay: r.O.Relay, RelayFanout: r.O.RelayFanout, Cache: filepath.Join(r.StateDir, "hashes"), Written: record.WrittenDir(r.StateDir), ReadOnly: r.ReadOnly,
	})
	if err != nil {
		return &stage.Error{Stage: stage.Scan, Err: err}
	}
	r.Tree = tree
	return nil
}

// stored returns the secrets that the workers read themselves.
func (r *Run) stored() []launch.StoredSecret {
	all := make([]launch.StoredSecret, len(r.O.Secrets))
	for i, s := range r.O.Secrets {
		all[i] = launch.StoredSecret{Name: s.Name, Root: r.Roots.SecretManager, Project: s.Project, ID: s.ID, Version: s.Version}
	}
	return all
}

// probeLogDir finds the errors of openRecord early, before slices cost money.
func (r *Run) probeLogDir() error {
	rec := &record.Record{LogDir: record.RecordDir(r.StateDir, r.O.Run, 1)}
	if r.O.LogDir != "" {
		rec.LogDir = record.AttemptDir(r.O.LogDir, record.LastLocalAttempt(r.StateDir, r.O.Run)+1)
	}
	err := rec.CheckLogDir()
	if err == nil && r.Job && !r.ReadOnly { // a job: the slices will cost money from here on
		err = r.makeLogDir(rec)
	}
	if err == nil && r.Job && r.O.LogDir != "" { // otherwise only the workers know the number of the attempt
		err = rec.Unused()
	}
	return err
}

// makeLogDir makes the log directory of a record.
func (r *Run) makeLogDir(rec *record.Record) error {
	by := "run"
	if r.Job {
		by = "job"
	}
	return r.MakeLogs(by, rec.LogDir, rec.MakeLogDir)
}

// CommandText returns the command for messages and records: its first line, with masked
// secrets.
func CommandText(o Options) string {
	text := o.Script
	if len(o.Argv) > 0 {
		text = strings.Join(o.Argv, " ")
	}
	text = mask.MaskSecrets(text, o.Env)
	if line, _, more := strings.Cut(text, "\n"); more {
		text = line + " …"
	}
	return text
}

// Work identifies what the run does on its workers; see record.Record. Call Check first.
func (r *Run) Work() string {
	o := r.O
	what := struct {
		Script               string
		Argv                 []string
		Env                  []config.EnvVar
		Secrets              []detach.Secret
		Venv, MaxText        bool
		XLAPresets, XLAFlags []string
		Processes            int
		Code                 string
	}{Script: o.Script, Argv: o.Argv, Secrets: o.Secrets, Venv: o.Venv, MaxText: o.MaxText, XLAPresets: o.XLAPresets, XLAFlags: o.XLAFlags, Processes: o.Processes}
	for _, v := range o.Env {
		if v.Secret {
			v.Value = ""
		}
		what.Env = append(what.Env, v)
	}
	if r.Tree != nil {
		what.Code = r.Tree.Digest
	}
	text, _ := json.Marshal(what) // cannot fail for texts and numbers
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// LaunchEnv converts an environment to the type of package launch.
func LaunchEnv(vars []config.EnvVar) []launch.EnvVar {
	env := make([]launch.EnvVar, len(vars))
	for i, v := range vars {
		env[i] = launch.EnvVar{Name: v.Name, Value: v.Value, Secret: v.Secret}
	}
	return env
}
