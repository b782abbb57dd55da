package preflight

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"multihost/internal/remote"
)

//go:embed preflight.sh
var script string

var program = remote.NewProgram("preflight", remote.Prelude(), script)

// Kind is how a setting is read and written.
type Kind string

// The kinds, as words of the worker script.
const (
	Sysctl  Kind = "sysctl"  // Key below /proc/sys; sysctl -w
	File    Kind = "file"    // Key is a file; tee
	Route   Kind = "route"   // Key is an attribute of every IPv4 default route; ip route change
	Feature Kind = "feature" // Key is an offload feature of the default routes' interfaces; ethtool -K
	MTU     Kind = "mtu"     // MTU of the default routes' interfaces; only read; Key "slices": the value for traffic between slices
	Tool    Kind = "tool"    // Key is a program; installed only on request
	Devices Kind = "devices" // TPU device files; only read
)

const (
	devicesName = "tpu_devices"
	mtuName     = "mtu"
	numactlName = "numactl"
)

// A Setting is one row of the table.
type Setting struct {
	Name      string     `json:"name"`
	Kind      Kind       `json:"kind"`
	Key       string     `json:"key,omitempty"`
	Want      string     `json:"want,omitempty"` // "": depends on Options
	Read      string     `json:"read"`           // how people can read the setting
	Apply     string     `json:"apply,omitempty"`
	Platforms []Platform `json:"platforms"`
	Needs     string     `json:"needs,omitempty"` // package with the tool
	Why       string     `json:"why"`
	Source    string     `json:"source"`
}

// Settings returns the table. The first nine rows are those of MaxText's
// rto_setup.sh, with its values.
func Settings() []Setting {
	both := []Platform{GCE, GKE}
	const maxtext = "MaxText rto_setup.sh"
	const sysctlApply = "sysctl -w"
	return []Setting{
		{"tcp_slow_start_after_idle", Sysctl, "net/ipv4/tcp_slow_start_after_idle", "0",
			"/proc/sys/net/ipv4/tcp_slow_start_after_idle", sysctlApply, both, "",
			"keeps the congestion window while a step computes", maxtext},
		{"tcp_no_metrics_save", Sysctl, "net/ipv4/tcp_no_metrics_save", "1",
			"/proc/sys/net/ipv4/tcp_no_metrics_save", sysctlApply, both, "",
			"a connection does not inherit the bad luck of an earlier one", maxtext},
		{"rto_min", Route, "rto_min", "5ms",
			"ip route show default", "ip route change", both, "iproute2",
			"a lost packet is sent again after 5 ms instead of 200 ms", maxtext},
		{"hystart_detect", File, "/sys/module/tcp_cubic/parameters/hystart_detect", "2",
			"/sys/module/tcp_cubic/parameters/hystart_detect", "tee", both, "",
			"slow start is not left on ACK trains, only on delay", maxtext},
		{"somaxconn", Sysctl, "net/core/somaxconn", "4096",
			"/proc/sys/net/core/somaxconn", sysctlApply, both, "",
			"all workers connect to the coordinator at once", maxtext},
		{"tcp_max_syn_backlog", Sysctl, "net/ipv4/tcp_max_syn_backlog", "4096",
			"/proc/sys/net/ipv4/tcp_max_syn_backlog", sysctlApply, both, "",
			"all workers connect to the coordinator at once", maxtext},
		{"tcp_mtu_probing", Sysctl, "net/ipv4/tcp_mtu_probing", "0",
			"/proc/sys/net/ipv4/tcp_mtu_probing", sysctlApply, both, "",
			"segments stay as large as the network's MTU allows", maxtext},
		{"optmem_max", Sysctl, "net/core/optmem_max", "131072",
			"/proc/sys/net/core/optmem_max", sysctlApply, both, "",
			"room for the notifications of zero-copy sends", maxtext},
		{"tx-nocache-copy", Feature, "tx-nocache-copy", "on",
			"ethtool -k", "ethtool -K", both, "ethtool",
			"data that is sent does not push the step's data out of the CPU caches", maxtext},
		{mtuName, MTU, "", "",
			"/sys/class/net/<interface>/mtu", "", both, "",
			"large frames; it comes from the network, see multihost network create --mtu", "multihost"},
		{numactlName, Tool, "numactl", "installed",
			"command -v numactl", "apt-get install, with --install", both, "numactl",
			"needed by --numa on v4 and v5p", "MaxText setup.sh"},
		{devicesName, Devices, "", "",
			"/dev/accel*, /dev/vfio/*", "", both, "",
			"without them there is nothing to train on", "multihost"},
	}
}

