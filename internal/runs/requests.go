package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// withRequests adds what the API knows about queued resources to the runs that workers
// report. It also adds jobs that no worker reports: they wait, boot, or have ended with
// kept slices. found are the runs that workers know, ended ones included.
func withRequests(ctx context.Context, d Deps, prefix string, seen []Seen, found []workers.FoundRun) ([]Seen, error) {
	if d.OnHosts() {
		return seen, nil
	}
	all, err := d.Cloud.List(ctx)
	if err != nil {
		return seen, fmt.Errorf("list requests for slices in %q: %w", d.Zone, err)
	}
	for _, res := range all {
		label, user, ours := res.Made()
		if !res.Until.IsZero() && !res.JobMade() {
			sayUntil(d, seen, res)
		}
		if !ours || !res.JobMade() || res.Life == provision.Deleting || !strings.HasPrefix(res.ID, prefix) {
			continue
		}
		terms, known := lease.ReadTerms(res.Metadata)
		goes := func(begun bool) string {
			text := "not known here" // its runner may still arm a lease
			if known {
				text = whenGone(terms, begun)
			}
			return atTheLatest(text, lastMoment(terms.TTL, d.Age(res.CreateTime), res.Until, d.Clock.Now()))
		}
		if addCosts(d, seen, res, label, goes) {
			continue
		}
		if row := endedInBucket(ctx, d, res, label, known); row != nil {
			if !res.Free { // otherwise nothing that costs money is left, and the run is over
				row.costs(d, res)
				row.Gone = row.goes
				seen = append(seen, *row)
			}
			continue
		}
		row := Seen{Run: res.ID, State: waitsFor(res), Owner: user, Created: res.CreateTime, Slices: res.Nodes,
			Gone: goes(false), age: d.Age(res.CreateTime)}
		if row.costs(d, res); res.Free {
			row.Gone = "with: " + res.Commands.Delete
		}
		if at := slices.IndexFunc(found, func(f workers.FoundRun) bool { return provision.LabelValue(f.Info.Run) == label && f.Info.Exit != nil }); at >= 0 {
			info := found[at].Info
			row.Run, row.Attempt, row.Owner, row.Command, row.State, row.Gone = info.Run, info.Attempt, info.Owner, info.Command, "kept: "+found[at].Ended(), goes(true)
			row.Created, row.age = info.Armed, info.Age()
		}
		seen = append(seen, row)
	}
	return seen, nil
}

// addCosts adds to the rows of the run with this label what the slices of res cost, and
// when they go. It reports whether there is such a row. It changes nothing in the rows if
// res no longer has slices.
func addCosts(d Deps, seen []Seen, res provision.Resource, label string, goes func(begun bool) string) (listed bool) {
	for i := range seen {
		switch s := &seen[i]; {
		case provision.LabelValue(s.Run) != label:
		case res.Free:
			listed = true
		case len(s.Slices) == 0 || overlap(s.Slices, res.Nodes):
			listed = true
			s.costs(d, res)
			s.Gone = cmp.Or(s.goes, goes(true))
		}
	}
	return listed
}

// costs adds to s what the slices of the run cost.
func (s *Seen) costs(d Deps, res provision.Resource) {
	s.Hourly, s.SoFar = cost.Hourly(res, d.Zone), cost.SoFar(res, d.Zone, d.Clock.Now())
}

