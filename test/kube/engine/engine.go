// Package engine runs a whole Kubernetes cluster on this machine: the control plane of
// package cluster, and the kubelet of package kubelet with nodes that have TPUs.
package engine

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"

	"multihost/test/kube/cluster"
	"multihost/test/kube/kubelet"
	"multihost/test/kube/parts"
)

// A Config describes a cluster.
type Config struct {
	Dir      string // directory of this cluster, for everything except the programs
	Pools    []kubelet.Pool
	Netns    bool              // pods are in network namespaces; see kubelet.Config
	Programs map[string]string // programs in images; see kubelet.Config
	Log      io.Writer         // receives the messages of the builder
}

// An Engine is a running cluster.
type Engine struct {
	*cluster.Cluster
	Kubelet *kubelet.Kubelet
}

// Start builds the programs that are missing, starts a cluster and waits until its nodes are
// ready. The caller closes it.
func Start(ctx context.Context, cfg Config) (*Engine, error) {
	keep, err := parts.Dir()
	if err != nil {
		return nil, err
	}
	programs, err := parts.Builder{Dir: keep, Log: cfg.Log}.Build(ctx, parts.All()...)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Config{Dir: cfg.Dir, Programs: programs})
	if err != nil {
		return nil, err
	}
	k, err := nodes(ctx, c, cfg)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Engine{Cluster: c, Kubelet: k}, nil
}

func nodes(ctx context.Context, c *cluster.Cluster, cfg Config) (*kubelet.Kubelet, error) {
	identity, err := c.ServerTLS()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(c.Logs(), "kubelet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	k, err := kubelet.New(kubelet.Config{
		API: c.Config(), TLS: identity, CA: c.CA(), Dir: filepath.Join(cfg.Dir, "kubelet"),
		Pools: cfg.Pools, Netns: cfg.Netns, Programs: cfg.Programs, Log: log.New(file, "", log.LstdFlags|log.Lmicroseconds),
	})
	if err != nil {
		return nil, err
	}
	if err := k.Start(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Close ends all pods, then the control plane.
func (e *Engine) Close() error { return errors.Join(e.Kubelet.Close(), e.Cluster.Close()) }
