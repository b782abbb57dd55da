package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// PreflightOptions says what to do with the settings of the workers.
type PreflightOptions struct {
	Check    bool // only read
	Require  bool // every failed setting is an error
	Ignore   bool // report nothing: the caller only wants facts about the worker
	Platform preflight.Platform
	Install  bool
	Slices   tpu.Numbers // only the slices of the family with these numbers in their names
}

// Preflight tunes or checks every worker of the slices whose names match prefix.
func (d *Deps) Preflight(ctx context.Context, prefix string, partial bool, o PreflightOptions) error {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	t, err := d.reach(ctx, &watch, prefix, o.Slices, partial, nil)
	if err != nil {
		return err
	}
	defer t.close()
	var reports []preflight.Report
	err = watch.phase("preflight", func() (string, error) {
		var err error
		reports, err = d.preflightAll(ctx, t, prefix, o)
		if reports == nil {
			return "", err
		}
		d.Sink.Emit(event.Result{Name: "preflight", Text: preflight.Table(t.ids, reports), Data: preflightData(t.ids, reports)})
		return preflight.Fold(t.ids, reports), err
	})
	return err
}

// reach discovers the slices and connects to their workers, as every command does that
// works on slices.
func (d *Deps) reach(ctx context.Context, watch *stopwatch, prefix string, numbers tpu.Numbers, partial bool, only func(tpu.WorkerID) bool) (*team, error) {
	sel, err := d.discoverPhase(ctx, watch, prefix, numbers, partial)
	if err != nil {
		return nil, err
	}
	return d.connectPhase(ctx, watch, sel, only)
}

func (d *Deps) discoverPhase(ctx context.Context, watch *stopwatch, prefix string, numbers tpu.Numbers, partial bool) (sel tpu.Selection, err error) {
	err = watch.phase("discover", func() (string, error) {
		var err error
		if sel, err = d.discover(ctx, prefix, numbers, partial); err != nil {
			return "", err
		}
		return describe(sel), nil
	})
	return sel, err
}

func (d *Deps) connectPhase(ctx context.Context, watch *stopwatch, sel tpu.Selection, only func(tpu.WorkerID) bool) (t *team, err error) {
	err = watch.phase("connect", func() (string, error) {
		var err error
		if t, err = d.connect(ctx, sel, only); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d workers", len(t.ids), len(t.ids)), nil
	})
	if err == nil {
		t.tellClocks(d.Sink)
	}
	return t, err
}

// readSettings runs the preflight on every worker.
func (d *Deps) readSettings(ctx context.Context, t *team, o PreflightOptions) ([]preflight.Report, error) {
	reports := make([]preflight.Report, len(t.ids))
	mtu := d.networkMTU(ctx, t)
	errs := t.each(ctx, d.Sink, "preflight", func(ctx context.Context, i int) (err error) {
		return remote.Again(ctx, d.broke(ctx, t, i, "preflight"), func() error {
			reports[i], err = preflight.Run(ctx, t.conns[i], d.preflightFor(t, i, o, mtu))
			return err
		})
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return reports, workersError(StagePreflight, t.ids, errs)
}

// preflightAll runs the preflight on every worker and judges the reports. When the error
// says that a setting must not be as it is, the reports are returned with it.
func (d *Deps) preflightAll(ctx context.Context, t *team, prefix string, o PreflightOptions) ([]preflight.Report, error) {
	reports, err := d.readSettings(ctx, t, o)
	if err != nil {
		return nil, err
	}
	if o.Ignore {
		return reports, nil
	}
	hard := make([]error, len(reports))
	for i, rep := range reports {
		hard[i] = fatal(rep, o.Require)
	}
	if err := workersError(StageSettings, t.ids, hard); err != nil {
		return reports, err
	}
	for _, rep := range reports {
		if rep.Severity(false) == preflight.Warning {
			text, hint := preflight.Fold(t.ids, reports), "to see each setting: multihost preflight check "+d.workersFlag(prefix)+"; to make it an error: --preflight=require, or --require"
			if c := cure(text); c != "" {
				hint = c + "; " + hint
			}
			if strings.Contains(text, "between slices") {
				hint = mtuCure(t.slices[0].Network) + "; " + hint
			}
			event.Notef(d.Sink, event.Warn, hint, "preflight: %s", text)
			break
		}
	}
	return reports, nil
}

// networkMTU returns the MTU that the interfaces of the workers should have, or 0 if it
// cannot be learned: reading a network needs a permission that running does not need.
func (d *Deps) networkMTU(ctx context.Context, t *team) int {
	name := t.slices[0].Network
	if name == "" || d.Networks == nil {
		return 0
	}
	return d.readMTU(ctx, name)
}

// mtuLimit bounds the time to read a network's MTU, which is optional.
const mtuLimit = 20 * time.Second

func (d *Deps) readMTU(ctx context.Context, name string) int {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), mtuLimit)
	defer cancel()
	info, err := d.Networks.Show(ctx, name)
	if info.MTU == 0 && err != nil { // with an MTU, only the network's rules could not be read
		event.Notef(d.Sink, event.Debug, "", "MTU of network %s is not known: %v", name, err)
	}
	return info.MTU
}

