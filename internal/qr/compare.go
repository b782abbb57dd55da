package qr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"multihost/internal/gcp"
	"multihost/internal/nodes"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// differences lists how an existing queued resource differs from the one that r asks for. If
// there is no difference, the existing one can be used. differences ignores fields that r
// leaves to the API's defaults, and fields that change over time (SSH keys, deadlines).
func (r Request) differences(existing Resource, asked *tpuapi.QueuedResource) []string {
	want := *asked
	want.Name = r.ID
	ask := newResource(&want)
	var d diff
	for _, key := range []string{LabelTool, LabelRun, LabelUser} {
		d.text("label "+key, existing.Labels[key], ask.Labels[key])
	}
	d.text("accelerator type", existing.Type, ask.Type)
	d.text("number of slices", fmt.Sprint(existing.NodeCount), fmt.Sprint(ask.NodeCount))
	d.text("slices", joinNames(existing.Nodes), joinNames(ask.Nodes))
	d.text("runtime version", existing.RuntimeVersion, ask.RuntimeVersion)
	d.text("tier", string(sameTier(existing.Tier)), string(sameTier(ask.Tier)))
	d.text("network", cmp.Or(existing.Network, "default"), cmp.Or(ask.Network, "default"))
	if ask.Subnetwork != "" {
		d.text("subnetwork", existing.Subnetwork, ask.Subnetwork)
	}
	if ask.Reservation != "" {
		d.text("reservation", existing.Reservation, ask.Reservation)
	}
	d.node(firstNode(existing.body), firstNode(asked), r.OwnMetadata)
	return d
}

// sameTier returns on-demand for the guaranteed tier, because the service reports requests
// without a tier as guaranteed.
func sameTier(t Tier) Tier {
	if t == Guaranteed {
		return OnDemand
	}
	return t
}

func firstNode(body *tpuapi.QueuedResource) *tpuapi.Node {
	if body != nil && body.Tpu != nil && len(body.Tpu.NodeSpec) > 0 && body.Tpu.NodeSpec[0].Node != nil {
		return body.Tpu.NodeSpec[0].Node
	}
	return &tpuapi.Node{}
}

type diff []string

func (d *diff) text(field, has, asked string) {
	if has != asked {
		*d = append(*d, fmt.Sprintf("%s: it has %q, you asked for %q", field, has, asked))
	}
}

func (d *diff) node(has, asked *tpuapi.Node, own map[string]string) {
	d.text("external addresses", fmt.Sprint(external(has)), fmt.Sprint(external(asked)))
	d.text("autocheckpoint", fmt.Sprint(has.AutocheckpointEnabled), fmt.Sprint(asked.AutocheckpointEnabled))
	if asked.ServiceAccount != nil && asked.ServiceAccount.Email != "" {
		email := ""
		if has.ServiceAccount != nil {
			email = has.ServiceAccount.Email
		}
		d.text("service account", email, asked.ServiceAccount.Email)
	}
	for _, key := range sortedKeys(asked.Metadata) {
		// Key managers edit ssh-keys in place, and startup scripts are too long for a
		// message.
		if _, ours := own[key]; !ours && key != nodes.SSHKeys && has.Metadata[key] != asked.Metadata[key] {
			*d = append(*d, fmt.Sprintf("metadata %s: it has another value", key))
		}
	}
	for _, key := range sortedKeys(asked.Labels) {
		if !strings.HasPrefix(key, LabelSpace) {
			d.text("label "+key, has.Labels[key], asked.Labels[key])
		}
	}
	for _, tag := range asked.Tags {
		if !slices.Contains(has.Tags, tag) {
			*d = append(*d, fmt.Sprintf("tag %s: it lacks the tag", tag))
		}
	}
	d.text("data disks", diskNames(has), diskNames(asked))
	d.text("network interfaces", interfaceNames(has), interfaceNames(asked))
	if asked.BootDiskConfig != nil {
		d.text("key of the boot disk", bootKey(has), bootKey(asked))
	}
	if asked.ShieldedInstanceConfig != nil {
		d.text("secure boot", fmt.Sprint(has.ShieldedInstanceConfig != nil && has.ShieldedInstanceConfig.EnableSecureBoot), "true")
	}
}

func external(n *tpuapi.Node) bool {
	return n.NetworkConfig != nil && n.NetworkConfig.EnableExternalIps
}

// interfaceNames returns the networks of a node with several interfaces.
func interfaceNames(n *tpuapi.Node) string {
	var names []string
	for _, i := range n.NetworkConfigs {
		names = append(names, fmt.Sprintf("%s (external addresses: %t)", cmp.Or(gcp.BaseName(i.Network), "default"), i.EnableExternalIps))
	}
	return strings.Join(names, ", ")
}

func bootKey(n *tpuapi.Node) string {
	if n.BootDiskConfig == nil || n.BootDiskConfig.CustomerEncryptionKey == nil {
		return ""
	}
	return n.BootDiskConfig.CustomerEncryptionKey.KmsKeyName
}

func diskNames(n *tpuapi.Node) string {
	names := map[string]bool{}
	for _, disk := range n.DataDisks {
		names[disk.SourceDisk] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ",")
}

// joinNames joins names, of more than four only the first and the last.
func joinNames(names []string) string {
	if len(names) <= 4 {
		return strings.Join(names, ", ")
	}
	return names[0] + " … " + names[len(names)-1]
}
