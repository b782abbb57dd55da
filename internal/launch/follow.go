package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"multihost/internal/remote"
)

// FollowOptions are optional.
type FollowOptions struct {
	// Look makes Follow change nothing on the worker. An end that nobody saw is not
	// recorded there, but Follow still returns an Exit that is Lost.
	Look bool

	// Lost is called for each problem that interrupts following: the connection is lost,
	// the login runs no command, or the answer makes no sense. offset is where following
	// goes on. Follow tries again.
	Lost func(err error, offset int64)

	// Found is called when following works: the worker sends output, or waits for it or
	// for the end of the command. It is called again after each Lost, and may be called
	// in between.
	Found func()

	// Shorter is called when the output on the worker is shorter than the received bytes.
	// The received bytes stay. Follow goes on with later output, so it writes nothing
	// twice.
	Shorter func(*TruncatedError)

	// Full is called when a command that still runs has reached the limit of its log:
	// only its end is to come. It may be called again after a loss.
	Full func(limit int64)

	// LowDisk is called once, when output arrives while the disk that holds the output is
	// low (Disk.Low).
	LowDisk func(Disk)

	// Window is shared with the Follow calls for other workers. Nil means a window of
	// its own.
	Window *Window

	// Quiet is called when no output has come for QuietAfter, and again each time that as
	// much time has passed. Follow asks the worker only if both are set.
	Quiet      func(Silence)
	QuietAfter time.Duration
}

// Follow writes the command's output to w from byte offset on. It returns when the command
// has ended and its last byte is written, and says how the command ended. It writes every
// byte once and in order. It may begin before the command starts or after it has ended.
//
// When something goes wrong in between, Follow calls Lost and tries again, at the next
// byte, until ctx ends: a problem in following says nothing about the command. Follow
// returns before the command has ended only when ctx ends, we close the connection or w
// fails. Follow also returns early if the worker's very first answer is that it does not
// know the run, or that it did not start the run. The command is not touched then.
//
// The worker sends bytes ahead of w, but at most as many as Window allows. A slow w delays
// the sending of output, never the command.
func Follow(ctx context.Context, r remote.Runner, ref Ref, offset int64, w io.Writer, opts FollowOptions) (Exit, error) {
	if err := ref.check(); err != nil {
		return Exit{}, err
	}
	ration := opts.Window.join()
	if low := opts.LowDisk; low != nil {
		var once sync.Once
		opts.LowDisk = func(d Disk) { once.Do(func() { low(d) }) }
	}
	watch := &listener{r: r, ref: ref, opts: opts}
	defer watch.stop()
	w = watch.start(ctx, w)
	var heard atomic.Bool // the worker has answered that it knows the run
	found := opts.Found
	opts.Found = func() {
		heard.Store(true)
		if found != nil {
			found()
		}
	}
	c := newChase(r.Name(), offset)
	for {
		p, err := stream(ctx, r, ref, c.offset, "follow", w, ration, opts)
		if ends(err, heard.Load()) || ctx.Err() != nil && err != nil {
			return Exit{}, err
		}
		next := c.after(p, err)
		if next.shorter != nil && opts.Shorter != nil {
			opts.Shorter(next.shorter)
		}
		if next.exit != nil {
			return *next.exit, nil
		}
		if next.lost != nil && opts.Lost != nil {
			opts.Lost(next.lost, c.offset)
		}
		if next.pause == 0 {
			continue
		}
		if cause := pause(ctx, next.pause); cause != nil {
			return Exit{}, cmp.Or(next.lost, err, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), cause))
		}
	}
}

// Pauses between two streams. Each pause is twice as long as the previous one.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// A chase is the state of Follow between two streams.
type chase struct {
	worker  string
	offset  int64         // offset of the next byte
	wait    time.Duration // the next pause
	idle    int           // streams in a row that brought nothing
	shorter bool          // the output became shorter, and its size on the worker is not yet known
}

func newChase(worker string, offset int64) *chase {
	return &chase{worker: worker, offset: offset, wait: firstPause}
}

// A turn has the next steps of Follow after a stream.
type turn struct {
	shorter *TruncatedError // to report to Shorter
	exit    *Exit           // the command has ended and its last byte is written: return it
	lost    error           // to report to Lost
	pause   time.Duration   // pause before the next stream
}

