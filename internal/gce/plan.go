package gce

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Limits in the documentation of Compute Engine's API.
const (
	maxName     = 63 // bytes of the name of a policy or a template
	maxBase     = 58 // bytes of the name of a group, whose VMs add five
	maxLabels   = 64
	maxMetadata = 512 * 1024 // bytes of all keys and values
)

// MaxFlexStart is the longest run that the flex-start tier allows.
const MaxFlexStart = 7 * 24 * time.Hour

// defaultDisk is the size of a boot disk in GB. The images need 10 GB.
const defaultDisk = 200

// imageProject has Google's images for TPU VMs.
const imageProject = "ubuntu-os-accelerator-images"

// Settings are the part of a request that only Compute Engine knows, for
// provision.Request.Own. The zero value has the defaults.
type Settings struct {
	Image       string   `json:"image,omitempty"` // "projects/P/global/images/…"; "": of the generation's family
	DiskGB      int64    `json:"disk_gb,omitempty"`
	DiskType    string   `json:"disk_type,omitempty"` // "": as usual for the generation
	Tags        []string `json:"tags,omitempty"`      // network tags
	InternalIPs bool     `json:"internal_ips,omitempty"`
}

// A place is the project and the zone of slices.
type place struct{ project, zone string }

func (p place) region() string { return gcp.Region(p.zone) }

// partName is the name of a resource's policy and template. It has the zone, because both
// belong to the region.
func (p place) partName(id string) string {
	return id + p.zone[max(0, strings.LastIndexByte(p.zone, '-')):]
}

func (p place) policyPath(id string) string {
	return "projects/" + p.project + "/regions/" + p.region() + "/resourcePolicies/" + p.partName(id)
}

func (p place) templatePath(id string) string {
	return "projects/" + p.project + "/regions/" + p.region() + "/instanceTemplates/" + p.partName(id)
}

// A plan has the parts of one request, in the order of creation: a workload policy with the
// topology (nil for slices of one VM), an instance template, and one group for each slice.
type plan struct {
	policy   *computepb.ResourcePolicy
	template *computepb.InstanceTemplate
	groups   []*computepb.InstanceGroupManager
}

// requestKey is the metadata key of a template's record.
const requestKey = "multihost-request"

// A record is the part of the request that a template stores. It describes slices that
// do not exist yet.
type record struct {
	ID             string         `json:"id"`
	Nodes          []string       `json:"nodes"`
	Type           string         `json:"type"`
	Tier           provision.Tier `json:"tier"`
	Reservation    string         `json:"reservation,omitempty"`
	MaxRun         string         `json:"max_run,omitempty"`
	Network        string         `json:"network"`
	Subnetwork     string         `json:"subnetwork,omitempty"`
	ServiceAccount string         `json:"service_account,omitempty"`
	Scopes         []string       `json:"scopes"`
	Settings
}

const cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

func settingsOf(r provision.Request) Settings {
	s, _ := r.Own.(Settings)
	return s
}

func recordOf(r provision.Request) record {
	rec := record{
		ID: r.ID, Nodes: r.NodeNames(), Type: r.Type.Name, Tier: r.Asks(), Reservation: r.Reservation,
		Network: r.Network, Subnetwork: r.Subnetwork, ServiceAccount: r.ServiceAccount, Scopes: r.Scopes, Settings: settingsOf(r),
	}
	if rec.Network == "" {
		rec.Network = "default"
	}
	if len(rec.Scopes) == 0 {
		rec.Scopes = []string{cloudPlatform} // otherwise the workers could neither delete the slices nor use a bucket
	}
	if rec.DiskGB == 0 {
		rec.DiskGB = defaultDisk
	}
	if rec.DiskType == "" {
		rec.DiskType = r.Type.Generation.DiskType
	}
	if r.MaxRunDuration > 0 {
		rec.MaxRun = r.MaxRunDuration.String()
	}
	return rec
}

// maxRun returns how long the VMs may exist; 0: no limit.
func (rec record) maxRun() time.Duration {
	d, _ := time.ParseDuration(rec.MaxRun) // recordOf has written it
	return d
}

