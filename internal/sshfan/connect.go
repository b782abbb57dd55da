package sshfan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
)

// The wait between two tries of one worker begins with firstWait and grows by a half each
// time, up to mostWait. Each wait varies at random by half in both directions, so that 2048
// workers that were refused together are not tried again together.
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

// connect opens a link. It tries again as long as that can help.
func (c *Conn) connect(ctx context.Context, trouble func(*remote.ConnectError)) (*link, error) {
	clock := c.fleet.cfg.Clock
	start := clock.Now()
	doubted := false      // the one further try after a doubtful key was made
	var refused time.Time // when the present series of refused keys began; zero: there is none
	for n := 1; ; n++ {
		l, failure := c.try(ctx)
		if failure == nil {
			if trouble == nil {
				c.fleet.tellTrust() // Open calls this once for all hosts
			}
			return l, nil
		}
		failure.Tries = n
		if trouble != nil {
			trouble(failure)
		}
		since, limit := start, c.fleet.cfg.RetryFor
		if errors.Is(failure, remote.ErrKeyRefused) {
			if refused.IsZero() {
				refused = clock.Now()
			}
			since, limit = refused, c.fleet.cfg.AuthRetryFor
		} else {
			refused = time.Time{}
		}
		wait := jittered(n)
		switch {
		case !doubted && c.doubtful(failure) && ctx.Err() == nil:
			doubted = true
			continue
		case ctx.Err() != nil || permanent(failure):
			return nil, failure
		case clock.Now().Add(wait).Sub(since) > limit:
			return nil, c.givenUp(failure, clock.Now().Sub(since))
		}
		select {
		case <-clock.After(wait):
		case <-ctx.Done():
			return nil, interrupted(failure, context.Cause(ctx))
		case <-c.fleet.ctx.Done():
			return nil, interrupted(failure, remote.ErrClosed)
		}
	}
}

// doubtful reports whether the worker's host key was refused because of a remembered answer
// of Host.Keys. A new answer may be different.
func (c *Conn) doubtful(failure *remote.ConnectError) bool {
	var keyErr *remote.HostKeyError
	return c.host.Doubt != nil && errors.As(failure, &keyErr) && c.host.Doubt()
}

// givenUp returns the error for a worker that was tried until the limit. Only now is it
// clear that the worker really refuses the key: a booting VM refuses it, too.
func (c *Conn) givenUp(failure *remote.ConnectError, after time.Duration) *remote.ConnectError {
	if !errors.Is(failure, remote.ErrKeyRefused) {
		return failure
	}
	told := *failure
	told.Err = fmt.Errorf("%w for %s: the VM is up and does not take it", remote.ErrKeyRefused, max(after.Round(time.Second), time.Second))
	if reason := (*keyRefusal)(nil); errors.As(failure, &reason) {
		told.Err = reason
	}
	told.Advice = refusedKeyHint(failure.Err, c.host.User, c.fleet.cfg.Identity.Fingerprint(), c.host.Cloud, c.fleet.letIn.Load() > 0)
	return &told
}

// interrupted returns the error for a connect that was stopped between two tries. It
// includes the error of the last try, because nothing else is known about the worker.
func interrupted(e *remote.ConnectError, cause error) *remote.ConnectError {
	told := *e
	told.Err = fmt.Errorf("%w (before: %w)", cause, e.Err)
	return &told
}

