package sshfan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// Waits between two tries of one worker grow from firstWait by a half each
// time up to mostWait, and vary by half to both sides, so that 2048 workers
// turned away together do not come back together.
const (
	firstWait = 250 * time.Millisecond
	mostWait  = 5 * time.Second
)

func jittered(try int) time.Duration {
	d := firstWait
	for range try - 1 {
		d = min(d+d/2, mostWait)
	}
	return d/2 + rand.N(d)
}

// connect opens a link, trying again while that can help.
func (c *Conn) connect(ctx context.Context, trouble func(*ConnectError)) (*link, error) {
	clock := c.fleet.cfg.Clock
	start := clock.Now()
	for n := 1; ; n++ {
		l, failure := c.try(ctx)
		if failure == nil {
			if trouble == nil {
				c.fleet.tellTrust() // Connect does it once for all hosts
			}
			return l, nil
		}
		failure.Tries = n
		if trouble != nil {
			trouble(failure)
		}
		limit := c.fleet.cfg.RetryFor
		if failure.Stage == StageAuth {
			limit = c.fleet.cfg.AuthRetryFor
		}
		wait := jittered(n)
		if ctx.Err() != nil || permanent(failure) || clock.Now().Add(wait).Sub(start) > limit {
			return nil, failure
		}
		select {
		case <-clock.After(wait):
		case <-ctx.Done():
			return nil, failure.interrupted(context.Cause(ctx))
		case <-c.fleet.ctx.Done():
			return nil, failure.interrupted(ErrClosed)
		}
	}
}

// interrupted is the error of a connect that was given up between two tries:
// what the last one met is the only thing known about the worker.
func (e *ConnectError) interrupted(cause error) *ConnectError {
	told := *e
	told.Err = fmt.Errorf("%w (before: %w)", cause, e.Err)
	return &told
}

// try makes one connection: who is it, where is it, then dial, handshake and
// login under one deadline while holding one of MaxDials tokens.
func (c *Conn) try(ctx context.Context) (*link, *ConnectError) {
	if err := c.check(); err != nil {
		return nil, err
	}
	trust, err := c.trust(ctx)
	if err != nil {
		return nil, c.explain(ctx, StageHostKey, "", err)
	}
	addr, err := c.host.Addr(ctx)
	if err != nil {
		return nil, c.explain(ctx, StageDial, "", err)
	}
	select {
	case c.fleet.dials <- struct{}{}:
		defer func() { <-c.fleet.dials }()
	case <-ctx.Done():
		return nil, c.explain(ctx, StageDial, addr, context.Cause(ctx))
	case <-c.fleet.ctx.Done():
		return nil, c.explain(ctx, StageDial, addr, ErrClosed)
	}

	limit := c.fleet.cfg.ConnectTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, noAnswerError(limit))
	defer cancel()
	closing := context.AfterFunc(c.fleet.ctx, cancel)
	defer closing()

	raw, err := c.fleet.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, c.explain(ctx, StageDial, addr, err)
	}
	return c.login(ctx, raw, addr, trust)
}

// check refuses what no try can mend.
func (c *Conn) check() *ConnectError {
	switch {
	case c.host.Addr == nil:
		return c.fail(StageDial, "", permanentError{errors.New("no address known")})
	case c.host.User == "":
		return c.fail(StageAuth, "", permanentError{errors.New("no login name")})
	case c.host.User == "root":
		e := c.fail(StageAuth, "", permanentError{errors.New("logging in as root is refused")})
		e.hint = "use --user=NAME with a login that has sudo; TPU VMs do not let root in"
		return e
	case !validPin(c.host.Pin):
		return c.fail(StageHostKey, "", permanentError{fmt.Errorf("%q is no identity to pin a host key to", c.host.Pin)})
	}
	return nil
}

// login runs the SSH handshake and authentication over raw, which it owns. The
// end of ctx closes raw: ssh.ClientConfig.Timeout covers the TCP connect only.
func (c *Conn) login(ctx context.Context, raw net.Conn, addr string, trust *trust) (*link, *ConnectError) {
	sock := &socket{Conn: raw}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })

	config := &ssh.ClientConfig{
		Config:            ssh.Config{KeyExchanges: keyExchanges(), Ciphers: ciphers()},
		User:              c.host.User,
		Auth:              []ssh.AuthMethod{c.fleet.cfg.Identity.auth()},
		ClientVersion:     "SSH-2.0-multihost",
		HostKeyAlgorithms: trust.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			return trust.verify(key)
		},
	}
	conn, chans, reqs, err := ssh.NewClientConn(sock, addr, config)
	inTime := stop()
	if err != nil {
		return nil, c.explainLogin(ctx, addr, trust, err)
	}
	l := &link{fleet: c.fleet, conn: conn, sock: sock, gone: make(chan struct{})}
	if !inTime {
		err = context.Cause(ctx)
	} else {
		err = c.fleet.adopt(l, chans, reqs)
	}
	if err != nil {
		_ = conn.Close()
		return nil, c.explain(ctx, StageHandshake, addr, err)
	}
	c.remember(trust)
	return l, nil
}

