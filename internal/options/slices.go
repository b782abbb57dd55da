package options

import (
	"errors"
	"slices"
	"strings"

	"multihost/internal/cmdline"
	"multihost/internal/gce"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/qr/createflags"
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

// ProviderFlag chooses who makes slices.
func ProviderFlag() cli.Flag {
	return &cli.StringFlag{Name: "provider", Usage: "tpu or gce: which `API` makes the slices; default: gce for a type that only Compute Engine has, else tpu"}
}

// SliceFlags returns the flags that describe slices of any provider.
func SliceFlags(own ...cli.Flag) []cli.Flag {
	own = slices.Concat(own, []cli.Flag{
		&cli.IntFlag{Name: "node-count", Value: 1, Usage: "make `N` slices"},
		TypeFlag(),
		&cli.StringFlag{Name: "machine-type", Usage: "machine `TYPE` of Compute Engine, such as ct6e-standard-4t, in place of an accelerator type; needs --topology"},
		&cli.StringFlag{Name: "topology", Usage: "`TOPOLOGY` of the chips of a slice, such as 2x4; needs --machine-type"},
		ProviderFlag(),
		&cli.IntFlag{Name: "boot-disk-size", Usage: "size of the boot disk in `GB`, for --provider=gce; default: 200"},
		&cli.StringFlag{Name: "boot-disk-type", Usage: "`TYPE` of the boot disk, for --provider=gce; default: that of the accelerator type"},
		&cli.StringFlag{Name: "image", Usage: "boot this `IMAGE`, as projects/P/global/images/NAME, for --provider=gce; default: the newest one for the accelerator type"},
	})
	return slices.DeleteFunc(RequestFlags(own...), func(f cli.Flag) bool {
		name := f.Names()[0]
		return !slices.Contains(neutralFlags(), name) && !slices.ContainsFunc(own, func(o cli.Flag) bool { return o.Names()[0] == name })
	})
}

// SliceRequest reads the request that slices create makes.
func SliceRequest(c *Call, m Machine) provision.Request {
	id := c.OneWord("id", "")
	own := qr.Request{ID: id, Type: machineType(c)}
	own = readRequest(c, own, "")
	if !c.IsSet("node-count") {
		own.NodeCount = 1
	}
	own.Mark(id, m.User)
	if on, _ := Provider(c, own.Type); on == OnTPU {
		for _, name := range []string{"boot-disk-size", "boot-disk-type", "image"} {
			if c.IsSet(name) {
				c.Refuse(cmdline.Usagef("--%s: it is for --provider=gce", name), name)
			}
		}
		refuseRequest(c, own)
		return own.Neutral()
	}
	r := onCompute(own, gce.Settings{Image: c.String("image"), DiskGB: int64(c.Int("boot-disk-size")), DiskType: c.String("boot-disk-type")})
	if size := c.Int("boot-disk-size"); c.IsSet("boot-disk-size") && size < 10 {
		c.Refuse(cmdline.Usagef("--boot-disk-size=%d: it is at least 10, the size of the images", size), "boot-disk-size")
	}
	return r
}

// onCompute returns the request for Compute Engine, made from flags that describe a queued
// resource.
func onCompute(own qr.Request, settings gce.Settings) provision.Request {
	settings.Tags, settings.InternalIPs = own.Tags, own.InternalIPs
	r := own.Neutral()
	r.Scopes, r.Own, r.Apart = qr.ScopeURLs(own.Scopes), settings, true
	return r
}

// jobOnCompute is onCompute for a job. It refuses flags that only queued resources have.
func jobOnCompute(c *Call, own qr.Request) provision.Request {
	only := []string{"cqr-extra-args", "runtime-version", "enable-autocheckpoint", "type"}
	for _, f := range createflags.All() {
		if !slices.Contains(neutralFlags(), f.Name) {
			only = append(only, f.Name)
		}
	}
	for _, name := range only {
		if slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool { return f.Names()[0] == name }) && c.IsSet(name) {
			c.Refuse(cmdline.Usagef("--%s: it is for queued resources, and not for --provider=gce", name), name, "provider")
		}
	}
	if own.MaxRunDuration == 0 && !boundByWorkers(c) {
		why := "--provider=gce"
		if c.String("provider") != OnGCE {
			why = "Compute Engine makes slices of type " + own.Type.Name
		}
		c.Refuse(&cmdline.UsageError{
			Err:    errors.New(why + ": --max-run-duration is missing; without it, nothing is sure to delete the slices when this machine is gone"),
			Advice: "add --max-run-duration=TIME: Compute Engine then deletes the slices, with their boot disks, after this time",
		}, "max-run-duration", "provider")
	}
	return onCompute(own, gce.Settings{})
}

// boundByWorkers reports whether the workers of a job delete its slices in any case.
func boundByWorkers(c *Call) bool {
	keeps := c.Bool("keep") || c.IsSet("keep-on-failure")
	runnerless := c.Bool("detach") && c.String("bucket-name") != ""
	return !keeps && (runnerless || c.Duration("lease") > 0)
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

// Provider returns the value of --provider. Without that flag, Provider chooses Compute
// Engine for a type that only Compute Engine has, and why says so.
func Provider(c *Call, t tpu.Type) (on, why string) {
	on = c.String("provider")
	switch {
	case on == "" && t.Name != "" && !t.OnCloudAPI() && t.Generation.OnCompute():
		return OnGCE, "the Cloud TPU API does not make " + t.Name + ": Compute Engine makes the slices (--provider=gce)"
	case on == "":
		return OnTPU, ""
	}
	if !c.Refused("provider") {
		c.OneOf("provider", on, OnTPU, OnGCE)
	}
	return on, ""
}
