package gce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cloud.google.com/go/compute/apiv1/computepb"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"multihost/internal/event"
	"multihost/internal/gce/api"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// callsAtOnce limits concurrent calls about single groups and VMs. The API would refuse
// thousands with status 429.
const callsAtOnce = 32

// A reader describes what exists. It is safe for concurrent use.
type reader struct {
	gcp   *gcp.Client
	calls *api.Client
	turn  *semaphore.Weighted // calls for guest attributes

	mu     sync.Mutex      // guards the fields below
	told   map[string]told // reports of VMs, by id and start
	warned map[string]bool
}

func (p *reader) at() place { return place{p.gcp.Project(), p.gcp.Zone()} }

// A view is what the API shows of a zone at one moment.
type view struct {
	groups    []*computepb.InstanceGroupManager // groups of TPU slices
	templates map[string]*computepb.InstanceTemplate
	vms       map[string]*computepb.Instance
	managed   map[string][]*computepb.ManagedInstance // by name of the group
}

// ofTPU reports whether a group is a slice: one of ours, or one with a topology.
func ofTPU(g *computepb.InstanceGroupManager) bool {
	_, _, ours := described(g.GetDescription())
	return ours || len(g.GetStatus().GetAppliedAcceleratorTopologies()) > 0 || g.GetResourcePolicies().GetWorkloadPolicy() != ""
}

// look reads the slices of the zone, or only those of the resource id if it is not "".
// Without groups of TPU slices, it makes one call.
func (p *reader) look(ctx context.Context, id string) (v view, err error) {
	all, err := p.calls.Groups(ctx)
	if err != nil {
		return v, err
	}
	for _, g := range all {
		if of, _, _ := described(g.GetDescription()); ofTPU(g) && (id == "" || of == id) {
			v.groups = append(v.groups, g)
		}
	}
	v.templates, v.vms, v.managed = map[string]*computepb.InstanceTemplate{}, map[string]*computepb.Instance{}, map[string][]*computepb.ManagedInstance{}
	if len(v.groups) == 0 {
		return v, nil
	}
	var mu sync.Mutex
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(callsAtOnce)
	reads.Go(func() error { return p.readTemplates(ctx, id, v.templates) })
	reads.Go(func() error {
		list, err := p.calls.Instances(ctx)
		for _, vm := range list {
			v.vms[vm.GetName()] = vm
		}
		return err
	})
	for _, g := range v.groups {
		reads.Go(func() error {
			list, err := p.calls.Managed(ctx, g.GetName())
			if gcp.ClassOf(err) == gcp.NotFound {
				return nil // deleted just now
			}
			mu.Lock()
			defer mu.Unlock()
			v.managed[g.GetName()] = list
			return err
		})
	}
	return v, reads.Wait()
}

// readTemplates puts the templates of the region into the map all, or only the template of
// the resource id if it is not "".
func (p *reader) readTemplates(ctx context.Context, id string, all map[string]*computepb.InstanceTemplate) error {
	if id != "" {
		t, err := p.calls.Template(ctx, p.at().partName(id))
		if gcp.ClassOf(err) == gcp.NotFound {
			return nil
		}
		all[t.GetName()] = t
		return err
	}
	list, err := p.calls.Templates(ctx)
	for _, t := range list {
		all[t.GetName()] = t
	}
	return err
}

// sight returns the part of v about a group.
func (p *reader) sight(v view, g *computepb.InstanceGroupManager, rec record) sight {
	s := sight{group: g, managed: v.managed[g.GetName()], spot: rec.Tier == provision.Spot, maxRun: rec.maxRun(), now: p.gcp.Clock().Now()}
	for _, m := range s.managed {
		if vm := v.vms[path.Base(m.GetInstance())]; vm != nil {
			s.vms = append(s.vms, vm)
			s.spot = s.spot || vm.GetScheduling().GetProvisioningModel() == "SPOT"
		}
	}
	return s
}

