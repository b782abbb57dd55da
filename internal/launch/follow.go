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

type FollowOptions struct {
	// Look makes Follow change nothing on the worker. If nobody saw the end, Follow does
	// not record that there, but still returns an Exit that is Lost.
	Look bool

	// Lost is called for each problem that interrupts Follow: the connection is lost, the
	// login runs no command, or the answer makes no sense. offset is where Follow will
	// continue. Follow retries.
	Lost func(err error, offset int64)

	// Found is called when Follow works: the worker sends output, or waits for output or
	// for the end of the command. Found is called again after each Lost, and perhaps more
	// often.
	Found func()

	// Shorter is called when the output on the worker is shorter than the received bytes.
	// These bytes stay. Follow continues with later output, so it writes nothing twice.
	Shorter func(*TruncatedError)

	// Full is called when the log of a running command has reached its limit, so that only
	// the end is still to come. It may be called again after a loss of the connection.
	Full func(limit int64)

	// LowDisk is called once, if output arrives while little of the output's disk is free
	// (Disk.Low).
	LowDisk func(Disk)

	// Window is shared with the Follow calls for other workers. nil means a Window for this
	// call alone.
	Window *Window

	// Quiet is called after QuietAfter without output, and again after each further
	// QuietAfter. Both must be set, otherwise Follow does not watch for silence.
	Quiet      func(Silence)
	QuietAfter time.Duration
}

// Follow writes the command's output to w from byte offset on. It returns when the command
// has ended and its last byte is written, and says how the command ended. It writes every
// byte once and in order. It may be called before the command starts or after it has ended.
//
// A problem with following says nothing about the command: Follow calls Lost and retries,
// at the next byte, until ctx ends. Follow returns before the command has ended only if ctx
// ends, we close the connection or w fails. It also returns early if the very first answer
// of the worker is that it does not know or did not start the run. In all these cases the
// command is not touched.
//
// The worker sends at most as many bytes ahead of w as Window allows. A slow w delays the
// sending of output, never the command.
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
	var heard atomic.Bool // the worker has said that it knows the run
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

// Pauses between two streams, each twice as long as the last one.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// A chase is the state of Follow between two streams.
type chase struct {
	worker  string
	offset  int64         // offset of the next byte
	wait    time.Duration // the next pause
	idle    int           // streams in a row without a byte
	shorter bool          // the output became shorter, and its new size is not known yet
}

func newChase(worker string, offset int64) *chase {
	return &chase{worker: worker, offset: offset, wait: firstPause}
}

// A turn says what Follow does after a stream has ended.
type turn struct {
	shorter *TruncatedError // to report to Shorter
	exit    *Exit           // the command has ended and its last byte is written: return exit
	lost    error           // to report to Lost
	pause   time.Duration   // pause before the next stream
}

// after returns what Follow does after a stream. p and err are the results of the stream.
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
		// Something killed follow.sh on the worker before it reported the state of the run.
		// That happens now and then, so Follow retries.
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
		return next // the run may have ended between two looks at its state: ask at once
	}
	next.pause = c.wait
	c.wait = min(c.wait*2, mostPause)
	return next
}

// ends reports whether err ends Follow. With heard, the worker knew the run before. Then
// ErrUnknownRun and ErrNotStarted do not end Follow, because they mean that the run's files
// were removed or could not be read.
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

// ReadLog writes the worker's present output from offset on to w. It returns the number of
// bytes.
func ReadLog(ctx context.Context, r remote.Runner, ref Ref, offset int64, w io.Writer) (int64, error) {
	if err := ref.check(); err != nil {
		return 0, err
	}
	p, err := stream(ctx, r, ref, offset, "read", w, nil, FollowOptions{})
	return p.count, err
}

// ReadPart is ReadLog for at most count bytes.
func ReadPart(ctx context.Context, r remote.Runner, ref Ref, offset, count int64, w io.Writer) (int64, error) {
	if err := ref.check(); err != nil || count <= 0 {
		return 0, err
	}
	p, err := stream(ctx, r, ref, offset, strconv.FormatInt(count, 10), w, nil, FollowOptions{})
	return p.count, err
}

// Peek is ReadLog, but changes nothing on the worker, like FollowOptions.Look. It also
// returns how the command ended, or nil if the worker does not know of an end.
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
	// When a file becomes shorter, tail starts again at its first byte. So close the gate
	// as soon as tail reports that.
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

// A talk is the exchange of messages between follow.sh and Follow beside the output.
type talk struct {
	orders *orders
	ration *ration
	opts   FollowOptions
	found  func() // called when Follow works
}

// answered handles a record of the first answer, before the output.
func (t talk) answered(rec remote.Record) (done bool) {
	switch rec.Word {
	case "stream":
		t.ration.size(number(rec.Rest))
	case "unknown", "truncated", "error":
		t.orders.Close()
	}
	return false
}

// told handles a record that comes beside the output. If done is true, the record is not
// kept, because a long log brings any number of "size" records.
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

// judge sets the phase and the exit of p from the records before and beside the output.
// offset is where the output began.
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
// ends, or after an error that a retry cannot cure (see mayAnswer). The connection has
// limits of its own for redialing.
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

// mayAnswer reports whether a retry after err may succeed. It returns false if our script
// reported the error, the host key is another one, the output was too long, or we closed the
// connection.
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
