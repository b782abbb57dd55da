//go:build linux

package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/agent"
	"multihost/internal/testkit"
)

const (
	zone     = "https://tpu" + testkit.LeaseZone
	resource = "https://tpu" + testkit.LeaseResource
)

// A cloud has workers, all in memory. Time passes when all goroutines wait.
type cloud struct {
	*testkit.LeaseCloud
	begun   time.Time
	workers []*worker
}

// A worker is a machine with a watch. Its disk survives a reboot, its /tmp does not.
type worker struct {
	t       *testing.T
	c       *cloud
	n       int
	root    string
	booted  time.Time
	power   context.CancelFunc
	alive   context.Context
	watches sync.WaitGroup
	ended   error    // of the last watch
	lock    *os.File // of a running command
}

func newCloud(t *testing.T, workers int) *cloud {
	c := &cloud{LeaseCloud: testkit.NewLeaseCloud(workers), begun: time.Now()}
	for n := range workers {
		w := &worker{t: t, c: c, n: n, root: t.TempDir()}
		w.boot()
		c.workers = append(c.workers, w)
	}
	t.Cleanup(func() {
		for _, w := range c.workers {
			w.power()
			w.watches.Wait()
		}
	})
	return c
}

func (c *cloud) age() time.Duration { return time.Since(c.begun) }

// boot starts or restarts the machine.
func (w *worker) boot() {
	if w.power != nil {
		w.power()
		w.watches.Wait()
	}
	testkit.Must(w.t, os.RemoveAll(filepath.Join(w.root, "tmp")))
	testkit.Must(w.t, os.MkdirAll(filepath.Join(w.root, "tmp"), 0o755))
	w.booted = time.Now()
	w.alive, w.power = context.WithCancel(context.Background())
}

// kill ends the watch as a signal would, without any cleaning.
func (w *worker) kill() {
	w.power()
	w.watches.Wait()
	w.alive, w.power = context.WithCancel(context.Background())
}

