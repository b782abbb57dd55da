package options

import (
	"errors"
	"slices"
	"strings"
	"time"

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

// ProviderFlag chooses the provider of slices.
func ProviderFlag() cli.Flag {
	return &cli.StringFlag{Name: "provider", Usage: "tpu or gce: which `API` makes the slices; default: gce for a type that only Compute Engine has, else tpu"}
}

// SliceFlags returns own, and the flags that describe slices of any provider.
func SliceFlags(own ...cli.Flag) []cli.Flag {
	own = slices.Concat(own, []cli.Flag{
		&cli.IntFlag{Name: "node-count", Value: 1, Usage: "make `N` slices"},
		TypeFlag(),
		&cli.StringFlag{Name: "topology", Usage: "`TOPOLOGY` of the chips of a slice, such as 2x4; needs --machine-type"},
		ProviderFlag(),
	}, FlagsOf(computeOptions()))
	return slices.DeleteFunc(RequestFlags(own...), func(f cli.Flag) bool {
		name := cmdline.Name(f)
		return !slices.Contains(neutralFlags(), name) && !slices.ContainsFunc(own, func(o cli.Flag) bool { return cmdline.Name(o) == name })
	})
}

// computeOptions describe slices that Compute Engine makes.
func computeOptions() []Option {
	return []Option{
		{flag: &cli.StringFlag{Name: "machine-type", Usage: "machine `TYPE` of Compute Engine, such as ct6e-standard-4t, in place of an accelerator type; needs --topology"},
			with: withRequest, bad: "x", plan: "slices.type", key: request},
		{flag: &cli.IntFlag{Name: "boot-disk-size", Usage: "size of the boot disk in `GB`, for --provider=gce; default: 200"},
			with: withRequest, bad: "9", plan: "queued_resource.request", key: request},
		{flag: &cli.StringFlag{Name: "boot-disk-type", Usage: "`TYPE` of the boot disk, for --provider=gce; default: that of the accelerator type"},
			with: withRequest, bad: "x", plan: "queued_resource.request", key: request},
		{flag: &cli.StringFlag{Name: "image", Usage: "boot this `IMAGE`, as projects/P/global/images/NAME, for --provider=gce; default: the newest one for the accelerator type"},
			with: withRequest, bad: "x", plan: "queued_resource.request", key: request},
	}
}

const deadlineFlag = "slices-deadline"

// SlicesDeadlineFlag limits how long some slices of a request may exist while others are
// missing. without is the default.
func SlicesDeadlineFlag(without time.Duration) cli.Flag {
	usage := "if slices of --provider=gce are missing this `TIME` after the first one has come, give all back and end with status 75; 0: no limit"
	if without == 0 {
		usage = strings.Replace(usage, "0: no limit", "default: no limit", 1)
	}
	return &cli.DurationFlag{Name: deadlineFlag, Value: without, Usage: usage}
}

// SlicesDeadline reads the flag of SlicesDeadlineFlag. 0 means no limit.
func SlicesDeadline(c *Call) time.Duration {
	c.NotNegative(c, deadlineFlag)
	return c.Duration(deadlineFlag)
}

// forCompute reads the settings that only Compute Engine knows, or refuses them for another
// provider.
func forCompute(c *Call, on string) (s gce.Settings) {
	if on != OnGCE {
		for _, name := range []string{"boot-disk-size", "boot-disk-type", "image"} {
			if c.IsSet(name) {
				c.Refuse(cmdline.Usagef("--%s: it is for --provider=gce", name), name)
			}
		}
		if _, typed := c.Typed[deadlineFlag]; typed {
			c.Refuse(cmdline.Usagef("--%s: it is for --provider=gce: a queued resource makes all its slices or none", deadlineFlag), deadlineFlag)
		}
		return s
	}
	if size := c.Int("boot-disk-size"); c.IsSet("boot-disk-size") && size < 10 {
		c.Refuse(cmdline.Usagef("--boot-disk-size=%d: it is at least 10, the size of the images", size), "boot-disk-size")
	}
	return gce.Settings{Image: c.String("image"), DiskGB: int64(c.Int("boot-disk-size")), DiskType: c.String("boot-disk-type")}
}

// SliceRequest reads the request that slices create makes.
func SliceRequest(c *Call, m Machine) provision.Request {
	refuseHeld(c)
	id := c.OneWord("id", "")
	own := qr.Request{ID: id, Type: machineType(c)}
	own = readRequest(c, own, "")
	if !c.IsSet("node-count") {
		own.NodeCount = 1
	}
	own.Mark(id, m.User)
	on, _ := Provider(c, own.Type)
	deadline := SlicesDeadline(c)
	settings := forCompute(c, on)
	if on == OnTPU {
		refuseRequest(c, own)
		return own.Neutral()
	}
	if deadline > 0 && !c.Bool("wait") {
		c.Refuse(cmdline.Usagef("--%s: a command that does not wait cannot give slices back; add --wait", deadlineFlag), deadlineFlag, "wait")
	}
	return onCompute(c, own, settings)
}

// onCompute turns flags that describe a queued resource into a request for Compute Engine.
func onCompute(c *Call, own qr.Request, settings gce.Settings) provision.Request {
	settings.Tags, settings.InternalIPs = own.Tags, own.InternalIPs
	r := own.Neutral()
	r.Scopes, r.Own, r.Apart, r.SlicesDeadline = qr.ScopeURLs(own.Scopes), settings, true, c.Duration(deadlineFlag)
	return r
}

// jobOnCompute is onCompute for a job. It refuses flags that only queued resources have.
func jobOnCompute(c *Call, own qr.Request, settings gce.Settings) provision.Request {
	only := []string{"cqr-extra-args", "runtime-version", "enable-autocheckpoint", "type"}
	for _, f := range createflags.All() {
		if !slices.Contains(neutralFlags(), f.Name) {
			only = append(only, f.Name)
		}
	}
	for _, name := range only {
		if slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool { return cmdline.Name(f) == name }) && c.IsSet(name) {
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
	return onCompute(c, own, settings)
}

// boundByWorkers reports whether the workers of a job delete its slices in every case.
func boundByWorkers(c *Call) bool {
	keeps := c.Bool("keep") || c.IsSet("keep-on-failure")
	runnerless := c.Bool("detach") && c.String("bucket-name") != ""
	return !keeps && (runnerless || c.Duration("lease") > 0)
}

// machineType reads --machine-type and --topology. Without them it returns the zero Type.
func machineType(c *Call) tpu.Type {
	machine, topology := c.String("machine-type"), c.String("topology")
	switch {
	case machine == "" && (topology == "" || c.Command.Name == "job"): // job accepts gcloud's --type with --topology, too
		return tpu.Type{}
	case machine == "" || topology == "":
		c.Refuse(cmdline.Usagef("--machine-type and --topology: give both, or --tpu-type alone"), "machine-type", "topology")
		return tpu.Type{}
	}
	for _, other := range []string{"tpu-type", "type"} {
		if c.String(other) != "" {
			c.Refuse(cmdline.Usagef("--%s and --machine-type exclude each other: give one of them", other), other, "machine-type")
		}
	}
	t, err := tpu.TypeOf(strings.ToLower(machine), strings.ToLower(topology))
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "machine-type", "topology")
	}
	return t
}

// Provider returns the value of --provider. Without that flag, it chooses Compute Engine
// for a type that only Compute Engine has, and why says so.
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
