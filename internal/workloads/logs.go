package workloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/agent/pod"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// LogOptions choose the output of one worker.
type LogOptions struct {
	Worker    tpu.WorkerID
	Container string // "": the first container
	Follow    bool   // wait for a pod, and then for more output until the container has ended
}

// Logs writes the output of a worker in the newest attempt. With Follow, if the pod has the agent
// and still runs, Logs writes the exact bytes of the command, even if a connection breaks.
// Otherwise Logs writes the output that the node keeps. The node may have dropped the beginning.
func (c *Cluster) Logs(ctx context.Context, name string, o LogOptions, w io.Writer) error {
	js, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	p, err := c.newest(ctx, js, o)
	if err != nil {
		return err
	}
	container := containerOf(p, o.Container)
	if container == nil {
		return &AbsentError{Text: fmt.Sprintf("pod %s has no container %q", p.Name, o.Container), Advice: "leave out --container", kind: fault.Unavailable}
	}
	return c.output(ctx, p, container, o.Follow, w)
}

// output writes the output of a container. With follow, it continues until the container has
// ended.
func (c *Cluster) output(ctx context.Context, p *corev1.Pod, container *corev1.Container, follow bool, w io.Writer) error {
	if follow && hasAgent(container) {
		out, err := newCounted(w)
		if err != nil {
			return err
		}
		if p.Status.Phase == corev1.PodRunning {
			return c.tail(ctx, p, container, out)
		}
		return c.rest(ctx, p, container.Name, out)
	}
	r, err := c.Client.Logs(ctx, p.Namespace, p.Name, kube.LogOptions{Container: container.Name, Follow: follow})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// errFound ends a watch.
var errFound = errors.New("found")

// newest returns the newest pod of a worker. With Follow it waits until a pod's command has
// started or the workload has ended.
func (c *Cluster) newest(ctx context.Context, js *jobset.JobSet, o LogOptions) (*corev1.Pod, error) {
	absent := &AbsentError{Text: fmt.Sprintf("workload %q has no pod for %s", js.Name, o.Worker), Advice: "why, says: " + c.command("workload", "status", js.Name), kind: fault.Unavailable}
	if count, workers, _ := workload.Shape(js); o.Worker.Slice >= count || o.Worker.Worker >= workers {
		return nil, absent
	}
	pods, err := c.pods(ctx, js.Name)
	if err != nil {
		return nil, err
	}
	found := newestOf(pods, o.Worker)
	switch {
	case found != nil && (!o.Follow || begun(found)):
		return found, nil
	case !o.Follow:
		return nil, absent
	}
	event.Notef(c.Sink, event.Info, absent.Advice, "waiting for %s", o.Worker)
	switch found, err = c.awaitPod(ctx, js, o.Worker); {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, absent
	}
	return found, nil
}

// awaitPod waits until the command has started in a pod of a worker. If the workload ends or is
// deleted before, awaitPod returns nil.
func (c *Cluster) awaitPod(ctx context.Context, js *jobset.JobSet, worker tpu.WorkerID) (found *corev1.Pod, err error) {
	watching, stop := context.WithCancelCause(ctx)
	var owned sync.WaitGroup
	defer owned.Wait()
	defer stop(nil)
	owned.Go(func() { stop(c.finished(watching, js)) })
	err = kube.Pods.In(c.Client, "").Watch(watching, kube.WatchOptions{ListOptions: podsOf(js.Name), Away: c.outage("pods", "")}, func(change kube.Change[corev1.Pod]) error {
		if change.Object == nil || change.Gone || !begun(change.Object) {
			return nil
		}
		if p, ok := workload.PodOf(change.Object); ok && p.Worker == worker {
			found = change.Object
			return errFound
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return found, nil
	case !errors.Is(context.Cause(watching), errGone):
		return nil, err
	}
	// The watch of pods may be behind that of the JobSet.
	pods, err := c.pods(ctx, js.Name)
	if p := newestOf(pods, worker); p != nil && begun(p) {
		found = p
	}
	return found, err
}

// begun reports whether a container of the pod has started.
func begun(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func newestOf(pods []corev1.Pod, worker tpu.WorkerID) (newest *corev1.Pod) {
	for i := range pods {
		p, ok := workload.PodOf(&pods[i])
		if !ok || p.Worker != worker {
			continue
		}
		if newest == nil || !pods[i].CreationTimestamp.Time.Before(newest.CreationTimestamp.Time) {
			newest = &pods[i]
		}
	}
	return newest
}

func containerOf(p *corev1.Pod, name string) *corev1.Container {
	for i := range p.Spec.Containers {
		if name == "" || p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i]
		}
	}
	return nil
}

func hasAgent(c *corev1.Container) bool {
	return len(c.Command) > 1 && strings.HasSuffix(c.Command[0], workload.AgentFile) && c.Command[1] == "pod"
}

// againAfter is how long tail waits before it reconnects.
const againAfter = time.Second

// tail writes the exact output of a running container. After a broken connection it continues
// behind the last byte. At the end it tells the agent that all bytes have arrived. The agent
// waits for that before it ends.
func (c *Cluster) tail(ctx context.Context, p *corev1.Pod, container *corev1.Container, out *counted) error {
	agent := append(slices.Clone(container.Command[:1]), "pod")
	for {
		var problem bytes.Buffer
		code, err := c.exec(ctx, p, container.Name, append(slices.Clone(agent), "tail", strconv.FormatInt(out.n, 10)), out, &problem)
		switch {
		case out.err != nil:
			return out.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && code == 0:
			// An error does no harm: without the ack the agent ends a little later.
			_, err := c.exec(ctx, p, container.Name, append(slices.Clone(agent), "ack", strconv.FormatInt(out.n, 10)), io.Discard, io.Discard)
			if err != nil {
				event.Notef(c.Sink, event.Debug, "", "cannot tell pod %s that its output has arrived: %v", p.Name, err)
			}
			return nil
		case err == nil && problem.Len() > 0:
			return &AbsentError{Text: fmt.Sprintf("cannot read the output of pod %s behind byte %d: %s", p.Name, out.n, strings.TrimSpace(problem.String())), kind: fault.Unavailable}
		case fault.Of(err) == fault.Permission:
			return err
		}
		if !unreachable(err) {
			if now, over := c.over(ctx, p); over {
				return c.rest(ctx, now, container.Name, out)
			}
		}
		event.Notef(c.Sink, event.Debug, "", "reading pod %s again from byte %d: %v", p.Name, out.n, err)
		if err := wait(ctx, againAfter); err != nil {
			return err
		}
	}
}

// unreachable reports whether a connection broke or was refused. Because that may be an outage,
// tail then does not ask whether the pod has ended.
func unreachable(err error) bool {
	var network net.Error
	return errors.Is(err, kube.ErrCut) || errors.As(err, &network)
}

// over reports whether the pod has ended. now is the pod's present state, or nil if the pod is
// gone.
func (c *Cluster) over(ctx context.Context, p *corev1.Pod) (now *corev1.Pod, over bool) {
	now, err := kube.Pods.In(c.Client, p.Namespace).Get(ctx, p.Name)
	switch {
	case kube.NotFound(err) || err == nil && now.UID != p.UID:
		return nil, true
	case err != nil: // the cluster does not answer
		return nil, false
	}
	return now, now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded
}

// rest completes the output of an ended pod from the log that the node keeps. The node may have
// dropped the beginning. Therefore rest uses the log only if it begins with the bytes that out
// has. The hash that the agent reported proves that the output is complete.
func (c *Cluster) rest(ctx context.Context, p *corev1.Pod, container string, out *counted) error {
	incomplete := func(why string) error {
		return &AbsentError{Text: fmt.Sprintf("the output is not complete behind byte %d: the pod has ended, and %s", out.n, why), kind: fault.Unavailable}
	}
	if p == nil {
		return incomplete("it is gone")
	}
	r, err := c.Client.Logs(ctx, p.Namespace, p.Name, kube.LogOptions{Container: container})
	if err != nil {
		return err
	}
	defer r.Close()
	before := sha256.New()
	if _, err := io.CopyN(before, r, out.n); err != nil || !bytes.Equal(before.Sum(nil), out.sum()) {
		return incomplete("its node keeps other bytes")
	}
	if _, err := io.Copy(out, r); err != nil {
		return err
	}
	end, told := endOf(p, container)
	switch {
	case !told:
		return incomplete("it did not tell how much there was")
	case hex.EncodeToString(out.sum()) != end.SHA256:
		return incomplete(fmt.Sprintf("its node does not keep all of %d bytes", end.Length))
	}
	return nil
}

// endOf returns what the agent reported of an ended container.
func endOf(p *corev1.Pod, container string) (pod.End, bool) {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container && s.State.Terminated != nil {
			return pod.ParseEnd(s.State.Terminated.Message)
		}
	}
	return pod.End{}, false
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// exec runs a command in a container and waits for its end.
func (c *Cluster) exec(ctx context.Context, p *corev1.Pod, container string, command []string, stdout, stderr io.Writer) (int, error) {
	s, err := c.Client.Exec(ctx, kube.ExecRequest{Namespace: p.Namespace, Pod: p.Name, Container: container, Command: command})
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	defer s.Close()
	return s.Receive(stdout, stderr)
}

// A counted counts and hashes the bytes that a writer has taken.
type counted struct {
	w    io.Writer
	n    int64
	err  error
	hash hash.Hash // hash of what it took
}

// newCounted returns a counted for w. If w is a Holder, the counted starts with the bytes that w
// holds.
func newCounted(w io.Writer) (*counted, error) {
	c := &counted{w: w, hash: sha256.New()}
	h, ok := w.(Holder)
	if !ok {
		return c, nil
	}
	held, err := h.Held()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	c.n, err = io.Copy(c.hash, held)
	return c, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.hash.Write(p[:n])
	c.err = err
	return n, err
}

func (c *counted) sum() []byte { return c.hash.Sum(nil) }
