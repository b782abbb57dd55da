package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// A Seen is a run as the workers tell it.
type Seen struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"`
	State   string    `json:"state"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Slices  []string  `json:"slices"`
	Command string    `json:"command"`
}

// List asks worker 0 of every ready slice, or of those that prefix names,
// which runs it knows, and emits them as a Result.
func (d *Deps) List(ctx context.Context, prefix string, ended bool) error {
	seen, err := d.survey(ctx, prefix)
	if err != nil {
		return err
	}
	if !ended {
		seen = slices.DeleteFunc(seen, func(s Seen) bool { return s.State != "running" })
	}
	var b strings.Builder
	if len(seen) == 0 {
		b.WriteString("no runs\n")
	} else {
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "RUN\tATTEMPT\tSTATE\tAGE\tOWNER\tSLICES\tCOMMAND")
		for _, s := range seen {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", s.Run, s.Attempt, s.State, age(d.Clock.Now().Sub(s.Created)), s.Owner, strings.Join(s.Slices, ","), s.Command)
		}
		w.Flush()
	}
	d.Sink.Emit(event.Result{Name: "runs", Text: b.String(), Data: seen})
	return nil
}

// survey collects the runs known to worker 0 of the ready slices.
func (d *Deps) survey(ctx context.Context, prefix string) ([]Seen, error) {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return nil, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	var ready []tpu.Slice
	for _, s := range nodes {
		if ok, _ := s.Ready(); ok && (prefix == "" || s.Name == prefix || strings.HasPrefix(s.Name, prefix+"-")) {
			s.Index = len(ready)
			ready = append(ready, s)
		}
	}
	if len(ready) == 0 {
		return nil, nil
	}
	t, err := d.connect(ctx, tpu.Selection{Slices: ready}, func(id tpu.WorkerID) bool { return id.Worker == 0 })
	if err != nil {
		return nil, err
	}
	defer t.close()
	lists := make([][]launch.Info, len(t.ids))
	errs := t.each(ctx, d.Sink, "", func(ctx context.Context, i int) (err error) {
		lists[i], err = launch.List(ctx, t.conns[i])
		return err
	})
	if err := workersError(StageDiscover, t.ids, errs); err != nil {
		return nil, err
	}
	found := map[launch.Ref]*Seen{}
	for i, list := range lists {
		for _, info := range list {
			s := found[info.Ref]
			if s == nil {
				s = &Seen{Run: info.Ref.Run, Attempt: info.Ref.Attempt, State: string(info.Phase), Owner: info.Owner, Created: info.Armed, Command: info.Command}
				found[info.Ref] = s
			}
			if info.Alive() {
				s.State = "running"
			}
			s.Slices = append(s.Slices, ready[i].Name)
		}
	}
	seen := make([]Seen, 0, len(found))
	for _, s := range found {
		sort.Strings(s.Slices)
		seen = append(seen, *s)
	}
	sort.Slice(seen, func(i, j int) bool {
		if !seen[i].Created.Equal(seen[j].Created) {
			return seen[i].Created.After(seen[j].Created)
		}
		return seen[i].Run < seen[j].Run
	})
	return seen, nil
}

// locate finds a run by its name: from the record that this machine keeps,
// else by asking the slices. It returns the record and connects nothing.
func (d *Deps) locate(ctx context.Context, name, prefix string) (*Record, error) {
	rec, err := loadRecord(d.StateDir, name)
	if err != nil {
		return nil, err
	}
	if rec != nil && (rec.Project == d.Project && rec.Zone == d.Zone || prefix == "") {
		return rec, nil
	}
	seen, err := d.survey(ctx, prefix)
	if err != nil {
		return nil, err
	}
	for _, s := range seen {
		if s.Run != name {
			continue
		}
		rec := &Record{Run: name, Attempt: s.Attempt, Project: d.Project, Zone: d.Zone, Prefix: familyOf(s.Slices), Partial: true,
			Login: d.Access.Login, Owner: s.Owner, Created: s.Created, Command: s.Command, Workers: len(s.Slices)}
		rec.LogDir = recordDir(d.StateDir, name, s.Attempt)
		return rec, nil
	}
	return nil, &Error{Stage: StageDiscover, Text: fmt.Sprintf("no run %q on this machine's list or on the ready slices of %s", name, d.Zone),
		HintTxt: "list the runs with: multihost ps --all"}
}

// familyOf turns t-0, t-1 into t; a single slice is its own name.
func familyOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return names[0][:strings.LastIndexByte(names[0], '-')]
}

// Attach follows a run that was started elsewhere or before, to its end. An
// interrupt leaves the run going.
func (d *Deps) Attach(ctx context.Context, name, prefix string, grace time.Duration, strict bool) (Outcome, error) {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	rec, err := d.locate(ctx, name, prefix)
	if err != nil {
		return Outcome{}, err
	}
	t, err := d.reach(ctx, &watch, rec.Prefix, rec.Partial, nil)
	if err != nil {
		return Outcome{}, err
	}
	defer t.close()
	if err := rec.makeLogDir(); err != nil {
		return Outcome{}, err
	}
	note(d.Sink, event.Info, "", "run %s, attempt %d: logs in %s; Ctrl-C leaves it running", rec.Run, rec.Attempt, rec.LogDir)
	errs := t.each(ctx, d.Sink, "", func(ctx context.Context, i int) error {
		_, err := t.conns[i].MeasureClock(ctx)
		return err
	})
	if err := workersError(StageFollow, t.ids, errs); err != nil {
		return Outcome{}, err
	}
	f := &following{Deps: d, team: t, ref: launch.Ref{Run: rec.Run, Attempt: rec.Attempt}, rec: rec, watch: &watch,
		failFast: true, grace: grace, strict: strict, attached: true}
	return f.do(ctx)
}

// Stop ends a run on every worker and proves it. It may be repeated.
func (d *Deps) Stop(ctx context.Context, name, prefix string, grace time.Duration) error {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	rec, err := d.locate(ctx, name, prefix)
	if err != nil {
		return err
	}
	t, err := d.reach(ctx, &watch, rec.Prefix, true, nil)
	if err != nil {
		return mayStillRun(err, name)
	}
	defer t.close()
	return watch.phase("stop", func() (string, error) {
		ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
		if err := t.stopAll(ctx, d.Sink, ref, grace, "multihost stop by "+d.Owner); err != nil {
			return "", err
		}
		return fmt.Sprintf("run %s: no process of it is left on %s", name, tpu.Fold(t.ids)), nil
	})
}

// Logs writes the log of one worker of a run to w: the local copy when the run
// has ended here, else what the worker has, followed to the end if follow is
// set.
func (d *Deps) Logs(ctx context.Context, name, prefix string, id tpu.WorkerID, follow bool, w io.Writer) error {
	rec, err := d.locate(ctx, name, prefix)
	if err != nil {
		return err
	}
	if rec.Ended {
		file, err := os.Open(rec.logPath(id))
		if err == nil {
			defer file.Close()
			_, err = io.Copy(w, file)
			return err
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	watch := stopwatch{sink: event.Discard, clock: d.Clock}
	t, err := d.reach(ctx, &watch, rec.Prefix, true, func(o tpu.WorkerID) bool { return o == id })
	if err != nil {
		return err
	}
	defer t.close()
	if len(t.ids) == 0 {
		return &Error{Stage: StageInput, Text: fmt.Sprintf("run %q has no worker %s", name, id), HintTxt: "workers are written s0w0, s0w1, …"}
	}
	ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
	if follow {
		_, err = launch.Follow(ctx, t.conns[0], ref, 0, w, launch.FollowOptions{})
	} else {
		_, err = launch.ReadLog(ctx, t.conns[0], ref, 0, w)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ForgetHostKey removes the pinned host key of one worker and reports whether
// there was one.
func (d *Deps) ForgetHostKey(ctx context.Context, prefix string, id tpu.WorkerID) (removed bool, err error) {
	sel, err := d.discover(ctx, prefix, true)
	if err != nil {
		return false, err
	}
	if id.Slice >= len(sel.Slices) || id.Worker >= len(sel.Slices[id.Slice].Workers) {
		return false, &Error{Stage: StageInput, Text: fmt.Sprintf("%s has no worker %s", describe(sel), id)}
	}
	n, err := sshfan.ForgetHostKeys(d.Access.KnownHosts, pin(sel.Slices[id.Slice], id))
	return n > 0, err
}
