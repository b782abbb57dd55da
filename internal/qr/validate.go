package qr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"multihost/internal/fault"
	"multihost/internal/nodes"
	"multihost/internal/tpu"
)

// Validate returns an *InvalidError with everything that is wrong with the request,
// or nil. It makes no API call.
func (r Request) Validate() error {
	var problems []*FlagError
	for _, check := range checks {
		problems = append(problems, check(r)...)
	}
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{ID: r.ID, Problems: problems}
}

// checks are the checks of Validate, in the order of its report.
var checks = []func(Request) []*FlagError{
	checkNames, checkType, checkWorkload, checkTier, checkTimes, checkNetwork, checkIdentity, checkAnnotations, checkDisks,
}

// maxSlices catches mistyped counts. It is more than a hundred times the 32 slices of the
// largest published run. The API's own limit is the quota.
const maxSlices = 4096

func checkNames(r Request) (bad []*FlagError) {
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
			bad = appendError(bad, checkPrefix(r.nodePrefix(), r.NodeCount), prefixFlag(r), "node-count")
		}
	}
	return bad
}

func prefixFlag(r Request) string {
	if r.NodePrefix == "" {
		return IDFlag
	}
	return "node-prefix"
}

func checkType(r Request) (bad []*FlagError) {
	if r.Type.Name == "" {
		return []*FlagError{wrongf("accelerator-type type topology", "no accelerator type is given")}
	}
	known, err := tpu.ParseType(r.Type.Name)
	if err != nil {
		return []*FlagError{{[]string{"accelerator-type", "type", "topology"}, err}}
	}
	gen := known.Generation
	switch {
	case known.Machine != "":
		bad = append(bad, wrongf("accelerator-type type topology", "accelerator type %q: the Cloud TPU API knows no machine types: its types of this generation are called %s-N", known.Name, gen.Family))
	case !gen.CloudAPI:
		return []*FlagError{{[]string{"accelerator-type", "type", "topology", "provider"}, &computeOnlyError{r.ID, known}}}
	}
	if r.NodeCount > 1 && !gen.MultiSlice {
		bad = append(bad, wrongf("accelerator-type type topology node-count", "accelerator type %q with %d slices: %s cannot do multi-slice (v4 and later can)", known.Name, r.NodeCount, gen.Name))
	}
	if r.runtimeVersion() == "" {
		bad = append(bad, wrongf("accelerator-type type topology", "accelerator type %q has no default runtime version: give one", known.Name))
	}
	return bad
}

// A computeOnlyError says that the Cloud TPU API does not make slices of a type.
type computeOnlyError struct {
	id string
	of tpu.Type
}

func (e *computeOnlyError) Error() string {
	return fmt.Sprintf("accelerator type %q: the Cloud TPU API does not make %s; only Compute Engine does", e.of.Name, e.of.Generation.Name)
}

// Fault returns fault.Usage.
func (*computeOnlyError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type.
func (e *computeOnlyError) Hint() string {
	return fmt.Sprintf("multihost job makes such slices without --provider=tpu; to make slices only, type: multihost slices create %s --tpu-type=%s", e.id, e.of.Name)
}

func checkWorkload(r Request) (bad []*FlagError) {
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

func checkTier(r Request) (bad []*FlagError) {
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

func checkTimes(r Request) (bad []*FlagError) {
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
	// If one end is a duration and the other a time, Create checks their order later.
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

func checkNetwork(r Request) (bad []*FlagError) {
	bad = checkInterface(Interface{Network: r.Network, Subnetwork: r.Subnetwork})
	if len(r.Interfaces) > 0 && (r.Network != "" || r.Subnetwork != "" || r.InternalIPs) {
		bad = append(bad, wrongf("network-config network subnetwork internal-ips", "a list of network interfaces excludes network, subnetwork and internal addresses beside it"))
	}
	for _, i := range r.Interfaces {
		for _, wrong := range checkInterface(i) {
			bad = append(bad, &FlagError{[]string{"network-config"}, wrong.Err})
		}
	}
	if r.CIDRBlock != "" {
		p, err := netip.ParsePrefix(r.CIDRBlock)
		if err != nil || p.Bits() != 29 || !p.Addr().Is4() || p.Masked() != p {
			bad = append(bad, wrongf("range", "range %q is not an IPv4 /29 block such as 192.168.0.0/29", r.CIDRBlock))
		}
	}
	return bad
}

// checkInterface checks the names of the network and the subnetwork.
func checkInterface(i Interface) (bad []*FlagError) {
	if i.Network != "" && !networkRE.MatchString(i.Network) {
		bad = append(bad, wrongf("network", "network %q is neither a network's name nor projects/P/global/networks/NAME", i.Network))
	}
	if i.Subnetwork != "" && !networkRE.MatchString(i.Subnetwork) {
		bad = append(bad, wrongf("subnetwork", "subnetwork %q is neither a subnetwork's name nor projects/P/regions/R/subnetworks/NAME", i.Subnetwork))
	}
	return bad
}

// checkIdentity checks the service account of the workers.
func checkIdentity(r Request) (bad []*FlagError) {
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

func checkAnnotations(r Request) (bad []*FlagError) {
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
		bad = appendError(bad, CheckMetadata(key, metadata[key]), "metadata", "metadata-from-file")
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

// CheckMetadata returns what is wrong with an entry of the workers' metadata, or nil.
func CheckMetadata(key, value string) error {
	switch {
	case !metaKeyRE.MatchString(key):
		return fmt.Errorf("metadata key %q is not legal: use letters, digits, '_' and '-', at most 128 characters", key)
	case len(value) > nodes.MaxMetadataValue:
		return fmt.Errorf("value of metadata %q has %d bytes: at most %d are allowed", key, len(value), nodes.MaxMetadataValue)
	}
	return nil
}

func checkDisks(r Request) (bad []*FlagError) {
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

func appendError(list []*FlagError, err error, flags ...string) []*FlagError {
	if err != nil {
		list = append(list, &FlagError{flags, err})
	}
	return list
}
