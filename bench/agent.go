package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	leased "multihost/internal/agent"
	"multihost/internal/agent/program"
	"multihost/internal/agent/program/build"
)

// usualLook is the usual time between two checks of a lease by its watch.
const usualLook = 20 * time.Second

// limits for the watch of a lease
const (
	mostResident = 10.0 // MiB
	mostShare    = 0.1  // % of a core
)

// measureAgent measures what the watch of a lease costs on a worker.
func measureAgent(ctx context.Context, l *lab, r *report) error {
	const looks = 30
	r.section("The watch of a lease", fmt.Sprintf(`
multihost-agent watches the lease of a job on a worker. It is two processes: the watch, and the one that starts the watch
again when it dies. Memory that the two share counts once. Before the measurement the watch asks the other workers over TLS,
with the certificates of this machine, and asks for a deletion, which the API refuses. Then it looks %d times at files of the worker, without
the network. In use it looks every %s.`, looks, usualLook))
	built, err := os.MkdirTemp("", "multihost-bench-agent-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	if err := build.Into(ctx, ".", built, runtime.GOARCH); err != nil {
		return err
	}
	w, err := watchCost(ctx, program.In(os.DirFS(built)), looks)
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
	return measureDelivery(ctx, l, r)
}

var delivered = regexp.MustCompile(`agent: (\d+) slices, (\d+) workers: (\d+) bytes, compressed (\d+)`)

// measureDelivery measures how multihost copies the agent to the workers. It runs
// TestTheAgentIsSentOnceASlice, which also checks the amount.
func measureDelivery(ctx context.Context, l *lab, r *report) error {
	r.section("Bringing the agent to workers", `
The table shows what the runner sends to workers that lack multihost-agent: the program, scripts, logins and the terms of a
lease. Workers pass the program on to each other where that keeps 32 MiB or more off the runner's link.
TestTheAgentIsSentOnceASlice of internal/agent/deliver measures this.`)
	if l.deliver == "" {
		r.note("Not measured: no test program was given (-deliver).")
		return nil
	}
	test := exec.CommandContext(ctx, l.deliver, "-test.run=^TestTheAgentIsSentOnceASlice$", "-test.v", "-test.timeout=5m")
	test.Env = append(os.Environ(), "MULTIHOST_TESTS=all")
	test.Dir = "internal/agent/deliver" // the test builds the agent from the sources here
	out, err := test.CombinedOutput()
	all := delivered.FindAllSubmatch(out, -1)
	if err != nil || len(all) == 0 {
		return fmt.Errorf("the test of the agent's way told %d figures: %w", len(all), errors.Join(err, errors.New(lastOf(out))))
	}
	rows := [][]string{{"slices", "workers", "MB over the runner's link", "MB a slice", "MB a worker"}}
	for _, said := range all {
		var n [4]float64
		for i := range n {
			n[i], _ = strconv.ParseFloat(string(said[i+1]), 64) // the pattern matches only numbers
		}
		rows = append(rows, []string{string(said[1]), string(said[2]), fmt.Sprintf("%.1f", n[2]/1e6), fmt.Sprintf("%.2f", n[2]/n[0]/1e6), fmt.Sprintf("%.2f", n[2]/n[1]/1e6)})
		if n[0] == 2 {
			r.most("agent to 32 workers in 2 slices: bytes over the runner's link, × its compressed size", n[2]/n[3], 3, "")
		}
	}
	r.table(rows)
	return nil
}

// watched is the cost of the watch of a lease. size and packed are in bytes. look is the CPU
// time of one check.
type watched struct {
	size, packed int
	resident     float64 // MiB
	look         time.Duration
}

func (w watched) share() float64 { return 100 * w.look.Seconds() / usualLook.Seconds() }

