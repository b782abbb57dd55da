//go:build unix

package detached

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/agent"
	"multihost/internal/codesync"
	"multihost/internal/detach"
	"multihost/internal/provision"
	"multihost/internal/testkit"
)

// A whole job, from its boot to the deletion. The test checks the objects in the bucket at
// the end, and their order.
func TestAWholeJob(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		var did []string
		w.note = func(text string) { did = append(did, text) }
		w.end[1], w.log[1] = 90*time.Second, "hello\n"
		w.keys["secrets"] = "KEY=sm://p/key/7"
		w.secrets = map[string]string{"/v1/projects/p/secrets/key/versions/7:access": `{"payload": {"data": "dHdvCmxpbmVz"}}`}
		w.run(time.Hour)
		if got := w.text("main_command_log_slice_0_worker_0"); got != "hello\n" {
			t.Errorf("the log is %q", got)
		}
		if got := w.text("ended/1/s0w0.0"); !strings.HasPrefix(got, "code=0\n") {
			t.Errorf("the end is %q", got)
		}
		if got := w.text("workers/s0w0"); !strings.HasPrefix(got, "phase=deleting\nworker=s0w0\nattempt=1\nat=") || !strings.HasSuffix(got, "\nmay_delete=yes\nlogin=ann\ndetail=every worker has ended\n") {
			t.Errorf("the report is %q", got)
		}
		if got := w.values["guest-attributes/multihost/state"]; !strings.HasPrefix(got, "run=r\nphase=deleting\n") {
			t.Errorf("the guest attribute is %q", got)
		}
		if w.resource != "" || did[len(did)-1] != "deleted" && did[len(did)-2] != "deleted" {
			t.Errorf("left %q, did %q", w.resource, did)
		}
		armed, _ := os.ReadFile(filepath.Join(w.dir, ".multihost/runs/r/1/armed"))
		if text := string(armed); !strings.HasPrefix(text, "amdir\x00script\x00bash\x00MEGASCALE_COORDINATOR_ADDRESS\x00") || !strings.HasSuffix(text, "\x00MULTIHOST_COORDINATOR_IP=10.0.0.1\x00MULTIHOST_WORKER_IP=10.0.0.2\x00A=1\x00KEY=two\nlines\x00true\n9\ngo\n") {
			t.Errorf("armed with %q", text)
		}
		// Only the supervisor's files have the secret.
		os.Remove(filepath.Join(w.dir, ".multihost/runs/r/1/armed"))
		if out, err := exec.Command("grep", "-rl", "lines", w.dir).Output(); err == nil {
			t.Errorf("files have it: %s", out)
		}
		if want := "multihost: worker s0w0 of job r\nmultihost: boot\nmultihost: preflight\nmultihost: start: attempt 1\nmultihost: running: attempt 1\nmultihost: ended: attempt 1, exit code 0\nmultihost: deleting: every worker has ended\n"; w.out.String() != want {
			t.Errorf("says\n%s", w.out.String())
		}
	})
}

// The program may die at any moment and start again. It repeats no finished step, and loses
// nothing.
func TestAProgramThatDiesGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	for _, died := range []time.Duration{0, time.Second, 30 * time.Second, 89 * time.Second, 95 * time.Second} {
		inWorld(t, func(w *world) {
			begun := 0
			w.program = func(p Program) (Output, bool) {
				if strings.Contains(strings.Join(p.Args, " "), "multihost-arm") {
					begun++
				}
				return Output{}, false
			}
			w.end[1] = 90 * time.Second
			w.run(died)
			if w.resource == "" {
				t.Errorf("after %v it is deleted", died)
			}
			w.run(time.Hour)
			if w.resource != "" || begun != 1 || w.text("ended/1/s0w0.0") == "" || w.text("control/attempt") != "" {
				t.Errorf("dies after %v: begun %d times, left %q\n%s", died, begun, w.resource, w.out.String())
			}
		})
	}
}

func TestASecondProgramLeaves(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.end[1] = time.Hour
		done := make(chan struct{})
		go func() { w.run(10 * time.Minute); close(done) }()
		time.Sleep(5 * time.Minute)
		if err := Run(w.t.Context(), w.config()); err != nil {
			t.Error(err)
		}
		<-done
		if strings.Count(w.out.String(), "worker s0w0 of job r") != 1 {
			t.Errorf("says\n%s", w.out.String())
		}
	})
}

// The worker reports that it does not know its number. It deletes the slices only if no
// worker has reported anything for a long time.
func TestAWorkerWithoutANumber(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keep, reported string
		foreign        bool // the slices now belong to another run
		want           string
	}{
		{"never", "", false, "deleted at 2400"},
		{"never", "s1w1", false, "it stays"},
		{"always", "", false, "it stays"},
		{"never", "", true, "it stays"},
	} {
		inWorld(t, func(w *world) {
			w.keys["apart"], w.keys["workers"], w.keys["keep"] = "yes", "2", c.keep
			w.values["name"], w.values["attributes/worker-network-endpoints"] = "r-x7k2", "r-ab12,r-x7k2"
			if c.reported != "" {
				w.put("workers/"+c.reported, []byte("phase=boot\n"))
			}
			if c.foreign {
				w.resource = strings.ReplaceAll(w.resource, `"r"`, `"s"`)
			}
			got := "it stays"
			w.note = func(text string) { got = fmt.Sprintf("%s at %d", text, w.since()) }
			w.run(2 * time.Hour)
			state := w.values["guest-attributes/multihost/state"]
			if got != c.want || !strings.Contains(state, "phase=failed\nattempt=0\n") || !strings.HasSuffix(state, "\ndetail=waiting: the metadata server does not tell which worker this is: its agent-worker-number is missing") {
				t.Errorf("%+v: %s, state %q\n%s", c, got, state, w.out.String())
			}
			if n := strings.Count(w.out.String(), agent.ErrForeign.Error()); c.foreign != (n == 1) || n > 1 {
				t.Errorf("%+v: it says so %d times\n%s", c, n, w.out.String())
			}
			for name := range w.objects {
				if !strings.HasPrefix(name, "starts/") && name != "workers/"+c.reported {
					t.Errorf("it wrote %s", name)
				}
			}
		})
	}
}

// Workers of slices with Apart begin when all are ready, and know the address of worker 0.
func TestSlicesMadeApartBeginTogether(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.keys["apart"], w.keys["slices"], w.keys["nodes"] = "yes", "2", "r-0 r-1"
		w.values["name"], w.values["attributes/worker-network-endpoints"], w.values["attributes/agent-worker-number"] = "r-1-x7k2", "r-1-x7k2", "0"
		w.end[1] = time.Minute
		time.AfterFunc(10*time.Minute, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.put("starts/c/seats/1/s0w0.01234567.r-0-y4z5", []byte("10.9.9.9\n"))
		})
		time.AfterFunc(20*time.Minute, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.put("ended/1/s0w0.0", []byte("code=0\n"))
		})
		w.run(2 * time.Hour)
		if at := w.began[1].Sub(w.begin).Truncate(time.Minute); at != 10*time.Minute || w.resource != "" {
			t.Errorf("it began after %s; left: %q\n%s", at, w.resource, w.out.String())
		}
		variables, _ := os.ReadFile(filepath.Join(w.dir, ".multihost/runs/r/1/armed"))
		for _, want := range []string{"MEGASCALE_COORDINATOR_ADDRESS=10.9.9.9\x00", "MEGASCALE_NUM_SLICES=2\x00", "MEGASCALE_SLICE_ID=1\x00", "MEGASCALE_PORT=8081\x00", "MULTIHOST_COORDINATOR_IP=10.9.9.9\x00"} {
			if !strings.Contains(string(variables), want) {
				t.Errorf("the command does not get %q", want)
			}
		}
		if w.text("starts/c/seats/1/s1w0."+digestOf("r-1-x7k2")+".r-1-x7k2") != "10.0.0.2\n" {
			t.Error("its own seat is missing")
		}
	})
}

func digestOf(text string) string { return sumOf([]byte(text))[:8] }

// The worker can only wait, and reports what it waits for.
func TestAWorkerWaitsForItsMetadataServer(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.refuse = func(method, name string) int {
			if w.since() < 3*3600 && name == "attributes/multihost-job" {
				return -1
			}
			return 0
		}
		w.run(4 * time.Hour)
		if w.resource != "" || strings.Count(w.out.String(), "waiting: the metadata server does not tell: no answer: connection refused\n") != 1 {
			t.Errorf("says\n%s", w.out.String())
		}
	})
}

