//go:build unix

// Package detached is the program of a job without runner. Every worker runs it at each
// boot.
//
// The program fetches the job's files from the bucket, and prepares the worker. It starts
// the command under the supervisor that a runner would use. It stores the log and the end
// in the bucket. It deletes the slices once every worker has ended. Package detach of
// multihost writes the description of the job and describes the names of the objects.
//
// The type machine decides and is pure. The type worker carries out its decisions. The type
// disk has everything that must survive a reboot, or the death of this program.
//
// Every wait has a limit, with some exceptions: the wait for the metadata server, for the
// end of the command, and for the deletion of the slices. With --slices-deadline=0, the
// wait for the other workers has no limit. With --keep, the wait until the bucket has the
// whole log has no limit either. No secret is in an argument, a file or the output.
package detached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"multihost/internal/agent"
)

// A Config is the environment of a worker's program.
type Config struct {
	File      string // file with the description of the job; "": it is in the metadata server
	Home      string // home of root
	Root      string // directory of /run, /etc and /var; "" on a real worker
	Proc      string // directory of /proc; "" on a real worker
	Metadata  *agent.Metadata
	Transport http.RoundTripper // carries the calls to the APIs
	System    System
	Out       io.Writer // for the serial console and the journal
}

// jobKey is the instance attribute with the description of the job.
const jobKey = "attributes/multihost-job"

// callLimit limits one call of an API. It is long enough for large logs.
const callLimit = 10 * time.Minute

// A worker has what all its actions have in common.
type worker struct {
	cfg    Config
	job    Job
	me     Place
	m      *machine
	disk   disk
	bucket objects
	client *agent.Client
	user   user
	kit    map[string][]byte
	home   string // of the login

	scratch   string // directory in memory, for reports when the command has filled the disk
	firstBoot time.Time
	right     string         // whether this worker may delete the slices, in words
	told      string         // last report of a worker that does not know its place
	blind     time.Time      // since when reads of the bucket fail; zero: they succeed
	beside    sync.WaitGroup // work beside the attempts
}

// Run does this worker's part in the job, from a boot on. It returns nil when nothing is
// left to do, or another instance runs. It returns an error if the description in cfg.File
// cannot be used, if it cannot write to the disk, or when the context ends. It may then be
// called again.
func Run(ctx context.Context, cfg Config) error {
	w := &worker{cfg: cfg, client: &agent.Client{Metadata: cfg.Metadata, Transport: cfg.Transport, Limit: callLimit}}
	err := w.identify(ctx)
	if errors.Is(err, agent.ErrForeign) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	unlock, err := agent.Lock(w.disk.path("lock"))
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	if err := w.boot(); err != nil {
		return err
	}
	agent.Note(cfg.Out, "worker %s of job %s", w.me, w.job.Run)
	w.testRight(ctx)
	_ = w.report(ctx, "boot", "")
	defer w.beside.Wait()
	d := doer{worker: w, start: starter{worker: w}, end: ender{worker: w}}
	return d.work(ctx)
}

// describe reads the description of the job.
func (w *worker) describe(ctx context.Context) error {
	var text string
	if w.cfg.File != "" {
		data, err := os.ReadFile(w.cfg.File)
		if err != nil {
			return fmt.Errorf("read the job: %w", err)
		}
		text = string(data)
	} else {
		var err error
		if text, err = w.cfg.Metadata.Value(ctx, jobKey); err != nil {
			return fmt.Errorf("the metadata server does not tell: %w", err)
		}
	}
	var err error
	w.job, err = parseJob(text)
	return err
}

// place finds out which worker of the job this is, and its address.
func (w *worker) place(ctx context.Context) (err error) {
	values := map[string]string{}
	for _, key := range placeKeys(w.job) {
		if values[key], err = w.cfg.Metadata.Optional(ctx, key); err != nil {
			return fmt.Errorf("the metadata server does not tell which worker this is: %w", err)
		}
	}
	w.me, err = parsePlace(w.job, values)
	return err
}

