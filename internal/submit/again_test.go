package submit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/attempt"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/sim"
	"multihost/internal/stage"
	"multihost/internal/submit"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

const runName = "train"

// noAgent stands for multihost-agent, which no worker runs here.
func noAgent(t *testing.T) program.Set {
	t.Helper()
	made, err := program.Files(runtime.GOARCH, []byte("agent"))
	testkit.Must(t, err)
	files := fstest.MapFS{}
	for name, data := range made {
		files[name] = &fstest.MapFile{Data: data}
	}
	return program.In(files)
}

// A place is a simulated cloud without workers. Users start a job without runner there from
// several machines. It needs a bubble of package synctest.
type place struct {
	t      *testing.T
	server *sim.Server
	code   string
	dir    string
	shape  string // accelerator type of the job
	bucket string
}

// inPlace runs story as a subtest with a new place.
func inPlace(t *testing.T, name string, story func(p *place)) {
	t.Run(name, func(t *testing.T) {
		dir := t.TempDir()
		code := filepath.Join(dir, "code")
		testkit.Must(t, os.MkdirAll(code, 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(code, "train.py"), []byte("print(1)\n"), 0o644))
		synctest.Test(t, func(t *testing.T) {
			server, err := sim.Start(context.Background(), sim.Config{Dir: filepath.Join(dir, "sim"), Listen: "none", Backend: "none", Step: time.Millisecond})
			testkit.Must(t, err)
			defer server.Close()
			story(&place{t, server, code, dir, "v4-8", sim.DefaultBucket})
		})
	})
}

// A machine is a user's machine that starts the job. It counts its changes in the cloud. It may
// pause before one of them or die after one.
type machine struct {
	submit.Deps
	place   *place
	owner   string
	changes atomic.Int64
	dies    int64 // the machine dies after this change; 0: never
	rests   int64 // the machine pauses before this change; 0: never
	resting chan struct{}
	resume  chan struct{}
}

func (p *place) machine(owner string, dies, rests int) *machine {
	m := &machine{place: p, owner: owner, dies: int64(dies), rests: int64(rests), resting: make(chan struct{}), resume: make(chan struct{})}
	url := p.server.URL()
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, Transport: m,
		TPUEndpoint: url + "/", ComputeEndpoint: url + "/compute/v1/", StorageEndpoint: url + "/storage/v1/", ResourceManagerEndpoint: url + "/"})
	p.t.Cleanup(cloud.Close)
	queue := qr.New(cloud)
	typed := &stage.Invocation{Clock: gcp.SystemClock, Sink: event.Discard}
	m.Deps = submit.Deps{
		Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: queue.Provider(""), Access: overssh.Access{Login: "ann"}},
		Keeper: &record.Keeper{Of: typed, Owner: owner, StateDir: filepath.Join(p.dir, strings.ReplaceAll(owner, "@", "-"))},
		Source: detach.Source{OpenBucket: func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, cloud, bucket, dir)
		}, Bucket: sim.DefaultBucket},
		Networks: network.New(cloud, qr.LifeOf), Agents: noAgent(p.t),
	}
	return m
}

var errDied = errors.New("the machine is dead")

// RoundTrip sends a request of the machine to the cloud.
func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	if dead := m.dies; dead > 0 && m.changes.Load() >= dead {
		return nil, errDied
	}
	changes := r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, ":getIamPolicy")
	if changes {
		n := m.changes.Load() + 1
		if n == m.rests {
			m.rests = 0
			close(m.resting)
			<-m.resume
		}
		m.changes.Store(n)
	}
	r = r.Clone(r.Context())
	r.Host = r.URL.Host
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	answer := httptest.NewRecorder()
	m.place.server.ServeHTTP(answer, r)
	if m.dies > 0 && m.changes.Load() >= m.dies && changes {
		return nil, errDied
	}
	resp := answer.Result()
	resp.Request = r
	return resp, nil
}

