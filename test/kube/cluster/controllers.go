package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"multihost/internal/event"
	"multihost/internal/gke/controllers"
	"multihost/internal/kube"
)

// discard is an event sink that drops events.
type discard struct{}

func (discard) Emit(event.Event) {}

// startControllers applies what multihost applies for JobSet and Kueue, except the
// objects that would run them in pods. It starts both as processes instead.
func (c *Cluster) startControllers(ctx context.Context) error {
	client, err := kube.New(kube.Config{Kubeconfig: []string{c.Kubeconfig()}, Sink: discard{}})
	if err != nil {
		return err
	}
	var webhooks []unstructured.Unstructured
	var kinds []string // names of the new kinds
	for _, each := range controllers.All() {
		port := c.ports.jobSet
		if each.Name == "Kueue" {
			port = c.ports.kueue
		}
		objects, err := each.Objects()
		if err != nil {
			return err
		}
		for _, o := range objects {
			switch o.GetKind() {
			case "ConfigMap", "Secret", "Service", "Deployment", "APIService":
				continue
			}
			local(o.Object, fmt.Sprintf("https://%s", address(port)), c.ca.pem)
			switch o.GetKind() {
			case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
				webhooks = append(webhooks, o) // the webhooks' servers do not run yet
				continue
			case "CustomResourceDefinition":
				kinds = append(kinds, o.GetName())
			}
			if err := apply(ctx, client, o); err != nil {
				return err
			}
		}
	}
	if err := c.established(ctx, client, kinds); err != nil {
		return err
	}
	if err := c.startControllerProcesses(ctx); err != nil {
		return err
	}
	for _, o := range webhooks {
		if err := apply(ctx, client, o); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, client *kube.Client, o unstructured.Unstructured) error {
	k, err := client.Resource(ctx, o.GetAPIVersion(), o.GetKind())
	if err != nil {
		return err
	}
	_, err = k.In(client, o.GetNamespace()).Apply(ctx, &o, kube.WriteOptions{})
	return err
}

// established waits until the API server serves all kinds. The controllers end if one is
// missing.
func (c *Cluster) established(ctx context.Context, client *kube.Client, names []string) error {
	crds, err := client.Resource(ctx, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
	if err != nil {
		return err
	}
	return c.part(API).await(ctx, func(ctx context.Context) error {
		for _, name := range names {
			o, err := crds.In(client, "").Get(ctx, name)
			if err != nil {
				return err
			}
			conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(conditions, func(c any) bool {
				m, _ := c.(map[string]any)
				return m["type"] == "Established" && m["status"] == "True"
			}) {
				return fmt.Errorf("kind %s is not established", name)
			}
		}
		return nil
	})
}

func (c *Cluster) startControllerProcesses(ctx context.Context) error {
	certs := filepath.Dir(c.file(fileServer))
	common := `kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
metrics: {bindAddress: "0"}
clientConnection: {qps: 500, burst: 500}
health: {healthProbeBindAddress: %q}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
`
	parts := map[string]struct {
		health, port int
		more         string
	}{
		JobSet: {c.ports.jobSetHealth, c.ports.jobSet, "apiVersion: config.jobset.x-k8s.io/v1alpha1\n"},
		Kueue: {c.ports.kueueHealth, c.ports.kueue, `apiVersion: config.kueue.x-k8s.io/v1beta2
namespace: kueue-system
integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}
featureGates: {VisibilityOnDemand: false}
controller: {groupKindConcurrency: {Job.batch: 5, Workload.kueue.x-k8s.io: 5, LocalQueue.kueue.x-k8s.io: 1, ClusterQueue.kueue.x-k8s.io: 1, ResourceFlavor.kueue.x-k8s.io: 1}}
`},
	}
	var started []*process
	for name, p := range parts {
		text := p.more + fmt.Sprintf(common, address(p.health), p.port, certs)
		if err := write(c.file(name+".yaml"), []byte(text)); err != nil {
			return err
		}
		one, err := c.run(name, []string{"KUBECONFIG=" + c.file(name+".kubeconfig"), "KUEUE_METRICS_CERTS=" + certs}, "--config="+c.file(name+".yaml"))
		if err != nil {
			return err
		}
		started = append(started, one)
	}
	for _, p := range started {
		if err := p.await(ctx, func(ctx context.Context) error {
			return c.answers(ctx, fmt.Sprintf("http://%s/readyz", address(parts[p.name].health)))
		}); err != nil {
			return err
		}
	}
	return nil
}

// local changes an object of JobSet or Kueue so that the API server calls a process on this
// machine instead of a service of the cluster. It removes webhooks for kinds that the cluster
// lacks, and those for all pods.
func local(o map[string]any, url string, ca []byte) {
	here := func(m map[string]any) {
		config, _ := m["clientConfig"].(map[string]any)
		service, _ := config["service"].(map[string]any)
		path, _ := service["path"].(string)
		m["clientConfig"] = map[string]any{"url": url + path, "caBundle": encode(ca)}
	}
	switch o["kind"] {
	case "CustomResourceDefinition":
		spec, _ := o["spec"].(map[string]any)
		conversion, _ := spec["conversion"].(map[string]any)
		if webhook, ok := conversion["webhook"].(map[string]any); ok {
			here(webhook)
		}
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		all, _ := o["webhooks"].([]any)
		var kept []any
		for _, w := range all {
			if m, ok := w.(map[string]any); ok && wanted(m) {
				here(m)
				kept = append(kept, m)
			}
		}
		o["webhooks"] = kept
	}
}

// wanted reports whether a webhook is for jobs, for kinds of JobSet or Kueue, or for the
// pods of JobSets.
func wanted(webhook map[string]any) bool {
	rules, _ := webhook["rules"].([]any)
	for _, r := range rules {
		m, _ := r.(map[string]any)
		groups, _ := m["apiGroups"].([]any)
		if len(groups) != 1 {
			return false
		}
		switch groups[0] {
		case "batch", "jobset.x-k8s.io", "kueue.x-k8s.io":
		case "":
			return webhook["objectSelector"] != nil
		default:
			return false
		}
	}
	return len(rules) > 0
}