// want returns the value that o wants for s, in the words of the script. "" means that any
// value is right.
func (s Setting) want(o Options) string {
	switch {
	case s.Kind == MTU && o.betweenSlices():
		return strconv.Itoa(o.BetweenSlices)
	case s.Kind == MTU && o.ExpectMTU > 0:
		return strconv.Itoa(o.ExpectMTU)
	case s.Kind == Devices && o.ExpectChips == NoDevices:
		return "none"
	case s.Kind == Devices && o.ExpectChips > 0:
		return strconv.Itoa(o.ExpectChips)
	case s.Kind == Devices:
		return "1+"
	}
	return s.Want
}

// key returns the key of s, in the words of the script.
func (s Setting) key(o Options) string {
	if s.Kind == MTU && o.betweenSlices() {
		return "slices"
	}
	return s.Key
}

// betweenSlices reports whether slices train together on a network whose MTU may be too
// small.
func (o Options) betweenSlices() bool { return o.BetweenSlices > o.ExpectMTU }

// arguments returns the arguments of the script: mode, platform, install, and four words
// for each row of the table.
func arguments(o Options) []string {
	platform := o.Platform
	if platform == "" {
		platform = GCE
	}
	install := "no"
	if o.Install && o.Mode == Apply {
		install = "yes"
	}
	args := []string{o.Mode.String(), string(platform), install}
	for _, s := range Settings() {
		args = append(args, s.Name, string(s.Kind), s.key(o), s.want(o))
	}
	return args
}

// asFile returns a complete bash script: the lines in before, which set its arguments, and
// the program.
func asFile(before string) string {
	text := strings.NewReplacer("#!/bin/bash\n", "", "#!/usr/bin/env bash\n", "").Replace(program.Text())
	return "#!/usr/bin/env bash\n" + before + text + "\n"
}

// KitNonce begins each line of a Kit's answer.
const KitNonce = "multihost-preflight"

// Kit returns the program of Run with its arguments as one bash script, for a worker
// without a connection. Its answer has the form that Run parses, with KitNonce as the
// nonce.
func Kit(o Options) string {
	return asFile("set -- " + remote.Quote(append([]string{KitNonce}, arguments(o)...)...) + "\n")
}

//go:embed print_gce.txt
var aboutGCE string

//go:embed print_gke.txt
var aboutGKE string

// Print returns the program of Run with the table as one bash script that prints text for
// people. `multihost preflight print | ssh worker bash -s` does the same as Run. Its first
// lines say how to use it on o.Platform.
func Print(o Options) string {
	about := aboutGCE
	if o.Platform == GKE {
		about = aboutGKE
	}
	var b strings.Builder
	for line := range strings.Lines(about) {
		b.WriteString(strings.TrimRight("# "+line, " \n") + "\n")
	}
	args := arguments(o)
	fmt.Fprintf(&b, "table=(%s", remote.Quote(args[1]))
	for i, arg := range args[3:] {
		if i%4 == 0 {
			b.WriteString("\n\t")
		} else {
			b.WriteString(" ")
		}
		b.WriteString(remote.Quote(arg))
	}
	b.WriteString("\n)\nset -- '' \"$@\"\n") // without a nonce, the answer is for people
	return asFile(b.String())
}
