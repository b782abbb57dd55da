package workloads

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
)

// Exec runs a command in the first container of a pod.
func (c *Cluster) Exec(ctx context.Context, p *corev1.Pod, command []string) (int, error) {
	return c.exec(ctx, p, p.Spec.Containers[0].Name, command, io.Discard, io.Discard)
}
