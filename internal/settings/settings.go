// Package settings runs the preflight on all workers of a run and judges their reports. It
// knows the MTU that the network of several slices should have.
package settings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// Deps holds what the package works with.
type Deps struct {
	*workers.Reach
	Networks Networks // nil: the networks cannot be read
}

// Networks reads a network. *network.Client implements it.
type Networks interface {
	Show(ctx context.Context, name string) (network.Info, error)
}

// Options say what to do with the settings of the workers.
type Options struct {
	Check    bool // only read
	Require  bool // every failed setting is an error
	Ignore   bool // report nothing, because the caller only wants facts about the worker
	Platform preflight.Platform
	Install  bool
	Slices   tpu.Numbers // only slices whose names have these numbers
}

// Preflight tunes or checks every worker of the slices whose names match prefix.
func Preflight(ctx context.Context, d Deps, prefix string, partial bool, o Options) error {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	t, err := d.ReachAll(ctx, &watch, prefix, o.Slices, partial, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	var reports []preflight.Report
	err = watch.Phase("preflight", func() (string, error) {
		var err error
		reports, err = Apply(ctx, d, t, prefix, o)
		if reports == nil {
			return "", err
		}
		d.Sink.Emit(event.Result{Name: "preflight", Text: preflight.Table(t.IDs, reports), Data: data(t.IDs, reports)})
		return preflight.Fold(t.IDs, reports), err
	})
	return err
}

// Read runs the preflight on every worker.
func Read(ctx context.Context, d Deps, t *workers.Connected, o Options) ([]preflight.Report, error) {
	reports := make([]preflight.Report, len(t.IDs))
	mtu := networkMTU(ctx, d, t)
	errs := t.Each(ctx, d.Sink, "preflight", func(ctx context.Context, i int) (err error) {
		return remote.Again(ctx, d.Broke(ctx, t, i, "preflight"), func() error {
			reports[i], err = preflight.Run(ctx, t.Conns[i], optionsFor(d, t, i, o, mtu))
			return err
		})
	})
	return reports, stage.InterruptedOr(ctx, stage.WorkersError(stage.Preflight, t.IDs, errs))
}

// Apply runs the preflight on every worker and judges the reports. If a setting must not
// stay as it is, Apply returns the reports and an error.
func Apply(ctx context.Context, d Deps, t *workers.Connected, prefix string, o Options) ([]preflight.Report, error) {
	reports, err := Read(ctx, d, t, o)
	if err != nil {
		return nil, err
	}
	if o.Ignore {
		return reports, nil
	}
	hard := make([]error, len(reports))
	for i, rep := range reports {
		hard[i] = Fatal(rep, o.Require)
	}
	if err := stage.WorkersError(stage.Settings, t.IDs, hard); err != nil {
		return reports, err
	}
	for _, rep := range reports {
		if rep.Severity(false) == preflight.Warning {
			text, hint := preflight.Fold(t.IDs, reports), "to see each setting: multihost preflight check "+d.Flag(prefix)+"; to make it an error: --preflight=require, or --require"
			if c := stage.Cure(text); c != "" {
				hint = c + "; " + hint
			}
			if strings.Contains(text, "between slices") {
				hint = mtuCure(t.Slices[0].Network) + "; " + hint
			}
			event.Notef(d.Sink, event.Warn, hint, "preflight: %s", text)
			break
		}
	}
	return reports, nil
}

// networkMTU returns the MTU that the interfaces of the workers should have, or 0 if the
// network cannot be read. Reading the network needs a permission that a run does not need.
func networkMTU(ctx context.Context, d Deps, t *workers.Connected) int {
	name := t.Slices[0].Network
	if name == "" || d.Networks == nil {
		return 0
	}
	info, _ := readNetwork(ctx, d, name)
	return info.MTU
}

// mtuLimit limits the time for reading a network's MTU, which a run does not need.
const mtuLimit = 20 * time.Second

// WarnOfMTU reads the network of a request for slices. It warns if several slices are requested
// and the MTU of the network is too small, because machines keep the MTU with which they were
// made. mtu is the MTU that it read for several slices, or 0. If the network does not exist,
// the error is a *network.MissingError. If it cannot be read, the preflight warns later.
func WarnOfMTU(ctx context.Context, d Deps, r provision.Request) (mtu int, err error) {
	if d.Networks == nil {
		return 0, nil
	}
	for i, name := range networksOf(r, d.Project) {
		info, err := readNetwork(ctx, d, name)
		if err != nil {
			return 0, err
		}
		if r.NodeCount < 2 {
			continue
		}
		if i == 0 {
			mtu = info.MTU
		}
		if info.MTU > 0 && info.MTU < MTUBetween(r.NodeCount) {
			event.Notef(d.Sink, event.Warn, mtuCure(name), "network %s has MTU %d: between %d slices %d is wanted, for a sixth of the packets",
				name, info.MTU, r.NodeCount, MTUBetween(r.NodeCount))
		}
	}
	return mtu, nil
}

// readNetwork reads a network. It returns only the error *network.MissingError, because other
// errors are no reason to refuse a request.
func readNetwork(ctx context.Context, d Deps, name string) (network.Info, error) {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), mtuLimit)
	defer cancel()
	info, err := d.Networks.Show(ctx, name)
	var missing *network.MissingError
	if errors.As(err, &missing) {
		return info, missing
	}
	if info.MTU == 0 && err != nil { // if the MTU is known, only the firewall rules could not be read
		event.Notef(d.Sink, event.Debug, "", "MTU of network %s is not known: %v", name, err)
	}
	return info, nil
}