func (w *worker) host(out io.Writer) *Host {
	metadata := &agent.Metadata{Transport: carrier{w}}
	return &Host{
		Tmp: w.root, Home: filepath.Join(w.root, "home"), Login: 1000, Out: out,
		Metadata: metadata, Client: &agent.Client{Metadata: metadata, Transport: carrier{w}},
		Uptime: func() (time.Duration, error) { return time.Since(w.booted), nil },
		Spawn: func(run string, _ *os.File) error {
			log, err := os.OpenFile(filepath.Join(w.root, "home", ownFolder, run+".log"), os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			w.watches.Go(func() {
				defer log.Close()
				w.ended = w.host(log).Watch(w.alive, run, nil)
			})
			return nil
		},
	}
}

type carrier struct{ w *worker }

func (r carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	if !r.w.c.Serve(answer, req, r.w.n) {
		return nil, errors.New("connection refused")
	}
	return answer.Result(), nil
}

func (w *worker) index(name string) string { return filepath.Join(w.root, Index, name) }

func (w *worker) log() string { return readSome(filepath.Join(w.root, "home", ownFolder, "train.log")) }

func (w *worker) says(part string) {
	w.t.Helper()
	if !strings.Contains(w.log(), part) {
		w.t.Errorf("worker %d does not say %q:\n%s", w.n, part, w.log())
	}
}

// terms returns the terms of a job of one worker, with a lease of an hour.
func terms(change func(*Terms)) Terms {
	t := Defaults()
	t.Run, t.Nodes = "train", []string{"train"}
	t.Peers = agent.Peers{Read: zone + "/nodes/{slice}:getGuestAttributes", Body: `{"queryPath":"multihost/lease"}`, Told: "/guestAttributes/*/queryValue/items/*/value"}
	t.Delete = []agent.Deletion{{Read: resource, Method: "DELETE", URL: resource + "?force=true", Probe: resource + "-probe",
		Proof: agent.Field{Path: "/tpu/nodeSpec/*/node/labels/multihost-run", Value: "train"}, Going: agent.Field{Path: "/state/state", Value: "DELETING"}}}
	t.Lease, t.Fresh, t.Grace = 3600, 900, 60
	if change != nil {
		change(&t)
	}
	return t
}

// arm does what a runner does over SSH, and returns the answer.
func (w *worker) arm(t Terms) string {
	w.t.Helper()
	var out bytes.Buffer
	testkit.Must(w.t, w.host(&out).Arm(w.alive, "N", strings.NewReader(t.Text()+"end\n"), false))
	return out.String()
}

// guest does what the startup script does after root has saved the program.
func (w *worker) guest(t Terms) {
	w.t.Helper()
	w.c.Do(func() { w.c.Terms = t.Text() })
	testkit.Must(w.t, w.host(io.Discard).Boot(w.alive, "", nil))
}

// runs holds the worker's lock, as a command does. The returned function ends the command
// and records how it ended.
func (w *worker) runs() (end func(code int)) {
	testkit.Must(w.t, w.host(io.Discard).prepare())
	lock, err := os.OpenFile(w.index(busyLock), os.O_CREATE|os.O_RDWR, 0o644)
	testkit.Must(w.t, err)
	testkit.Must(w.t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	w.lock = lock // so that the garbage collector does not close it
	entry := w.index("1000-train-1" + entryEnd)
	testkit.Must(w.t, os.WriteFile(entry, []byte("run=train\nstarted=1 2 3 4\n"), 0o644))
	return func(code int) {
		testkit.Must(w.t, os.WriteFile(entry, fmt.Appendf(nil, "run=train\nexit_code=%d\n", code), 0o644))
		lock.Close()
	}
}

// at waits until this much time has passed since the request.
func (c *cloud) at(d time.Duration) { time.Sleep(d - c.age()) }

// isDeleted fails the test unless the slices were deleted between the times from and to after
// the request. With 0 and 0 it fails the test if they were deleted at all.
func (c *cloud) isDeleted(from, to time.Duration) {
	t := c.workers[0].t
	t.Helper()
	var after time.Duration
	c.Do(func() {
		if !c.Deleted.IsZero() {
			after = c.Deleted.Sub(c.begun)
		}
	})
	if after < from || after > to {
		log := c.workers[0].log()
		t.Errorf("deleted after %v, want %v to %v\n%s", after, from, to, log[:min(len(log), 2000)])
	}
}

// story runs a test whose clock advances when all goroutines wait.
func story(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

const hour = time.Hour

// A lease that nobody renews has no effect while the command runs. When the command has
// ended, the watch deletes the slices.
func TestTheEndOfTheCommandAndOfTheLease(t *testing.T) {
	t.Parallel()
	story(t, "a lease that nobody renews ends nothing while the command runs", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		end := w.runs()
		if got, want := w.arm(terms(nil)), "N right yes\nN lease yes 3600 0 0 never 0\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.at(4 * hour)
		c.isDeleted(0, 0)
		end(1)
		c.at(12 * hour)
		c.isDeleted(5*hour-time.Minute, 5*hour+time.Minute)
	})
	story(t, "a renewal counts from then on", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		w.runs()(0)
		w.arm(terms(nil))
		for range 20 {
			time.Sleep(50 * time.Minute)
			testkit.Must(t, w.host(io.Discard).Renew("N", "train", "0"))
		}
		c.isDeleted(0, 0)
		testkit.Must(t, w.host(io.Discard).Renew("N", "train", "7200")) // it announces a silence of two hours
		began := c.age()
		c.at(began + 4*hour)
		c.isDeleted(began+2*hour, began+2*hour+30*time.Second)
	})
}

// While another worker runs a command, or its state is unknown, the slices stay.
func TestOthersThatRunEndNothing(t *testing.T) {
	t.Parallel()
	story(t, "what another worker runs ends nothing", func(t *testing.T) {
		c := newCloud(t, 2)
		two := terms(func(t *Terms) { t.Total = 2 })
		end0, end1 := c.workers[0].runs(), c.workers[1].runs()
		c.workers[0].arm(two)
		c.workers[1].arm(two)
		end0(0)
		c.at(4 * hour)
		c.isDeleted(0, 0)
		end1(0)
		c.at(6 * hour)
		c.isDeleted(4*hour, 4*hour+2*time.Minute)
	})
	story(t, "guest attributes are off", func(t *testing.T) {
		c := newCloud(t, 2)
		c.Refuse = func(call string) int {
			if strings.HasPrefix(call, "PUT guest-attributes/") {
				return 403
			}
			return 0
		}
		w := c.workers[0]
		if got := w.arm(terms(func(t *Terms) { t.Total, t.TTL = 2, 8*3600 })); !strings.Contains(got, "N apart 403\n") {
			t.Errorf("got %q", got)
		}
		c.at(6 * hour)
		w.says("not deleted: the workers cannot tell each other whether the command runs, for guest attributes are not taken")
		c.isDeleted(0, 0)
		c.at(9 * hour)
		c.isDeleted(8*hour, 8*hour+3*time.Minute)
	})
	story(t, "a worker that has never told", func(t *testing.T) {
		c := newCloud(t, 2)
		c.workers[0].arm(terms(func(t *Terms) { t.Total = 2 }))
		c.at(6 * hour)
		c.workers[0].says("not deleted: whether the command runs is not known of slice train: 1 of 2 workers have told")
		c.isDeleted(0, 0)
	})
	story(t, "a worker that is dead", func(t *testing.T) {
		c := newCloud(t, 2)
		two := terms(func(t *Terms) { t.Total = 2 })
		c.workers[1].runs()
		c.workers[1].arm(two)
		c.at(time.Minute)
		c.workers[1].kill()
		c.workers[0].arm(two)
		c.at(3 * hour)
		c.isDeleted(hour, hour+3*time.Minute)
	})
}

// The watch deletes only slices of the run. Only the API tells whether the worker has the
// permission.
func TestOnlyTheRunsOwnIsDeleted(t *testing.T) {
	t.Parallel()
	story(t, "only the run's own is deleted", func(t *testing.T) {
		c := newCloud(t, 1)
		c.Label = "other"
		c.Refuse = func(call string) int {
			if strings.HasPrefix(call, "DELETE ") {
				return 403
			}
			return 0
		}
		w := c.workers[0]
		if got, want := w.arm(terms(nil)), "N right no 403 1-compute@developer.gserviceaccount.com HTTP status 403: refused\n"; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		c.at(3 * hour)
		w.says("it is not of this run: it stays")
		synctest.Wait() // wait until ended is written
		if !errors.Is(w.ended, agent.ErrForeign) {
			t.Errorf("the watch ended with %v", w.ended)
		}
		c.isDeleted(0, 0)
	})
}

// If terms read one resource and delete another, or no resource, the watch deletes nothing.
func TestOnlyWhatWasReadIsDeleted(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Terms){
		"the terms name another resource to delete: it stays": func(t *Terms) { t.Delete[0].URL = resource + "-other?force=true" },
		"it stays: the terms do not say how it is deleted":    func(t *Terms) { t.Delete = nil },
		"it cannot be read: HTTP status 401":                  func(t *Terms) { t.Delete[0].Read, t.Delete[0].URL = resource+"s", resource+"s" },
	} {
		story(t, want, func(t *testing.T) {
			c := newCloud(t, 1)
			c.Refuse = func(call string) int {
				if strings.HasSuffix(call, "trains") {
					return 401
				}
				return 0
			}
			c.workers[0].arm(terms(change))
			c.at(2 * hour)
			c.workers[0].says(want)
			c.isDeleted(0, 0)
		})
	}
}

