package gce

import (
	"context"
	"fmt"
	"path"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// CheckReservation returns an error of kind fault.Usage if no reservation can have this
// name.
func CheckReservation(name string) error {
	if reservationRE.MatchString(name) {
		return nil
	}
	return fault.New(fault.Usage, notReservation(name))
}

func notReservation(name string) string {
	return fmt.Sprintf("reservation %q: want NAME, projects/P/reservations/NAME, or one of these with /reservationBlocks/BLOCK", name)
}

// splitReservation returns the parts of a reservation's name. If the name has no project,
// the result is the caller's own project. The result block may be "".
func splitReservation(name, own string) (project, reservation, block string) {
	project = own
	if rest, ok := strings.CutPrefix(name, "projects/"); ok {
		project, name, _ = strings.Cut(rest, "/reservations/")
	}
	reservation, block, _ = strings.Cut(name, "/reservationBlocks/")
	return project, reservation, block
}

// Reserved implements provision.Reserver.
func (p *reader) Reserved(ctx context.Context, name string, t tpu.Type, count int) (provision.ReservedCapacity, error) {
	project, reservation, block := splitReservation(name, p.gcp.Project())
	out := provision.ReservedCapacity{Show: fmt.Sprintf("gcloud compute reservations describe %s --zone=%s --project=%s", reservation, p.gcp.Zone(), project)}
	machine, err := tpu.MachineOf(t)
	if err != nil {
		return out, err
	}
	r, err := p.calls.Reservation(ctx, project, reservation)
	if err != nil {
		return out, err
	}
	need := wish{owner: project, project: p.gcp.Project(), machine: machine.Name, family: t.Generation.ComputeQuota, vms: int64(count * t.Workers), chips: int64(count * t.Chips)}
	j := need.judge(r)
	if block != "" {
		b, err := p.calls.Block(ctx, project, reservation, block)
		switch {
		case gcp.ClassOf(err) == gcp.NotFound:
			j.bad("it has no block %s", block)
		case err != nil:
			return out, err
		default:
			need.judgeBlock(j, b, r.GetSpecificReservation() != nil)
		}
	}
	out.Text, out.Errors, out.Warnings = j.text, j.errors, j.warnings
	return out, nil
}

// A wish is what slices need of a reservation.
type wish struct {
	owner, project string // owner: project of the reservation; project: project of the slices
	machine        string // "ct6e-standard-4t"
	family         string // "CT6E"
	vms, chips     int64
}

// A judgement collects the statements about a reservation.
type judgement struct {
	text             string
	errors, warnings []string
}

func (j *judgement) bad(format string, args ...any) {
	j.errors = append(j.errors, fmt.Sprintf(format, args...))
}

func (j *judgement) warn(format string, args ...any) {
	j.warnings = append(j.warnings, fmt.Sprintf(format, args...))
}

// judge says whether slices can use r.
func (w wish) judge(r *computepb.Reservation) *judgement {
	j := &judgement{}
	if status := r.GetStatus(); status != "READY" {
		j.bad("it is %s, not READY", status)
	}
	w.judgeSharing(j, r.GetShareSettings())
	switch {
	case r.GetSpecificReservation() != nil:
		w.judgeVMs(j, r.GetSpecificReservation())
	case r.GetAggregateReservation() != nil:
		w.judgeChips(j, r.GetAggregateReservation())
	default:
		j.warn("it does not say which machines it has")
	}
	if !r.GetSpecificReservationRequired() {
		j.warn("specificReservationRequired is false: VMs that do not name it use it, too, and Compute Engine may refuse slices that name it")
	}
	if r.GetAdvancedDeploymentControl().GetReservationOperationalMode() == "ALL_CAPACITY" {
		j.warn("its mode is ALL_CAPACITY: Compute Engine does not repair slices there; after the failure of a host, delete them and make them again")
	}
	if at := r.GetDeleteAtTime(); at != "" {
		j.text += ", until " + at
	}
	return j
}

func (w wish) judgeSharing(j *judgement, s *computepb.ShareSettings) {
	if w.owner == w.project {
		return
	}
	projects := s.GetProjectMap()
	switch kind := s.GetShareType(); {
	case kind == "ORGANIZATION":
	case kind == "" || kind == "LOCAL":
		j.bad("project %s does not share it", w.owner)
	case kind != "SPECIFIC_PROJECTS":
		j.warn("project %s shares it by %s; whether project %s may use it is not known", w.owner, kind, w.project)
	case projects[w.project] == nil:
		for key, c := range projects {
			if key == w.project || c.GetProjectId() == w.project {
				return
			}
		}
		j.warn("the projects with which project %s shares it do not name %s; they may name its number", w.owner, w.project)
	}
}

// judgeVMs is judge for a reservation of VMs of one machine type.
func (w wish) judgeVMs(j *judgement, s *computepb.AllocationSpecificSKUReservation) {
	has := path.Base(s.GetInstanceProperties().GetMachineType())
	free := s.GetCount() - s.GetInUseCount()
	j.text = fmt.Sprintf("%d of %d VMs of %s are free", free, s.GetCount(), has)
	switch {
	case s.GetInstanceProperties().GetMachineType() == "":
		j.text = fmt.Sprintf("%d of %d VMs are free", free, s.GetCount())
		j.warn("it does not say which machine type it has")
	case has != w.machine:
		j.bad("it has %s, and the slices need %s", has, w.machine)
	}
	if free < w.vms {
		j.bad("%d VMs are needed", w.vms)
	}
	if s.AssuredCount != nil && s.GetAssuredCount() < s.GetCount() {
		j.warn("only %d of its VMs can be used now", s.GetAssuredCount())
	}
}

// judgeChips is judge for a reservation of chips of one family.
func (w wish) judgeChips(j *judgement, a *computepb.AllocationAggregateReservation) {
	sum := func(all []*computepb.AllocationAggregateReservationReservedResourceInfo) (n int64) {
		for _, r := range all {
			n += int64(r.GetAccelerator().GetAcceleratorCount())
		}
		return n
	}
	total := sum(a.GetReservedResources())
	free := total - sum(a.GetInUseResources())
	family := a.GetVmFamily()[strings.LastIndexByte(a.GetVmFamily(), '_')+1:]
	j.text = fmt.Sprintf("%d of %d chips of %s are free", free, total, family)
	if family != w.family {
		j.bad("it has %s, and the slices need %s", family, w.family)
	}
	if free < w.chips {
		j.bad("%d chips are needed", w.chips)
	}
	if a.GetWorkloadType() == "SERVING" {
		j.warn("its workload type is SERVING, which Google makes for inference and not for training")
	}
}

// judgeBlock adds the statements about a block of the reservation to j. With ofVMs, the
// numbers of the block count VMs.
func (w wish) judgeBlock(j *judgement, b *computepb.ReservationBlock, ofVMs bool) {
	free := int64(b.GetCount() - b.GetInUseCount())
	j.text += fmt.Sprintf("; of block %s %d of %d", b.GetName(), free, b.GetCount())
	if status := b.GetStatus(); status != "READY" {
		j.bad("block %s is %s, not READY", b.GetName(), status)
	}
	if ofVMs && free < w.vms {
		j.bad("%d VMs are needed in block %s", w.vms, b.GetName())
	}
	if health := b.GetHealthInfo().GetHealthStatus(); health != "" && health != "HEALTHY" && health != "HEALTH_STATUS_UNSPECIFIED" {
		j.warn("block %s is %s", b.GetName(), health)
	}
}
