package gke

import (
	"context"
	"slices"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"

	"multihost/internal/gcp"
	"multihost/internal/kube"
)

const (
	resourceTPU = "google.com/tpu"
	labelTPU    = "cloud.google.com/gke-tpu-accelerator" // label of nodes
	labelPool   = "cloud.google.com/gke-nodepool"        // label of nodes
	// readLimit limits how long calls to a cluster's API are retried.
	readLimit = 5 * time.Second
)

// tokens returns access tokens from a client's credentials, for requests to a cluster's API.
type tokens struct{ of *gcp.Client }

// Token implements oauth2.TokenSource.
func (t tokens) Token() (*oauth2.Token, error) {
	text, err := t.of.Token(context.Background()) // the interface has no context
	return &oauth2.Token{AccessToken: text}, err
}

// dial returns a client of the API at an endpoint, with the credentials of g. The caller
// closes it.
func dial(g *gcp.Client, at Endpoint, retry time.Duration) (*kube.Client, error) {
	return kube.New(kube.Config{
		Server: at.Server, CA: at.CA, Token: tokens{g}, UserAgent: "multihost", SignIn: "gcloud auth application-default login",
		Sink: g.Sink(), Clock: g.Clock(), MaxRetry: retry,
	})
}

// podsThrough returns a Reader with the credentials of g.
func podsThrough(g *gcp.Client) Reader {
	return func(ctx context.Context, at Endpoint) ([]Pod, error) {
		client, err := dial(g, at, readLimit)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		nodes, _, err := kube.Nodes.In(client, "").List(ctx, kube.ListOptions{Labels: labelTPU})
		if err != nil {
			return nil, err
		}
		pods, _, err := kube.Pods.In(client, kube.Everywhere).List(ctx, kube.ListOptions{})
		return tpuPods(pods, nodes), err
	}
}

// tpuPods returns the pods that ask for TPU chips and have not ended.
func tpuPods(pods []corev1.Pod, nodes []corev1.Node) (all []Pod) {
	pools := map[string]string{}
	for _, n := range nodes {
		pools[n.Name] = n.Labels[labelPool]
	}
	for _, p := range pods {
		asks := func(c corev1.Container) bool {
			limit, request := c.Resources.Limits[resourceTPU], c.Resources.Requests[resourceTPU]
			return !limit.IsZero() || !request.IsZero()
		}
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && slices.ContainsFunc(slices.Concat(p.Spec.Containers, p.Spec.InitContainers), asks) {
			all = append(all, Pod{Namespace: p.Namespace, Name: p.Name, Pool: pools[p.Spec.NodeName]})
		}
	}
	return all
}
