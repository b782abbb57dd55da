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
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/sshfan"
)

//go:embed worker.sh
var workerScript string

const (
	// pushTries is how often a worker's transfer is begun when the connection
	// breaks or stalls. What arrived whole is not sent again.
	pushTries = 3
	// receiveRounds bounds the ask-and-send rounds of one try; the second is
	// needed only when the store lost or spoilt a content meanwhile.
	receiveRounds = 3
	marker        = "multihost-sync 1 "
)

var (
	runName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	hashName = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Push makes ~/run of one worker equal to the tree. Nothing but one short
// question is sent when it is already. It is safe to call for many workers at
// once; each set of missing files is packed once.
//
// Errors: what the worker reports is a *WorkerError, a file that changed since
// the Scan a *FileError, a transfer that does not move ErrStalled; everything
// else is the Runner's. After an error ~/run may be incomplete, which the next
// Push finds out.
func (t *Tree) Push(ctx context.Context, r Runner, run string) (Report, error) {
	if !runName.MatchString(run) {
		return Report{}, fmt.Errorf("sync to run directory %q: not a run name", run)
	}
	t.report(func(p *progress) { p.started++ })
	var rep Report
	var err error
	for try := range pushTries {
		if try > 0 {
			event.Notef(t.opts.Sink, event.Warn, "", "sync%s: %v; trying again", nameOf(r), err)
		}
		rep, err = t.push(ctx, r, run)
		if err == nil || ctx.Err() != nil ||
			!errors.Is(err, ErrStalled) && !errors.Is(err, sshfan.ErrConnectionLost) && !errors.Is(err, errBroken) {
			break
		}
	}
	if err != nil {
		return rep, err
	}
	t.report(func(p *progress) { p.done++ })
	return rep, nil
}

func nameOf(r Runner) string {
	if named, ok := r.(interface{ Name() string }); ok {
		return " to " + named.Name()
	}
	return ""
}

// errBroken marks a transfer that ended early for the worker.
var errBroken = errors.New("transfer broke off")

func (t *Tree) push(ctx context.Context, r Runner, run string) (Report, error) {
	ans, err := t.exec(ctx, r, nil, "check", run, t.Digest)
	if err != nil {
		return Report{}, err
	}
	if ans.word == "same" {
		return Report{Reused: t.Count}, nil
	}
	limits := []string{
		seconds(cmp.Or(t.opts.Store.MaxAge, 30*24*time.Hour)),
		strconv.FormatInt(cmp.Or(t.opts.Store.MaxBytes, 20e9), 10),
		seconds(cmp.Or(t.opts.Store.Keep, time.Hour)),
	}
	ans, err = t.exec(ctx, r, bytes.NewReader(t.manifest), append([]string{"plan", run, t.Digest}, limits...)...)
	if err != nil {
		return Report{}, err
	}
	var rep Report
	for range receiveRounds {
		if ans.word == "filled" {
			rep.Removed = ans.removed
			rep.Reused = max(0, len(t.byHash)-rep.SentFiles) + t.Count - len(t.byHash)
			return rep, nil
		}
		var p *pack
		p, ans, err = t.send(ctx, r, ans.missing, append([]string{"receive", run, t.Digest}, limits...)...)
		if err != nil {
			return rep, err
		}
		rep.SentFiles += p.files
		rep.SentBytes += p.data.size
	}
	return rep, &WorkerError{"receive", fmt.Sprintf("%s missing after they were sent %d times", event.Count(len(ans.missing), "file"), receiveRounds)}
}

// send sends the missing contents and has the worker fill the directory.
func (t *Tree) send(ctx context.Context, r Runner, missing []string, args ...string) (*pack, answer, error) {
	slices.Sort(missing)
	p, release, err := t.acquire(ctx, slices.Compact(missing))
	if err != nil {
		return nil, answer{}, err
	}
	defer release()
	t.report(func(g *progress) { g.total += p.data.size })
	ans, err := t.exec(ctx, r, p.data.reader(), args...)
	return p, ans, err
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

// An answer is what a step of the worker script said.
type answer struct {
	word    string // same, differs, missing, filled
	missing []string
	removed int
}

// exec runs one step of the worker script and gives up when nothing moves.
func (t *Tree) exec(ctx context.Context, r Runner, stdin io.Reader, args ...string) (answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := cmp.Or(t.opts.Stall, 10*time.Minute)
	watchdog := time.AfterFunc(stall, func() {
		cancel(fmt.Errorf("%w for %v", ErrStalled, stall))
	})
	defer watchdog.Stop()
	moved := func(n int) {
		watchdog.Reset(stall)
		if n > 0 && args[0] == "receive" {
			t.report(func(p *progress) { p.sent += int64(n) })
		}
	}
	out := &output{limit: 1<<16 + 80*len(t.byHash), moved: moved}
	errs := &output{limit: 4 << 10, moved: moved}
	cmd := sshfan.Cmd{Line: sshfan.Script("bash", workerScript, args...), Stdout: out, Stderr: errs}
	if stdin != nil {
		cmd.Stdin = &counted{r: stdin, moved: moved}
	}
	status, err := r.Run(ctx, cmd)
	if cause := context.Cause(ctx); cause != nil {
		return answer{}, fmt.Errorf("sync to worker (%s): %w", args[0], cause)
	}
	if err != nil {
		return answer{}, fmt.Errorf("sync to worker (%s): %w", args[0], err)
	}
	return parseAnswer(args[0], out.buf.Bytes(), errs.buf.Bytes(), status)
}

// parseAnswer reads what the script said after its marker; what login scripts
// print before it is for nobody.
func parseAnswer(step string, out, stderr []byte, status sshfan.Status) (answer, error) {
	var ans answer
	var words []string
	missing := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if i := strings.Index(line, marker); i >= 0 {
			words = strings.Fields(line[i+len(marker):])
			missing = false
			if len(words) == 0 {
				continue
			}
			switch words[0] {
			case "missing":
				missing = true
			case "error", "broken":
				reason := strings.TrimSpace(strings.TrimPrefix(line[i+len(marker):], words[0]))
				if detail := lastLine(stderr); detail != "" {
					reason += ": " + detail
				}
				err := error(&WorkerError{step, strings.ToValidUTF8(reason, "\uFFFD")})
				if words[0] == "broken" {
					err = fmt.Errorf("%w: %w", errBroken, err)
				}
				return ans, err
			}
			continue
		}
		if missing {
			if !hashName.MatchString(line) {
				return ans, &WorkerError{step, fmt.Sprintf("answer not understood: %q", clip(line))}
			}
			ans.missing = append(ans.missing, line)
		}
	}
	broken := func() (answer, error) {
		how := fmt.Sprintf("exit status %d", status.Code)
		if status.Signal != "" {
			how = "killed by SIG" + status.Signal
		}
		text := lastLine(stderr)
		if text == "" {
			text = lastLine(out)
		}
		return answer{}, &WorkerError{step, fmt.Sprintf("no answer, %s: %q", how, clip(text))}
	}
	if len(words) == 0 || status.Code != 0 || status.Signal != "" {
		return broken()
	}
	ans.word = words[0]
	switch {
	case ans.word == "same" && step == "check", ans.word == "differs" && step == "check":
	case ans.word == "missing" && step != "check" && len(words) == 2 && strconv.Itoa(len(ans.missing)) == words[1] && len(ans.missing) > 0:
	case ans.word == "filled" && step != "check" && len(words) == 2:
		n, err := strconv.ParseUint(words[1], 10, 31)
		if err != nil {
			return broken()
		}
		ans.removed = int(n)
	default:
		return broken()
	}
	return ans, nil
}

func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

func clip(text string) string {
	if len(text) > 200 {
		text = text[:200]
	}
	return text
}

// An output keeps the first bytes of a stream.
type output struct {
	limit int
	moved func(int)
	buf   bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.moved(0)
	if room := o.limit - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// counted tells how many bytes were taken from a reader.
type counted struct {
	r     io.Reader
	moved func(int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.moved(n)
	return n, err
}

// progress is what all Pushes of a tree have done together.
type progress struct {
	mu            sync.Mutex
	started, done int
	sent, total   int64
	shown         time.Time
	shownDone     int
}

// report changes the progress and emits it, at most ten times a second except
// when a worker is done.
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