// watchCost measures the watch of a lease. It starts a metadata server and an API for the
// watch.
func watchCost(ctx context.Context, agents program.Set, looks int) (w watched, err error) {
	dir, err := os.MkdirTemp("", "multihost-bench-agent-")
	if err != nil {
		return w, err
	}
	defer os.RemoveAll(dir)
	agent, err := w.install(agents, dir)
	if err != nil {
		return w, err
	}
	cloud := &leaseCloud{refused: make(chan struct{}, 1)}
	metadata, api := httptest.NewServer(cloud), httptest.NewTLSServer(cloud)
	defer metadata.Close()
	defer api.Close()
	certificates := filepath.Join(dir, "certificates")
	known, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt") // without the file, the watch only reads fewer certificates
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
	deletion, err := json.Marshal(leased.Deletion{Read: api.URL + "/q", Method: http.MethodDelete, URL: api.URL + "/q",
		Proof: leased.Field{Path: "/tpu/nodeSpec/*/node/labels/multihost-run", Value: "r"}})
	if err != nil {
		return w, err
	}
	peers, err := json.Marshal(leased.Peers{Read: api.URL + "/{slice}:getGuestAttributes", Body: "{}", Told: "/guestAttributes/*/queryValue/items/*/value"})
	if err != nil {
		return w, err
	}
	terms := fmt.Sprintf("run=r\npeers=%s\ndeletion=%s\nnodes=n\ntotal=2\nlease=1\nlook=1\nadopted=yes\n", peers, deletion)
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
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	select {
	case <-cloud.refused:
	case <-time.After(time.Minute):
		return w, fmt.Errorf("the watch asks for no deletion: %s", log.String())
	case <-ctx.Done():
		return w, context.Cause(ctx)
	}
	// The lease has been renewed, so no further deletion comes.
	lease := filepath.Join(dir, "tmp/.multihost/r.lease.1")
	if err := os.WriteFile(lease, []byte(strings.Replace(terms, "lease=1\n", "lease=86400\n", 1)), 0o644); err != nil {
		return w, err
	}
	if err := rest(ctx, 3*time.Second); err != nil {
		return w, err
	}
	pids, err := watchers(dir)
	if err != nil {
		return w, err
	}
	before, err := processorTime(pids)
	if err != nil {
		return w, err
	}
	if err := rest(ctx, time.Duration(looks)*time.Second); err != nil {
		return w, err
	}
	after, err := processorTime(pids)
	if err != nil {
		return w, err
	}
	w.look = (after - before) / time.Duration(looks)
	w.resident, err = residentNow(pids)
	return w, err
}

func (w *watched) install(agents program.Set, dir string) (string, error) {
	p, err := agents.For(runtime.GOARCH)
	if err != nil {
		return "", err
	}
	text, err := p.Unpack()
	if err != nil {
		return "", err
	}
	w.size, w.packed = len(text), len(p.Packed)
	agent := filepath.Join(dir, "agent")
	return agent, os.WriteFile(agent, text, 0o755)
}

// watchers returns the process ids of the watch of run r and of the process that restarts the
// watch.
func watchers(dir string) (pids []int, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "tmp/.multihost/r.watch.*"))
	if err != nil || len(names) != 1 {
		return nil, fmt.Errorf("the files of the watch are %q: %v", names, err)
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		word, _, _ := strings.Cut(line, " ")
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		return nil, fmt.Errorf("the processes of the watch are %v, want two", pids)
	}
	return pids, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaseCloud is the metadata server and the API for one of two workers. It refuses every
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

// processorTime returns the CPU time that all threads of the processes have used.
func processorTime(pids []int) (total time.Duration, err error) {
	for _, pid := range pids {
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
	}
	return total, nil
}

// residentNow returns the resident memory of processes, in MiB. Shared memory counts once.
func residentNow(pids []int) (total float64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := strings.Cut(string(text), "Pss:")
		fields := strings.Fields(after)
		if len(fields) == 0 {
			return 0, fmt.Errorf("process %d has no memory", pid)
		}
		n, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, err
		}
		total += n / 1024
	}
	return total, nil
}