// resource describes the resource id, of which v has at least one group. It asks the VMs of
// running slices for the order of the workers.
func (p *reader) resource(ctx context.Context, v view, id string) (provision.Resource, error) {
	template := v.templates[p.at().partName(id)]
	rec, known := recordIn(template)
	out := provision.Resource{
		ID: id, Commands: commands(id), Zone: p.gcp.Zone(), Type: rec.Type, Tier: rec.Tier, Network: path.Base(rec.Network),
		Nodes: rec.Nodes, Labels: template.GetProperties().GetLabels(), Reclaimable: rec.Tier.Reclaimable(),
	}
	if known {
		out.Metadata = items(template.GetProperties().GetMetadata())
	} else {
		out.Network = ""
	}
	newest := timeOf(template.GetCreationTimestamp())
	byName := map[string]*computepb.InstanceGroupManager{}
	for _, g := range v.groups {
		of, run, _ := described(g.GetDescription())
		if of != id {
			continue
		}
		byName[g.GetName()] = g
		if !slices.Contains(out.Nodes, g.GetName()) {
			out.Nodes = append(out.Nodes, g.GetName())
		}
		if out.Labels == nil && run != "" { // somebody has deleted the template
			out.Labels = ownerIn(g.GetDescription())
		}
		made := timeOf(g.GetCreationTimestamp())
		if out.CreateTime.IsZero() || made.Before(out.CreateTime) {
			out.CreateTime = made
		}
		if made.After(newest) {
			newest = made
		}
	}
	out.NodeCount = len(out.Nodes)
	var states []state
	var missing []provision.Missing
	var errs []error
	for i, name := range out.Nodes {
		g := byName[name]
		if g == nil {
			missing = append(missing, provision.Missing{Name: name, Why: "it has no group"})
			continue
		}
		s := p.sight(v, g, rec)
		st := s.judge()
		states = append(states, st)
		if st.life.Queued() {
			missing = append(missing, provision.Missing{Name: name, Why: strings.TrimSuffix(cmp.Or(reason(st, out, p.gcp.Zone()).Reason, st.word), ".")})
		}
		if len(s.vms) == 0 {
			continue
		}
		slice, err := p.slice(ctx, s, st, rec, template)
		slice.Index, slice.QueuedResource = i, id
		out.Slices = append(out.Slices, slice)
		errs = append(errs, err)
	}
	whole := together(states, len(out.Nodes)-len(states), p.gcp.Clock().Now().Sub(newest) < provision.MakingTime)
	out.Life, out.State, out.By, out.ByUser, out.Until, out.Own = whole.life, whole.word, whole.by, whole.byUser, whole.until, whole
	out.Over, out.Free = whole.word == wordOver, whole.life.Dead() && len(out.Slices) == 0
	if whole.word == wordPartly {
		out.Missing = missing
	}
	out.Loss = whole.loss
	switch whole.life {
	case provision.Failed:
		out.Failure, out.Starved = whole.why, whole.starved
	case provision.Suspended, provision.Suspending:
		out.Failure = whole.why
	}
	p.tell(id, whole)
	return out, errors.Join(errs...)
}

// slice describes a slice with VMs.
func (p *reader) slice(ctx context.Context, s sight, st state, rec record, t *computepb.InstanceTemplate) (tpu.Slice, error) {
	first := s.vms[0]
	network, _, _ := addresses(first)
	out := tpu.Slice{
		Index: -1, Provider: kind, Name: s.group.GetName(), UID: strconv.FormatUint(s.group.GetId(), 10), Project: p.gcp.Project(), Zone: p.gcp.Zone(),
		Created: timeOf(s.group.GetCreationTimestamp()), Billed: s.billed(), Until: st.until, Type: rec.Type, RuntimeVersion: imageOf(t),
		Condition: conditionOf(st), State: st.word, Network: network, BareNames: true,
		Tags: first.GetTags().GetItems(), Labels: first.GetLabels(), Metadata: common(s.vms),
	}
	if out.Type == "" {
		out.Type = typeOf(path.Base(first.GetMachineType()), s.topology().GetAcceleratorTopology())
	}
	if st.life != provision.Active {
		return out, nil
	}
	if st.word == wordDegraded {
		out.Health, out.HealthDetail = "DEGRADED", st.why
	}
	names := make([]string, len(s.vms))
	byName := map[string]*computepb.Instance{}
	for i, vm := range s.vms {
		names[i], byName[vm.GetName()] = vm.GetName(), vm
	}
	order, err := p.order(ctx, names, byName)
	if err != nil {
		out.Condition, out.State = tpu.Making, st.word+", but "+err.Error()
		if gcp.ClassOf(err) != gcp.Unknown {
			return out, err // the API did not answer
		}
		if rec.ID == "" { // VMs of other makers have no startup script that reports the number
			out.Untold = workersOf(names, byName)
		}
		return out, nil
	}
	out.Workers = workersOf(order, byName)
	return out, nil
}

func workersOf(names []string, byName map[string]*computepb.Instance) []tpu.Worker {
	all := make([]tpu.Worker, len(names))
	for i, name := range names {
		_, internal, external := addresses(byName[name])
		all[i] = tpu.Worker{Name: name, Internal: internal, External: external}
	}
	return all
}

// common returns the metadata that all VMs share.
func common(vms []*computepb.Instance) map[string]string {
	all := items(vms[0].GetMetadata())
	for _, vm := range vms[1:] {
		its := items(vm.GetMetadata())
		maps.DeleteFunc(all, func(key, value string) bool {
			has, ok := its[key]
			return !ok || has != value
		})
	}
	return all
}

// addresses returns the network of a VM and its addresses there.
func addresses(vm *computepb.Instance) (network, internal, external string) {
	if len(vm.GetNetworkInterfaces()) == 0 {
		return "", "", ""
	}
	nic := vm.GetNetworkInterfaces()[0]
	if ways := nic.GetAccessConfigs(); len(ways) > 0 {
		external = ways[0].GetNatIP()
	}
	return path.Base(nic.GetNetwork()), nic.GetNetworkIP(), external
}

