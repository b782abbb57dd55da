package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/sim/worker"
)

// A pod is one pod on its node.
type pod struct {
	k          *Kubelet
	spec       corev1.Pod
	seen       metav1.Time // when the kubelet first saw the pod
	init, main []*containerRun

	ending  context.Context // done when the pod must end
	endNow  context.CancelFunc
	gone    context.Context // done when nobody needs to know about the pod any more
	abandon context.CancelFunc

	mu    sync.Mutex
	kill  time.Time // when to kill everything that still runs; zero if the pod need not end
	sped  chan struct{}
	first string // address of the first container
}

// A containerRun is one container of a pod, with its present process.
type containerRun struct {
	pod  *pod
	spec corev1.Container
	log  *logFile

	mu       sync.Mutex
	machine  worker.Machine // nil while none runs
	process  worker.Launched
	env      []string
	oom      bool
	restarts int32
	state    corev1.ContainerState
	last     corev1.ContainerState
	started  bool
}

func newPod(k *Kubelet, spec corev1.Pod) *pod {
	p := &pod{k: k, spec: spec, seen: metav1.NewTime(k.cfg.Now()), sped: make(chan struct{})}
	p.ending, p.endNow = context.WithCancel(k.ctx)
	p.gone, p.abandon = context.WithCancel(k.ctx)
	for _, c := range spec.Spec.InitContainers {
		p.init = append(p.init, p.container(c, "PodInitializing"))
	}
	reason := "ContainerCreating"
	if len(p.init) > 0 {
		reason = "PodInitializing"
	}
	for _, c := range spec.Spec.Containers {
		p.main = append(p.main, p.container(c, reason))
	}
	return p
}

func (p *pod) container(c corev1.Container, reason string) *containerRun {
	return &containerRun{
		pod: p, spec: c, log: newLogFile(filepath.Join(p.k.podDir(p.spec.UID), c.Name), p.k.cfg.Now),
		state: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
	}
}

// all returns the containers, init containers first.
func (p *pod) all() []*containerRun { return append(append([]*containerRun{}, p.init...), p.main...) }

// end makes the pod end within a grace period. A later call can only shorten the period.
func (p *pod) end(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now().Add(grace)
	if !p.kill.IsZero() && !at.Before(p.kill) {
		return
	}
	p.kill = at
	close(p.sped)
	p.sped = make(chan struct{})
	p.endNow()
}

// run runs the pod to its end. If the pod is deleted, run returns when it is gone.
func (p *pod) run() {
	defer p.k.forget(p)
	defer func() {
		for _, c := range p.all() {
			c.log.close()
		}
		_ = os.RemoveAll(p.k.podDir(p.spec.UID)) // the directory is the simulator's
	}()
	p.report()
	ok := true
	for _, c := range p.init {
		ok = ok && p.runInit(c)
	}
	if ok {
		p.runMain()
	}
	p.report()
	p.awaitDeletion()
}

// runInit runs an init container until it succeeds. It returns false if the pod must end
// first, or if the container may not run again.
func (p *pod) runInit(c *containerRun) bool {
	for {
		code, ran := c.run()
		switch {
		case code == 0 && ran:
			return true
		case p.ending.Err() != nil, p.spec.Spec.RestartPolicy == corev1.RestartPolicyNever:
			return false
		case !c.backOff():
			return false
		}
	}
}

// runMain runs the containers until none of them runs.
func (p *pod) runMain() {
	var all sync.WaitGroup
	for _, c := range p.main {
		all.Go(func() {
			for {
				code, _ := c.run()
				policy := p.spec.Spec.RestartPolicy
				again := policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
				if !again || p.ending.Err() != nil || !c.backOff() {
					return
				}
			}
		})
	}
	all.Wait()
}

// awaitDeletion waits until the pod is deleted, then removes it from the API.
func (p *pod) awaitDeletion() {
	select {
	case <-p.ending.Done():
	case <-p.gone.Done():
		return
	}
	if !p.k.mayEnd(p) {
		return
	}
	p.k.cfg.API.Remove(&p.spec)
}

