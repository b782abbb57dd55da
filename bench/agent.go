package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	leased "multihost/internal/agent"
	"multihost/internal/agent/program"
	"multihost/internal/agent/program/build"
)

// usualLook is the time between two looks of a watch in use.
const usualLook = 20 * time.Second

// The bars of a watch.
const (
	mostResident = 10.0 // MiB
	mostShare    = 0.1  // % of a core
)

// measureAgent measures what the watch of a lease costs on a worker.
func measureAgent(ctx context.Context, _ *lab, r *report) error {
	const looks = 30
	r.section("The watch of a lease", fmt.Sprintf(`
multihost-agent watches the lease of a job on a worker. Before the measurement it asks the other workers, over TLS and with
the certificates of this machine, and is refused a deletion. Then it looks %d times at files of the worker, without the
network. In use it looks every %s.`, looks, usualLook))
	w, err := watchCost(ctx, ".", looks)
	if err != nil {
		return err
	}
	r.table([][]string{
		{"size, MB", "compressed, MB", "resident MiB", "CPU of a look, ms", "share of a core, %"},
		{fmt.Sprintf("%.1f", float64(w.size)/1e6), fmt.Sprintf("%.1f", float64(w.packed)/1e6), fmt.Sprintf("%.1f", w.resident),
			fmt.Sprintf("%.2f", w.look.Seconds()*1000), fmt.Sprintf("%.4f", w.share())},
	})
	r.most("size of multihost-agent, compressed", float64(w.packed)/1e6, program.Largest/1e6, "MB")
	r.most("memory of the watch of a lease", w.resident, mostResident, "MiB")
	r.most("CPU of the watch of a lease, share of a core", w.share(), mostShare, "%")
	return nil
}

// watched is what a watch costs.
type watched struct {
	size, packed int
	resident     float64 // MiB
	look         time.Duration
}

func (w watched) share() float64 { return 100 * w.look.Seconds() / usualLook.Seconds() }

// watchCost runs a watch against a metadata server and an API of its own. source is the
// directory of the source.
func watchCost(ctx context.Context, source string, looks int) (w watched, err error) {
	dir, err := os.MkdirTemp("", "multihost-bench-agent-")
	if err != nil {
		return w, err
	}
	defer os.RemoveAll(dir)
	if err := build.Into(ctx, source, dir, runtime.GOARCH); err != nil {
		return w, err
	}
	p, err := program.In(os.DirFS(dir)).For(runtime.GOARCH)
	if err != nil {
		return w, err
	}
	text, err := p.Unpack()
	if err != nil {
		return w, err
	}
	w.size, w.packed = len(text), len(p.Packed)
	agent := filepath.Join(dir, "agent")
	if err := os.WriteFile(agent, text, 0o755); err != nil {
		return w, err
	}
	cloud := &leaseCloud{refused: make(chan struct{}, 1)}
	metadata, api := httptest.NewServer(cloud), httptest.NewTLSServer(cloud)
	defer metadata.Close()
	defer api.Close()
	certificates := filepath.Join(dir, "certificates")
	known, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt") // elsewhere there are fewer to read
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	if err := os.WriteFile(certificates, append(known, own...), 0o644); err != nil {
		return w, err
	}
	env := []string{"HOME=" + dir, "MULTIHOST_ROOT_TMP=" + dir, "SSL_CERT_FILE=" + certificates, "GCE_METADATA_HOST=" + strings.TrimPrefix(metadata.URL, "http://")}
	for _, d := range []string{"tmp", "tmp/.multihost", ".multihost", ".multihost/lease"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return w, err
		}
	}
	deletion, err := json.Marshal([]leased.Deletion{{Read: api.URL + "/q", Method: http.MethodDelete, URL: api.URL + "/q",
		Proof: leased.Field{Path: "/tpu/nodeSpec/*/node/labels/multihost-run", Value: "r"}}})
	if err != nil {
		return w, err
	}
	terms := fmt.Sprintf("run=r\nundo_look=%[1]s/q\nundo_peers=%[1]s/{slice}:getGuestAttributes\ndelete=%[2]s\nnodes=n\ntotal=2\nlease=1\nlook=1\nadopted=yes\n", api.URL, deletion)
	if err := os.WriteFile(filepath.Join(dir, ".multihost/lease/r.terms"), []byte(terms), 0o644); err != nil {
		return w, err
	}
	cmd := exec.CommandContext(ctx, agent, "lease", "watch", "r")
	cmd.Env = env
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return w, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	select {
	case <-cloud.refused:
	case <-time.After(time.Minute):
		return w, fmt.Errorf("the watch asks for no deletion: %s", log.String())
	case <-ctx.Done():
		return w, context.Cause(ctx)
	}
	// No further deletion: the terms are now those of a lease that holds.
	lease := filepath.Join(dir, "tmp/.multihost/r.lease.1")
	if err := os.WriteFile(lease, []byte(strings.Replace(terms, "lease=1\n", "lease=86400\n", 1)), 0o644); err != nil {
		return w, err
	}
	if err := rest(ctx, 3*time.Second); err != nil {
		return w, err
	}
	before, err := processorTime(cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	if err := rest(ctx, time.Duration(looks)*time.Second); err != nil {
		return w, err
	}
	after, err := processorTime(cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	w.look = (after - before) / time.Duration(looks)
	w.resident, err = residentNow(cmd.Process.Pid)
	return w, err
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaseCloud is the metadata server and the API of one worker of two. It refuses the
// deletion.
type leaseCloud struct{ refused chan struct{} }

func (c *leaseCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/token"):
		io.WriteString(w, `{"access_token":"t"}`)
	case strings.HasSuffix(r.URL.Path, ":getGuestAttributes"):
		items := fmt.Sprintf(`{"queryValue":{"items":[{"namespace":"multihost","key":"lease","value":"run=r state=none at=%d"}]}}`, time.Now().Unix())
		fmt.Fprintf(w, `{"guestAttributes":[%s,%s]}`, items, items)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusForbidden)
		select {
		case c.refused <- struct{}{}:
		default:
		}
	case r.Method == http.MethodGet:
		io.WriteString(w, `{"name":"q","tpu":{"nodeSpec":[{"node":{"labels":{"multihost-run":"r"}}}]}}`)
	}
}

// processorTime returns the time that all threads of a process have run.
func processorTime(pid int) (total time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %v", pid, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		word, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n)
	}
	return total, nil
}

// residentNow returns the resident memory of a process, in MiB.
func residentNow(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0, fmt.Errorf("process %d has no memory", pid)
	}
	n, err := strconv.ParseFloat(fields[0], 64)
	return n / 1024, err
}
