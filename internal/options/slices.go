package options

import (
	"slices"
	"strings"

	"multihost/internal/cmdline"
	"multihost/internal/gce"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/tpu"

	"github.com/urfave/cli/v2"
)

// The values of --provider.
const (
	OnTPU = "tpu" // queued resources of the Cloud TPU API
	OnGCE = "gce" // groups of VMs of Compute Engine
)

// neutralFlags are gcloud's flags for queued resources that every provider of slices knows.
func neutralFlags() []string {
	return []string{
		"node-count", "node-prefix", "accelerator-type", "topology", "on-demand", "spot", "flex-start", "reserved", "provisioning-model", "reservation", "max-run-duration",
		"network", "subnetwork", "internal-ips", "service-account", "scopes", "labels", "tags", "metadata", "metadata-from-file",
	}
}

// SliceFlags returns the flags that describe slices of any provider.
func SliceFlags(own ...cli.Flag) []cli.Flag {
	own = slices.Concat(own, []cli.Flag{
		&cli.IntFlag{Name: "node-count", Value: 1, Usage: "make `N` slices"},
		TypeFlag(),
		&cli.StringFlag{Name: "machine-type", Usage: "machine `TYPE` of Compute Engine, such as ct6e-standard-4t, in place of an accelerator type; needs --topology"},
		&cli.StringFlag{Name: "topology", Usage: "`TOPOLOGY` of the chips of a slice, such as 2x4; needs --machine-type"},
		&cli.StringFlag{Name: "provider", Usage: "tpu or gce: which `API` makes the slices; default: gce for a type that only Compute Engine has, else tpu"},
		&cli.IntFlag{Name: "boot-disk-size", Usage: "size of the boot disk in `GB`, for --provider=gce; default: 200"},
		&cli.StringFlag{Name: "boot-disk-type", Usage: "`TYPE` of the boot disk, for --provider=gce; default: that of the accelerator type"},
		&cli.StringFlag{Name: "image", Usage: "boot this `IMAGE`, as projects/P/global/images/NAME, for --provider=gce; default: the newest one for the accelerator type"},
	})
	return slices.DeleteFunc(RequestFlags(own...), func(f cli.Flag) bool {
		name := f.Names()[0]
		return !slices.Contains(neutralFlags(), name) && !slices.ContainsFunc(own, func(o cli.Flag) bool { return o.Names()[0] == name })
	})
}

// SliceRequest reads the request that slices create makes, and which provider makes it. why says
// why, if the user has not.
func SliceRequest(c *Call, m Machine) (r provision.Request, on, why string) {
	id := c.OneWord("id", "")
	own := qr.Request{ID: id, Type: machineType(c)}
	own = readRequest(c, own, "")
	if !c.IsSet("node-count") {
		own.NodeCount = 1
	}
	own.Mark(id, m.User)
	if on, why = providerOf(c, own.Type); on == OnTPU {
		for _, name := range []string{"boot-disk-size", "boot-disk-type", "image"} {
			if c.IsSet(name) {
				c.Refuse(cmdline.Usagef("--%s: it is for --provider=gce", name), name)
			}
		}
		refuseRequest(c, own)
		return own.Neutral(), on, why
	}
	r = own.Neutral()
	r.Scopes = qr.ScopeURLs(own.Scopes)
	r.Own = gce.Settings{Image: c.String("image"), DiskGB: int64(c.Int("boot-disk-size")), DiskType: c.String("boot-disk-type"), Tags: own.Tags, InternalIPs: own.InternalIPs}
	if size := c.Int("boot-disk-size"); c.IsSet("boot-disk-size") && size < 10 {
		c.Refuse(cmdline.Usagef("--boot-disk-size=%d: it is at least 10, the size of the images", size), "boot-disk-size")
	}
	return r, on, why
}

// machineType reads --machine-type and --topology; the zero Type without them.
func machineType(c *Call) tpu.Type {
	machine, topology := c.String("machine-type"), c.String("topology")
	switch {
	case machine == "" && topology == "":
		return tpu.Type{}
	case machine == "" || topology == "":
		c.Refuse(cmdline.Usagef("--machine-type and --topology: give both, or --tpu-type alone"), "machine-type", "topology")
		return tpu.Type{}
	case c.String("tpu-type") != "":
		c.Refuse(cmdline.Usagef("--tpu-type and --machine-type exclude each other: give one of them"), "tpu-type", "machine-type")
	}
	t, err := tpu.TypeOf(strings.ToLower(machine), strings.ToLower(topology))
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "machine-type", "topology")
	}
	return t
}

// providerOf returns the value of --provider. Without one, a type decides that only Compute
// Engine has.
func providerOf(c *Call, t tpu.Type) (on, why string) {
	on = c.String("provider")
	switch {
	case on == "" && t.Name != "" && !t.OnCloudAPI() && t.Generation.OnCompute():
		return OnGCE, "the Cloud TPU API does not make " + t.Name + ": Compute Engine makes the slices (--provider=gce)"
	case on == "":
		return OnTPU, ""
	}
	c.OneOf("provider", on, OnTPU, OnGCE)
	return on, ""
}