func (m *machine) types(change ...func(*job.JobOptions)) error {
	ty, err := tpu.ParseType(m.place.shape)
	testkit.Must(m.place.t, err)
	user, _, _ := strings.Cut(m.owner, "@")
	o := job.JobOptions{
		Request: qr.Request{ID: runName, NodeCount: 1, NodeID: runName, Type: ty}.Neutral(),
		Run:     attempt.Options{Run: runName, Dir: m.place.code, Script: "train", Preflight: "apply", Platform: preflight.GCE, NUMA: preflight.NUMAAuto},
	}
	o.Request.Mark(runName, user)
	o.Request.MarkJob(runName)
	for _, f := range change {
		f(&o)
	}
	_, err = submit.Detach(m.place.t.Context(), m.Deps, o, submit.DetachOptions{Bucket: m.place.bucket})
	return err
}

// put makes an object of the run, as workers and users do.
func (p *place) put(name, text string) {
	p.t.Helper()
	simcloud.PutObject(p.t, p.server, runName+"/"+name, text)
}

func (p *place) object(name string) string {
	for _, o := range p.server.Objects(sim.DefaultBucket) {
		if o.Name == runName+"/"+name {
			return string(o.Data)
		}
	}
	return ""
}

// begun writes the report of a worker that it runs the first attempt.
func (p *place) begun() { p.put("workers/s0w0", "phase=running\nattempt=1\n") }

// state returns the later state of the queued resource, or "" if there is none.
func (p *place) state() string {
	<-time.After(time.Minute)
	if all := p.server.Status().Queued; len(all) > 0 {
		return all[0].State
	}
	return ""
}

func (p *place) inject(text string) {
	p.t.Helper()
	f, err := sim.ParseFault(text)
	testkit.Must(p.t, err)
	_, err = p.server.Inject(f)
	testkit.Must(p.t, err)
}

// lost makes a job that has lost its slices in its first attempt.
func (p *place) lost() {
	p.t.Helper()
	testkit.Must(p.t, p.machine("ann@first", 0, 0).types())
	p.state()
	p.begun()
	p.inject("qr-suspended qr=" + runName)
	if state := p.state(); state != "SUSPENDED" {
		p.t.Fatalf("the queued resource is %s", state)
	}
}

// whole fails the test unless the queued resource exists and names the attempt. It must
// belong to a start whose files all exist.
func (p *place) whole(attempt int) {
	p.t.Helper()
	if state := p.state(); state != "ACTIVE" {
		p.t.Errorf("the queued resource is %q, want it ACTIVE", state)
		return
	}
	told := map[string]string{}
	answer := httptest.NewRecorder()
	p.server.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/v2alpha1/projects/"+sim.DefaultProject+"/locations/"+sim.DefaultZone+"/nodes/"+runName, http.NoBody))
	var node struct{ Metadata map[string]string }
	testkit.Must(p.t, json.Unmarshal(answer.Body.Bytes(), &node))
	for line := range strings.Lines(node.Metadata["multihost-job"]) {
		key, value, _ := strings.Cut(line, "=")
		told[key] = strings.TrimSpace(value)
	}
	for name, sum := range map[string]string{"kit.tar.gz": told["kit_sum"], "script_dir_zip_" + runName + ".tar.gz": told["code_sum"]} {
		name = "starts/" + told["claim"] + "/" + name
		if got := sha256.Sum256([]byte(p.object(name))); told["claim"] == "" || hex.EncodeToString(got[:]) != sum {
			p.t.Errorf("%s is not what its workers are told", name)
		}
	}
	if !strings.Contains(p.object("run.json"), fmt.Sprintf(`"attempt": %d,`, attempt)) {
		p.t.Errorf("run.json is not of attempt %d:\n%s", attempt, p.object("run.json"))
	}
	if got := strings.TrimSpace(p.object("control/attempt")); attempt > 1 && got != fmt.Sprint(attempt) {
		p.t.Errorf("attempt %q is announced, want %d", got, attempt)
	}
	for _, o := range p.server.Objects(sim.DefaultBucket) {
		if strings.HasPrefix(o.Name, runName+"/workers/") {
			p.t.Errorf("%s is there, of a worker that was lost", o.Name)
		}
	}
}

