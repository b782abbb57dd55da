package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/job"
	"multihost/internal/ui"
)

const (
	// deliberate is the shortest time between two signals that count as two user actions.
	deliberate = time.Second
	// leaveLimit is how long the program may take to exit once the user wants to leave at
	// once.
	leaveLimit = 5 * time.Second
)

func interruptFlag(otherwise string) cli.Flag {
	return &cli.StringFlag{Name: "on-interrupt", Value: "ask", Usage: "ask, stop or detach: what Ctrl-C does while the command runs (`WHAT`); ask is " + otherwise + " where there is no terminal"}
}

// onInterrupt says what signals do to the command under way. The zero value is for
// commands that run nothing: every signal ends them.
type onInterrupt struct {
	mu     sync.Mutex                                                // guards the fields below
	answer job.Answer                                                // to SIGINT and SIGTERM, without asking; empty: the command's default
	ask    func(ctx context.Context) (answer job.Answer, asked bool) // nil: never ask
	second func() job.Answer                                         // to SIGINT while the question is open
}

func (p *program) checkOnInterrupt(c *cli.Context) {
	p.inv.oneOf("on-interrupt", c.String("on-interrupt"), "ask", string(job.Stop), string(job.Detach))
}

// onInterrupts sets what signals do, from --on-interrupt. It asks only while a command
// runs or a queued resource exists.
func (p *program) onInterrupts(s *session, c *cli.Context, d *job.Deps) {
	mode := c.String("on-interrupt")
	p.interrupts.mu.Lock()
	defer p.interrupts.mu.Unlock()
	if mode != "ask" {
		p.interrupts.answer, d.CtrlC = job.Answer(mode), job.Answer(mode)
		return
	}
	in, ok := p.stdin.(*os.File)
	if !ok || s.view.Mode() == ui.JSON || !ui.CanAsk(in, p.stderr) {
		return
	}
	d.CtrlC = job.Ask
	over, end := context.WithCancel(context.Background())
	s.endQuestions = end
	p.interrupts.ask = func(ctx context.Context) (job.Answer, bool) {
		stand := d.Stand()
		if over.Err() != nil || stand.Running == "" && stand.Resource == "" || !ui.CanAsk(in, p.stderr) {
			return "", false
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(over, cancel)()
		return askInterrupt(ctx, s.view, in, stand), true
	}
	p.interrupts.second = func() job.Answer { return d.Stand().Second() }
}

// askInterrupt asks the user what to do. If the terminal can no longer be asked, it
// answers job.Detach: that is no reason to stop the run.
func askInterrupt(ctx context.Context, view *ui.Renderer, in *os.File, stand job.Stand) job.Answer {
	keys := "dsc"
	if !stand.Started() {
		keys = "skc"
	}
	key, err := view.Ask(ctx, in, interruptQuestion(stand), keys)
	switch {
	case err == nil && key == 's':
		return job.Stop
	case err == nil && key == ui.Interrupt:
		return stand.Second()
	case err == nil && key == 'c', err != nil && ctx.Err() != nil:
		return job.Continue
	}
	return job.Detach
}

// interruptQuestion returns a question that says what is at stake and what each key does.
func interruptQuestion(st job.Stand) string {
	var b strings.Builder
	billed := ""
	if st.Billed != "" {
		billed = " (" + st.Billed + ")"
	}
	switch {
	case !st.Kept.IsZero():
		fmt.Fprintf(&b, "\nmultihost: the failed slices of run %s are kept until %s%s\n", st.Run, st.Kept.Format(time.TimeOnly), billed)
		fmt.Fprintf(&b, "  d  detach: they stay, and are billed until you type: multihost qr delete %s --force%s (Ctrl-C again does the same)\n", st.Resource, lease(st))
	case st.Running != "":
		fmt.Fprintf(&b, "\nmultihost: run %s runs on %s%s\n", st.Run, st.Running, billed)
		fmt.Fprintf(&b, "  d  detach: it goes on; come back with: multihost attach %s%s (Ctrl-C again does the same)\n", st.Run, lease(st))
	default:
		return waitingQuestion(st)
	}
	b.WriteString("  s  stop:")
	if st.Running != "" {
		b.WriteString(" end it on every worker")
	}
	if st.Resource != "" {
		if st.Running != "" {
			b.WriteString(" and")
		}
		fmt.Fprintf(&b, " delete queued resource %s with its slices", st.Resource)
	}
	b.WriteString("\n  c  continue\nd, s or c?")
	return b.String()
}

// lease says what the workers do about the slices by themselves.
func lease(st job.Stand) string {
	if st.Lease == "" {
		return ""
	}
	return "; " + st.Lease
}

// waitingQuestion is interruptQuestion for a job whose command has not started.
func waitingQuestion(st job.Stand) string {
	billed := "nothing is billed yet"
	if st.Billed != "" {
		billed = "billed now: " + st.Billed
	}
	if st.Earlier {
		return fmt.Sprintf("\nmultihost: an earlier runner made queued resource %s, and the command of run %s may run on it; %s\n"+
			"  s  stop: end the command where it runs and delete queued resource %s\n"+
			"  k  keep all as it is; come back by typing the same command (Ctrl-C again does the same)\n"+
			"  c  continue\ns, k or c?", st.Resource, st.Run, billed, st.Resource)
	}
	if st.Ended {
		return fmt.Sprintf("\nmultihost: the command of run %s has ended and is to be started again; %s\n"+
			"  s  stop: start it no more and delete queued resource %s (Ctrl-C again does the same)\n"+
			"  k  keep queued resource %s; come back by typing the same command%s\n"+
			"  c  continue\ns, k or c?", st.Run, billed, st.Resource, st.Resource, lease(st))
	}
	return fmt.Sprintf("\nmultihost: the command of run %s has not started; %s\n"+
		"  s  stop: delete queued resource %s (Ctrl-C again does the same)\n"+
		"  k  keep the place in the queue: %s\n"+
		"  c  continue to wait\ns, k or c?", st.Run, billed, st.Resource, st.Waiting)
}

// decide returns what a signal means when nobody is asked.
func (o *onInterrupt) decide(sig os.Signal) *job.Interrupted {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := &job.Interrupted{Signal: sig}
	if sig != syscall.SIGHUP {
		in.Answer = o.answer
	}
	return in
}

// question returns the function that asks the user about a signal, or nil.
func (o *onInterrupt) question(sig os.Signal) func(ctx context.Context) (job.Answer, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if sig != syscall.SIGINT {
		return nil
	}
	return o.ask
}

// answerToSecond returns the answer to a SIGINT that comes while the question is open.
func (o *onInterrupt) answerToSecond() job.Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.second()
}

