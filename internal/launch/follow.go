package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"multihost/internal/sshfan"
)

// FollowOptions are optional.
type FollowOptions struct {
	// Lost is told each time the connection is lost, with the offset at which
	// following goes on.
	Lost func(err error, offset int64)

	// Found is told each time the worker answers, on the first connection and on
	// each that was made again.
	Found func()

	// Full is told when a command that still runs has reached the limit of its
	// log: nothing but its end is to come. It may be told again after a loss.
	Full func(limit int64)

	// LowDisk is told once when output arrives while the disk that it is kept on
	// is low.
	LowDisk func(Disk)

	// Window is what this Follow shares with those of other workers. Nil means
	// a window of its own.
	Window *Window

	// Quiet is told when no output has come for QuietAfter, and again each time
	// that as much has passed. Without both, nobody asks.
	Quiet      func(Silence)
	QuietAfter time.Duration
}

// Follow writes the command's output to w from byte offset until the command
// has ended and its last byte was written, and returns how it ended. Every byte
// is written once and in order. Follow makes lost connections again, at the next
// byte, until ctx ends. It may begin before the command starts and after it has
// ended.
//
// A *TruncatedError, with the Exit if there is one, says that the worker has
// fewer bytes than were received. An error of w ends Follow. In both cases, and
// when ctx ends, the command is not touched.
//
// No more is on its way from the worker than w has taken and Window allows: a
// slow w holds up the sending of output, never the command.
func Follow(ctx context.Context, r Runner, ref Ref, offset int64, w io.Writer, opts FollowOptions) (Exit, error) {
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
	var stuck error
	mute := 0 // streams in a row that ended without the state of the run
	reached := offset
	lost := func(err error) (progress bool) {
		if opts.Lost != nil {
			opts.Lost(err, offset)
		}
		progress, reached = offset > reached, offset
		return progress
	}
	for {
		before := offset
		p, err := persist(ctx, func() (piece, error) {
			p, err := stream(ctx, r, ref, offset, "follow", w, ration, opts)
			offset += p.count
			return p, err
		}, lost)
		if err != nil {
			return exitOf(p.exit), err
		}
		if p.phase == Aborted {
			return Exit{}, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), ErrNotStarted)
		}
		if p.exit != nil {
			if offset >= p.exit.LogSize {
				return *p.exit, nil
			}
			if offset == before && stuck != nil {
				return *p.exit, &TruncatedError{Worker: r.Name(), Offset: p.exit.LogSize, Size: offset}
			}
		}
		// The stream ended although the command has not, or before its last
		// byte. That happens once, between two looks; more often is a fault.
		if offset != before {
			stuck, mute = nil, 0
			continue
		}
		// One that was killed there has not told the state of the run.
		if p.phase == Unknown {
			if mute++; mute == 3 {
				return Exit{}, &RemoteError{Worker: r.Name(), Op: "follow", Text: "the answer does not tell the state of the run"}
			}
		}
		if stuck != nil {
			if err := pause(ctx, time.Second); err != nil {
				return Exit{}, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), err)
			}
		}
		stuck = io.ErrNoProgress
	}
}

// ReadLog writes the output that is there now, from offset, to w.
func ReadLog(ctx context.Context, r Runner, ref Ref, offset int64, w io.Writer) (int64, error) {
	if err := ref.check(); err != nil {
		return 0, err
	}
	p, err := stream(ctx, r, ref, offset, "read", w, nil, FollowOptions{})
	return p.count, err
}

// piece is what one exec of follow.sh brought.
type piece struct {
	count int64
	phase Phase
	exit  *Exit
}

func exitOf(e *Exit) Exit {
	if e == nil {
		return Exit{}
	}
	return *e
}

// stream runs follow.sh once.
func stream(ctx context.Context, r Runner, ref Ref, offset int64, mode string, w io.Writer, ration *ration, opts FollowOptions) (piece, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nonce := sshfan.NewNonce()
	orders := newOrders()
	defer orders.Close()
	g := &gate{w: w}
	g.broken = func() { cancel(errWriter) }
	out := &sshfan.Stream{Answer: sshfan.Answer{Nonce: nonce}, Raw: g}
	errs := &sshfan.Answer{Nonce: nonce}
	if ration == nil {
		orders.Close()
	} else {
		ration.begin(orders, offset)
		defer ration.end()
		g.wrote = ration.received
		out.Next = func(rec sshfan.Record) (done bool) {
			switch rec.Word {
			case "stream":
				if opts.Found != nil {
					opts.Found()
				}
				ration.size(number(rec.Rest))
			case "unknown", "truncated", "error":
				orders.Close()
			}
			return false
		}
		// There is a size for each piece of a log of any length.
		errs.Next = func(rec sshfan.Record) (done bool) {
			switch rec.Word {
			case "size":
				ration.size(number(rec.Rest))
				return true
			case "disk":
				if d := parseDisk(rec.Rest); d.Low() && opts.LowDisk != nil {
					opts.LowDisk(d)
				}
				return true
			case "full":
				if opts.Full != nil {
					opts.Full(number(rec.Rest))
				}
				return true
			case "end":
				orders.Close()
			}
			return false
		}
	}
	// tail begins again at the first byte of a file that became shorter: close
	// the gate as soon as it says so.
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
	cmd := followScript.Cmd(orders, args...)
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	p := piece{}
	var failed error
	p.count, failed = g.close()
	if failed != nil {
		return p, &writeError{fmt.Errorf("write output of %s: %w", r.Name(), failed)}
	}
	if truncated.Load() {
		return p, &TruncatedError{Worker: r.Name(), Offset: offset + p.count}
	}
	if err != nil {
		return p, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), err)
	}
	records, err := checkAnswer(r.Name(), "follow", &out.Answer, errs, status)
	if err != nil {
		return p, err
	}
	if records[0].Word == "unknown" {
		return p, fmt.Errorf("follow %q on %s: %w", ref.Label(), r.Name(), ErrUnknownRun)
	}
	all := append(records[:len(records):len(records)], errs.Records()...)
	state := parseState(ref, all)
	p.phase, p.exit = state.Phase, state.Exit
	for _, rec := range all {
		if rec.Word == "truncated" {
			return p, &TruncatedError{Worker: r.Name(), Offset: offset + p.count, Size: number(rec.Rest)}
		}
	}
	return p, nil
}

var (
	errWriter  = errors.New("the local writer failed")
	errShorter = errors.New("the output on the worker became shorter")
)

type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// persist repeats try until it succeeds or fails for another reason than the
// connection, with pauses that grow to 5 s while there is no progress. The
// connection itself redials with patience of its own.
func persist[T any](ctx context.Context, try func() (T, error), lost func(error) (progress bool)) (T, error) {
	const first = 100 * time.Millisecond
	wait := first
	for {
		v, err := try()
		if err == nil || !connectionLost(err) || ctx.Err() != nil {
			return v, err
		}
		if lost != nil && lost(err) {
			wait = first
		}
		if err := pause(ctx, wait); err != nil {
			return v, err
		}
		wait = min(wait*2, 5*time.Second)
	}
}

// connectionLost reports whether the worker may still answer on a new
// connection: everything but what a worker said, and our own faults.
func connectionLost(err error) bool {
	var (
		refused   *RemoteError
		truncated *TruncatedError
		write     *writeError
		key       *sshfan.HostKeyError
	)
	return !errors.As(err, &refused) && !errors.As(err, &truncated) && !errors.As(err, &write) &&
		!errors.As(err, &key) && !errors.Is(err, ErrUnknownRun) && !errors.Is(err, sshfan.ErrFlood)
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
