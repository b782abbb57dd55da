// Package workloadcmd has the commands for workloads on a Kubernetes cluster: workload
// create, workload list and the others.
package workloadcmd

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/access"
	agentprogram "multihost/internal/agent/program"
	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/kube"
	"multihost/internal/options"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/tpu"
	"multihost/internal/ui"
	"multihost/internal/workloads"
)

// A Kit is what the program gives to the commands.
type Kit struct {
	// Command completes a command: it adds the kinds of errors with which the command can
	// end. Follower does the same for a command that can also end with the exit status of
	// the user's command, or by a signal.
	Command, Follower func(cli.Command, ...fault.Kind) *cli.Command
	Group             func(cli.Command) *cli.Command
	Act               func(func(*Call) error) cli.ActionFunc
}

// A Call carries out one command line about workloads.
type Call struct {
	*options.Call
	Machine   options.Machine
	View      *ui.Renderer
	Sink      event.Sink
	Clusters  *gke.Client // nil without a project
	Cloud     *gcp.Client // nil without a project
	Agents    func() agentprogram.Set
	DryRun    bool
	UserAgent string

	Keeper *record.Keeper // for commands about runs

	Ready   func() error // ends the reading of flags; returns what is wrong with them
	Confirm func(ctx context.Context, question string) error
	Status  func(code int) error // ends multihost with the exit status of the user's command
}

// Command returns the command workload with all commands below it.
func Command(k Kit) *cli.Command {
	return k.Group(cli.Command{
		Name:        "workload",
		Usage:       "run a command in pods of a Kubernetes cluster with TPU slices",
		Subcommands: []*cli.Command{k.create(), k.list(), k.status(), k.logs(), k.delete()},
	})
}

// onCluster are the kinds of errors of every command.
var onCluster = []fault.Kind{fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration, fault.Interrupted}

// InKubeconfig reports whether the command needs no project.
func (c *Call) InKubeconfig() bool { return options.InKubeconfig(c.Line) }

// Open returns the cluster that the flags name. The caller closes its client. The command
// line must be sound.
func (c *Call) Open(k options.KubeChoice) (*workloads.Cluster, error) {
	cfg := k.Config
	cfg.UserAgent, cfg.Sink = c.UserAgent, c.Sink
	if k.Cluster != "" {
		at, err := c.Clusters.Endpoint(c.Context, k.Cluster)
		if err != nil {
			return nil, err
		}
		cfg.Server, cfg.CA, cfg.Token, cfg.SignIn = at.Server, at.CA, access.Tokens{Cloud: c.Cloud}, "gcloud auth application-default login"
	}
	client, err := kube.New(cfg)
	if err != nil {
		return nil, err
	}
	return &workloads.Cluster{Client: client, Name: k.Cluster, Flags: k.Flags, Sink: c.Sink, Pools: access.NodePools(c.Clusters, k.Cluster)}, nil
}

// on opens the cluster that the flags name, calls do with it, and closes its client.
func (c *Call) on(do func(*workloads.Cluster) error) error {
	k := options.NeededKube(c.Call, c.Machine)
	if err := c.Ready(); err != nil {
		return err
	}
	cluster, err := c.Open(k)
	if err != nil {
		return err
	}
	defer cluster.Client.Close()
	return do(cluster)
}

func (k Kit) create() *cli.Command {
	return k.Follower(cli.Command{
		Name:      "create",
		Usage:     "make a workload and follow it to its end",
		ArgsUsage: "[NAME]",
		Description: `Makes a JobSet that runs the command on every worker of the slices, through the
queue that multihost cluster create makes, and shows the output. It ends with the
exit status of the command:

  multihost workload create train --cluster=team --tpu-type=v5litepod-16 \
    --num-slices=2 --base-docker-image=python:3.12 --command='python3 train.py'

multihost-agent runs the preflight and the command in the pods. Layers with it, and
with the files of --script-dir after --base-docker-image, are added to the image; no
docker is needed.

If you press Ctrl-C, the workload goes on, and multihost says how to read its
output and how to delete it. Names, labels and queue are those of XPK.`,
		Flags:  options.WorkloadFlags(),
		Action: k.Act(create),
	}, append(slices.Clone(onCluster[:4]), fault.IO, fault.Temporary)...)
}

func create(c *Call) error {
	o := options.WorkloadOf(c.Call, c.Machine)
	c.RefuseRepository(o)
	return c.on(func(cluster *workloads.Cluster) error {
		if c.Bool("confirm") && !c.DryRun {
			if err := c.Confirm(c.Context, "make workload "+o.Spec.Name+"?"); err != nil {
				return err
			}
		}
		return c.Submit(cluster, o, !c.Bool("detach"))
	})
}

// RefuseRepository refuses a workload whose image has no repository to go to.
func (c *Call) RefuseRepository(o options.Workload) {
	if c.Cloud == nil && o.Repository == "" && !c.DryRun {
		c.Refuse(&cmdline.UsageError{Err: errors.New("which repository gets the image? --image-repository is missing"), Advice: "add --image-repository=REGISTRY/NAME, or --project for gcr.io/PROJECT/USER-runner"}, "image-repository")
	}
}

// Submit makes a workload. With follow, it then shows the output to the end, and returns an
// error with the exit status of the command unless that is 0. A dry run shows what Submit
// would make.
func (c *Call) Submit(cluster *workloads.Cluster, o options.Workload, follow bool) error {
	name, err := c.submit(cluster, o)
	if err != nil || c.DryRun {
		return err
	}
	later := "multihost workload logs " + name + " --follow " + cluster.Flags + "\ndelete it with: multihost workload delete " + name + " " + cluster.Flags
	if !follow {
		event.Notef(c.Sink, event.Info, later, "workload %s is made", name)
		return nil
	}
	event.Notef(c.Sink, event.Info, "", "workload %s is made", name)
	return c.follow(cluster, name, later)
}

