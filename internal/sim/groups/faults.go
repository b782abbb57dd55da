package groups

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
)

// faults reads the active faults, and applies those that happen once.
type faults struct{ Groups }

func (s Groups) faults() faults { return faults{s} }

// Inject makes a fault of groups active. mine is false for other faults, which are for
// cloud.Inject. It takes the lock.
func Inject(c *cloud.Cloud, f cloud.Fault) (mine bool, err error) {
	s := Of(c).faults()
	once := map[string]func(*cloud.Group){
		"group-preempt": s.preempt, "group-host-error": s.hostFails, "group-maintenance": s.maintain,
		"group-run-ends": s.age,
	}[f.Name]
	if once == nil {
		return false, nil // active until it is cleared
	}
	if err := f.Check(); err != nil {
		return true, err
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	hit := cloud.Sorted(s.State.Groups, func(_ string, g *cloud.Group) bool {
		return cloud.Glob(f.Group, g.Id) && len(g.Instances()) > 0 && !g.Deleting && (f.Name != "group-run-ends" || longestRun(g) > 0)
	})
	switch {
	case len(hit) > 0:
	case f.Name == "group-run-ends":
		return true, fmt.Errorf("inject fault %q: there is no group %q with VMs that have a maximum run duration", f.Name, f.Group)
	default:
		return true, fmt.Errorf("inject fault %q: there is no group %q with VMs", f.Name, f.Group)
	}
	for _, g := range hit {
		once(g)
	}
	return true, nil
}

// age makes g and its VMs so old that their maximum run duration has passed.
func (s faults) age(g *cloud.Group) {
	born := proto.String(cloud.Stamp(s.Clock.Now().Add(-longestRun(g))))
	g.Msg.CreationTimestamp = born
	for _, i := range g.Instances() {
		i.Msg.CreationTimestamp, i.Msg.LastStartTimestamp = born, born
		if end := i.Msg.GetResourceStatus().GetScheduling(); end != nil {
			end.TerminationTimestamp = proto.String(s.Timestamp())
		}
		s.runEnds(i)
	}
}

// maintain marks the VMs of g as being under maintenance.
func (s faults) maintain(g *cloud.Group) {
	now := s.Clock.Now()
	for _, i := range g.Instances() {
		i.Maintained = true
		i.Msg.ResourceStatus.UpcomingMaintenance = &computepb.UpcomingMaintenance{
			Type: proto.String("UNSCHEDULED"), MaintenanceStatus: proto.String("ONGOING"), CanReschedule: proto.Bool(false),
			WindowStartTime: proto.String(cloud.Stamp(now)), WindowEndTime: proto.String(cloud.Stamp(now.Add(maintenanceTime))),
		}
	}
}

// find returns the active fault with that name for g, or nil.
func (s faults) find(name string, g *cloud.Group) *cloud.ActiveFault {
	for _, a := range s.State.Faults {
		if a.Name == name && cloud.Glob(a.Group, g.Id) && (a.QR == "" || a.Group != "") {
			return a
		}
	}
	return nil
}

// noRoom returns why g cannot have its VMs now, or nil.
func (s faults) noRoom(g *cloud.Group) *computepb.Error {
	var why *computepb.Errors
	switch {
	case s.find("no-capacity", g) != nil:
		why = failure("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", fmt.Sprintf(
			"The zone '%s' does not have enough resources available to fulfill the request. '(resource type:compute)'.", "projects/"+s.Config.Project+"/zones/"+g.Zone))
	case s.find("group-quota", g) != nil:
		why = failure("QUOTA_EXCEEDED", fmt.Sprintf("Quota '%s' exceeded.  Limit: 0.0 in region %s.", quotaName(g), cloud.RegionOf(g.Zone)))
	default:
		return nil
	}
	return &computepb.Error{Errors: []*computepb.Errors{why}}
}

// quotaName returns the id of the quota from which the chips of g are taken.
func quotaName(g *cloud.Group) string {
	generation := strings.ToUpper(g.Typ.Generation.Name) // V5P, V6E, TPU7X
	if m := model(g); m == "SPOT" || m == "FLEX_START" {
		return "PREEMPTIBLE-TPU-" + generation + "-per-project-region"
	}
	return "TPUS-PER-TPU-FAMILY-per-project-region"
}

// takeError returns the error of a fault for the creation of the VMs of g, and uses the
// fault once. It returns nil if there is none.
func (s faults) takeError(g *cloud.Group) *computepb.Errors {
	a := s.find("group-error", g)
	if a == nil {
		return nil
	}
	s.Injection().Use(a)
	return failure("INTERNAL_ERROR", cmp.Or(a.Message, "Instance creation failed: Internal error. Please try again or contact Google Support. (Code: '0')"))
}

// stuck reports whether a fault keeps i from booting.
func (s faults) stuck(i *cloud.Instance) bool { return s.findFor("group-stuck", i) != nil }

// findFor returns the active fault with that name for i, or nil.
func (s faults) findFor(name string, i *cloud.Instance) *cloud.ActiveFault {
	for _, a := range s.State.Faults {
		if a.Name == name && cloud.Glob(a.Group, i.Group.Id) && (a.Worker == "" || a.Worker == strconv.Itoa(i.Number)) {
			return a
		}
	}
	return nil
}

// panics is the last text of a VM that does not boot, unless its fault has another.
const panics = "[    2.417913] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"

// Console returns what i has written to its serial console.
func (s Groups) Console(i *cloud.Instance) string {
	status := i.Msg.GetStatus()
	if status == "PENDING" || status == "PROVISIONING" {
		return ""
	}
	text := "SeaBIOS (version 1.8.2-google)\r\nBooting from Hard Disk 0...\r\n"
	if status != "RUNNING" {
		return text
	}
	text += "[    0.000000] Linux version 6.8.0-1020-gcp (buildd@lcy02-amd64-001)\r\n"
	if a := s.faults().findFor("group-no-boot", i); a != nil && i.Machine == nil {
		return text + cmp.Or(a.Message, panics) + "\r\n"
	}
	return text + i.Id + " login: "
}

func (s faults) neverRecovers(g *cloud.Group) bool { return s.find("group-no-recovery", g) != nil }
