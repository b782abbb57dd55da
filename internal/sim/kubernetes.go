package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/registry"
	"multihost/internal/sim/worker"
)

// kubernetes serves the Kubernetes APIs of the clusters. It implements cloud.Kubernetes.
type kubernetes struct {
	dir     string
	backend worker.Backend         // backend for the machines of pods; nil: each cluster has its own
	agent   func() ([]byte, error) // nil: the images lack it
	images  *registry.Registry

	mu      sync.Mutex
	servers map[string]*kubeapi.Server // by resource name of the cluster
}

// Open implements cloud.Kubernetes.
func (k *kubernetes) Open(cluster string) (address string, ca []byte, err error) {
	dir := filepath.Join(k.dir, strings.ReplaceAll(cluster, "/", "_"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	programs, err := k.programs(dir)
	if err != nil {
		return "", nil, err
	}
	s, err := kubeapi.New(kubeapi.Config{Dir: dir, Programs: programs, Image: k.images.Unpack, Backend: k.backend, Bare: true, Token: func(string) bool { return true }})
	if err != nil {
		return "", nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.servers == nil {
		k.servers = map[string]*kubeapi.Server{}
	}
	k.servers[cluster] = s
	return strings.TrimPrefix(s.URL(), "https://"), s.CA(), nil
}

// programs returns the files of programs that only images have.
func (k *kubernetes) programs(dir string) (map[string]string, error) {
	if k.agent == nil {
		return nil, nil
	}
	text, err := k.agent()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "multihost-agent")
	return map[string]string{"multihost-agent": file}, os.WriteFile(file, text, 0o700)
}

func (k *kubernetes) server(cluster string) *kubeapi.Server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.servers[cluster]
}

// SetPool implements cloud.Kubernetes.
func (k *kubernetes) SetPool(cluster, pool string, nodes []cloud.KubeNode) error {
	s := k.server(cluster)
	if s == nil {
		return fmt.Errorf("set node pool %q: there is no cluster %q", pool, cluster)
	}
	all := make([]kubeapi.Node, len(nodes))
	for i, n := range nodes {
		all[i] = kubeapi.Node{Name: n.Name, Labels: n.Labels, Chips: n.Chips}
	}
	return s.SetPool(pool, all)
}

// Close implements cloud.Kubernetes.
func (k *kubernetes) Close(cluster string) error {
	k.mu.Lock()
	s := k.servers[cluster]
	delete(k.servers, cluster)
	k.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close()
}

// closeAll ends the APIs of all clusters.
func (k *kubernetes) closeAll() error {
	k.mu.Lock()
	all := k.servers
	k.servers = nil
	k.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
