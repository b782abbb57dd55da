package sshfan

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"multihost/internal/fault"
)

// NoAddressError reports a worker that lacks the wanted kind of address. Host.Addr may
// return it.
type NoAddressError struct {
	Worker string // "s0w3"
	Kind   string // "external" or "internal"
}

func (e *NoAddressError) Error() string {
	return fmt.Sprintf("%s has no %s address", e.Worker, e.Kind)
}

// Fault returns fault.Unavailable.
func (e *NoAddressError) Fault() fault.Kind { return fault.Unavailable }

// Cause returns the text of the error without the worker's name.
func (e *NoAddressError) Cause() string { return "it has no " + e.Kind + " address" }

// Permanent returns true: a worker does not get such an address by waiting.
func (e *NoAddressError) Permanent() bool { return true }

// Hint says what to type.
func (e *NoAddressError) Hint() string {
	if e.Kind == "external" {
		return "it was made with internal addresses only: use --ip=iap, --ssh-proxy-jump=USER@BASTION, or --ip=internal from inside the network"
	}
	return "the node is not ready yet: multihost slices list shows its state"
}

// UnreachableError reports that none of a worker's addresses could be reached.
type UnreachableError struct {
	Addrs  []string
	Causes []error // in the order of Addrs
}

func (e *UnreachableError) Error() string {
	var b strings.Builder
	b.WriteString("no address answers")
	for i, addr := range e.Addrs {
		fmt.Fprintf(&b, "; %s: %v", addr, e.Causes[i])
	}
	return b.String()
}

// Fault returns fault.Unavailable.
func (e *UnreachableError) Fault() fault.Kind { return fault.Unavailable }

func (e *UnreachableError) Unwrap() []error { return e.Causes }

// Hint returns the probable cause.
func (e *UnreachableError) Hint() string {
	for i, addr := range e.Addrs {
		var timeout interface{ Timeout() bool }
		if errors.As(e.Causes[i], &timeout) && timeout.Timeout() {
			return unansweredHint(addr, true)
		}
	}
	return "name the way with --ip=external, internal or iap, or --ssh-proxy-jump=USER@BASTION"
}

// A Dialer opens connections, as Config.Dial does.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// Reachable finds out which of several addresses (host:port) of one worker can be reached
// from here, and returns its index. Call it for one worker, and use the same kind of
// address for all.
//
// It tries all addresses at once, each for at most patience. An address counts if an SSH
// server answers there. An open port alone proves nothing, because another machine may have
// the same internal address in another network. Connect verifies the identity later. Of the
// addresses that answer within patience, the first in addrs wins. If none answers, the
// first one that refuses the connection wins: the machine can be reached and is booting.
// Otherwise the error is an *UnreachableError, or the cause of ctx.
//
// dial opens connections as Config.Dial does; nil means TCP. Reachable skips empty
// addresses.
func Reachable(ctx context.Context, dial Dialer, patience time.Duration, addrs ...string) (int, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, noAnswerError(patience))
	defer cancel()

	causes := make([]error, len(addrs))
	answers := make([]chan error, len(addrs))
	for i, addr := range addrs {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- greets(ctx, dial, addr) }()
	}
	found := -1
	for i := range addrs {
		// Wait for the answers in order. Once an address has answered, cancel ends the
		// other tries, and this loop only waits for their end.
		causes[i] = <-answers[i]
		if causes[i] == nil && found < 0 {
			found = i
			cancel()
		}
	}
	if found >= 0 {
		return found, nil
	}
	for i, err := range causes {
		if errors.Is(err, errRefused) {
			return i, nil
		}
	}
	if err := context.Cause(ctx); err != nil && err != error(noAnswerError(patience)) {
		return -1, err
	}
	return -1, &UnreachableError{Addrs: addrs, Causes: causes}
}

// greets returns nil if an SSH server answers at addr, otherwise the reason why not.
func greets(ctx context.Context, dial Dialer, addr string) error {
	if addr == "" {
		return errors.New("no such address")
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	// A server may send some lines before its version (RFC 4253 §4.2).
	lines := bufio.NewReader(io.LimitReader(conn, 8<<10))
	for {
		line, err := lines.ReadString('\n')
		switch {
		case strings.HasPrefix(line, "SSH-"):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("no SSH server: %w", plain(err))
		}
	}
}
