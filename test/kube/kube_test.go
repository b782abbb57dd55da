// The tests of this directory run on a Kubernetes cluster with a real control plane (see
// package engine). They share one cluster, so they run one after another.
package kube_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"multihost/internal/sim/netns"
	"multihost/internal/testkit"
	"multihost/internal/testkit/kubecontract"
	"multihost/test/kube/engine"
	"multihost/test/kube/kubelet"
)

// shared is the cluster of all tests.
var shared struct {
	once sync.Once
	dir  string
	e    *engine.Engine
	err  error
}

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	defer func() {
		if shared.e != nil {
			if err := shared.e.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "close the cluster:", err)
				code = 1
			}
		}
		if code == 0 {
			_ = os.RemoveAll(shared.dir) // a directory below that of temporary files remains at worst
		} else if shared.dir != "" {
			fmt.Fprintln(os.Stderr, "logs of the cluster:", filepath.Join(shared.dir, "logs"))
		}
	}()
	return m.Run()
}

// rootless is why a test that needs names of pods is skipped.
const rootless = "without root, pods share the names of this machine"

// cluster returns the cluster of all tests.
func cluster(t *testing.T) *engine.Engine {
	t.Helper()
	shared.once.Do(func() {
		shared.dir, shared.err = os.MkdirTemp("", "multihost-kube-")
		if shared.err != nil {
			return
		}
		// The images of workloads have the agent.
		agent := filepath.Join(shared.dir, "multihost-agent")
		build := exec.Command("go", "build", "-C", "../..", "-o", agent, "./cmd/multihost-agent")
		build.Stderr = os.Stderr
		if shared.err = build.Run(); shared.err != nil {
			return
		}
		start := time.Now()
		shared.e, shared.err = engine.Start(context.WithoutCancel(t.Context()), engine.Config{
			Dir: shared.dir, Netns: netns.Ready() == nil, Log: os.Stderr,
			Programs: map[string]string{"multihost-agent": agent},
			Pools:    kubelet.Slices("w", 2, 4, 4, kubecontract.SliceLabels),
		})
		t.Logf("the cluster was ready after %v", time.Since(start))
	})
	testkit.Must(t, shared.err)
	return shared.e
}

// TestContract runs the tests that the simulator's clusters also pass.
func TestContract(t *testing.T) {
	e := cluster(t)
	c := kubecontract.Cluster{
		Config: e.Config(), Hold: e.Kubelet.Hold, Kill: e.Kubelet.Kill,
		SetAway: func(away bool) error {
			if away {
				e.KillAPI()
				return nil
			}
			return e.StartAPI(t.Context())
		},
	}
	if netns.Ready() != nil {
		c.NoNames = rootless
	}
	kubecontract.Run(t, c)
	for part, bytes := range e.Memory() {
		t.Logf("%s has %d MB of memory", part, bytes>>20)
	}
}
