package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/sshfan"
)

// Started is a command that runs.
type Started struct {
	PID int
	At  time.Time // worker clock, when the process that is now the command had nothing more to wait for
}

// Armed is a supervisor that waits on the worker for the order to start. It
// holds one session of the connection. Exactly one of Release and Abort must be
// called.
type Armed struct {
	ref     Ref
	runner  Runner
	secrets []StoredSecret
	order   *io.PipeWriter
	cancel  context.CancelCauseFunc

	offset time.Duration // of the worker's clock

	boot  string             // set by Arm, as disks
	disks map[string]Disk    // by what is kept on them
	found map[string]string  // versions
	words chan sshfan.Record // of the worker; buffered for all that it can say
	done  chan struct{}      // closed when the exec has ended; then the rest is set
	err   error
	once  sync.Once
}

// Arm writes what is needed to start spec to the worker and has a supervisor
// wait there. It takes the worker's lock: *BusyError tells who has it,
// ErrAlreadyStarted that this attempt ran before, *CodeError that another run has
// changed what lies in its directory. When the connection is lost or
// Abort is called before Release, the worker is as it was before.
//
// The session outlives ctx: it ends with Release, Abort or the connection.
func Arm(ctx context.Context, r Runner, spec Spec) (*Armed, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	files := spec.files()
	args := append([]string{sshfan.NewNonce()}, spec.Ref().args()...)
	var parts []io.Reader
	for _, f := range files {
		args = append(args, strconv.Itoa(len(f)))
		parts = append(parts, bytes.NewReader(f))
	}
	if spec.Python != "" {
		code := "0"
		if spec.Code {
			code = "1"
		}
		args = append(args, spec.Python, code)
	}
	orders, order := io.Pipe()
	session, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a := &Armed{
		ref: spec.Ref(), runner: r, secrets: spec.Stored, order: order, cancel: cancel, offset: r.ClockOffset(),
		disks: make(map[string]Disk), found: make(map[string]string), words: make(chan sshfan.Record, mostWords), done: make(chan struct{}),
	}
	in := newLimited(io.MultiReader(append(parts, orders)...), answerLimit, 0, cancel)
	defer in.stop()
	out := &sshfan.Answer{Nonce: args[0], Next: a.hear}
	errs := &sshfan.Answer{Nonce: args[0]}
	go func() {
		defer close(a.done)
		cmd := armScript.Cmd(input{in, orders}, args...)
		cmd.Stdout, cmd.Stderr = out, errs
		status, err := r.Run(session, cmd)
		orders.CloseWithError(io.ErrClosedPipe)
		if err == nil {
			_, err = checkAnswer(r.Name(), "arm", out, errs, status)
		} else {
			err = fmt.Errorf("arm on %s: %w", r.Name(), err)
		}
		a.err = err
	}()
	if err := a.ready(ctx, spec, out); err != nil {
		a.finish(err)
		return nil, err
	}
	return a, nil
}

// BootID is the id of the worker's boot as its kernel tells it.
func (a *Armed) BootID() string { return a.boot }

// Disk is the disk that the output of the command will be kept on.
func (a *Armed) Disk() Disk { return a.disks["output"] }

// Tmp is the disk of /tmp, or zero when it is that of the output.
func (a *Armed) Tmp() Disk { return a.disks["tmp"] }

// mostWords is more than a supervisor says before and after its start. They are
// kept for every worker at once, so there is no room for what no worker says.
const mostWords = 64

// surveyed is what a worker may tell the version of.
var surveyed = []string{"python", "jax", "jaxlib", "libtpu", "code"}

// Versions are those of python, jax, jaxlib and libtpu that Spec.Python has, of
// the packages "none" where it has none, and the digest of the code. What could
// not be told at once, or was not asked for, is not there.
func (a *Armed) Versions() map[string]string {
	all := maps.Clone(a.found)
	if python, known := all["python"]; known && python != "none" {
		for _, name := range []string{"jax", "jaxlib", "libtpu"} {
			all[name] = cmp.Or(all[name], "none")
		}
	}
	return all
}