// backOff waits before a restart. It returns false if the pod must end meanwhile.
func (c *containerRun) backOff() bool {
	c.mu.Lock()
	wait := time.Duration(0)
	if c.restarts > 0 {
		wait = min(c.pod.k.cfg.RestartDelay<<min(c.restarts-1, 5), 5*time.Minute)
	}
	c.restarts++
	c.last = c.state
	c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason:  "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)", max(wait, c.pod.k.cfg.RestartDelay), c.spec.Name, c.pod.spec.Name, c.pod.spec.Namespace, c.pod.spec.UID),
	}}
	c.mu.Unlock()
	c.pod.report()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.pod.ending.Done():
		return false
	}
}

// run runs the container once. ran is false if it did not start.
func (c *containerRun) run() (code int, ran bool) {
	if c.pod.ending.Err() != nil {
		return 137, false
	}
	began := c.pod.k.cfg.Now()
	machine, process, err := c.start()
	if err != nil {
		reason, code := "StartError", 128
		if errors.Is(err, os.ErrNotExist) {
			code = 127
		}
		c.terminated(code, reason, err.Error(), time.Unix(0, 0))
		c.pod.report()
		return code, false
	}
	c.log.start()
	c.mu.Lock()
	c.machine, c.process, c.started, c.oom = machine, process, true, false
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(began)}}
	c.mu.Unlock()
	c.pod.k.writeHosts()
	c.pod.report()

	var over sync.WaitGroup
	ended := make(chan struct{})
	over.Go(func() { c.stopWhenAsked(ended) })
	stdin, stdout, stderr := process.Streams()
	stdin.Close()
	over.Go(func() { c.log.copy("stdout", stdout) })
	if stderr != nil {
		over.Go(func() { c.log.copy("stderr", stderr) })
	}
	code = ExitCode(process.Wait())
	close(ended)
	message := c.message(machine)
	_ = machine.Stop(context.Background()) // kills the rest; fails only for processes stuck in the kernel
	over.Wait()
	c.log.end()
	if message == "" && code != 0 && c.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		message = c.log.tail(80, 2048)
	}
	reason := "Completed"
	c.mu.Lock()
	c.machine, c.process = nil, nil
	switch {
	case c.oom:
		reason = "OOMKilled"
	case code != 0:
		reason = "Error"
	}
	c.mu.Unlock()
	c.terminated(code, reason, message, began)
	c.pod.report()
	return code, true
}

// stopWhenAsked sends the process a signal when the pod must end, and kills everything
// after the grace period.
func (c *containerRun) stopWhenAsked(ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-c.pod.ending.Done():
	}
	c.mu.Lock()
	process := c.process
	c.mu.Unlock()
	if process == nil {
		return
	}
	_ = process.Signal(syscall.SIGTERM) // the process may have ended
	for {
		c.pod.mu.Lock()
		at, sped := c.pod.kill, c.pod.sped
		c.pod.mu.Unlock()
		t := time.NewTimer(time.Until(at))
		select {
		case <-t.C:
			_ = process.Signal(syscall.SIGKILL)
			return
		case <-sped:
			t.Stop()
		case <-c.pod.gone.Done():
			t.Stop()
			_ = process.Signal(syscall.SIGKILL)
			return
		case <-ended:
			t.Stop()
			return
		}
	}
}

// kill kills the process, if there is one.
func (c *containerRun) kill(oom bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		c.oom = oom
		_ = c.process.Signal(syscall.SIGKILL) // the process may have ended
	}
}

// directory returns a directory for the container's next machine. The last part of its path
// is unique.
func (c *containerRun) directory() string {
	return filepath.Join(c.pod.k.podDir(c.pod.spec.UID), fmt.Sprintf("%s-%s-%d", c.pod.spec.UID, c.spec.Name, c.restarts))
}