// The worker waits for a permission that comes late, and reports that. Without the
// permission the job ends with that reason.
func TestABucketThatRefusesEndsTheJob(t *testing.T) {
	t.Parallel()
	for until, want := range map[int]string{30: "code=0", 9999: "code=77"} {
		inWorld(t, func(w *world) {
			told := ""
			w.refuse = func(method, name string) int {
				if strings.HasSuffix(name, "kit.tar.gz") && w.since() < until {
					told = w.values["guest-attributes/multihost/state"]
					return 403
				}
				return 0
			}
			w.run(time.Hour)
			end := w.text("ended/1/s0w0.0") + w.text("ended/1/s0w0.77")
			if !strings.HasPrefix(end, want) || w.resource != "" || !strings.Contains(told, "phase=boot") {
				t.Errorf("ended with %q, left %q\n%s", end, w.resource, w.out.String())
			}
			if until > 600 && !strings.Contains(end, "reason=the job cannot be fetched: tried for 600 s; HTTP status 403: refused\n") {
				t.Errorf("ended with %q", end)
			}
		})
	}
}

// While the bucket refuses the log of an ended command, the worker waits and the slices
// stay: the worker has the only copy. The wait ends when the bucket takes the log.
func TestALogThatTheBucketRefusesKeepsTheSlices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes, refuses int // takes: seconds until the bucket takes the log; refuses: seconds until it takes anything else
		change         func(w *world)
		want           string
	}{
		"it never takes any":      {99999, 0, nil, "logs 0, unsent 1771, ended 1771, kept 1771, deleted 3571"},
		"it takes it soon":        {100, 0, nil, "logs 0, ended 121, deleted 121"},
		"it takes it late":        {2000, 0, nil, "logs 0, unsent 1771, ended 1771, kept 1771, removed 2011, deleted 2011"},
		"it takes nothing":        {9000, 9000, nil, "deleted 4142"},
		"it takes all again":      {3000, 3000, nil, "ended 3002, deleted 3002"},
		"others have begun again": {99999, 0, func(w *world) { w.put("control/attempt", []byte("2\n")) }, "unsent 571, ended 571, next"},
	} {
		inWorld(t, func(w *world) {
			var did []string
			said := map[string]bool{}
			w.note = func(text string) {
				switch {
				case strings.HasPrefix(text, "workers/"):
					phase, _, _ := strings.Cut(strings.TrimPrefix(string(w.objects[text].data), "phase="), "\n")
					if text = phase; phase != "logs" && phase != "kept" || said[phase] {
						return
					}
					said[phase] = true
				case strings.HasPrefix(text, "ended/"):
					text = "ended"
				case strings.HasPrefix(text, "control/unsent-1-s0w0"):
					text = "unsent"
				case strings.HasPrefix(text, "removed control/unsent-"):
					text = "removed"
				case text == "deleted":
				default:
					return
				}
				did = append(did, fmt.Sprintf("%s %d", text, w.since()))
			}
			d := w.worker()
			w.attempt(d, 1, "exit", fmt.Sprintf("code=0\nend=%d\nsize=9\nlost=0\nreason=\n", time.Now().UnixNano()))
			w.attempt(d, 1, "output.log", "last words")
			w.refuse = func(method, name string) int {
				if w.since() < c.refuses && strings.Contains(name, "/") && !strings.HasPrefix(name, "service-accounts/") || w.since() < c.takes && strings.HasPrefix(name, "main_command") {
					return 403
				}
				return 0
			}
			if c.change != nil {
				c.change(w)
			}
			d.m.at, d.m.attempt, d.m.fetched = ended, 1, true
			d.m.said = "running"
			d.kit = map[string][]byte{"stop": nil}
			ctx, cancel := context.WithCancel(w.t.Context())
			defer cancel()
			s := &sight{life: exited}
			s.forget()
			for w.resource != "" && d.m.at != beginning {
				s.now = time.Now()
				switch a := d.m.next(s); a.do {
				case look:
					d.look(ctx, a.at, s)
					s.looked[a.at] = true
				case wait:
					_ = agent.Sleep(ctx, a.during)
					s = &sight{}
					s.forget()
				default:
					if d.m.at != beginning {
						d.do(ctx, a, s)
						s.did[a.do] = true
					}
				}
			}
			if d.m.at == beginning {
				did = append(did, "next")
			}
			if got := strings.Join(did, ", "); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
		})
	}
}

// If a failure only follows the success of worker 0, it is excused: it stops no other
// worker, and the record calls it a tail. Every other failure stops the other workers
// within a minute, or at once if worker 0 has failed or a stop has begun.
func TestATrainingsTailStopsNobody(t *testing.T) {
	t.Parallel()
	type story struct {
		code, signal, end, more string
		skew                    time.Duration // skew of this worker's clock
		lead                    string        // exit code of worker 0; "": its command is still running
		told                    int           // seconds until worker 0 reports its end
		words                   string        // output
		change                  func(w *world, d *doer)
		want                    string
	}
	for name, c := range map[string]story{
		"an abort after worker 0's success": {lead: "0", want: "tail, after 0 s"},
		"an exit status of 134":             {lead: "0", signal: "-", want: "tail, after 0 s"},
		"the runtime's words":               {lead: "0", code: "1", signal: "-", words: "JAX distributed service detected fatal errors\n", want: "tail, after 0 s"},
		"worker 0 tells later":              {lead: "0", told: 50, want: "tail, after 50 s"},
		"59 s after":                        {lead: "0", end: "5059", want: "tail, after 0 s"},
		"60 s after":                        {lead: "0", end: "5060", want: "tail, after 0 s, fail-fast: a worker failed"},
		"before":                            {lead: "0", end: "4999", want: "tail, after 0 s, fail-fast: a worker failed"},
		"before, by a clock that is an hour behind":     {lead: "0", end: "1410", skew: -time.Hour, want: "skew=-3600, tail, after 0 s"},
		"after, by a clock that is an hour ahead":       {lead: "0", end: "8590", skew: time.Hour, want: "skew=3600, tail, after 0 s, fail-fast: a worker failed"},
		"worker 0 has failed":                           {lead: "1", want: "tail, after 0 s, fail-fast: a worker failed"},
		"worker 0 works on":                             {want: "tail, after 60 s, fail-fast: a worker failed"},
		"worker 0 works on, the others know of another": {want: "tail, after 0 s, fail-fast: a worker failed", change: func(w *world, _ *doer) { w.put("control/failed-1", []byte("why\n")) }},
		"worker 0 works on, and all are to stop":        {want: "tail, after 0 s, fail-fast: a worker failed", change: func(w *world, _ *doer) { w.put("control/stop", nil) }},
		"the bucket tells nothing": {want: "tail, after 60 s, fail-fast: a worker failed", change: func(w *world, _ *doer) {
			w.refuse = func(_, name string) int {
				if name == "ended/1/s0w0." {
					return 503
				}
				return 0
			}
		}},
		"worker 0 itself":             {lead: "0", want: "after 0 s, fail-fast: a worker failed", change: func(_ *world, d *doer) { d.me.Worker, d.bucket.me.Worker = 0, 0 }},
		"an ordinary failure":         {lead: "0", code: "100", signal: "-", want: "after 0 s, fail-fast: a worker failed"},
		"words long before the end":   {lead: "0", code: "1", signal: "-", words: "JAX distributed service\n" + strings.Repeat("x\n", 20), want: "after 0 s, fail-fast: a worker failed"},
		"for want of memory":          {lead: "0", more: "oom=1\n", want: "after 0 s, fail-fast: a worker failed"},
		"an end that nobody has seen": {lead: "0", more: "lost=1\n", want: "after 0 s, fail-fast: a worker failed"},
		"stopped":                     {lead: "0", more: "reason=enough\n", want: "after 0 s", change: func(w *world, d *doer) { w.attempt(d, 1, "stop", "enough\n") }},
		"--strict-exit":               {lead: "0", want: "after 0 s, fail-fast: a worker failed", change: func(_ *world, d *doer) { d.job.Tail = nil }},
		"--fail-fast=false":           {want: "tail, after 0 s", change: func(_ *world, d *doer) { d.job.FailFast = false }},
	} {
		inWorld(t, func(w *world) {
			w.keys["workers"], w.keys["tail_words"] = "2", "JAX distributed service"
			w.values["attributes/tpu-env"] = "WORKER_ID: '1'\n"
			d := w.worker()
			d.m.attempt, d.kit = 1, map[string][]byte{"stop": nil}
			or := func(text, otherwise string) string {
				switch text {
				case "":
					return otherwise
				case "-":
					return ""
				}
				return text
			}
			w.attempt(d, 1, "exit", fmt.Sprintf("code=%s\nsignal=%s\nend=%s000000000\noom=0\nlost=0\nreason=\n%s", or(c.code, "134"), or(c.signal, "ABRT"), or(c.end, "5000"), c.more))
			w.attempt(d, 1, "output.log", c.words)
			if c.change != nil {
				c.change(w, d)
			}
			if c.skew != 0 {
				d.client.Transport = behind{w, c.skew}
			}
			go func() {
				time.Sleep(time.Duration(c.told) * time.Second)
				if w.mu.Lock(); c.lead != "" {
					w.put("ended/1/s0w0."+c.lead, []byte("code=0\nend=5000000000000\n"))
				}
				w.mu.Unlock()
			}()
			time.Sleep(time.Millisecond)
			if err := d.end.finish(w.t.Context(), exited); err != nil {
				t.Error(err)
			}
			got := ""
			for _, line := range d.end.record {
				switch {
				case strings.HasPrefix(line, "skew="):
					got += line + ", "
				case line == "tail=1":
					got += "tail, "
				}
			}
			got += fmt.Sprintf("after %d s", w.since())
			if text := w.text("control/failed-1"); text != "" && text != "why\n" || text == "why\n" && d.m.failure == "" && strings.Contains(c.want, "fail-fast") {
				got += ", " + failFastReason
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
			time.Sleep(time.Hour)
		})
	}
}

// behind is a service whose clock is behind the worker's clock.
type behind struct {
	http.RoundTripper
	by time.Duration
}

func (b behind) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Header.Set("Date", time.Now().Add(-b.by).UTC().Format(http.TimeFormat))
	}
	return resp, err
}

