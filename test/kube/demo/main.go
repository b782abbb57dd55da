// Command demo starts a Kubernetes cluster with TPU slices on this machine and runs a
// command that uses it:
//
//	demo [flags] COMMAND [ARGUMENT...]
//
// The cluster has the control plane of Kubernetes, JobSet and Kueue, built from their
// sources, and nodes as GKE makes them for TPU slices. Its pods are processes of this
// machine. If the user is root, each pod has a network of its own. The command finds the
// cluster by the variable KUBECONFIG. When the command ends, the cluster ends, and demo ends
// with the command's exit status.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"multihost/internal/sim/netns"
	"multihost/internal/tpu"
	"multihost/test/kube/engine"
	"multihost/test/kube/kubelet"
	"multihost/test/kube/parts"
)

const (
	exitUsage  = 64
	exitSignal = 130

	// firstBuild is the CPU time of a first build in seconds, measured on two cores.
	firstBuild = 1200

	// grace is how long the command may take to end after SIGTERM.
	grace = 30 * time.Second
)

func main() {
	if netns.MaybeInit(os.Args) {
		return
	}
	klog.SetLogger(logr.Discard()) // Kubernetes' client logs what it also returns
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx)
	interrupted := ctx.Err() != nil
	stop()
	var ended *exec.ExitError
	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "demo: ended by a signal")
		os.Exit(exitSignal)
	case errors.As(err, &ended) && ended.Exited():
		os.Exit(ended.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "demo: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	dir := flag.String("dir", "", "directory of the cluster, which demo makes and removes (default: one below the directory for temporary files)")
	slices := flag.Int("slices", 2, "number of slices")
	kind := flag.String("tpu-type", "v5litepod-16", "accelerator type of a slice")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: demo [flags] COMMAND [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(exitUsage)
	}
	pools, err := poolsOf(*kind, *slices)
	if err != nil {
		return err
	}
	if err := build(ctx); err != nil {
		return err
	}
	if *dir == "" {
		*dir, err = os.MkdirTemp("", "multihost-kube-")
	} else {
		err = os.Mkdir(*dir, 0o700)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(*dir)) }()

	began := time.Now()
	e, err := engine.Start(ctx, engine.Config{Dir: *dir, Pools: pools, Netns: netns.Ready() == nil, Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	fmt.Fprintf(os.Stderr, "demo: the cluster with %d slices of %s was ready after %.1f s\n", *slices, *kind, time.Since(began).Seconds())
	return command(ctx, e.Kubeconfig(), *dir, flag.Args())
}

// poolsOf returns the node pools of slices of a type.
func poolsOf(kind string, slices int) ([]kubelet.Pool, error) {
	t, err := tpu.ParseType(kind)
	if err != nil {
		return nil, err
	}
	nodes, err := tpu.NodesOf(t)
	if err != nil {
		return nil, err
	}
	return kubelet.Slices("demo", slices, nodes.Count, nodes.Machine.Chips, map[string]string{
		"cloud.google.com/gke-tpu-accelerator": nodes.Accelerator, "cloud.google.com/gke-tpu-topology": nodes.Topology,
	}), nil
}

// build builds the missing programs of the control plane. It prints how long the build takes or
// has taken.
func build(ctx context.Context) error {
	dir, err := parts.Dir()
	if err != nil {
		return err
	}
	programs, err := parts.Builder{Dir: dir, Log: &building{dir: dir}}.Build(ctx, parts.All()...)
	if err != nil {
		return err
	}
	text := "demo: the programs of the cluster are in " + dir
	if took, err := parts.TookOf(programs); err == nil { // there are no figures if somebody has copied the programs
		text += fmt.Sprintf("; their first build took %.0f s here, %.0f s of CPU time", took.Wall, took.CPU)
	}
	fmt.Fprintln(os.Stderr, text)
	return nil
}

// building shows the builder's messages. The builder writes only if it has to build. Before the
// first message, building prints how long a build takes.
type building struct {
	dir  string
	said bool
}

func (b *building) Write(text []byte) (int, error) {
	if !b.said {
		b.said = true
		fmt.Fprintf(os.Stderr, "demo: Kubernetes, JobSet and Kueue are built first, once: about %d s of CPU time; %s keeps the programs\n", firstBuild, b.dir)
	}
	return os.Stderr.Write(text)
}

// command runs the user's command in a process group of its own, so that the cluster outlives
// the command. If ctx ends, the group gets SIGTERM. dir is the directory of the cluster (see
// guard).
func command(ctx context.Context, kubeconfig, dir string, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	g, alive, err := guard(cmd.Process.Pid, dir)
	if err != nil {
		_ = cmd.Cancel() // it has just been started
		return errors.Join(err, cmd.Wait())
	}
	err = cmd.Wait()
	_ = g.Process.Kill() // before alive is closed, which would start the guard's work
	alive.Close()
	_ = g.Wait()                                        // it was killed
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually the group has no process left
	if err != nil {
		return fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// guard starts a process that cleans up if this process is killed. When alive is closed, the
// guard kills the process group and removes dir.
func guard(group int, dir string) (g *exec.Cmd, alive io.Closer, err error) {
	g = exec.Command("sh", "-c", `read -r line; kill -s KILL -- "-$0"; rm -rf "$1"`, strconv.Itoa(group), dir)
	g.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := g.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	return g, in, g.Start()
}
