// Package kubelet runs the pods of a simulated cluster as processes of simulated workers.
// Each container is a machine of a worker.Backend, and its command is the machine's first
// program. When that program ends, everything on the machine ends, as in a container.
//
// Of an image, there are only the files that Config.Image writes: a container without a
// command fails like an image without a command. Volumes and probes do nothing.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"multihost/internal/fault"
	"multihost/internal/sim/worker"
)

// An API is where a kubelet writes the states of its pods. Both methods find the pod by its
// UID. They give up only if the pod has gone or the kubelet is closing.
type API interface {
	// Update changes the status of a pod. change gets the present object. Update may call
	// change several times, even after its return. A later Update replaces an earlier one
	// that has not succeeded yet.
	Update(pod *corev1.Pod, change func(now *corev1.Pod))

	// Remove removes a deleted pod whose containers have ended, after it has written the
	// last Update.
	Remove(pod *corev1.Pod)
}

// Config configures a kubelet.
type Config struct {
	API     API
	Backend worker.Backend
	Dir     string // directory for logs
	Now     func() time.Time

	// Programs has files of programs that images may have and this machine lacks, by the
	// name of the program.
	Programs map[string]string

	// Image writes the files of an image below the root of a machine. It returns the
	// directory in which the image starts programs; "" means the home of root. Nil: images
	// are not read.
	Image func(image, root string) (dir string, err error)

	// RestartDelay is how long a container waits before its second restart. Each further
	// restart doubles it. 0 means 10 s, as in a real cluster.
	RestartDelay time.Duration
}

// A Kubelet runs the pods of all nodes of a cluster, of which See tells it. Its methods are
// safe for concurrent use.
type Kubelet struct {
	cfg     Config
	ctx     context.Context // ends when the kubelet closes
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	pods   map[types.UID]*pod
	hosts  sync.Mutex    // held by the one writer of names
	given  uint32        // number of addresses given to machines
	hold   string        // deleted pods whose name matches this pattern stay in Terminating
	held   chan struct{} // closed when hold changes
	closed bool
}

// New returns a kubelet. The caller closes it.
func New(cfg Config) *Kubelet {
	cfg.RestartDelay = cmp.Or(cfg.RestartDelay, 10*time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	// Clusters with the same backend must not have the same addresses, so each begins with
	// a random one.
	return &Kubelet{cfg: cfg, ctx: ctx, cancel: cancel, pods: make(map[types.UID]*pod), held: make(chan struct{}), given: rand.Uint32N(1<<12) << 8}
}

// See handles a new state of a pod. decode decodes the whole pod. gone says that the API
// does not have the pod any more. The caller must report the states of a pod in their
// order.
func (k *Kubelet) See(o metav1.Object, decode func(*corev1.Pod) error, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[o.GetUID()]
	if p == nil {
		if gone || k.closed {
			return
		}
		var spec corev1.Pod
		if decode(&spec) != nil || spec.Spec.NodeName == "" {
			return
		}
		grace := spec.DeletionGracePeriodSeconds
		switch {
		case grace != nil && *grace > 0:
			k.running.Go(func() { k.cfg.API.Remove(&spec) }) // no process of the pod runs
			return
		case spec.DeletionTimestamp != nil, spec.Status.Phase == corev1.PodSucceeded, spec.Status.Phase == corev1.PodFailed:
			return // with a grace period of 0, a finalizer keeps the pod, not the kubelet
		}
		p = newPod(k, spec)
		k.pods[spec.UID] = p
		k.running.Go(p.run)
	}
	if gone {
		p.end(0)
		return
	}
	if at := o.GetDeletionTimestamp(); at != nil {
		grace := int64(0)
		if g := o.GetDeletionGracePeriodSeconds(); g != nil {
			grace = *g
		}
		p.end(time.Duration(grace) * time.Second)
	}
}

// forget removes the record of a pod.
func (k *Kubelet) forget(p *pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, p.spec.UID)
}

// find returns the pod of that name that runs or has run. If an earlier pod of the name has
// not ended yet, find returns the later one.
func (k *Kubelet) find(namespace, name string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var last *pod
	for _, p := range k.pods {
		if p.spec.Namespace == namespace && p.spec.Name == name && (last == nil || last.seen.Before(&p.seen)) {
			last = p
		}
	}
	return last
}

// Pod returns the pod of that name that runs or has run, as the kubelet first saw it, or
// nil. The caller must not change it.
func (k *Kubelet) Pod(namespace, name string) *corev1.Pod {
	if p := k.find(namespace, name); p != nil {
		return &p.spec
	}
	return nil
}

// Close kills all pods and waits until nothing of them is left.
func (k *Kubelet) Close() error {
	k.mu.Lock()
	k.closed = true
	pods := k.pods
	for _, p := range pods {
		p.abandon()
	}
	k.mu.Unlock()
	k.cancel()
	k.running.Wait()
	return nil
}

