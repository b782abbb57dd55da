package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/cost"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// planVersion is the version of a Plan's JSON document. It changes when a field changes
// its meaning or goes away.
const planVersion = 1

// A Plan says what a command would do, in the order of its fields. Secrets are masked.
// String returns the plan as text for people.
type Plan struct {
	Version int    `json:"version"`
	Command string `json:"command"` // "run", "job" or "job --detach"
	Run     string `json:"run"`
	Attempt int    `json:"attempt"`
	Project string `json:"project,omitempty"`
	Zone    string `json:"zone,omitempty"`

	Network  *network.Plan   `json:"network,omitempty"` // from --network-create
	Resource *ResourceChange `json:"queued_resource,omitempty"`

	// MayDelete is whether the workers may delete the queued resource when no runner
	// does. Absent: no worker is to delete it.
	MayDelete *DeletionRight `json:"workers_may_delete,omitempty"`

	Upload *Upload        `json:"upload,omitempty"` // of a job without runner
	Slices []PlannedSlice `json:"slices"`

	Login Login  `json:"login"`
	Asked bool   `json:"workers_asked"`       // whether the workers were asked what they have and lack
	Why   string `json:"not_asked,omitempty"` // why they were not

	TakesOver *RunOnWorkers  `json:"takes_over,omitempty"` // a run that is followed or left running; nothing is sent, set or started
	Stops     []RunOnWorkers `json:"stops"`

	Files     *Files          `json:"files,omitempty"` // absent: an existing folder is used
	Preflight *PreflightPlan  `json:"preflight,omitempty"`
	Free      FreePlan        `json:"free"`
	Start     StartPlan       `json:"start"`
	Workers   []PlannedWorker `json:"workers"`

	Limits Limits   `json:"limits"`
	Logs   LogPlan  `json:"logs"`
	End    EndPlan  `json:"end"`
	Cost   CostPlan `json:"cost"`
}

// What a command does with a queued resource.
const (
	ResourceCreate   = "create"
	ResourceUse      = "use"      // it exists and matches the request
	ResourceRecreate = "recreate" // it is deleted first, or is already being deleted
	ResourceReset    = "reset"    // its VMs are rebooted
)

// ResourceChange says what a job does with its queued resource.
type ResourceChange struct {
	ID      string          `json:"id"`
	Do      string          `json:"do"`
	State   string          `json:"state,omitempty"` // state of the existing one
	Owner   string          `json:"owner,omitempty"` // owner of the existing one
	Why     string          `json:"why,omitempty"`
	Tier    string          `json:"tier"`
	Request json.RawMessage `json:"request,omitempty"` // request body as it would be sent
	Gcloud  string          `json:"gcloud,omitempty"`  // the equivalent command line

	name string // what messages call it
}

// Upload says what a job without runner puts into its bucket.
type Upload struct {
	URL     string   `json:"url"`
	Objects []string `json:"objects"`
}

// PlannedSlice is a slice that the command would run on.
type PlannedSlice struct {
	Name     string `json:"name"`
	Type     string `json:"type,omitempty"`
	Topology string `json:"topology,omitempty"`
	Workers  int    `json:"workers"`
	Network  string `json:"network,omitempty"`
	State    string `json:"state"` // state as the API names it, or "to be made"
}

// Login says how the workers are reached.
type Login struct {
	User string      `json:"user"`
	Key  string      `json:"key"`            // the public key; empty: the key would be made
	File string      `json:"file"`           // of the private key
	Adds string      `json:"adds,omitempty"` // where the key would be added
	Way  overssh.Way `json:"way"`
	Jump string      `json:"jump,omitempty"`
}

// RunOnWorkers is a run that is active on the workers.
type RunOnWorkers struct {
	Run     string `json:"run"`
	Attempt int    `json:"attempt"`
	Owner   string `json:"owner"`
	Workers string `json:"workers"` // folded
	Command string `json:"command"`
	Why     string `json:"why,omitempty"`
}

// Files says what is sent to the workers.
type Files struct {
	Dir     string   `json:"dir"`
	To      string   `json:"to"` // directory on each worker
	Count   int      `json:"count"`
	Bytes   int64    `json:"bytes"`
	Digest  string   `json:"digest"`
	Ignored []string `json:"ignored"`
}

// PreflightPlan says what happens to the settings of the workers.
type PreflightPlan struct {
	Mode     string          `json:"mode"` // apply, require, check or off
	Platform string          `json:"platform"`
	Install  bool            `json:"install"`
	Changes  []SettingChange `json:"changes"`         // on the workers that were asked
	Notes    []string        `json:"notes,omitempty"` // about NUMA binding
}