// start starts the machine and the command of the container.
func (c *containerRun) start() (worker.Machine, worker.Launched, error) {
	argv := append(append([]string{}, c.spec.Command...), c.spec.Args...)
	if len(c.spec.Command) == 0 {
		return nil, nil, errors.New("failed to create containerd task: failed to create shim task: OCI runtime create failed: no command specified")
	}
	ip, err := c.pod.k.claim()
	if err != nil {
		return nil, nil, err
	}
	machine, err := c.pod.k.cfg.Backend.Start(c.pod.k.ctx, worker.Spec{
		Name: c.pod.spec.Name, Node: string(c.pod.spec.UID), NodeUID: string(c.pod.spec.UID), Hostname: hostname(&c.pod.spec),
		Root: c.directory(), MTU: 8896, Devices: devices(&c.spec), IP: ip, Network: "pods",
	})
	if err != nil {
		return nil, nil, err
	}
	address := c.pod.addressOf(machine)
	env := environment(&c.pod.spec, &c.spec, address)
	for i, a := range argv {
		argv[i] = expand(a, env)
	}
	dir, err := c.prepare(machine)
	launcher, ok := machine.(worker.Launcher)
	if err == nil && !ok {
		err = errors.New("these workers start no programs")
	}
	var process worker.Launched
	if err == nil {
		process, err = launcher.Launch(worker.Program{File: c.pod.k.cfg.Programs[path.Base(argv[0])], Argv: argv, Env: env, Dir: dir})
	}
	if err != nil {
		err = fmt.Errorf("failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: %w", err)
		return nil, nil, errors.Join(err, machine.Stop(context.Background()))
	}
	c.mu.Lock()
	c.env = env
	c.mu.Unlock()
	return machine, process, nil
}

// addressOf returns the address of the pod, which is that of its first machine.
func (p *pod) addressOf(m worker.Machine) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == "" {
		p.first = m.Addr()
		if inner, ok := m.(worker.Internal); ok {
			p.first = inner.InternalAddr()
		}
	}
	return p.first
}

// maxMessage is the greatest length of a termination message, in bytes.
const maxMessage = 4096

// prepare makes what the container needs: the file for the termination message, the
// directories for volumes, and the files of the image. It returns the directory in which
// the command starts.
func (c *containerRun) prepare(m worker.Machine) (dir string, err error) {
	root, ok := m.(worker.Rooted)
	if !ok {
		return "", errors.New("the files of these workers cannot be reached")
	}
	for _, v := range c.spec.VolumeMounts {
		if err := os.MkdirAll(filepath.Join(root.Root(), v.MountPath), 0o777); err != nil {
			return "", err
		}
	}
	file := filepath.Join(root.Root(), c.spec.TerminationMessagePath)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return "", err
	}
	if read := c.pod.k.cfg.Image; read != nil {
		if dir, err = read(c.spec.Image, root.Root()); err != nil {
			return "", err
		}
		if _, alone := m.(worker.Internal); !alone && dir != "" {
			dir = filepath.Join(root.Root(), dir) // such machines see the files of this one
		}
	}
	return cmp.Or(c.spec.WorkingDir, dir), nil
}

// message reads the termination message, while the machine still runs.
func (c *containerRun) message(m worker.Machine) string {
	b, err := os.ReadFile(filepath.Join(m.(worker.Rooted).Root(), c.spec.TerminationMessagePath))
	if err != nil {
		return "" // the program has removed the file
	}
	return string(b[:min(len(b), maxMessage)])
}

// terminated records the end of the container.
func (c *containerRun) terminated(code int, reason, message string, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, Message: message,
		StartedAt: metav1.NewTime(began), FinishedAt: metav1.NewTime(c.pod.k.cfg.Now()), ContainerID: "containerd://" + string(c.pod.spec.UID) + "-" + c.spec.Name,
	}}
}

// report writes the status of the pod while somebody needs it.
func (p *pod) report() {
	if p.gone.Err() != nil {
		return
	}
	p.k.cfg.API.Update(&p.spec, p.status)
}
