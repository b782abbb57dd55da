package access

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/oauth2"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/held"
	"multihost/internal/kube"
	"multihost/internal/pods"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// Tokens signs requests with the credentials of a client of Google's APIs. It implements
// oauth2.TokenSource.
type Tokens struct{ Cloud *gcp.Client }

// Token implements oauth2.TokenSource.
func (t Tokens) Token() (*oauth2.Token, error) {
	text, err := t.Cloud.Token(context.Background()) // the interface has no context
	// With authentication disabled, the token is empty, and HTTP/1.1 cannot carry an empty one.
	return &oauth2.Token{AccessToken: cmp.Or(text, "none")}, err
}

// poolsLimit is how long reading node pools may take. They only add to the reason why a
// workload waits, so following must not wait long for them.
const poolsLimit = 5 * time.Second

// NodePools returns a function that reads the node pools of a GKE cluster. The node pools help
// to explain why a workload waits. The function takes at most poolsLimit. NodePools returns nil
// if clusters is nil or name is "".
func NodePools(clusters *gke.Client, name string) func(context.Context) ([]workload.Pool, error) {
	if clusters == nil || name == "" {
		return nil
	}
	return func(ctx context.Context) ([]workload.Pool, error) {
		ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), poolsLimit)
		defer cancel()
		all, err := clusters.NodePools(ctx, name)
		pools := make([]workload.Pool, len(all))
		for i, p := range all {
			pools[i] = poolOf(p)
		}
		return pools, err
	}
}

// poolOf converts a node pool of GKE for package workload.
func poolOf(p gke.Pool) workload.Pool {
	out := workload.Pool{Name: p.Name, State: p.State, Message: p.Reason, FlexStart: p.Tier == provision.FlexStart, Nodes: -1}
	t, err := tpu.ParseType(p.Type)
	if err == nil {
		var n tpu.Nodes
		if n, err = tpu.NodesOf(t); err == nil {
			out.Accelerator, out.Topology = n.Accelerator, cmp.Or(p.Topology, n.Topology)
		}
	}
	out.Unknown = err != nil && p.Topology != "" // a slice whose type multihost does not know
	return out
}

// podUser is the user of commands in pods. The image decides it, and nearly all images use
// root.
const podUser = "root"

// Pods returns the provider of a cluster's held slices, and the dialer that reaches their pods.
// flags are the command-line flags that name the cluster. of is the cluster as a run's record
// keeps it. The caller closes the client of the provider. Pods calls no API.
func Pods(cfg kube.Config, flags string, o Options) (p *held.Provider, d *pods.Dialer, of *record.Cluster, err error) {
	cfg.UserAgent, cfg.Sink = o.UserAgent, o.Sink
	c, err := kube.New(cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	event.Notef(o.Sink, event.Debug, "", "cluster %s, namespace %s", c.Server(), c.Namespace())
	return &held.Provider{Client: c, Flags: flags, Clock: gcp.SystemClock, ReadOnly: o.ReadOnly},
		&pods.Dialer{Cluster: pods.Of(c), Namespace: c.Namespace(), Container: held.Container, User: podUser, KeepAlive: pods.KeepAlive, Clock: gcp.SystemClock, Renew: held.Renew, RenewEvery: held.RenewEvery},
		&record.Cluster{Kubeconfig: cfg.Kubeconfig, Context: c.Context(), Namespace: c.Namespace()}, nil
}
