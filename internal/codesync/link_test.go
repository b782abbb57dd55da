//go:build linux

package codesync_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// A link is the network interface from this machine to workers in namespaces.
type link struct{ name string }

// linkTo finds the link to addr and limits its rate.
func linkTo(t *testing.T, addr, rate string) link {
	t.Helper()
	host, _, err := net.SplitHostPort(addr)
	testkit.Must(t, err)
	out, err := exec.Command(testkit.Need(t, "ip"), "-o", "route", "get", host).Output()
	testkit.Must(t, err)
	_, rest, _ := strings.Cut(string(out), " dev ")
	l := link{name: strings.Fields(rest)[0]}
	if !strings.HasPrefix(l.name, "mhs") {
		t.Fatalf("workers are reached over %q, which is no link of ours", l.name)
	}
	tc := exec.Command(testkit.Need(t, "tc"), "qdisc", "add", "dev", l.name, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "500ms")
	if out, err := tc.CombinedOutput(); err != nil {
		t.Fatalf("limit %s: %v: %s", l.name, err, out)
	}
	return l
}

// sent returns the bytes that the kernel has put on the link.
func (l link) sent(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/net", l.name, "statistics/tx_bytes"))
	testkit.Must(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	testkit.Must(t, err)
	return n
}

// measure returns the bytes that f puts on the link, and the duration of f.
func (l link) measure(t *testing.T, f func()) (bytes int64, took time.Duration) {
	t.Helper()
	before, start := l.sent(t), time.Now()
	f()
	return l.sent(t) - before, time.Since(start)
}

// 16 workers in 2 slices, each with OpenSSH and its own network stack, are behind a narrow
// link. With relays the link carries little more than two uploads, so the sync can be five
// times faster than 16 uploads.
//
// With RELAY_FULL=1 the test also judges the time. It sends 64 MB at 100 Mbit/s, and needs a
// machine that does nothing else. Without RELAY_FULL, other tests run at the same time, and
// the test only counts bytes.
func TestRelayOnANarrowLink(t *testing.T) {
	testkit.OnlyInAll(t, "TestRelayUploadsOnceASlice")
	if testkit.RaceDetector {
		t.Skip("times are not judged under the race detector; the plain run measures")
	}
	testkit.NoLeaks(t)
	size, rate, full := 4<<20, 12, os.Getenv("RELAY_FULL") != ""
	if full {
		size, rate = 64<<20, 100
	}
	const n, slices = 16, 2
	testkit.Need(t, "ssh")
	// No other run of this test has these addresses at the same time.
	workers := simworker.StartMany(t, n, simworker.Config{Netns: true, Subnet: fmt.Sprintf("10.%d.%d", 190, os.Getpid()%250)})
	var targets []codesync.Target
	for i, w := range workers {
		targets = append(targets, codesync.Target{Conn: w.Conns[0], Slice: i * slices / n, Addr: w.Addr})
	}
	wire := linkTo(t, workers[0].Addr, fmt.Sprintf("%dmbit", rate))
	perSecond := float64(rate) * 1e6 / 8

	push := func(run string, size int, mode codesync.Relay, to []codesync.Target) (bytes int64, took time.Duration) {
		dir := t.TempDir()
		noise(t, filepath.Join(dir, "large"), size)
		tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir, Relay: mode})
		testkit.Must(t, err)
		defer tree.Close()
		return wire.measure(t, func() {
			reports, errs := tree.PushAll(t.Context(), to, run)
			testkit.Must(t, errors.Join(errs...))
			if mode == codesync.RelayAuto {
				relayed := 0
				for _, r := range reports {
					if r.From != "" {
						relayed++
					}
				}
				if relayed != n-slices {
					t.Errorf("%d workers got their files from another one, want %d", relayed, n-slices)
				}
			}
		})
	}

	one := size / 8
	bytes, took := push("one", one, codesync.RelayOff, targets[:1])
	if floor := float64(one) / perSecond; bytes < int64(one) || took.Seconds() < 0.8*floor {
		t.Fatalf("one upload of %d bytes cost the link %d and took %v: the link is not what it is taken for (%.1f s)", one, bytes, took, floor)
	}

	bytes, took = push("relayed", size, codesync.RelayAuto, targets)
	direct := time.Duration(float64(n*size) / perSecond * 1e9)
	if full {
		var all int64
		// another file of that size, so that no worker has it already
		all, direct = push("direct", size+1, codesync.RelayOff, targets)
		t.Logf("direct: %d bytes, %v", all, direct)
	}
	t.Logf("relayed: %d bytes (%.2f of one copy) in %v; direct %v: %.1f times as long",
		bytes, float64(bytes)/float64(size), took.Round(100*time.Millisecond), direct.Round(100*time.Millisecond), direct.Seconds()/took.Seconds())
	if limit := 2.2 * float64(size); float64(bytes) > limit {
		t.Errorf("relaying cost the link %d bytes, want at most %.0f", bytes, limit)
	}
	if full && took > direct/5 {
		t.Errorf("relaying took %v, want a fifth of %v at most", took, direct)
	}
}