// After a failure the slices stay for the requested time. After a success they do not.
func TestKeepOnFailure(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		code, keepFor int
		from          time.Duration // 0: never
	}{
		"after a success nothing is kept":         {0, 0, hour},
		"after a failure for as long as was said": {1, 4 * 3600, 4 * hour},
		"after a failure for ever":                {1, 0, 0},
	} {
		story(t, name, func(t *testing.T) {
			c := newCloud(t, 1)
			c.workers[0].runs()(row.code)
			c.workers[0].arm(terms(func(t *Terms) { t.Keep, t.KeepFor = "on-failure", int64(row.keepFor) }))
			c.at(12 * hour)
			to := row.from
			if to > 0 {
				to += time.Minute
			}
			c.isDeleted(row.from, to)
		})
	}
}

// At the end of the time to live, a command may still be ending on another worker. The
// slices stay until it has ended.
func TestTheGraceIsThatOfAllWorkers(t *testing.T) {
	t.Parallel()
	story(t, "the grace is that of all workers", func(t *testing.T) {
		c := newCloud(t, 2)
		ends := terms(func(t *Terms) { t.Total, t.Lease, t.TTL, t.Grace = 2, 0, 3600, 7200 })
		end0, end1 := c.workers[0].runs(), c.workers[1].runs()
		c.workers[0].arm(ends)
		c.workers[1].arm(ends)
		c.at(hour + time.Minute)
		c.workers[0].says("stopping the command: the time to live of 3600 s (--ttl) is over")
		end0(143)
		c.at(2 * hour)
		c.isDeleted(0, 0)
		end1(143)
		c.at(3 * hour)
		c.isDeleted(2*hour, 2*hour+2*time.Minute)
	})
}