// endedInBucket returns the row of a job without runner that has ended and whose resource
// still exists. It returns nil for other jobs, and for jobs whose bucket is unknown here.
// label is the label of the run. known says that the resource has the terms of a lease,
// which only a job with a runner has.
func endedInBucket(ctx context.Context, d Deps, res provision.Resource, label string, known bool) *Seen {
	if known || d.OpenBucket == nil {
		return nil
	}
	name := res.ID
	for _, rec := range record.LocalRecords(d.StateDir) {
		if rec.Bucket != "" && rec.Prefix == res.ID && provision.LabelValue(rec.Run) == label {
			name = rec.Run
		}
	}
	r, err := FindBucketRun(ctx, d, name)
	if err != nil || r == nil || !r.owns(res) {
		return nil
	}
	state, err := r.Store.State(ctx, name)
	if err != nil || !state.Over(r.Desc) {
		return nil
	}
	row := r.row(ctx, state)
	row.goes = goesAfter(r, state)
	if r.whyKept(state) != "" {
		row.State = "kept: " + row.State
	}
	return &row
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// waitsFor describes the state of a job whose command has not begun.
func waitsFor(res provision.Resource) string {
	switch ready := res.ReadySlices(); {
	case res.Free:
		return res.State + ", costs nothing"
	case res.Dead():
		return res.State + ", holds quota"
	case len(res.Slices) == 0:
		return "waits: " + res.State
	case len(res.Missing) > 0:
		return fmt.Sprintf("waits: %d/%d slices have come", res.NodeCount-len(res.Missing), res.NodeCount)
	case ready < res.NodeCount:
		return fmt.Sprintf("boots: %d/%d slices ready", ready, res.NodeCount)
	}
	return "ready, no command"
}

// never is the text of whenGone for slices that stay.
const never = "never by itself"

// whenGone says when the slices of a job are deleted if no runner continues it. begun
// reports that the command has begun.
func whenGone(t lease.Terms, begun bool) string {
	text := never
	switch {
	case begun && t.Lease > 0:
		text = stage.AsTyped(t.Lease) + " after its end"
		switch {
		case t.KeepOnFailure && t.KeepFor == 0:
			text += ", never after a failure"
		case t.KeepOnFailure:
			text += ", " + stage.AsTyped(t.KeepFor) + " after a failure"
		}
	case !begun && t.Adopt > 0:
		text = stage.AsTyped(t.Adopt) + " after its boot"
	}
	return text
}

// lastMoment returns the time until slices of this age go in any case, because of ttl or
// because their provider takes them away. It is negative if they may stay.
func lastMoment(ttl, age time.Duration, until, now time.Time) time.Duration {
	left := time.Duration(-1)
	if ttl > 0 {
		left = max(0, ttl-age)
	}
	if end := max(0, until.Sub(now)); !until.IsZero() && (left < 0 || end < left) {
		left = end
	}
	return left
}

// atTheLatest adds to text that the slices are deleted within the time left. It adds nothing
// if left is negative.
func atTheLatest(text string, left time.Duration) string {
	switch limit := "in " + event.Age(left); {
	case left < 0:
		return text
	case text == never:
		return limit
	default:
		return text + ", at the latest " + limit
	}
}

// sayUntil adds to the rows of runs on the slices of res when the provider takes the slices
// away, and what they cost. No job has made res.
func sayUntil(d Deps, seen []Seen, res provision.Resource) {
	for i := range seen {
		if overlap(seen[i].Slices, res.Nodes) {
			seen[i].costs(d, res)
			seen[i].Gone = atTheLatest(never, lastMoment(0, 0, res.Until, d.Clock.Now()))
		}
	}
}

// waitingRequest returns the resource that multihost made for the job named run. It returns
// false if there is none, if one of its slices is ready, or if workers that may run a
// command cannot be asked.
func waitingRequest(ctx context.Context, d Deps, run string) (provision.Resource, bool) {
	if d.OnHosts() {
		return provision.Resource{}, false
	}
	res, err := d.Cloud.Get(ctx, run)
	return res, err == nil && res.JobMade() && res.IsOf(run) && res.ReadySlices() == 0 && allAsked(res)
}

// allAsked reports whether the workers of every slice that may run a command can be asked:
// each slice of the resource is ready, being made, or gone.
func allAsked(res provision.Resource) bool {
	return res.Dead() || !slices.ContainsFunc(res.Slices, func(s tpu.Slice) bool {
		ok, _ := s.Ready()
		return !ok && s.Condition != tpu.Making
	})
}

// stopRequest deletes the queued resource of a job whose command has not begun or whose
// slices have gone.
func stopRequest(ctx context.Context, d Deps, run string, res provision.Resource) error {
	return deleteMade(ctx, d, run, res, waitsFor(res))
}