// try makes one attempt to connect. It looks up the host keys and the address, dials, does
// the handshake and logs in. The last three steps share one deadline and hold one of
// MaxDials tokens.
func (c *Conn) try(ctx context.Context) (*link, *remote.ConnectError) {
	if err := c.check(); err != nil {
		return nil, err
	}
	trust, err := c.trust(ctx)
	if err != nil {
		return nil, c.explain(ctx, remote.StageHostKey, "", err)
	}
	addr, err := c.host.Addr(ctx)
	if err != nil {
		return nil, c.explain(ctx, remote.StageDial, "", err)
	}
	addr, via, err := c.fleet.route(addr)
	if err != nil {
		return nil, c.explain(ctx, remote.StageJump, addr, err)
	}
	leave, err := c.fleet.enter(ctx, via)
	if err != nil {
		return nil, c.explain(ctx, remote.StageDial, addr, err)
	}
	defer leave()

	limit := c.fleet.cfg.ConnectTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, noAnswerError(limit))
	defer cancel()
	closing := context.AfterFunc(c.fleet.ctx, cancel)
	defer closing()

	raw, err := c.fleet.dial(ctx, via, addr)
	var jump *JumpError
	switch {
	case errors.As(err, &jump):
		return nil, c.explain(ctx, remote.StageJump, addr, err)
	case err != nil:
		return nil, c.explain(ctx, remote.StageDial, addr, err)
	}
	if c.host.Slice != "" {
		c.fleet.reached.Store(c.host.Slice, true)
	}
	return c.login(ctx, raw, addr, trust)
}

// known returns what a hint may use besides the error.
func (c *Conn) known() known {
	_, reached := c.fleet.reached.Load(c.host.Slice)
	return known{cloud: c.host.Cloud, reached: reached}
}

// enter waits until another handshake may begin, here and at the bastion via. The caller
// calls leave after the handshake.
func (f *Fleet) enter(ctx context.Context, via *hop) (leave func(), err error) {
	turns := []chan struct{}{f.dials}
	if via != nil {
		// Wait for the bastion first, because it allows fewer handshakes at once.
		turns = []chan struct{}{via.turns, f.dials}
	}
	for i, turn := range turns {
		select {
		case turn <- struct{}{}:
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-f.ctx.Done():
			err = remote.ErrClosed
		}
		for _, taken := range turns[:i] {
			<-taken
		}
		return nil, err
	}
	return func() {
		for _, taken := range turns {
			<-taken
		}
	}, nil
}

// dial opens the connection under SSH.
func (f *Fleet) dial(ctx context.Context, via *hop, addr string) (net.Conn, error) {
	if via != nil {
		return via.dial(ctx, addr)
	}
	return f.cfg.Dial(ctx, "tcp", addr)
}

// check returns a permanent error if the host's address, login name or pin cannot be used.
func (c *Conn) check() *remote.ConnectError {
	switch {
	case c.host.Addr == nil:
		return c.fail(remote.StageDial, "", permanentError{errors.New("no address known")})
	case c.host.User == "":
		return c.fail(remote.StageAuth, "", permanentError{errors.New("no login name")})
	case c.host.User == "root":
		e := c.fail(remote.StageAuth, "", permanentError{errors.New("logging in as root is refused")})
		e.Advice = "use --user=NAME with a login that has sudo; TPU VMs do not let root in"
		return e
	case !validPin(c.host.Pin):
		return c.fail(remote.StageHostKey, "", permanentError{fmt.Errorf("%q is no identity to pin a host key to", c.host.Pin)})
	}
	return nil
}

// login runs the SSH handshake and authentication over raw, and takes over raw.
func (c *Conn) login(ctx context.Context, raw net.Conn, addr string, trust *trust) (*link, *remote.ConnectError) {
	l, stage, err := c.fleet.login(ctx, raw, addr, c.host.User, c.fleet.cfg.Identity.Signers(), trust)
	if err != nil {
		return nil, c.explain(ctx, stage, addr, err)
	}
	c.fleet.letIn.Add(1)
	c.remember(trust)
	return l, nil
}

