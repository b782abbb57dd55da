package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/doctor"
	"multihost/internal/event"
	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/options"
	"multihost/internal/sshkey"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// doctorPatience limits how long doctor waits for the first answer of a worker. doctor does
// not wait for a boot.
const doctorPatience = 15 * time.Second

func doctorCommand() *cli.Command {
	return command(cli.Command{
		Name:  "doctor",
		Usage: "check all that a run depends on; for each problem, print the command that repairs it",
		Description: `Checks the credentials, where project and zone come from, the APIs and permissions
of the project, the quota for --tpu-type, the network's MTU and firewall rules, the
SSH key and how the workers learn it. On Compute Engine it also checks whether the
zone has the machine type, the image and --reservation.

With --tpu-prefix or --hosts it also checks every worker: login, host key, clock,
devices, who uses the TPU, settings, disks, versions. Then it checks the paths
between the workers: the largest packet that passes unfragmented, and the ports of
the coordinators. The first worker listens on these ports during the check.
If a VM of Compute Engine does not answer, doctor shows the end of its serial console.

With --cluster or --context it checks a Kubernetes cluster and your rights there:
node pools, JobSet, Kueue, the queue, the nodes, and the pods of --tpu-prefix.

Each line is ok, a warning, an error or not checked, with the command to type.
Without --fix, doctor changes nothing. --fix does only what is safe: it makes the
SSH key, puts it where the slices' workers look for it, and adds missing firewall
rules (from Identity-Aware Proxy to tcp:22, and within the subnetwork). It opens
nothing that a rule denies.

  multihost doctor
  multihost doctor --tpu-prefix=train
  multihost doctor --tpu-type=v5litepod-16 --num-slices=2`,
		Flags: slices.Concat(options.DoctorFlags(), options.HostFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			o, err := doctorOptions(s, c)
			if err != nil {
				return err
			}
			report, err := doctor.Examine(c.Context, o)
			if err != nil {
				return interruptible(c.Context, err)
			}
			s.view.Emit(event.Result{Name: "doctor", Text: report.String(), Data: report})
			if kind, failed := report.Fault(); failed {
				return &statusError{code: statuses[kind]}
			}
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPreflight, exitPermission, exitConfig, exitInterrupt)
}

func doctorOptions(s *session, c *call) (o doctor.Options, err error) {
	o = doctor.Options{
		Cloud: s.cloud, Provider: s.slices(), Networks: s.networks, Hosts: s.hosts, Account: s.gcloud.Account,
		Project: doctor.Setting{Value: s.gcloud.Project, Source: s.gcloud.Source["Project"]},
		Zone:    doctor.Setting{Value: s.gcloud.Zone, Source: s.gcloud.Source["Zone"]},
		Prefix:  c.String("tpu-prefix"), Network: c.String("network"), Count: c.Int("num-slices"),
		Fix: c.Bool("fix"), Sink: s.sink, Clock: gcp.SystemClock,
	}
	if s.held != nil {
		o.Cluster = options.DoctorCluster(&c.Call, s.held, s.clusters)
	}
	o.Slices, o.Reservation = options.Slices(&c.Call), c.String("reservation")
	if o.Hosts != nil && o.Prefix != "" {
		c.Refuse(usagef("give either --tpu-prefix or --hosts, not both"), "tpu-prefix", "hosts", "hosts-file")
	}
	if o.Count < 1 {
		c.Refuse(usagef("--num-slices=%d: it must be 1 or more", o.Count), "num-slices")
	}
	if text := c.String("tpu-type"); text != "" {
		if o.Type, err = tpu.ParseType(text); err != nil {
			c.Refuse(asUsage(err), "tpu-type")
		}
	}
	if on, _ := options.Provider(&c.Call, o.Type); on == options.OnGCE && s.cloud != nil {
		if o.Type.Name == "" && !c.Refused("tpu-type") {
			c.Refuse(usagef("--provider=gce: --tpu-type is missing; doctor checks the quota, the machine type and the image of one type"), "provider", "tpu-type")
		}
		s.makeOn(on)
		o.Provider = s.slices()
	} else if o.Reservation != "" {
		c.Refuse(usagef("--reservation=%s: doctor reads the reservations of Compute Engine only (--provider=gce)", o.Reservation), "reservation", "provider")
	}
	if o.Reservation != "" {
		c.Refuse(gce.CheckReservation(o.Reservation), "reservation")
	}
	d, err := s.access(c)
	if err != nil {
		return o, err
	}
	s.tellLogin()
	if _, typed := s.typed["connect-timeout"]; !typed {
		d.Access.RetryFor, d.Access.ConnectTimeout = doctorPatience, min(d.Access.ConnectTimeout, doctorPatience)
	}
	d.ReadOnly = !o.Fix
	o.Login, o.LoginAccount, o.Way = d.Access.Login, d.Access.Account, d.Access.Way
	o.Jump = len(d.Access.Jump) > 0
	key := s.key(c)
	o.KeyPath, o.Key = key.Path, key.Load
	if key.Ours {
		o.MakeKey = func() error {
			_, err := sshkey.Create(key.Path)
			return err
		}
	}
	o.Visit = func(ctx context.Context, id *sshkey.Identity, sel tpu.Selection, logins map[string]string, only func(tpu.WorkerID) bool) (*workers.Visit, error) {
		d.Access.Identity = id
		if s.held != nil {
			d.Dialer = s.pods
		} else {
			overSSH(d, logins)
		}
		return d.Visit(ctx, sel, only)
	}
	o.Again = again(c, "project", "zone", "configuration", "profile", "access-token-file", "ip", "user", "identity-file", "ssh-proxy-jump", "ssh-config", "ssh-port", "cluster", "kubeconfig", "context", "namespace")
	return o, nil
}

// again returns a function that repeats flags for another command. The words of that command
// are the arguments of the function. The function returns those of the given flags, with
// their values, that the user has typed and that the other command has.
func again(c *call, flags ...string) func(words ...string) []string {
	return func(words ...string) (line []string) {
		for _, flag := range flags {
			if _, typed := c.Typed[flag]; typed && cmdline.HasFlag(c.Flags.App, words, flag) {
				line = append(line, "--"+flag+"="+fmt.Sprint(c.Flags.Value(flag)))
			}
		}
		return line
	}
}