// If the failure is a training's tail, --keep-on-failure does not keep the slices, even if
// calls of the bucket fail often meanwhile.
func TestATrainingsTailIsNoFailureThatKeeps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends string
		want verdict
	}{
		"tails":                    {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1059tail", isExcused},
		"one of them is no tail":   {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1002", notExcused},
		"one of them comes late":   {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1060tail", notExcused},
		"worker 0 has failed, too": {"s0w0.1=1000 s0w1.134=1001tail s0w2.0=1000", notExcused},
		"one has not told":         {"s0w0.0=1000 s0w1.134=1001tail", notExcused},
	} {
		inWorld(t, func(w *world) {
			w.keys["workers"] = "3"
			for _, end := range strings.Fields(c.ends) {
				name, at, _ := strings.Cut(end, "=")
				at, tail := strings.CutSuffix(at, "tail")
				w.put("ended/1/"+name, []byte(fmt.Sprintf("end=%s000000000\ntail=%s\n", at, digit(tail))))
			}
			w.put("workers/s0w2", nil)
			time.Sleep(time.Hour) // s0w2 counts as dead if it has not reported
			d := w.worker()
			d.m.attempt = 1
			s := &sight{}
			s.forget()
			for _, at := range []subject{ofEnds, ofExcuses} {
				d.look(w.t.Context(), at, s)
			}
			if !s.ends.all || s.excused != c.want {
				t.Errorf("%s: got %+v, %q, want %q", name, s.ends, s.excused, c.want)
			}
			w.refuse = func(_, name string) int {
				if name == "ended/1/s0w0.0" {
					return 503
				}
				return 0
			}
			if d.look(w.t.Context(), ofExcuses, s); s.excused != notJudged && len(d.failed) == s.ends.failures {
				t.Errorf("%s, but the bucket is away: got %q", name, s.excused)
			}
		})
	}
}

// A worker that has been silent for long, or has never reported, counts as dead. The others
// wait for a worker that has just reported.
func TestADeadWorkerIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.keys["workers"] = "2"
		d := w.worker()
		w.put("ended/1/s0w0.0", nil)
		for _, c := range []struct {
			after   time.Duration
			reports bool
			want    bool
		}{{0, false, false}, {29 * time.Minute, false, false}, {2 * time.Minute, false, true}, {0, true, false}, {29 * time.Minute, false, false}, {time.Minute, false, true}} {
			time.Sleep(c.after)
			if c.reports {
				w.put("workers/s0w1", nil)
			}
			got, _, err := d.bucket.ends(w.t.Context(), 1, d.firstBoot)
			if err != nil || got.all != c.want || c.want && got.failures != 1 {
				t.Errorf("%+v: got %+v, %v", c, got, err)
			}
		}
	})
}

// Slices with Apart may never come. Once the other workers have given the attempt up, or
// the run is to stop, they do not wait for workers that were never ready. Their own slices
// cost money meanwhile.
func TestWorkersThatNeverCameAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		object string // an object in the bucket, besides the ends and seats of slice 0
		want   bool
	}{
		"given up":                            {"control/failed-1", true},
		"stopped":                             {"control/stop", true},
		"another attempt was given up":        {"control/failed-2", false},
		"a worker of slice 1 may still begin": {"starts/c/seats/1/s1w0.01234567.r-1-x7k2", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.keys["apart"], w.keys["slices"], w.keys["nodes"] = "yes", "2", "r-0 r-1"
				w.values["name"], w.values["attributes/worker-network-endpoints"], w.values["attributes/agent-worker-number"] = "r-0-y4z5", "r-0-y4z5", "0"
				d := w.worker()
				w.put("ended/1/s0w0.75", nil)
				w.put("starts/c/seats/1/s0w0.01234567.r-0-y4z5", []byte("10.0.0.2\n"))
				w.put(c.object, []byte("why\n"))
				if strings.HasPrefix(c.object, "starts/") {
					w.put("control/failed-1", []byte("why\n"))
				}
				got, _, err := d.bucket.ends(w.t.Context(), 1, d.firstBoot)
				if err != nil || got.all != c.want {
					t.Errorf("got %+v, %v", got, err)
				}
			})
		})
	}
}

// If several workers report that their logs in the bucket are not whole, the last of these
// reports decides how long the slices stay.
func TestTheLastOfTheLogsThatAreNotWholeKeepsTheSlices(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		d := w.worker()
		w.put("control/unsent-1-s0w0", nil)
		w.put("control/unsent-11-s0w5", nil)
		time.Sleep(20 * time.Minute)
		w.put("control/unsent-1-s0w1", nil)
		for after, want := range []string{"stays", "stays", ""} {
			time.Sleep(time.Duration(10+5*after) * time.Minute)
			text, err := d.bucket.notWhole(w.t.Context(), 1)
			if err != nil || (text == "the log of s0w0 is not whole in the bucket") != (want == "stays") {
				t.Errorf("%d: got %q, %v", after, text, err)
			}
		}
	})
}

// A stop is an object, which may be empty.
func TestAnEmptyStopIsAStop(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.end[1] = 10 * time.Hour
		w.put("starts/x", nil)
		go func() {
			time.Sleep(100 * time.Second)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.put("control/stop", nil)
		}()
		w.run(time.Hour)
		if end := w.text("ended/1/s0w0.143"); !strings.Contains(end, "reason=control/stop is in the bucket\n") || w.text("control/failed-1") != "" || w.resource != "" {
			t.Errorf("ended with %q\n%s", end, w.out.String())
		}
	})
}

