// Package interrupt decides what a signal does: end the command, detach from its run, or ask
// the user.
package interrupt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"multihost/internal/stage"
	"multihost/internal/ui"
)

const (
	// deliberate is the least time between two signals that count as two actions of the user.
	deliberate = time.Second
	// leaveLimit limits how long the program may take to exit once the user wants to leave
	// at once.
	leaveLimit = 5 * time.Second
)

// A Watch waits for signals. The zero value is for commands that run nothing: every signal
// ends them.
type Watch struct {
	// Leave is closed when the user wants to leave at once. It must not be nil.
	Leave chan struct{}

	mu     sync.Mutex                                                  // guards the fields below
	answer stage.Answer                                                // answer to SIGINT and SIGTERM without a question; empty: the command's default
	ask    func(ctx context.Context) (answer stage.Answer, asked bool) // nil: never ask
	second func() stage.Answer                                         // answer to a SIGINT during the question
}

// Answer sets the answer to SIGINT and SIGTERM.
func (w *Watch) Answer(a stage.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = a
}

// Ask makes SIGINT ask the user on the terminal of in and out, while a command runs or a queued
// resource exists. stand returns the present status and a channel that is closed when the
// status changes. After a change, Ask withdraws the question and asks a new one. The returned
// function cancels an open question and all later ones. Closing the view waits for an open
// question.
func (w *Watch) Ask(view *ui.Renderer, in *os.File, out io.Writer, stand func() (stage.Status, <-chan struct{})) (end func()) {
	over, end := context.WithCancel(context.Background())
	var shown atomic.Pointer[stage.Status] // subject of the question; nil: not shown yet
	w.AskWith(func(ctx context.Context) (stage.Answer, bool) {
		if !ui.CanAsk(in, out) {
			return "", false
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(over, cancel)()
		shown.Store(nil)
		return askWhile(ctx, stand, func(ctx context.Context, st stage.Status, again bool) stage.Answer {
			shown.Store(&st)
			return askUser(ctx, view, in, st, again)
		})
	}, func() stage.Answer {
		now, _ := stand()
		return second(shown.Load(), now)
	})
	return end
}

// second returns the answer to a SIGINT during a question. shown is the status of the question
// that the user has seen. now is the present status. If now needs another question, the user
// has not read what the SIGINT would do. In this case the SIGINT ends no command and deletes
// nothing.
func second(shown *stage.Status, now stage.Status) stage.Answer {
	if shown != nil && atStake(now) && question(*shown) != question(now) {
		return stage.Detach
	}
	return now.Second()
}

// askWhile asks a question about the status. If a change of the status needs another question,
// askWhile withdraws the first one and calls ask with again set. An answer must not be used for
// a status that the user has not seen. askWhile reports whether it asked the user. If nothing
// is left to ask about, the answer is Continue.
func askWhile(ctx context.Context, stand func() (stage.Status, <-chan struct{}), ask func(ctx context.Context, st stage.Status, again bool) stage.Answer) (answer stage.Answer, asked bool) {
	for {
		st, changed := stand()
		switch {
		case ctx.Err() != nil && !asked, !atStake(st) && !asked:
			return "", false
		case !atStake(st):
			return stage.Continue, true
		}
		one, withdraw := context.WithCancelCause(ctx)
		answers := make(chan stage.Answer, 1)
		again := asked
		go func() { answers <- ask(one, st, again) }()
		asked = true
		for stale := false; !stale; {
			select {
			case answer = <-answers:
				withdraw(nil)
				return answer, true
			case <-changed:
				var now stage.Status
				now, changed = stand()
				stale = !atStake(now) || question(now) != question(st)
			}
		}
		withdraw(errStale)
		<-answers // drop an answer to the withdrawn question
		select {  // wait, because one change often follows another
		case <-time.After(settle):
		case <-ctx.Done():
		}
	}
}

// settle is the time from a change to the new question.
const settle = time.Second

// errStale ends a question whose state has changed.
var errStale = errors.New("what is asked about has changed")

// atStake reports whether a command runs or a queued resource exists.
func atStake(st stage.Status) bool { return st.Running != "" || st.Resource != "" }

// AskWith makes SIGINT call ask, which reports whether it asked the user. If another SIGINT
// comes before the user's answer, second returns the answer.
func (w *Watch) AskWith(ask func(ctx context.Context) (answer stage.Answer, asked bool), second func() stage.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ask, w.second = ask, second
}

// askUser asks the user what to do. If it cannot ask on the terminal any more, it
// answers stage.Detach: a closed terminal is no reason to stop the run.
func askUser(ctx context.Context, view *ui.Renderer, in *os.File, stand stage.Status, again bool) stage.Answer {
	keys := "dsc"
	if !stand.Started() {
		keys = "skc"
	}
	text, put := question(stand), view.Ask
	if again {
		text, put = "\nmultihost: this has changed while you were asked; the question above no longer counts"+text, view.AskAnew
	}
	key, err := put(ctx, in, text, keys)
	switch {
	case err == nil && key == 's':
		return stage.Stop
	case err == nil && key == ui.Interrupt:
		return stand.Second()
	case err == nil && key == 'c', err != nil && ctx.Err() != nil:
		return stage.Continue
	}
	return stage.Detach
}

// question returns a question that says what is at stake and what each key does.
func question(st stage.Status) string {
	var b strings.Builder
	billed := ""
	if st.Billed != "" {
		billed = " (" + st.Billed + ")"
	}
	switch {
	case !st.Kept.IsZero():
		fmt.Fprintf(&b, "\nmultihost: the failed slices of run %s are kept until %s%s\n", st.Run, st.Kept.Format(time.TimeOnly), billed)
		fmt.Fprintf(&b, "  d  detach: they stay, and are billed until you type: %s%s (Ctrl-C again does the same)\n", st.Delete, lease(st))
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
		fmt.Fprintf(&b, " delete %s with its slices", st.Resource)
	}
	b.WriteString("\n  c  continue\nd, s or c?")
	return b.String()
}

// lease describes what the workers do with the slices by themselves.
func lease(st stage.Status) string {
	if st.Lease == "" {
		return ""
	}
	return "; " + st.Lease
}

// waitingQuestion returns the question for a job whose command has not started.
func waitingQuestion(st stage.Status) string {
	billed := "nothing is billed yet"
	if st.Billed != "" {
		billed = "billed now: " + st.Billed
	}
	if st.Earlier {
		return fmt.Sprintf("\nmultihost: an earlier runner made %s, and the command of run %s may run on it; %s\n"+
			"  s  stop: end the command where it runs and delete %s\n"+
			"  k  keep all as it is; come back by typing the same command (Ctrl-C again does the same)\n"+
			"  c  continue\ns, k or c?", st.Resource, st.Run, billed, st.Resource)
	}
	if st.Ended {
		return fmt.Sprintf("\nmultihost: the command of run %s has ended and is to be started again; %s\n"+
			"  s  stop: start it no more and delete %s (Ctrl-C again does the same)\n"+
			"  k  keep %s; come back by typing the same command%s\n"+
			"  c  continue\ns, k or c?", st.Run, billed, st.Resource, st.Resource, lease(st))
	}
	kept := "the place in the queue"
	if st.Billed != "" {
		kept = st.Resource + " with its slices"
	}
	return fmt.Sprintf("\nmultihost: the command of run %s has not started; %s\n"+
		"  s  stop: delete %s (Ctrl-C again does the same)\n"+
		"  k  keep %s: %s\n"+
		"  c  continue to wait\ns, k or c?", st.Run, billed, st.Resource, kept, st.Waiting)
}

// decide returns the meaning of a signal without a question.
func (w *Watch) decide(sig os.Signal) *stage.Interrupted {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := &stage.Interrupted{Signal: sig}
	if sig != syscall.SIGHUP {
		in.Answer = w.answer
	}
	return in
}

// question returns the function that asks the user about a signal, or nil.
func (w *Watch) question(sig os.Signal) func(ctx context.Context) (stage.Answer, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sig != syscall.SIGINT {
		return nil
	}
	return w.ask
}

// answerToSecond returns the answer to a SIGINT during the question.
func (w *Watch) answerToSecond() stage.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.second()
}

