package codesync

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/remote"
)

var (
	//go:embed place.sh
	placeScript string
	//go:embed worker.sh
	workerScript string
	//go:embed serve.sh
	serveScript string
	//go:embed unpack.sh
	unpackScript string
)

// Unpack returns the script for workers that fetch their files by themselves. It refuses
// the same directories as Push; see unpack.sh.
func Unpack() string { return placeScript + "\n" + unpackScript }

// workerProgram is the program of all steps of a push.
var workerProgram = remote.NewProgram("sync", remote.Prelude(), placeScript, workerScript)

const (
	// If the connection breaks or stalls, Push retries a worker's transfer, up to pushTries
	// tries in all. It does not resend contents that arrived whole.
	pushTries = 3
	// receiveRounds limits how often one try asks for missing contents and sends them. A
	// second round is necessary only if the store has lost or damaged a content meanwhile.
	receiveRounds = 3
)

var hashName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Push makes ~/run of one worker equal to the tree. If they are already equal, Push sends
// only one short question. It is safe for concurrent use for many workers, and packs each
// set of missing files once.
//
// A failure that the worker reports is a *WorkerError. A file that changed since the Scan
// is a *FileError. A stalled transfer is ErrStalled. All other errors are the Runner's.
// After an error ~/run may be incomplete, and the next Push completes it. Push changes
// nothing while a run of that name with other files is active (*InUseError), or if ~/run
// belongs to the user (*ForeignError).
func (t *Tree) Push(ctx context.Context, r remote.Runner, run string) (Report, error) {
	if checkRun(run) != nil {
		return Report{}, fmt.Errorf("sync to run directory %q: not a run name", run)
	}
	t.report(func(p *progress) { p.started++ })
	return t.deliver(ctx, r, run, nil, false)
}

// deliver does what Push does. asked is the worker's answer about missing contents if the
// worker was already asked, otherwise nil. With whole, deliver sends the whole manifest,
// because the worker's earlier manifest is useless.
func (t *Tree) deliver(ctx context.Context, r remote.Runner, run string, asked *answer, whole bool) (Report, error) {
	var rep Report
	var err error
	for try := range pushTries {
		if try > 0 {
			event.Notef(t.opts.Sink, event.Warn, "", "sync to %s: %v; trying again", r.Name(), err)
		}
		var ans answer
		if asked != nil && try == 0 {
			ans = *asked
		} else {
			ans, err = t.ask(ctx, r, run, &rep, whole || try > 0)
		}
		if err == nil {
			err = t.push(ctx, r, run, ans, &rep)
		}
		if err == nil || ctx.Err() != nil || !t.again(err) {
			break
		}
	}
	if err != nil {
		return rep, err
	}
	t.report(func(p *progress) { p.done++ })
	return rep, nil
}

// again reports whether a retry may succeed after err.
func (t *Tree) again(err error) bool {
	return errors.Is(err, ErrStalled) || errors.Is(err, remote.ErrConnectionLost) || errors.Is(err, remote.ErrProgramGone) || errors.Is(err, errBroken)
}

// errBroken marks a transfer whose data ended early at the worker.
var errBroken = errors.New("transfer broke off")

// ask tells the worker which files its directory must contain, and returns which contents
// it lacks. Unless whole is set, ask sends only the differences to the worker's last
// manifest.
func (t *Tree) ask(ctx context.Context, r remote.Runner, run string, rep *Report, whole bool) (answer, error) {
	ans, err := t.check(ctx, r, run, rep)
	if err != nil || ans.word == "same" {
		return ans, err
	}
	if whole {
		ans.baseDigest = ""
	}
	return t.plan(ctx, r, run, ans, rep)
}

// check asks whether the directory is equal to the tree. It changes nothing.
func (t *Tree) check(ctx context.Context, r remote.Runner, run string, rep *Report) (answer, error) {
	return t.exec(ctx, r, step{args: []string{"check", run, t.Digest, yes(t.opts.Adopt)}, rep: rep})
}

