// Package notify sends messages to another program or a web server when a run starts, starts
// again, fails or ends.
//
// A receiver may hang, fail or be unreachable. An active run never waits for it and never fails
// because of it. The package only reports messages that it could not deliver.
//
//	n := notify.New(notify.Options{Program: []string{"notify-send", "TPU"}, Sink: view})
//	sink := event.Tee(view, n)
//	…
//	n.Close(ctx, code, why)
package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/shlex"

	"multihost/internal/event"
)

// Version is the version of the Message format.
const Version = 1

// The events of a run.
const (
	Start   = "start"   // the command has started on all workers
	Restart = "restart" // the command has started again, as a later attempt
	Failure = "failure" // an attempt, or a step before it, failed
	End     = "end"     // this multihost command ends
)

// A Message is what the receiver gets.
type Message struct {
	Version  int       `json:"version"`
	Event    string    `json:"event"`
	Time     time.Time `json:"time"`
	Run      string    `json:"run"`
	Attempt  int       `json:"attempt,omitempty"` // 0: no attempt has begun
	Project  string    `json:"project,omitempty"`
	Zone     string    `json:"zone,omitempty"`
	Slices   []string  `json:"slices,omitempty"`
	Workers  int       `json:"workers,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"` // for the events failure and end
	Text     string    `json:"text,omitempty"`
	LogDir   string    `json:"log_dir,omitempty"`
}

// Options say who receives messages and what else each message contains.
type Options struct {
	Program            []string // program and arguments; it runs once per message, which it reads from standard input
	URL                *url.URL // where to post each message
	Run, Project, Zone string
	Secrets            []string   // texts to mask in all messages
	Sink               event.Sink // gets a note for each undelivered message
	Clock              Clock
}

// A Clock measures pauses and limits.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

const (
	programLimit = 30 * time.Second // limit of one call of the program
	postLimit    = 10 * time.Second // limit of one request
	postTries    = 4
	postPause    = time.Second // doubled after each try
	lastLimit    = time.Minute // limit of Close
)

// ParseProgram splits a command line into words as a shell does. No shell runs it, so no
// other character is special.
func ParseProgram(text string) ([]string, error) {
	argv, err := shlex.Split(text)
	if err != nil {
		return nil, fmt.Errorf("split %q: %w", text, err)
	}
	if len(argv) == 0 {
		return nil, errors.New("it names no program")
	}
	if _, err := exec.LookPath(argv[0]); err != nil {
		return nil, fmt.Errorf("find program %q: %w", argv[0], errors.Unwrap(err))
	}
	return argv, nil
}

// ParseURL accepts https to any server. It accepts http only to this machine, because an
// unencrypted message must not leave this machine.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("it is no URL") // the parser's error would show the URL, which may be secret
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case u.Host == "":
		return nil, errors.New("it names no server")
	case u.Scheme == "https", u.Scheme == "http" && local:
		return u, nil
	}
	return nil, fmt.Errorf("scheme %q: want https, or http on this machine", u.Scheme)
}

// A Notifier is an event.Sink that sends messages about the events that it gets. A nil
// Notifier sends none. It is safe for concurrent use.
type Notifier struct {
	o      Options
	secret *strings.Replacer
	client *http.Client
	wake   chan struct{}
	done   chan struct{} // closed when the Notifier has stopped delivering
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	queue   []Message
	closed  bool
	attempt event.Attempt
	first   int  // the first attempt whose start was seen
	failed  bool // a message about the failure of the last attempt was sent
}

// New starts a Notifier, or returns nil if o names no receiver. The caller closes it.
func New(o Options) *Notifier {
	if len(o.Program) == 0 && o.URL == nil {
		return nil
	}
	var pairs []string
	for _, s := range o.Secrets {
		if s != "" {
			pairs = append(pairs, s, "***")
		}
	}
	n := &Notifier{
		o: o, secret: strings.NewReplacer(pairs...), wake: make(chan struct{}, 1), done: make(chan struct{}),
		// Follow no redirects: one may lead to an address that ParseURL refuses.
		client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: http.DefaultTransport.(*http.Transport).Clone()},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	go n.deliver()
	return n
}

// Emit implements event.Sink. It never waits.
func (n *Notifier) Emit(e event.Event) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e := e.(type) {
	case event.Attempt:
		n.attempt = e
	case event.Release:
		what := Restart
		if n.first == 0 || n.first == e.Attempt {
			n.first, what = e.Attempt, Start
		}
		n.failed = false
		n.put(Message{Event: what, Attempt: e.Attempt, Text: n.attempt.Command})
	case event.AttemptEnd:
		if !e.OK && e.Again { // the summary reports the last attempt
			n.put(Message{Event: Failure, Attempt: e.Attempt, ExitCode: &e.Code, Text: e.Reason() + "; " + e.Next})
		}
	case event.Summary:
		if !e.OK && !bySignal(e.ExitCode) {
			n.failed = true
			n.put(Message{Event: Failure, Attempt: e.Attempt, ExitCode: &e.ExitCode, Text: e.Text})
		}
	}
}