func (a *Armed) hear(r sshfan.Record) (done bool) {
	select {
	case a.words <- r:
	default: // no worker of ours says so much
	}
	return false
}

// ready waits for the supervisor.
func (a *Armed) ready(ctx context.Context, spec Spec, out *sshfan.Answer) error {
	var there, owner string // the digest of the code that is there, and who brought it
	for {
		rec, err := a.word(ctx)
		switch {
		case err != nil:
			return err
		case rec.Word == "boot":
			a.boot = sshfan.Clean(rec.Rest, 100)
		case rec.Word == "disk":
			what, rest, _ := strings.Cut(rec.Rest, " ")
			a.disks[what] = parseDisk(rest)
		case rec.Word == "version":
			if what, rest, _ := strings.Cut(rec.Rest, " "); slices.Contains(surveyed, what) {
				a.found[what] = sshfan.Clean(rest, 60)
			}
		case rec.Word == "synced":
			there, owner, _ = strings.Cut(rec.Rest, " ")
		case rec.Word == "armed" && spec.Synced != "" && there != spec.Synced:
			if there != "" {
				owner = cmp.Or(sshfan.Clean(owner, 200), "somebody")
			}
			return &CodeError{Worker: a.runner.Name(), Run: spec.Run, Owner: owner}
		case rec.Word == "armed":
			return nil
		case rec.Word == "already":
			return &startedError{a.ref, a.runner.Name()}
		case rec.Word == "failed" || rec.Word == "error":
			return &RemoteError{Worker: a.runner.Name(), Op: "arm", Text: sshfan.Clean(rec.Rest, 500)}
		case rec.Word == "secret":
			return a.unread(rec)
		case rec.Word == "busy":
			a.order.Close()
			select {
			case <-a.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return a.busy(rec, out.Records())
		}
	}
}

// busy makes the error that names who holds the worker.
func (a *Armed) busy(rec sshfan.Record, records []sshfan.Record) error {
	e := &BusyError{Worker: a.runner.Name()}
	records = append([]sshfan.Record{{Word: "now", Rest: rec.Rest}}, records...)
	if infos := parseInfos(records); len(infos) > 0 {
		e.Info = infos[0]
	}
	return e
}

// unread makes the error of a secret that the worker could not read.
func (a *Armed) unread(rec sshfan.Record) error {
	f := rec.Fields(4)
	e := &SecretError{Worker: a.runner.Name(), Status: int(number(f[1])), Account: dash(f[2]), Text: sshfan.Clean(f[3], 400)}
	for _, s := range a.secrets {
		if s.Name == f[0] {
			e.Secret = s
		}
	}
	return e
}

// word is the next thing that the worker says.
func (a *Armed) word(ctx context.Context) (sshfan.Record, error) {
	select {
	case rec := <-a.words:
		return rec, nil
	default:
	}
	select {
	case rec := <-a.words:
		return rec, nil
	case <-ctx.Done():
		return sshfan.Record{}, context.Cause(ctx)
	case <-a.done:
		select {
		case rec := <-a.words:
			return rec, nil
		default:
		}
		if a.err != nil {
			return sshfan.Record{}, a.err
		}
		return sshfan.Record{}, io.ErrUnexpectedEOF
	}
}

// finish ends the session and waits for it.
func (a *Armed) finish(cause error) {
	a.once.Do(func() {
		a.order.Close()
		a.cancel(cause)
		<-a.done
	})
}

// releaseLimit bounds how long a supervisor may take to answer "go" on a
// connection that seems to live before the worker is asked on another way.
const releaseLimit = 30 * time.Second

// Release has the supervisor start the command at once, with one write. When the
// connection is lost before the answer, the worker is asked again, until ctx
// ends: the command is started once, or ErrNotStarted says that it never will
// be. Release returns with the session ended.
func (a *Armed) Release(ctx context.Context) (Started, error) {
	return a.ReleaseAt(ctx, time.Time{})
}

// MeasureClock measures the worker's clock against ours for ReleaseAt, over the
// session that stands: some round trips of which the fastest counts, at a moment
// at which the worker does nothing else. One that does not answer keeps the offset
// that its Runner tells. It is called at most once, and not beside Release.
func (a *Armed) MeasureClock(ctx context.Context) {
	const rounds, limit = 4, 20 * time.Second
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	var best time.Duration
	for range rounds {
		sent := time.Now()
		if _, err := io.WriteString(a.order, "clock\n"); err != nil {
			return
		}
		rec, err := a.word(ctx)
		trip := time.Since(sent)
		if err != nil {
			return
		}
		if rec.Word != "clock" {
			a.hear(rec) // Release waits for it
			return
		}
		if told := instant(rec.Rest); !told.IsZero() && (best == 0 || trip < best) {
			best, a.offset = trip, told.Sub(sent.Add(trip/2).Round(0))
		}
	}
}

// ClockOffset is the worker's clock minus ours.
func (a *Armed) ClockOffset() time.Duration { return a.offset }

// ReleaseAt is Release at a moment of our clock that lies at most 5 s ahead, as
// far as the worker's clock is known. A worker that gets the order later, or whose
// clock says that the moment is farther away, starts at once.
func (a *Armed) ReleaseAt(ctx context.Context, at time.Time) (Started, error) {
	order := "go\n"
	if !at.IsZero() {
		order = fmt.Sprintf("go %d\n", at.Add(a.offset).UnixNano())
	}
	if _, err := io.WriteString(a.order, order); err == nil {
		wait, stop := context.WithTimeout(ctx, releaseLimit)
		started, err := a.answered(wait)
		stop()
		if err == nil {
			// The far side ends by itself now.
			a.order.Close()
			select {
			case <-a.done:
			case <-ctx.Done():
			}
			a.finish(nil)
			return started, nil
		}
		var refused *RemoteError
		if errors.As(err, &refused) || errors.Is(err, ErrNotStarted) {
			a.finish(err)
			return Started{}, err
		}
		if ctx.Err() != nil {
			a.finish(err)
			return Started{}, fmt.Errorf("release %q on %s: %w", a.ref.Label(), a.runner.Name(), context.Cause(ctx))
		}
	}
	// Ask before the old session is ended: as long as it stands, the supervisor
	// waits.
	started, err := a.ask(ctx)
	a.finish(err)
	return started, err
}

// answered waits for the supervisor's answer to "go" on the standing session.
func (a *Armed) answered(ctx context.Context) (Started, error) {
	for {
		rec, err := a.word(ctx)
		switch {
		case err != nil:
			return Started{}, err
		case rec.Word == "started":
			f := rec.Fields(2)
			return Started{PID: int(number(f[0])), At: instant(f[1])}, nil
		case rec.Word == "failed":
			return Started{}, &RemoteError{Worker: a.runner.Name(), Op: "start", Text: sshfan.Clean(rec.Rest, 500)}
		case rec.Word == "aborted":
			return Started{}, fmt.Errorf("start %q on %s: %w", a.ref.Label(), a.runner.Name(), ErrNotStarted)
		}
	}
}

// mostAsks is how often release.sh, which waits 10 s itself, is asked: a worker
// that is out of breath may take that long to start a command.
const mostAsks = 6

// ask learns over another session what became of the order, and repeats it.
func (a *Armed) ask(ctx context.Context) (Started, error) {
	for n := 1; ; n++ {
		records, err := persist(ctx, func() ([]sshfan.Record, error) {
			return call(ctx, a.runner, "release", releaseScript, a.ref.args()...)
		})
		if err != nil {
			return Started{}, fmt.Errorf("release %q: %w", a.ref.Label(), err)
		}
		s := parseState(a.ref, records)
		if s.PID > 0 {
			return Started{PID: s.PID, At: s.Started}, nil
		}
		if s.Phase != Starting || n == mostAsks {
			return Started{}, fmt.Errorf("start %q on %s: %w", a.ref.Label(), a.runner.Name(), ErrNotStarted)
		}
		if err := pause(ctx, time.Second); err != nil {
			return Started{}, fmt.Errorf("release %q: %w", a.ref.Label(), err)
		}
	}
}

// abortLimit bounds how long Abort waits on the standing session; abortGrace is
// for a command that runs all the same, since only the answer to its release was
// lost.
const (
	abortLimit = 5 * time.Second
	abortGrace = 10 * time.Second
)

// Abort has the supervisor leave without having started anything, and waits
// until the worker is as it was before Arm. Lost connections are made again.
func (a *Armed) Abort(ctx context.Context) error {
	a.order.Close()
	wait, stop := context.WithTimeout(ctx, abortLimit)
	defer stop()
	for {
		rec, err := a.word(wait)
		if err != nil {
			break
		}
		if rec.Word == "aborted" {
			select {
			case <-a.done:
			case <-wait.Done():
			}
			a.finish(nil)
			return nil
		}
	}
	a.finish(errors.New("aborted"))
	report, err := Stop(ctx, a.runner, a.ref, StopOptions{Grace: abortGrace, Reason: "aborted"})
	if err != nil {
		return fmt.Errorf("abort %q: %w", a.ref.Label(), err)
	}
	if !report.Free() {
		return fmt.Errorf("abort %q on %s: %d processes are left", a.ref.Label(), a.runner.Name(), len(report.Survivors))
	}
	return nil
}

// files are the files of the attempt, in the order of unpack in arm.sh.
func (s Spec) files() [][]byte {
	workDir := s.WorkDir
	if workDir == "" {
		workDir = s.Run
	}
	workDir = strings.TrimPrefix(workDir, "~/")
	words := append([]string{workDir, "argv"}, s.Wrap...)
	if s.Script != "" {
		words[1] = "script"
	} else {
		words = append(words, s.Argv...)
	}
	if s.Processes > 1 {
		words[1] += fmt.Sprintf(" %d %d %s", s.Processes, s.FirstProcess, milliseconds(s.Grace))
	}
	var vars []string
	vars = append(vars, s.Unset...)
	for _, v := range s.Env {
		vars = append(vars, v.Name+"="+v.Value)
	}
	var secrets strings.Builder
	for _, s := range s.Stored {
		secrets.WriteString(s.Name + " " + s.url() + "\n")
	}
	meta := "owner=" + sshfan.Clean(s.Owner, 200) + "\ncommand=" + s.Title() + "\n"
	if s.Venv {
		meta += "venv=1\n"
	}
	return [][]byte{
		[]byte(meta),
		nulled(words),
		nulled(vars),
		[]byte(s.Script),
		[]byte(s.limit()),
		[]byte(secrets.String()),
	}
}

func (s Spec) limit() string {
	n := s.MaxLog
	switch {
	case n < 0:
		n = 4e18 // no_limit of lib.sh
	case n == 0:
		n = DefaultMaxLog
	}
	return fmt.Sprintf("%d\n", n)
}

func nulled(words []string) []byte {
	var b bytes.Buffer
	for _, w := range words {
		b.WriteString(w)
		b.WriteByte(0)
	}
	return b.Bytes()
}

func (s Spec) masked(text string) string {
	for _, v := range s.Env {
		if v.Secret && v.Value != "" {
			text = strings.ReplaceAll(text, v.Value, "***")
		}
	}
	return text
}

// Title is the command as workers show it: its first line, secrets masked, at
// most 200 bytes.
func (s Spec) Title() string {
	text := s.masked(s.Script)
	if text == "" {
		words := make([]string, len(s.Argv))
		for i, w := range s.Argv {
			words[i] = s.masked(w) // before it is quoted, which alters it
		}
		text = sshfan.Quote(words...)
	}
	text = strings.TrimSpace(text)
	first, _, more := strings.Cut(text, "\n")
	if more {
		first += " …"
	}
	return sshfan.Clean(first, 200)
}
