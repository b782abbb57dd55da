package qr

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/tpu"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Tier is the kind of capacity that a request asks for.
type Tier string

// The tiers. The empty Tier is OnDemand.
const (
	OnDemand         Tier = "on-demand"
	Spot             Tier = "spot"
	BestEffort       Tier = "best-effort"
	Guaranteed       Tier = "guaranteed"
	Reserved         Tier = "reserved"
	ReservationBound Tier = "reservation-bound"
	FlexStart        Tier = "flex-start"
)

// MaxFlexStart is the longest run that the flex-start tier gives.
const MaxFlexStart = 7 * 24 * time.Hour

const (
	maxMetadataValue = 262144     // bytes of one value, as Compute Engine documents
	maxMetadata      = 512 * 1024 // bytes of all keys and values together
	maxLabels        = 64
	maxTags          = 64
	maxDescription   = 512
)

var (
	reservationRE      = regexp.MustCompile(`^[a-zA-Z0-9-]+$`)
	reservationShortRE = regexp.MustCompile(`^((?:projects|folders|organizations)/[^/]+)/reservations/([a-zA-Z0-9-]+)$`)
	reservationFullRE  = regexp.MustCompile(`^(?:projects|folders|organizations)/[^/]+/locations/([^/]+)/reservations/(?:-|[a-zA-Z0-9-]+)$`)
	networkRE          = regexp.MustCompile(`^(?:https://[^/]+/compute/[^/]+/)?(?:projects/[^/]+/)?(?:global/networks/|regions/[^/]+/subnetworks/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	diskRE             = regexp.MustCompile(`^projects/[^/]+/(?:zones|regions)/[^/]+/disks/[^/]+$`)
	kmsKeyRE           = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+(?:/cryptoKeyVersions/[^/]+)?$`)
	emailRE            = regexp.MustCompile(`^[^@\s,]+@[^@\s,]+$`)
)

// Tiers returns every tier, the default first.
func Tiers() []Tier {
	return []Tier{OnDemand, Spot, BestEffort, Guaranteed, Reserved, ReservationBound, FlexStart}
}

// A DataDisk is an existing disk that is attached to every worker.
type DataDisk struct {
	Source   string // projects/P/zones/Z/disks/D
	ReadOnly bool
}

// ParseDataDisk parses "source=DISK[,mode=read-write|read-only]", as gcloud does.
// The default mode is read-write.
func ParseDataDisk(s string) (DataDisk, error) {
	var d DataDisk
	for field := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "source":
			d.Source = value
		case "mode":
			switch value {
			case "read-write", "read-only":
				d.ReadOnly = value == "read-only"
			default:
				return DataDisk{}, fmt.Errorf("parse data disk %q: mode %q is neither read-write nor read-only", s, value)
			}
		default:
			return DataDisk{}, fmt.Errorf("parse data disk %q: unknown key %q: write source=DISK[,mode=read-write|read-only]", s, key)
		}
	}
	if d.Source == "" {
		return DataDisk{}, fmt.Errorf("parse data disk %q: it has no source=", s)
	}
	if i := strings.Index(d.Source, "/projects/"); strings.HasPrefix(d.Source, "https://") && i >= 0 {
		d.Source = d.Source[i+1:]
	}
	return d, nil
}

func (d DataDisk) mode() string {
	if d.ReadOnly {
		return "read-only"
	}
	return "read-write"
}

// A BootDisk says how the workers' boot disks are encrypted.
type BootDisk struct {
	KMSKey       string // projects/P/locations/L/keyRings/R/cryptoKeys/K
	Confidential bool   // use confidential mode, which needs a key
}

// ParseBootDisk parses "kms-key=KEY[,confidential-compute=true|false]", as gcloud
// does.
func ParseBootDisk(s string) (BootDisk, error) {
	var d BootDisk
	err := eachKey(s, map[string]func(string) error{
		"kms-key":              func(v string) error { d.KMSKey = v; return nil },
		"confidential-compute": func(v string) (err error) { d.Confidential, err = keyBool(v); return err },
	})
	switch {
	case err != nil:
		return BootDisk{}, fmt.Errorf("parse boot disk %q: %w", s, err)
	case d.KMSKey == "":
		return BootDisk{}, fmt.Errorf("parse boot disk %q: it has no kms-key=", s)
	}
	return d, nil
}

