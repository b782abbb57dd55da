// Package cluster runs a Kubernetes control plane as processes on 127.0.0.1: etcd, the API
// server, the controller manager, the scheduler, JobSet and Kueue. It has no nodes.
package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A Config describes a cluster.
type Config struct {
	Dir      string            // directory of this cluster, for keys, logs and etcd's data
	Programs map[string]string // files of the programs by name, as parts.Builder returns them
}

// A Cluster is a running control plane. Its methods are safe for concurrent use.
type Cluster struct {
	cfg   Config
	ca    *authority
	ports struct{ etcd, peer, api, jobSet, jobSetHealth, kueue, kueueHealth int }
	http  *http.Client // trusts the cluster's authority
	rest  *rest.Config

	mu      sync.Mutex
	running map[string]*process
}

// The parts, in the order in which they start.
const (
	Etcd       = "etcd"
	API        = "kube-apiserver"
	Controller = "kube-controller-manager"
	Scheduler  = "kube-scheduler"
	JobSet     = "jobset"
	Kueue      = "kueue"
)

// Start starts a cluster and waits until all parts are ready. The caller closes it.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, running: map[string]*process{}}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.StartAPI(ctx); err != nil {
		return err
	}
	for _, name := range []string{Controller, Scheduler} {
		args := []string{"--kubeconfig=" + c.file(name+".kubeconfig"), "--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=500"}
		if name == Controller {
			args = append(args, "--use-service-account-credentials=true", "--service-account-private-key-file="+c.file(fileAccounts), "--root-ca-file="+c.file(fileCA))
		}
		if _, err := c.run(name, nil, args...); err != nil {
			return err
		}
	}
	return c.startControllers(ctx)
}

// prepare makes the files of the cluster and chooses its ports.
func (c *Cluster) prepare() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := c.ca.writeKeys(c.cfg.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Logs(), 0o755); err != nil {
		return err
	}
	p := &c.ports
	if err := freePorts(&p.etcd, &p.peer, &p.api, &p.jobSet, &p.jobSetHealth, &p.kueue, &p.kueueHealth); err != nil {
		return err
	}
	for name, who := range map[string][]string{
		"admin":    {"admin", adminGroup},
		Controller: {"system:kube-controller-manager", "system:authenticated"},
		Scheduler:  {"system:kube-scheduler", "system:authenticated"},
		// The controllers have the rights that their projects ask for, and no others.
		JobSet: {"system:serviceaccount:jobset-system:jobset-controller-manager", "system:serviceaccounts"},
		Kueue:  {"system:serviceaccount:kueue-system:kueue-controller-manager", "system:serviceaccounts"},
	} {
		text, err := c.ca.kubeconfig(c.URL(), who[0], who[1:]...)
		if err != nil {
			return err
		}
		if err := write(c.file(name+".kubeconfig"), text); err != nil {
			return err
		}
	}
	if c.rest, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.rest.QPS = -1 // the server has limits of its own
	c.http, err = rest.HTTPClientFor(c.rest)
	return err
}

// freePorts sets ports to free ports of 127.0.0.1.
func freePorts(ports ...*int) error {
	for _, port := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }() // nobody has connected
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.cfg.Dir, name) }

// Logs returns the directory with the output of each part.
func (c *Cluster) Logs() string { return c.file("logs") }

// Kubeconfig returns the file with which an administrator uses the cluster. Its context is
// "test".
func (c *Cluster) Kubeconfig() string { return c.file("admin.kubeconfig") }

// Config returns the configuration of an administrator's client. It has no limit of requests.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.rest) }

// URL returns the address of the API server.
func (c *Cluster) URL() string { return "https://" + address(c.ports.api) }

// CA returns the certificate of the cluster's authority, in PEM.
func (c *Cluster) CA() []byte { return bytes.Clone(c.ca.pem) }

// ServerTLS returns the TLS configuration for a server of the cluster on 127.0.0.1, such as a
// kubelet or a webhook. The API server shows a kubelet a certificate of the authority.
func (c *Cluster) ServerTLS() (*tls.Config, error) { return c.ca.serverTLS() }

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func encode(text []byte) string { return base64.StdEncoding.EncodeToString(text) }

// run starts a part.
func (c *Cluster) run(name string, env []string, args ...string) (*process, error) {
	program := c.cfg.Programs[name]
	if program == "" {
		return nil, fmt.Errorf("start %s: there is no such program", name)
	}
	p, err := start(c.Logs(), name, program, env, args...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[name] = p
	return p, nil
}

func (c *Cluster) part(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[name]
}

// answers returns an error if a health check fails.
func (c *Cluster) answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	client, peer := "http://"+address(c.ports.etcd), "http://"+address(c.ports.peer)
	p, err := c.run(Etcd, nil, "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error { return c.answers(ctx, client+"/health") })
}

// StartAPI starts the API server and waits until it is ready. It is for use after KillAPI.
func (c *Cluster) StartAPI(ctx context.Context) error {
	p, err := c.run(API, nil,
		"--etcd-servers=http://"+address(c.ports.etcd),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--endpoint-reconciler-type=none", // an endpoint on 127.0.0.1 is refused
		"--service-cluster-ip-range=10.0.0.0/16",
		"--client-ca-file="+c.file(fileCA),
		"--tls-cert-file="+c.file(fileServer)+".crt", "--tls-private-key-file="+c.file(fileServer)+".key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.file(fileAccounts), "--service-account-signing-key-file="+c.file(fileAccounts),
		"--authorization-mode=RBAC", "--allow-privileged=true",
		"--kubelet-certificate-authority="+c.file(fileCA), "--kubelet-client-certificate="+c.file(fileKubelet)+".crt", "--kubelet-client-key="+c.file(fileKubelet)+".key",
		"--kubelet-preferred-address-types=InternalIP",
		"--disable-admission-plugins=ServiceAccount", // pods need no token
	)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error { return c.answers(ctx, c.URL()+"/readyz") })
}

// KillAPI kills the API server, as a crash does. StartAPI starts it again.
func (c *Cluster) KillAPI() { c.part(API).kill() }

// Memory returns the resident memory of each part in bytes.
func (c *Cluster) Memory() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]int64{}
	for name, p := range c.running {
		var size, resident int64
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid)) // an ended process has no memory
		if _, err := fmt.Sscan(string(text), &size, &resident); err == nil {
			all[name] = resident * int64(os.Getpagesize())
		}
	}
	return all
}

// Close ends all parts and waits for their end. The files stay.
func (c *Cluster) Close() error {
	// The API server waits up to a minute for clients that follow a log. Killing it earlier
	// loses nothing.
	for _, group := range [][]string{{JobSet, Kueue, Scheduler, Controller}, {API}, {Etcd}} {
		var wg sync.WaitGroup
		for _, name := range group {
			if p := c.part(name); p != nil {
				wg.Go(p.stop)
			}
		}
		wg.Wait()
	}
	c.http.CloseIdleConnections()
	return nil
}