// SettingChange is one setting that would be changed, or could not be.
type SettingChange struct {
	Setting string `json:"setting"`
	From    string `json:"from"`
	To      string `json:"to"`
	Workers string `json:"workers"`          // folded
	Reason  string `json:"reason,omitempty"` // why it would stay as it is
}

// FreePlan lists the processes that would be stopped to free the TPU.
type FreePlan struct {
	Policy  string    `json:"policy"`
	Stopped []Stopped `json:"stopped"`
}

// Stopped is a process that would be ended.
type Stopped struct {
	Worker  string `json:"worker"`
	PID     int    `json:"pid"`
	User    string `json:"user"`
	Command string `json:"command"`
}

// StartPlan says what is started on the workers.
type StartPlan struct {
	Script    string   `json:"script,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	Directory string   `json:"directory"` // on the worker
	Unset     []string `json:"unset"`
	Venv      string   `json:"venv,omitempty"` // directory on the worker; made if it does not exist
	Processes int      `json:"processes_per_worker"`
}

// PlannedWorker says what is done on one worker.
type PlannedWorker struct {
	Worker  string            `json:"worker"`
	Slice   string            `json:"slice"`
	Address string            `json:"address"`
	User    string            `json:"user"`
	Env     map[string]string `json:"env"`
	Wrap    []string          `json:"wrap,omitempty"` // words before the command

	// Set only when the workers were asked:
	Files   *int   `json:"new_files,omitempty"`
	Bytes   *int64 `json:"new_bytes,omitempty"`
	Removed *int   `json:"removed_files,omitempty"`
}

// Limits says how long everything may take, and how often a failed run is started again.
// A time of 0 means no limit.
type Limits struct {
	Queue       time.Duration `json:"queue_ns,omitempty"`
	Provision   time.Duration `json:"provision_ns,omitempty"`
	Boot        time.Duration `json:"boot_ns,omitempty"`
	Connect     time.Duration `json:"connect_ns"`
	Start       time.Duration `json:"start_ns"`
	Command     time.Duration `json:"command_ns"`
	Lost        time.Duration `json:"lost_ns"`
	Grace       time.Duration `json:"grace_ns"`
	FailFast    bool          `json:"fail_fast"`
	Restarts    int           `json:"max_restarts"`
	Preemptions int           `json:"max_preemptions"` // -1: no limit
	MaxLog      int64         `json:"max_log_bytes"`   // -1: no limit
	TTL         time.Duration `json:"ttl_ns,omitempty"`
	Lease       time.Duration `json:"lease_ns,omitempty"`
}

// LogPlan says where the output goes.
type LogPlan struct {
	Dir    string   `json:"dir"`
	Files  []string `json:"files"`
	Remote string   `json:"on_workers"`
}

// EndPlan says what is deleted at the end.
type EndPlan struct {
	Deletes string        `json:"deletes,omitempty"` // the queued resource
	Keeps   string        `json:"keeps,omitempty"`   // why a queued resource stays
	KeepFor time.Duration `json:"keep_for_ns,omitempty"`
}

// CostPlan says what the slices cost while they exist.
type CostPlan struct {
	Hourly *float64 `json:"usd_per_hour"` // null: unknown
	Tier   string   `json:"tier"`
	Source string   `json:"source"`
}

// PlanRun returns what Run would do and changes nothing. The Deps must be those of a dry
// run (ReadOnly). An error is the one that Run would return before it changes anything.
func PlanRun(ctx context.Context, d *workers.Deps, o RunOptions) (Plan, error) {
	r := &Runner{Deps: d, O: o, Watch: stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}}
	defer r.Close()
	if err := r.CheckInput(ctx, ""); err != nil {
		return Plan{}, err
	}
	r.ChecksDone()
	sel, err := r.standing().ready(ctx, nil, nil)
	if err != nil {
		return Plan{}, err
	}
	p := r.NewPlan("run")
	p.Limits.Restarts, p.Limits.Preemptions = o.MaxRestarts, o.MaxRestarts
	return p, r.Foresee(ctx, &p, sel, "")
}

// PlanJob returns what Job would do. The conditions of PlanRun apply.
func PlanJob(ctx context.Context, d *workers.Deps, o JobOptions) (Plan, error) {
	r := &Runner{Deps: d, O: o.Run, Watch: stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}, adopts: true}
	defer r.Close()
	if err := r.checkJob(ctx, o); err != nil {
		return Plan{}, err
	}
	r.ChecksDone()
	p := r.NewPlan("job")
	right, over := AskRight(ctx, d, o, leaseTerms(d, o).On())
	defer over()
	var err error
	if p.Network, err = PlanNetwork(ctx, d, o.Network); err != nil {
		return Plan{}, err
	}
	mtu := MTUFor(ctx, d, o.Request, o.Network)
	p.MayDelete = right()
	TellRight(d, p.MayDelete, o.Request.ID, whenRunnerDies)
	q := &queued{Deps: d, o: o, watch: &r.Watch, terms: leaseTerms(d, o)}
	ready, err := q.foresee(ctx, &p)
	if err != nil {
		return Plan{}, err
	}
	if p.Resource.Do == ResourceCreate || p.Resource.Do == ResourceRecreate {
		d.Sink.Emit(Asking(o.Request, d.Project, d.Zone, mtu, BilledUntil(o, false), true))
	}
	p.PlanJob(o, q.ours || p.Resource.Do != ResourceUse)
	if ready == nil {
		return p, r.Foresee(ctx, &p, tpu.Selection{Slices: Expected(o.Request, d.Project, d.Zone)}, "its slices are to be made")
	}
	return p, r.Foresee(ctx, &p, tpu.Selection{Slices: ready}, "")
}

// ErrNotRefused reports that a dry run was given clients that can change something.
var ErrNotRefused = fault.New(fault.Internal, "a dry run had clients that change something")

// PlanJob adds the limits of a job. ours says that this command deletes its slices.
func (p *Plan) PlanJob(o JobOptions, ours bool) {
	l := &p.Limits
	l.Queue, l.Provision, l.Boot, l.TTL = max(0, o.QueueLimit), max(0, o.ProvisionLimit), max(0, o.BootLimit), o.TTL
	if ours && !o.Keep {
		l.Lease = o.Lease
	}
	l.Restarts, l.Preemptions = o.Budget.Restarts, o.Budget.Preemptions
	switch {
	case !ours:
		p.End.Keeps = "it was there before this job"
	case o.Keep:
		p.End.Keeps = "--keep"
	default:
		p.End.Deletes = o.Request.ID
		if o.KeepOnFailure {
			p.End.Keeps, p.End.KeepFor = "after a failure (--keep-on-failure)", o.KeepFor
		}
	}
}

// foresee adds to the plan what create and the steps after it would do to the queued
// resource. It returns the resource's slices if they are all ready now.
func (q *queued) foresee(ctx context.Context, p *Plan) (ready []tpu.Slice, err error) {
	res, _, err := q.create(ctx)
	var refused *gcp.ReadOnlyError
	if errors.As(err, &refused) {
		q.there = false
		p.Resource = ChangeOf(q.Deps, ResourceCreate, res, q.o.Request, refused)
		if res.State != "" {
			p.Resource.Do, p.Resource.Why = ResourceRecreate, "an older one of this name is being deleted"
		}
		return nil, nil
	}
	if err != nil {
		return nil, q.foreseeRepair(ctx, p, res, err)
	}
	if res, err = q.Cloud.Get(ctx, res.ID); err != nil {
		return nil, err
	}
	p.Resource = ChangeOf(q.Deps, ResourceUse, res, q.o.Request, nil)
	nodes, err := q.Cloud.Slices(ctx)
	if err != nil {
		return nil, err
	}
	for i, name := range res.Nodes {
		at := slices.IndexFunc(nodes, func(n tpu.Slice) bool { return n.Name == name && n.QueuedResource == res.ID })
		if at < 0 {
			return nil, nil
		}
		if ok, _ := nodes[at].Ready(); !ok {
			return nil, nil
		}
		nodes[at].Index = i
		ready = append(ready, nodes[at])
	}
	return ready, nil
}

// foreseeRepair adds to the plan what act would do about a queued resource that exists
// but is of no use. An error is the one that the job would end with.
func (q *queued) foreseeRepair(ctx context.Context, p *Plan, res provision.Resource, cause error) error {
	d, known := q.diagnose(ctx, cause)
	if !known {
		return cause
	}
	books := &ledger{Budget: q.o.Budget}
	switch d.Step {
	case provision.StepRecreate:
		_, err := q.mayRemake(d, cause, func(f *stage.Failure) error {
			if refusal := books.spend(f); refusal != "" {
				return &stage.Failure{Cause: stage.Refused, Why: f.Error() + "; " + refusal, Err: f.Err}
			}
			return nil
		})
		if err != nil {
			return err
		}
		p.Resource = ChangeOf(q.Deps, ResourceRecreate, res, q.o.Request, nil)
	case provision.StepReset:
		p.Resource = ChangeOf(q.Deps, ResourceReset, res, q.o.Request, nil)
	case provision.StepWait:
		p.Resource = ChangeOf(q.Deps, ResourceUse, res, q.o.Request, nil)
	default:
		return cause
	}
	p.Resource.Why = d.Why
	return nil
}

// ChangeOf describes what is done with a queued resource. refused, if not nil, is
// the refused request that would have made it.
func ChangeOf(d *workers.Deps, do string, res provision.Resource, request provision.Request, refused *gcp.ReadOnlyError) *ResourceChange {
	c := &ResourceChange{ID: request.ID, Do: do, State: res.State, Tier: string(request.Asks()), name: provision.NameOf(d.Cloud, request.ID)}
	if res.State != "" && len(res.Nodes) > 0 {
		c.Owner = res.Owner()
	}
	switch {
	case refused != nil:
		c.Request = json.RawMessage(refused.Body)
	case do != ResourceRecreate:
		return c
	}
	if p, ok := provision.As[provision.Previewer](d.Cloud); ok {
		body, command := p.Preview(request)
		c.Gcloud = command
		if c.Request == nil {
			c.Request = body
		}
	}
	return c
}

// NewPlan returns the plan of a run with what its options say.
func (r *Runner) NewPlan(command string) Plan {
	return Plan{
		Version: planVersion, Command: command, Run: r.O.Run, Project: r.Project, Zone: r.Zone,
		Limits: Limits{
			Connect: r.Access.RetryFor, Start: r.O.StartLimit, Command: r.O.Timeout, Lost: r.O.Patience.Lost, Grace: r.O.Grace,
			FailFast: r.O.FailFast, MaxLog: r.O.MaxLog,
		},
	}
}

// Foresee adds to the plan what would be done on the workers of sel. It asks existing
// workers what they have; absent, if not empty, says why the workers cannot be asked.
func (r *Runner) Foresee(ctx context.Context, p *Plan, sel tpu.Selection, absent string) error {
	r.used = sel.Slices
	p.Login = r.planLogin(ctx, sel, absent)
	switch {
	case absent != "":
	case r.Access.KeyFile != "" && r.Access.Identity == nil:
		absent = "the SSH key is to be made first"
	default:
		var refused *gcp.ReadOnlyError
		var err error
		r.workers, err = r.ConnectPhase(ctx, &r.Watch, sel, nil)
		if errors.As(err, &refused) {
			p.Login.Adds = where(refused)
			absent = "the SSH key is to be added to " + p.Login.Adds + " first"
		} else if err != nil {
			return err
		}
	}
	if r.workers == nil {
		r.workers = &workers.Connected{Slices: sel.Slices, IDs: sel.Workers()}
	}
	in, err := r.decide(ctx)
	if err != nil {
		return err
	}
	p.Asked, p.Why = absent == "", absent
	p.describe(r, in)
	if in.living != nil {
		return nil
	}
	if err := in.record.CheckLogDir(); err != nil {
		return err
	}
	if err := in.record.Unused(); err != nil {
		return err
	}
	if !p.Asked {
		return nil
	}
	if r.O.UseExisting {
		if err := r.checkFolder(ctx); err != nil {
			return err
		}
	} else if err := r.foreseeSync(ctx, p, in); err != nil {
		return err
	}
	if err := r.foreseePreflight(ctx, p, in); err != nil {
		return err
	}
	if len(in.evict) > 0 {
		return nil // it is not known now what will hold the TPU then
	}
	return r.foreseeFree(ctx, p, in)
}

// where returns the place to which a refused request would have added a key.
func where(refused *gcp.ReadOnlyError) string {
	if refused.Method == "PATCH" {
		return "the metadata of the slices"
	}
	return "the OS Login profile"
}

func (r *Runner) planLogin(ctx context.Context, sel tpu.Selection, absent string) Login {
	l := Login{User: r.Access.Login, File: r.Access.KeyFile, Way: r.Access.Way}
	if id := r.Access.Identity; id != nil {
		l.Key = id.PublicKey()
	}
	if absent == "" {
		l.Way = overssh.Way(r.Dialer.Way(ctx, sel.Slices, r.Sink))
	}
	hops := make([]string, len(r.Access.Jump))
	for i, j := range r.Access.Jump {
		hops[i] = j.User + "@" + j.Addr
	}
	l.Jump = strings.Join(hops, ",")
	return l
}

// describe fills in what is decided without asking the workers.
func (p *Plan) describe(r *Runner, in *Decision) {
	p.Attempt = in.attempt
	tier := cost.OnDemand
	if p.Resource != nil {
		tier = p.Resource.Tier
	}
	p.Cost = CostPlan{Tier: tier, Source: tpu.PriceSource}
	total, known := 0.0, !r.OnHosts()
	for _, s := range r.workers.Slices {
		planned := PlannedSlice{Name: s.Name, Type: s.Type, Workers: len(s.Workers), Network: s.Network, State: cmp.Or(s.State, "to be made")}
		if ty, err := tpu.ParseType(s.Type); err == nil {
			planned.Topology = ty.Topology
		}
		p.Slices = append(p.Slices, planned)
		usd, ok := tpu.HourlyPrice(s.Type, s.Zone, tier)
		total, known = total+usd, known && ok
	}
	if known {
		p.Cost.Hourly = &total
	}
	p.Stops = []RunOnWorkers{}
	for _, e := range in.evict {
		p.Stops = append(p.Stops, runOnWorkers(e.FoundRun, e.reason))
	}
	p.Logs = LogPlan{Dir: in.record.LogDir, Remote: fmt.Sprintf("~/.multihost/runs/%s/%d/output.log", p.Run, p.Attempt)}
	for _, id := range r.workers.IDs {
		p.Logs.Files = append(p.Logs.Files, in.record.LogPath(id))
	}
	if in.living != nil {
		living := runOnWorkers(*in.living, "")
		if r.stays(in.living) {
			living.Why = "it lives, and --detach leaves it running"
		}
		p.TakesOver = &living
	}
	if r.Tree != nil {
		p.Files = &Files{Dir: r.Tree.Dir(), To: "~/" + r.O.Run, Count: r.Tree.Count, Bytes: r.Tree.Bytes, Digest: r.Tree.Digest, Ignored: []string{}}
		for _, s := range r.Tree.Skipped {
			p.Files.Ignored = append(p.Files.Ignored, s.String())
		}
	}
	if in.tune {
		p.Preflight = &PreflightPlan{Mode: r.O.Preflight, Platform: string(in.tuning.Platform), Install: in.tuning.Install, Changes: []SettingChange{}}
	}
	p.Free = FreePlan{Policy: string(in.free.Policy), Stopped: []Stopped{}}
	// The user's words are masked with the secrets of the user's environment: the
	// the decision's environment is empty when an attempt is taken over.
	p.Start = StartPlan{Script: mask.MaskSecrets(r.O.Script, r.O.Env), Directory: "~/" + r.O.Run, Unset: in.commands[0].Unset, Processes: max(1, r.O.Processes)}
	if r.O.Venv {
		p.Start.Venv = "~/" + launch.VenvDir(r.O.Run)
	}
	for _, word := range r.O.Argv {
		p.Start.Argv = append(p.Start.Argv, mask.MaskSecrets(word, r.O.Env))
	}
	if c := p.Resource; c != nil && c.Request != nil {
		c.Request, c.Gcloud = json.RawMessage(mask.MaskSecrets(string(c.Request), r.O.Env)), mask.MaskSecrets(c.Gcloud, r.O.Env)
	}
	for i, id := range r.workers.IDs {
		w := PlannedWorker{Worker: id.String(), Slice: r.workers.Slice(i).Name, Address: r.workers.Address(i), User: p.Login.User, Env: map[string]string{}}
		if r.workers.HangUp != nil {
			w.User = r.workers.Conns[i].User()
		}
		if n := r.O.Processes; n > 1 {
			w.Wrap = []string{fmt.Sprintf("(%d processes)", n)}
		}
		if dir := p.Start.Venv; dir != "" {
			w.Env["VIRTUAL_ENV"], w.Env["PATH"] = dir, dir+"/bin:(PATH of the login)"
		}
		for _, v := range in.commands[i].Environment() {
			w.Env[v.Name] = v.Value
			if v.Secret {
				w.Env[v.Name] = mask.Masked
			}
		}
		for _, s := range r.O.Secrets {
			w.Env[s.Name] = mask.Masked
		}
		p.Workers = append(p.Workers, w)
	}
}

func runOnWorkers(f workers.FoundRun, why string) RunOnWorkers {
	return RunOnWorkers{Run: f.Info.Run, Attempt: f.Info.Attempt, Owner: f.Info.Owner, Workers: tpu.Fold(f.Workers), Command: f.Info.Command, Why: why}
}

// foreseeSync asks every worker which files it lacks.
func (r *Runner) foreseeSync(ctx context.Context, p *Plan, in *Decision) error {
	return r.Watch.Phase("sync", func() (string, error) {
		all := make([]codesync.Forecast, len(in.targets))
		errs := r.workers.Each(ctx, r.Sink, "sync", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.Broke(ctx, r.workers, i, "sync"), func() (err error) {
				all[i], err = r.Tree.Foresee(ctx, in.targets[i].Conn, r.O.Run)
				return err
			})
		})
		if err := r.failed(ctx, stage.Sync, errs); err != nil {
			return "", err
		}
		for i := range all {
			p.Workers[i].Files, p.Workers[i].Bytes, p.Workers[i].Removed = &all[i].Files, &all[i].Bytes, &all[i].Removed
		}
		return "asked what is missing", nil
	})
}

// foreseePreflight reads the settings of every worker.
func (r *Runner) foreseePreflight(ctx context.Context, p *Plan, in *Decision) error {
	if !in.tune {
		return nil
	}
	return r.Watch.Phase("preflight", func() (string, error) {
		o := in.tuning
		o.Check = true
		reports, err := readSettings(ctx, r.Deps, r.workers, o)
		if err != nil {
			return "", err
		}
		hard := make([]error, len(reports))
		for i := range reports {
			hard[i] = fatal(in.tuning.applied(reports[i]), in.tuning.Require)
			if in.tuning.Install && !in.tuning.Check {
				reports[i].HasNumactl = true
			}
		}
		if err := r.failed(ctx, stage.Settings, hard); err != nil && !in.tuning.Ignore {
			return "", err
		}
		if p.Preflight.Notes, err = r.bindNUMA(reports); err != nil {
			return "", err
		}
		for i, words := range r.wraps {
			p.Workers[i].Wrap = append(p.Workers[i].Wrap, words...)
		}
		if !in.tuning.Check {
			p.Preflight.Changes = settingChanges(r.workers.IDs, reports, in.tuning.Install)
		}
		return "read", nil
	})
}

// applied returns the report of a check as it will be after everything that can be set is
// set.
func (o PreflightOptions) applied(rep preflight.Report) preflight.Report {
	if o.Check {
		return rep
	}
	rep.Results = slices.DeleteFunc(slices.Clone(rep.Results), func(r preflight.Result) bool { return r.Reason == preflight.NotAsWanted })
	return rep
}

// settingChanges returns the settings that are not as wanted. A setting for which the
// check gives another reason cannot be set.
func settingChanges(ids []tpu.WorkerID, reports []preflight.Report, install bool) []SettingChange {
	all := []SettingChange{}
	for _, row := range preflight.Rows(ids, reports) {
		c := SettingChange{Setting: row.Setting, From: row.Before, To: row.Want, Workers: row.Workers}
		switch {
		case row.Outcome == preflight.Failed && row.Reason != preflight.NotAsWanted:
			c.Reason = row.Reason
		case row.Outcome == preflight.Failed:
		case row.Outcome == preflight.Skipped && row.Before == "missing" && install:
		default:
			continue
		}
		all = append(all, c)
	}
	return all
}

// foreseeFree finds out which processes hold the TPU.
func (r *Runner) foreseeFree(ctx context.Context, p *Plan, in *Decision) error {
	return r.Watch.Phase("free", func() (string, error) {
		o := in.free
		o.Look = true
		all := make([]launch.FreeReport, len(r.workers.IDs))
		errs := r.workers.Each(ctx, r.Sink, "free", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.Broke(ctx, r.workers, i, "freeing of the TPU"), func() (err error) {
				all[i], err = launch.FreeTPU(ctx, r.workers.Conns[i], o)
				return err
			})
		})
		if err := r.failed(ctx, stage.Free, errs); err != nil {
			return "", err
		}
		for i, report := range all {
			for _, s := range report.Stopped {
				p.Free.Stopped = append(p.Free.Stopped, Stopped{Worker: r.workers.IDs[i].String(), PID: s.PID, User: s.User, Command: s.Command})
			}
		}
		return "looked", nil
	})
}
