package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status fills in the status of a pod from the states of its containers.
func (p *pod) status(now *corev1.Pod) {
	at := metav1.NewTime(p.k.cfg.Now())
	if now.Status.StartTime == nil {
		now.Status.StartTime = &p.seen
	}
	p.mu.Lock()
	address := p.first
	p.mu.Unlock()
	if address != "" {
		now.Status.PodIP, now.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
		now.Status.HostIP, now.Status.HostIPs = address, []corev1.HostIP{{IP: address}}
	}
	now.Status.InitContainerStatuses, now.Status.ContainerStatuses = nil, nil
	for _, c := range p.init {
		now.Status.InitContainerStatuses = append(now.Status.InitContainerStatuses, c.status(true))
	}
	for _, c := range p.main {
		now.Status.ContainerStatuses = append(now.Status.ContainerStatuses, c.status(false))
	}
	now.Status.Phase = phaseOf(now, p.ending.Err() != nil)
	conditions(now, at)
}

func (c *containerRun) status(init bool) corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := c.state.Running != nil
	ready := running
	if init && c.state.Terminated != nil {
		ready = c.state.Terminated.ExitCode == 0
	}
	st := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, State: c.state, LastTerminationState: c.last,
		Ready: ready, Started: &running, RestartCount: c.restarts,
	}
	if c.started {
		st.ContainerID = "containerd://" + string(c.pod.spec.UID) + "-" + c.spec.Name
	}
	return st
}

// phaseOf derives the phase from the states of the containers.
func phaseOf(pod *corev1.Pod, ending bool) corev1.PodPhase {
	for _, c := range pod.Status.InitContainerStatuses {
		t := c.State.Terminated
		switch {
		case t == nil:
			return corev1.PodPending
		case t.ExitCode != 0 && (ending || pod.Spec.RestartPolicy == corev1.RestartPolicyNever):
			return corev1.PodFailed
		case t.ExitCode != 0:
			return corev1.PodPending
		}
	}
	waiting, running, failed, restarting := false, false, false, false
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			running = true
		case c.State.Terminated == nil:
			waiting = waiting || c.RestartCount == 0
			restarting = true
		default:
			failed = failed || c.State.Terminated.ExitCode != 0
			policy := pod.Spec.RestartPolicy
			again := policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && c.State.Terminated.ExitCode != 0
			restarting = restarting || again && !ending
		}
	}
	switch {
	case waiting:
		return corev1.PodPending
	case running, restarting:
		return corev1.PodRunning
	case failed:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

// conditions derives the conditions from phase and containers.
func conditions(pod *corev1.Pod, at metav1.Time) {
	ready, initialized := pod.Status.Phase == corev1.PodRunning, true
	var unready []string
	for _, c := range pod.Status.ContainerStatuses {
		if !c.Ready {
			ready = false
			unready = append(unready, c.Name)
		}
	}
	for _, c := range pod.Status.InitContainerStatuses {
		initialized = initialized && c.Ready
	}
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	reason, message := "", ""
	switch {
	case ready:
	case over && pod.Status.Phase == corev1.PodSucceeded:
		reason = "PodCompleted"
	case over:
		reason = "PodFailed"
	default:
		reason, message = "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	}
	started := corev1.ConditionFalse
	if !over && pod.Status.PodIP != "" {
		started = corev1.ConditionTrue
	}
	for _, c := range []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: started},
		{Type: corev1.PodInitialized, Status: is(initialized)},
		{Type: corev1.PodReady, Status: is(ready), Reason: reason, Message: message},
		{Type: corev1.ContainersReady, Status: is(ready), Reason: reason, Message: message},
	} {
		SetCondition(pod, c, at)
	}
}

func is(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// SetCondition sets a condition, with a new time if its status changes.
func SetCondition(pod *corev1.Pod, c corev1.PodCondition, at metav1.Time) {
	c.LastTransitionTime = at
	for i, old := range pod.Status.Conditions {
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		pod.Status.Conditions[i] = c
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}