// recordIn returns the record of a template. ok is false if multihost has not made the
// template.
func recordIn(t *computepb.InstanceTemplate) (rec record, ok bool) {
	text := items(t.GetProperties().GetMetadata())[requestKey]
	if json.Unmarshal([]byte(text), &rec) != nil || rec.ID == "" || len(rec.Nodes) == 0 {
		return record{}, false
	}
	return rec, true
}

// items returns metadata as a map.
func items(m *computepb.Metadata) map[string]string {
	all := make(map[string]string, len(m.GetItems()))
	for _, i := range m.GetItems() {
		all[i.GetKey()] = i.GetValue()
	}
	return all
}

// describe returns the description of a part: the resource and its run. Groups and policies
// have no labels for that.
func describe(id string, labels map[string]string) string {
	text := "multihost " + id
	if run := labels[provision.LabelRun]; run != "" {
		text += " " + provision.LabelRun + "=" + run
	}
	return text
}

// describePolicy returns the description of the policy. It also names the user, because the
// policy may be the last part that is left. Other descriptions do not, because workers
// compare the whole description of a group.
func describePolicy(id string, labels map[string]string) string {
	text := describe(id, labels)
	if user := labels[provision.LabelUser]; user != "" {
		text += " " + provision.LabelUser + "=" + user
	}
	return text
}

// ownerIn returns the owner's labels from the description of a part.
func ownerIn(description string) map[string]string {
	labels := map[string]string{provision.LabelTool: provision.ToolName}
	for _, word := range strings.Fields(description) {
		if key, value, ok := strings.Cut(word, "="); ok && (key == provision.LabelRun || key == provision.LabelUser) {
			labels[key] = value
		}
	}
	return labels
}

// described returns the resource and the run from the description of a part.
func described(description string) (id, run string, ok bool) {
	words := strings.Fields(description)
	if len(words) < 2 || words[0] != "multihost" {
		return "", "", false
	}
	if len(words) > 2 {
		run = strings.TrimPrefix(words[2], provision.LabelRun+"=")
	}
	return words[1], run, true
}

// newPlan returns the parts to make for a valid r. image is the boot image:
// settingsOf(r).Image, or the newest of the generation's family.
func newPlan(r provision.Request, at place, image string) (plan, error) {
	machine, err := tpu.MachineOf(r.Type)
	if err != nil {
		return plan{}, err
	}
	rec := recordOf(r)
	script, err := withIdentity(allMetadata(r)["startup-script"])
	if err != nil {
		return plan{}, err
	}
	about := describe(r.ID, r.Labels)
	p := plan{template: &computepb.InstanceTemplate{
		Name: proto.String(at.partName(r.ID)), Description: proto.String(about),
		Properties: &computepb.InstanceProperties{
			MachineType:            proto.String(machine.Name),
			Labels:                 r.Labels,
			Disks:                  []*computepb.AttachedDisk{bootDisk(rec, image)},
			NetworkInterfaces:      []*computepb.NetworkInterface{networkInterface(rec, at)},
			Scheduling:             scheduling(r),
			ReservationAffinity:    affinity(r),
			ShieldedInstanceConfig: &computepb.ShieldedInstanceConfig{EnableSecureBoot: proto.Bool(false)}, // Google's TPU images do not support it
			ServiceAccounts:        []*computepb.ServiceAccount{{Email: proto.String(accountOf(rec)), Scopes: rec.Scopes}},
			Metadata:               metadata(r, rec, script),
		},
	}}
	if len(rec.Tags) > 0 {
		p.template.Properties.Tags = &computepb.Tags{Items: rec.Tags}
	}
	if r.Type.Workers > 1 {
		p.policy = &computepb.ResourcePolicy{
			Name: proto.String(at.partName(r.ID)), Description: proto.String(describePolicy(r.ID, r.Labels)),
			WorkloadPolicy: &computepb.ResourcePolicyWorkloadPolicy{Type: proto.String("HIGH_THROUGHPUT"), AcceleratorTopology: proto.String(r.Type.Topology)},
		}
	}
	for _, name := range rec.Nodes {
		p.groups = append(p.groups, group(name, about, r, at))
	}
	return p, nil
}