// If the command ended because its machine shut down, the report says so, whichever process
// ended first. If the command had ended by itself before, the report does not.
func TestWhatTheMachineEndedIsTold(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	killed := parseRecord("code=255\nsignal=\nlost=1\nreason=the supervisor was killed\n")
	term, own := parseRecord("code=143\nsignal=TERM\nreason=\n"), parseRecord("code=1\nsignal=\nreason=\n")
	for name, c := range map[string]struct {
		a    attemptHere
		want string
	}{
		"the supervisor was killed first":   {attemptHere{life: lost, record: killed, bootOf: "1", bootIs: "2"}, "the worker was rebooted"},
		"all had TERM, the command first":   {attemptHere{life: exited, record: term, bootOf: "1", bootIs: "2"}, "the worker was rebooted"},
		"its shutdown script has said so":   {attemptHere{life: exited, record: own, down: text("preempted")}, "the worker was rebooted: preempted"},
		"and does not know why":             {attemptHere{life: exited, record: own, down: text("")}, "the worker was rebooted"},
		"it was told before":                {attemptHere{life: lost, record: killed, bootOf: "1", bootIs: "2", told: true}, "no"},
		"in the same boot":                  {attemptHere{life: lost, record: killed, bootOf: "1", bootIs: "1"}, "no"},
		"the boot is not known":             {attemptHere{life: lost, record: killed, bootIs: "1"}, "no"},
		"the command failed before":         {attemptHere{life: exited, record: own, bootOf: "1", bootIs: "2"}, "no"},
		"it had ended well":                 {attemptHere{life: exited, record: Record{"code=0"}, down: text("")}, "no"},
		"it was being stopped":              {attemptHere{life: exited, record: term, bootOf: "1", bootIs: "2", stopped: true}, "no"},
		"a stop came in the way of its own": {attemptHere{life: exited, record: own, down: text(""), stopped: true}, "no"},
		"it runs":                           {attemptHere{life: running, record: own, down: text("")}, "no"},
		"there is no record":                {attemptHere{life: exited, down: text("")}, "no"},
	} {
		got, yes := c.a.wentDown()
		if !yes {
			got = "no"
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestConclude(t *testing.T) {
	t.Parallel()
	const whole = "code=3\nsignal=\nend=5\nsize=7\noom=0\nlost=0\ndropped=0\nreason=\n"
	for name, c := range map[string]struct {
		e      ending
		record string
		want   string
		code   int
		failed bool
	}{
		"a failure":              {ending{}, whole, whole, 3, true},
		"a success":              {ending{}, "code=0\nlost=0\nreason=\n", "code=0\nlost=0\nreason=\n", 0, false},
		"a number like an octal": {ending{}, "code=010\n", "code=010\n", 10, true},
		"a lost success":         {ending{}, "code=0\nlost=1\nreason=\n", "code=0\nlost=1\nreason=\n", 255, true},
		"left behind":            {ending{behind: 2}, whole, whole + "behind=2\n", 3, true},
		"stopped":                {ending{stopped: true}, whole, whole, 3, false},
		"its slices end":         {ending{stopped: true}, "code=0\nend=5\nreason=the slices are deleted 60 s after they were made (--max-run-duration)\n", "end=5\ncode=143\nsignal=\nlost=1\nreason=the slices are deleted 60 s after they were made (--max-run-duration)\n", 143, false},
		"rebooted":               {ending{rebooted: "the worker was rebooted: preempted"}, whole, "end=5\nsize=7\noom=0\ndropped=0\ncode=255\nsignal=\nlost=1\nreason=the worker was rebooted: preempted\n", 255, false},
		"not again":              {ending{notAgain: "enough"}, strings.Replace(whole, "reason=", "reason=the worker was rebooted", 1), "end=5\nsize=7\noom=0\ndropped=0\ncode=143\nsignal=\nlost=1\nreason=enough; the worker was rebooted\n", 143, false},
		"not begun":              {ending{rebooted: "the worker was rebooted", notBegun: "attempt 2 did not begin"}, whole, "end=5\nsize=7\noom=0\ndropped=0\ncode=255\nsignal=\nlost=1\nreason=the worker was rebooted, and attempt 2 did not begin\n", 255, true},
	} {
		out, code, failed := c.e.conclude(parseRecord(c.record))
		if string(out.text()) != c.want || code != c.code || failed != c.failed {
			t.Errorf("%s: got %q, %d, %v", name, out.text(), code, failed)
		}
	}
}

// When a machine shuts down, the program reports that and its reason, and uploads the rest
// of the log. It leaves an ended attempt alone. Even if nothing answers, it ends in time,
// and the next boot knows of the shutdown.
func TestLastWordsOfAMachine(t *testing.T) {
	t.Parallel()
	const log, both = "one\ntwo\n", "phase=down attempt=1 may_delete=yes login=ann detail=preempted log: two marked"
	refusing := func(code int) func(w *world, d *doer) {
		return func(w *world, _ *doer) {
			w.refuse = func(method, name string) int {
				if strings.HasPrefix(name, "workers/") || strings.HasPrefix(name, "main_") {
					return code
				}
				return 0
			}
		}
	}
	for name, c := range map[string]struct {
		change func(w *world, d *doer)
		want   string
	}{
		"a command runs": {func(*world, *doer) {}, both},
		"the first word is refused": {func(w *world, _ *doer) {
			refused := false
			w.refuse = func(_, name string) int {
				if first := strings.HasPrefix(name, "workers/") && !refused; first {
					refused = true
					return 429
				}
				return 0
			}
		}, both},
		"nothing has begun":     {func(_ *world, d *doer) { os.RemoveAll(d.disk.runs) }, "phase=down attempt=0 may_delete=yes login=ann detail=preempted marked"},
		"it has just ended":     {func(w *world, d *doer) { w.attempt(d, 1, "exit", "code=0\n") }, "log: two"},
		"its end was told":      {func(_ *world, d *doer) { touch(d.disk.path("told.1"), time.Now()) }, "marked"},
		"it never came to run":  {func(_ *world, d *doer) { os.RemoveAll(d.disk.runs); touch(d.disk.path("told.1"), time.Now()) }, "marked"},
		"no job":                {func(w *world, _ *doer) { w.keys = map[string]string{} }, ""},
		"no job was here":       {func(_ *world, d *doer) { os.RemoveAll(d.disk.state) }, ""},
		"no answer":             {refusing(-1), "marked"},
		"the bucket is refused": {refusing(403), "marked"},
		"maintenance": {func(w *world, _ *doer) {
			delete(w.values, "preempted")
			w.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
		}, strings.Replace(both, "preempted", "maintenance of its host", 1)},
		"nobody says why": {func(w *world, _ *doer) { delete(w.values, "preempted") }, strings.Replace(both, "preempted", "told to end", 1)},
	} {
		inWorld(t, func(w *world) {
			d := w.worker()
			for name, text := range map[string]string{"right": "yes", "login": "ann", "runs": d.disk.runs} {
				d.disk.remember(name, text)
			}
			w.attempt(d, 1, "output.log", log)
			w.put("main_command_log_slice_0_worker_0", []byte("one\n"))
			w.values["preempted"] = "TRUE"
			c.change(w, d)
			_ = Going(w.t.Context(), w.config())
			var got []string
			for _, word := range strings.Split(w.text("workers/s0w0"), "\n") {
				if word != "" && !strings.HasPrefix(word, "at=") && word != "worker=s0w0" {
					got = append(got, word)
				}
			}
			if w.text("main_command_log_slice_0_worker_0") == log {
				got = append(got, "log: two")
			}
			if d.disk.exists(d.disk.path("down")) {
				got = append(got, "marked")
			}
			if text := strings.Join(got, " "); text != c.want || w.since() > 21 {
				t.Errorf("%s: got %q after %d s, want %q", name, text, w.since(), c.want)
			}
			if d.disk.exists(d.disk.path("down")) && (!d.disk.goingDown(time.Now()) || d.disk.goingDown(time.Now().Add(3*time.Minute)) || d.disk.exists(d.disk.path("down"))) {
				t.Errorf("%s: the machine does not count as going down, or for too long", name)
			}
		})
	}
}

// The guest agent makes the login of ssh-keys some time after the boot. Without that login
// the command runs as root. After a reboot no other login replaces the run's login.
func TestLoginIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there  int
		before string
		want   string
	}{
		"it comes":                   {30, "", "ann after 30 s"},
		"it does not come":           {9999, "", "root after 120 s, not ann"},
		"after a reboot it is slow":  {400, "ann", "ann after 400 s"},
		"after a reboot it is gone":  {9999, "ann", "after 600 s: login ann, which the run belongs to, was not there after 600 s"},
		"after a reboot it was root": {9999, "root", "root after 0 s"},
	} {
		inWorld(t, func(w *world) {
			d := w.worker()
			if c.before != "" {
				d.disk.remember("login", c.before)
			}
			w.program = func(p Program) (Output, bool) {
				if p.Args[0] == "id" {
					return Output{Code: map[bool]int{false: 1}[w.since() >= c.there]}, true
				}
				return Output{}, false
			}
			err := fetcher{d.worker}.awaitLogin(w.t.Context())
			got := fmt.Sprintf("%s after %d s", d.user.name, w.since())
			if d.m.missingLogin != "" {
				got += ", not " + d.m.missingLogin
			}
			if err != nil {
				got = fmt.Sprintf("after %d s: %v", w.since(), err)
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		})
	}
}

// OS Login makes a login's home only at its first SSH login. In a job without runner nobody
// logs in.
func TestALoginWithoutAHomeGetsOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		helper int
		exists bool
		want   string
	}{
		"as pam_mkhomedir makes it": {0, false, "mkhomedir_helper ann"},
		"without its program":       {127, false, "mkhomedir_helper ann, id -g ann, install -d -o ann -g 1 -- HOME"},
		"where there is one":        {0, true, ""},
	} {
		inWorld(t, func(w *world) {
			d := w.worker()
			home := filepath.Join(w.dir, "home/ann")
			if c.exists {
				_ = os.MkdirAll(home, 0o700)
			}
			var did []string
			w.program = func(p Program) (Output, bool) {
				text := strings.Join(p.Args, " ")
				switch {
				case strings.Contains(text, "$HOME"):
					return Output{Out: []byte(home)}, true
				case strings.HasPrefix(text, "id -u"):
					return Output{}, true
				}
				did = append(did, strings.ReplaceAll(text, home, "HOME"))
				if strings.HasPrefix(text, "id -g") {
					return Output{Out: []byte("1\n")}, true
				}
				return Output{Code: c.helper}, true
			}
			err := fetcher{d.worker}.awaitLogin(w.t.Context())
			if got := strings.Join(did, ", "); err != nil || got != c.want || d.disk.runs != home+"/.multihost/runs/r" {
				t.Errorf("%s: got %q, %v, %s", name, got, err, d.disk.runs)
			}
		})
	}
}