// login runs the SSH handshake and authentication over raw, and takes over raw. With an
// error, it also returns the stage that failed. It closes raw when ctx ends, because
// ssh.ClientConfig.Timeout limits only the TCP connect.
func (f *Fleet) login(ctx context.Context, raw net.Conn, addr, user string, keys []ssh.Signer, trust *trust) (*link, remote.Stage, error) {
	sock := &socket{Conn: raw}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	seen := &loginWatch{}
	config := &ssh.ClientConfig{
		Config:            ssh.Config{KeyExchanges: keyExchanges(), Ciphers: ciphers()},
		User:              user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) { return seen.watch(keys), nil })},
		ClientVersion:     "SSH-2.0-multihost",
		HostKeyAlgorithms: trust.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			return trust.verify(key)
		},
		BannerCallback: seen.banner,
	}
	conn, chans, reqs, err := ssh.NewClientConn(sock, addr, config)
	inTime := stop()
	if err != nil {
		_ = raw.Close()
		stage, err := seen.explain(trust, err)
		if said := sock.greeting(); stage == remote.StageHandshake && said != "" {
			err = &greetingError{said, err}
		}
		return nil, stage, err
	}
	l := &link{fleet: f, conn: conn, sock: sock, gone: make(chan struct{})}
	l.heard.Store(f.cfg.Clock.Now().UnixNano())
	if !inTime {
		err = context.Cause(ctx)
	} else {
		err = f.adopt(l, chans, reqs)
	}
	if err != nil {
		_ = conn.Close()
		return nil, remote.StageHandshake, err
	}
	return l, "", nil
}

// A loginWatch records what distinguishes the reasons for a refused login.
type loginWatch struct {
	asked  atomic.Bool // the server accepts keys for this login
	signed atomic.Bool // the server wants our signature, so the key is known to it

	mu   sync.Mutex
	said string // banners of the server, up to mostSaid bytes
}

// mostSaid is how many bytes of a server's banners are kept.
const mostSaid = 4 << 10

func (w *loginWatch) banner(text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.said)+len(text) <= mostSaid {
		w.said += text
	}
	return nil
}

func (w *loginWatch) watch(keys []ssh.Signer) []ssh.Signer {
	w.asked.Store(true)
	watched := make([]ssh.Signer, len(keys))
	for i, k := range keys {
		watched[i] = k
		if k, ok := k.(ssh.AlgorithmSigner); ok {
			watched[i] = watchedSigner{k, &w.signed}
		}
	}
	return watched
}

type watchedSigner struct {
	ssh.AlgorithmSigner
	signed *atomic.Bool
}

func (s watchedSigner) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	s.signed.Store(true)
	return s.AlgorithmSigner.SignWithAlgorithm(rand, data, algorithm)
}

// explain returns the stage at which the handshake or the login failed, and the reason.
func (w *loginWatch) explain(trust *trust, err error) (remote.Stage, error) {
	verified, mismatch := trust.outcome()
	w.mu.Lock()
	said := strings.Join(strings.Fields(w.said), " ")
	w.mu.Unlock()
	switch {
	case mismatch != nil:
		return remote.StageHostKey, mismatch
	case verified == nil:
		return remote.StageHandshake, err
	case strings.Contains(said, "pam_nologin") || strings.Contains(said, "System is booting up"):
		// While a VM is still booting, its sshd accepts the key, sends this text and hangs
		// up.
		return remote.StageAuth, fmt.Errorf("%w: %q", remote.ErrBooting, said)
	case cutOff(err):
		return remote.StageHandshake, err
	case w.signed.Load() && strings.HasSuffix(err.Error(), "attempted methods [none], no supported methods remain"):
		// The server accepts the key but wants something else, too.
		return remote.StageAuth, fmt.Errorf("%w (%w)", ErrLoginRefused, errMoreThanKey)
	case w.signed.Load():
		return remote.StageAuth, fmt.Errorf("%w (%s)", ErrLoginRefused, bareLogin(err))
	case strings.Contains(err.Error(), "Too many authentication failures"):
		return remote.StageAuth, &keyRefusal{tooManyKeys}
	case !w.asked.Load():
		return remote.StageAuth, &keyRefusal{noKeys}
	default:
		return remote.StageAuth, fmt.Errorf("%w (%s); a VM that boots refuses every key until its agent has fetched them", remote.ErrKeyRefused, bareLogin(err))
	}
}