// group returns the group of one slice. A topology needs the mode BULK, which makes all VMs
// of the slice or none. The group does not repair a failed VM, because Compute Engine
// itself repairs slices as a whole.
func group(name, about string, r provision.Request, at place) *computepb.InstanceGroupManager {
	g := &computepb.InstanceGroupManager{
		Name: proto.String(name), Description: proto.String(about), BaseInstanceName: proto.String(name),
		InstanceTemplate:        proto.String(at.templatePath(r.ID)),
		TargetSize:              proto.Int32(int32(r.Type.Workers)),
		InstanceLifecyclePolicy: &computepb.InstanceGroupManagerInstanceLifecyclePolicy{DefaultActionOnFailure: proto.String("DO_NOTHING")},
		UpdatePolicy:            &computepb.InstanceGroupManagerUpdatePolicy{Type: proto.String("OPPORTUNISTIC")},
		TargetSizePolicy:        &computepb.InstanceGroupManagerTargetSizePolicy{Mode: proto.String("BULK")},
	}
	if r.Type.Workers > 1 {
		g.ResourcePolicies = &computepb.InstanceGroupManagerResourcePolicies{WorkloadPolicy: proto.String(at.policyPath(r.ID))}
	}
	return g
}

func bootDisk(rec record, image string) *computepb.AttachedDisk {
	d := &computepb.AttachedDisk{
		Boot: proto.Bool(true), AutoDelete: proto.Bool(true),
		InitializeParams: &computepb.AttachedDiskInitializeParams{SourceImage: proto.String(image), DiskSizeGb: proto.Int64(rec.DiskGB)},
	}
	if rec.DiskType != "" {
		d.InitializeParams.DiskType = proto.String(rec.DiskType)
	}
	return d
}

func networkInterface(rec record, at place) *computepb.NetworkInterface {
	n := &computepb.NetworkInterface{Network: proto.String(networkPath(rec.Network, at)), NicType: proto.String("GVNIC")}
	if rec.Subnetwork != "" {
		n.Subnetwork = proto.String(subnetworkPath(rec.Subnetwork, at))
	}
	if !rec.InternalIPs {
		n.AccessConfigs = []*computepb.AccessConfig{{Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT")}}
	}
	return n
}

func networkPath(name string, at place) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + at.project + "/global/networks/" + name
}

func subnetworkPath(name string, at place) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + at.project + "/regions/" + at.region() + "/subnetworks/" + name
}

func accountOf(rec record) string {
	if rec.ServiceAccount == "" {
		return "default"
	}
	return rec.ServiceAccount
}

// scheduling returns how the VMs are provided. TPU VMs do not migrate: maintenance ends
// them.
func scheduling(r provision.Request) *computepb.Scheduling {
	s := &computepb.Scheduling{OnHostMaintenance: proto.String("TERMINATE"), ProvisioningModel: proto.String("STANDARD"), AutomaticRestart: proto.Bool(true)}
	switch r.Asks() {
	case provision.Spot:
		s.ProvisioningModel, s.Preemptible, s.AutomaticRestart = proto.String("SPOT"), proto.Bool(true), proto.Bool(false)
		s.InstanceTerminationAction = proto.String("STOP")
	case provision.FlexStart:
		s.ProvisioningModel, s.InstanceTerminationAction, s.AutomaticRestart = proto.String("FLEX_START"), proto.String("DELETE"), nil
	case provision.ReservationBound:
		s.ProvisioningModel, s.InstanceTerminationAction, s.AutomaticRestart = proto.String("RESERVATION_BOUND"), proto.String("DELETE"), nil
	}
	if r.MaxRunDuration > 0 {
		s.MaxRunDuration = &computepb.Duration{Seconds: proto.Int64(int64(r.MaxRunDuration / time.Second))}
		if s.InstanceTerminationAction == nil {
			s.InstanceTerminationAction = proto.String("DELETE")
		}
	}
	return s
}

func affinity(r provision.Request) *computepb.ReservationAffinity {
	switch {
	case r.Reservation != "":
		return &computepb.ReservationAffinity{ConsumeReservationType: proto.String("SPECIFIC_RESERVATION"), Key: proto.String("compute.googleapis.com/reservation-name"), Values: []string{r.Reservation}}
	case r.Asks() == provision.FlexStart:
		return &computepb.ReservationAffinity{ConsumeReservationType: proto.String("NO_RESERVATION")}
	}
	return nil
}

