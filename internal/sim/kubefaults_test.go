package sim_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	container "google.golang.org/api/container/v1beta1"
	"google.golang.org/api/option"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// TestFaultsOfClusters injects the faults of clusters as a user does, and checks their
// effects through the API of a cluster.
func TestFaultsOfClusters(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c, err := container.NewService(t.Context(), option.WithEndpoint(s.URL()+"/"), option.WithoutAuthentication())
	testkit.Must(t, err)
	clusters := c.Projects.Locations.Clusters
	_, err = clusters.Create(strings.TrimPrefix(inLocation, "/"), &container.CreateClusterRequest{Cluster: &container.Cluster{
		Name: "c", NodePools: []*container.NodePool{{Name: "p", InitialNodeCount: 2, Config: &container.NodeConfig{MachineType: "e2-standard-16"}}},
	}}).Do()
	testkit.Must(t, err)
	var made *container.Cluster
	testkit.Eventually(t, "the cluster", func() bool {
		made, err = clusters.Get(strings.TrimPrefix(inLocation, "/") + "/clusters/c").Do()
		return err == nil && made.Status == "RUNNING"
	})
	ca, err := base64.StdEncoding.DecodeString(made.MasterAuth.ClusterCaCertificate)
	testkit.Must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		r, err := h.Get("https://" + made.Endpoint + path)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	nodes := func() int { _, text := get("/api/v1/nodes"); return strings.Count(text, `"kind":"Node"`) }
	testkit.Eventually(t, "two nodes", func() bool { return nodes() == 2 })

	inject(t, s, "cluster-node-gone node=gke-*-0000")
	testkit.Eventually(t, "one node", func() bool { return nodes() == 1 })
	inject(t, s, "cluster-api-error code=503 n=2 cluster=c")
	for i, want := range []int{503, 503, 200} {
		if code, _ := get("/api/v1/nodes"); code != want {
			t.Errorf("answer %d is %d, want %d", i, code, want)
		}
	}
	inject(t, s, "cluster-away")
	if code, text := get("/api/v1/nodes"); code != 0 {
		t.Errorf("an API that is away answers %d %s", code, text)
	}
	if _, err := s.Clear("cluster-away"); err != nil {
		t.Error(err)
	}
	if code, text := get("/api/v1/nodes"); code != 200 {
		t.Errorf("an API that is back answers %d %s", code, text)
	}
	for _, text := range []string{"pod-kill pod=none", "cluster-exec-cut cluster=other", "cluster-node-gone node=none"} {
		f, err := sim.ParseFault(text)
		testkit.Must(t, err)
		if _, err := s.Inject(f); err == nil || !strings.Contains(err.Error(), "nothing matches") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
