package attempt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"multihost/internal/codesync"
	"multihost/internal/cost"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/overssh"
	"multihost/internal/plan"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// NewPlan returns the plan of a run with the parts that follow from its options.
func (r *Run) NewPlan(command string) plan.Plan {
	return plan.Plan{
		Version: plan.Version, Command: command, Run: r.O.Run, Project: r.Project, Zone: r.Zone,
		Limits: plan.Limits{
			Connect: r.Access.RetryFor, Start: r.O.StartLimit, Command: r.O.Timeout, Lost: r.O.Patience.Lost, Grace: r.O.Grace,
			FailFast: r.O.FailFast, MaxLog: r.O.MaxLog,
		},
	}
}

// Foresee adds to the plan what an attempt would do on the workers of sel. It asks the
// workers, unless absent says why they cannot be asked. It closes its connections.
func (r *Run) Foresee(ctx context.Context, h *History, p *plan.Plan, sel tpu.Selection, absent string) error {
	p.Login = r.planLogin(ctx, sel, absent)
	t := &workers.Connected{Slices: sel.Slices, IDs: sel.Workers()}
	switch {
	case absent != "":
	case r.Access.KeyFile != "" && r.Access.Identity == nil:
		absent = "the SSH key is to be made first"
	default:
		var refused *gcp.ReadOnlyError
		there, err := r.ConnectPhase(ctx, r.Watch, sel, nil)
		if errors.As(err, &refused) {
			p.Login.Adds = where(refused)
			absent = "the SSH key is to be added to " + p.Login.Adds + " first"
		} else if err != nil {
			return err
		} else {
			defer there.Close()
			t = there
		}
	}
	in, err := (&decider{Run: r, history: h, workers: t, yields: true}).decide(ctx)
	if err != nil {
		return err
	}
	p.Asked, p.Why = absent == "", absent
	f := &forecast{r.start(h, t, in)}
	f.describe(p)
	if in.living != nil {
		return nil
	}
	if err := cmp.Or(in.record.CheckLogDir(), in.record.Unused()); err != nil {
		return err
	}
	if !p.Asked {
		return nil
	}
	return f.ask(ctx, p)
}

// A forecast says what a start would do, and starts nothing.
type forecast struct{ *start }

// ask adds the answers of the workers to the plan.
func (r *forecast) ask(ctx context.Context, p *plan.Plan) error {
	files := r.foreseeSync
	if r.O.UseExisting {
		files = func(ctx context.Context, _ *plan.Plan) error { return r.checkFolder(ctx) }
	}
	if err := files(ctx, p); err != nil {
		return err
	}
	if err := r.foreseePreflight(ctx, p); err != nil {
		return err
	}
	if len(r.decision.evict) > 0 {
		return nil // nobody knows yet which processes will hold the TPU
	}
	return r.foreseeFree(ctx, p)
}

// where says where the user's key would be stored. It reads this from the refused request,
// which would have added the key.
func where(refused *gcp.ReadOnlyError) string {
	if refused.Method == "PATCH" {
		return "the metadata of the slices"
	}
	return "the OS Login profile"
}

func (r *Run) planLogin(ctx context.Context, sel tpu.Selection, absent string) plan.Login {
	if r.Cluster != nil {
		return plan.Login{User: r.Access.Login, Cluster: cmp.Or(r.Cluster.Name, r.Cluster.Context)}
	}
	l := plan.Login{User: r.Access.Login, File: r.Access.KeyFile, Way: r.Access.Way}
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

// describe adds the decisions that need no answer of a worker.
func (r *forecast) describe(p *plan.Plan) {
	in := r.decision
	p.Attempt = in.attempt
	r.describeSlices(p)
	p.Stops = []plan.RunOnWorkers{}
	for _, e := range in.evict {
		p.Stops = append(p.Stops, runOnWorkers(e.FoundRun, e.reason))
	}
	p.Logs = plan.LogPlan{Dir: in.record.LogDir, Remote: fmt.Sprintf("~/.multihost/runs/%s/%d/output.log", p.Run, p.Attempt)}
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
		p.Files = &plan.Files{Dir: r.Tree.Dir(), To: "~/" + r.O.Run, Count: r.Tree.Count, Bytes: r.Tree.Bytes, Digest: r.Tree.Digest, Ignored: []string{}}
		for _, s := range r.Tree.Skipped {
			p.Files.Ignored = append(p.Files.Ignored, s.String())
		}
	}
	if in.tune {
		p.Preflight = &plan.PreflightPlan{Mode: r.O.Preflight, Platform: string(in.tuning.Platform), Install: in.tuning.Install, Changes: []plan.SettingChange{}}
	}
	p.Free = plan.FreePlan{Policy: string(in.free.Policy), Stopped: []plan.Stopped{}}
	r.describeStart(p)
	if c := p.Resource; c != nil && c.Request != nil {
		c.Request, c.Gcloud = json.RawMessage(mask.MaskSecrets(string(c.Request), r.O.Env)), mask.MaskSecrets(c.Gcloud, r.O.Env)
	}
	for i := range r.workers.IDs {
		p.Workers = append(p.Workers, r.describeWorker(p, i))
	}
}

