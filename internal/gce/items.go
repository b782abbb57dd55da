package gce

import (
	"context"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

const (
	partPolicy   = "workload policy"
	partTemplate = "instance template"
	partGroup    = "group"
)

// Descriptions of parts name the resource and the run.

func (p *reader) aboutPolicy(ctx context.Context, name string) (string, error) {
	w, err := p.calls.Policy(ctx, name)
	return w.GetDescription(), err
}

func (p *reader) aboutTemplate(ctx context.Context, name string) (string, error) {
	t, err := p.calls.Template(ctx, name)
	return t.GetDescription(), err
}

func (p *reader) aboutGroup(ctx context.Context, name string) (string, error) {
	g, err := p.calls.Group(ctx, name)
	return g.GetDescription(), err
}

// Items implements provision.Itemizer. It does not list boot disks, which are deleted with
// their VMs.
func (p *reader) Items(ctx context.Context, id string) ([]provision.Item, error) {
	v, err := p.look(ctx, id)
	if err != nil {
		return nil, err
	}
	var all []provision.Item
	for _, g := range v.groups {
		item := provision.Item{Kind: partGroup, Name: g.GetName()}
		for _, vm := range p.sight(v, g, record{}).vms {
			item.VMs++
			item.Chips += chipsOf(gcp.BaseName(vm.GetMachineType()))
			if vm.GetStatus() == "RUNNING" {
				item.Running++
			}
		}
		all = append(all, item)
	}
	name := p.at().partName(id)
	for _, part := range []struct {
		kind string
		read func(ctx context.Context, name string) (string, error)
	}{{partTemplate, p.aboutTemplate}, {partPolicy, p.aboutPolicy}} {
		about, err := part.read(ctx, name)
		of, _, ours := described(about)
		switch {
		case gcp.ClassOf(err) == gcp.NotFound:
		case err != nil:
			return all, err
		case ours && of == id:
			all = append(all, provision.Item{Kind: part.kind, Name: name})
		}
	}
	return all, nil
}

// chipsOf returns the chips of a VM, or 0 for an unknown machine type.
func chipsOf(machine string) int {
	for _, m := range tpu.Machines() {
		if m.Name == machine {
			return m.Chips
		}
	}
	return 0
}

// ItemsOf implements provision.Itemizer.
func (p *reader) ItemsOf(r provision.Request) []provision.Item {
	var all []provision.Item
	for _, name := range r.NodeNames() {
		all = append(all, provision.Item{Kind: partGroup, Name: name, VMs: r.Type.Workers, Running: r.Type.Workers, Chips: r.Type.Chips})
	}
	all = append(all, provision.Item{Kind: partTemplate, Name: p.at().partName(r.ID)})
	if r.Type.Workers > 1 {
		all = append(all, provision.Item{Kind: partPolicy, Name: p.at().partName(r.ID)})
	}
	return all
}