// after decides what to do after a stream that brought p and failed with err.
func (c *chase) after(p piece, err error) (next turn) {
	c.offset += p.count
	if c.idle++; p.count > 0 {
		c.wait, c.idle = firstPause, 0
	}
	var short *TruncatedError
	switch {
	case errors.As(err, &short):
		if !c.shorter {
			next.shorter = short
		}
		if c.shorter = short.Size < 0; !c.shorter {
			c.offset = short.Size
		}
	case err != nil:
		next.lost = err
	case p.phase == Unknown:
		// follow.sh was killed on the worker before it reported the state of the run. That
		// may happen now and then, so Follow tries again.
		if c.idle >= 3 {
			next.lost = &RemoteError{Worker: c.worker, Op: "follow", Text: "the answer does not tell the state of the run"}
		}
	case p.exit != nil && c.offset >= p.exit.LogSize:
		return turn{exit: p.exit}
	case p.exit != nil && c.idle >= 2:
		if !c.shorter {
			next.shorter = &TruncatedError{Worker: c.worker, Offset: p.exit.LogSize, Size: c.offset}
		}
		next.exit = p.exit
		return next
	}
	if err == nil && next.lost == nil && c.idle <= 1 {
		return next // the run may have ended between two looks at its state: ask again at once
	}
	next.pause = c.wait
	c.wait = min(c.wait*2, mostPause)
	return next
}

// ends reports whether err ends Follow. When the worker has known the run before,
// ErrUnknownRun and ErrNotStarted do not end Follow: somebody removed the run's files, or
// they could not be read.
func ends(err error, heard bool) bool {
	var write *writeError
	switch {
	case errors.As(err, &write), errors.Is(err, remote.ErrClosed):
		return true
	case errors.Is(err, ErrUnknownRun), errors.Is(err, ErrNotStarted):
		return !heard
	}
	return false
}

// ReadLog writes the output that the worker has now, from offset, to w and returns
// the number of bytes.
func ReadLog(ctx context.Context, r remote.Runner, ref Ref, offset int64, w io.Writer) (int64, error) {
	if err := ref.check(); err != nil {
		return 0, err
	}
	p, err := stream(ctx, r, ref, offset, "read", w, nil, FollowOptions{})
	return p.count, err
}

// ReadPart does what ReadLog does, for at most count bytes.
func ReadPart(ctx context.Context, r remote.Runner, ref Ref, offset, count int64, w io.Writer) (int64, error) {
	if err := ref.check(); err != nil || count <= 0 {
		return 0, err
	}
	p, err := stream(ctx, r, ref, offset, strconv.FormatInt(count, 10), w, nil, FollowOptions{})
	return p.count, err
}

// Peek is ReadLog that changes nothing on the worker (as FollowOptions.Look). It also
// returns how the command ended. nil means that, as far as the worker knows, the command
// has not ended.
func Peek(ctx context.Context, r remote.Runner, ref Ref, offset int64, w io.Writer) (int64, *Exit, error) {
	if err := ref.check(); err != nil {
		return 0, nil, err
	}
	p, err := stream(ctx, r, ref, offset, "read", w, nil, FollowOptions{Look: true})
	return p.count, p.exit, err
}

// piece is the result of one exec of follow.sh.
type piece struct {
	count int64
	phase Phase
	exit  *Exit
}

// stream runs follow.sh once.
func stream(ctx context.Context, r remote.Runner, ref Ref, offset int64, mode string, w io.Writer, ration *ration, opts FollowOptions) (piece, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nonce := remote.NewNonce()
	orders := newOrders()
	defer orders.Close()
	g := &gate{w: w}
	g.broken = func() { cancel(errWriter) }
	out := &remote.Stream{Answer: remote.Answer{Nonce: nonce}, Raw: g}
	errs := &remote.Answer{Nonce: nonce}
	t := talk{orders: orders, ration: ration, opts: opts, found: func() {}}
	if opts.Found != nil {
		t.found = sync.OnceFunc(opts.Found)
	}
	if ration == nil {
		orders.Close()
	} else {
		ration.begin(orders, offset)
		defer ration.end()
		g.wrote = func(n int64) {
			t.found()
			ration.received(n)
		}
		out.Next, errs.Next = t.answered, t.told
	}
	// When a file becomes shorter, tail starts again at its first byte. Close the gate as
	// soon as tail says so.
	var truncated atomic.Bool
	errs.Stray = func(line string) {
		if strings.Contains(line, "file truncated") {
			truncated.Store(true)
			g.close()
			cancel(errShorter)
		}
	}
	args := append([]string{nonce}, ref.args()...)
	args = append(args, strconv.FormatInt(offset, 10), mode)
	if opts.Look {
		args = append(args, "look")
	}
	cmd := followScript.Cmd(orders, args...)
	cmd.ReadOnly = opts.Look
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	p := piece{}
	var failed error
	p.count, failed = g.close()
	if failed != nil {
		return p, &writeError{fmt.Errorf("write output of %s: %w", r.Name(), failed)}
	}
	if truncated.Load() {
		return p, &TruncatedError{Worker: r.Name(), Offset: offset + p.count, Size: -1}
	}
	if err != nil {
		return p, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), err)
	}
	records, err := checkAnswer(r.Name(), "follow", &out.Answer, errs, status)
	if err != nil {
		return p, err
	}
	if err := p.judge(r.Name(), ref, offset, records, errs.Records()); err != nil {
		return p, err
	}
	if p.phase != Unknown {
		t.found()
	}
	return p, nil
}