// A value of Secret Manager becomes a variable unchanged. If a value cannot be a variable,
// the run ends.
func TestSecretsThatFitNoVariableAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reply, want string }{
		"a value":       {`{"payload": {"data": "dHdvCmxpbmVz"}}`, "KEY=two\nlines\x00"},
		"a NUL":         {`{"payload": {"data": "YQBi"}}`, ""},
		"no base64":     {`{"payload": {"data": "&%$"}}`, ""},
		"an empty one":  {`{"payload": {"data": ""}}`, ""},
		"another thing": {`<html>sign in</html>`, ""},
	} {
		inWorld(t, func(w *world) {
			w.keys["secrets"] = "KEY=sm://p/key/7"
			w.secrets = map[string]string{"/v1/projects/p/secrets/key/versions/7:access": c.reply}
			d := w.worker()
			err := d.start.fetchSecrets(w.t.Context())
			if got := string(d.start.ready.secrets); got != c.want || (err == nil) != (c.want != "") || err != nil && err.Error() != "read secret p/key/7: the answer has no value that fits into a variable" {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
		})
	}
}

// A worker that waits for a permission reports that. If the secret does not exist, the wait
// ends.
func TestASecretThatIsWaitedForIsTold(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.keys["secrets"] = "KEY=sm://p/key/7"
		d := w.worker()
		d.m.said = "preflight"
		d.client.Transport = denied{w, w.begin.Add(5 * time.Second)}
		err := d.start.fetchSecrets(w.t.Context())
		if err == nil || err.Error() != "read secret p/key/7: HTTP status 404: no such secret" || w.since() != 7 || !strings.Contains(w.text("workers/s0w0"), "phase=preflight\n") || !strings.Contains(w.text("workers/s0w0"), "detail=waiting: HTTP status 403: denied\n") {
			t.Errorf("got %v after %d s, %q", err, w.since(), w.text("workers/s0w0"))
		}
	})
}

// denied refuses to read secrets until a time.
type denied struct {
	http.RoundTripper
	until time.Time
}

func (d denied) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Host == "sm" && time.Now().Before(d.until) {
		resp.StatusCode = http.StatusForbidden
		resp.Body = http.NoBody
		resp.Body = body(`{"error": {"message": "denied"}}`)
	}
	return resp, err
}

type text struct{ *strings.Reader }

func (text) Close() error { return nil }

func body(s string) text { return text{strings.NewReader(s)} }

func TestPreflight(t *testing.T) {
	t.Parallel()
	const result = "multihost-preflight result "
	for name, c := range map[string]struct {
		out, mode string
		want      string
		said      string
	}{
		"no TPU":          {result + "rto_min\t\t\t\tfailed\t\tno route\nmultihost-preflight info numa_nodes\t2\n" + result + "tpu_devices\t4\t\t\tfailed\t\tnone found\nmultihost-preflight end\n", "", "preflight: tpu_devices: none found", "multihost: preflight: rto_min is not : no route\nmultihost: preflight: tpu_devices is not 4: none found\n"},
		"a setting":       {result + "rto_min\t5\t\t\tfailed\t\tno route\nmultihost-preflight end\n", "", "", "multihost: preflight: rto_min is not 5: no route\n"},
		"one is required": {result + "rto_min\t5\t\t\tfailed\t\tno route\nmultihost-preflight end\n", "require", "preflight: rto_min: no route", "multihost: preflight: rto_min is not 5: no route\n"},
		"it breaks off":   {"killed\n", "", "preflight did not end: killed", ""},
		"it only looks":   {"killed\n", "check", "", ""},
		"all is well":     {result + "rto_min\t5\t5\t5\tok\t\t\nmultihost-preflight end\n", "", "", ""},
	} {
		inWorld(t, func(w *world) {
			if w.keys["preflight"] = "apply"; c.mode != "" {
				w.keys["preflight"] = c.mode
			}
			d := w.worker()
			w.program = func(Program) (Output, bool) { return Output{Out: []byte(c.out)}, true }
			err := d.start.preflight(w.t.Context())
			if got := fmt.Sprint(err); c.want != "" && got != c.want || c.want == "" && err != nil || w.out.String() != c.said {
				t.Errorf("%s: got %v, says %q", name, err, w.out.String())
			}
			if name == "no TPU" && d.start.ready.numaNodes != 2 {
				t.Errorf("got %+v", d.start.ready)
			}
		})
	}
}

// Before the start, the worker names a foreign holder of the TPU, or with --kill-stale=all
// ends it.
func TestHolderOfTheTPUIsNamed(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"orphans": "the TPU is in use by pid 71 of bob: python3 other.py --steps=9; --kill-stale=all would end it", "all": ""} {
		inWorld(t, func(w *world) {
			w.keys["kill_stale"] = policy
			d := w.worker()
			d.kit = map[string][]byte{"free": nil}
			w.program = func(p Program) (Output, bool) {
				if n := len(p.Args); p.Args[n-2] == "orphans" {
					return Output{Out: []byte(p.Args[n-3] + " holder 71 0 60 bob - - 0 0 accel0 python3 other.py --steps=9\n")}, true
				}
				return Output{}, true
			}
			code, err := d.start.prepare(w.t.Context())
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != want || code != 69) {
				t.Errorf("%s: got %d, %v", policy, code, err)
			}
		})
	}
}

// The command finds the virtual environment, and its programs come first in PATH. If the
// worker cannot make the environment, no command starts, and the reason says what to
// install.
func TestVenv(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"NONCE path /v/bin:/usr/bin\nNONCE venv /v": "",
		"NONCE refused python3-venv no module":      "the package python3-venv is not installed: no module",
		"NONCE refused - no room":                   "no room",
		"NONCE error disk full":                     "disk full",
		"":                                          "no answer: killed",
	} {
		inWorld(t, func(w *world) {
			w.keys["venv"], w.keys["maxtext"], w.keys["zone"], w.keys["project"] = "yes", "yes", "z", "p"
			d := w.worker()
			d.kit = map[string][]byte{"venv": nil}
			w.program = func(p Program) (Output, bool) {
				if p.Limit != 1950*time.Second {
					t.Errorf("it may take %v", p.Limit)
				}
				return Output{Out: []byte(strings.ReplaceAll(answer, "NONCE", p.Args[len(p.Args)-2])), Err: []byte("killed\n")}, true
			}
			err := d.start.makeVenv(w.t.Context())
			if want != "" {
				if err == nil || err.Error() != "make a virtual environment (--venv): "+want {
					t.Errorf("got %v, want %q", err, want)
				}
				return
			}
			if got := strings.Join(d.start.variables(), "\n"); err != nil || !strings.HasSuffix(got, "\nSLICE_ID=0\nWORKER_ID=0\nNODE_ID=r\nZONE=z\nPROJECT=p\nPYTHONHOME\nVIRTUAL_ENV=/v\nPATH=/v/bin:/usr/bin") {
				t.Errorf("got %v, %q", err, got)
			}
		})
	}
}