// A job in a bucket that keeps overwritten objects starts with a warning, which has the
// cost and the command to type. There is no warning if the user may not read the bucket's
// settings.
func TestABucketThatKeepsWhatIsOverwrittenIsTold(t *testing.T) {
	t.Parallel()
	const advice = "gcloud storage buckets update gs://jobs --clear-soft-delete --no-versioning"
	for _, c := range []struct{ name, made, denied, want string }{
		{"by default", `{"name": "jobs"}`, "", "bucket jobs keeps and bills a copy of each log from before every upload, for 7 days (soft delete)"},
		{"versions", `{"name": "jobs", "versioning": {"enabled": true}}`, "", "bucket jobs keeps and bills a copy of each log from before every upload, for ever (versioning)"},
		{"nothing", `{"name": "jobs", "softDeletePolicy": {"retentionDurationSeconds": "0"}, "versioning": {"enabled": false}}`, "", ""},
		{"not for him to read", `{"name": "jobs"}`, "permission-denied permission=storage.buckets.get", ""},
	} {
		inPlace(t, c.name, func(p *place) {
			answer := httptest.NewRecorder()
			p.server.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/storage/v1/b?project="+sim.DefaultProject, strings.NewReader(c.made)))
			if answer.Code != http.StatusOK {
				p.t.Fatal(answer.Body)
			}
			if c.denied != "" {
				p.inject(c.denied)
			}
			p.bucket = "jobs"
			m, told := p.machine("ann@laptop", 0, 0), ""
			m.Sink = event.SinkFunc(func(e event.Event) {
				if n, ok := e.(event.Note); ok && n.Level == event.Warn {
					told += n.Text
					if n.Hint != advice {
						p.t.Errorf("the hint is %q", n.Hint)
					}
				}
			})
			testkit.Must(p.t, m.types())
			if told != c.want {
				p.t.Errorf("told %q, want %q", told, c.want)
			}
		})
	}
}

// oneAtATime skips, under the race detector, a test in which only one machine acts at a
// time.
func oneAtATime(t *testing.T) {
	t.Parallel()
	if testkit.RaceDetector {
		t.Skip("nothing happens at once in it")
	}
}

// before lists states of the cloud before a job is started. Each has the number of the next
// attempt and the number of changes that the start makes.
var before = []struct {
	name    string
	make    func(p *place)
	attempt int
	changes int
}{
	{"nothing", func(*place) {}, 1, 5},
	{"its slices are lost", (*place).lost, 2, 8},
}

// The machine may die at any change. If the user types the job again, it continues or still
// runs, with all its files. If the user stops it, nothing of it is left in the cloud.
func TestAMachineThatDiesLeavesAJobThatCanBeTypedAgain(t *testing.T) {
	oneAtATime(t)
	for _, b := range before {
		inPlace(t, b.name+", undisturbed", func(p *place) {
			b.make(p)
			m := p.machine("ann@laptop", 0, 0)
			testkit.Must(p.t, m.types())
			p.whole(b.attempt)
			if n := m.changes.Load(); n != int64(b.changes) {
				p.t.Errorf("it took %d changes, not %d", n, b.changes)
			}
		})
		for n := 1; n <= b.changes; n++ {
			inPlace(t, fmt.Sprintf("%s, dies after change %d of %d, typed again", b.name, n, b.changes), func(p *place) {
				b.make(p)
				if err := p.machine("ann@laptop", n, 0).types(); err == nil {
					p.t.Error("a dead machine has started it")
				}
				err := p.machine("ann@other", 0, 0).types()
				if lives := n == b.changes; (err != nil) != lives || lives && !strings.Contains(err.Error(), "queued resource train is there, state ") {
					p.t.Errorf("typed again: %v", err)
				}
				p.whole(b.attempt)
			})
			inPlace(t, fmt.Sprintf("%s, dies after change %d of %d, stopped", b.name, n, b.changes), func(p *place) {
				b.make(p)
				if err := p.machine("ann@laptop", n, 0).types(); err == nil {
					p.t.Error("a dead machine has started it")
				}
				m := p.machine("ann@other", 0, 0)
				err := runs.Stop(p.t.Context(), runs.Deps{Reach: m.Reach, Keeper: m.Keeper, Source: m.Source, Agents: m.Agents}, runName, runs.StopOptions{Grace: time.Second})
				if none := p.object("run.json") == ""; (err != nil) != none {
					p.t.Errorf("stop: %v", err)
				} else if none {
					return
				}
				if state := p.state(); state != "" && n < b.changes {
					p.t.Errorf("queued resource %s is left", state)
				}
				if err := m.types(); err == nil || !strings.Contains(err.Error(), "it was stopped: multihost stop by ann@other") {
					p.t.Errorf("typed again after a stop: %v", err)
				}
			})
		}
	}
}