// An open question waits for its answer.
type open struct {
	cancel context.CancelFunc
	reply  chan reply // buffers the one reply
}

type reply struct {
	answer stage.Answer
	asked  bool
}

func pose(ask func(ctx context.Context) (stage.Answer, bool)) *open {
	ctx, cancel := context.WithCancel(context.Background())
	q := &open{cancel: cancel, reply: make(chan reply, 1)}
	go func() { // ends with ctx at the latest; withdraw waits for it
		answer, asked := ask(ctx)
		q.reply <- reply{answer, asked}
	}()
	return q
}

// withdraw cancels the question and frees the terminal.
func (q *open) withdraw() {
	if q != nil {
		q.cancel()
		<-q.reply
	}
}

// replies returns the channel of the answer, or nil without a question.
func (q *open) replies() <-chan reply {
	if q == nil {
		return nil
	}
	return q.reply
}

// Start cancels the returned context with a *stage.Interrupted as cause when SIGINT, SIGTERM or
// SIGHUP comes. If a SIGINT leads to a question, the answer decides whether the context ends. A
// second SIGINT during the question means stage.Status.Second, or stage.Detach if a new
// question is about to replace it. If nohup started the program, Start ignores SIGHUP, because
// the program must outlive the terminal. A signal after the end of the context closes Leave,
// unless it comes within a second of that end.
func (w *Watch) Start(parent context.Context, exit func()) (context.Context, func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, stop := w.Obey(parent, signals, exit)
	return ctx, func() {
		signal.Stop(signals)
		stop()
	}
}

// Obey does what Start does, with signals from a channel.
func (w *Watch) Obey(parent context.Context, signals <-chan os.Signal, exit func()) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var ended time.Time // when ctx ended
		var gone <-chan time.Time
		var asked *open
		var about os.Signal
		end := func(cause *stage.Interrupted) {
			ended = time.Now()
			cancel(cause)
		}
		for {
			select {
			case sig := <-signals:
				switch ask := w.question(sig); {
				case asked != nil:
					asked.withdraw()
					asked = nil
					in := w.decide(sig)
					if sig == syscall.SIGINT {
						in.Answer = w.answerToSecond()
					}
					end(in)
				case ended.IsZero() && ask != nil:
					asked, about = pose(ask), sig
				case ended.IsZero():
					end(w.decide(sig))
				case time.Since(ended) < deliberate:
					// One action of the user can arrive as two signals: timeout(1) signals
					// its child and then the whole group.
				case gone == nil:
					close(w.Leave)
					gone = time.After(leaveLimit)
				}
			case r := <-asked.replies():
				asked = nil
				in := w.decide(about)
				if r.asked {
					in.Answer = r.answer
				}
				if in.Answer != stage.Continue {
					end(in)
				}
			case <-gone: // something that no context ends still blocks, such as a FIFO
				exit()
			case <-quit:
				asked.withdraw()
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
