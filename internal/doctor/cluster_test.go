package doctor

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/oauth2"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/kube"
)

// clusterOf returns the findings for a cluster whose API server is h. GKE knows the cluster
// if it has a name.
func clusterOf(t *testing.T, name string, h http.Handler) Report {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c, err := kube.New(kube.Config{Server: s.URL, CA: ca, Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: event.Discard, MaxRetry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := Examine(t.Context(), Options{
		Cluster: &Cluster{Name: name, Client: c, Kubectl: []string{"--context=k"}, Show: func(context.Context, string) (gke.Info, error) {
			return gke.Info{Name: name, State: "RUNNING", Pools: []gke.Pool{{Name: name + "-np-0", State: "ERROR"}}}, nil
		}},
		Again: func(words ...string) []string { return []string{"--of=" + strings.Join(words[:2], "-")} },
		Sink:  event.Discard, Clock: gcp.SystemClock,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func TestAClusterWithoutJobSetAndRights(t *testing.T) {
	t.Parallel()
	r := clusterOf(t, "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/version":
			answer(w, 200, map[string]string{"gitVersion": "v1.35.4"})
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			var review authorizationv1.SelfSubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			asked := review.Spec.ResourceAttributes
			review.Status.Allowed = asked.Subresource != "exec" && asked.Verb != "watch" && asked.Group != "batch"
			answer(w, 201, review)
		case r.URL.Path == "/api/v1/nodes":
			answer(w, 200, corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}})
		default:
			answer(w, 404, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
		}
	}))
	text := r.String()
	for _, want := range []string{
		"Kubernetes v1.35.4",
		`error   rights: missing in namespace "default": watch pods (follow workloads), create pods/exec (run commands on workers), get pods/exec (run commands on workers), watch jobsets (follow workloads)`,
		`warning rights: missing in namespace "default": list jobs (say why a workload failed)`,
		"cure: kubectl --context=k auth can-i --list --namespace=default",
		"error   jobset: the cluster does not serve JobSet",
		"warning kueue: the cluster does not serve ClusterQueue",
		"warning nodes: no node has TPU chips",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	if kind, failed := r.Fault(); !failed || kind.String() != "permission" {
		t.Errorf("got %v, %v", kind, failed)
	}
}

// The commands in findings have the flags that Again returns for them.
func TestAClusterOfGKEWithoutJobSet(t *testing.T) {
	t.Parallel()
	text := clusterOf(t, "c", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 404, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	})).String()
	const cure = "with the same flags:\n          cure: multihost cluster create c --tpu-type=TYPE --num-slices=N --of=cluster-create\n"
	for _, check := range []string{"node pools: node pool c-np-0 is ERROR", "jobset: ", "kueue: "} {
		if _, after, found := strings.Cut(text, check); !found || !strings.Contains(strings.Join(strings.SplitAfter(after, "\n")[:3], ""), cure) {
			t.Errorf("want the cure of %q in:\n%s", check, text)
		}
	}
}

func TestAClusterThatRefusesTheUser(t *testing.T) {
	t.Parallel()
	r := clusterOf(t, "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 401, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonUnauthorized, Code: 401})
	}))
	if r.Errors != 1 || !strings.Contains(r.String(), "error   api server: ") || r.OK > 0 {
		t.Error(r.String())
	}
}

func TestNodesThatTakeNoPodAreNamedOnceForEachReason(t *testing.T) {
	t.Parallel()
	node := func(name string, ready corev1.ConditionStatus, why string, cordoned bool) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: cordoned},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: why}}}}
	}
	const silent = "Kubelet stopped posting node status."
	ready, broken := judgeNodes([]corev1.Node{
		node("a", corev1.ConditionTrue, "", false), node("b", corev1.ConditionUnknown, silent, false),
		node("c", corev1.ConditionTrue, "", true), node("d", corev1.ConditionUnknown, silent, false), {ObjectMeta: metav1.ObjectMeta{Name: "e"}},
	})
	var got []string
	for _, f := range broken {
		got = append(got, string(f.Level)+" "+f.Text)
	}
	want := []string{
		"error b and 1 node more: not ready: " + silent,
		"warning c: cordoned: the node takes no new pod",
		"error e: not ready: the node has reported nothing yet",
	}
	if ready != 1 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%d ready, got:\n%s", ready, strings.Join(got, "\n"))
	}
}
