package qr

import (
	"fmt"
	"strings"
	"time"

	"multihost/internal/gcloud"
	"multihost/internal/remote"
)

// Gcloud returns the gcloud command line that makes the same request, quoted for a POSIX
// shell, for people to read or type.
func (r Request) Gcloud(project, zone string) string {
	words := []string{"gcloud", "alpha", "compute", "tpus", "queued-resources", "create", remote.Quote(r.ID)}
	return strings.Join(append(words, r.gcloudFlags(project, zone)...), " ")
}

func (r Request) gcloudFlags(project, zone string) []string {
	var flags []string
	add := func(name, value string) {
		if value != "" {
			flags = append(flags, "--"+name+"="+remote.Quote(value))
		}
	}
	set := func(name string, on bool) {
		if on {
			flags = append(flags, "--"+name)
		}
	}
	duration := func(name string, d time.Duration) {
		if d != 0 {
			add(name, apiDuration(d))
		}
	}
	if r.NodeCount > 1 {
		add("node-count", fmt.Sprint(r.NodeCount))
		add("node-prefix", r.nodePrefix())
		add("workload-type", r.WorkloadType)
	} else {
		add("node-id", r.nodeID())
	}
	if r.ByTopology {
		add("type", r.Type.Generation.Family)
		add("topology", r.Type.Topology)
	} else {
		add("accelerator-type", r.Type.Name)
	}
	add("runtime-version", r.runtimeVersion())
	add("project", project)
	add("zone", zone)
	flags = append(flags, r.gcloudTier()...)
	add("reservation", r.gcloudReservation(project, zone))
	duration("min-duration", r.MinDuration)
	duration("max-run-duration", r.MaxRunDuration)
	duration("valid-after-duration", r.ValidAfterDuration)
	duration("valid-until-duration", r.ValidUntilDuration)
	if !r.ValidAfterTime.IsZero() {
		add("valid-after-time", apiTime(r.ValidAfterTime))
	}
	if !r.ValidUntilTime.IsZero() {
		add("valid-until-time", apiTime(r.ValidUntilTime))
	}
	// gcloud's own default is the network "default".
	add("network", r.Network)
	add("subnetwork", r.Subnetwork)
	set("internal-ips", r.InternalIPs)
	for _, i := range r.Interfaces {
		words := []string{}
		for _, w := range [][2]string{{"network", i.Network}, {"subnetwork", i.Subnetwork}} {
			if w[1] != "" {
				words = append(words, w[0]+"="+w[1])
			}
		}
		add("network-config", strings.Join(append(words, fmt.Sprintf("external-ips=%t", i.ExternalIPs)), ","))
	}
	add("range", r.CIDRBlock)
	add("service-account", r.ServiceAccount)
	add("scopes", strings.Join(ScopeURLs(r.Scopes), ","))
	add("labels", gcloud.FormatDict(r.Labels))
	add("metadata", gcloud.FormatDict(r.Metadata))
	add("tags", strings.Join(r.Tags, ","))
	add("description", r.Description)
	for _, d := range r.DataDisks {
		add("data-disk", "source="+d.Source+",mode="+d.mode())
	}
	if d := r.BootDisk; d != (BootDisk{}) {
		add("boot-disk", fmt.Sprintf("kms-key=%s,confidential-compute=%t", d.KMSKey, d.Confidential))
	}
	set("shielded-secure-boot", r.SecureBoot)
	set("autocheckpoint-enabled", r.Autocheckpoint)
	return flags
}

func (r Request) gcloudTier() []string {
	switch tier := r.tier(); {
	case tier == FlexStart || tier == ReservationBound:
		return []string{"--provisioning-model=" + string(tier)}
	case r.Tier == "" && r.Reservation != "":
		return []string{"--reserved"}
	case tier != OnDemand:
		return []string{"--" + string(tier)}
	}
	return nil
}

// gcloudReservation returns the reservation in a form for which gcloud sends what Body
// sends. gcloud completes a bare name and leaves any other form unchanged.
func (r Request) gcloudReservation(project, zone string) string {
	if reservationRE.MatchString(r.Reservation) {
		return r.Reservation
	}
	return r.reservationName(project, zone)
}
