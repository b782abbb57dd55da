package options

import (
	"errors"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/gke"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// ClusterFlags describe a cluster of Google Kubernetes Engine.
func ClusterFlags() []cli.Flag {
	return []cli.Flag{
		TypeFlag(),
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES", "node-count"}, Value: 1, Usage: "make `N` slices, each of them a node pool; 0: none"},
		&cli.BoolFlag{Name: "on-demand", Usage: "slices on demand: the default"},
		&cli.BoolFlag{Name: "spot", Usage: "slices that Google may take away at any time"},
		&cli.BoolFlag{Name: "flex-start", Usage: "slices that exist only while workloads ask for them, for at most 7 days"},
		&cli.StringFlag{Name: "reservation", Usage: "slices of the reservation `NAME`, or projects/P/reservations/NAME; either may have /reservationBlocks/BLOCK"},
		&cli.StringFlag{Name: "network", Value: gke.DefaultNetwork, Usage: "`NAME` of the network, which multihost network create makes"},
		&cli.StringFlag{Name: "subnetwork", Usage: "`NAME` of the subnetwork; default: the name of the network"},
		&cli.StringFlag{Name: "gke-version", Usage: "`VERSION` of GKE, such as 1.34; nodes then stay at it. Default: the one that the channel RAPID recommends"},
		&cli.StringFlag{Name: "default-pool-cpu-machine-type", Value: gke.DefaultCPUMachine, Usage: "machine `TYPE` of the CPU nodes, on which the controllers run"},
		&cli.IntFlag{Name: "default-pool-cpu-num-nodes", Value: gke.DefaultCPUNodes, Usage: "make `N` CPU nodes; GKE later removes those that are not needed"},
		&cli.StringFlag{Name: "host-maintenance-interval", Value: gke.AsNeeded, Usage: "AS_NEEDED or PERIODIC: `WHEN` Google maintains the hosts of slices; some reservations need PERIODIC"},
	}
}

// ClusterName returns the name of a cluster, the only word of a command.
func ClusterName(c *Call) string {
	name := c.OneWord("name", "list them with: multihost cluster list")
	if name != "" {
		if err := gke.CheckName(name); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, cmdline.Word)
		}
	}
	return name
}

// Cluster reads the flags of ClusterFlags, and --force.
func Cluster(c *Call, m Machine) gke.Options {
	o := gke.Options{
		Name: ClusterName(c), Slices: c.Int("num-slices"), Tier: clusterTier(c), Reservation: c.String("reservation"),
		Network: c.String("network"), Subnetwork: c.String("subnetwork"), Version: c.String("gke-version"),
		CPUMachine: c.String("default-pool-cpu-machine-type"), CPUNodes: c.Int("default-pool-cpu-num-nodes"), Maintenance: c.String("host-maintenance-interval"),
		User: m.User, Force: c.Bool("force"),
	}
	sound := gke.Options{Name: "x"}
	check := func(flag string, set func(*gke.Options)) {
		one := sound
		set(&one)
		if err := one.Validate(); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, flag)
		}
	}
	if o.Slices < 0 {
		c.Refuse(cmdline.Usagef("--num-slices=%d: want 0 or more", o.Slices), "num-slices")
	}
	readClusterType(c, &o)
	if o.Reservation != "" {
		check("reservation", func(one *gke.Options) { one.Reservation = o.Reservation })
	}
	check("gke-version", func(one *gke.Options) { one.Version = o.Version })
	if o.CPUNodes == 0 {
		o.CPUNodes = -1 // 0 would mean the default
	}
	check("default-pool-cpu-num-nodes", func(one *gke.Options) { one.CPUNodes = o.CPUNodes })
	check("host-maintenance-interval", func(one *gke.Options) { one.Maintenance = o.Maintenance })
	for _, name := range []string{"network", "subnetwork"} {
		if value := c.String(name); value != "" {
			refuseNamed(c, name, value)
		}
	}
	if c.Sound() {
		if err := o.Validate(); err != nil { // the name is too long for this number of slices
			c.Refuse(&cmdline.UsageError{Err: err}, cmdline.Word, "num-slices")
		}
	}
	return o
}

// refuseNamed refuses a name that no network can have.
func refuseNamed(c *Call, flag, name string) {
	if err := gke.CheckNetwork(name); err != nil {
		c.Refuse(cmdline.Usagef("--%s: %v", flag, err), flag)
	}
}

// readClusterType reads --tpu-type.
func readClusterType(c *Call, o *gke.Options) {
	text := c.String("tpu-type")
	if text == "" {
		if o.Slices > 0 {
			c.Refuse(&cmdline.UsageError{Err: errors.New("which accelerator type? --tpu-type is missing"), Advice: "add --tpu-type=v5litepod-16, for example; or --num-slices=0 for a cluster without slices"}, "tpu-type", "num-slices")
		}
		return
	}
	t, err := tpu.ParseType(text)
	if err == nil {
		_, err = tpu.NodesOf(t)
	}
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "tpu-type")
	}
	o.Type = t
}

// clusterTier reads how the user pays for the slices.
func clusterTier(c *Call) provision.Tier {
	tier, by := provision.Tier(""), ""
	choose := func(flag string, of provision.Tier) {
		if by != "" {
			c.Refuse(cmdline.Usagef("--%s and --%s exclude each other: give one of them", by, flag), by, flag)
		}
		tier, by = of, flag
	}
	for _, f := range []struct {
		name string
		tier provision.Tier
	}{{"on-demand", provision.OnDemand}, {"spot", provision.Spot}, {"flex-start", provision.FlexStart}} {
		if c.Bool(f.name) {
			choose(f.name, f.tier)
		}
	}
	if c.String("reservation") != "" {
		choose("reservation", provision.Reserved)
	}
	return tier
}