// At the end of the time to live, the watch tells the command to end, unless an active
// runner does that.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	story(t, "the time to live deletes under a command that does not end", func(t *testing.T) {
		c := newCloud(t, 1)
		c.workers[0].runs()
		c.workers[0].arm(terms(func(t *Terms) { t.TTL, t.Grace = 7200, 600 }))
		c.at(2*hour + 10*time.Minute)
		c.isDeleted(0, 0)
		c.at(4 * hour)
		c.isDeleted(2*hour+10*time.Minute+30*time.Second, 2*hour+12*time.Minute)
	})
	story(t, "a living runner ends the time to live itself", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		end := w.runs()
		w.arm(terms(func(t *Terms) { t.TTL, t.Grace = 7200, 600 }))
		for c.age() < 2*hour {
			time.Sleep(5 * time.Minute)
			testkit.Must(t, w.host(io.Discard).Renew("N", "train", "0"))
		}
		end(143)
		c.at(2*hour + 9*time.Minute)
		c.isDeleted(0, 0)
		if strings.Contains(w.log(), "stopping the command") {
			t.Error(w.log())
		}
		c.at(3 * hour)
		c.isDeleted(2*hour+11*time.Minute, 2*hour+20*time.Minute)
	})
}

// Slices to which no runner comes are deleted, even with --keep, and whether or not other
// workers have booted.
func TestSlicesThatNobodyAdoptsDeleteThemselves(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Terms){
		"one worker":              func(*Terms) {},
		"kept at the end":         func(t *Terms) { t.Lease = 0 },
		"kept on failure":         func(t *Terms) { t.Keep = "on-failure" },
		"another that never told": func(t *Terms) { t.Total = 2 },
	} {
		story(t, name, func(t *testing.T) {
			c := newCloud(t, 2)
			c.workers[0].guest(terms(func(t *Terms) {
				t.Adopt = 1800
				change(t)
			}))
			c.at(hour)
			c.workers[0].says("no runner has come within 1800 s of the boot")
			c.isDeleted(30*time.Minute, 31*time.Minute)
		})
	}
	story(t, "the time to live is shorter", func(t *testing.T) {
		c := newCloud(t, 1)
		asked := time.Now().Add(-50 * time.Minute)
		c.workers[0].guest(terms(func(t *Terms) { t.Adopt, t.TTL, t.Asked = 86400, 3600, asked.Unix() }))
		c.at(hour)
		c.isDeleted(10*time.Minute, 11*time.Minute)
	})
}

// A runner may have come to one worker and wait for another. Then the slices stay. Slices
// with --keep stay although the watch has ended.
func TestSlicesOfARunnerThatWaitsForAWorkerStay(t *testing.T) {
	t.Parallel()
	for _, state := range []string{awaited, running, kept} {
		story(t, state, func(t *testing.T) {
			c := newCloud(t, 2)
			guarded := terms(func(t *Terms) { t.Total, t.Adopt, t.Lease = 2, 1800, 86400 })
			switch state {
			case running:
				c.workers[1].runs()
			case kept:
				guarded.Lease = 0
			}
			c.workers[0].guest(guarded)
			c.workers[1].arm(guarded)
			if state == kept {
				c.workers[1].guest(guarded)
			}
			c.at(4 * hour)
			c.isDeleted(0, 0)
			c.Do(func() {
				if c.Asked == 0 || !strings.Contains(c.Told[1], "state="+state+" ") {
					t.Errorf("asked %d times; the other has told %q", c.Asked, c.Told[1])
				}
			})
		})
	}
}