// explainLogin finds the stage at which the handshake or the login failed.
func (c *Conn) explainLogin(ctx context.Context, addr string, trust *trust, err error) *ConnectError {
	verified, mismatch := trust.outcome()
	switch {
	case mismatch != nil:
		if trust.remembered {
			c.forgetTrust()
		}
		return c.explain(ctx, StageHostKey, addr, mismatch)
	case verified == nil || cutOff(err):
		return c.explain(ctx, StageHandshake, addr, err)
	default:
		said := strings.TrimPrefix(err.Error(), "ssh: handshake failed: ssh: ")
		return c.explain(ctx, StageAuth, addr, fmt.Errorf("%w (%s)", ErrKeyRefused, said))
	}
}

// cutOff tells a connection that broke during the login from a login that was
// refused, for which x/crypto/ssh has no typed error.
func cutOff(err error) bool {
	var netErr *net.OpError
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &netErr) || errors.As(err, &errno)
}

// keyExchanges puts plain curve25519 before the hybrid with ML-KEM, which
// costs 0.12-0.3 ms of CPU more per worker.
func keyExchanges() []string {
	return []string{
		ssh.KeyExchangeCurve25519,
		ssh.KeyExchangeMLKEM768X25519,
		ssh.KeyExchangeECDHP256,
		ssh.KeyExchangeECDHP384,
		ssh.KeyExchangeECDHP521,
		ssh.KeyExchangeDH14SHA256,
		ssh.KeyExchangeDH16SHA512,
	}
}

// ciphers puts AES-GCM first: 2.5 GB/s against 2.0 with ChaCha20-Poly1305.
func ciphers() []string {
	return []string{
		ssh.CipherAES128GCM,
		ssh.CipherAES256GCM,
		ssh.CipherChaCha20Poly1305,
		ssh.CipherAES128CTR,
		ssh.CipherAES192CTR,
		ssh.CipherAES256CTR,
	}
}

// permanentError marks a failure that trying again cannot mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error   { return e.error }
func (e permanentError) Permanent() bool { return true }

// noAnswerError is the cause of a try that took too long.
type noAnswerError time.Duration

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(e)) }
func (e noAnswerError) Timeout() bool { return true }

// permanent reports whether there is no use in trying again. Errors of
// Host.Addr and Host.Keys say so with a method Permanent() bool.
func permanent(e *ConnectError) bool {
	var p interface{ Permanent() bool }
	var keyErr *HostKeyError
	var negotiation *ssh.AlgorithmNegotiationError
	var dns *net.DNSError
	var addr *net.AddrError
	err := e.Err
	switch {
	case errors.As(err, &p) && p.Permanent():
		return true
	case errors.As(err, &keyErr):
		// The API may know the keys of a machine that was made anew since.
		return !keyErr.again
	case errors.As(err, &negotiation), errors.As(err, &addr):
		return true
	case errors.As(err, &dns):
		return dns.IsNotFound
	}
	return slices.ContainsFunc([]error{
		ErrClosed, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT,
	}, func(target error) bool { return errors.Is(err, target) })
}

// explain makes the error of a failed step, preferring why we stopped to what
// the step said about being stopped, and adds the likely cause as a hint.
func (c *Conn) explain(ctx context.Context, stage Stage, addr string, err error) *ConnectError {
	var keyErr *HostKeyError
	switch {
	case errors.As(err, &keyErr):
	case c.fleet.ctx.Err() != nil:
		err = ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	e := c.fail(stage, addr, plain(err))
	e.hint = c.hint(e)
	return e
}

// plain replaces errors whose text says little.
func plain(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("closed by the other side: %w", err)
	default:
		return err
	}
}

func (c *Conn) hint(e *ConnectError) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(e.Err, syscall.EMFILE):
		return "too many open files: raise the limit with `ulimit -n`"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "nothing listens there: the VM is still booting, or this is not its SSH port"
	case e.Stage == StageDial && errors.As(e.Err, &timeout) && timeout.Timeout():
		return "no firewall rule lets tcp:22 in from this machine, or this address is not reachable from here"
	case e.Stage == StageHandshake && errors.As(e.Err, &timeout) && timeout.Timeout():
		return "it accepts connections and then says nothing: the VM hangs, is short of memory, or it is no SSH server"
	case e.Stage == StageHandshake:
		return "sshd closed the connection during the handshake: it is starting, or it is overloaded (MaxStartups); fewer at once: --max-dials=8"
	case e.Stage == StageAuth:
		return fmt.Sprintf("the VM runs, and refuses login %q with the key %s: see --user and --identity-file, and whether this key is in the ssh-keys metadata of the node or the project",
			e.User, c.fleet.cfg.Identity.Fingerprint())
	}
	return ""
}