// plan sends the manifest to a worker. ans is what the method check returned. The worker
// then fills its directory, or answers which contents it lacks.
func (t *Tree) plan(ctx context.Context, r remote.Runner, run string, ans answer, rep *Report) (answer, error) {
	way := t.manifest.recipeFrom(ans.baseDigest)
	base := ""
	if len(way.pieces) > 0 {
		base = ans.base
	}
	args := append(append(t.args("plan", run, "-"), base), way.pieces...)
	return t.exec(ctx, r, step{args: args, stdin: bytes.NewReader(way.packed), rep: rep})
}

// args returns the arguments of a step that fills the directory from an archive in the
// format form.
func (t *Tree) args(step, run, form string) []string {
	return []string{
		step, run, t.Digest,
		seconds(cmp.Or(t.opts.Store.MaxAge, 30*24*time.Hour)),
		strconv.FormatInt(cmp.Or(t.opts.Store.MaxBytes, 20e9), 10),
		seconds(cmp.Or(t.opts.Store.Keep, time.Hour)),
		remote.Clean(t.opts.Owner, 200),
		yes(t.opts.Adopt),
		form,
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// A Forecast says what a Push would do to one worker.
type Forecast struct {
	Files   int   // contents to send
	Bytes   int64 // their uncompressed size
	Removed int   // files of an earlier sync to remove
}

// Foresee asks a worker what a Push to ~/run would do. It changes nothing there.
func (t *Tree) Foresee(ctx context.Context, r remote.Runner, run string) (Forecast, error) {
	var f Forecast
	if config.CheckRunName(run) != nil {
		return f, fmt.Errorf("sync to run directory %q: not a run name", run)
	}
	var rep Report
	ans, err := t.check(ctx, r, run, &rep)
	if err != nil || ans.word == "same" {
		return f, err
	}
	ans, err = t.exec(ctx, r, step{
		args:  []string{"look", run, t.Digest, strconv.Itoa(len(t.Entries))},
		stdin: bytes.NewReader(t.manifest.recipeFrom("").packed), rep: &rep,
	})
	if err != nil {
		return f, err
	}
	f.Removed = ans.removed
	for _, hash := range slices.Compact(slices.Sorted(slices.Values(ans.missing))) {
		e, known := t.contents.byHash[hash]
		if !known {
			return f, &WorkerError{"look", fmt.Sprintf("it lacks what is not in the directory: %q", hash)}
		}
		f.Files, f.Bytes = f.Files+1, f.Bytes+e.Size
	}
	return f, nil
}

// push sends contents until the worker lacks none.
func (t *Tree) push(ctx context.Context, r remote.Runner, run string, ans answer, rep *Report) error {
	for range receiveRounds {
		if t.filled(ans, rep) {
			return nil
		}
		var err error
		if ans, err = t.send(ctx, r, ans.missing, run, rep); err != nil {
			return err
		}
	}
	if t.filled(ans, rep) {
		return nil
	}
	return &WorkerError{"receive", fmt.Sprintf("%s missing after they were sent %d times", event.Count(len(ans.missing), "file"), receiveRounds)}
}

// filled reports whether the worker lacks nothing. It then completes the worker's report.
func (t *Tree) filled(ans answer, rep *Report) bool {
	switch ans.word {
	case "same":
		rep.Reused = t.Count
		return true
	case "filled":
		rep.Removed = ans.removed
		rep.Reused = max(0, len(t.contents.byHash)-rep.SentFiles) + t.Count - len(t.contents.byHash)
		return true
	}
	return false
}

// send sends the missing contents. The worker then fills the directory.
func (t *Tree) send(ctx context.Context, r remote.Runner, missing []string, run string, rep *Report) (answer, error) {
	p, release, err := t.acquire(ctx, missing)
	if err != nil {
		return answer{}, err
	}
	defer release()
	t.report(func(g *progress) { g.total += p.data.size })
	ans, err := t.exec(ctx, r, step{args: t.args("receive", run, p.form()), stdin: p.data.reader(), rep: rep})
	if err == nil {
		rep.SentFiles += p.files
		rep.SentBytes += p.data.size
	}
	return ans, err
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

// A step is one run of the worker script.
type step struct {
	args    []string
	stdin   io.Reader
	rep     *Report
	loginTo remote.Conn // see remote.Cmd
	patient bool        // no stall limit, because the caller ends the step
	filled  func()      // called when the directory is complete, before the step ends
}

// exec runs one step of the worker script. It gives up after Options.Stall without a byte.
func (t *Tree) exec(ctx context.Context, r remote.Runner, s step) (answer, error) {
	name := s.args[0]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := cmp.Or(t.opts.Stall, 10*time.Minute)
	watchdog := time.AfterFunc(stall, func() {
		cancel(fmt.Errorf("%w for %v", ErrStalled, stall))
	})
	defer watchdog.Stop()
	if s.patient {
		watchdog.Stop()
	}
	var uploaded atomic.Int64
	moved := func(n int) {
		if !s.patient {
			watchdog.Reset(stall)
		}
		uploaded.Add(int64(n))
		if n > 0 && (name == "receive" || name == "feed") {
			t.report(func(p *progress) { p.sent += int64(n) })
		}
	}
	filled := s.filled
	if filled != nil {
		filled = sync.OnceFunc(func() {
			watchdog.Stop()
			s.filled()
		})
	}
	out := newHearing(2*len(t.contents.byHash)+1, filled)
	errs := &remote.Answer{Nonce: out.Nonce}
	var stdin io.Reader
	if s.stdin != nil {
		stdin = &counted{r: s.stdin, moved: moved}
	}
	cmd := workerProgram.Cmd(stdin, append([]string{out.Nonce}, s.args...)...)
	cmd.Stdout, cmd.Stderr, cmd.LoginTo = moving{out, moved}, moving{errs, moved}, s.loginTo
	cmd.ReadOnly = name == "check" || name == "look"
	status, err := r.Run(ctx, cmd)
	s.rep.Uploaded += uploaded.Load()
	if cause := context.Cause(ctx); cause != nil {
		return answer{}, fmt.Errorf("sync to worker (%s): %w", name, cause)
	}
	if err != nil {
		return answer{}, fmt.Errorf("sync to worker (%s): %w", name, err)
	}
	ans, err := out.answer(name, errs, status)
	var foreign *ForeignError
	if errors.As(err, &foreign) {
		foreign.Run = s.args[1]
	}
	return ans, err
}

// moving reports every write.
type moving struct {
	w     io.Writer
	moved func(int)
}

func (m moving) Write(p []byte) (int, error) {
	m.moved(0)
	return m.w.Write(p)
}

// counted reports how many bytes were read.
type counted struct {
	r     io.Reader
	moved func(int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.moved(n)
	return n, err
}

// progress is the total of all Pushes of a tree.
type progress struct {
	mu            sync.Mutex
	started, done int
	sent, total   int64
	shown         time.Time
	shownDone     int
}

// report changes the progress and emits it, at most ten times a second, and each time that
// a worker is done.
func (t *Tree) report(change func(*progress)) {
	now := time.Now
	if t.opts.Now != nil {
		now = t.opts.Now
	}
	p := &t.progress
	p.mu.Lock()
	change(p)
	at := now()
	show := p.done != p.shownDone || at.Sub(p.shown) >= 100*time.Millisecond
	if show {
		p.shown, p.shownDone = at, p.done
	}
	e := event.Progress{Phase: "sync", Done: p.done, Total: max(p.started, t.opts.Workers)}
	if p.total > 0 {
		e.Detail = fmt.Sprintf("%s of %s", event.Bytes(p.sent), event.Bytes(p.total))
	}
	p.mu.Unlock()
	if show {
		t.opts.Sink.Emit(e)
	}
}
