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

	"multihost/internal/remote"
)

// Started is a command that has started.
type Started struct {
	PID int
	At  time.Time // by the worker's clock, when the waiting process became the command
}

// Armed is a supervisor that waits on the worker for the order to start. It
// holds one session of the connection. The caller must call exactly one of
// ReleaseAt and Abort.
type Armed struct {
	ref     Ref
	runner  remote.Runner
	secrets []StoredSecret
	order   *io.PipeWriter
	cancel  context.CancelCauseFunc

	offset time.Duration // offset of the worker's clock

	boot string // Arm sets boot, disks and found
	// stopped is the newest stop that is marked in an attempt of the run on the worker.
	stopped Stopped
	disks   map[string]Disk    // key: what is on the disk, "output" or "tmp"
	found   map[string]string  // versions by name; surveyed lists the names
	words   chan remote.Record // the worker's answer, with room for all of it
	done    chan struct{}      // closed when the exec has ended; err is set before that
	err     error
	once    sync.Once
}

// Arm writes the files of spec to the worker and starts a supervisor that waits there for
// ReleaseAt. Arm takes the worker's lock. It returns *BusyError if another run holds the
// lock, ErrAlreadyStarted if this attempt was started before, and *CodeError if another run
// has changed the code in the run's directory. If the connection is lost or Abort is called
// before ReleaseAt, nothing of the attempt stays on the worker.
//
// The session outlives ctx. It ends with ReleaseAt, Abort or the connection.
func Arm(ctx context.Context, r remote.Runner, spec Spec) (*Armed, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	files := spec.files()
	args := append([]string{remote.NewNonce()}, spec.Ref().args()...)
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
		disks: make(map[string]Disk), found: make(map[string]string), words: make(chan remote.Record, mostWords), done: make(chan struct{}),
	}
	in := newLimited(io.MultiReader(append(parts, orders)...), answerLimit, 0, cancel)
	defer in.stop()
	out := &remote.Answer{Nonce: args[0], Next: a.hear}
	errs := &remote.Answer{Nonce: args[0]}
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
	err := a.ready(ctx, spec, out)
	var code *CodeError
	switch {
	case err == nil:
		return a, nil
	case errors.As(err, &code): // the supervisor already waits, and the run counts as active until it has ended
		_ = a.Abort(ctx) // otherwise the supervisor ends with the session
	default:
		a.finish(err)
	}
	return nil, err
}

func (a *Armed) BootID() string { return a.boot }

// Stopped returns the newest stop that is marked in an attempt of the run on the worker, or
// zero.
func (a *Armed) Stopped() Stopped { return a.stopped }

// Disk returns the disk for the output of the command.
func (a *Armed) Disk() Disk { return a.disks["output"] }

// Tmp returns the disk of /tmp, or zero when Disk is the same disk.
func (a *Armed) Tmp() Disk { return a.disks["tmp"] }

// mostWords is more records than a supervisor ever sends. It is small, because the runner
// has a buffer of this size for every worker.
const mostWords = 64

// surveyed lists the names whose versions a worker may report.
var surveyed = []string{"python", "jax", "jaxlib", "libtpu", "code"}

// Versions returns the versions of python, jax, jaxlib and libtpu that Spec.Python finds,
// and the digest of the code under "code". A package that is not installed has the version
// "none". An entry is missing if Spec does not ask for it, or if the worker did not report
// it in time.
func (a *Armed) Versions() map[string]string {
	all := maps.Clone(a.found)
	if python, known := all["python"]; known && python != "none" {
		for _, name := range []string{"jax", "jaxlib", "libtpu"} {
			all[name] = cmp.Or(all[name], "none")
		}
	}
	return all
}

func (a *Armed) hear(r remote.Record) (done bool) {
	select {
	case a.words <- r:
	default: // a correct worker never sends so many records
	}
	return false
}