// imageOf returns the build of a template's image.
func imageOf(t *computepb.InstanceTemplate) string {
	for _, d := range t.GetProperties().GetDisks() {
		if d.GetBoot() {
			return path.Base(d.GetInitializeParams().GetSourceImage())
		}
	}
	return ""
}

// typeOf returns the accelerator type of VMs that somebody else has made, or "". A VM
// without a topology is a slice of its own.
func typeOf(machine, topology string) string {
	for _, m := range tpu.Machines() {
		if m.Name != machine {
			continue
		}
		for _, t := range tpu.Types() {
			if fits, err := tpu.TypeOf(machine, t.Topology); err == nil && t.Generation.Name == m.Generation && (t.Topology == topology || topology == "" && fits.Workers == 1) {
				return fits.Name
			}
		}
	}
	return ""
}

// order returns the names of the VMs of a slice in the order of their workers. The VMs'
// metadata have the numbers, if the API shows them. Otherwise a guest attribute has them,
// which the startup script has written. The answer is cached until the VM starts again.
func (p *reader) order(ctx context.Context, names []string, vms map[string]*computepb.Instance) ([]string, error) {
	all := make([]told, len(names))
	reads, ctx := errgroup.WithContext(ctx)
	for i, name := range names {
		reads.Go(func() (err error) {
			all[i], err = p.ask(ctx, vms[name])
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	return inOrder(names, all)
}

// ask returns the report of a VM about its place, or the zero told.
func (p *reader) ask(ctx context.Context, vm *computepb.Instance) (told, error) {
	meta := items(vm.GetMetadata())
	if t, ok := readTold(vm.GetName(), meta["agent-worker-number"]+" "+meta["worker-network-endpoints"]); ok {
		return t, nil
	}
	key := fmt.Sprintf("%d since %s", vm.GetId(), vm.GetLastStartTimestamp())
	p.mu.Lock()
	known, ok := p.told[key]
	p.mu.Unlock()
	if ok {
		return known, nil
	}
	entries, err := p.attributes(ctx, vm.GetName(), "multihost/worker")
	if err != nil {
		return told{}, err
	}
	for _, e := range entries {
		if t, ok := readTold(vm.GetName(), e.GetValue()); ok && isOurs(e, "worker") {
			p.mu.Lock()
			p.told[key] = t
			p.mu.Unlock()
			return t, nil
		}
	}
	return told{}, nil
}

// Attributes implements provision.AttributeReader, with one call for the slice and one for
// each VM.
func (p *reader) Attributes(ctx context.Context, slice, key string) (texts []string, err error) {
	vms, err := p.calls.Managed(ctx, slice)
	if err != nil {
		return nil, err
	}
	found := make([][]*computepb.GuestAttributesEntry, len(vms))
	reads, ctx := errgroup.WithContext(ctx)
	for i, vm := range vms {
		reads.Go(func() (err error) {
			found[i], err = p.attributes(ctx, path.Base(vm.GetInstance()), "multihost/"+key)
			return err
		})
	}
	err = reads.Wait()
	for _, entries := range found {
		for _, e := range entries {
			if isOurs(e, key) {
				texts = append(texts, e.GetValue())
			}
		}
	}
	return texts, err
}

// isOurs reports whether e is the guest attribute multihost/KEY.
func isOurs(e *computepb.GuestAttributesEntry, key string) bool {
	return e.GetNamespace() == "multihost" && e.GetKey() == key
}

// attributes reads guest attributes of a VM. It returns none if there is none, or if guest
// attributes are off.
func (p *reader) attributes(ctx context.Context, vm, path string) ([]*computepb.GuestAttributesEntry, error) {
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer p.turn.Release(1)
	entries, err := p.calls.Attributes(ctx, vm, path)
	switch gcp.ClassOf(err) {
	case gcp.NotFound, gcp.Permission, gcp.Invalid, gcp.Conflict:
		return nil, nil
	}
	return entries, err
}

// tell reports at once a lack of quota, because waiting does not help then, and a damaged
// resource.
func (p *reader) tell(id string, st state) {
	about := ""
	switch {
	case noQuota(st.code) && (st.life == provision.Waiting || st.life == provision.Provisioning):
		about = "quota"
	case st.word == wordDegraded:
		about = "degraded"
	default:
		return
	}
	p.mu.Lock()
	known := p.warned[id+" "+about]
	p.warned[id+" "+about] = true
	p.mu.Unlock()
	switch {
	case known:
	case about == "quota":
		why := reason(st, provision.Resource{}, p.gcp.Zone())
		event.Notef(p.gcp.Sink(), event.Warn, why.Hint, "%s %q is not made: %s", kind, id, why.Reason)
	default:
		event.Notef(p.gcp.Sink(), event.Warn, "", "%s %q is %s: %s; it can be used, and may be slower", kind, id, st.word, st.why)
	}
}
