package launch

import (
	"context"
	"io"
	"sync"
	"time"

	"multihost/internal/remote"
)

// Silence is the worker's report on a command that has printed nothing for a while.
type Silence struct {
	Since time.Duration // since the last output
	State State
	// CPU is how many processors the run has used on average since the previous Status:
	// 0.98 for 98 %, or -1 if that is not known.
	CPU float64
	Err error // the worker did not answer; State is then zero
}

// listener reports when a command is silent. After half of QuietAfter it asks for the
// status. So its report can say how much processor time the command has used since then.
type listener struct {
	r    remote.Runner
	ref  Ref
	opts FollowOptions

	cancel context.CancelFunc
	done   sync.WaitGroup
	heard  chan struct{} // buffer of one, full when output came
}

// start starts the listener. The returned writer passes output to w, and tells the listener
// that output came.
func (s *listener) start(ctx context.Context, w io.Writer) io.Writer {
	if s.opts.Quiet == nil || s.opts.QuietAfter <= 0 {
		return w
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.heard = make(chan struct{}, 1)
	s.done.Go(func() { s.watch(ctx) })
	return ear{w, s.heard}
}

func (s *listener) stop() {
	if s.cancel != nil {
		s.cancel()
		s.done.Wait()
	}
}

type ear struct {
	w     io.Writer
	heard chan struct{}
}

func (e ear) Write(p []byte) (int, error) {
	select {
	case e.heard <- struct{}{}:
	default:
	}
	return e.w.Write(p)
}

func (s *listener) watch(ctx context.Context) {
	half := s.opts.QuietAfter / 2
	timer := time.NewTimer(half)
	defer timer.Stop()
	since := time.Now()
	var last State
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.heard:
			since, last, n = time.Now(), State{}, 1
			timer.Reset(half)
			continue
		case <-timer.C:
		}
		state, err := Status(ctx, s.r, s.ref)
		if ctx.Err() != nil {
			return
		}
		if n%2 == 0 {
			s.opts.Quiet(Silence{Since: time.Since(since), State: state, CPU: state.cpuSince(last), Err: err})
		}
		last = state
		n++
		timer.Reset(max(time.Duration(n)*half-time.Since(since), half/2))
	}
}

// cpuSince returns how many processors the run has used on average since the state earlier,
// or -1 if that is not known.
func (s State) cpuSince(earlier State) float64 {
	d := s.Now.Sub(earlier.Now)
	if earlier.Now.IsZero() || s.Now.IsZero() || d <= 0 {
		return -1
	}
	return max(float64(s.CPU-earlier.CPU)/float64(d), 0)
}
