package options

import (
	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/doctor"
	"multihost/internal/gke"
	"multihost/internal/held"
	"multihost/internal/network"
)

// DoctorFlags say what doctor examines.
func DoctorFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tpu-prefix", Aliases: []string{"TPU_PREFIX"}, Usage: "examine the slice named `P`, or the slices P-0, P-1, …"},
		SlicesFlag(),
		&cli.StringFlag{Name: "tpu-type", Aliases: []string{"TPU_TYPE"}, Usage: "accelerator `TYPE` that you want"},
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES"}, Value: 1, Usage: "`N` slices of that type that you want"},
		ProviderFlag(),
		&cli.StringFlag{Name: "reservation", Usage: "reserved capacity that the slices are to use: `NAME`, projects/P/reservations/NAME, or one of these with /reservationBlocks/BLOCK; for --provider=gce"},
		&cli.StringFlag{Name: "network", Usage: "`NAME` of the network; default: that of the slices, else " + network.DefaultName},
		&cli.BoolFlag{Name: "fix", Usage: "make the repairs that are safe"},
	}
}

// DoctorCluster reads which cluster doctor examines. p is the provider of its slices. If
// doctor examines a cluster, it refuses flags that describe slices of a cloud.
func DoctorCluster(c *Call, p *held.Provider, clusters *gke.Client) *doctor.Cluster {
	for _, name := range []string{"tpu-type", "num-slices", "provider", "reservation", "network", "fix"} {
		if _, typed := c.Typed[name]; typed {
			c.Refuse(cmdline.Usagef("--%s: doctor examines a cluster as it is; leave this flag out", name), name)
		}
	}
	found := &doctor.Cluster{Name: c.String("cluster"), Client: p.Client}
	if found.Name != "" {
		found.Show, found.Kubectl = clusters.Show, []string{"--context=" + clusters.Context(found.Name)}
		return found
	}
	if file := c.String("kubeconfig"); file != "" {
		found.Kubectl = append(found.Kubectl, "--kubeconfig="+absolute(file))
	}
	found.Kubectl = append(found.Kubectl, "--context="+p.Client.Context())
	return found
}
