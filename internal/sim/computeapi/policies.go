package computeapi

import (
	"fmt"
	"slices"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

func (s machines) serveResourcePolicies(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	return serveCollection(s.API, c, collection[*computepb.ResourcePolicy]{
		kind: "resourcePolicy", all: s.State.Policies,
		empty: func() *computepb.ResourcePolicy { return new(computepb.ResourcePolicy) },
		fill: func(p *computepb.ResourcePolicy) error {
			if err := checkPolicy(p); err != nil {
				return err
			}
			p.Region = proto.String(s.Networks().Link("projects/" + s.Config.Project + "/" + c.scope))
			p.Status = proto.String("READY")
			return nil
		},
	})
}

// checkPolicy returns an error for a policy that the real service refuses, or that is no
// workload policy.
func checkPolicy(p *computepb.ResourcePolicy) error {
	if err := onlyFields(p, "a resource policy", "name", "description", "region", "workloadPolicy"); err != nil {
		return err
	}
	w := p.GetWorkloadPolicy()
	if w == nil {
		return wire.NotModelled("A resource policy other than a workload policy")
	}
	if err := onlyFields(w, "a workload policy", "type", "acceleratorTopology"); err != nil {
		return err
	}
	if !slices.Contains([]string{"HIGH_THROUGHPUT", "HIGH_AVAILABILITY"}, w.GetType()) {
		return badValue("resource.workloadPolicy.type", w.GetType(), "Must be HIGH_THROUGHPUT or HIGH_AVAILABILITY.")
	}
	topology := w.GetAcceleratorTopology()
	if topology == "" {
		return nil
	}
	if w.GetType() != "HIGH_THROUGHPUT" {
		return badValue("resource.workloadPolicy.acceleratorTopology", topology, "It can be set with type HIGH_THROUGHPUT only.")
	}
	if _, err := groups.ChipsOf(topology); err != nil {
		return badValue("resource.workloadPolicy.acceleratorTopology", topology, fmt.Sprintf("The topology is malformed: %v.", err))
	}
	return nil
}
