// Package gc finds resources that runs left in the cloud, shows their cost and deletes them.
//
// # Decisions
//
//   - Only evidence makes something a leftover: a dead resource, or workers that answer and
//     know no active run. Networks have no user label, so they count only with --all-users
//     or --prefix.
package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// minIdle is how long slices must be without a run to count as left over. A job that has just
// made its slices has not started its command yet.
const minIdle = 30 * time.Minute

// NetworkInventory lists the networks that multihost made. *network.Client implements it.
type NetworkInventory interface {
	Owned(ctx context.Context) ([]network.Owned, error)
	Delete(ctx context.Context, name string) (network.Deletion, error)
}

// ClusterInventory lists the clusters that multihost made and their workloads. *gke.Client
// implements it.
type ClusterInventory interface {
	Owned(ctx context.Context) ([]gke.Info, error)
}

// GCOptions selects the leftovers to look for.
type GCOptions struct {
	Networks  NetworkInventory // nil: list no networks
	Clusters  ClusterInventory // nil: list no clusters
	User      string           // owner; "": all users
	Prefix    string           // of names
	OlderThan time.Duration
	Look      bool // log in to slices to find active runs
}

// A Leftover is a resource, network or cluster that multihost made and that may be useless now.
type Leftover struct {
	Kind     string        `json:"kind"` // "network", "cluster", or the provider's word for its resources: "queued resource"
	Name     string        `json:"name"`
	State    string        `json:"state,omitempty"`
	Run      string        `json:"run,omitempty"`
	User     string        `json:"user,omitempty"`
	Created  time.Time     `json:"created"`
	Age      time.Duration `json:"age_ns"`
	Type     string        `json:"accelerator_type,omitempty"`
	Slices   int           `json:"slices,omitempty"` // existing slices
	Tier     string        `json:"tier,omitempty"`
	Hourly   *float64      `json:"usd_per_hour"` // list price now; null: not known
	Useless  bool          `json:"useless"`      // certainly useless: gc --delete deletes it
	Evidence string        `json:"evidence"`     // reason for Useless

	Parts []cost.Part `json:"parts,omitempty"` // of a resource with several parts

	res provision.Resource
}

type Deps struct {
	*workers.Reach
	StateDir string // of this machine's records
}

