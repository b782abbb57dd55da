package kubeapi

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// Clusters are clusters by name. Its methods are safe for concurrent use.
type Clusters struct {
	config func(dir string) Config

	mu   sync.Mutex
	dir  string
	made int // for directories
	all  map[string]*Server
}

// NewClusters returns no clusters. Each will have a directory of its own below dir, and the
// configuration that config returns for that directory.
func NewClusters(dir string, config func(dir string) Config) *Clusters {
	return &Clusters{config: config, dir: dir, all: make(map[string]*Server)}
}

// Open starts a cluster without nodes. It returns the address of its API, host:port, and
// the certificate in PEM with which clients check it.
func (c *Clusters) Open(name string) (address string, ca []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[name] != nil {
		return "", nil, fmt.Errorf("start cluster %q: it runs already", name)
	}
	c.made++
	dir := filepath.Join(c.dir, strconv.Itoa(c.made))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("start cluster %q: %w", name, err)
	}
	s, err := New(c.config(dir))
	if err != nil {
		return "", nil, fmt.Errorf("start cluster %q: %w", name, err)
	}
	c.all[name] = s
	return s.address(), s.CA(), nil
}

// Get returns a cluster that runs; nil if there is none with this name.
func (c *Clusters) Get(name string) *Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[name]
}

// Names returns the names of the clusters, sorted.
func (c *Clusters) Names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.all))
}

// SetPool makes these nodes the nodes of a pool of a cluster; see Server.SetPool.
func (c *Clusters) SetPool(name, pool string, nodes []Node) error {
	s := c.Get(name)
	if s == nil {
		return fmt.Errorf("set pool %q: no cluster %q runs", pool, name)
	}
	return s.SetPool(pool, nodes)
}

// Close ends a cluster. That there is none is no error.
func (c *Clusters) Close(name string) error {
	c.mu.Lock()
	s := c.all[name]
	delete(c.all, name)
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close()
}

// CloseAll ends all clusters.
func (c *Clusters) CloseAll() error {
	var errs []error
	for _, name := range c.Names() {
		errs = append(errs, c.Close(name))
	}
	return errors.Join(errs...)
}
