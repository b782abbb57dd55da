package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/workers"
	"multihost/internal/workload"
)

// A Seen is a run as the workers report it.
type Seen struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"`
	State   string    `json:"state"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Slices  []string  `json:"slices"`
	Command string    `json:"command"`
	Hourly  *float64  `json:"usd_per_hour,omitempty"` // list price of the slices, if the job of the run has made them or their provider takes them away
	SoFar   *float64  `json:"usd_so_far,omitempty"`   // what those slices have cost so far at that price
	Gone    string    `json:"gone,omitempty"`         // when those slices go if no runner continues the job, in words

	// Followed says whether a command on any machine follows the output. It is nil if that
	// is unknown: for runs of other logins, for runs without runner, and for runs that have
	// not begun or have ended.
	Followed *bool `json:"followed,omitempty"`

	age  time.Duration // by the worker's clock
	part string        // how much of the run was seen, if not all; for people
	goes string        // the text of Gone if slices exist; "" if the queued resource gives the text
}

// List emits the runs as a Result. It asks worker 0 of every ready slice which runs it knows.
// It adds jobs in a bucket, workloads of a cluster, and jobs that have only a queued
// resource. The parameters prefix and only select slices by name prefix and number. The list
// includes ended runs if ended is true.
func List(ctx context.Context, d Deps, prefix string, only tpu.Numbers, ended bool) error {
	var seen = []Seen{}
	var detachedErr error
	if prefix == "" {
		sayElsewhere(d)
	}
	if prefix == "" && d.OpenBucket != nil {
		rows, err := detachedRows(ctx, d, ended)
		if d.Bucket != "" && err != nil && rows == nil {
			return err
		}
		seen, detachedErr = append(seen, rows...), err
	}
	see := survey(ctx, d.Reach, prefix, only, seen)
	var none *tpu.NoSlicesError
	if d.Workloads != nil && errors.As(see.err, &none) { // all runs may be workloads, which need no such slices
		see.err = nil
	}
	if see.slices == nil && see.err != nil && len(seen) == 0 {
		return errors.Join(see.err, detachedErr)
	}
	surveyErr := errors.Join(see.err, detachedErr)
	for _, f := range see.found {
		if (ended || f.Info.Alive()) && !slices.ContainsFunc(seen, func(s Seen) bool { return s.Run == f.Info.Run }) {
			seen = append(seen, rowOf(f, see))
		}
	}
	if d.Workloads != nil && prefix == "" && len(only) == 0 {
		rows, err := workloadRows(ctx, d, ended)
		seen, surveyErr = append(seen, rows...), errors.Join(surveyErr, err)
	}
	if len(only) == 0 { // with chosen slices, leave out requests: they need not have slices
		var err error
		seen, err = withRequests(ctx, d, prefix, seen, see.found)
		surveyErr = errors.Join(surveyErr, err)
	}
	d.Sink.Emit(event.Result{Name: "runs", Text: table(seen, ended), Data: seen})
	return surveyErr
}

// sayElsewhere names the runs of this machine that are workloads of clusters and may still
// run. The slices do not know them.
func sayElsewhere(d Deps) {
	if d.Workloads != nil { // the list has those of the cluster that the user named
		return
	}
	var names []string
	hint := ""
	for _, rec := range record.LocalRecords(d.StateDir) {
		if rec.Workload == "" || rec.Cluster == nil || rec.Over() {
			continue
		}
		names = append(names, rec.Run)
		if line := "multihost ps " + remote.CommandLine(rec.Cluster.Flags()...); !strings.Contains(hint+"\n", line+"\n") {
			hint += "\n" + line
		}
	}
	if len(names) > 0 {
		event.Notef(d.Sink, event.Info, strings.TrimPrefix(hint, "\n"), "jobs in clusters are not in this list: %s", tpu.FewNames(names))
	}
}

// workloadRows returns the rows of the workloads of a cluster.
func workloadRows(ctx context.Context, d Deps, ended bool) (rows []Seen, err error) {
	all, err := d.Workloads.List(ctx)
	for _, w := range all {
		if w.Ended != nil && !ended {
			continue
		}
		row := Seen{Run: w.Name, Attempt: w.Restarts + 1, State: string(w.State), Owner: w.User, Created: w.Created, Command: w.Command, age: d.Clock.Now().Sub(w.Created)}
		for i := range w.Slices {
			row.Slices = append(row.Slices, workload.SliceName(w.Name, i))
		}
		rows = append(rows, row)
	}
	return rows, err
}

// rowOf returns the row of a run on the slices of see.
func rowOf(f workers.FoundRun, see sight) Seen {
	row := Seen{Run: f.Info.Run, Attempt: f.Info.Attempt, State: string(f.Info.Phase), Owner: f.Info.Owner, Created: f.Info.Armed, Command: f.Info.Command, age: f.Info.Age()}
	if f.Info.Exit != nil {
		row.State = f.Ended()
	}
	if f.Info.Phase == launch.Running && f.Info.Mine {
		row.Followed = &f.Followed
	}
	for _, id := range f.Workers {
		row.Slices = append(row.Slices, see.slices[id.Slice].Name)
	}
	if f.Info.Slices > 0 && unseen(f, see) != nil {
		row.part = fmt.Sprintf("on %d of %d slices", len(f.Workers), f.Info.Slices)
	}
	return row
}

// table returns the rows for people. ended says that the list includes ended runs.
func table(seen []Seen, ended bool) string {
	switch {
	case len(seen) == 0 && ended:
		return "no runs\n"
	case len(seen) == 0:
		return "no runs live; those that have ended: multihost ps --all\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tATTEMPT\tSTATE\tAGE\tOWNER\tSLICES\tPER HOUR\tSO FAR\tGONE\tCOMMAND")
	for _, s := range seen {
		attempt, hour, sum, state := "-", "-", "-", s.State
		if s.Attempt > 0 {
			attempt = strconv.Itoa(s.Attempt)
		}
		if s.Gone != "" {
			hour, sum = cost.Price(s.Hourly), cost.Price(s.SoFar)
		}
		if s.Followed != nil && !*s.Followed {
			state += ", not followed"
		}
		if s.part != "" {
			state += ", " + s.part
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Run, attempt, state, event.Age(s.age), s.Owner, strings.Join(s.Slices, ","),
			hour, sum, cmp.Or(s.Gone, "-"), s.Command)
	}
	_ = w.Flush() // writes to memory
	return b.String()
}