// networksOf returns the networks of a request that are in the project. Networks of another
// project may be unreadable for this user.
func networksOf(r provision.Request, project string) (names []string) {
	all := []string{r.Network}
	if r.Network == "" && r.Subnetwork == "" && len(r.Interfaces) == 0 {
		all[0] = "default"
	}
	for _, each := range r.Interfaces {
		all = append(all, each.Network)
	}
	for _, name := range all {
		if name = strings.TrimPrefix(name, "projects/"+project+"/global/networks/"); name != "" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	return names
}

// MTUBetween returns the MTU that this number of slices needs between them. 0 means any
// MTU.
func MTUBetween(slices int) int {
	if slices < 2 {
		return 0
	}
	return network.DefaultMTU
}

// mtuCure returns advice on how slices can get a larger MTU than the network called name
// has.
func mtuCure(name string) string {
	if name == network.DefaultName {
		return fmt.Sprintf("while no machine is on it: multihost network update %s --mtu=%d", name, network.DefaultMTU)
	}
	return fmt.Sprintf("make the slices on a network with MTU %d: multihost network create %s, then --network=%[2]s", network.DefaultMTU, network.DefaultName)
}

func optionsFor(d Deps, t *workers.Connected, i int, o Options, mtu int) preflight.Options {
	opts := preflight.Options{Platform: o.Platform, Install: o.Install, ExpectMTU: mtu}
	opts.Mode = preflight.Apply
	if o.Check {
		opts.Mode = preflight.Check
	}
	if d.OnHosts() {
		opts.ExpectChips = preflight.NoDevices
		return opts
	}
	opts.BetweenSlices = MTUBetween(len(t.Slices))
	if ty, err := tpu.ParseType(t.Slice(i).Type); err == nil {
		opts.ExpectChips = ty.ChipsPerWorker()
	}
	return opts
}

// Fatal returns an error with the failed settings that prevent a run on a worker, or nil. With
// require, every failed setting does.
func Fatal(rep preflight.Report, require bool) error {
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

func data(ids []tpu.WorkerID, reports []preflight.Report) []WorkerReport {
	all := make([]WorkerReport, len(ids))
	for i, id := range ids {
		all[i] = WorkerReport{id.String(), reports[i]}
	}
	return all
}

// Applied returns the report expected after an apply. rep is the report of a check.
func (o Options) Applied(rep preflight.Report) preflight.Report {
	if o.Check {
		return rep
	}
	rep.Results = slices.DeleteFunc(slices.Clone(rep.Results), func(r preflight.Result) bool { return r.Reason == preflight.NotAsWanted })
	return rep
}
