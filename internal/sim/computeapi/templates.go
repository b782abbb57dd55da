package computeapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

func (s machines) serveInstanceTemplates(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	return serveCollection(s.API, c, collection[*computepb.InstanceTemplate]{
		kind: "instanceTemplate", all: s.State.Templates,
		empty: func() *computepb.InstanceTemplate { return new(computepb.InstanceTemplate) },
		fill: func(t *computepb.InstanceTemplate) error {
			if err := onlyFields(t, "an instance template", "kind", "name", "description", "region", "properties"); err != nil {
				return err
			}
			if region, ok := strings.CutPrefix(c.scope, "regions/"); ok {
				t.Region = proto.String(s.Networks().Link("projects/" + s.Config.Project + "/regions/" + region))
			}
			return s.checkProperties(c.scope, t.GetProperties())
		},
	})
}

// checkProperties returns an error for properties of VMs that the service refuses, and
// fills in what the service fills in. Properties that depend on the machine type are
// checked when a group uses the template.
func (s machines) checkProperties(scope string, p *computepb.InstanceProperties) error {
	if p == nil || p.GetMachineType() == "" || strings.Contains(p.GetMachineType(), "/") {
		return badValue("resource.properties.machineType", p.GetMachineType(), "Must be the name of a machine type, without its URL.")
	}
	if err := onlyFields(p, "properties", "machineType", "description", "disks", "networkInterfaces", "scheduling", "serviceAccounts", "metadata",
		"labels", "tags", "canIpForward", "shieldedInstanceConfig", "reservationAffinity", "keyRevocationActionType"); err != nil {
		return err
	}
	if err := checkDisks(p.GetDisks()); err != nil {
		return err
	}
	if err := s.checkNICs(scope, p.GetNetworkInterfaces()); err != nil {
		return err
	}
	if err := checkScheduling(p); err != nil {
		return err
	}
	if err := checkItems("resource.properties.metadata", p.GetMetadata()); err != nil {
		return err
	}
	if err := cloud.CheckComputeLabels(p.GetLabels(), p.GetTags().GetItems()); err != nil {
		return badValue("resource.properties.labels", "", err.Error())
	}
	for _, a := range p.GetServiceAccounts() {
		if a.GetEmail() == "" || a.GetEmail() == "default" {
			a.Email = proto.String(cloud.DefaultAccount)
		}
	}
	if len(p.GetServiceAccounts()) > 1 {
		return badValue("resource.properties.serviceAccounts", "", "At most one service account can be set.")
	}
	return nil
}

func checkDisks(disks []*computepb.AttachedDisk) error {
	if len(disks) != 1 || !disks[0].GetBoot() {
		if len(disks) > 1 {
			return wire.NotModelled("A template with more than a boot disk")
		}
		return badValue("resource.properties.disks", "", "At least one boot disk is required.")
	}
	d := disks[0]
	if err := onlyFields(d, "a disk", "boot", "autoDelete", "initializeParams", "mode", "type", "deviceName", "kind", "index", "interface"); err != nil {
		return err
	}
	init := d.GetInitializeParams()
	if err := onlyFields(init, "initializeParams", "sourceImage", "diskSizeGb", "diskType", "labels"); err != nil {
		return err
	}
	image, ok := groups.FindImage(init.GetSourceImage())
	if !ok {
		_, name, _ := strings.Cut("/"+init.GetSourceImage(), "/projects/")
		return noSuchCompute("projects/" + name)
	}
	if init.DiskSizeGb != nil && init.GetDiskSizeGb() < imageSize {
		return badValue("resource.properties.disks[0].initializeParams.diskSizeGb", fmt.Sprint(init.GetDiskSizeGb()),
			fmt.Sprintf("Requested disk size cannot be smaller than the image size (%d GB): %s", imageSize, image.Name))
	}
	if strings.Contains(init.GetDiskType(), "/") {
		return badValue("resource.properties.disks[0].initializeParams.diskType", init.GetDiskType(), "Must be the name of a disk type, without its URL.")
	}
	return nil
}

// checkNICs checks the network interface of a template, and replaces the names of its
// network and subnetwork by URLs. A global template has no region, so the path of its
// subnetwork must name one.
func (s machines) checkNICs(scope string, nics []*computepb.NetworkInterface) error {
	if len(nics) != 1 {
		return wire.NotModelled("A template with several network interfaces or none")
	}
	n := nics[0]
	if err := onlyFields(n, "a network interface", "kind", "name", "network", "subnetwork", "nicType", "accessConfigs", "stackType"); err != nil {
		return err
	}
	const field = "resource.properties.networkInterfaces[0]."
	if t := n.GetNicType(); !slices.Contains([]string{"", "GVNIC", "VIRTIO_NET"}, t) {
		return badValue(field+"nicType", t, "Must be GVNIC or VIRTIO_NET.")
	}
	if n.Network == nil && n.Subnetwork == nil {
		n.Network = proto.String("global/networks/default")
	}
	if n.Network != nil {
		name, ok := s.Networks().GlobalRef(n.GetNetwork(), "networks")
		if !ok {
			return badValue(field+"network", n.GetNetwork(), "The URL is malformed.")
		}
		if s.State.Networks[name] == nil {
			return noSuchCompute(name)
		}
		n.Network = proto.String(s.Networks().Link(name))
	}
	if n.Subnetwork != nil {
		place := scope
		if parts := strings.Split(n.GetSubnetwork(), "/"); scope == "global" && len(parts) > 4 && parts[len(parts)-4] == "regions" {
			place = "regions/" + parts[len(parts)-3]
		}
		name, ok := s.Networks().Ref(n.GetSubnetwork(), place, "subnetworks")
		if !ok || place == "global" {
			return badValue(field+"subnetwork", n.GetSubnetwork(), "The URL is malformed. Must be a valid Subnetwork URL or a valid Subnetwork name in the region of the template.")
		}
		if s.State.Subnetworks[name] == nil {
			return noSuchCompute(name)
		}
		n.Subnetwork = proto.String(s.Networks().Link(name))
	}
	return nil
}

