package sshfan

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// clockScript answers every line of its input with the worker's time. The mark
// tells an answer from what a ~/.bashrc prints.
const (
	clockScript = `while read -r _; do date +multihost-clock:%s%N; done`
	clockMark   = "multihost-clock:"
	clockRounds = 3
)

// MeasureClock measures the worker's clock against ours, keeps the result for
// ClockOffset and returns it. It takes one session and three round trips, of
// which the fastest counts; the error is at most half of that round trip.
func (c *Conn) MeasureClock(ctx context.Context) (time.Duration, error) {
	offset, err := c.measureClock(ctx)
	if err != nil {
		return 0, fmt.Errorf("measure clock of %s: %w", c.host.Name, err)
	}
	c.mu.Lock()
	c.offset = offset
	c.mu.Unlock()
	return offset, nil
}

func (c *Conn) measureClock(ctx context.Context) (time.Duration, error) {
	answers, out := io.Pipe()
	s, err := c.Start(ctx, Cmd{Line: Script("sh", clockScript), Stdout: out})
	if err != nil {
		return 0, err
	}
	// The end of the session must end the reading below.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := s.Wait()
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		out.CloseWithError(err)
	}()
	defer func() {
		_ = s.Close()
		answers.Close() // unblocks a write, for which Wait waits
		<-ended
	}()

	lines := bufio.NewReader(io.LimitReader(answers, 64<<10))
	clock := c.fleet.cfg.Clock
	var offset, best time.Duration
	for round := range clockRounds {
		sent := clock.Now()
		if _, err := io.WriteString(s.Stdin, "\n"); err != nil {
			return 0, err
		}
		remote, err := readClock(lines)
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

var errNoClock = errors.New("worker's answer has no time")

// readClock reads lines up to the next answer of clockScript.
func readClock(r *bufio.Reader) (time.Time, error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: %w", errNoClock, err)
		}
		_, digits, found := strings.Cut(strings.TrimSpace(line), clockMark)
		if !found {
			continue
		}
		nanos, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: %.100q", errNoClock, line)
		}
		return time.Unix(0, nanos), nil
	}
}