// A talk is the exchange of messages between follow.sh and Follow while output comes.
type talk struct {
	orders *orders
	ration *ration
	opts   FollowOptions
	found  func() // to be called when following works
}

// answered handles a record of the first answer, which comes before the output.
func (t talk) answered(rec remote.Record) (done bool) {
	switch rec.Word {
	case "stream":
		t.ration.size(number(rec.Rest))
	case "unknown", "truncated", "error":
		t.orders.Close()
	}
	return false
}

// told handles a record that comes beside the output. done means that the record need not
// be kept: a long log brings a "size" for each piece, without limit.
func (t talk) told(rec remote.Record) (done bool) {
	switch rec.Word {
	case "waiting":
		t.found()
	case "size":
		t.found()
		t.ration.size(number(rec.Rest))
	case "disk":
		if d := parseDisk(rec.Rest); d.Low() && t.opts.LowDisk != nil {
			t.opts.LowDisk(d)
		}
	case "full":
		if t.opts.Full != nil {
			t.opts.Full(number(rec.Rest))
		}
	case "end":
		t.orders.Close()
		return false
	default:
		return false
	}
	return true
}

// judge finds out the state of the run from the first answer and the records beside the
// output. offset is where the output began.
func (p *piece) judge(worker string, ref Ref, offset int64, first, beside []remote.Record) error {
	if first[0].Word == "unknown" {
		return fmt.Errorf("follow %q on %s: %w", ref.Label(), worker, ErrUnknownRun)
	}
	all := slices.Concat(first, beside)
	state := parseState(ref, all)
	p.phase, p.exit = state.Phase, state.Exit
	if p.phase == Lost && p.exit == nil {
		p.exit = &Exit{Code: 255, Lost: true, Reason: "nobody saw it end"}
	}
	if p.phase == Aborted {
		return fmt.Errorf("follow %q on %s: %w", ref.Label(), worker, ErrNotStarted)
	}
	for _, rec := range all {
		if rec.Word == "truncated" {
			return &TruncatedError{Worker: worker, Offset: offset + p.count, Size: number(rec.Rest)}
		}
	}
	return nil
}

var (
	errWriter  = errors.New("the local writer failed")
	errShorter = errors.New("the output on the worker became shorter")
)

type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// persist repeats try, with pauses that grow to 5 s. It ends when try succeeds, when ctx
// ends, or when an error comes that trying again cannot cure (see mayAnswer). The
// connection itself redials within limits of its own.
func persist[T any](ctx context.Context, try func() (T, error)) (T, error) {
	for wait := firstPause; ; wait = min(wait*2, mostPause) {
		v, err := try()
		if err == nil || !mayAnswer(err) || ctx.Err() != nil {
			return v, err
		}
		if err := pause(ctx, wait); err != nil {
			return v, err
		}
	}
}

// mayAnswer reports whether a worker that failed with err may still answer later. It does
// not after one of these errors: a refusal in the words of our script, another host key, a
// flood of output, or the close of the connection.
func mayAnswer(err error) bool {
	var refused *RemoteError
	var key *remote.HostKeyError
	if errors.As(err, &refused) {
		return refused.Silent
	}
	return !errors.As(err, &key) && !errors.Is(err, remote.ErrFlood) && !errors.Is(err, remote.ErrClosed)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