// The limits of maxRunDuration: for every VM, and for a VM with flex-start.
const (
	shortestRun      = 30 * time.Second
	longestRun       = 120 * 24 * time.Hour
	longestFlexStart = 7 * 24 * time.Hour
)

// checkScheduling returns an error for combinations that the service refuses.
func checkScheduling(p *computepb.InstanceProperties) error {
	const field = "resource.properties.scheduling."
	s := p.GetScheduling()
	if err := onlyFields(s, "scheduling", "automaticRestart", "instanceTerminationAction", "maxRunDuration", "onHostMaintenance", "preemptible", "provisioningModel"); err != nil {
		return err
	}
	model, action := s.GetProvisioningModel(), s.GetInstanceTerminationAction()
	if !slices.Contains([]string{"", "STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"}, model) {
		return badValue(field+"provisioningModel", model, "Must be STANDARD, SPOT, FLEX_START or RESERVATION_BOUND.")
	}
	if !slices.Contains([]string{"", "STOP", "DELETE"}, action) {
		return badValue(field+"instanceTerminationAction", action, "Must be STOP or DELETE.")
	}
	spot := model == "SPOT" || s.GetPreemptible()
	run := time.Duration(s.GetMaxRunDuration().GetSeconds()) * time.Second
	switch {
	case spot && (s.AutomaticRestart == nil || s.GetAutomaticRestart()):
		return badScheduling("Scheduling must have automaticRestart be false when provisioningModel is SPOT.")
	case s.MaxRunDuration != nil && (run < shortestRun || run > longestRun):
		return badValue(field+"maxRunDuration", run.String(), fmt.Sprintf("Must be between %s and %s.", shortestRun, longestRun))
	case s.MaxRunDuration != nil && action == "":
		return badScheduling("You must specify an instance termination action when you set maxRunDuration.")
	case model == "FLEX_START" && s.MaxRunDuration == nil:
		return badScheduling("maxRunDuration must be specified for provisioning model FLEX_START.")
	case model == "FLEX_START" && run > longestFlexStart:
		return badValue(field+"maxRunDuration", run.String(), fmt.Sprintf("Must be at most %s for provisioning model FLEX_START.", longestFlexStart))
	case (model == "FLEX_START" || model == "RESERVATION_BOUND") && action != "DELETE":
		return badScheduling("instanceTerminationAction must be DELETE for provisioning model " + model + ".")
	}
	return checkAffinity(model, p.GetReservationAffinity())
}

func badScheduling(text string) error {
	return wire.Errorf(http.StatusBadRequest, "Invalid scheduling: %s", text)
}

// reservationKey is the key with which a VM names the reservations that it may use.
const reservationKey = "compute.googleapis.com/reservation-name"

func checkAffinity(model string, a *computepb.ReservationAffinity) error {
	const field = "resource.properties.reservationAffinity."
	kind := a.GetConsumeReservationType()
	if model == "RESERVATION_BOUND" && kind != "SPECIFIC_RESERVATION" {
		return badScheduling("provisioning model RESERVATION_BOUND needs a reservationAffinity of type SPECIFIC_RESERVATION.")
	}
	if kind == "SPECIFIC_RESERVATION" && (a.GetKey() != reservationKey || len(a.GetValues()) != 1) {
		return badValue(field+"key", a.GetKey(), "Must be "+reservationKey+" with one value.")
	}
	if !slices.Contains([]string{"", "SPECIFIC_RESERVATION", "NO_RESERVATION", "ANY_RESERVATION"}, kind) {
		return badValue(field+"consumeReservationType", kind, "Must be SPECIFIC_RESERVATION, NO_RESERVATION or ANY_RESERVATION.")
	}
	return nil
}

// checkItems returns an error for metadata with a key twice or a value that is too large.
func checkItems(field string, m *computepb.Metadata) error {
	seen := map[string]bool{}
	for _, item := range m.GetItems() {
		if len(item.GetValue()) > cloud.MaxMetadata {
			return badValue(field+".items", item.GetKey(), "The value is too large.")
		}
		if seen[item.GetKey()] || item.GetKey() == "" {
			return badValue(field+".items", item.GetKey(), "Metadata has duplicate or empty keys.")
		}
		seen[item.GetKey()] = true
	}
	return nil
}