func allMetadata(r provision.Request) map[string]string {
	all := maps.Clone(r.Metadata)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, r.OwnMetadata)
	return all
}

// metadata returns the VMs' metadata, sorted by key. Guest attributes must be on, for host
// keys and worker numbers.
func metadata(r provision.Request, rec record, script string) *computepb.Metadata {
	all := allMetadata(r)
	text, _ := json.Marshal(rec) // cannot fail for strings and numbers
	all[requestKey], all["enable-guest-attributes"], all["startup-script"] = string(text), "TRUE", script
	m := &computepb.Metadata{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m.Items = append(m.Items, &computepb.Items{Key: proto.String(key), Value: proto.String(all[key])})
	}
	return m
}

var (
	nameRE        = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	imageRE       = regexp.MustCompile(`^projects/[^/]+/global/images/(family/)?[a-z]([-a-z0-9]*[a-z0-9])?$`)
	reservationRE = regexp.MustCompile(`^(projects/[^/]+/reservations/)?[a-z]([-a-z0-9]*[a-z0-9])?(/reservationBlocks/[^/]+)?$`)
)

// Check returns an *InvalidError if Compute Engine cannot make the slices of r. It makes no
// calls. Create calls it too.
func (p *Provider) Check(r provision.Request) error { return check(r, p.at()) }

func check(r provision.Request, at place) error {
	var bad []string
	wrong := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	checkNames(r, at, wrong)
	checkTier(r, wrong)
	if image := settingsOf(r).Image; image != "" && !imageRE.MatchString(image) {
		wrong("image %q: want projects/PROJECT/global/images/NAME, or …/images/family/NAME", image)
	}
	for _, kind := range []struct {
		given bool
		text  string
	}{
		{r.ValidAfterDuration != 0 || !r.ValidAfterTime.IsZero(), "a time before which no slice is made: Compute Engine begins at once"},
		{r.ValidUntilDuration != 0 || !r.ValidUntilTime.IsZero(), "a time after which no slice is made: Compute Engine waits without a limit; give multihost one with --queue-timeout"},
		{len(r.Interfaces) > 0, "several network interfaces: whether TPU VMs of Compute Engine can have them is not documented"},
	} {
		if kind.given {
			wrong("not supported: %s", kind.text)
		}
	}
	if _, err := withIdentity(allMetadata(r)["startup-script"]); err != nil {
		wrong("%v", err)
	}
	if len(r.Labels) > maxLabels {
		wrong("%d labels: a VM can have %d", len(r.Labels), maxLabels)
	}
	total := 0
	for key, value := range allMetadata(r) {
		total += len(key) + len(value)
		if len(value) > nodes.MaxMetadataValue {
			wrong("metadata %s has %d bytes: a value can have %d", key, len(value), nodes.MaxMetadataValue)
		}
	}
	if total > maxMetadata {
		wrong("the metadata has %d bytes: a VM can have %d", total, maxMetadata)
	}
	if len(bad) == 0 {
		return nil
	}
	e := &InvalidError{ID: r.ID, Problems: bad}
	var choice *tpu.MachineError
	if _, err := tpu.MachineOf(r.Type); errors.As(err, &choice) {
		e.hint = choice.Hint()
	}
	return e
}

func checkNames(r provision.Request, at place, wrong func(string, ...any)) {
	const legal = "use a-z, 0-9 and '-', begin with a letter, do not end with '-', and use at most %d bytes"
	part, told := at.partName(r.ID), !nameRE.MatchString(r.ID)
	if told || len(part) > maxName {
		wrong("name %q is not legal: "+legal, r.ID, maxName-len(part)+len(r.ID))
	}
	names := r.NodeNames()
	if len(names) != max(r.NodeCount, 1) {
		wrong("%d slices with %d names", r.NodeCount, len(names))
	}
	seen := map[string]bool{}
	for _, name := range names {
		if !told && (!nameRE.MatchString(name) || len(name) > maxBase) {
			wrong("slice name %q is not legal: "+legal, name, maxBase)
			told = true // other names are usually wrong for the same reason
		}
		if seen[name] {
			wrong("slice %q is named twice", name)
		}
		seen[name] = true
	}
	switch _, err := tpu.MachineOf(r.Type); {
	case r.Type.Name == "":
		wrong("no accelerator type is given")
	case err != nil:
		wrong("%v", err)
	}
}

