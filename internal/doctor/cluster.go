package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/event"
	"multihost/internal/gke"
	"multihost/internal/gke/controllers"
	"multihost/internal/kube"
	"multihost/internal/remote"
)

// A Cluster is a Kubernetes cluster to examine.
type Cluster struct {
	// Name is the name of a cluster of GKE, and Show reads it. Both are empty for a cluster
	// of a kubeconfig.
	Name string
	Show func(ctx context.Context, name string) (gke.Info, error)

	Client  *kube.Client
	Kubectl []string // the flags with which kubectl uses the cluster
}

// clusterChecks are the checks of a cluster whose pods are workers.
type clusterChecks struct{ *examination }

func (e clusterChecks) all() []func(context.Context) {
	checks := []func(context.Context){e.checkAPI, e.checkRights, e.checkControllers, e.checkQueue, e.checkNodes}
	if e.Cluster.Name != "" {
		checks = append(checks, e.checkPools)
	}
	return checks
}

// kubectl returns a command line of kubectl.
func (e clusterChecks) kubectl(words ...string) string {
	return remote.CommandLine(slices.Concat([]string{"kubectl"}, e.Cluster.Kubectl, words)...)
}

// checkAPI asks the API server for its version.
func (e clusterChecks) checkAPI(ctx context.Context) {
	begin := time.Now()
	version, err := e.Cluster.Client.Version(ctx)
	if err != nil {
		e.refused(CheckAPI, err)
		return
	}
	e.ok(CheckAPI, "%s, Kubernetes %s, answers in %s", e.Cluster.Client.Server(), version, event.Duration(time.Since(begin)))
}

// refused adds the finding for a failed call of the API server.
func (e clusterChecks) refused(check string, err error) {
	e.add(Finding{Check: check, Level: Error, Text: err.Error(), Advice: hint(err)})
}

// A right is a permission that commands need in a namespace of a cluster.
type right struct {
	verb, group, resource, sub string
	use                        string
	level                      Level // of the finding if the user lacks the right
}

func rights() []right {
	const sets, queues = "jobset.x-k8s.io", "kueue.x-k8s.io"
	return []right{
		{"get", "", "pods", "", "find the workers", Error},
		{"list", "", "pods", "", "find the workers", Error},
		{"watch", "", "pods", "", "follow workloads", Error},
		{"create", "", "pods", "exec", "run commands on workers", Error},
		{"get", "", "pods", "exec", "run commands on workers", Error},
		{"get", "", "pods", "log", "read the logs of workloads", Error},
		{"get", sets, "jobsets", "", "find slices and workloads", Error},
		{"list", sets, "jobsets", "", "find slices and workloads", Error},
		{"watch", sets, "jobsets", "", "follow workloads", Error},
		{"create", sets, "jobsets", "", "hold slices and start workloads", Error},
		{"delete", sets, "jobsets", "", "give slices back and end workloads", Error},
		{"list", "batch", "jobs", "", "say why a workload failed", Warning},
		{"list", queues, "localqueues", "", "find the queue of workloads", Warning},
		{"list", queues, "workloads", "", "say why a workload waits", Warning},
		{"list", "", "events", "", "say why a pod waits", Warning},
	}
}

// checkRights asks the API server which rights the user has in the namespace.
func (e clusterChecks) checkRights(ctx context.Context) {
	all := rights()
	has, errs := make([]bool, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() { has[i], errs[i] = e.mayI(ctx, r) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			e.unknown(CheckRights, "%v", err)
			return
		}
	}
	namespace := e.Cluster.Client.Namespace()
	missing := map[Level][]string{}
	for i, r := range all {
		if !has[i] {
			name := strings.TrimSuffix(r.resource+"/"+r.sub, "/")
			missing[r.level] = append(missing[r.level], fmt.Sprintf("%s %s (%s)", r.verb, name, r.use))
		}
	}
	for _, level := range []Level{Error, Warning} {
		if len(missing[level]) > 0 {
			e.add(Finding{Check: CheckRights, Level: level, Text: fmt.Sprintf("missing in namespace %q: %s", namespace, strings.Join(missing[level], ", ")),
				Advice: "an administrator of the cluster gives them; on GKE the role roles/container.developer has them", Cure: e.kubectl("auth", "can-i", "--list", "--namespace="+namespace)})
		}
	}
	if len(missing) == 0 {
		e.ok(CheckRights, "all %d that commands need, in namespace %q", len(all), namespace)
	}
}

