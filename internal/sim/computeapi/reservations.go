package computeapi

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// serveReservations answers for reservations of VMs of one machine type. A DENSE
// reservation has one block with all of its VMs.
func (s machines) serveReservations(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	for name, r := range s.State.Reservations {
		r.SpecificReservation.InUseCount = proto.Int64(s.consumers(name))
	}
	if c.verb == "reservationBlocks" {
		return s.serveBlocks(c)
	}
	return serveCollection(s.API, c, collection[*computepb.Reservation]{
		kind: "reservation", all: s.State.Reservations,
		empty: func() *computepb.Reservation { return new(computepb.Reservation) },
		fill: func(r *computepb.Reservation) error {
			zone := strings.TrimPrefix(c.scope, "zones/")
			if err := s.checkReservation(zone, r); err != nil {
				return err
			}
			if r.ShareSettings == nil {
				r.ShareSettings = &computepb.ShareSettings{ShareType: proto.String("LOCAL")}
			}
			r.Zone, r.Status = proto.String(s.Networks().Link("projects/"+s.Config.Project+"/"+c.scope)), proto.String("READY")
			r.SpecificReservationRequired = proto.Bool(r.GetSpecificReservationRequired())
			specific := r.SpecificReservation
			specific.AssuredCount, specific.InUseCount = proto.Int64(specific.GetCount()), proto.Int64(0)
			return nil
		},
	})
}

// checkReservation returns an error for a reservation that the real service refuses, or
// that is for anything but VMs of a machine type with TPU chips.
func (s machines) checkReservation(zone string, r *computepb.Reservation) error {
	if err := onlyFields(r, "a reservation", "name", "description", "zone", "specificReservation", "specificReservationRequired", "shareSettings", "deploymentType"); err != nil {
		return err
	}
	specific := r.GetSpecificReservation()
	if specific == nil {
		return wire.NotModelled("A reservation without specificReservation")
	}
	if err := onlyFields(specific, "a specific reservation", "count", "instanceProperties"); err != nil {
		return err
	}
	if err := onlyFields(specific.GetInstanceProperties(), "the instance properties of a reservation", "machineType"); err != nil {
		return err
	}
	machine := specific.GetInstanceProperties().GetMachineType()
	if !slices.ContainsFunc(groups.Offered(s.Cloud, zone), func(m groups.MachineType) bool { return m.Name == machine }) {
		return badValue("resource.specificReservation.instanceProperties.machineType", machine, "Machine type with name '"+machine+"' does not exist in zone '"+zone+"'.")
	}
	if specific.GetCount() < 1 {
		return badValue("resource.specificReservation.count", "0", "Must be greater than or equal to 1.")
	}
	if kind := r.GetDeploymentType(); kind != "" && kind != "DENSE" && kind != "DEPLOYMENT_TYPE_UNSPECIFIED" {
		return badValue("resource.deploymentType", kind, "Must be DENSE.")
	}
	return nil
}

// checkAffinity returns an error if VMs name a reservation of this project that does not
// exist. Reservations of other projects are not modelled.
func (s machines) checkAffinity(g *cloud.Group) error {
	for _, value := range g.Properties.GetReservationAffinity().GetValues() {
		project, name := s.Config.Project, value
		if rest, ok := strings.CutPrefix(value, "projects/"); ok {
			project, name, _ = strings.Cut(rest, "/reservations/")
		}
		name, _, _ = strings.Cut(name, "/reservationBlocks/")
		if whole := s.Networks().ComputePath("zones/"+g.Zone, "reservations", name); project == s.Config.Project && s.State.Reservations[whole] == nil {
			return noSuchCompute(whole)
		}
	}
	return nil
}

// consumers returns how many VMs use the reservation with this resource name.
func (s machines) consumers(name string) (n int64) {
	for _, i := range s.State.Instances {
		values := i.Msg.GetReservationAffinity().GetValues()
		if len(values) == 0 || !strings.HasPrefix(name, "projects/"+s.Config.Project+"/zones/"+i.Zone+"/") {
			continue
		}
		reservation, _, _ := strings.Cut(values[0], "/reservationBlocks/")
		if path.Base(reservation) == path.Base(name) {
			n++
		}
	}
	return n
}

// serveBlocks answers for the blocks of a reservation.
func (s machines) serveBlocks(c *computeCall) (any, error) {
	r, ok := s.State.Reservations[c.name()]
	if !ok {
		return nil, noSuchCompute(c.name())
	}
	if c.r.Method != http.MethodGet {
		return nil, wire.NotModelled("Changing blocks of a reservation")
	}
	var all []proto.Message
	if r.GetDeploymentType() == "DENSE" {
		name := r.GetName() + "-block-0001"
		all = append(all, &computepb.ReservationBlock{
			Kind: proto.String("compute#reservationBlock"), Id: numbered(c.name() + name), Name: &name, Zone: r.Zone, Status: proto.String("READY"),
			Count: proto.Int32(int32(r.SpecificReservation.GetCount())), InUseCount: proto.Int32(int32(r.SpecificReservation.GetInUseCount())),
			CreationTimestamp: r.CreationTimestamp, SelfLink: proto.String(r.GetSelfLink() + "/reservationBlocks/" + name),
			HealthInfo: &computepb.ReservationBlockHealthInfo{HealthStatus: proto.String("HEALTHY")},
		})
	}
	if c.below == "" {
		return s.list(c, "compute#reservationBlockList", all)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	for _, b := range all {
		if b.(*computepb.ReservationBlock).GetName() == c.below {
			return &computepb.ReservationBlocksGetResponse{Resource: b.(*computepb.ReservationBlock)}, nil
		}
	}
	return nil, noSuchCompute(c.name() + "/reservationBlocks/" + c.below)
}
