package workloads

import (
	"context"
	"fmt"
	"strings"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// A Request asks for a workload.
type Request struct {
	Spec workload.Spec // with the Image that the user named
	// Image returns the image for the pods, with its digest. Create calls Image after the server
	// has accepted the rest of the request. If Image is nil, the pods get the image of Spec.
	Image func(ctx context.Context) (string, error)

	// NamedQueue and NamedPriority say that the user has chosen the queue or the priority.
	// Otherwise the workload is made without them if the cluster has no Kueue or lacks the
	// default priority.
	NamedQueue, NamedPriority bool

	ID     string // id of this request, by which a repeated Create finds its own workload; required
	DryRun bool   // the server checks the workload and keeps nothing; Image is not called
}

// annotationRequest has the ID of the Request that made a JobSet.
const annotationRequest = "multihost/request"

// An ExistsError says that the name of a workload is taken.
type ExistsError struct {
	Name   string
	advice string
}

func (e *ExistsError) Error() string { return fmt.Sprintf("there is a workload %q already", e.Name) }

// Fault returns fault.Usage.
func (e *ExistsError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type.
func (e *ExistsError) Hint() string { return e.advice }

// Create makes a workload and returns its JobSet, without waiting for the workload to run.
// Errors are those of workload.JobSet, *ExistsError, *AbsentError, those of Image and of
// package kube.
func (c *Cluster) Create(ctx context.Context, r Request) (*jobset.JobSet, error) {
	if err := r.Spec.Check(); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx, &r); err != nil {
		return nil, err
	}
	js, err := r.jobset()
	if err != nil {
		return nil, err
	}
	checked, err := c.jobsets().Create(ctx, js, kube.WriteOptions{DryRun: true})
	switch {
	case kube.AlreadyExists(err):
		return nil, c.exists(js.Name)
	case kube.NotFound(err):
		return nil, noJobSet(err)
	case err != nil || r.DryRun:
		return checked, err
	}
	if r.Image != nil {
		if r.Spec.Image, err = r.Image(ctx); err != nil {
			return nil, err
		}
		if js, err = r.jobset(); err != nil {
			return nil, err
		}
	}
	made, err := c.jobsets().Create(ctx, js, kube.WriteOptions{})
	if !kube.AlreadyExists(err) {
		return made, err
	}
	// If the answer to an earlier try was lost, this request has made the workload.
	if made, err = c.get(ctx, js.Name); err == nil && made.Annotations[annotationRequest] != r.ID {
		return nil, c.exists(js.Name)
	}
	return made, err
}

func (r Request) jobset() (*jobset.JobSet, error) {
	js, err := workload.JobSet(r.Spec)
	if err != nil {
		return nil, err
	}
	if js.Annotations == nil {
		js.Annotations = map[string]string{}
	}
	js.Annotations[annotationRequest] = r.ID
	return js, nil
}

func (c *Cluster) exists(name string) error {
	return &ExistsError{name, "see it, or delete it: " + c.command("workload", "status", name) + ", " + c.command("workload", "delete", name)}
}

// prepare checks that the queue and the priority class exist. The server itself would check that
// only when it makes pods.
func (c *Cluster) prepare(ctx context.Context, r *Request) error {
	if r.Spec.Namespace == "" {
		r.Spec.Namespace = c.Client.Namespace()
	}
	if r.Spec.Queue != "" {
		if err := c.findQueue(ctx, r); err != nil {
			return err
		}
	}
	if r.Spec.Priority == "" {
		return nil
	}
	_, err := kube.PriorityClasses.In(c.Client, "").Get(ctx, r.Spec.Priority)
	switch {
	case fault.Of(err) == fault.Permission: // then the server decides
		return nil
	case !kube.NotFound(err):
		return err
	case r.NamedPriority:
		return &AbsentError{Text: fmt.Sprintf("the cluster has no priority %q", r.Spec.Priority), Advice: "choose one that it has, or leave out --priority: " + c.priorities(ctx), kind: fault.Configuration, err: err}
	}
	event.Notef(c.Sink, event.Info, "", "the cluster has no priority %s: the workload gets the cluster's default", r.Spec.Priority)
	r.Spec.Priority = ""
	return nil
}

// priorities lists the priority classes for a hint, without those of Kubernetes itself.
func (c *Cluster) priorities(ctx context.Context) string {
	all, _, err := kube.PriorityClasses.In(c.Client, "").List(ctx, kube.ListOptions{})
	var names []string
	for _, p := range all {
		if !strings.HasPrefix(p.Name, "system-") {
			names = append(names, p.Name)
		}
	}
	if err != nil || len(names) == 0 {
		return "it has none"
	}
	return tpu.FewNames(names)
}

func (c *Cluster) findQueue(ctx context.Context, r *Request) error {
	all, _, err := kube.LocalQueues.In(c.Client, r.Spec.Namespace).List(ctx, kube.ListOptions{})
	switch {
	case kube.NotFound(err) && !r.NamedQueue:
		event.Notef(c.Sink, event.Info, "", "the cluster has no Kueue: the workload starts without a queue")
		r.Spec.Queue = ""
		return nil
	case kube.NotFound(err):
		return &AbsentError{Text: fmt.Sprintf("the cluster has no Kueue, so there is no queue %q", r.Spec.Queue), Advice: "leave out --queue, or install Kueue with: multihost cluster create", kind: fault.Configuration, err: err}
	case fault.Of(err) == fault.Permission: // then Kueue decides
		return nil
	case err != nil:
		return err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
		if names[i] == r.Spec.Queue {
			return nil
		}
	}
	advice := "make one with: multihost cluster create; or start without a queue, with: --queue="
	if len(names) > 0 {
		advice = "choose one of the namespace: --queue=" + strings.Join(names, " or --queue=")
	}
	return &AbsentError{Text: fmt.Sprintf("namespace %q has no queue %q", r.Spec.Namespace, r.Spec.Queue), Advice: advice, kind: fault.Configuration}
}