// bySignal reports whether code is the exit status after a signal of the user.
func bySignal(code int) bool {
	return code == 128+int(syscall.SIGHUP) || code == 128+int(syscall.SIGINT) || code == 128+int(syscall.SIGTERM)
}

// Close sends the message that the run has ended. code is the exit status of this program. why
// is the reason, or "". It waits until all messages are delivered, at most a minute and no
// longer than ctx.
func (n *Notifier) Close(ctx context.Context, code int, why string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	if code != 0 && !bySignal(code) && !n.failed {
		n.put(Message{Event: Failure, Attempt: n.attempt.Attempt, ExitCode: &code, Text: why})
	}
	n.put(Message{Event: End, Attempt: n.attempt.Attempt, ExitCode: &code, Text: why})
	n.closed = true
	n.mu.Unlock()
	n.kick()
	select {
	case <-n.done:
	case <-n.o.Clock.After(lastLimit):
	case <-ctx.Done():
	}
	n.cancel()
	<-n.done
	n.client.CloseIdleConnections()
}

// put queues a message. The caller holds n.mu.
func (n *Notifier) put(m Message) {
	if n.closed {
		return
	}
	m.Version, m.Time = Version, n.o.Clock.Now().UTC()
	m.Run, m.Project, m.Zone = n.o.Run, n.o.Project, n.o.Zone
	m.Slices, m.Workers, m.LogDir = n.attempt.Slices, n.attempt.Workers, n.attempt.LogDir
	m.Text = n.secret.Replace(m.Text)
	n.queue = append(n.queue, m)
	n.kick()
}

func (n *Notifier) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// deliver delivers the queued messages in order. It returns when the Notifier is closed and the
// queue is empty.
func (n *Notifier) deliver() {
	defer close(n.done)
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			closed := n.closed
			n.mu.Unlock()
			if closed {
				return
			}
			<-n.wake
			continue
		}
		m := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		n.tell(m)
	}
}

// tell delivers one message to the program and to the server, each with its own time limit.
func (n *Notifier) tell(m Message) {
	body, err := json.Marshal(m)
	if err != nil {
		return // cannot happen: JSON can represent all fields of a Message
	}
	var both sync.WaitGroup
	if len(n.o.Program) > 0 {
		both.Go(func() { n.report(m, n.o.Program[0], n.run(append(body, '\n'))) })
	}
	if n.o.URL != nil {
		both.Go(func() { n.report(m, n.o.URL.Host, n.post(body)) })
	}
	both.Wait()
}

// report reports an undelivered message. Of a URL it names only the server, because the
// path often has a secret.
func (n *Notifier) report(m Message, whom string, err error) {
	if err != nil {
		event.Notef(n.o.Sink, event.Warn, "", "the run is not affected, but %q did not get the message about its %s: %v", whom, m.Event, err)
	}
}

// run calls the program with a message, in a process group of its own, so that Ctrl-C does
// not reach it. If the program takes too long, the whole group is killed. Processes that it
// leaves in the background run on.
func (n *Notifier) run(input []byte) error {
	ctx, cancel := n.limit(programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.o.Program[0], n.o.Program[1:]...)
	var said tail
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &said, &said
	cmd.WaitDelay = time.Second // a child may keep the output open
	err := runApart(cmd)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrWaitDelay): // the program ended with status 0, and a child still runs
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case said.last() != "":
		return fmt.Errorf("%w: %s", err, n.secret.Replace(said.last()))
	}
	return err
}

var errSlow = errors.New("it took too long")

// limit returns a context for one delivery, which ends after the time d of the Clock.
func (n *Notifier) limit(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(n.ctx)
	late, ended := n.o.Clock.After(d), make(chan struct{})
	go func() { // ends with ctx, which the returned function cancels
		defer close(ended)
		select {
		case <-late:
			cancel(errSlow)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// post sends a message to the server. It retries errors that may be temporary.
func (n *Notifier) post(body []byte) error {
	pause := postPause
	for try := 1; ; try++ {
		again, err := n.postOnce(body)
		if err == nil || !again || try == postTries {
			return err
		}
		select {
		case <-n.o.Clock.After(pause):
			pause *= 2
		case <-n.ctx.Done():
			return err
		}
	}
}

func (n *Notifier) postOnce(body []byte) (again bool, err error) {
	ctx, cancel := n.limit(postLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.o.URL.String(), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "multihost")
	resp, err := n.client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return true, cause
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // this error does not contain the URL
		}
		return true, err
	}
	resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	return resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests, fmt.Errorf("it answered %s", resp.Status)
}

// A tail keeps the end of a program's output.
type tail struct{ data []byte }

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - tailSize; extra > 0 {
		t.data = append(t.data[:0], t.data[extra:]...)
	}
	return len(p), nil
}

// last returns the last line with a text.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.data)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