// Kill kills process 1 of every container of a pod. See kubeapi.Server.Kill.
func (k *Kubelet) Kill(namespace, name string, oom bool) error {
	p := k.find(namespace, name)
	if p == nil {
		return fmt.Errorf("kill pod %q: no such pod runs", namespace+"/"+name)
	}
	for _, c := range p.all() {
		c.kill(oom)
	}
	return nil
}

// Lose ends the pods of a node as if its machine had gone: nobody learns of their end.
func (k *Kubelet) Lose(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.spec.Spec.NodeName == node {
			p.abandon()
		}
	}
}

// Hold keeps deleted pods in Terminating if their name matches a pattern. See
// kubeapi.Server.Hold.
func (k *Kubelet) Hold(pattern string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold = pattern
	close(k.held)
	k.held = make(chan struct{})
}

// mayEnd waits until no fault keeps a pod in Terminating. It returns false if the pod is
// given up before that.
func (k *Kubelet) mayEnd(p *pod) bool {
	for {
		k.mu.Lock()
		match, _ := path.Match(k.hold, p.spec.Name)
		changed := k.held
		k.mu.Unlock()
		if !match {
			return true
		}
		select {
		case <-changed:
		case <-p.gone.Done():
			return false
		}
	}
}

// ErrNoContainer says that Exec has found no running container for the program.
var ErrNoContainer = fault.New(fault.Unavailable, "container not found")

// Exec starts a program in a container of a running pod. If there is no such container, the
// error matches [ErrNoContainer].
func (k *Kubelet) Exec(pod *corev1.Pod, container string, argv []string, tty bool) (worker.Launched, error) {
	missing := fmt.Errorf("%w (%q)", ErrNoContainer, container)
	k.mu.Lock()
	p := k.pods[pod.UID]
	k.mu.Unlock()
	if p == nil {
		return nil, missing
	}
	i := slices.IndexFunc(p.all(), func(c *containerRun) bool { return c.spec.Name == container })
	if i < 0 {
		return nil, missing
	}
	c := p.all()[i]
	c.mu.Lock()
	machine, env := c.machine, c.env
	c.mu.Unlock()
	launcher, ok := machine.(worker.Launcher)
	if !ok {
		return nil, missing
	}
	l, err := launcher.Launch(worker.Program{File: k.cfg.Programs[path.Base(argv[0])], Argv: argv, Env: env, Dir: c.spec.WorkingDir, Terminal: tty})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: unable to start container process: %w", err)
	}
	return l, err
}

// writeHosts writes the names and addresses of all pods to all machines that have a file
// for them. In a real cluster, a name server does this.
func (k *Kubelet) writeHosts() {
	if _, ok := k.cfg.Backend.(worker.Claimer); !ok {
		return
	}
	k.hosts.Lock()
	defer k.hosts.Unlock()
	k.mu.Lock()
	pods := slices.Collect(maps.Values(k.pods))
	k.mu.Unlock()
	text := "127.0.0.1\tlocalhost\n"
	for _, p := range pods {
		p.mu.Lock()
		address := p.first
		p.mu.Unlock()
		if address == "" {
			continue
		}
		name := hostname(&p.spec)
		if sub := p.spec.Spec.Subdomain; sub != "" {
			full := name + "." + sub
			name = fmt.Sprintf("%s.%s.svc.cluster.local %s", full, p.spec.Namespace, full)
		}
		text += address + "\t" + name + "\n"
	}
	for _, p := range pods {
		for _, c := range p.all() {
			c.mu.Lock()
			if root, ok := c.machine.(worker.Rooted); ok {
				_ = os.WriteFile(filepath.Join(root.Root(), "etc/hosts"), []byte(text), 0o644) // the only possible error: the machine is gone
			}
			c.mu.Unlock()
		}
	}
}

// claim returns a new address in the network of the pods, 10.192.0.0/12, or "" if the
// backend gives addresses.
func (k *Kubelet) claim() (string, error) {
	claimer, ok := k.cfg.Backend.(worker.Claimer)
	if !ok {
		return "", nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for range 1 << 16 {
		k.given++
		n := 10<<24 | 192<<16 | k.given&(1<<20-1)
		if last := byte(n); last < 2 || last == 255 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		if claimer.Claim(addr) {
			return addr.String(), nil
		}
	}
	return "", errors.New("no address is free")
}

// ExitCode returns the exit code that a container runtime reports for a process.
func ExitCode(st syscall.WaitStatus) int {
	if st.Signaled() {
		return 128 + int(st.Signal())
	}
	return st.ExitStatus()
}

func (k *Kubelet) podDir(uid types.UID) string { return filepath.Join(k.cfg.Dir, string(uid)) }
