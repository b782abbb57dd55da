package cloud

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// CheckNode returns an error for a node that the real service refuses, and fills in the
// other nodes as the service does.
func (s Catalog) CheckNode(zone, field string, n *tpualpha.Node) (tpu.Type, error) {
	t, err := s.typeOf(zone, field, n)
	if err != nil {
		return t, err
	}
	n.AcceleratorType = t.Name
	if n.RuntimeVersion == "" {
		return t, wire.BadField(field+".runtime_version", "runtime_version is required")
	}
	if !slices.Contains(RuntimeVersions(), n.RuntimeVersion) {
		return t, wire.BadField(field+".runtime_version", "runtime version %q could not be found", n.RuntimeVersion)
	}
	if len(n.Description) > 512 {
		return t, wire.BadField(field+".description", "must be at most 512 characters")
	}
	if err := checkBootDisk(field+".boot_disk_config", n.BootDiskConfig); err != nil {
		return t, err
	}
	if err := s.checkInterfaces(zone, field, n); err != nil {
		return t, err
	}
	if err := CheckLabels(field, n); err != nil {
		return t, err
	}
	for _, d := range n.DataDisks {
		if !strings.Contains(d.SourceDisk, "/disks/") {
			return t, wire.BadField(field+".data_disks", "source_disk %q is not the name of a disk", d.SourceDisk)
		}
		if !slices.Contains([]string{"", "READ_WRITE", "READ_ONLY", "DISK_MODE_UNSPECIFIED"}, d.Mode) {
			return t, wire.Errorf(http.StatusBadRequest, "Invalid value at '%s.data_disks.mode' (type.googleapis.com/google.cloud.tpu.v2.AttachedDisk.DiskMode), %q", field, d.Mode)
		}
		if d.Mode == "READ_WRITE" && t.Workers > 1 {
			return t, wire.BadField(field+".data_disks", "a disk can be attached in read-write mode to a single-host TPU only")
		}
	}
	clearOutputOnly(n)
	return t, nil
}

func clearOutputOnly(n *tpualpha.Node) {
	n.Name, n.State, n.ApiVersion, n.CreateTime, n.Health, n.HealthDescription, n.QueuedResource = "", "", "", "", "", "", ""
	n.Id, n.MultisliceNode, n.NetworkEndpoints, n.Symptoms, n.UpcomingMaintenance = 0, false, nil, nil, nil
}

// checkBootDisk accepts a disk encrypted with a key. Other properties of disks are not
// modelled.
func checkBootDisk(field string, b *tpualpha.BootDiskConfig) error {
	if b == nil {
		return nil
	}
	if b.DiskSizeGb != 0 || b.ProvisionedIops != 0 || b.ProvisionedThroughput != 0 || b.SourceImage != "" || b.StoragePool != "" {
		return wire.NotModelled("A bootDiskConfig with more than a key")
	}
	key := ""
	if b.CustomerEncryptionKey != nil {
		key = b.CustomerEncryptionKey.KmsKeyName
	}
	if key == "" && b.EnableConfidentialCompute || key != "" && !kmsKey.MatchString(key) {
		return wire.BadField(field+".customer_encryption_key", "%q is not the name of a key", key)
	}
	return nil
}