// An Interface is one of several network interfaces of a worker.
type Interface struct {
	Network     string
	Subnetwork  string
	ExternalIPs bool
}

// ParseInterface parses "network=N,subnetwork=S,external-ips=true|false", as gcloud
// does.
func ParseInterface(s string) (Interface, error) {
	var i Interface
	err := eachKey(s, map[string]func(string) error{
		"network":      func(v string) error { i.Network = v; return nil },
		"subnetwork":   func(v string) error { i.Subnetwork = v; return nil },
		"external-ips": func(v string) (err error) { i.ExternalIPs, err = keyBool(v); return err },
	})
	switch {
	case err != nil:
		return Interface{}, fmt.Errorf("parse network interface %q: %w", s, err)
	case i.Network == "" && i.Subnetwork == "":
		return Interface{}, fmt.Errorf("parse network interface %q: it has neither network= nor subnetwork=", s)
	}
	return i, nil
}

// eachKey parses KEY=VALUE,… and calls the function of set for each key. A key that
// set does not have is an error.
func eachKey(s string, set map[string]func(value string) error) error {
	pairs, err := ParseDict(s)
	if err != nil {
		return err
	}
	for _, key := range sortedKeys(pairs) {
		if set[key] == nil {
			return fmt.Errorf("unknown key %q: use %s", key, strings.Join(sortedKeys(set), ", "))
		}
		if err := set[key](pairs[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func keyBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", value)
}

// A Request describes one queued resource to create. The zero value of an optional
// field means the API's default.
type Request struct {
	ID        string // name of the queued resource
	NodeCount int    // number of slices, 1 or more
	// NodeID names the slice when NodeCount is 1. NodePrefix names slices
	// NodePrefix-0, NodePrefix-1, … when it is more. Empty: ID.
	NodeID     string
	NodePrefix string

	Type           tpu.Type
	ByTopology     bool   // send the kind of chip and the topology instead of the type's name
	RuntimeVersion string // "": the default of the type's generation
	Description    string
	WorkloadType   string // of several slices: "", THROUGHPUT_OPTIMIZED or AVAILABILITY_OPTIMIZED

	Tier Tier
	// Reservation is NAME, projects/P/reservations/NAME or
	// projects/P/locations/Z/reservations/NAME. folders/F and organizations/O
	// may stand for projects/P, and "-" for NAME. It implies Reserved.
	Reservation        string
	MinDuration        time.Duration // Guaranteed and Reserved only
	MaxRunDuration     time.Duration // FlexStart needs it
	ValidAfterDuration time.Duration
	ValidUntilDuration time.Duration
	ValidAfterTime     time.Time
	ValidUntilTime     time.Time

	Network     string // a name, or projects/P/global/networks/NAME
	Subnetwork  string
	InternalIPs bool // no external addresses
	CIDRBlock   string
	// Interfaces are the network interfaces of each worker, if it has several. They
	// replace the fields above, except CIDRBlock.
	Interfaces []Interface

	ServiceAccount string
	Scopes         []string // URLs or gcloud's aliases ("cloud-platform")

	Labels   map[string]string
	Metadata map[string]string
	// OwnMetadata is added to Metadata. It does not count when the request is
	// compared with an existing resource, which may have other values under these
	// keys, or none.
	OwnMetadata map[string]string
	Tags        []string
	DataDisks   []DataDisk
	BootDisk    BootDisk
	SecureBoot  bool

	Autocheckpoint bool
}

// Mark adds the labels of OwnerLabels to the request.
func (r *Request) Mark(run, user string) {
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, OwnerLabels(run, user))
	r.Labels = labels
}

// MarkJob adds the label that says that the job of this run makes and deletes the
// resource.
func (r *Request) MarkJob(run string) {
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelJob] = LabelValue(run)
	r.Labels = labels
}

// RunLabel returns the run's label, which Mark set.
func (r Request) RunLabel() (key, value string) { return LabelRun, r.Labels[LabelRun] }

// NodeNames returns the names of the slices that the request makes.
func (r Request) NodeNames() []string {
	if r.NodeCount <= 1 {
		return []string{r.nodeID()}
	}
	return expandPrefix(r.nodePrefix(), r.NodeCount)
}

// Asks returns the tier that the request asks for; a reservation without a tier
// means Reserved.
func (r Request) Asks() Tier {
	if r.Tier == "" && r.Reservation != "" {
		return Reserved
	}
	return r.tier()
}

func expandPrefix(prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = prefix + "-" + strconv.Itoa(i)
	}
	return names
}