// identify reads the description of the job and the place of this worker. Without the
// metadata server a worker has no token. It can only ask again: if it left, perhaps no
// worker would delete the slices. A worker that does not know its place decides nothing
// about an attempt. It reports the reason. It deletes the slices only if, for a long time,
// no worker has reported anything or the bucket cannot be read. boot.sh of package detach
// follows the same rule when it cannot get this program.
func (w *worker) identify(ctx context.Context) error {
	since, said := time.Now(), ""
	for {
		err := w.describe(ctx)
		described := err == nil
		if described {
			err = w.place(ctx)
		}
		if err == nil || w.cfg.File != "" {
			return err
		}
		if said != err.Error() {
			said = err.Error()
			agent.Note(w.cfg.Out, "waiting: %s", said)
		}
		if described {
			if err := w.withoutPlace(ctx, since, said); errors.Is(err, agent.ErrForeign) {
				return err
			}
		}
		pause := time.Minute
		if time.Since(since) < 10*time.Minute {
			pause = 5 * time.Second
		}
		if err := agent.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// withoutPlace does one round of the work of a worker that does not know its place. The
// parameter since says when that began, and why says the reason. The error is from the
// deletion of the slices.
func (w *worker) withoutPlace(ctx context.Context, since time.Time, why string) error {
	now := time.Now()
	phase := "boot"
	if now.Sub(since) >= w.job.Patience {
		phase = "failed"
	}
	if text := phase + why; w.told != text {
		w.told = text
		_ = w.cfg.Metadata.Publish(ctx, "state", fmt.Sprintf("run=%s\nphase=%s\nattempt=0\nat=%d\nmay_delete=unknown\ndetail=waiting: %s", w.job.Run, phase, now.Unix(), oneLine(why)))
	}
	if !w.job.forsaken(since, now) {
		return nil
	}
	bucket := w.objects()
	reports, _, err := bucket.List(ctx, "workers/")
	switch {
	case len(reports) > 0:
		w.blind = time.Time{}
		return nil
	case err != nil && w.blind.IsZero():
		w.blind = now
	}
	if err != nil && !w.job.forsaken(w.blind, now) {
		return nil
	}
	agent.Note(w.cfg.Out, "deleting: no worker has reported anything")
	if err = w.client.Delete(ctx, w.job.Deletions); err != nil {
		agent.Note(w.cfg.Out, "the slices of %s: %v", w.job.Resource, err)
	}
	return err
}

// forsaken reports whether the worker must delete the slices, because no worker has been
// able to begin from since to now.
func (j Job) forsaken(since, now time.Time) bool {
	if j.TTL > 0 && !j.Requested.IsZero() && !now.Before(j.Requested.Add(j.TTL+j.Grace+time.Minute)) {
		return true
	}
	return (j.Keep == "never" || j.Keep == "on-failure" && j.KeepFor != 0) && now.Sub(since) >= j.Patience+j.Stale+j.KeepFor
}

func (w *worker) objects() objects {
	return objects{agent.Bucket{Client: w.client, Storage: w.job.Storage, Upload: w.job.Upload, Name: w.job.Bucket, Prefix: w.job.Prefix}, w.job, w.me}
}

// stateDir returns the directory of a run's files that survive a reboot.
func stateDir(home, run string) string { return filepath.Join(home, ".multihost-job", run) }

func scratchDir(root, run string) string { return filepath.Join(root, "/run/multihost-job", run) }

func (w *worker) open() error {
	w.disk.state, w.scratch = stateDir(w.cfg.Home, w.job.Run), scratchDir(w.cfg.Root, w.job.Run)
	for _, dir := range []string{w.disk.state, w.scratch} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if w.cfg.System == nil {
		w.cfg.System = Host{w.scratch}
	}
	w.bucket = w.objects()
	return nil
}

// boot notes the boot, and prepares the machine. The time to live counts from the request.
// If the clock of the requesting machine was ahead of this one, it counts from the first
// boot.
func (w *worker) boot() error {
	now := time.Now()
	f, err := os.OpenFile(w.disk.path("boots"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(f, now.Unix()) // the disk may be full
	f.Close()
	w.firstBoot = now
	if at, err := strconv.ParseInt(w.disk.recall("boots"), 10, 64); err == nil {
		w.firstBoot = time.Unix(at, 0)
	}
	w.disk.forgetDown()
	w.disk.remember("me", fmt.Sprintf("%d %d", w.me.Slice, w.me.Worker))
	w.m = &machine{job: w.job, born: w.firstBoot, made: w.firstBoot, at: fetching, attempt: 1, disk: w.disk.look()}
	if !w.job.Requested.IsZero() && w.job.Requested.Before(w.m.born) {
		w.m.born = w.job.Requested
	}
	return nil
}

// report writes the state of this worker to the bucket, and to a guest attribute that can
// be read when the bucket cannot. When the machine shuts down, a second program makes the
// last report.
func (w *worker) report(ctx context.Context, phase, detail string) error {
	m := w.m
	changed := m.said != phase
	m.said, m.detail, m.reported = phase, detail, time.Now()
	text := fmt.Sprintf("phase=%s\nworker=%s\nattempt=%d\nat=%d\nmay_delete=%s\nlogin=%s\ndetail=%s", phase, w.me, m.attempt, m.reported.Unix(), w.right, w.user.name, oneLine(detail))
	if changed {
		if detail == "" {
			agent.Note(w.cfg.Out, "%s", phase)
		} else {
			agent.Note(w.cfg.Out, "%s: %s", phase, detail)
		}
		_ = w.cfg.Metadata.Publish(ctx, "state", "run="+w.job.Run+"\n"+text)
	}
	unlock := w.telling(ctx)
	defer unlock()
	if phase != "down" && w.disk.goingDown(time.Now()) {
		return nil
	}
	return w.bucket.write(ctx, "workers/"+w.me.String(), []byte(text+"\n"), agent.AnyVersion)
}

// A report waits at most tellingLimit for the worker's other program.
const tellingLimit = 5 * time.Second

// telling takes a lock for a report. When the machine shuts down, a second program reports
// too. The lock keeps the two programs from reporting at the same time.
func (w *worker) telling(ctx context.Context) (unlock func()) {
	path := filepath.Join(scratchDir(w.cfg.Root, w.job.Run), "telling")
	for begin := time.Now(); time.Since(begin) < tellingLimit; {
		unlock, err := agent.Lock(path)
		if unlock != nil {
			return unlock
		}
		if err != nil || agent.Sleep(ctx, tellingLimit/50) != nil {
			break
		}
	}
	return func() {}
}

// patiently repeats f until it succeeds, the patience is over or the time to live ends. It
// retries refusals too, because a new permission may take minutes to work everywhere.
// Before the command starts, it reports what the worker is waiting for.
func (w *worker) patiently(ctx context.Context, patience time.Duration, f func() error) error {
	end := time.Now().Add(patience)
	if limit := w.m.limit(); !limit.IsZero() && limit.Before(end) {
		end = limit
	}
	said := ""
	for pause := time.Second; ; pause = min(pause*2, 30*time.Second) {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Now().Add(pause).After(end) {
			return fmt.Errorf("tried for %d s; %w", int(patience.Seconds()), err)
		}
		switch w.m.said {
		case "boot", "preflight", "logs":
			if said != err.Error() {
				said = err.Error()
				_ = w.report(ctx, w.m.said, "waiting: "+said)
			}
		}
		if err := agent.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// testRight finds out whether this worker may delete the slices.
func (w *worker) testRight(ctx context.Context) {
	w.right = "yes"
	if err := w.client.MayDelete(ctx, w.job.Deletions); err != nil {
		w.right = "unknown: "
		if status := agent.StatusOf(err); status == http.StatusUnauthorized || status == http.StatusForbidden {
			w.right = "no: "
		}
		w.right += oneLine(err.Error())
		agent.Note(w.cfg.Out, "may this worker delete the slices? %s", w.right)
	}
	w.disk.remember("right", w.right)
}
