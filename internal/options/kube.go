package options

import (
	"errors"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/gke"
	"multihost/internal/held"
	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// KubeOptions name a Kubernetes cluster whose pods are the workers.
func KubeOptions() []Option {
	const chooses = "it says where the slices are looked for"
	return []Option{
		{flag: &cli.StringFlag{Name: "cluster", Usage: "look for the slices in the GKE cluster `NAME`, in the region of --zone; its pods are the workers"},
			with: inSession, unplanned: chooses, unneeded: ofRun},
		{flag: &cli.StringFlag{Name: "context", Usage: "look for the slices in a Kubernetes cluster: that of the context `NAME` of --kubeconfig"},
			with: inSession, unplanned: chooses, unneeded: ofRun},
		{flag: &cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` of kubectl with clusters; its current context is used unless --context names another; default with --context: $KUBECONFIG or ~/.kube/config"},
			with: inSession, bad: "/no/such", unplanned: chooses, unneeded: ofRun},
		{flag: &cli.StringFlag{Name: "namespace", Usage: "`NAMESPACE` of the pods in the cluster of --cluster, --context or --kubeconfig; default: that of the context"},
			with: inSession, unplanned: chooses, unneeded: ofRun},
	}
}

// KubeFlags are the flags of KubeOptions.
func KubeFlags() []cli.Flag { return FlagsOf(KubeOptions()) }

// A KubeChoice is the cluster that the flags of KubeOptions name.
type KubeChoice struct {
	Named   bool        // the flags name one
	Cluster string      // name of a cluster of GKE; Config then lacks its address
	Config  kube.Config // without Sink
	Flags   string      // the flags for another command: "" or "--context=c --namespace=n"
}

// Kube reads the flags of KubeOptions for a command whose workers are pods of the cluster.
func Kube(c *Call, m Machine, stateDir string) KubeChoice {
	if opensCluster(c.Line) {
		return KubeChoice{}
	}
	k := named(c, m)
	switch {
	case !k.Named:
		namespace := k.Config.Namespace
		if namespace == "" && c.String("tpu-prefix") == "" && namesRun(c.Line) {
			k.recorded(c, stateDir)
		}
		if namespace != "" {
			c.Refuse(cmdline.Usagef("--namespace=%s: of which cluster? add --cluster=NAME, --context=NAME or --kubeconfig=FILE", namespace), "namespace")
		}
	case k.Cluster == "" && (c.String("hosts") != "" || c.String("hosts-file") != ""):
		c.Refuse(cmdline.Usagef("give either --hosts or a cluster, not both"), "context", "kubeconfig", "hosts", "hosts-file")
	}
	return k
}

// NeededKube reads the flags of KubeOptions for a command that needs a cluster.
func NeededKube(c *Call, m Machine) KubeChoice {
	k := named(c, m)
	if !k.Named {
		c.Refuse(&cmdline.UsageError{Err: errors.New("which cluster? --cluster is missing"), Advice: "add --cluster=NAME, or --context=NAME for a cluster that kubectl knows; multihost cluster list shows those of the project"}, "cluster", "context", "kubeconfig")
	}
	return k
}

// opensCluster reports whether a command opens the cluster of KubeOptions itself, because
// it is about the cluster and not about workers.
func opensCluster(l *cmdline.Line) bool {
	return len(l.Path) > 0 && (l.Path[0] == "workload" || l.Path[0] == "xpk") || IsClusterJob(l)
}

// InKubeconfig reports whether a command line is about a cluster that needs no project.
func InKubeconfig(l *cmdline.Line) bool {
	return opensCluster(l) && l.Path[0] != "xpk" && l.Setting("cluster") == ""
}

// named returns the cluster that the flags of KubeOptions name.
func named(c *Call, m Machine) KubeChoice {
	file, context, namespace := c.String("kubeconfig"), c.String("context"), c.String("namespace")
	k := KubeChoice{Named: file != "" || context != "", Cluster: c.String("cluster"), Config: kube.Config{Context: context, Namespace: namespace}, Flags: kubeFlags(c)}
	switch set, _ := m.Lookup("KUBECONFIG"); {
	case k.Cluster != "" && k.Named:
		c.Refuse(cmdline.Usagef("give either --cluster, or --context and --kubeconfig"), "cluster", "context", "kubeconfig")
	case k.Cluster != "":
		if err := gke.CheckName(k.Cluster); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, "cluster")
		}
		k.Named = true
	case !k.Named:
	case file != "":
		k.Config.Kubeconfig = []string{absolute(file)}
	case set != "":
		k.Config.Kubeconfig = filepath.SplitList(set)
	default:
		k.Config.Kubeconfig = []string{filepath.Join(m.Home, ".kube", "config")}
	}
	return k
}

// kubeFlags returns the flags of KubeOptions as they were given.
func kubeFlags(c *Call) string {
	var words []string
	for _, name := range []string{"cluster", "kubeconfig", "context", "namespace"} {
		if v := c.String(name); v != "" {
			words = append(words, "--"+name+"="+v)
		}
	}
	return remote.CommandLine(words...)
}

// recorded chooses the cluster in which the named run was started, if there was one.
func (k *KubeChoice) recorded(c *Call, stateDir string) {
	of, err := workers.RecordedCluster(stateDir, c.Words[0])
	c.Refuse(err, cmdline.Word)
	switch {
	case err != nil || of == nil:
	case of.Name != "":
		k.Named, k.Cluster, k.Config.Namespace = true, of.Name, of.Namespace
		k.Flags = remote.CommandLine(of.Flags()...)
	default:
		k.Named, k.Config.Kubeconfig, k.Config.Context, k.Config.Namespace = true, of.Kubeconfig, of.Context, of.Namespace
		k.Flags = remote.CommandLine(of.Flags()...)
	}
}

// absolute returns the path of a file as commands in other directories need it.
func absolute(file string) string {
	if path, err := filepath.Abs(file); err == nil {
		return path
	}
	return file
}

// HeldFlags describe the pods that hold slices of a cluster.
func HeldFlags() []cli.Flag {
	return append(KubeFlags(),
		&cli.StringFlag{Name: "docker-image", Usage: "`IMAGE` of the pods in a cluster; it has bash, coreutils, tar and what the command needs; default: " + held.Image},
		&cli.StringFlag{Name: "queue", Usage: "local `QUEUE` of Kueue that admits the pods in a cluster; default: none"},
		&cli.StringFlag{Name: "priority", Usage: "priority `CLASS` of the pods in a cluster; default: that of the cluster"},
		&cli.DurationFlag{Name: "ttl", Usage: "end the pods in a cluster this `TIME` after they were requested, whatever runs in them; default: never"},
		&cli.DurationFlag{Name: "lease", Value: held.Lease, Usage: "end a pod in a cluster when no command has run in it, and no multihost was connected to it, for this `TIME`; 0: never"},
	)
}

// HeldRequest reads the request for slices that pods of a cluster hold.
func HeldRequest(c *Call, m Machine) provision.Request {
	r := provision.Request{ID: c.OneWord("id", ""), NodeCount: c.Int("node-count")}
	if r.NodeCount < 1 {
		c.Refuse(cmdline.Usagef("--node-count=%d: want 1 or more", r.NodeCount), "node-count")
	}
	t, err := tpu.ParseType(c.String("tpu-type"))
	switch {
	case c.String("tpu-type") == "":
		c.Refuse(cmdline.Usagef("which accelerator type? --tpu-type is missing"), "tpu-type")
	case err != nil:
		c.Refuse(&cmdline.UsageError{Err: err}, "tpu-type")
	}
	if n, err := tpu.NodesOf(t); err == nil && t.Name != "" && n.Count != t.Workers {
		c.Refuse(cmdline.Usagef("--tpu-type=%s: on TPU VMs it is %s with %d chips, in a cluster %d nodes with %d chips each; multihost numbers workers as TPU VMs, so pods cannot hold it: choose another size, or a machine type that has all chips, such as ct6e-standard-8t:2x4", t.Name, event.Count(t.Workers, "worker"), t.Chips/t.Workers, n.Count, n.Machine.Chips), "tpu-type")
	}
	for _, f := range SliceFlags() {
		name := cmdline.Name(f)
		if _, typed := c.Typed[name]; typed && name != "node-count" && name != "tpu-type" {
			c.Refuse(cmdline.Usagef("--%s: the node pools of a cluster decide it, not the pods that hold slices", name), name)
		}
	}
	own := held.Settings{Image: c.String("docker-image"), Queue: c.String("queue"), Priority: c.String("priority"), TTL: c.Duration("ttl"), Lease: c.Duration("lease")}
	if own.TTL != 0 && own.TTL < m.LeastTerm {
		c.Refuse(cmdline.Usagef("--ttl=%s: it must be 1m or more, or 0", own.TTL), "ttl")
	}
	if least := 10 * m.LeastTerm; own.Lease != 0 && own.Lease < least { // several rounds of held.RenewEvery
		c.Refuse(cmdline.Usagef("--lease=%s: it must be 10m or more, or 0", own.Lease), "lease")
	}
	r.Type, r.Own = t, own
	r.Mark(r.ID, m.User)
	return r
}

// refuseHeld refuses flags that only slices of a cluster have.
func refuseHeld(c *Call) {
	for _, name := range []string{"docker-image", "queue", "priority", "ttl", "lease"} {
		if c.IsSet(name) {
			c.Refuse(cmdline.Usagef("--%s: it is for slices in a cluster; add --cluster=NAME, --context=NAME or --kubeconfig=FILE", name), name)
		}
	}
}