func (r Request) nodeID() string     { return firstOf(r.NodeID, r.ID) }
func (r Request) nodePrefix() string { return firstOf(r.NodePrefix, r.ID) }
func (r Request) tier() Tier         { return Tier(firstOf(string(r.Tier), string(OnDemand))) }
func (r Request) runtimeVersion() string {
	return firstOf(r.RuntimeVersion, r.Type.Generation.RuntimeVersion)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Validate returns an *InvalidError with everything that is wrong with the request,
// or nil. It makes no API call.
func (r Request) Validate() error {
	problems := slices.Concat(r.checkNames(), r.checkType(), r.checkWorkload(), r.checkTier(), r.checkTimes(),
		r.checkNetwork(), r.checkAnnotations(), r.checkDisks())
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{ID: r.ID, Problems: problems}
}

// maxSlices stops mistyped counts. It is more than a hundred times the slices of the
// largest published run, 32. The API's own limit is the quota.
const maxSlices = 4096

func (r Request) checkNames() (bad []*FlagError) {
	bad = appendError(bad, checkName("queued resource name", r.ID), IDFlag)
	if r.NodeID != "" {
		bad = appendError(bad, checkName("node id", r.NodeID), "node-id")
	}
	if r.NodePrefix != "" {
		bad = appendError(bad, checkName("node prefix", r.NodePrefix), "node-prefix")
	}
	switch {
	case r.NodeCount < 1:
		bad = append(bad, wrongf("node-count", "node count %d: at least 1 slice is needed", r.NodeCount))
	case r.NodeCount > maxSlices:
		bad = append(bad, wrongf("node-count", "node count %d: at most %d slices are taken", r.NodeCount, maxSlices))
	case r.NodeCount == 1:
		if r.NodePrefix != "" && r.NodeID == "" {
			bad = append(bad, wrongf("node-prefix node-count", "node prefix %q with one slice: give it a node id", r.NodePrefix))
		}
	default:
		if r.NodeID != "" {
			bad = append(bad, wrongf("node-id node-count", "node id %q with %d slices: several slices are named by a node prefix", r.NodeID, r.NodeCount))
		}
		if checkName("node prefix", r.nodePrefix()) == nil {
			bad = appendError(bad, checkPrefix(r.nodePrefix(), r.NodeCount), r.prefixFlag(), "node-count")
		}
	}
	return bad
}

func (r Request) prefixFlag() string {
	if r.NodePrefix == "" {
		return IDFlag
	}
	return "node-prefix"
}

func (r Request) checkType() (bad []*FlagError) {
	if r.Type.Name == "" {
		return []*FlagError{wrongf("accelerator-type type topology", "no accelerator type is given")}
	}
	known, err := tpu.ParseType(r.Type.Name)
	if err != nil {
		return []*FlagError{{[]string{"accelerator-type", "type", "topology"}, err}}
	}
	gen := known.Generation
	if !gen.CloudAPI {
		bad = append(bad, wrongf("accelerator-type type topology", "accelerator type %q: the Cloud TPU API does not serve %s; it is made with Compute Engine or GKE", known.Name, gen.Name))
	}
	if r.NodeCount > 1 && !gen.MultiSlice {
		bad = append(bad, wrongf("accelerator-type type topology node-count", "accelerator type %q with %d slices: %s cannot do multi-slice (v4 and later can)", known.Name, r.NodeCount, gen.Name))
	}
	if r.runtimeVersion() == "" {
		bad = append(bad, wrongf("accelerator-type type topology", "accelerator type %q has no default runtime version: give one", known.Name))
	}
	return bad
}

func (r Request) checkWorkload() (bad []*FlagError) {
	switch r.WorkloadType {
	case "":
	case "THROUGHPUT_OPTIMIZED", "AVAILABILITY_OPTIMIZED":
		if r.NodeCount == 1 {
			bad = append(bad, wrongf("workload-type node-count", "workload type %s needs more than one slice", r.WorkloadType))
		}
	default:
		bad = append(bad, wrongf("workload-type", "workload type %q is neither THROUGHPUT_OPTIMIZED nor AVAILABILITY_OPTIMIZED", r.WorkloadType))
	}
	return bad
}

func (r Request) checkTier() (bad []*FlagError) {
	if !slices.Contains(Tiers(), r.tier()) {
		bad = append(bad, wrongf("provisioning-model", "capacity tier %q is unknown: use one of %s", r.Tier, joinTiers()))
	}
	reservable := r.tier() == Reserved || r.tier() == ReservationBound
	switch {
	case r.Reservation == "":
		if r.tier() == ReservationBound {
			bad = append(bad, wrongf("provisioning-model reservation", "tier reservation-bound needs a reservation"))
		}
	case r.Tier != "" && !reservable:
		bad = append(bad, wrongf("reservation provisioning-model min-duration "+string(r.Tier), "reservation %q and --%s exclude each other: a reservation is used by the reserved tier", r.Reservation, r.Tier))
	case !reservationRE.MatchString(r.Reservation) && !reservationShortRE.MatchString(r.Reservation) && !reservationFullRE.MatchString(r.Reservation):
		bad = append(bad, wrongf("reservation", "reservation %q is not legal: write NAME, projects/P/reservations/NAME or projects/P/locations/ZONE/reservations/NAME", r.Reservation))
	}
	if r.tier() == FlexStart {
		switch {
		case r.MaxRunDuration == 0:
			bad = append(bad, wrongf("flex-start provisioning-model max-run-duration", "tier flex-start needs a max run duration (at most 7 days)"))
		case r.MaxRunDuration > MaxFlexStart:
			bad = append(bad, wrongf("flex-start provisioning-model max-run-duration", "max run duration %s: flex-start gives at most 7 days (168h)", r.MaxRunDuration))
		}
	}
	if r.MinDuration != 0 && r.Asks() != Guaranteed && r.Asks() != Reserved {
		bad = append(bad, wrongf("min-duration provisioning-model "+string(r.tier()), "min duration %s needs the guaranteed or the reserved tier, not %s", r.MinDuration, r.tier()))
	}
	return bad
}

func joinTiers() string {
	names := make([]string, 0, 7)
	for _, t := range Tiers() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

func (r Request) checkTimes() (bad []*FlagError) {
	for _, d := range []struct {
		flag, what string
		d          time.Duration
	}{
		{"min-duration", "min duration", r.MinDuration}, {"max-run-duration", "max run duration", r.MaxRunDuration},
		{"valid-after-duration", "valid-after duration", r.ValidAfterDuration}, {"valid-until-duration", "valid-until duration", r.ValidUntilDuration},
	} {
		if d.d < 0 {
			bad = append(bad, wrongf(d.flag, "%s %s is negative", d.what, d.d))
		} else if d.d%time.Millisecond != 0 {
			bad = append(bad, wrongf(d.flag, "%s %s is finer than a millisecond", d.what, d.d))
		}
	}
	if r.ValidAfterDuration != 0 && !r.ValidAfterTime.IsZero() {
		bad = append(bad, wrongf("valid-after-duration valid-after-time", "valid-after is given both as a duration and as a time"))
	}
	if r.ValidUntilDuration != 0 && !r.ValidUntilTime.IsZero() {
		bad = append(bad, wrongf("valid-until-duration valid-until-time", "valid-until is given both as a duration and as a time"))
	}
	// If one end is a duration and the other a time, Create checks their order.
	after, until := r.ValidAfterDuration, r.ValidUntilDuration
	switch {
	case after != 0 && until != 0 && until <= after:
		bad = append(bad, wrongf("valid-until-duration valid-after-duration", "valid-until duration %s is not longer than valid-after duration %s", until, after))
	case !r.ValidAfterTime.IsZero() && !r.ValidUntilTime.IsZero() && !r.ValidUntilTime.After(r.ValidAfterTime):
		bad = append(bad, wrongf("valid-until-time valid-after-time", "valid-until time %s is not after valid-after time %s",
			r.ValidUntilTime.Format(time.RFC3339), r.ValidAfterTime.Format(time.RFC3339)))
	}
	return bad
}

func (r Request) checkNetwork() (bad []*FlagError) {
	if r.Network != "" && !networkRE.MatchString(r.Network) {
		bad = append(bad, wrongf("network", "network %q is neither a network's name nor projects/P/global/networks/NAME", r.Network))
	}
	if r.Subnetwork != "" && !networkRE.MatchString(r.Subnetwork) {
		bad = append(bad, wrongf("subnetwork", "subnetwork %q is neither a subnetwork's name nor projects/P/regions/R/subnetworks/NAME", r.Subnetwork))
	}
	if len(r.Interfaces) > 0 && (r.Network != "" || r.Subnetwork != "" || r.InternalIPs) {
		bad = append(bad, wrongf("network-config network subnetwork internal-ips", "a list of network interfaces excludes network, subnetwork and internal addresses beside it"))
	}
	for _, i := range r.Interfaces {
		for _, wrong := range (Request{Network: i.Network, Subnetwork: i.Subnetwork}).checkNetwork() {
			bad = append(bad, &FlagError{[]string{"network-config"}, wrong.Err})
		}
	}
	if r.CIDRBlock != "" {
		p, err := netip.ParsePrefix(r.CIDRBlock)
		if err != nil || p.Bits() != 29 || !p.Addr().Is4() || p.Masked() != p {
			bad = append(bad, wrongf("range", "range %q is not an IPv4 /29 block such as 192.168.0.0/29", r.CIDRBlock))
		}
	}
	if r.ServiceAccount != "" && r.ServiceAccount != "default" && !emailRE.MatchString(r.ServiceAccount) {
		bad = append(bad, wrongf("service-account", "service account %q is not an email address", r.ServiceAccount))
	}
	for _, s := range r.Scopes {
		if _, err := scopeURLs(s); err != nil {
			bad = append(bad, &FlagError{[]string{"scopes"}, err})
		}
	}
	return bad
}

func (r Request) checkAnnotations() (bad []*FlagError) {
	if len(r.Description) > maxDescription {
		bad = append(bad, wrongf("description", "description has %d bytes: at most %d are allowed", len(r.Description), maxDescription))
	}
	if len(r.Labels) > maxLabels {
		bad = append(bad, wrongf("labels", "%d labels: at most %d are allowed", len(r.Labels), maxLabels))
	}
	for _, key := range sortedKeys(r.Labels) {
		if !labelKeyRE.MatchString(key) {
			bad = append(bad, wrongf("labels", "label key %q is not legal: use a-z, 0-9, '_' and '-', begin with a letter, at most 63 characters", key))
		}
		if !labelValueRE.MatchString(r.Labels[key]) {
			bad = append(bad, wrongf("labels", "value %q of label %q is not legal: use a-z, 0-9, '_' and '-', at most 63 characters", r.Labels[key], key))
		}
	}
	total, metadata := 0, r.metadata()
	for _, key := range sortedKeys(metadata) {
		total += len(key) + len(metadata[key])
		bad = appendError(bad, checkMetadata(key, metadata[key]), "metadata", "metadata-from-file")
	}
	if total > maxMetadata {
		bad = append(bad, wrongf("metadata metadata-from-file", "metadata has %d bytes in all: at most %d are allowed", total, maxMetadata))
	}
	if len(r.Tags) > maxTags {
		bad = append(bad, wrongf("tags", "%d tags: at most %d are allowed", len(r.Tags), maxTags))
	}
	for _, t := range r.Tags {
		bad = appendError(bad, checkName("tag", t), "tags")
	}
	return bad
}

func checkMetadata(key, value string) error {
	switch {
	case !metaKeyRE.MatchString(key):
		return fmt.Errorf("metadata key %q is not legal: use letters, digits, '_' and '-', at most 128 characters", key)
	case len(value) > maxMetadataValue:
		return fmt.Errorf("value of metadata %q has %d bytes: at most %d are allowed", key, len(value), maxMetadataValue)
	}
	return nil
}

func (r Request) checkDisks() (bad []*FlagError) {
	if key := r.BootDisk.KMSKey; key != "" && !kmsKeyRE.MatchString(key) {
		bad = append(bad, wrongf("boot-disk", "key %q of the boot disk is not projects/P/locations/L/keyRings/R/cryptoKeys/K", key))
	}
	for _, d := range r.DataDisks {
		if !diskRE.MatchString(d.Source) {
			bad = append(bad, wrongf("data-disk", "data disk source %q is not projects/P/zones/Z/disks/NAME", d.Source))
		}
		if !d.ReadOnly && (r.NodeCount > 1 || r.Type.Workers > 1) {
			bad = append(bad, wrongf("data-disk node-count accelerator-type type topology", "data disk %q: only a single worker can attach a disk read-write; add mode=read-only", d.Source))
		}
	}
	return bad
}

// Body returns the request in the form of the v2alpha1 API, to be sent at now.
func (r Request) Body(project, zone string, now time.Time) *tpuapi.QueuedResource {
	body := &tpuapi.QueuedResource{
		Tpu:             &tpuapi.Tpu{NodeSpec: []*tpuapi.NodeSpec{r.nodeSpec(project, zone)}},
		ReservationName: r.reservationName(project, zone),
		QueueingPolicy:  r.queueingPolicy(now),
	}
	if r.MaxRunDuration != 0 {
		body.RunDuration = &tpuapi.RunDuration{MaxRunDuration: apiDuration(r.MaxRunDuration)}
	}
	switch r.Asks() {
	case Spot:
		body.Spot = &tpuapi.Spot{}
	case BestEffort:
		body.BestEffort = &tpuapi.BestEffort{}
	case Guaranteed:
		body.Guaranteed = &tpuapi.Guaranteed{}
	case Reserved:
		body.Guaranteed = &tpuapi.Guaranteed{Reserved: true}
	case ReservationBound:
		body.ProvisioningModel = "RESERVATION_BOUND"
	case FlexStart:
		body.ProvisioningModel = "FLEX_START"
	}
	if body.Guaranteed != nil && r.MinDuration != 0 {
		body.Guaranteed.MinDuration = apiDuration(r.MinDuration)
	}
	return body
}

func (r Request) metadata() map[string]string {
	all := maps.Clone(r.Metadata)
	if all == nil && len(r.OwnMetadata) > 0 {
		all = map[string]string{}
	}
	maps.Copy(all, r.OwnMetadata)
	return all
}

func (r Request) nodeSpec(project, zone string) *tpuapi.NodeSpec {
	spec := &tpuapi.NodeSpec{
		Parent: parentName(project, zone),
		Node:   r.node(),
	}
	if r.NodeCount > 1 {
		spec.MultiNodeParams = &tpuapi.MultiNodeParams{
			NodeCount: int64(r.NodeCount), NodeIdPrefix: r.nodePrefix(), WorkloadType: r.WorkloadType,
		}
	} else {
		spec.NodeId = r.nodeID()
	}
	return spec
}

func (r Request) node() *tpuapi.Node {
	node := &tpuapi.Node{
		AcceleratorType: r.Type.Name,
		RuntimeVersion:  r.runtimeVersion(),
		Description:     r.Description,
		CidrBlock:       r.CIDRBlock,
		NetworkConfig: &tpuapi.NetworkConfig{
			Network: r.Network, Subnetwork: r.Subnetwork, EnableExternalIps: !r.InternalIPs,
			// The API's default for an absent field is not documented.
			ForceSendFields: []string{"EnableExternalIps"},
		},
		Labels:                maps.Clone(r.Labels),
		Metadata:              r.metadata(),
		Tags:                  slices.Clone(r.Tags),
		AutocheckpointEnabled: r.Autocheckpoint,
	}
	if r.ServiceAccount != "" || len(r.Scopes) > 0 {
		node.ServiceAccount = &tpuapi.ServiceAccount{Email: r.ServiceAccount, Scope: expandScopes(r.Scopes)}
	}
	if r.ByTopology {
		node.AcceleratorType = ""
		node.AcceleratorConfig = &tpuapi.AcceleratorConfig{Type: r.Type.Generation.ChipType, Topology: r.Type.Topology}
	}
	if len(r.Interfaces) > 0 {
		node.NetworkConfig = nil
	}
	for _, i := range r.Interfaces {
		node.NetworkConfigs = append(node.NetworkConfigs, &tpuapi.NetworkConfig{
			Network: i.Network, Subnetwork: i.Subnetwork, EnableExternalIps: i.ExternalIPs, ForceSendFields: []string{"EnableExternalIps"},
		})
	}
	if d := r.BootDisk; d != (BootDisk{}) {
		node.BootDiskConfig = &tpuapi.BootDiskConfig{
			CustomerEncryptionKey: &tpuapi.CustomerEncryptionKey{KmsKeyName: d.KMSKey}, EnableConfidentialCompute: d.Confidential,
		}
	}
	if r.SecureBoot {
		node.ShieldedInstanceConfig = &tpuapi.ShieldedInstanceConfig{EnableSecureBoot: true}
	}
	for _, d := range r.DataDisks {
		mode := "READ_WRITE"
		if d.ReadOnly {
			mode = "READ_ONLY"
		}
		node.DataDisks = append(node.DataDisks, &tpuapi.AttachedDisk{SourceDisk: d.Source, Mode: mode})
	}
	return node
}

// queueingPolicy returns when slices may be made. The API accepts one constraint, or
// an interval of two times.
func (r Request) queueingPolicy(now time.Time) *tpuapi.QueueingPolicy {
	after, until := r.validAfter(now), r.validUntil(now)
	switch {
	case !after.IsZero() && !until.IsZero():
		return &tpuapi.QueueingPolicy{ValidInterval: &tpuapi.Interval{StartTime: apiTime(after), EndTime: apiTime(until)}}
	case !r.ValidAfterTime.IsZero():
		return &tpuapi.QueueingPolicy{ValidAfterTime: apiTime(after)}
	case !r.ValidUntilTime.IsZero():
		return &tpuapi.QueueingPolicy{ValidUntilTime: apiTime(until)}
	case after.IsZero() && until.IsZero():
		return nil
	}
	policy := &tpuapi.QueueingPolicy{}
	if r.ValidAfterDuration != 0 {
		policy.ValidAfterDuration = apiDuration(r.ValidAfterDuration)
	}
	if r.ValidUntilDuration != 0 {
		policy.ValidUntilDuration = apiDuration(r.ValidUntilDuration)
	}
	return policy
}

// validAfter returns the earliest time at which slices may be made; zero: any.
func (r Request) validAfter(now time.Time) time.Time {
	return ofEither(r.ValidAfterTime, r.ValidAfterDuration, now)
}

// validUntil returns the latest time at which slices may be made; zero: any.
func (r Request) validUntil(now time.Time) time.Time {
	return ofEither(r.ValidUntilTime, r.ValidUntilDuration, now)
}

func ofEither(t time.Time, d time.Duration, now time.Time) time.Time {
	if t.IsZero() && d != 0 {
		return now.Add(d)
	}
	return t
}

// reservationName returns the full name of the reservation, as the API requires.
func (r Request) reservationName(project, zone string) string {
	if m := reservationShortRE.FindStringSubmatch(r.Reservation); m != nil {
		return m[1] + "/locations/" + zone + "/reservations/" + m[2]
	}
	if reservationRE.MatchString(r.Reservation) {
		return parentName(project, zone) + "/reservations/" + r.Reservation
	}
	return r.Reservation
}

// checkPlace makes the checks that need the zone and the time of the request.
func (r Request) checkPlace(zone string, now time.Time) error {
	after, until := r.validAfter(now), r.validUntil(now)
	if !after.IsZero() && !until.IsZero() && !until.After(after) {
		return &InvalidError{ID: r.ID, Problems: []*FlagError{wrongf("valid-until-time valid-after-time valid-until-duration valid-after-duration", "valid-until (%s) is not after valid-after (%s)",
			until.Format(time.RFC3339), after.Format(time.RFC3339))}}
	}
	if m := reservationFullRE.FindStringSubmatch(r.Reservation); m != nil && m[1] != zone {
		return &InvalidError{ID: r.ID, Problems: []*FlagError{
			wrongf("reservation", "reservation %q is in zone %s, the request in %s", r.Reservation, m[1], zone)}}
	}
	return nil
}

func parentName(project, zone string) string { return "projects/" + project + "/locations/" + zone }

func apiDuration(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

func apiTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func appendError(list []*FlagError, err error, flags ...string) []*FlagError {
	if err != nil {
		list = append(list, &FlagError{flags, err})
	}
	return list
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
