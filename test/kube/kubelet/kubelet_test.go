package kubelet

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	admission "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/exec"

	"multihost/internal/sim/kubeapi/gkenode"
	"multihost/internal/sim/netns"
	"multihost/internal/testkit"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	os.Exit(m.Run())
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{}
	a.key, a.cert = a.sign(t, "ca")
	return a
}

// sign makes a key and its certificate. The first one is that of the authority.
func (a authority) sign(t *testing.T, name string) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, parent, signer = true, c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	testkit.Must(t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.Must(t, err)
	return key, cert
}

func (a authority) tls(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, cert := a.sign(t, name)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// An api is an API server with one pod. If down is set, it answers as down says.
type api struct {
	mu      sync.Mutex
	pod     *corev1.Pod
	job     *batchv1.Job
	down    bool
	phases  []corev1.PodPhase // phases that the kubelet has written
	removed chan struct{}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	path := r.URL.Path
	switch {
	case a.down:
		answer(http.StatusServiceUnavailable, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 503})
	case strings.HasPrefix(path, "/apis/batch/v1/namespaces/default/jobs/"):
		answer(http.StatusOK, a.job)
	case a.pod == nil:
		answer(http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	case r.Method == http.MethodPut:
		var pod corev1.Pod
		if json.NewDecoder(r.Body).Decode(&pod) == nil {
			a.pod.Status = pod.Status
			a.phases = append(a.phases, pod.Status.Phase)
		}
		answer(http.StatusOK, a.pod)
	case r.Method == http.MethodDelete:
		a.pod = nil
		close(a.removed)
		answer(http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
	default:
		answer(http.StatusOK, a.pod)
	}
}

// begin returns a kubelet that runs one pod, and a client of its HTTPS server.
func begin(t *testing.T, script string) (*Kubelet, *api, *rest.Config) {
	t.Helper()
	a := &api{removed: make(chan struct{})}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	ca := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	k, err := New(Config{API: &rest.Config{Host: server.URL}, TLS: &tls.Config{Certificates: []tls.Certificate{ca.tls(t, "kubelet")}, ClientCAs: pool}, Dir: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, k.Close()) })
	k.nodes["n"] = "pool"
	a.pod = &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{NodeName: "n", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "main", Command: []string{"bash", "-c", script}, TerminationMessagePath: "/dev/termination-log",
		}}},
	}
	k.show(t, a.pod.DeepCopy())
	key, cert := ca.sign(t, "client")
	der, err := x509.MarshalECPrivateKey(key)
	testkit.Must(t, err)
	return k, a, &rest.Config{Host: "https://" + k.ln.Addr().String(), TLSClientConfig: rest.TLSClientConfig{
		CAData:   ca.pem(),
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}}
}

// show shows a state of the pod to the kubelet, as its watch does.
func (k *Kubelet) show(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	o, err := encode(pod)
	testkit.Must(t, err)
	k.see(make(map[podUID]*unstructured.Unstructured), o, false)
}

func (a *api) phase() corev1.PodPhase {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod.Status.Phase
}

func (a *api) await(t *testing.T, phase corev1.PodPhase) {
	t.Helper()
	testkit.Eventually(t, "pod to be "+string(phase), func() bool { return a.phase() == phase })
}

// get reads a path of the kubelet.
func get(t *testing.T, c *rest.Config, path string) (code int, text string) {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	testkit.Must(t, err)
	resp, err := client.Get(c.Host + path)
	testkit.Must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(b)
}

func TestExec(t *testing.T) {
	_, a, c := begin(t, "sleep 1000")
	a.await(t, corev1.PodRunning)
	run := func(o remotecommand.StreamOptions, argv ...string) error {
		q := url.Values{"command": argv, "output": {"1"}}
		for name, on := range map[string]bool{"input": o.Stdin != nil, "error": o.Stderr != nil, "tty": o.Tty} {
			if on {
				q.Set(name, "1")
			}
		}
		u, err := url.Parse(c.Host + "/exec/default/p/main?" + q.Encode())
		testkit.Must(t, err)
		e, err := remotecommand.NewSPDYExecutor(c, "POST", u)
		testkit.Must(t, err)
		return e.StreamWithContext(t.Context(), o)
	}
	sent := make([]byte, 3<<20)
	_, _ = rand.Read(sent) // never fails
	var out, errOut bytes.Buffer
	var code exec.ExitError
	err := run(remotecommand.StreamOptions{Stdin: bytes.NewReader(sent), Stdout: &out, Stderr: &errOut}, "bash", "-c", "cat; echo no >&2; exit 7")
	if !errors.As(err, &code) || code.ExitStatus() != 7 || !bytes.Equal(out.Bytes(), sent) || errOut.String() != "no\n" {
		t.Errorf("error %v, %d of %d bytes, stderr %q", err, out.Len(), len(sent), errOut.String())
	}
	out.Reset()
	if err := run(remotecommand.StreamOptions{Stdout: &out, Tty: true, Stdin: strings.NewReader("")}, "bash", "-c", "test -t 1 && echo yes"); err != nil || out.String() != "yes\r\n" {
		t.Errorf("terminal: %v, %q", err, out.String())
	}
	if err := run(remotecommand.StreamOptions{Stdout: &out}, "no-such-program"); err == nil || !strings.Contains(err.Error(), "executable file not found in $PATH") {
		t.Errorf("a program that is missing: %v", err)
	}
}

