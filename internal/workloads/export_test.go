package workloads

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/workload"
)

// Exec runs a command in the first container of a pod.
func (c *Cluster) Exec(ctx context.Context, p *corev1.Pod, command []string) (int, error) {
	return c.exec(ctx, p, p.Spec.Containers[0].Name, command, io.Discard, io.Discard)
}

// Explain makes Follow's regular report of why the workload does not run. why is the text of the
// last report.
func (c *Cluster) Explain(ctx context.Context, js *jobset.JobSet, why string) {
	f := &following{Cluster: c, js: js, why: why}
	f.look(ctx)
}

// FailedFirst returns what the Jobs of a workload say of the pod that failed first.
func (c *Cluster) FailedFirst(ctx context.Context, js *jobset.JobSet) (*workload.Pod, error) {
	return c.failedFirst(ctx, js)
}