// Two users type the job on two machines at the same time. Each machine pauses once, before
// one of its changes, while the other continues. One of them starts the job completely. The
// other one ends with an error that says so.
func TestOfTwoWhoTypeAJobOneStartsIt(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown of internal/detach")
	t.Parallel()
	for _, b := range before {
		// The changes before this one are uploads that nobody else reads.
		const first = 3
		for i := first; i <= b.changes; i++ {
			for j := first; j <= b.changes; j++ {
				if testkit.RaceDetector && i != j {
					continue
				}
				inPlace(t, fmt.Sprintf("%s, %d and %d", b.name, i, j), func(p *place) {
					b.make(p)
					all := []*machine{p.machine("ann@laptop", 0, i), p.machine("ann@other", 0, j)}
					ends := make([]chan error, 2)
					for n, m := range all {
						ends[n] = make(chan error, 1)
						go func() { ends[n] <- m.types() }()
						select {
						case <-m.resting:
						case err := <-ends[n]:
							ends[n] <- err
						}
					}
					won := 0
					for n, m := range all {
						close(m.resume)
						err := <-ends[n]
						if err == nil {
							won++
							continue
						}
						var hinted interface{ Hint() string }
						if !strings.Contains(err.Error(), "a run of that name is in gs://") || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "multihost attach train") {
							p.t.Errorf("%s: %v", m.owner, err)
						}
					}
					if won != 1 {
						p.t.Errorf("%d have started it", won)
					}
					p.whole(b.attempt)
				})
			}
		}
	}
}