func (e clusterChecks) mayI(ctx context.Context, r right) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{
		ObjectMeta: metav1.ObjectMeta{}, Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: e.Cluster.Client.Namespace(), Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.sub,
		}}}
	answer, err := kube.AccessReviews.In(e.Cluster.Client, "").Create(ctx, review, kube.WriteOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// checkControllers looks for JobSet and Kueue. Without Kueue there is no queue: slices and
// workloads take free nodes.
func (e clusterChecks) checkControllers(ctx context.Context) {
	in := e.installer()
	for _, k := range controllers.All() {
		check, level := CheckJobSet, Error
		if k.Name == "Kueue" {
			check, level = CheckKueue, Warning
		}
		have, err := in.Look(ctx, k)
		switch {
		case err != nil:
			e.unknown(check, "%v", err)
		case !have.Served:
			e.add(Finding{Check: check, Level: level, Text: "the cluster does not serve " + k.Kind + " of " + k.APIVersion, Advice: e.completes(), Cure: e.completion()})
		case have.Deployed && !have.Available:
			e.add(Finding{Check: check, Level: Error, Text: k.Name + " " + have.Version + " is installed, and does not answer",
				Cure: e.kubectl("describe", "deployment", k.Deployment, "--namespace="+k.Namespace)})
		case have.Version != "":
			e.ok(check, "%s", have.Version)
		default:
			e.ok(check, "the cluster serves %s of %s", k.Kind, k.APIVersion)
		}
	}
}

func (e clusterChecks) installer() controllers.Installer {
	return controllers.Installer{Client: e.Cluster.Client, Sink: e.Sink, Clock: e.Clock}
}

// completes says who installs what a cluster lacks.
func (e clusterChecks) completes() string {
	if e.Cluster.Name == "" {
		return "an administrator of the cluster installs it: https://jobset.sigs.k8s.io and https://kueue.sigs.k8s.io"
	}
	return "the command that made the cluster completes it, with the same flags:"
}

func (e clusterChecks) completion() string {
	if e.Cluster.Name == "" {
		return ""
	}
	return e.command("cluster", "create", e.Cluster.Name, "--tpu-type=TYPE", "--num-slices=N")
}

// checkQueue looks for the queue of workloads, and checks whether Kueue admits anything
// through it.
func (e clusterChecks) checkQueue(ctx context.Context) {
	version, err := e.installer().KueueVersion(ctx)
	if err != nil {
		e.unknown(CheckQueue, "%v", err)
		return
	}
	if _, err := e.Cluster.Client.Resource(ctx, "kueue.x-k8s.io/"+version, "LocalQueue"); kube.NotFound(err) {
		return // the finding about Kueue says it
	}
	queue, err := kube.LocalQueues.In(e.Cluster.Client, "").Get(ctx, controllers.LocalQueue)
	switch {
	case kube.NotFound(err):
		e.add(Finding{Check: CheckQueue, Level: Warning, Text: fmt.Sprintf("namespace %q has no queue %s", e.Cluster.Client.Namespace(), controllers.LocalQueue), Advice: e.completes(), Cure: e.completion()})
		return
	case err != nil:
		e.refused(CheckQueue, err)
		return
	}
	for _, c := range queue.Status.Conditions {
		if c.Type == "Active" && c.Status == metav1.ConditionFalse {
			e.add(Finding{Check: CheckQueue, Level: Error, Text: fmt.Sprintf("%s admits nothing: %s", queue.Name, c.Message), Cure: e.kubectl("describe", "clusterqueue", string(queue.Spec.ClusterQueue))})
			return
		}
	}
	e.ok(CheckQueue, "%s: %s, %s", queue.Name, waits(int(queue.Status.PendingWorkloads), "waits", "wait"), waits(int(queue.Status.AdmittedWorkloads), "is admitted", "are admitted"))
}

func waits(n int, one, many string) string {
	if n == 1 {
		return "1 workload " + one
	}
	return fmt.Sprintf("%d workloads %s", n, many)
}

// checkNodes counts the nodes with TPU chips, and names those that accept no pod.
func (e clusterChecks) checkNodes(ctx context.Context) {
	nodes, _, err := kube.Nodes.In(e.Cluster.Client, "").List(ctx, kube.ListOptions{Labels: "cloud.google.com/gke-tpu-accelerator"})
	if err != nil {
		e.unknown(CheckNodes, "%v", err)
		return
	}
	ready, broken := judgeNodes(nodes)
	for _, f := range broken {
		f.Cure = e.kubectl("describe", "node", f.Cure)
		e.add(f)
	}
	switch {
	case len(nodes) == 0:
		e.add(Finding{Check: CheckNodes, Level: Warning, Text: "no node has TPU chips", Advice: "node pools that grow on demand make nodes for the first workload"})
	case ready > 0:
		e.ok(CheckNodes, "ready: %s with TPU chips", event.Count(ready, "node"))
	}
}

// judgeNodes counts the nodes that accept pods. For the others it returns findings. The
// Cure of a finding is the name of its first node.
func judgeNodes(nodes []corev1.Node) (ready int, broken []Finding) {
	reasons := map[string][]string{}
	var order []string
	note := func(why, node string) {
		if len(reasons[why]) == 0 {
			order = append(order, why)
		}
		reasons[why] = append(reasons[why], node)
	}
	for _, n := range nodes {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		switch {
		case i < 0:
			note("not ready: the node has reported nothing yet", n.Name)
		case n.Status.Conditions[i].Status != corev1.ConditionTrue:
			note("not ready: "+n.Status.Conditions[i].Message, n.Name)
		case n.Spec.Unschedulable:
			note("cordoned: the node takes no new pod", n.Name)
		default:
			ready++
		}
	}
	for _, why := range order {
		names := reasons[why]
		level := Error
		if strings.HasPrefix(why, "cordoned") {
			level = Warning
		}
		text := names[0]
		if len(names) > 1 {
			text += fmt.Sprintf(" and %s more", event.Count(len(names)-1, "node"))
		}
		broken = append(broken, Finding{Check: CheckNodes, Level: level, Text: text + ": " + why, Cure: names[0]})
	}
	return ready, broken
}

// checkPools reads the state of the cluster and of its node pools.
func (e clusterChecks) checkPools(ctx context.Context) {
	info, err := e.Cluster.Show(ctx, e.Cluster.Name)
	if err != nil {
		e.fail(CheckCluster, err)
		return
	}
	f := Finding{Check: CheckCluster, Level: OK, Text: fmt.Sprintf("%s is %s, region %s, %s", info.Name, info.State, info.Region, event.Count(len(info.Pools), "node pool"))}
	if info.State != "RUNNING" && info.State != "RECONCILING" {
		f.Level, f.Cure = Error, e.command("cluster", "show", info.Name)
		if info.Reason != "" {
			f.Text += ": " + info.Reason
		}
	}
	e.add(f)
	for _, p := range info.Pools {
		switch p.State {
		case "RUNNING", "RECONCILING", "PROVISIONING", "STOPPING", "":
		default:
			text := fmt.Sprintf("node pool %s is %s", p.Name, p.State)
			if p.Reason != "" {
				text += ": " + p.Reason
			}
			e.add(Finding{Check: CheckPools, Level: Error, Text: text, Advice: "the command that made the cluster makes the pool again, with the same flags:", Cure: e.completion()})
		}
	}
}