// Leftovers lists the resources that runs left in the zone. With o.Clusters it adds idle
// clusters, and with o.Networks the networks without machines. It changes nothing.
func Leftovers(ctx context.Context, d Deps, o GCOptions) ([]Leftover, error) {
	all, err := d.Cloud.List(ctx)
	if err != nil {
		return nil, err
	}
	left := []Leftover{}
	for _, res := range all {
		run, user, ours := res.Made()
		if !ours || o.User != "" && user != provision.LabelValue(o.User) || !strings.HasPrefix(res.ID, o.Prefix) {
			continue
		}
		l := Leftover{Kind: res.Commands.Kind, Name: res.ID, State: res.State, Run: run, User: user, Created: res.CreateTime,
			Age: d.Age(res.CreateTime), Type: res.Type, Slices: len(res.Slices), Tier: string(res.Tier), res: res}
		if l.Age < o.OlderThan {
			continue
		}
		l.Hourly = cost.Hourly(res, d.Zone)
		switch {
		case res.Spent():
			l.Useless, l.Evidence = true, deadEvidence(d, res)
		case res.Life == provision.Deleting:
			continue
		case res.Free:
			l.Evidence = "it has no slices and costs nothing; unless a command is making it now, remove it with: " + res.Commands.Delete
		case res.ReadySlices() == 0 && res.Life == provision.Suspending:
			l.Evidence = "its slices are being taken away; a command may still run there"
		case res.ReadySlices() == 0:
			l.Evidence = "it is on its way; whether somebody waits for it is not known"
		default:
			l.Evidence = "whether a run lives on its slices was not looked at (--look does)"
		}
		left = append(left, l)
	}
	addParts(ctx, d, left)
	if o.Look {
		if err := lookForRuns(ctx, d, left, o.OlderThan); err != nil {
			return nil, err
		}
	}
	if o.Clusters != nil {
		more, err := idleClusters(ctx, d, o)
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	if o.Networks != nil {
		more, err := unusedNetworks(ctx, d, o)
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	return left, nil
}

// Useless counts the leftovers that Collect would delete.
func Useless(left []Leftover) (n int) {
	for _, l := range left {
		if l.Useless {
			n++
		}
	}
	return n
}

// deadEvidence returns why a resource that will never have slices again is useless.
func deadEvidence(d Deps, res provision.Resource) string {
	switch _, parts := itemizer(d, res.Commands.Kind); {
	case res.Free:
		return "it gives no slices any more; what is left of it is free, and holds no quota"
	case !parts:
		return "it gives no slices any more and holds quota until it is deleted"
	case slices.ContainsFunc(res.Slices, func(s tpu.Slice) bool { return !s.Billed.IsZero() }):
		return "it gives no slices any more, and those of its VMs that still run are billed until it is deleted"
	}
	return "it gives no slices any more, and the boot disks of its VMs are billed until it is deleted"
}

// itemizer returns the provider for resources of a kind. The result is false if such resources
// do not have several parts.
func itemizer(d Deps, kind string) (provision.Itemizer, bool) {
	return provision.As[provision.Itemizer](provider.Of(d.Cloud, kind))
}

// addParts sets Parts of the resources that have several parts. It warns if it cannot read all
// parts.
func addParts(ctx context.Context, d Deps, left []Leftover) {
	errs := make([]error, len(left))
	var reads errgroup.Group
	reads.SetLimit(8)
	for i := range left {
		l := &left[i]
		p, ok := itemizer(d, l.Kind)
		if !ok {
			continue
		}
		reads.Go(func() error {
			var items []provision.Item
			items, errs[i] = p.Items(ctx, l.Name)
			l.Parts = cost.Parts(items, l.Type, l.Tier, d.Zone)
			return nil
		})
	}
	_ = reads.Wait() // the goroutines return nil
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		event.Notef(d.Sink, event.Warn, gcp.Hint(err), "not all parts could be read: %v", err)
	}
}

// lookForRuns asks the ready slices of every resource for runs, and looks for other users of
// the TPU. It sets Useless and Evidence. Slices that do not answer do not count as idle.
func lookForRuns(ctx context.Context, d Deps, left []Leftover, olderThan time.Duration) error {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return err
	}
	owner := map[string]int{}
	for i, l := range left {
		if !l.Useless && l.res.ReadySlices() > 0 {
			owner[l.Name] = i
		}
	}
	var ready []tpu.Slice
	for _, s := range nodes {
		if _, ours := owner[s.QueuedResource]; !ours {
			continue
		}
		if ok, _ := s.Ready(); ok {
			s.Index = len(ready)
			ready = append(ready, s)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	found, asked, err := runs.Ask(ctx, d.Reach, ready)
	held := holders(ctx, d, ready)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for name, i := range owner {
		l := &left[i]
		l.Useless, l.Evidence = idle(d, *l, name, ready, found, asked, max(olderThan, 0))
		for n, s := range ready {
			if l.Useless && s.QueuedResource == name && held[n] != "" {
				l.Useless, l.Evidence = false, held[n]
			}
		}
	}
	if err != nil {
		event.Notef(d.Sink, event.Warn, "", "%v; slices that do not answer do not count as idle", err)
	}
	return nil
}

// holders looks for processes that use the TPU on worker 0 of every slice. Somebody may have
// started them without multihost. The Index of a slice is its index in ready and in the result.
// Each text names a process that uses the TPU, or says why that is not known. "" means that no
// process uses it.
func holders(ctx context.Context, d Deps, ready []tpu.Slice) []string {
	held := make([]string, len(ready))
	for i, s := range ready {
		held[i] = fmt.Sprintf("whether the TPU of slice %s is in use could not be looked at", s.Name)
	}
	t, _, err := d.Dial(ctx, tpu.Selection{Slices: ready}, func(id tpu.WorkerID) bool { return id.Worker == 0 }, false)
	if err != nil {
		return held
	}
	defer t.Close()
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		n := t.IDs[i].Slice
		report, err := launch.FreeTPU(ctx, t.Conns[i], launch.FreeOptions{Policy: launch.FreeCheck})
		var busy *launch.HoldersError
		switch {
		case errors.As(err, &busy):
			p := busy.Holders[0]
			held[n] = fmt.Sprintf("pid %d of %s uses the TPU of slice %s (%s)", p.PID, p.User, ready[n].Name, p.Command)
		case err == nil && report.Blind != "":
			held[n] += ": " + report.Blind
		case err == nil:
			held[n] = ""
		}
		return nil
	})
	return held
}

