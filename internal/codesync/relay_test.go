//go:build linux

package codesync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

func noise(t testing.TB, path string, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	_, err := rand.NewChaCha8([32]byte{byte(size)}).Read(data)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(path, data, 0o644))
	return data
}

// A relayed is a tree and its workers.
type relayed struct {
	workers []*simworker.Worker
	targets []codesync.Target
	tree    *codesync.Tree
	sink    *testkit.Recorder
	data    []byte
}

// relay starts workers in two slices of equal size, and scans a tree with one large file.
func relay(t *testing.T, n int, o codesync.Options) *relayed {
	t.Helper()
	testkit.Need(t, "ssh")
	r := &relayed{workers: simworker.StartMany(t, n, simworker.Config{}), sink: &testkit.Recorder{}}
	for i, w := range r.workers {
		r.targets = append(r.targets, codesync.Target{Conn: w.Conns[0], Slice: i * 2 / n, Addr: w.Addr})
	}
	o.Dir, o.Sink = t.TempDir(), r.sink
	r.data = noise(t, filepath.Join(o.Dir, "large"), 2<<20)
	testkit.Must(t, os.WriteFile(filepath.Join(o.Dir, "small.py"), []byte("print(1)\n"), 0o644))
	var err error
	r.tree, err = codesync.Scan(t.Context(), o)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, r.tree.Close()) })
	return r
}

// push pushes, and checks that every worker has exactly the tree.
func (r *relayed) push(t *testing.T, run string) []codesync.Report {
	t.Helper()
	reports, errs := r.tree.PushAll(t.Context(), r.targets, run)
	testkit.Must(t, errors.Join(errs...))
	for i, w := range r.workers {
		home := filepath.Join(w.Root, "home/tester")
		got, err := os.ReadFile(filepath.Join(home, run, "large"))
		if err != nil || !bytes.Equal(got, r.data) {
			t.Errorf("worker %d: the file arrived differently (%v)", i, err)
		}
		// A step without connection needs some time to clean up.
		testkit.Eventually(t, fmt.Sprintf("worker %d to have nothing left of the way", i), func() bool {
			left, err := os.ReadDir(filepath.Join(home, ".multihost/store/incoming"))
			return err == nil && len(left) == 0
		})
		if keys, err := os.ReadDir(filepath.Join(home, ".ssh")); err == nil {
			t.Errorf("worker %d: has ~/.ssh with %v", i, keys)
		}
		// sshd removes an agent's socket only when it sees the end of the connection.
		testkit.Eventually(t, fmt.Sprintf("worker %d to have no agent left", i), func() bool {
			return !exists(filepath.Join(w.Root, "tmp/ssh-*"))
		})
	}
	return reports
}

// from returns the source of each worker's files.
func from(reports []codesync.Report) (names []string) {
	for _, r := range reports {
		names = append(names, r.From)
	}
	return names
}

func uploaded(reports []codesync.Report) (n int64) {
	for _, r := range reports {
		n += r.Uploaded
	}
	return n
}

func TestRelayUploadsOnceASlice(t *testing.T) {
	testkit.NoLeaks(t)
	r := relay(t, 12, codesync.Options{Relay: codesync.RelayOn})
	reports := r.push(t, "run1")
	want := []string{"", "s0w0", "s0w0", "s0w0", "s0w0", "s0w1", "", "s0w6", "s0w6", "s0w6", "s0w6", "s0w7"}
	if got := from(reports); !slices.Equal(got, want) {
		t.Errorf("files came from %q, want %q", got, want)
	}
	if n, limit := uploaded(reports), int64(2.2*float64(len(r.data)))+12*32<<10; n < 2*int64(len(r.data)) || n > limit {
		t.Errorf("%d bytes left this machine, want two times %d and no more than %d", n, len(r.data), limit)
	}
	for i, rep := range reports {
		if rep.SentFiles != 2 || rep.Reused != 0 {
			t.Errorf("worker %d: %+v", i, rep)
		}
	}
	for i, rep := range r.push(t, "run1") {
		if rep.Reused != 2 || rep.SentFiles != 0 {
			t.Errorf("worker %d, again: %+v", i, rep)
		}
	}
	if text := notes(r.sink); strings.Contains(text, "passing files on") {
		t.Errorf("a hop failed:\n%s", text)
	}
}

func notes(sink *testkit.Recorder) (text string) {
	for _, n := range sink.Notes() {
		text += n.Text + "\n"
	}
	return text
}

