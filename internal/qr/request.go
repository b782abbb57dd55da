package qr

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/gcloud"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Tier is the kind of capacity that a request asks for.
type Tier = provision.Tier

// The tiers. The empty Tier is OnDemand.
const (
	OnDemand         = provision.OnDemand
	Spot             = provision.Spot
	BestEffort       = provision.BestEffort
	Guaranteed       = provision.Guaranteed
	Reserved         = provision.Reserved
	ReservationBound = provision.ReservationBound
	FlexStart        = provision.FlexStart
)

// MaxFlexStart is the longest --max-run-duration of the flex-start tier.
const MaxFlexStart = 7 * 24 * time.Hour

const (
	maxMetadata    = 512 * 1024 // bytes of all keys and values together
	maxLabels      = 64
	maxTags        = 64
	maxDescription = 512
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

// A DataDisk is an existing disk that every worker gets.
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
	Confidential bool   // confidential mode, which needs a key
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
type Interface = provision.Interface

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

// eachKey parses KEY=VALUE,… and calls the function in set for each key. A key that is not
// in set is an error.
func eachKey(s string, set map[string]func(value string) error) error {
	pairs, err := gcloud.ParseDict(s)
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

// A Request describes one queued resource to create. Zero values of optional fields mean
// the API's defaults.
type Request struct {
	ID        string // name of the queued resource
	NodeCount int    // number of slices, 1 or more
	// NodeID is the name of the slice if NodeCount is 1. Several slices have the names
	// NodePrefix-0, NodePrefix-1, …. "" means the value of ID.
	NodeID     string
	NodePrefix string

	Type           tpu.Type
	ByTopology     bool   // send the kind of chip and the topology in place of the type's name
	RuntimeVersion string // "": the default of the type's generation
	Description    string
	WorkloadType   string // of several slices: "", THROUGHPUT_OPTIMIZED or AVAILABILITY_OPTIMIZED

	Tier Tier
	// Reservation is NAME, projects/P/reservations/NAME or
	// projects/P/locations/Z/reservations/NAME. folders/F and organizations/O
	// may stand for projects/P, and "-" for NAME. It implies Reserved.
	Reservation        string
	MinDuration        time.Duration // only for Guaranteed and Reserved
	MaxRunDuration     time.Duration // required by FlexStart
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
	// OwnMetadata is added to Metadata. A comparison with an existing resource ignores it:
	// that resource may have other values under these keys, or none.
	OwnMetadata map[string]string
	Tags        []string
	DataDisks   []DataDisk
	BootDisk    BootDisk
	SecureBoot  bool

	Autocheckpoint bool
}

// Mark adds the labels of provision.OwnerLabels to the request.
func (r *Request) Mark(run, user string) {
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, provision.OwnerLabels(run, user))
	r.Labels = labels
}

// MarkJob adds the label that says that the job of this run makes and deletes the
// resource.
func (r *Request) MarkJob(run string) {
	r.Labels = provision.JobLabels(r.Labels, run)
}

// NodeNames returns the names of the slices that the request makes.
func (r Request) NodeNames() []string {
	if r.NodeCount <= 1 {
		return []string{r.nodeID()}
	}
	return expandPrefix(r.nodePrefix(), r.NodeCount)
}

// Asks returns the tier that the request asks for. A reservation without a tier means
// Reserved.
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

func (r Request) nodeID() string     { return cmp.Or(r.NodeID, r.ID) }
func (r Request) nodePrefix() string { return cmp.Or(r.NodePrefix, r.ID) }
func (r Request) tier() Tier         { return Tier(cmp.Or(string(r.Tier), string(OnDemand))) }
func (r Request) runtimeVersion() string {
	return cmp.Or(r.RuntimeVersion, r.Type.Generation.RuntimeVersion)
}

// Body returns the request in the form of the v2alpha1 API, as sent at the time now.
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
		Parent: gcp.Location(project, zone),
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
			// The API's default for this field is not documented.
			ForceSendFields: []string{"EnableExternalIps"},
		},
		Labels:                maps.Clone(r.Labels),
		Metadata:              r.metadata(),
		Tags:                  slices.Clone(r.Tags),
		AutocheckpointEnabled: r.Autocheckpoint,
	}
	if r.ServiceAccount != "" || len(r.Scopes) > 0 {
		node.ServiceAccount = &tpuapi.ServiceAccount{Email: r.ServiceAccount, Scope: ScopeURLs(r.Scopes)}
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

// validAfter returns the earliest time to make slices. Zero means any time.
func (r Request) validAfter(now time.Time) time.Time {
	return ofEither(r.ValidAfterTime, r.ValidAfterDuration, now)
}

// validUntil returns the latest time to make slices. Zero means any time.
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
		return gcp.Location(project, zone) + "/reservations/" + r.Reservation
	}
	return r.Reservation
}

func apiDuration(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

func apiTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