var kmsKey = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+(/cryptoKeyVersions/[0-9]+)?$`)

// checkInterfaces checks the networks of a node and fills them in. A node has one
// network_config or a list.
func (s Catalog) checkInterfaces(zone, field string, n *tpualpha.Node) error {
	if len(n.NetworkConfigs) == 0 {
		if n.NetworkConfig == nil {
			n.NetworkConfig = &tpualpha.NetworkConfig{EnableExternalIps: true}
		}
		return s.checkNetworkConfig(zone, field+".network_config", n.NetworkConfig)
	}
	if n.NetworkConfig != nil {
		return wire.BadField(field+".network_configs", "only one of network_config and network_configs can be set")
	}
	for i, cfg := range n.NetworkConfigs {
		if err := s.checkNetworkConfig(zone, fmt.Sprintf("%s.network_configs[%d]", field, i), cfg); err != nil {
			return err
		}
	}
	return nil
}

// Interfaces returns the networks of a node that has passed Catalog.CheckNode. The first
// one leads to the workers.
func Interfaces(n *tpualpha.Node) []*tpualpha.NetworkConfig {
	if n.NetworkConfig != nil {
		return []*tpualpha.NetworkConfig{n.NetworkConfig}
	}
	return n.NetworkConfigs
}

func (s Catalog) checkNetworkConfig(zone, field string, cfg *tpualpha.NetworkConfig) error {
	if cfg.Network == "" {
		cfg.Network = "default"
	}
	name, ok := s.Networks().GlobalRef(cfg.Network, "networks")
	if !ok || s.State.Networks[name] == nil {
		return wire.BadField(field+".network", "network %q was not found", cfg.Network)
	}
	cfg.Network = name
	region := RegionOf(zone)
	if cfg.Subnetwork == "" {
		if cfg.Subnetwork = s.Networks().subnetworkIn(name, region); cfg.Subnetwork == "" {
			return wire.BadField(field+".subnetwork", "network %q has no subnetwork in region %s: subnetwork is required", name, region)
		}
		return nil
	}
	key, ok := s.Networks().regionRef(cfg.Subnetwork, region, "subnetworks")
	sub := s.State.Subnetworks[key]
	if !ok || sub == nil || s.Networks().URLToName(sub.GetNetwork()) != name {
		return wire.BadField(field+".subnetwork", "subnetwork %q was not found in network %q and region %s", cfg.Subnetwork, name, region)
	}
	cfg.Subnetwork = key
	return nil
}

// MaxMetadata is Compute Engine's limit for one value of metadata.
const MaxMetadata = 262_144

// CheckLabels returns an error for labels, tags and metadata that the real API refuses.
func CheckLabels(field string, n *tpualpha.Node) error {
	if err := CheckComputeLabels(n.Labels, nil); err != nil {
		return wire.BadField(field+".labels", "%v", err)
	}
	if err := CheckComputeLabels(nil, n.Tags); err != nil {
		return wire.BadField(field+".tags", "%v", err)
	}
	for k, v := range n.Metadata {
		if len(k) == 0 || len(k) > 128 || len(v) > MaxMetadata {
			return wire.BadField(field+".metadata", "key %.40q: keys have 1 to 128 characters, values at most %d", k, MaxMetadata)
		}
	}
	return nil
}

// CheckComputeLabels returns what is wrong with labels or tags of a VM.
func CheckComputeLabels(labels map[string]string, tags []string) error {
	for k, v := range labels {
		if !labelKey.MatchString(k) || !labelValue.MatchString(v) {
			return fmt.Errorf("label %q=%q is not valid: lower-case letters, digits, _ and - only, at most 63", k, v)
		}
	}
	for _, tag := range tags {
		if !IDPattern.MatchString(tag) {
			return fmt.Errorf("tag %q is not valid", tag)
		}
	}
	return nil
}

var (
	UUIDPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	IDPattern   = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue  = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

// CheckID returns an error for an id that the real API refuses.
func CheckID(field, id string) error {
	if IDPattern.MatchString(id) {
		return nil
	}
	return wire.BadField(field, "%q is not a valid name: it must match %s", id, IDPattern)
}

// Preemptible reports whether q uses the quota of preemptible capacity.
func (q *QueuedResource) Preemptible() bool {
	return q.Msg.Spot != nil || q.Msg.BestEffort != nil || q.Msg.ProvisioningModel == "SPOT" || q.Msg.ProvisioningModel == "FLEX_START"
}

// ParseDuration parses a duration in JSON: "3600s", "1.5s".
func ParseDuration(field, text string) (time.Duration, error) {
	number, ok := strings.CutSuffix(text, "s")
	seconds, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || strings.ContainsAny(number, "eExXnN") {
		return 0, wire.Errorf(http.StatusBadRequest, "Invalid value at '%s' (type.googleapis.com/google.protobuf.Duration), Field '%s', Illegal duration format; duration must end with 's'", field, text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