// describeSlices adds the slices and what they cost.
func (r *forecast) describeSlices(p *plan.Plan) {
	tier := cost.OnDemand
	if p.Resource != nil {
		tier = p.Resource.Tier
	}
	p.Cost = plan.CostPlan{Tier: tier, Source: tpu.PriceSource}
	total, known := 0.0, !r.OnHosts()
	for _, s := range r.workers.Slices {
		planned := plan.PlannedSlice{Name: s.Name, Type: s.Type, Workers: len(s.Workers), Network: s.Network, State: cmp.Or(s.State, "to be made")}
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
}

// describeStart adds the command. It masks the secrets of the user's own environment,
// because the decision's environment is empty when an attempt is taken over.
func (r *forecast) describeStart(p *plan.Plan) {
	p.Start = plan.StartPlan{Script: mask.MaskSecrets(r.O.Script, r.O.Env), Directory: "~/" + r.O.Run, Unset: r.decision.commands[0].Unset, Processes: max(1, r.O.Processes)}
	if r.O.Venv {
		p.Start.Venv = "~/" + launch.VenvDir(r.O.Run)
	}
	for _, word := range r.O.Argv {
		p.Start.Argv = append(p.Start.Argv, mask.MaskSecrets(word, r.O.Env))
	}
}

// describeWorker returns the plan of worker i.
func (r *forecast) describeWorker(p *plan.Plan, i int) plan.PlannedWorker {
	w := plan.PlannedWorker{Worker: r.workers.IDs[i].String(), Slice: r.workers.Slice(i).Name, Address: r.workers.Address(i), User: p.Login.User, Env: map[string]string{}}
	if r.workers.HangUp != nil {
		w.User = r.workers.Conns[i].User()
	}
	if n := r.O.Processes; n > 1 {
		w.Wrap = []string{fmt.Sprintf("(%d processes)", n)}
	}
	if dir := p.Start.Venv; dir != "" {
		w.Env["VIRTUAL_ENV"], w.Env["PATH"] = dir, dir+"/bin:(PATH of the login)"
	}
	for _, v := range r.decision.commands[i].Environment() {
		w.Env[v.Name] = v.Value
		if v.Secret {
			w.Env[v.Name] = mask.Masked
		}
	}
	for _, s := range r.O.Secrets {
		w.Env[s.Name] = mask.Masked
	}
	return w
}

func runOnWorkers(f workers.FoundRun, why string) plan.RunOnWorkers {
	return plan.RunOnWorkers{Run: f.Info.Run, Attempt: f.Info.Attempt, Owner: f.Info.Owner, Workers: tpu.Fold(f.Workers), Command: f.Info.Command, Why: why}
}

// foreseeSync asks every worker which files it lacks.
func (r *forecast) foreseeSync(ctx context.Context, p *plan.Plan) error {
	return r.Watch.Phase("sync", func() (string, error) {
		all := make([]codesync.Forecast, len(r.decision.targets))
		errs := r.workers.Each(ctx, r.Sink, "sync", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.Broke(ctx, r.workers, i, "sync"), func() (err error) {
				all[i], err = r.Tree.Foresee(ctx, r.decision.targets[i].Conn, r.O.Run)
				return err
			})
		})
		if err := failed(ctx, stage.Sync, r.workers, errs); err != nil {
			return "", err
		}
		for i := range all {
			p.Workers[i].Files, p.Workers[i].Bytes, p.Workers[i].Removed = &all[i].Files, &all[i].Bytes, &all[i].Removed
		}
		return "asked what is missing", nil
	})
}

// foreseePreflight reads the settings of every worker.
func (r *forecast) foreseePreflight(ctx context.Context, p *plan.Plan) error {
	tuning := r.decision.tuning
	if !r.decision.tune {
		return nil
	}
	return r.Watch.Phase("preflight", func() (string, error) {
		o := tuning
		o.Check = true
		reports, err := settings.Read(ctx, r.settings(), r.workers, o)
		if err != nil {
			return "", err
		}
		hard := make([]error, len(reports))
		for i := range reports {
			hard[i] = settings.Fatal(tuning.Applied(reports[i]), tuning.Require)
			if tuning.Install && !tuning.Check {
				reports[i].HasNumactl = true
			}
		}
		if err := failed(ctx, stage.Settings, r.workers, hard); err != nil && !tuning.Ignore {
			return "", err
		}
		if p.Preflight.Notes, err = r.bindNUMA(reports); err != nil {
			return "", err
		}
		for i, words := range r.wraps {
			p.Workers[i].Wrap = append(p.Workers[i].Wrap, words...)
		}
		if !tuning.Check {
			p.Preflight.Changes = settingChanges(r.workers.IDs, reports, tuning.Install)
		}
		return "read", nil
	})
}

// settingChanges returns the settings that a run would change. If the check failed for
// another reason than a wrong value, the setting cannot be changed, and Reason says why.
func settingChanges(ids []tpu.WorkerID, reports []preflight.Report, install bool) []plan.SettingChange {
	all := []plan.SettingChange{}
	for _, row := range preflight.Rows(ids, reports) {
		c := plan.SettingChange{Setting: row.Setting, From: row.Before, To: row.Want, Workers: row.Workers}
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
func (r *forecast) foreseeFree(ctx context.Context, p *plan.Plan) error {
	return r.Watch.Phase("free", func() (string, error) {
		o := r.decision.free
		o.Look = true
		all := make([]launch.FreeReport, len(r.workers.IDs))
		errs := r.workers.Each(ctx, r.Sink, "free", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.Broke(ctx, r.workers, i, "freeing of the TPU"), func() (err error) {
				all[i], err = launch.FreeTPU(ctx, r.workers.Conns[i], o)
				return err
			})
		})
		if err := failed(ctx, stage.Free, r.workers, errs); err != nil {
			return "", err
		}
		for i, report := range all {
			for _, s := range report.Stopped {
				p.Free.Stopped = append(p.Free.Stopped, plan.Stopped{Worker: r.workers.IDs[i].String(), PID: s.PID, User: s.User, Command: s.Command})
			}
		}
		return "looked", nil
	})
}
