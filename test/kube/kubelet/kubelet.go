// Package kubelet is a small kubelet for a real Kubernetes control plane on one machine. It
// stands for all nodes of a GKE cluster with TPU slices. Pods run as they do in the
// simulator: each container is a simulated worker.
//
// It also does what GKE adds to a cluster: a webhook gives the containers of Jobs the
// variables of GKE's webhook and device plugin, and nodes have labels, chips and a taint.
//
// One HTTPS server serves the logs and the commands of all pods. It trusts a client that
// shows a certificate of the cluster's CA.
package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"multihost/internal/sim/kubeapi/gkenode"
	pods "multihost/internal/sim/kubeapi/kubelet"
	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
)

// A Node describes a node.
type Node = gkenode.Node

// A Pool is a node pool, which is one slice.
type Pool struct {
	Name  string
	Nodes []Node
}

// Slices returns the pools of the slices of a cluster: NAME-np-0 with the nodes
// gke-NAME-np-0-0 and so on. labels are the labels of all nodes.
func Slices(name string, slices, nodes, chips int, labels map[string]string) []Pool {
	var all []Pool
	for s := range slices {
		p := Pool{Name: fmt.Sprintf("%s-np-%d", name, s)}
		for n := range nodes {
			p.Nodes = append(p.Nodes, Node{Name: fmt.Sprintf("gke-%s-%d", p.Name, n), Labels: labels, Chips: chips})
		}
		all = append(all, p)
	}
	return all
}

// Config configures a kubelet.
type Config struct {
	// API is a client of the API server with all rights.
	API *rest.Config

	// TLS has the certificate of the HTTPS server for the address 127.0.0.1. Its ClientCAs has
	// the CA of the API server's client certificate.
	TLS *tls.Config

	// CA has the certificates in PEM with which the API server verifies the HTTPS server when
	// it calls the webhook.
	CA []byte

	Dir   string // private directory; it is created if it is missing
	Pools []Pool

	// Netns makes a network namespace for each container. Pods then have addresses and know
	// each other by name. It needs root, and main must call netns.MaybeInit. Otherwise
	// containers are processes with addresses of 127.0.0.0/8, which endpoints of a Service
	// cannot have, and pods have no names.
	Netns bool

	// Programs has the files of programs that images have and this machine lacks, by program
	// name.
	Programs map[string]string

	Log *log.Logger // for errors of the API; nil: no log
}

// A Kubelet stands for all nodes of a cluster. Its methods are safe for concurrent use.
type Kubelet struct {
	cfg     Config
	client  dynamic.Interface
	backend worker.Backend
	pods    *pods.Kubelet
	states  *states
	ln      net.Listener
	http    *http.Server

	ctx     context.Context // ends when the kubelet closes
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]string // pool by node
	closed bool
}

var (
	podsGVR     = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodesGVR    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	leasesGVR   = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	jobsGVR     = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	webhooksGVR = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
)

// manager is the field manager of the kubelet's objects.
const manager = "kubelet"

// New returns a kubelet that listens, but has no nodes yet. The caller closes it.
func New(cfg Config) (*Kubelet, error) {
	k, err := newKubelet(cfg)
	if err != nil {
		return nil, fmt.Errorf("make kubelet: %w", err)
	}
	return k, nil
}

func newKubelet(cfg Config) (*Kubelet, error) {
	if cfg.Log == nil {
		cfg.Log = log.New(io.Discard, "", 0)
	}
	api := rest.CopyConfig(cfg.API)
	api.QPS = -1 // the nodes of a real cluster have a limit each
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	k := &Kubelet{cfg: cfg, client: client, nodes: make(map[string]string)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	if k.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if k.backend, err = newBackend(cfg); err != nil {
		return nil, errors.Join(err, k.ln.Close())
	}
	k.states = &states{ctx: k.ctx, client: client, log: cfg.Log, running: &k.running, due: make(map[podUID]*due)}
	k.pods = pods.New(pods.Config{API: k.states, Backend: k.backend, Dir: filepath.Join(cfg.Dir, "logs"), Programs: cfg.Programs, Now: time.Now})
	own := cfg.TLS.Clone()
	own.ClientAuth = tls.VerifyClientCertIfGiven // the caller of the webhook shows none
	k.http = &http.Server{
		Handler: k.handler(), TLSConfig: own, ReadHeaderTimeout: 30 * time.Second, ErrorLog: cfg.Log,
		BaseContext: func(net.Listener) context.Context { return k.ctx },
	}
	k.running.Go(func() { _ = k.http.ServeTLS(k.ln, "", "") }) // ends with ErrServerClosed
	return k, nil
}

func newBackend(cfg Config) (worker.Backend, error) {
	root := filepath.Join(cfg.Dir, "pods")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if cfg.Netns {
		return netns.New(netns.Config{Root: root})
	}
	return worker.NewProcess(worker.ProcessConfig{Root: root})
}

// Start makes the nodes and the webhook, then runs pods until Close. When it returns, the
// API has all of them.
func (k *Kubelet) Start(ctx context.Context) error {
	if err := k.register(ctx); err != nil {
		return fmt.Errorf("start kubelet: webhook: %w", err)
	}
	for _, p := range k.cfg.Pools {
		if err := k.SetPool(ctx, p.Name, p.Nodes); err != nil {
			return fmt.Errorf("start kubelet: %w", err)
		}
	}
	k.running.Go(k.watch)
	k.running.Go(k.beat)
	return nil
}

// Close kills all pods and waits until nothing of them is left. The objects in the API
// stay.
func (k *Kubelet) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.cancel()
	errs := []error{k.http.Close(), k.pods.Close()}
	k.running.Wait()
	return errors.Join(append(errs, k.backend.Close())...)
}

// Kill kills process 1 of every container of a pod.
func (k *Kubelet) Kill(namespace, pod string) error { return k.pods.Kill(namespace, pod, false) }

// Hold keeps deleted pods in Terminating if their name matches a pattern (path.Match). An
// empty pattern ends this.
func (k *Kubelet) Hold(pattern string) { k.pods.Hold(pattern) }

// SetPool replaces the nodes of a pool. It removes nodes that are not in the list any more,
// see [Kubelet.RemoveNode].
func (k *Kubelet) SetPool(ctx context.Context, pool string, nodes []Node) error {
	k.mu.Lock()
	var surplus []string
	have := make(map[string]bool)
	for name, of := range k.nodes {
		have[name] = true
		if of == pool && !slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == name }) {
			surplus = append(surplus, name)
		}
	}
	k.mu.Unlock()
	for _, name := range surplus {
		if err := k.RemoveNode(ctx, name); err != nil {
			return err
		}
	}
	return k.addNodes(ctx, pool, slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return have[n.Name] }))
}

// enter counts a request that Close must wait for. It returns false if the kubelet is
// closing. Otherwise the caller calls running.Done at the end.
func (k *Kubelet) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.running.Add(1)
	}
	return !k.closed
}

// has reports whether the kubelet stands for a node.
func (k *Kubelet) has(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.nodes[node]
	return ok
}

// pause waits before the next try. It returns false if ctx ends before that.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