func TestTheWatchOfKeptSlicesStandsDown(t *testing.T) {
	t.Parallel()
	story(t, "kept", func(t *testing.T) {
		c := newCloud(t, 2)
		w := c.workers[0]
		keep := terms(func(t *Terms) { t.Total, t.Lease, t.Adopt = 2, 0, 1800 })
		w.arm(keep)
		w.guest(keep)
		w.says("dismissed")
		c.at(4 * hour)
		c.isDeleted(0, 0)
		if _, err := os.Stat(w.index(watchFile("train", 1000))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file of the watch: %v", err)
		}
	})
}

// After a reboot, or after a signal has killed it, the watch continues with the last terms
// of a runner.
func TestTheWatchSurvives(t *testing.T) {
	t.Parallel()
	story(t, "a reboot", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		w.arm(terms(nil))
		c.at(30 * time.Minute)
		w.boot()
		w.guest(terms(func(t *Terms) { t.Adopt, t.Lease = 60, 60 }))
		c.at(hour)
		c.isDeleted(0, 0)
		var out bytes.Buffer
		testkit.Must(t, w.host(&out).Renew("N", "train", "0"))
		if got, want := out.String(), "N lease no 0 0 3600 never 0\n"; got != want {
			t.Errorf("nobody has told it anything since the boot: got %q, want %q", got, want)
		}
		c.at(3 * hour)
		c.isDeleted(hour+30*time.Minute, hour+31*time.Minute)
	})
	story(t, "its own death", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		w.arm(terms(func(t *Terms) { t.TTL = 4 * 3600 }))
		c.at(30 * time.Minute)
		w.kill()
		c.at(hour)
		var out bytes.Buffer
		testkit.Must(t, w.host(&out).Renew("N", "train", "0"))
		if got, want := out.String(), "N lease no 3600 14400 0 never 0\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		w.arm(terms(func(t *Terms) { t.TTL = 4 * 3600 }))
		c.at(4 * hour)
		c.isDeleted(2*hour, 2*hour+time.Minute) // the lease from the second arming
	})
	for _, handed := range []bool{false, true} {
		story(t, fmt.Sprintf("a reboot without a metadata server; the guard hands over: %v", handed), func(t *testing.T) {
			c := newCloud(t, 1)
			w := c.workers[0]
			w.arm(terms(nil))
			c.at(30 * time.Minute)
			w.boot()
			c.Refuse = func(call string) int {
				if c.age() < hour && !strings.Contains(call, "/v2alpha1/") {
					return -1
				}
				return 0
			}
			if !handed {
				testkit.Must(t, w.host(io.Discard).Boot(w.alive, "", nil))
			} else {
				testkit.Must(t, w.host(io.Discard).prepare())
				lock, err := takeLock(w.alive, w.index(watchFile("train", 1000)))
				testkit.Must(t, err)
				w.watches.Go(func() { w.ended = w.host(io.Discard).Boot(w.alive, "train", lock) })
			}
			c.at(3 * hour)
			c.isDeleted(hour+30*time.Minute, hour+33*time.Minute)
		})
	}
	story(t, "a guard that hands over while nothing is known yet", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		c.Terms = terms(func(t *Terms) { t.Adopt = 1800 }).Text()
		c.Refuse = func(call string) int {
			if c.age() < hour {
				return -1
			}
			return 0
		}
		testkit.Must(t, w.host(io.Discard).prepare())
		lock, err := takeLock(w.alive, w.index(watchFile("train", 1000)))
		testkit.Must(t, err)
		w.watches.Go(func() { w.ended = w.host(io.Discard).Boot(w.alive, "train", lock) })
		c.at(3 * hour)
		c.isDeleted(hour+30*time.Minute, hour+33*time.Minute)
	})
	story(t, "a guard that hands over on a full disk", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		c.Terms = terms(func(t *Terms) { t.Adopt = 1800 }).Text()
		testkit.Must(t, w.host(io.Discard).prepare())
		testkit.Must(t, os.Mkdir(filepath.Join(w.root, "home", ownFolder, "train.terms"), 0o755)) // no file can be written there
		lock, err := takeLock(w.alive, w.index(watchFile("train", 1000)))
		testkit.Must(t, err)
		w.watches.Go(func() { w.ended = w.host(io.Discard).Boot(w.alive, "train", lock) })
		c.at(3 * hour)
		c.isDeleted(30*time.Minute, 33*time.Minute)
	})
	story(t, "a full disk", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		w.arm(terms(nil))
		own := filepath.Join(w.root, "home", ownFolder)
		for _, name := range []string{"train.born", "train.terms"} { // no file can be written in place of a directory
			testkit.Must(t, os.Remove(filepath.Join(own, name)))
			testkit.Must(t, os.Mkdir(filepath.Join(own, name), 0o755))
		}
		w.kill()
		lock, err := takeLock(w.alive, w.index(watchFile("train", 1000)))
		testkit.Must(t, err)
		w.watches.Go(func() { w.ended = w.host(io.Discard).Watch(w.alive, "train", lock) })
		c.at(3 * hour)
		c.isDeleted(hour, hour+2*time.Minute)
	})
	story(t, "a disk that lost its terms", func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		w.arm(terms(nil))
		testkit.Must(t, os.Remove(filepath.Join(w.root, "home", ownFolder, "train.terms")))
		w.kill()
		w.guest(terms(nil))
		c.at(3 * hour)
		c.isDeleted(hour, hour+time.Minute)
	})
	for name, answers := range map[string][]int{
		"no right for an hour": {403}, "an API that is away": {503}, "no answers": {-1}, "403 and 404 in turn": {403, 404},
		"404 and 403 in turn": {404, 403}, "no rights and no answers": {401, -1, 500, 403},
	} {
		story(t, name, func(t *testing.T) {
			c := newCloud(t, 1)
			n := 0
			c.Refuse = func(call string) int {
				if c.age() > 5*hour || !strings.Contains(call, "queuedResources") {
					return 0
				}
				n++
				return answers[n%len(answers)]
			}
			c.workers[0].arm(terms(nil))
			c.at(4 * hour)
			c.isDeleted(0, 0)
			c.at(6 * hour)
			c.isDeleted(5*hour, 5*hour+11*time.Minute)
		})
	}
	story(t, "a metadata server that is away", func(t *testing.T) {
		c := newCloud(t, 1)
		c.workers[0].arm(terms(nil))
		c.Do(func() {
			c.Refuse = func(call string) int {
				if c.age() < 5*hour && !strings.Contains(call, "/v2alpha1/") {
					return -1
				}
				return 0
			}
		})
		c.at(4 * hour)
		c.isDeleted(0, 0)
		c.at(6 * hour)
		c.isDeleted(5*hour, 5*hour+12*time.Minute)
	})
}

// The age of slices counts from the request. If the requesting clock was ahead, the age
// counts from the first boot.
func TestTheTimeToLiveCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	for want, asked := range map[string]time.Duration{" 3600 ": -hour, " 0 ": hour} {
		story(t, want, func(t *testing.T) {
			c := newCloud(t, 1)
			got := c.workers[0].arm(terms(func(t *Terms) { t.TTL, t.Asked = 7200, time.Now().Add(asked).Unix() }))
			if !strings.Contains(got, "N lease yes 3600 7200"+want+"never") {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A part of a lease of 12 hours could be a lease of 1 hour.
func TestAPartOfTheTermsIsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t, 1)
		w := c.workers[0]
		text := terms(nil).Text()
		for _, n := range []int{0, len(text) / 2, len(text) - 1, len(text)} {
			if err := w.host(io.Discard).Arm(w.alive, "N", strings.NewReader(text[:n]), true); err == nil || !strings.Contains(err.Error(), "did not arrive whole") {
				t.Errorf("%d bytes of terms: %v", n, err)
			}
		}
		if leases, _ := filepath.Glob(w.index("*train*")); len(leases) > 0 {
			t.Errorf("there are %q", leases)
		}
	})
}
