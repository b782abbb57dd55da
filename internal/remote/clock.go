package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// kitScript prints the hashes of the scripts that the worker keeps. clockScript answers
// every line of its input with the worker's time. The marks distinguish an answer from the
// output of a ~/.bashrc. bash prints the times itself, because the start of a process would
// add half of its duration to the error of the measurement. On a busy worker, that is tens of
// milliseconds.
const (
	kitScript   = `cd ~/.multihost/kit 2>/dev/null && echo multihost-kit: $(exec sha256sum -- * 2>/dev/null); `
	clockScript = `while read -r _; do echo "multihost-clock:${EPOCHREALTIME/[.,]/}000"; done`
	clockMark   = "multihost-clock:"
	kitMark     = "multihost-kit:"
	clockRounds = 3
)

// MeasureClock measures how far the worker's clock is ahead of ours. It returns the result
// and keeps it for ClockOffset. It takes one session and three round trips, and uses the
// fastest round trip. The result is wrong by at most half of that trip.
//
// It also proves that the login can run commands. If the login shell or one of its start-up
// files ends, prints too much, or runs nothing within ShellConfig.Timeout, the error is a
// *ConnectError of StageShell. A login that has answered before is known to run commands:
// if it is silent that long, the error is ErrConnectionLost.
func (s *Shell) MeasureClock(ctx context.Context) (time.Duration, error) {
	limit, silent := s.cfg.Timeout, errSilentShell
	m := &measurement{shell: s}
	s.mu.Lock()
	if m.first = !s.greeted; s.greeted {
		silent = fmt.Errorf("%w: no answer within %s", ErrConnectionLost, limit)
	}
	s.mu.Unlock()
	limited, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	offset, err := m.run(limited)
	if err != nil {
		if told := m.explain(err); told != nil {
			return 0, told
		}
		return 0, fmt.Errorf("measure clock of %s: %w", s.cfg.Name, err)
	}
	s.mu.Lock()
	s.offset, s.greeted = offset, true
	s.mu.Unlock()
	return offset, nil
}

var (
	errSilentShell = errors.New("the login shell ran no command in time")
	errEndedShell  = errors.New("the login shell ended before it ran a command")
	errLoudShell   = fmt.Errorf("the login's start-up files write more than %d KiB", mostGreeting>>10)
)

// mostGreeting limits the standard output of one session of clockScript, in bytes. The
// answers are short, so only start-up files can exceed it.
const mostGreeting = 64 << 10

// measurement is one session of clockScript.
type measurement struct {
	shell  *Shell
	first  bool      // no measurement of this Shell has succeeded so far
	errs   lastWords // last line of the standard error
	out    lastWords // last line of the standard output that was no answer
	status Status    // set when the session has ended by itself
	began  bool      // an answer has come
}

func (m *measurement) run(ctx context.Context) (offset time.Duration, err error) {
	answers, out := io.Pipe()
	script := clockScript
	if m.first {
		script = kitScript + script
	}
	session, err := m.shell.Start(ctx, Cmd{Line: Bash(script), Stdout: out, Stderr: &m.errs, ReadOnly: true})
	if err != nil {
		return 0, err
	}
	// End the reading below when the session ends.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		status, err := session.Wait()
		if err == nil {
			m.status = status
			err = errEndedShell
		}
		out.CloseWithError(err)
	}()
	defer func() {
		_ = session.Close()
		answers.Close() // this ends a blocked write, so that Wait returns
		<-ended
	}()

	limited := &io.LimitedReader{R: answers, N: mostGreeting}
	defer func() {
		if err != nil && limited.N <= 0 {
			err = errLoudShell
		}
	}()
	lines := bufio.NewReader(limited)
	clock := m.shell.cfg.Clock
	var best time.Duration
	for round := range clockRounds {
		sent := clock.Now()
		if _, err := io.WriteString(session.Stdin(), "\n"); err != nil {
			// If the session has ended, read returns the reason.
			if _, told := m.read(lines); told != nil {
				err = told
			}
			return 0, err
		}
		remote, err := m.read(lines)
		if err != nil {
			return 0, err
		}
		trip := clock.Now().Sub(sent)
		if round == 0 || trip < best {
			best = trip
			offset = remote.Sub(sent.Add(trip / 2).Round(0))
		}
	}
	return offset, nil
}

// explain returns the error for a login shell that has run no command, or nil if something
// else has failed.
func (m *measurement) explain(err error) *ConnectError {
	said := m.errs.String()
	if said == "" {
		said = m.out.String()
	}
	if said != "" {
		said = fmt.Sprintf("; it said %q", said)
	}
	var text, hint string
	user := m.shell.cfg.User
	look := fmt.Sprintf("; to look, as another login there (--user=NAME): sudo tail ~%[1]s/.bashrc /etc/bash.bashrc ~%[1]s/.ssh/rc", user)
	switch {
	case m.began:
		return nil
	case errors.Is(err, errSilentShell):
		text = fmt.Sprintf("the login shell ran no command within %s%s", m.shell.cfg.Timeout, said)
		hint = "a start-up file of the login waits for something, or a disk hangs" + look
	case errors.Is(err, errLoudShell):
		text = err.Error() + said
		hint = "they may write for people only: [[ $- == *i* ]] || return, as their first line" + look
	case errors.Is(err, errEndedShell) || errors.Is(err, ErrNoStatus):
		how := fmt.Sprintf("exit status %d", m.status.Code)
		if m.status.Signal != "" {
			how = "SIG" + m.status.Signal
		}
		text = fmt.Sprintf("the login shell ended before it ran a command (%s)%s", how, said)
		hint = "a start-up file of the login exits, or its login shell is no shell" + look
		if m.status.Code == 1 && (said == "" || strings.Contains(said, "not available")) {
			hint = fmt.Sprintf("its login shell is no shell, such as nologin or false, or sshd runs another command (ForceCommand); as another login there (--user=NAME): getent passwd %[1]s; sudo chsh -s /bin/bash %[1]s", user)
		}
	default:
		return nil
	}
	e := m.shell.fail(StageShell, errors.New(text))
	e.Advice = hint
	return e
}

// lastWords is a writer that keeps the last line that is not blank.
type lastWords struct {
	mu   sync.Mutex
	line []byte // the line being written
	last string
}

// mostWords limits the bytes of the line that lastWords keeps.
const mostWords = 200

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range p {
		switch {
		case c == '\n':
			w.end()
		case len(w.line) < mostWords:
			w.line = append(w.line, c)
		}
	}
	return len(p), nil
}

func (w *lastWords) end() {
	if text := strings.TrimSpace(strings.ToValidUTF8(string(w.line), "\uFFFD")); text != "" {
		w.last = text
	}
	w.line = w.line[:0]
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
	return w.last
}

var errNoClock = errors.New("worker's answer has no time")

// read reads lines up to the next answer of clockScript and returns its time. It also
// records the answer of kitScript.
func (m *measurement) read(r *bufio.Reader) (time.Time, error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			_, _ = m.out.Write([]byte(line)) // never fails
			return time.Time{}, fmt.Errorf("%w: %w", errNoClock, err)
		}
		if _, sums, found := strings.Cut(line, kitMark); found {
			m.shell.kit.found(sums)
			continue
		}
		_, digits, found := strings.Cut(strings.TrimSpace(line), clockMark)
		if !found {
			_, _ = m.out.Write([]byte(line))
			continue
		}
		m.began = true
		nanos, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: %.100q", errNoClock, line)
		}
		return time.Unix(0, nanos), nil
	}
}
