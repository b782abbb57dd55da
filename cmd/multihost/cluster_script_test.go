package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"multihost/internal/agent/program"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// clusters holds the cluster of each script, by the script's working directory.
var clusters registry[*kubeapi.Server]

// scriptKube starts a cluster with a node pool for each slice. Afterwards KUBECONFIG names
// a file whose context sim is this cluster.
func scriptKube(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	work := ts.Getenv("WORK")
	dir := filepath.Join(work, "cluster")
	ts.Check(os.MkdirAll(dir, 0o700))
	built, err := program.In(os.DirFS(ts.Getenv("AGENT_DIR"))).For(runtime.GOARCH)
	ts.Check(err)
	text, err := built.Unpack()
	ts.Check(err)
	agent := filepath.Join(dir, "multihost-agent")
	ts.Check(os.WriteFile(agent, text, 0o700))
	s, err := kubeapi.New(kubeapi.Config{Dir: dir, Programs: map[string]string{"multihost-agent": agent}})
	ts.Check(err)
	ts.Defer(func() { ts.Check(s.Close()) })
	pool := 0
	for _, arg := range args {
		text, name, _ := strings.Cut(arg, "x")
		count, err := strconv.Atoi(text)
		ts.Check(err)
		for range count {
			all, err := nodesOf(name)
			ts.Check(err)
			for i := range all {
				all[i].Name = fmt.Sprintf("node-%d-%d", pool, i)
			}
			ts.Check(s.SetPool(fmt.Sprintf("np-%d", pool), all))
			pool++
		}
	}
	file := filepath.Join(work, "kubeconfig")
	ts.Check(s.WriteKubeconfig(file, "token"))
	ts.Setenv("KUBECONFIG", file)
	clusters.put(work, s)
}

// nodesOf returns the nodes of a slice, or the one node of the pool gpu or cpu.
func nodesOf(name string) ([]kubeapi.Node, error) {
	switch name {
	case "gpu":
		return []kubeapi.Node{{GPUs: 8, Labels: map[string]string{"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}}}, nil
	case "cpu":
		return []kubeapi.Node{{}}, nil
	}
	t, err := tpu.ParseType(name)
	if err != nil {
		return nil, err
	}
	nodes, err := tpu.NodesOf(t)
	all := make([]kubeapi.Node, nodes.Count)
	for i := range all {
		all[i] = kubeapi.Node{Chips: nodes.Machine.Chips,
			Labels: map[string]string{"cloud.google.com/gke-tpu-accelerator": nodes.Accelerator, "cloud.google.com/gke-tpu-topology": nodes.Topology}}
	}
	return all, err
}

// scriptKubeFault sets a fault on the cluster: cut, away, back, kill the pods whose names
// begin with a word, or hold those that match a pattern.
func scriptKubeFault(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	s := clusters.get(ts.Getenv("WORK"))
	switch args[0] {
	case "cut":
		s.CutExecs()
	case "away", "back":
		ts.Check(s.SetAway(args[0] == "away"))
	case "kill":
		pods, _ := s.Objects().List(store.Pods, "default")
		for _, pod := range pods {
			if strings.HasPrefix(pod.GetName(), args[1]) {
				ts.Check(s.Kill("default", pod.GetName(), false))
			}
		}
	case "hold": // pods whose names match stay in Terminating; without a pattern, no pod is held any more
		s.Hold(strings.Join(args[1:], ""))
	default:
		ts.Fatalf("unknown fault %q", args[0])
	}
}

// scriptCompleted waits until a JobSet is complete.
func scriptCompleted(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	objects := clusters.get(ts.Getenv("WORK")).Objects()
	if !testkit.Await(scriptWait, func() bool {
		js, err := objects.Get(store.JobSets, "default", args[0])
		if err != nil {
			return false
		}
		state, _, _ := unstructured.NestedString(js.Object, "status", "terminalState")
		return state == "Completed"
	}) {
		ts.Fatalf("JobSet %s is not complete", args[0])
	}
}
