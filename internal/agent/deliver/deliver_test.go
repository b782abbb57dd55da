//go:build linux

package deliver_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/agent/deliver"
	"multihost/internal/agent/program"
	"multihost/internal/codesync"
	"multihost/internal/lease"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
	"multihost/internal/testkit/simworker"
)

// counted counts the bytes that a connection sends.
type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// With relays, the bytes on the runner's link grow with the number of slices, not of
// workers.
func TestTheAgentIsSentOnceASlice(t *testing.T) {
	testkit.OnlyInAll(t, "TestAFileIsPassedOn of internal/codesync")
	testkit.Need(t, "ssh")
	dir, err := builtagent.Folder("../../..")
	testkit.Must(t, err)
	agents := program.In(os.DirFS(dir))
	p, err := agents.For(runtime.GOARCH)
	testkit.Must(t, err)
	for _, row := range []struct{ slices, workers int }{{1, 16}, {1, 32}, {2, 32}} {
		var sent atomic.Int64
		workers := simworker.StartMany(t, row.workers, simworker.Config{SSH: sshfan.Config{
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return counted{conn, &sent}, err
			},
		}})
		targets := make([]codesync.Target, len(workers))
		for i, w := range workers {
			targets[i] = codesync.Target{Conn: w.Conns[0], Slice: i * row.slices / row.workers, Addr: w.Addr}
		}
		// Without a limit in its terms, the lease starts no watch, so no process stays.
		arm := func(ctx context.Context, i int) error {
			_, err := lease.Adopt(ctx, targets[i].Conn, agents.Sums(), lease.Terms{Run: "train"})
			return err
		}
		before := sent.Load()
		testkit.Must(t, errors.Join(deliver.Each(t.Context(), agents, codesync.Options{Stall: time.Minute}, targets, arm)...))
		bytes := sent.Load() - before
		t.Logf("agent: %d slices, %d workers: %d bytes, compressed %d", row.slices, row.workers, bytes, len(p.Packed))
		// The sync compresses at a fast level, so the copies are larger than Packed. Each
		// worker also gets the terms, the scripts and a login.
		if limit := int64(1.2*float64(row.slices*len(p.Packed))) + int64(row.workers)*50<<10; bytes > limit {
			t.Errorf("%d workers in %d slices: %d bytes left this machine, want at most %d", row.workers, row.slices, bytes, limit)
		}
	}
}