func bareLogin(err error) string {
	return strings.TrimPrefix(err.Error(), "ssh: handshake failed: ssh: ")
}

// cutOff reports whether the connection broke during the login. x/crypto/ssh has no type of
// error that distinguishes this from a refused login.
func cutOff(err error) bool {
	var netErr *net.OpError
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &netErr) || errors.As(err, &errno)
}

// keyExchanges puts plain curve25519 before the hybrid with ML-KEM, which costs 0.12-0.3 ms
// of CPU more for each worker.
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

// ciphers puts AES-GCM first: it reaches 2.5 GB/s, ChaCha20-Poly1305 only 2.0.
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

// permanentError marks a failure that would come again at another try.
type permanentError struct{ error }

func (e permanentError) Unwrap() error   { return e.error }
func (e permanentError) Permanent() bool { return true }

// noAnswerError is the cause of a try that took too long.
type noAnswerError time.Duration

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(e)) }
func (e noAnswerError) Timeout() bool { return true }

// permanent reports whether another try is useless. Errors of Host.Addr and Host.Keys may
// have a method Permanent() bool that says this.
func permanent(e *remote.ConnectError) bool {
	var p interface{ Permanent() bool }
	var keyErr *remote.HostKeyError
	var negotiation *ssh.AlgorithmNegotiationError
	var dns *net.DNSError
	var addr *net.AddrError
	err := e.Err
	switch {
	case errors.As(err, &p) && p.Permanent():
		return true
	case errors.As(err, &keyErr), errors.As(err, &negotiation), errors.As(err, &addr):
		return true
	case errors.As(err, &dns):
		return dns.IsNotFound
	}
	return errors.Is(err, remote.ErrClosed) || slices.ContainsFunc(ownFailures(), func(target error) bool { return errors.Is(err, target) })
}

// explain returns the error for a failed step, with the probable cause as a hint. If we ended
// the step ourselves, the error is our reason: ErrClosed, or the cause of ctx.
func (c *Conn) explain(ctx context.Context, stage remote.Stage, addr string, err error) *remote.ConnectError {
	var keyErr *remote.HostKeyError
	var jump *JumpError
	name, isName := unresolved(err, context.Cause(ctx))
	switch {
	case errors.As(err, &keyErr):
	case c.fleet.ctx.Err() != nil:
		err = remote.ErrClosed
	case errors.As(err, &jump): // the error names the bastion that took too long
	case stage == remote.StageDial && isName:
		err = name
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	e := c.fail(stage, addr, plain(err))
	e.Advice = hintOf(e, c.known())
	return e
}

// A reworded error has a more useful text than the error that it wraps.
type reworded struct {
	error
	text string
}

func (e reworded) Error() string { return e.text }
func (e reworded) Unwrap() error { return e.error }

// plain rewords errors that say little, and those that repeat both addresses and the
// operation.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		inner := op.Err
		if call, ok := inner.(*os.SyscallError); ok {
			inner = call.Err
		}
		text := strings.Replace(err.Error(), op.Error(), inner.Error(), 1)
		return reworded{err, strings.TrimPrefix(text, "ssh: handshake failed: ")}
	}
	var negotiation *ssh.AlgorithmNegotiationError
	var said *greetingError
	switch {
	case errors.As(err, &said):
		return err
	case errors.As(err, &negotiation):
		offered := slices.DeleteFunc(slices.Clone(negotiation.RequestedAlgorithms), func(name string) bool {
			return strings.HasPrefix(name, "kex-strict-") || strings.HasPrefix(name, "ext-info-") // a flag, not an algorithm
		})
		return reworded{err, fmt.Sprintf("no common algorithm for %s; it offers only %s", negotiation.What, strings.Join(offered, ", "))}
	case errors.Is(err, io.EOF):
		return fmt.Errorf("closed by the other side: %w", err)
	default:
		return err
	}
}