func TestLogs(t *testing.T) {
	_, a, c := begin(t, "echo one; echo two >&2; exit 3")
	a.await(t, corev1.PodFailed)
	if got := a.pod.Status.ContainerStatuses[0].State.Terminated.ExitCode; got != 3 {
		t.Errorf("exit code %d", got)
	}
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"main?follow=true&tailLines=1&stream=Stdout", 200, "one\n"},
		{"main?previous=true", 400, `previous terminated container "main" in pod "p" not found`},
		{"main?tailLines=x", 400, "tailLines: Invalid value: \"x\": must be greater than or equal to 0\n"},
	} {
		if code, text := get(t, c, "/containerLogs/default/p/"+tt.path); code != tt.code || text != tt.want {
			t.Errorf("%s: %d %q", tt.path, code, text)
		}
	}
	if code, _ := get(t, c, "/containerLogs/default/other/main"); code != 404 {
		t.Errorf("log of another pod: %d", code)
	}
	stranger := rest.CopyConfig(c)
	stranger.CertData, stranger.KeyData = nil, nil
	if code, _ := get(t, stranger, "/containerLogs/default/p/main"); code != 401 {
		t.Errorf("without a certificate: %d", code)
	}
}

// TestAway: a pod continues while the API is unavailable. Afterwards the API gets the pod's end
// before the pod is removed.
func TestAway(t *testing.T) {
	k, a, c := begin(t, "trap 'echo ended; exit 5' TERM; echo ready; sleep 1000 & wait")
	a.await(t, corev1.PodRunning)
	testkit.Eventually(t, "the pod's first line", func() bool {
		_, text := get(t, c, "/containerLogs/default/p/main")
		return text == "ready\n"
	})
	a.mu.Lock()
	a.down = true
	pod := a.pod.DeepCopy()
	a.mu.Unlock()
	now, grace := metav1.Now(), int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	k.show(t, pod)
	if _, text := get(t, c, "/containerLogs/default/p/main?follow=true"); text != "ready\nended\n" {
		t.Errorf("log is %q", text)
	}
	a.mu.Lock()
	a.down = false
	a.mu.Unlock()
	<-a.removed
	if last := a.phases[len(a.phases)-1]; last != corev1.PodFailed {
		t.Errorf("written phases: %v", a.phases)
	}
}

func TestWebhook(t *testing.T) {
	_, a, c := begin(t, "sleep 1000")
	four, yes := int32(4), true
	a.job = &batchv1.Job{TypeMeta: metav1.TypeMeta{Kind: "Job", APIVersion: "batch/v1"}, ObjectMeta: metav1.ObjectMeta{Name: "w-slice-job-1", Namespace: "default"}}
	a.job.Spec.Completions = &four
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "w-slice-job-1", Controller: &yes}},
		Annotations:     map[string]string{batchv1.JobCompletionIndexAnnotation: "2"},
	}, Spec: corev1.PodSpec{Subdomain: "w", Containers: []corev1.Container{
		{Name: "other", Env: []corev1.EnvVar{{Name: "A"}}},
		{Name: "main", Env: []corev1.EnvVar{{Name: "A"}}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gkenode.TPU: resource.MustParse("4")}}},
	}}}
	ask := func() string {
		raw, err := json.Marshal(pod)
		testkit.Must(t, err)
		review := admission.AdmissionReview{Request: &admission.AdmissionRequest{UID: "x", Namespace: "default"}}
		review.Request.Object.Raw = raw
		body, err := json.Marshal(review)
		testkit.Must(t, err)
		anybody := rest.CopyConfig(c)
		anybody.CertData, anybody.KeyData = nil, nil
		client, err := rest.HTTPClientFor(anybody)
		testkit.Must(t, err)
		resp, err := client.Post(c.Host+webhookPath, "application/json", bytes.NewReader(body))
		testkit.Must(t, err)
		defer resp.Body.Close()
		review = admission.AdmissionReview{}
		testkit.Must(t, json.NewDecoder(resp.Body).Decode(&review))
		if review.Response.UID != "x" || !review.Response.Allowed {
			t.Errorf("answer is %+v", review.Response)
		}
		return string(review.Response.Patch)
	}
	want := `[{"op":"add","path":"/spec/containers/1/env","value":[{"name":"A"},{"name":"TPU_WORKER_ID","value":"2"},{"name":"TPU_WORKER_HOSTNAMES","value":"w-slice-job-1-0.w,w-slice-job-1-1.w,w-slice-job-1-2.w,w-slice-job-1-3.w"}]}]`
	if got := ask(); got != want {
		t.Errorf("patch is %s", got)
	}
	pod.OwnerReferences = nil
	if got := ask(); got != "" {
		t.Errorf("patch of a pod without Job is %s", got)
	}
}