func TestNUMAWrap(t *testing.T) {
	t.Parallel()
	argv := []byte("dir\x00argv\x00python3\x00a.py\x00")
	for _, c := range []struct {
		r    ready
		numa string
		want string
	}{
		{ready{numaNodes: 2, numactl: true}, "bind", "dir\x00argv\x00numactl\x00--membind=0\x00--cpunodebind=0\x00python3\x00a.py\x00"},
		{ready{numaNodes: 2, numactl: true}, "preferred", "dir\x00argv\x00numactl\x00--preferred=0\x00--cpunodebind=0\x00python3\x00a.py\x00"},
		{ready{numaNodes: 2, numactl: true}, "off", string(argv)},
		{ready{numaNodes: 1, numactl: true}, "bind", string(argv)},
		{ready{numaNodes: 2}, "bind", string(argv)},
	} {
		if got := wrapped(argv, c.r.wrap(c.numa)); string(got) != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
	if got := wrapped([]byte("dir\x00script 2 0 9\x00"), []string{"numactl"}); string(got) != "dir\x00script 2 0 9\x00numactl\x00" {
		t.Errorf("a script: got %q", got)
	}
}

// The report says what keeps a command from starting.
func TestArmed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"started 7 1": "running <nil>", "already": "unknown <nil>", "busy ann r 1": "unknown another run lives on this worker",
		"error disk full": "unknown disk full", "failed no shell": "unknown no shell", "startedx": "unknown killed",
	} {
		is, err := answer{nonce: "n", lines: []string{"other", "n " + text, ""}, err: "killed"}.armed()
		if got := fmt.Sprintf("%s %v", is, err); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	if _, err := (answer{}).armed(); err == nil || err.Error() != "no answer" {
		t.Errorf("got %v", err)
	}
}

// The configuration of the Ops Agent has each entry once, even if the worker writes it
// several times. The worker restarts the agent only if the configuration has changed.
func TestOpsAgentConfigurationIsWrittenWhole(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		d := w.worker()
		d.m.attempt, d.m.endCode, d.me.Slice, d.me.Worker = 2, "3", 1, 2
		path := filepath.Join(w.dir, "etc/google-cloud-ops-agent/config.yaml")
		_ = os.MkdirAll(filepath.Dir(path), 0o700)
		_ = os.WriteFile(path, []byte("logging:\n  receivers: {}\n"), 0o600)
		restarts := 0
		w.program = func(p Program) (Output, bool) {
			if p.Args[1] == "restart" {
				restarts++
			}
			return Output{}, true
		}
		c := cloudLog{d.worker}
		c.opsAgent(w.t.Context())
		c.opsAgent(w.t.Context())
		c.linkLog()
		c.linkLog()
		c.logEnd("two\nlines")
		got, _ := os.ReadFile(path)
		if text := string(got); strings.Count(text, "\nlogging:\n") != 1 || !strings.Contains(text, "    r_log:\n") || !strings.Contains(text, "receivers: [r_log]\n") || !strings.Contains(text, "["+w.dir+"/var/log/multihost/r/*]") || restarts != 1 {
			t.Errorf("restarted %d times for\n%s", restarts, text)
		}
		if to, err := os.Readlink(w.dir + "/var/log/multihost/r/attempt-2_main_command_log_slice_1_worker_2"); err != nil || to != d.disk.attempt(2, "output.log") {
			t.Errorf("got %s, %v", to, err)
		}
		ends, _ := os.ReadFile(w.dir + "/var/log/multihost/r/ends_slice_1_worker_2")
		if want := "multihost: attempt 2 ended on slice 1 worker 2 at 2000-01-01T00:00:00Z with exit status 3: two lines\n"; string(ends) != want {
			t.Errorf("got %q", ends)
		}
	})
}