// Workers pass on a single file too. The runner sends the file once for each slice. Other
// files in the folder stay.
func TestAFileIsPassedOn(t *testing.T) {
	testkit.NoLeaks(t)
	r := relay(t, 6, codesync.Options{})
	const size = 1 << 20
	file := noise(t, filepath.Join(t.TempDir(), "file"), size)
	other := filepath.Join(r.workers[0].Root, "home/tester", codesync.AgentFolder, "other")
	testkit.Must(t, os.MkdirAll(filepath.Dir(other), 0o700))
	testkit.Must(t, os.WriteFile(other, nil, 0o600))
	send := func(want []string, most int64) {
		t.Helper()
		reports, errs := codesync.PushFile(t.Context(), codesync.Options{Sink: r.sink, Relay: codesync.RelayOn}, r.targets, "name", func() ([]byte, error) { return file, nil })
		testkit.Must(t, errors.Join(errs...))
		if got := from(reports); !slices.Equal(got, want) || uploaded(reports) > most {
			t.Errorf("it came from %q with %d bytes from here, want %q and at most %d", got, uploaded(reports), want, most)
		}
		for i, w := range r.workers {
			path := filepath.Join(w.Root, "home/tester", codesync.AgentFolder, "name")
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, file) {
				t.Errorf("worker %d: the file arrived differently (%v)", i, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("worker %d: %v, %v", i, info, err)
			}
		}
	}
	send([]string{"", "s0w0", "s0w0", "", "s0w3", "s0w3"}, 2*size+100_000)
	send(make([]string, 6), 10_000) // the workers have the file now
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestRelayFanoutAndItsDefault(t *testing.T) {
	testkit.OnlyInAll(t, "TestRelayUploadsOnceASlice")
	testkit.NoLeaks(t)
	r := relay(t, 4, codesync.Options{Relay: codesync.RelayOn, RelayFanout: 1})
	if got, want := from(r.push(t, "all")), []string{"", "s0w0", "s0w0", "s0w0"}; !slices.Equal(got, want) {
		t.Errorf("--relay-fanout=1: from %q, want %q", got, want)
	}
	for _, mode := range []codesync.Relay{codesync.RelayAuto, codesync.RelayOff} {
		// Relays would save two uploads of 2 MB, which is too little.
		r := relay(t, 4, codesync.Options{Relay: mode})
		if got := from(r.push(t, "run")); strings.Join(got, "") != "" {
			t.Errorf("%s: from %q, want all from here", mode, got)
		}
	}
}

// After any failure between workers, all still get their files, and the failure is
// reported.
func TestRelayFallsBackToTheRunner(t *testing.T) {
	testkit.OnlyInAll(t, "TestRelayOutlivesItsFirstWorker")
	testkit.NoLeaks(t)
	for name, c := range map[string]struct {
		breaks func(*relayed)
		want   []string // Report.From of s0w0 … s0w5, which are one slice
	}{
		"no way to a worker": {
			func(r *relayed) { r.targets[0].Addr = "127.0.0.1:1" },
			[]string{"", "", "", "", "", ""}, // no hop works: neither the four from s0w0, nor the next one
		},
		"an address that leads to another worker": {
			func(r *relayed) { r.targets[0].Addr = r.targets[5].Addr },
			[]string{"", "", "", "", "", ""},
		},
		"a hop deep in the tree": {
			func(r *relayed) { r.targets[1].Addr = "127.0.0.1:1" },
			[]string{"", "s0w0", "s0w0", "s0w0", "s0w0", ""},
		},
		"a worker whose address is not known": {
			func(r *relayed) { r.targets[0].Addr = "" },
			[]string{"", "", "s0w1", "s0w1", "s0w1", "s0w1"},
		},
		"a hop that never ends": {
			func(r *relayed) {
				// This fault delays new connections, also ours.
				r.workers[1].Fault(t, "slow", "handshake", "1h0m0s")
			},
			[]string{"", "s0w0", "s0w0", "s0w0", "s0w0", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 2 * time.Minute
			if name == "a hop that never ends" {
				limit = 5 * time.Second
			}
			r := relay(t, 6, codesync.Options{Relay: codesync.RelayOn, RelayFanout: 1, HopLimit: limit})
			c.breaks(r)
			reports := r.push(t, "run")
			if name != "a hop that never ends" {
				if got := from(reports); !slices.Equal(got, c.want) {
					t.Errorf("files came from %q, want %q\n%s", got, c.want, notes(r.sink))
				}
			} else if got := from(reports); got[1] != "" || got[5] != "" {
				t.Errorf("files came from %q", got)
			}
			if said := strings.Contains(notes(r.sink), "passing files on"); said != (name != "a worker whose address is not known") {
				t.Errorf("said: %s", notes(r.sink))
			}
		})
	}
}

// The first worker of a tree loses its connection. The others still get their files, and
// contents that have arrived are not sent again.
func TestRelayOutlivesItsFirstWorker(t *testing.T) {
	testkit.NoLeaks(t)
	r := relay(t, 6, codesync.Options{Relay: codesync.RelayOn, RelayFanout: 1})
	r.workers[0].Fault(t, "cut", "in", "1000000", "1")
	r.push(t, "run")
}

func TestRelayEndsWithItsContext(t *testing.T) {
	testkit.NoLeaks(t)
	r := relay(t, 6, codesync.Options{Relay: codesync.RelayOn, RelayFanout: 1})
	r.workers[5].Fault(t, "slow", "handshake", "1h0m0s") // the other workers must continue to serve
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	spool := filepath.Join(r.workers[1].Root, "home/tester/.multihost/store/incoming/relay.*")
	done := make(chan []error)
	go func() {
		_, errs := r.tree.PushAll(ctx, r.targets, "run")
		done <- errs
	}()
	testkit.Eventually(t, "a worker to have it", func() bool { return exists(spool) })
	cancel(stop)
	if errs := <-done; !errors.Is(errs[5], stop) {
		t.Errorf("got %v, want the cause of the end", errs)
	}
	if said := notes(r.sink); strings.Contains(said, "trying again") {
		t.Errorf("said after the end: %s", said)
	}
	for i, w := range r.workers {
		testkit.Eventually(t, fmt.Sprintf("worker %d to clean up", i), func() bool {
			return !exists(filepath.Join(w.Root, "home/tester/.multihost/store/incoming/*")) && !exists(filepath.Join(w.Root, "tmp/ssh-*"))
		})
	}
}

func exists(pattern string) bool {
	found, _ := filepath.Glob(pattern) // the pattern is valid
	return len(found) > 0
}

var _ remote.Conn = (*sshfan.Conn)(nil)