// ready reads the worker's reports until the supervisor is armed.
func (a *Armed) ready(ctx context.Context, spec Spec, out *remote.Answer) error {
	var there, owner string // digest of the code on the worker, and who synced it
	for {
		rec, err := a.word(ctx)
		switch {
		case err != nil:
			return err
		case a.learns(rec):
		case rec.Word == "synced":
			there, owner, _ = strings.Cut(rec.Rest, " ")
		case rec.Word == "armed" && spec.Synced != "" && there != spec.Synced:
			if there != "" {
				owner = cmp.Or(remote.Clean(owner, 200), "somebody")
			}
			return &CodeError{Worker: a.runner.Name(), Run: spec.Run, Owner: owner}
		case rec.Word == "armed":
			return nil
		case rec.Word == "already":
			return &startedError{a.ref, a.runner.Name()}
		case rec.Word == "failed" || rec.Word == "error":
			return &RemoteError{Worker: a.runner.Name(), Op: "arm", Text: remote.Clean(rec.Rest, 500)}
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

// learns stores rec if it describes the worker, and reports whether it does.
func (a *Armed) learns(rec remote.Record) bool {
	switch rec.Word {
	case "boot":
		a.boot = remote.Clean(rec.Rest, 100)
	case "disk":
		what, rest, _ := strings.Cut(rec.Rest, " ")
		a.disks[what] = parseDisk(rest)
	case "version":
		if what, rest, _ := strings.Cut(rec.Rest, " "); slices.Contains(surveyed, what) {
			a.found[what] = remote.Clean(rest, 60)
		}
	case "stopped":
		if s := parseStopped(rec.Rest); s.At.After(a.stopped.At) {
			a.stopped = s
		}
	default:
		return false
	}
	return true
}

// busy returns the error that names the run on the worker.
func (a *Armed) busy(rec remote.Record, records []remote.Record) error {
	e := &BusyError{Worker: a.runner.Name()}
	records = append([]remote.Record{{Word: "now", Rest: rec.Rest}}, records...)
	if infos := parseInfos(records); len(infos) > 0 {
		e.Info = infos[0]
	}
	return e
}

// unread returns the error for a secret that the worker could not read.
func (a *Armed) unread(rec remote.Record) error {
	f := rec.Fields(4)
	e := &SecretError{Worker: a.runner.Name(), Status: int(number(f[1])), Account: dash(f[2]), Text: remote.Clean(f[3], 400)}
	for _, s := range a.secrets {
		if s.Name == f[0] {
			e.Secret = s
		}
	}
	return e
}

// word returns the worker's next record. It fails with the cause of ctx, or with the error
// of the session. If the session has ended without a record, it fails with
// io.ErrUnexpectedEOF.
func (a *Armed) word(ctx context.Context) (remote.Record, error) {
	select {
	case rec := <-a.words:
		return rec, nil
	default:
	}
	select {
	case rec := <-a.words:
		return rec, nil
	case <-ctx.Done():
		return remote.Record{}, context.Cause(ctx)
	case <-a.done:
		select {
		case rec := <-a.words:
			return rec, nil
		default:
		}
		if a.err != nil {
			return remote.Record{}, a.err
		}
		return remote.Record{}, io.ErrUnexpectedEOF
	}
}

func (a *Armed) finish(cause error) {
	a.once.Do(func() {
		a.order.Close()
		a.cancel(cause)
		<-a.done
	})
}

// releaseLimit is how long ReleaseAt waits for the answer to "go". After that it asks the
// worker over another session.
const releaseLimit = 30 * time.Second

// MeasureClock measures the worker's clock against ours for ReleaseAt, over the open
// session, while the worker does nothing else. It makes a few round trips and uses the
// fastest. If the worker does not answer, the offset from the Runner stays. Call
// MeasureClock at most once, and not concurrently with ReleaseAt.
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
			a.hear(rec) // ReleaseAt waits for this record
			return
		}
		if told := instant(rec.Rest); !told.IsZero() && (best == 0 || trip < best) {
			best, a.offset = trip, told.Sub(sent.Add(trip/2).Round(0))
		}
	}
}

// ClockOffset returns the worker's clock minus ours.
func (a *Armed) ClockOffset() time.Duration { return a.offset }

// ReleaseAt orders the supervisor to start the command at a time by our clock, at most 5 s
// ahead. The zero time means at once. ClockOffset translates the time to the worker's
// clock. A worker starts at once if the order comes after that time, or if the time is more
// than 5 s ahead by its clock.
//
// The order is one write. If the connection is lost before the answer, ReleaseAt asks the
// worker again until ctx ends. The command never starts twice. If it will never start, the
// error is ErrNotStarted. The session has ended when ReleaseAt returns.
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
			// The script on the worker now ends by itself.
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
	// Ask before the old session ends: until then the supervisor waits.
	started, err := a.ask(ctx)
	a.finish(err)
	return started, err
}

// answered waits for the supervisor's answer to "go" on the open session.
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
			return Started{}, &RemoteError{Worker: a.runner.Name(), Op: "start", Text: remote.Clean(rec.Rest, 500)}
		case rec.Word == "aborted":
			return Started{}, fmt.Errorf("start %q on %s: %w", a.ref.Label(), a.runner.Name(), ErrNotStarted)
		}
	}
}

// mostAsks limits how often ask runs release.sh. Each run waits 10 s, because an overloaded
// worker may need that long to start a command.
const mostAsks = 6

// ask repeats the order over another session and returns the result.
func (a *Armed) ask(ctx context.Context) (Started, error) {
	for n := 1; ; n++ {
		records, err := persist(ctx, func() ([]remote.Record, error) {
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

// abortLimit limits how long Abort waits on the open session. abortGrace is the grace time
// for a command that has started although the answer to its release was lost.
const (
	abortLimit = 5 * time.Second
	abortGrace = 10 * time.Second
)

// Abort ends the supervisor before it starts the command, and waits until nothing of the
// attempt is left on the worker. If the session is lost or does not answer within
// abortLimit, Abort calls Stop, which connects again.
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

// files returns the files of the attempt, in the order in which unpack of arm.sh reads
// them.
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
	meta := "owner=" + remote.Clean(s.Owner, 200) + "\ncommand=" + s.Title() + "\n"
	if s.Venv {
		meta += "venv=1\n"
	}
	if s.Slices > 0 {
		meta += "slices=" + strconv.Itoa(s.Slices) + "\n"
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

// Title returns the command for lists: its first line, with masked secrets, at most 200
// bytes.
func (s Spec) Title() string {
	text := s.masked(s.Script)
	if text == "" {
		words := make([]string, len(s.Argv))
		for i, w := range s.Argv {
			words[i] = s.masked(w) // before quoting, which may change the secret's text
		}
		text = remote.Quote(words...)
	}
	text = strings.TrimSpace(text)
	first, _, more := strings.Cut(text, "\n")
	if more {
		first += " …"
	}
	return remote.Clean(first, 200)
}