// submit makes a workload and returns its name. A dry run shows what submit would make.
func (c *Call) submit(cluster *workloads.Cluster, o options.Workload) (name string, err error) {
	o.Spec.Labels = map[string]string{provision.LabelUser: provision.LabelValue(c.Machine.User)}
	r := workloads.Request{Spec: o.Spec, NamedQueue: o.NamedQueue, NamedPriority: o.NamedPriority, ID: rand.Text(), DryRun: c.DryRun}
	if o.Repository != options.ImageAsIs {
		r.Image = func(ctx context.Context) (string, error) { return c.push(ctx, o) }
	}
	js, err := cluster.Create(c.Context, r)
	if err != nil {
		if c.Context.Err() != nil && !c.DryRun {
			c.tellMade(cluster, o.Spec.Name)
		}
		return "", err
	}
	if c.DryRun {
		p, err := planOf(js, o.Spec, js.Namespace)
		if err == nil {
			c.View.Emit(event.Result{Name: "workload_plan", Text: p.String(), Data: p})
		}
		return js.Name, err
	}
	return js.Name, nil
}

// tellMade says that a workload exists although the command that makes it was interrupted.
func (c *Call) tellMade(cluster *workloads.Cluster, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), 10*time.Second)
	defer cancel()
	if w, err := cluster.Find(ctx, name); err != nil || w != nil {
		event.Notef(c.Sink, event.Warn, "look with: multihost workload status "+name+" "+cluster.Flags+"\ndelete it with: multihost workload delete "+name+" "+cluster.Flags, "workload %s may have been made", name)
	}
}

func (k Kit) list() *cli.Command {
	return k.Command(cli.Command{
		Name: "list", Usage: "list the workloads of a namespace, the newest last",
		Flags: options.ClusterChoiceFlags(),
		Action: k.Act(func(c *Call) error {
			c.NoWords()
			return c.on(func(cluster *workloads.Cluster) error {
				all, err := cluster.List(c.Context)
				if err != nil {
					return err
				}
				if len(all) == 0 && c.View.Mode() != ui.JSON {
					event.Notef(c.Sink, event.Info, "", "no workloads in namespace %s", cluster.Client.Namespace())
				}
				c.View.Emit(event.Result{Name: "workloads", Text: workloads.Table(all, time.Now()), Data: all})
				return nil
			})
		}),
	}, onCluster...)
}

// named returns the flags of a command about one workload.
func named(more ...cli.Flag) []cli.Flag {
	return slices.Concat([]cli.Flag{options.WorkloadNameFlag()}, options.ClusterChoiceFlags(), more)
}

func (k Kit) status() *cli.Command {
	return k.Command(cli.Command{
		Name: "status", Usage: "show a workload, its attempts, and why it waits", ArgsUsage: "[NAME]",
		Flags: named(),
		Action: k.Act(func(c *Call) error {
			name := options.WorkloadName(c.Call)
			return c.on(func(cluster *workloads.Cluster) error {
				s, err := cluster.Status(c.Context, name)
				if err != nil {
					return err
				}
				c.View.Emit(event.Result{Name: "workload", Text: s.String(), Data: s})
				return nil
			})
		}),
	}, onCluster...)
}

func (k Kit) logs() *cli.Command {
	return k.Command(cli.Command{
		Name: "logs", Usage: "print the output of one worker in the newest attempt", ArgsUsage: "[NAME]",
		Flags: named(
			&cli.StringFlag{Name: "worker", Value: "s0w0", Usage: "`WORKER` whose output to print"},
			&cli.StringFlag{Name: "container", Usage: "`NAME` of the container; default: the first one"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for the worker, and go on until it has ended"},
		),
		Action: k.Act(func(c *Call) error {
			name := options.WorkloadName(c.Call)
			worker, err := tpu.ParseWorkerID(c.String("worker"))
			if err != nil {
				c.Refuse(&cmdline.UsageError{Err: err}, "worker")
			}
			return c.on(func(cluster *workloads.Cluster) error {
				out := c.View.Logs(ui.LogsOptions{})
				err := cluster.Logs(c.Context, name, workloads.LogOptions{Worker: worker, Container: c.String("container"), Follow: c.Bool("follow")}, logWriter{out, worker})
				return errors.Join(err, out.Close())
			})
		}),
	}, onCluster...)
}

// logWriter writes the output of one worker.
type logWriter struct {
	to     *ui.Logs
	worker tpu.WorkerID
}

func (w logWriter) Write(p []byte) (int, error) {
	return len(p), w.to.WriteLog(w.worker, time.Now(), p)
}

func (k Kit) delete() *cli.Command {
	return k.Command(cli.Command{
		Name: "delete", Usage: "delete a workload and wait until its pods are gone", ArgsUsage: "[NAME]",
		Flags: named(&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"}),
		Action: k.Act(func(c *Call) error {
			name := options.WorkloadName(c.Call)
			return c.on(func(cluster *workloads.Cluster) error {
				if !c.DryRun {
					return cluster.Delete(c.Context, name)
				}
				s, err := cluster.Status(c.Context, name)
				if err != nil {
					return err
				}
				c.View.Emit(event.Result{Name: "workload", Text: "would delete: " + strings.TrimLeft(s.String(), " "), Data: s})
				return nil
			})
		}),
	}, onCluster...)
}