// A command that fails because it has filled the disk is reported like any other: with its
// last line, its exit status and without delay.
func TestACommandThatFillsTheDiskIsTold(t *testing.T) {
	dir := os.Getenv("FULL_DISK")
	if dir == "" {
		testkit.NeedRoot(t) // to mount
		cmd := exec.Command("unshare", "-m", "bash", "-c", `mkdir "$FULL_DISK/.multihost-job" && mount -t tmpfs -o size=64k none "$FULL_DISK/.multihost-job" && exec "$0" -test.run='^TestACommandThatFillsTheDiskIsTold$' -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), "FULL_DISK="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the disk is full") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	inWorldAt(t, dir, func(w *world) {
		w.log[1], w.record[1] = "step 1\nNo space left on device\n", "code=7\nsignal=\nend=1\nsize=31\noom=0\nlost=0\ndropped=0\nreason=\n"
		state := filepath.Join(dir, ".multihost-job/r")
		w.program = func(p Program) (Output, bool) {
			if strings.Contains(strings.Join(p.Args, " "), "multihost-arm") {
				if err := os.WriteFile(filepath.Join(state, "checkpoint"), make([]byte, 1<<20), 0o600); errors.Is(err, syscall.ENOSPC) {
					t.Log("the disk is full")
				}
			}
			return Output{}, false
		}
		w.run(time.Hour)
		if w.text("ended/1/s0w0.7") != w.record[1] || w.text("main_command_log_slice_0_worker_0") != w.log[1] || w.text("control/failed-1") != failFastReason+"\n" || w.resource != "" || w.since() > 1 {
			t.Errorf("ended with %q after %d s, left %q\n%s", w.text("ended/1/s0w0.7"), w.since(), w.resource, w.out.String())
		}
		if info, err := os.Stat(filepath.Join(state, "told.1")); err != nil || info.Size() > 0 {
			t.Errorf("the next boot does not know the end: %v, %v", info, err)
		}
	})
}

// The worker sends each piece of a log once, even if another program sends the log at the
// same time.
func TestALogGoesInPieces(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		d := w.worker()
		const name = "main_command_log_slice_0_worker_0"
		w.attempt(d, 1, "output.log", "0123456789")
		path := d.disk.attempt(1, "output.log")
		races := 2
		w.refuse = func(method, n string) int {
			if method == http.MethodPost && n == name && races > 0 {
				if races--; races == 0 { // the other program is first
					w.put(name, append(w.objects[name].data, []byte("4567")...))
				}
			}
			return 0
		}
		if err := d.bucket.sendLog(w.t.Context(), path, name, pieces{4, "part"}); err != nil || w.text(name) != "0123456789" || w.text(name+".part") != "" {
			t.Errorf("got %q, %v", w.text(name), err)
		}
		w.attempt(d, 1, "output.log", "012")
		if err := d.bucket.sendLog(w.t.Context(), path, name, piecesOfJob); err != nil || w.text(name) != "0123456789" {
			t.Errorf("a log that is shorter: got %q, %v", w.text(name), err)
		}
		w.attempt(d, 2, "output.log", "")
		if err := d.bucket.sendLog(w.t.Context(), d.disk.attempt(2, "output.log"), "e", piecesOfJob); err != nil || w.objects["e"] == nil {
			t.Errorf("an empty log: %v", err)
		}
		if err := d.bucket.sendLog(w.t.Context(), d.disk.attempt(3, "output.log"), "none", piecesOfJob); err == nil || err.Error() != "read the log: no such file or directory" {
			t.Errorf("no log: %v", err)
		}
	})
}

// The number in control/attempt only grows. Other text there is ignored.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	for there, want := range map[string]string{"": "2 <nil>, 2\n", "1\n": "2 <nil>, 2\n", "1": "2 <nil>, 2\n", "4\n": "4 <nil>, 4\n", "x\n": "0 control/attempt is no number: x, x\n"} {
		inWorld(t, func(w *world) {
			d := w.worker()
			if there != "" {
				w.put("control/attempt", []byte(there))
			}
			n, err := d.bucket.announce(w.t.Context(), 2)
			if got := fmt.Sprintf("%d %v, %s", n, err, w.text("control/attempt")); got != want {
				t.Errorf("%q: got %q, want %q", there, got, want)
			}
		})
	}
}

func TestQuickDeaths(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		d := w.worker()
		for n := 1; n <= 3; n++ {
			if d.disk.quick(n) {
				t.Errorf("%d attempts are enough", n-1)
			}
			w.attempt(d, n, "started", fmt.Sprintf("7 1 %d 8\n", time.Now().UnixNano()))
			touch(d.disk.path(fmt.Sprintf("seen.%d", n)), time.Now().Add(time.Minute))
		}
		if !d.disk.quick(3) {
			t.Error("3 attempts are not enough")
		}
		touch(d.disk.path("seen.2"), time.Now().Add(62*time.Second))
		if d.disk.quick(3) {
			t.Error("one lived longer")
		}
	})
}

func TestParsePlace(t *testing.T) {
	t.Parallel()
	many := Job{Nodes: []string{"t-0", "t-1"}, Slices: 2, Workers: 4}
	one := Job{Nodes: []string{"t"}, Slices: 1, Workers: 1}
	check := func(j Job, env, want string) {
		p, err := parsePlace(j, map[string]string{envKey: env, endpointsKey: "a:b:10.0.0.1,a:b:10.0.0.2", ownAddress: "10.0.0.2"})
		got := fmt.Sprintf("%s %d %s %s", p, p.index(j), p.Node, p.Coordinator)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", env, got, want)
		}
	}
	check(one, "", "s0w0 0  10.0.0.1")
	check(one, "WORKER_ID: ''\nNODE_ID: 'x'\n", "s0w0 0 x 10.0.0.1")
	check(one, "WORKER_ID: 'x'\n", `the metadata server does not tell which worker this is: its WORKER_ID is no number: "x"`)
	for env, want := range map[string]string{
		"ACCELERATOR_TYPE: 'v4-16'\nWORKER_ID: '3'\nNODE_ID: 't-1'\n":                                             "s1w3 7 t-1 10.0.0.1",
		"WORKER_ID: '3'\nMEGASCALE_SLICE_ID: '1'\nMEGASCALE_COORDINATOR_ADDRESS: '10.9.9.9:8080'\nNODE_ID: 'x'\n": "s1w3 7 x 10.9.9.9",
		"":                                     `the metadata server does not tell which worker this is: its WORKER_ID is missing`,
		"WORKER_ID: ''\nNODE_ID: 't-1'\n":      `the metadata server does not tell which worker this is: its WORKER_ID is missing`,
		"WORKER_ID: '3'\nNODE_ID: 'x'\n":       `the metadata server does not tell which worker this is: its MEGASCALE_SLICE_ID is missing`,
		"WORKER_ID: \"3\"\nNODE_ID: \"t-1\"\n": "s1w3 7 t-1 10.0.0.1",
		"WORKER_ID: '3'\nNODE_ID: 't-1'\nMEGASCALE_SLICE_ID: ''\n": "s1w3 7 t-1 10.0.0.1",
		"WORKER_ID: 'three'\nNODE_ID: 't-1'\n":                     `the metadata server does not tell which worker this is: its WORKER_ID is no number: "three"`,
		"WORKER_ID: '-3'\nNODE_ID: 't-1'\n":                        `the metadata server does not tell which worker this is: its WORKER_ID is no number: "-3"`,
		"WORKER_ID: '3'\nMEGASCALE_SLICE_ID: 'x'\n":                `the metadata server does not tell which worker this is: its MEGASCALE_SLICE_ID is no number: "x"`,
	} {
		check(many, env, want)
	}
}

// A VM of a group learns its slice from its name, and its number from its metadata. It
// trusts neither if its other metadata contradict them.
func TestPlaceInAGroup(t *testing.T) {
	t.Parallel()
	many := Job{Apart: true, Nodes: []string{"t-0", "t-1", "t-10"}, Slices: 3, Workers: 2}
	one := Job{Apart: true, Nodes: []string{"t"}, Slices: 1, Workers: 1}
	const not = "the metadata server does not tell which worker this is: "
	for _, c := range []struct {
		j                              Job
		name, number, endpoints, group string
		want                           string
	}{
		{many, "t-1-x7k2", "0", "t-1-ab12,t-1-x7k2", "projects/1/zones/z/instanceGroupManagers/t-1", "s1w0 of t-1, coordinator "},
		{many, "t-1-x7k2", "1", "t-1-ab12,t-1-x7k2", "", "s1w1 of t-1, coordinator "},
		{many, "t-10-x7k2", "1", "t-10-x7k2,t-10-ab12", "", "s2w1 of t-10, coordinator "},
		{one, "t-x7k2", "", "", "", "s0w0 of t, coordinator 10.0.0.2"},
		{one, "t-x7k2", "0", "t-x7k2", "", "s0w0 of t, coordinator 10.0.0.2"},
		{one, "t-x7k2", "0", "t-other", "", not + `its worker-network-endpoints do not name "t-x7k2" among 1 VMs: "t-other"`},
		{many, "t-1-x7k2", "", "t-1-ab12,t-1-x7k2", "", not + "its agent-worker-number is missing"},
		{many, "t-1-x7k2", "first", "t-1-ab12,t-1-x7k2", "", not + `its agent-worker-number is no number: "first"`},
		{many, "t-1-x7k2", "2", "t-1-ab12,t-1-x7k2", "", not + "its agent-worker-number is 2 of 2"},
		{many, "t-1-x7k2", "1", "t-1-ab12", "", not + `its worker-network-endpoints do not name "t-1-x7k2" among 2 VMs: "t-1-ab12"`},
		{many, "t-1-x7k2", "1", "t-1-x7k2,t-1-x7k2", "", not + `its worker-network-endpoints do not name "t-1-x7k2" among 2 VMs: "t-1-x7k2,t-1-x7k2"`},
		{many, "t-1-x7k2", "1", "", "", not + `its worker-network-endpoints do not name "t-1-x7k2" among 2 VMs: ""`},
		{many, "t-2-x7k2", "1", "t-2-ab12,t-2-x7k2", "", not + `VM "t-2-x7k2" is not named after a slice`},
		{many, "t-1", "1", "t-1,t-0", "", not + `VM "t-1" is not named after a slice`},
		{many, "", "1", "", "", not + `VM "" is not named after a slice`},
		{many, "t-1-x7k2", "1", "t-1-ab12,t-1-x7k2", "projects/1/zones/z/instanceGroupManagers/t-0", not + `VM "t-1-x7k2" was made by group "t-0"`},
	} {
		// A VM of a group may also have lines of tpu-env. They do not count for its place.
		p, err := parsePlace(c.j, map[string]string{nameKey: c.name, numberKey: c.number, endpointsKey: c.endpoints, groupKey: c.group, ownAddress: "10.0.0.2", envKey: "WORKER_ID: '0'\nNODE_ID: 't-0'\n"})
		got := fmt.Sprintf("%s of %s, coordinator %s", p, p.Node, p.Coordinator)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhoIsAbsent(t *testing.T) {
	t.Parallel()
	j := Job{Apart: true, Nodes: []string{"t-0", "t-1"}, Slices: 2, Workers: 2}
	all := []string{"s0w0.11111111.t-0-a", "s0w1.11111111.t-0-b", "s1w0.22222222.t-1-a", "s1w1.22222222.t-1-b"}
	for want, names := range map[string][]string{
		"":                                    all,
		"4 workers have not come, s0w0 first": nil,
		"s1w1 has not come":                   {all[0], all[1], all[2], "other", "s9w0.33333333.t-9-a"},
		"2 workers have not come, s1w0 first": all[:2],
		"VMs t-0-a and t-0-c say that they are s0w0": {all[0], "s0w0.11111111.t-0-c", all[1], all[2], all[3]},
	} {
		for i := range names {
			names[i] = "starts/c/seats/1/" + strings.TrimPrefix(names[i], "starts/c/seats/1/")
		}
		if got := absent(j, names); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// The two VMs of slice 0 report different lists of its VMs, so they do not count as its
	// two workers.
	if got := absent(j, []string{"/s0w0.11111111.t-0-a", "/s0w1.33333333.t-0-b", "/s1w0.22222222.t-1-a", "/s1w1.22222222.t-1-b"}); got != "s0w1 has not come" {
		t.Error(got)
	}
	// A slice was repaired with other VMs, and all of them are ready.
	if got := absent(j, append([]string{"/s0w0.33333333.t-0-x"}, "/s0w0.11111111.t-0-a", "/s0w1.11111111.t-0-b", "/s1w0.22222222.t-1-a", "/s1w1.22222222.t-1-b")); got != "" {
		t.Error(got)
	}
}

// The worker understands everything that the runner writes.
func TestTheJobIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	const queued = "https://T/queuedResources/"
	text := detach.Job{
		Run: "r", Project: "p", Zone: "z", Resource: "q", Label: "multihost-run=r", Nodes: []string{"q-0", "q-1"}, Workers: 4, Login: "ann", Bucket: "b", Dir: "d",
		Undoing: provision.Undoing{Parts: []provision.Part{{Look: queued + "q", Delete: queued + "q?force=true", Probe: queued + "none", Going: provision.Field{Path: "/state/state", Value: "DELETING"}, Labels: "/tpu/nodeSpec/*/node/labels"},
			{Look: queued + "g", Delete: queued + "g", About: "slices of q"}}},
		Storage: "https://S", SecretManager: "https://M", Every: 2 * time.Minute, Patience: 3 * time.Minute, LogTimeout: 4 * time.Minute, Stale: 5 * time.Minute,
		TTL: 6 * time.Minute, MaxRun: 10 * time.Minute, Gather: 11 * time.Minute, Apart: true, Requested: time.Unix(7, 0), Keep: detach.KeepOnFailure, KeepFor: 8 * time.Minute, Grace: 1500 * time.Millisecond, Timeout: 9 * time.Minute,
		Preflight: "require", KillStale: "all", NUMA: "bind", Adopt: true, Venv: true, MaxText: true, CloudLogging: true,
		Secrets: []detach.Secret{{Name: "KEY", Project: "p", ID: "s", Version: "7"}}, TailWords: "a|b",
	}.Metadata()["multihost-job"]
	got, err := parseJob(text)
	if err != nil {
		t.Fatal(err)
	}
	want := Job{
		Run: "r", Project: "p", Zone: "z", Resource: "q", Nodes: []string{"q-0", "q-1"}, Slices: 2, Workers: 4, Login: "ann", Bucket: "b", Prefix: "d/r/",
		Storage: "https://S/storage/v1", Upload: "https://S/upload/storage/v1", SecretManager: "https://M/v1", Period: 2 * time.Minute, Look: 20 * time.Second, Patience: 3 * time.Minute,
		LogTimeout: 4 * time.Minute, Stale: 5 * time.Minute, TTL: 6 * time.Minute, MaxRun: 10 * time.Minute, Gather: 11 * time.Minute, Apart: true, Requested: time.Unix(7, 0), Keep: "on-failure", KeepFor: 8 * time.Minute, Grace: 1500 * time.Millisecond,
		Timeout: 9 * time.Minute, Preflight: "require", KillStale: "all", NUMA: "bind", Adopt: true, Venv: true, MaxText: true, CloudLogging: true,
		Secrets: []Secret{{"KEY", "p", "s", "7"}}, Tail: got.Tail, Deletions: got.Deletions,
	}
	if !reflect.DeepEqual(got, want) || got.Tail == nil || got.Tail.String() != "a|b" {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if d := got.Deletions[1]; d.Proof != (agent.Field{Path: "/description", Value: "slices of q multihost-run=r"}) {
		t.Errorf("deletes %+v", d)
	}
	if d := got.Deletions[0]; len(got.Deletions) != 2 || d.Read != queued+"q" || d.URL != queued+"q?force=true" || d.Probe != queued+"none" ||
		d.Proof != (agent.Field{Path: "/tpu/nodeSpec/*/node/labels/multihost-run", Value: "r"}) || d.Going != (agent.Field{Path: "/state/state", Value: "DELETING"}) {
		t.Errorf("deletes %+v", got.Deletions)
	}
}

func TestParseJob(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"run=r\n": "", "run=r": "", "": "it has no run", "run=../x": "it has no run",
		"run=r\nlook=x":          `its look is no number: "x"`,
		"run=r\nttl=-1":          `its ttl is no number: "-1"`,
		"run=r\nsecrets=KEY=sm":  `it has secrets that cannot be read: "KEY=sm"`,
		"run=r\ntail_words=(":    "it has words that are no expression: error parsing regexp: missing closing ): `(`",
		"run=r\ndeletion={":      "it has a deletion that cannot be read: unexpected end of JSON input",
		"run=r\nunknown=1\nx=\n": "",
	} {
		j, err := parseJob(text)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if err == nil && (j.Look != 20*time.Second || !j.FailFast || j.Grace != 30*time.Second || j.Keep != "never") {
			t.Errorf("%q: got %+v", text, j)
		}
	}
}

// An operation hangs if the home hangs. The worker then kills it, with all processes that
// it started.
func TestAProgramThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	h := Host{t.TempDir()}
	out, err := h.Run(t.Context(), Program{Args: []string{"bash", "-c", `trap 'echo told; exit 1' TERM; echo begins; sleep 1000 & wait`}, Limit: 200 * time.Millisecond, Merge: true})
	if err != nil || out.Code != -1 || string(out.Out) != "begins\ntold\n" {
		t.Errorf("got %q, %d, %v", out.Out, out.Code, err)
	}
	out, err = h.Run(t.Context(), Program{Args: []string{"bash", "-c", `sleep 1000 & echo $!; cat; echo "$A" >&2; exit 3`}, Stdin: strings.NewReader("in\n"), Env: []string{"A=b"}})
	pid, rest, _ := strings.Cut(string(out.Out), "\n")
	if err != nil || out.Code != 3 || rest != "in\n" || string(out.Err) != "b\n" {
		t.Errorf("got %q, %q, %d, %v", out.Out, out.Err, out.Code, err)
	}
	if err := exec.Command("kill", pid).Run(); err != nil {
		t.Error("what it left in the background was ended, too")
	}
	if _, err := h.Run(t.Context(), Program{Args: []string{"/none"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(h.Scratch); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// The user's own files in the run's directory stay. If the user runs the job again, it
// finds its own directory.
func TestCodeLeavesWhatIsTheUsers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home, code := filepath.Join(dir, "home"), filepath.Join(dir, "code")
	for path, text := range map[string]string{filepath.Join(home, "r/train.py"): "precious\n", filepath.Join(code, "train.py"): "shipped\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	packed, err := exec.Command("tar", "-czf", "-", "-C", code, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	inWorld(t, func(w *world) {
		w.put("starts/c/script_dir_zip_r.tar.gz", packed)
		_ = os.WriteFile(filepath.Join(dir, "code.tar.gz"), packed, 0o600)
		w.keys["code_sum"] = sumOf(packed)
		d := w.worker()
		d.cfg.System, d.user.rootHome = Host{d.scratch}, home
		d.kit = map[string][]byte{"unpack": []byte(codesync.Unpack())}
		unpack := func(want string) {
			t.Helper()
			code, err := d.start.unpackCode(w.t.Context())
			text, _ := os.ReadFile(filepath.Join(home, "r/train.py"))
			if got := strings.ReplaceAll(fmt.Sprintf("%d %v: %s", code, err, text), home, "~"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		const refused = "78 ~/r is a directory that no run brought there; it is left as it is; another --run-name=NAME has a directory of its own, --adopt puts the files into this one: "
		unpack(refused + "precious\n")
		d.job.Adopt = true
		unpack("0 <nil>: shipped\n")
		d.job.Adopt = false
		_ = os.WriteFile(filepath.Join(home, "r/train.py"), []byte("of the command\n"), 0o600)
		unpack("0 <nil>: of the command\n")
		os.Remove(d.disk.path("unpacked"))
		unpack("0 <nil>: shipped\n")
		os.RemoveAll(filepath.Join(home, "r"))
		os.Remove(d.disk.path("unpacked"))
		_ = os.MkdirAll(filepath.Join(home, "r"), 0o700)
		_ = os.WriteFile(filepath.Join(home, "r/train.py"), []byte("anew\n"), 0o600)
		unpack(refused + "anew\n")
		w.keys["code_sum"], d.job.CodeSum = "0", "0"
		unpack("74 script_dir_zip_r.tar.gz is not what the job was started with: anew\n")
	})
}

// A worker that does not know its place deletes the slices only if no worker could begin
// for a long time. A bucket that cannot be read proves nothing at first, but does not keep
// the slices for ever.
func TestAWorkerWithoutPlaceDeletesLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reported     bool
		from, before int // when the bucket does not answer, in seconds
		want         int // when the slices are deleted; 0: never
	}{
		"alone":                      {want: 2400},
		"another has reported":       {reported: true},
		"the bucket never answers":   {reported: true, before: 99999, want: 4800},
		"the bucket is away a while": {reported: true, from: 2000, before: 3000},
		"it is away, and nobody has": {from: 2000, before: 3000, want: 3000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.values["attributes/tpu-env"] = "WORKER_ID: 'x'\n"
				if c.reported {
					w.put("workers/s0w1", nil)
				}
				w.refuse = func(_, name string) int {
					if now := w.since(); strings.HasPrefix(name, "workers/") && now >= c.from && now < c.before {
						return http.StatusServiceUnavailable
					}
					return 0
				}
				at := 0
				w.note = func(string) { at = w.since() }
				w.run(3 * time.Hour)
				if at < c.want || at > c.want+180 || c.want == 0 && at > 0 {
					t.Errorf("deleted after %d s\n%s", at, w.out.String())
				}
			})
		})
	}
}