// WarnOfMTU warns, before several slices are requested, that the MTU of their network is
// small: machines take the MTU when they are made. It returns the MTU, or 0 if it did not
// read it. If the network cannot be read, the preflight warns later.
func (d *Deps) WarnOfMTU(ctx context.Context, r provision.Request) (mtu int) {
	name := r.Network
	if name == "" && r.Subnetwork == "" {
		name = "default"
	}
	// The owners of another project's network may read it; this user need not be able to.
	name = strings.TrimPrefix(name, "projects/"+d.Project+"/global/networks/")
	if r.NodeCount < 2 || d.Networks == nil || name == "" || strings.Contains(name, "/") {
		return 0
	}
	if mtu = d.readMTU(ctx, name); mtu > 0 && mtu < mtuBetween(r.NodeCount) {
		event.Notef(d.Sink, event.Warn, mtuCure(name), "network %s has MTU %d: between %d slices %d is wanted, for a sixth of the packets",
			name, mtu, r.NodeCount, mtuBetween(r.NodeCount))
	}
	return mtu
}

// mtuBetween returns the MTU that this many slices want between them; 0: any.
func mtuBetween(slices int) int {
	if slices < 2 {
		return 0
	}
	return network.DefaultMTU
}

// mtuCure returns advice on how the slices can get a larger MTU than that of the network
// name.
func mtuCure(name string) string {
	if name == network.DefaultName {
		return fmt.Sprintf("while no TPU is on it: multihost network update %s --mtu=%d", name, network.DefaultMTU)
	}
	return fmt.Sprintf("make the slices on a network with MTU %d: multihost network create %s, then --network=%[2]s", network.DefaultMTU, network.DefaultName)
}

func (d *Deps) preflightFor(t *team, i int, o PreflightOptions, mtu int) preflight.Options {
	opts := preflight.Options{Platform: o.Platform, Install: o.Install, ExpectMTU: mtu}
	opts.Mode = preflight.Apply
	if o.Check {
		opts.Mode = preflight.Check
	}
	if d.onHosts() {
		opts.ExpectChips = preflight.NoDevices
		return opts
	}
	opts.BetweenSlices = mtuBetween(len(t.slices))
	if ty, err := tpu.ParseType(t.slice(i).Type); err == nil {
		opts.ExpectChips = ty.ChipsPerWorker()
	}
	return opts
}

// fatal returns an error that names the settings of a worker that must not be as they
// are, or nil.
func fatal(rep preflight.Report, require bool) error {
	if rep.Severity(require) != preflight.Hard {
		return nil
	}
	var reasons []string
	settings := map[string][]string{} // by reason
	for _, f := range rep.Failures() {
		if require || f.Severity() == preflight.Hard {
			if settings[f.Reason] == nil {
				reasons = append(reasons, f.Reason)
			}
			settings[f.Reason] = append(settings[f.Reason], f.Setting)
		}
	}
	texts := make([]string, len(reasons))
	for i, reason := range reasons {
		texts[i] = strings.Join(settings[reason], ", ") + ": " + reason
	}
	return errors.New(strings.Join(texts, "; "))
}

// A WorkerReport is the report of one worker in JSON output.
type WorkerReport struct {
	Worker string `json:"worker"`
	preflight.Report
}

func preflightData(ids []tpu.WorkerID, reports []preflight.Report) []WorkerReport {
	data := make([]WorkerReport, len(ids))
	for i, id := range ids {
		data[i] = WorkerReport{id.String(), reports[i]}
	}
	return data
}
