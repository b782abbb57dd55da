//go:build linux

package held

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/testkit"
)

// providerOn returns a provider whose API server is serve.
func providerOn(t *testing.T, serve func(r *http.Request) (code int, body any)) *Provider {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, body := serve(r)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(server.Close)
	c, err := kube.New(kube.Config{Server: server.URL, Namespace: "default", Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: event.Discard})
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	return &Provider{Client: c, Clock: gcp.SystemClock}
}

func kindOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} // the client does not read the version
}

// exists returns the JobSet "t", and the request for it.
func exists(t *testing.T) (*jobset.JobSet, provision.Request) {
	r := provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v4-8")}
	r.Mark("t", "ann")
	js, err := jobSet(r, time.Now())
	testkit.Must(t, err)
	js.UID, js.TypeMeta = "old", kindOf("JobSet")
	return js, r
}

// Two users repeat a request after its slices have ended. The slower command does not delete
// the slices that the faster one has made.
func TestNewSlicesOfAnotherCommandStay(t *testing.T) {
	t.Parallel()
	old, r := exists(t)
	fresh := old.DeepCopy()
	old.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue, Message: "all Jobs have succeeded"}}
	fresh.UID = "fresh"
	var reads, deleted atomic.Int32
	p := providerOn(t, func(q *http.Request) (int, any) {
		switch {
		case q.Method == http.MethodDelete:
			if body, _ := io.ReadAll(q.Body); !strings.Contains(string(body), `"uid":"old"`) {
				deleted.Add(1)
				return http.StatusOK, metav1.Status{TypeMeta: kindOf("Status"), Status: metav1.StatusSuccess}
			}
			return http.StatusConflict, metav1.Status{TypeMeta: kindOf("Status"), Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict}
		case q.Method == http.MethodPost:
			return http.StatusConflict, metav1.Status{TypeMeta: kindOf("Status"), Status: metav1.StatusFailure, Reason: metav1.StatusReasonAlreadyExists, Code: http.StatusConflict}
		case strings.HasSuffix(q.URL.Path, "/pods"):
			return http.StatusOK, corev1.PodList{TypeMeta: kindOf("PodList")}
		case deleted.Load() > 0:
			return http.StatusNotFound, metav1.Status{TypeMeta: kindOf("Status"), Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		case reads.Add(1) == 1:
			return http.StatusOK, old
		}
		return http.StatusOK, fresh
	})
	_, made, err := p.Create(t.Context(), r)
	if !kube.Conflict(err) || made || deleted.Load() != 0 {
		t.Errorf("made %t, %v; deleted %d JobSets", made, err, deleted.Load())
	}
}

// A run reads no nodes. A cluster can have thousands of them, and only prices need them.
func TestARunReadsNoNodes(t *testing.T) {
	t.Parallel()
	js, _ := exists(t)
	var nodes atomic.Value
	p := providerOn(t, func(q *http.Request) (int, any) {
		switch {
		case strings.HasSuffix(q.URL.Path, "/nodes"):
			nodes.Store(q.URL.Query().Get("labelSelector"))
			return http.StatusOK, corev1.NodeList{TypeMeta: kindOf("NodeList"), Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"cloud.google.com/gke-spot": "true"}}}}}
		case strings.HasSuffix(q.URL.Path, "/pods"):
			pod := worker("0", "0", "a", func(p *corev1.Pod) {
				p.Labels[jobset.JobSetNameKey], p.Spec.NodeName = "t", "n"
			})
			return http.StatusOK, corev1.PodList{TypeMeta: kindOf("PodList"), Items: []corev1.Pod{pod}}
		}
		return http.StatusOK, jobset.JobSetList{TypeMeta: kindOf("JobSetList"), Items: []jobset.JobSet{*js}}
	})
	if all, err := p.Slices(t.Context()); err != nil || len(all) != 1 || nodes.Load() != nil {
		t.Errorf("slices: %+v, %v; nodes were read: %v", all, err, nodes.Load())
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 || all[0].Tier != provision.Spot || nodes.Load() != labelPool+","+labelKind {
		t.Errorf("list: %+v, %v; nodes were read: %v", all, err, nodes.Load())
	}
}