// A question has been asked and waits for its answer.
type question struct {
	cancel context.CancelFunc
	reply  chan reply // buffers the one reply
}

type reply struct {
	answer job.Answer
	asked  bool
}

func pose(ask func(ctx context.Context) (job.Answer, bool)) *question {
	ctx, cancel := context.WithCancel(context.Background())
	q := &question{cancel: cancel, reply: make(chan reply, 1)}
	go func() { // ends when ctx ends, if not before; withdraw waits for it
		answer, asked := ask(ctx)
		q.reply <- reply{answer, asked}
	}()
	return q
}

// withdraw cancels the question and frees the terminal.
func (q *question) withdraw() {
	if q != nil {
		q.cancel()
		<-q.reply
	}
}

// replies returns the channel of the answer; nil if there is no question.
func (q *question) replies() <-chan reply {
	if q == nil {
		return nil
	}
	return q.reply
}

// watchSignals cancels the returned context with an *job.Interrupted as cause when
// SIGINT, SIGTERM or SIGHUP comes. If a SIGINT asks the user a question, the context ends
// only when the answer says so; a second SIGINT while the question is open means
// job.Stand.Second. It ignores SIGHUP if nohup started the program, which must then
// outlive the terminal. The next signal after the end closes p.leave, unless it follows
// the first at once.
func (p *program) watchSignals(parent context.Context) (context.Context, func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, stop := p.obey(parent, signals, os.Exit)
	return ctx, func() {
		signal.Stop(signals)
		stop()
	}
}

// obey is watchSignals for signals that come through a channel. exit ends the process
// when it takes too long to end by itself.
func (p *program) obey(parent context.Context, signals <-chan os.Signal, exit func(status int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var ended time.Time // when ctx ended
		var gone <-chan time.Time
		var open *question
		var about os.Signal
		end := func(cause *job.Interrupted) {
			ended = time.Now()
			cancel(cause)
		}
		for {
			select {
			case sig := <-signals:
				switch ask := p.interrupts.question(sig); {
				case open != nil:
					open.withdraw()
					open = nil
					in := p.interrupts.decide(sig)
					if sig == syscall.SIGINT {
						in.Answer = p.interrupts.answerToSecond()
					}
					end(in)
				case ended.IsZero() && ask != nil:
					open, about = pose(ask), sig
				case ended.IsZero():
					end(p.interrupts.decide(sig))
				case time.Since(ended) < deliberate:
					// One user action can arrive as two signals: timeout(1) signals its
					// child and then the whole group.
				case gone == nil:
					close(p.leave)
					gone = time.After(leaveLimit)
				}
			case r := <-open.replies():
				open = nil
				in := p.interrupts.decide(about)
				if r.asked {
					in.Answer = r.answer
				}
				if in.Answer != job.Continue {
					end(in)
				}
			case <-gone: // something blocks without a context: a FIFO, a prompt
				exit(exitInterrupt)
			case <-quit:
				open.withdraw()
				return
			}
		}
	}()
	return ctx, func() {
		close(quit)
		<-done
		cancel(nil)
	}
}