// A job that the user starts again is refused with the reason, unless it is the same job and
// has lost its slices.
func TestWhatIsTypedAgainIsRefusedUnlessItHasLostItsSlices(t *testing.T) {
	oneAtATime(t)
	end := func(p *place, w int, code, reason string) {
		p.put(fmt.Sprintf("ended/1/s0w%d.%s", w, code), "code="+code+"\nend=1700000000000000000\nreason="+reason+"\n")
	}
	gone := func(p *place) {
		p.t.Helper()
		_, err := p.machine("ann@admin", 0, 0).Cloud.Delete(p.t.Context(), runName, provision.DeleteOptions{})
		testkit.Must(p.t, err)
	}
	for _, c := range []struct {
		name    string
		make    func(p *place)
		owner   string
		change  func(o *job.JobOptions)
		want    string // a part of the error; "": the job continues
		attempt int
	}{
		{name: "deleted by an admin", make: gone, attempt: 2},
		{name: "failed", make: func(p *place) { p.inject("qr-failed qr=train"); p.state() }, attempt: 2},
		{name: "being suspended", make: func(p *place) { p.inject("qr-suspended qr=train") }, want: "are being taken away (SUSPENDING)"},
		{name: "it lives", make: func(*place) {}, want: "queued resource train is there, state ACTIVE"},
		{name: "it has succeeded", make: func(p *place) { end(p, 0, "0", ""); end(p, 1, "0", ""); gone(p) }, want: "it has succeeded"},
		{name: "its command failed", make: func(p *place) { end(p, 0, "143", detach.FailFast); end(p, 1, "3", ""); gone(p) }, want: "s0w1 failed, exit code 3"},
		{name: "one failed for want of the other, which was taken away", make: func(p *place) { end(p, 0, "1", ""); p.inject("preempt node=train"); p.state() }, attempt: 2},
		{name: "its bucket could not be read", make: func(p *place) {
			end(p, 0, "77", "the job cannot be fetched")
			end(p, 1, "77", "the job cannot be fetched")
			gone(p)
		}, attempt: 2},
		{name: "its time was over", make: func(p *place) {
			end(p, 0, "143", "timeout of 60 s (--timeout)")
			end(p, 1, "143", "timeout of 60 s (--timeout)")
			gone(p)
		}, want: "it was stopped: timeout of 60 s (--timeout)"},
		{name: "it was stopped", make: func(p *place) { p.put("control/stop", "enough\n"); gone(p) }, want: "it was stopped: enough"},
		{name: "its slices were about to be deleted", make: func(p *place) {
			p.put("control/stop", "the slices are deleted 60 s after they were made (--max-run-duration)\n")
			end(p, 0, "143", "the slices are deleted 60 s after they were made (--max-run-duration)")
			end(p, 1, "0", "")
			gone(p)
		}, attempt: 2},
		{name: "it has succeeded just before its slices were deleted", make: func(p *place) {
			p.put("control/stop", "the slices are deleted 60 s after they were made (--max-run-duration)\n")
			end(p, 0, "0", "")
			end(p, 1, "0", "")
			gone(p)
		}, want: "it has succeeded"},
		{name: "on slices of another provider", make: func(p *place) {
			p.put("run.json", strings.Replace(p.object("run.json"), `"queued resource"`, `"slice request"`, 1))
			gone(p)
		}, want: "--provider: it is on a slice request, you asked for a queued resource"},
		{name: "workers had begun another attempt", make: func(p *place) { end(p, 0, "255", "the worker was rebooted"); p.put("control/attempt", "2\n"); gone(p) }, attempt: 3},
		{name: "another's", make: gone, owner: "bob@laptop", want: "it is of ann@first"},
		{name: "another's queued resource", make: func(p *place) { p.inject("qr-failed qr=train"); p.state() }, owner: "bob@laptop", want: "queued resource train is of run train of ann"},
		{name: "another type", make: gone, change: func(o *job.JobOptions) { o.Request.Type, _ = tpu.ParseType("v4-8") }, want: `--tpu-type: it has "v4-16", you asked for "v4-8"`},
		{name: "more slices", make: gone, change: func(o *job.JobOptions) {
			o.Request.NodeCount, o.Request.Nodes = 2, []string{runName + "-0", runName + "-1"}
		}, want: `--num-slices: it has "1", you asked for "2"`},
		{name: "another command", make: gone, change: func(o *job.JobOptions) { o.Run.Script = "evaluate" }, want: `--command: it has "train", you asked for "evaluate"`},
		{name: "a command that goes on otherwise", make: gone, change: func(o *job.JobOptions) { o.Run.Script = "train " }, want: `--command: it has "train", you asked for "train "`},
		{name: "another environment", make: gone, change: func(o *job.JobOptions) {
			o.Run.Secrets = []detach.Secret{{Name: "KEY", Project: "p", ID: "key", Version: "1"}}
		}, want: "--env, --secret-env: other names or values"},
		{name: "another tier and time to live", make: gone, change: func(o *job.JobOptions) { o.Request.Tier, o.TTL = qr.Spot, time.Hour }, attempt: 2},
	} {
		inPlace(t, c.name, func(p *place) {
			p.shape = "v4-16"
			testkit.Must(p.t, p.machine("ann@first", 0, 0).types())
			p.state()
			p.begun()
			c.make(p)
			objects := p.server.Objects(sim.DefaultBucket)
			m := p.machine("ann@other", 0, 0)
			if c.owner != "" {
				m = p.machine(c.owner, 0, 0)
			}
			change := c.change
			if change == nil {
				change = func(*job.JobOptions) {}
			}
			err := m.types(change)
			if c.want == "" {
				testkit.Must(p.t, err)
				p.whole(c.attempt)
				if text := p.object("control/stop"); text != "" {
					p.t.Errorf("the workers would read the stop of the earlier start: %s", text)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "a run of that name is in gs://") || !strings.Contains(err.Error(), c.want) {
				p.t.Errorf("got %v, want %q", err, c.want)
			}
			if !slices.EqualFunc(objects, p.server.Objects(sim.DefaultBucket), func(a, b sim.Object) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
				p.t.Error("the bucket is not as it was")
			}
		})
	}
}

// A job that no worker could start is refused before anything is uploaded.
func TestAJobNeedsTheAgent(t *testing.T) {
	t.Parallel()
	inPlace(t, "a build without it", func(p *place) {
		m := p.machine("ann@laptop", 0, 0)
		m.Agents = program.Set{}
		if err := m.types(); err == nil || !strings.Contains(err.Error(), "this multihost was built without multihost-agent for workers") || m.changes.Load() != 0 {
			p.t.Errorf("got %v after %d changes", err, m.changes.Load())
		}
	})
}