func checkTier(r provision.Request, wrong func(string, ...any)) {
	switch r.Asks() {
	case provision.OnDemand, provision.Spot:
	case provision.FlexStart:
		if r.MaxRunDuration == 0 {
			wrong("tier flex-start needs --max-run-duration, of at most 7 days")
		}
		if r.MaxRunDuration > MaxFlexStart {
			wrong("max run duration %s: flex-start gives at most 7 days (168h)", r.MaxRunDuration)
		}
	case provision.Reserved, provision.ReservationBound:
		if r.Reservation == "" {
			wrong("tier %s needs a reservation: --reservation=NAME", r.Asks())
		}
	default:
		wrong("tier %s: Compute Engine has none; use on-demand, spot, flex-start, reserved or reservation-bound", r.Asks())
	}
	if r.Reservation != "" && !r.Asks().IsReserved() {
		wrong("reservation %q and tier %s exclude each other", r.Reservation, r.Asks())
	}
	if r.Reservation != "" && !reservationRE.MatchString(r.Reservation) {
		wrong("%s", notReservation(r.Reservation))
	}
	if r.MaxRunDuration != 0 && (r.MaxRunDuration < 30*time.Second || r.MaxRunDuration%time.Second != 0) {
		wrong("max run duration %s: it is a number of seconds from 30 on", r.MaxRunDuration)
	}
}

// differences lists the differences between an existing resource and r, each as "field: it
// has X, you asked for Y". It ignores values that change with time: keys in metadata, the
// build of the image, and r.OwnMetadata.
func differences(existing *computepb.InstanceTemplate, r provision.Request) []string {
	has, ok := recordIn(existing)
	if !ok {
		return []string{"template: it was not made by multihost"}
	}
	var all []string
	text := func(field, has, asked string) {
		if has != asked {
			all = append(all, fmt.Sprintf("%s: it has %s, you asked for %s", field, valueOf(field, has), valueOf(field, asked)))
		}
	}
	asked := recordOf(r)
	labels := existing.GetProperties().GetLabels()
	for _, key := range []string{provision.LabelTool, provision.LabelRun, provision.LabelUser} {
		text("label "+key, labels[key], r.Labels[key])
	}
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		if !strings.HasPrefix(key, "multihost-") {
			text("label "+key, labels[key], r.Labels[key])
		}
	}
	text("accelerator type", has.Type, asked.Type)
	text("slices", strings.Join(has.Nodes, ", "), strings.Join(asked.Nodes, ", "))
	text("tier", string(has.Tier), string(asked.Tier))
	text("reservation", has.Reservation, asked.Reservation)
	text("max run duration", has.MaxRun, asked.MaxRun)
	text("network", path.Base(has.Network), path.Base(asked.Network))
	text("subnetwork", path.Base(has.Subnetwork), path.Base(asked.Subnetwork))
	text("service account", has.ServiceAccount, asked.ServiceAccount)
	text("scopes", strings.Join(has.Scopes, ", "), strings.Join(asked.Scopes, ", "))
	text("image", has.Image, asked.Image)
	text("boot disk", disk(has), disk(asked))
	text("tags", strings.Join(has.Tags, ", "), strings.Join(asked.Tags, ", "))
	text("internal addresses only", strconv.FormatBool(has.InternalIPs), strconv.FormatBool(asked.InternalIPs))
	meta := items(existing.GetProperties().GetMetadata())
	for _, key := range slices.Sorted(maps.Keys(r.Metadata)) {
		if _, own := r.OwnMetadata[key]; !own && key != nodes.SSHKeys && key != "startup-script" && meta[key] != r.Metadata[key] {
			all = append(all, "metadata "+key+": it has another value")
		}
	}
	return all
}

// valueOf returns the value of a request's field, in the form of messages.
func valueOf(field, value string) string {
	switch {
	case value != "":
		return strconv.Quote(value)
	case field == "image":
		return "the newest one"
	case field == "max run duration":
		return "no limit"
	}
	return "none"
}

func disk(rec record) string {
	return strings.TrimSpace(fmt.Sprintf("%d GB %s", rec.DiskGB, rec.DiskType))
}