// idle decides whether the slices of a resource have been without a run for long enough, and
// says why.
func idle(d Deps, l Leftover, name string, ready []tpu.Slice, found []workers.FoundRun, asked []bool, olderThan time.Duration) (useless bool, evidence string) {
	var since time.Time // last known moment of activity
	mine := func(index int) bool { return ready[index].QueuedResource == name }
	for i, s := range ready {
		if mine(i) {
			if !asked[i] {
				return false, fmt.Sprintf("slice %s does not answer: a run may live there", s.Name)
			}
			since = latest(since, s.Created)
		}
	}
	for _, f := range found {
		if !slices.ContainsFunc(f.Workers, func(id tpu.WorkerID) bool { return mine(id.Slice) }) {
			continue
		}
		if f.Info.Alive() {
			return false, fmt.Sprintf("run %s of %s lives there", f.Info.Run, f.Info.Owner)
		}
		if f.Info.Exit != nil {
			since = latest(since, f.Info.Exit.End)
		}
	}
	quiet := d.Age(since)
	need := minIdle
	if olderThan > 0 {
		need = olderThan
	}
	evidence = "no run lives on worker 0 of any of its slices"
	if !since.IsZero() {
		evidence += ", and nothing has run there for " + event.Age(quiet)
	}
	switch {
	case l.res.ReadySlices() < l.res.NodeCount && !l.res.Dead():
		return false, evidence + "; not all of them are READY"
	case l.res.Tier.IsReserved():
		return false, evidence + "; it is reserved capacity, which gc leaves"
	case since.IsZero() || quiet < need:
		return false, fmt.Sprintf("%s; it counts as left after %s", evidence, event.Duration(need))
	}
	return true, evidence
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// unusedNetworks lists multihost's networks without machines. Networks have no user label. So
// they are useless only if the user asks for everybody's networks or gives a name prefix.
func unusedNetworks(ctx context.Context, d Deps, o GCOptions) ([]Leftover, error) {
	all, err := o.Networks.Owned(ctx)
	if err != nil {
		return nil, err
	}
	var left []Leftover
	for _, n := range all {
		if len(n.Users) > 0 || !strings.HasPrefix(n.Name, o.Prefix) || d.Age(n.Created) < o.OlderThan {
			continue
		}
		free := 0.0 // networks and firewall rules cost nothing
		l := Leftover{Kind: "network", Name: n.Name, Created: n.Created, Age: d.Age(n.Created), Hourly: &free,
			Evidence: fmt.Sprintf("no machine uses it or its %s; who made it is not known: with --all-users or --prefix=%s it counts as left", event.Count(len(n.Firewalls), "firewall rule"), n.Name)}
		if o.User == "" || o.Prefix != "" {
			l.Useless, l.Evidence = true, fmt.Sprintf("no machine uses it or its %s", event.Count(len(n.Firewalls), "firewall rule"))
		}
		left = append(left, l)
	}
	return left, nil
}

// idleClusters lists the region's clusters in which no pod asks for TPU chips now, or whose
// pods cannot be read. They are never useless, because the next workload may come soon.
func idleClusters(ctx context.Context, d Deps, o GCOptions) ([]Leftover, error) {
	all, err := o.Clusters.Owned(ctx)
	if gcp.ClassOf(err) == gcp.Permission { // a project without clusters may have the GKE API disabled
		event.Notef(d.Sink, event.Debug, "", "clusters were not looked at: %v", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var left []Leftover
	for _, k := range all {
		mine := o.User == "" || k.User == provision.LabelValue(o.User)
		if !mine || len(k.Workloads) > 0 || !strings.HasPrefix(k.Name, o.Prefix) || k.Region != gcp.Region(d.Zone) || d.Age(k.Created) < o.OlderThan {
			continue
		}
		// Hourly stays unknown, because the prices of some parts are not known. Parts has
		// the known prices.
		l := Leftover{Kind: "cluster", Name: k.Name, State: k.State, User: k.User, Created: k.Created, Age: d.Age(k.Created)}
		var types []string
		types, l.Slices = k.Types()
		l.Type = strings.Join(types, ",")
		l.Evidence = "no pod asks for its TPU chips now; if nobody needs it: multihost cluster delete " + k.Name
		if k.Unread != "" {
			l.Evidence = "whether workloads run there is not known: multihost cluster show " + k.Name
		}
		for _, p := range k.Cost.Parts {
			l.Parts = append(l.Parts, cost.Part{Item: provision.Item{Kind: "part", Name: p.Name}, Hourly: p.Hourly, Text: p.Text})
		}
		left = append(left, l)
	}
	return left, nil
}

// Collect deletes the useless leftovers. Before each deletion it reads the resource again, and
// keeps the resource if it has changed.
func Collect(ctx context.Context, d Deps, o GCOptions, left []Leftover) error {
	names, errs := make([]string, len(left)), make([]error, len(left))
	var group errgroup.Group
	group.SetLimit(8)
	for i, l := range left {
		names[i] = l.Name
		if !l.Useless {
			continue
		}
		group.Go(func() error {
			errs[i] = collect(ctx, d, o, l)
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	return stage.JoinNamed(names, errs)
}

func collect(ctx context.Context, d Deps, o GCOptions, l Leftover) error {
	if l.Kind == "network" {
		_, err := o.Networks.Delete(ctx, l.Name) // Delete checks the owner and the machines of the network
		return err
	}
	now, err := d.Cloud.Get(ctx, l.Name)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound, errors.Is(err, provision.ErrNotFound): // free parts may be left
		return collectRemains(ctx, d, l)
	case err != nil:
		return err
	case now.State != l.State || !now.CreateTime.Equal(l.Created):
		event.Notef(d.Sink, event.Warn, "", "%s is another one, or %s, since it was listed: it stays", provision.NameOf(d.Cloud, l.Name), now.State)
		return nil
	}
	again := []Leftover{l}
	again[0].res, again[0].Useless = now, now.Spent() // the state may be the same although a slice has become ready
	if err := lookForRuns(ctx, d, again, o.OlderThan); err != nil {
		return err
	}
	if !again[0].Useless {
		event.Notef(d.Sink, event.Warn, "", "%s came into use since it was listed: it stays (%s)", provision.NameOf(d.Cloud, l.Name), again[0].Evidence)
		return nil
	}
	_, err = d.Cloud.Delete(ctx, l.Name, provision.DeleteOptions{OnlyRun: l.Run})
	return err
}

// collectRemains deletes the remaining parts of a resource that no longer exists. It lists the
// resources first, because somebody may be making a resource of the same name.
func collectRemains(ctx context.Context, d Deps, l Leftover) error {
	all, err := d.Cloud.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(r provision.Resource) bool { return r.ID == l.Name && r.Commands.Kind == l.Kind })
	switch {
	case i < 0:
		return nil
	case !all[i].Dead():
		event.Notef(d.Sink, event.Warn, "", "%s is %s since it was listed: it stays", provision.NameOf(d.Cloud, l.Name), all[i].State)
		return nil
	}
	_, err = d.Cloud.Delete(ctx, l.Name, provision.DeleteOptions{OnlyRun: l.Run})
	return err
}

// LeftoverTable formats the list for people.
func LeftoverTable(left []Leftover) string {
	if len(left) == 0 {
		return "nothing is left\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "KIND\tNAME\tSTATE\tTYPE\tSLICES\tAGE\tUSER\tPER HOUR\tDELETE\tWHY")
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	for _, l := range left {
		remove := "no"
		if l.Useless {
			remove = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", l.Kind, l.Name, dash(l.State), dash(l.Type), l.Slices, event.Age(l.Age), dash(l.User), cost.Price(l.Hourly), remove, l.Evidence)
	}
	w.Flush()
	for _, l := range left {
		if len(l.Parts) > 0 {
			fmt.Fprintf(&b, "%s %s:\n%s", l.Kind, l.Name, cost.PartLines(l.Parts))
		}
	}
	return b.String()
}

// WarnOfLeftovers searches for leftovers of user's runs in the background and warns about them
// in one line. It also deletes parts that cost nothing. except is the command's own resource.
// Errors are ignored. At its end, the command calls wait, which cancels an unfinished search.
func WarnOfLeftovers(ctx context.Context, d Deps, user, except string) (wait func()) {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), workers.WarnLimit)
	var done sync.WaitGroup
	done.Go(func() {
		all, err := d.Cloud.List(ctx)
		if err != nil {
			return // the command's own requests report errors
		}
		if text := leftoverWarning(d, all, user, except); text != "" && ctx.Err() == nil {
			event.Notef(d.Sink, event.Warn, "multihost gc", "%s", text)
		}
		sweep(ctx, d, all, user, except)
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// sweep looks at resources of user's runs of which only free parts are left, and deletes these
// parts. Workers cannot delete the parts, which are in use until the workers are gone. The next
// command tries again.
func sweep(ctx context.Context, d Deps, all []provision.Resource, user, except string) {
	if d.ReadOnly {
		return
	}
	for _, res := range all {
		run, whose, ours := res.Made()
		if !ours || run == "" || whose != provision.LabelValue(user) || res.ID == except || !res.Spent() || !res.Free {
			continue
		}
		p, ok := provision.As[provision.Sweeper](provider.Of(d.Cloud, res.Commands.Kind))
		if !ok {
			continue
		}
		if err := p.Sweep(ctx, res.ID, run, false); err != nil && ctx.Err() == nil {
			event.Notef(d.Sink, event.Debug, "multihost gc", "parts of %s that cost nothing may be left: %v", provision.NameOf(d.Cloud, res.ID), err)
		}
	}
}

func leftoverWarning(d Deps, all []provision.Resource, user, except string) string {
	var dead, idle []string
	total, known := 0.0, true
	for _, res := range all {
		_, whose, ours := res.Made()
		switch {
		case !ours || whose != provision.LabelValue(user) || res.ID == except:
		case res.Spent() && res.Free: // see sweep
		case res.Spent():
			dead = append(dead, res.ID)
		case res.ReadySlices() > 0:
			ended := lastRunEnded(d, res)
			if ended.IsZero() || d.Clock.Now().Sub(ended) < minIdle {
				continue
			}
			idle = append(idle, fmt.Sprintf("%s (%s, its last run ended %s ago)", res.ID, event.Count(len(res.Slices), "slice"), event.Age(d.Clock.Now().Sub(ended))))
			if usd := cost.Hourly(res, d.Zone); usd != nil {
				total += *usd
			} else {
				known = false
			}
		}
	}
	var parts []string
	if len(idle) > 0 {
		billed := "billed"
		if known {
			billed += ", " + cost.ListPrice(total)
		}
		parts = append(parts, "still there and "+billed+": "+strings.Join(idle, ", "))
	}
	if len(dead) > 0 {
		parts = append(parts, "dead and holding quota: "+strings.Join(dead, ", "))
	}
	if len(parts) == 0 {
		return ""
	}
	return "left of your earlier runs: " + strings.Join(parts, "; ")
}

// lastRunEnded returns the end of the last run on a resource's slices, from this machine's
// records. It returns the zero time if there is no such run, or if one has not ended.
func lastRunEnded(d Deps, res provision.Resource) time.Time {
	names := map[string]bool{}
	for _, s := range res.Slices {
		names[s.Name] = true
	}
	var ended time.Time
	for _, rec := range record.LocalRecords(d.StateDir) {
		if rec.Project != d.Project || rec.Zone != d.Zone || rec.Created.Before(res.CreateTime) ||
			!slices.ContainsFunc(rec.Slices, func(s record.Slice) bool { return names[s.Name] }) {
			continue
		}
		if !rec.Ended || len(rec.Attempts) == 0 {
			return time.Time{}
		}
		ended = latest(ended, rec.Attempts[len(rec.Attempts)-1].End)
	}
	return ended
}
