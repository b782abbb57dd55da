package sshfan

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/remote"
	"multihost/internal/sshkey"
)

// A JumpHost is a bastion.
type JumpHost struct {
	Addr string // host:port, resolved by the machine that dials it
	User string

	// IdentityFiles are private keys that are tried before those of the Fleet. Missing
	// files are skipped.
	IdentityFiles []string

	// If KnownHosts is not nil, it replaces Config.UserKnownHosts.
	KnownHosts []string

	// KnownAs is the name of the bastion in KnownHosts. "" means Addr.
	KnownAs string
}

// JumpError reports why a bastion cannot be used. Every worker behind it fails for the
// same reason.
type JumpError struct {
	Addr  string // address of the bastion
	User  string
	Stage remote.Stage
	Err   error

	hint  string
	final bool
}

func (e *JumpError) Error() string {
	switch e.Stage {
	case remote.StageAuth:
		return fmt.Sprintf("log in to bastion %s as %q: %v", e.Addr, e.User, e.Err)
	case remote.StageHostKey:
		if keyErr := (*remote.HostKeyError)(nil); errors.As(e.Err, &keyErr) {
			return keyErr.Error() // this error names the bastion
		}
		return fmt.Sprintf("verify host key of bastion %s: %v", e.Addr, e.Err)
	case remote.StageHandshake:
		return fmt.Sprintf("ssh handshake with bastion %s: %v", e.Addr, e.Err)
	}
	return fmt.Sprintf("connect to bastion %s: %v", e.Addr, e.Err)
}

func (e *JumpError) Unwrap() error { return e.Err }

// Fault returns fault.Permission if the bastion refuses our login or has another host key,
// otherwise fault.Unavailable.
func (e *JumpError) Fault() fault.Kind { return e.Stage.Fault(e.Err) }

// Hint returns the probable cause, or "".
func (e *JumpError) Hint() string { return e.hint }

// Permanent reports whether another try of the bastion would also fail.
func (e *JumpError) Permanent() bool { return e.final }

// ForwardError reports that a bastion was reached but could not connect to a worker.
type ForwardError struct {
	Bastion    string
	Said       string // the text of its sshd, such as "Connection refused"
	Prohibited bool   // the bastion forwards no connections, or none to that address

	addr string // address of the worker
}

// unanswered reports whether the worker did not answer the bastion.
func (e *ForwardError) unanswered() bool {
	said := strings.ToLower(e.Said)
	return !e.Prohibited && (strings.Contains(said, "timed out") || strings.Contains(said, "no route to host"))
}

func (e *ForwardError) Error() string {
	if e.Prohibited {
		return fmt.Sprintf("bastion %s refuses to forward: %s", e.Bastion, e.Said)
	}
	return fmt.Sprintf("bastion %s cannot reach it: %s", e.Bastion, e.Said)
}

// Fault returns fault.Unavailable.
func (e *ForwardError) Fault() fault.Kind { return fault.Unavailable }

// Permanent reports whether another try would also be refused.
func (e *ForwardError) Permanent() bool { return e.Prohibited }

// Hint returns the probable cause.
func (e *ForwardError) Hint() string {
	said := strings.ToLower(e.Said)
	switch {
	case e.Prohibited:
		return "its sshd needs AllowTcpForwarding yes, and PermitOpen must not exclude the workers"
	case strings.Contains(said, "refused"):
		return "nothing listens there: the VM is still booting, or this is not its SSH port"
	case strings.Contains(said, "not known") || strings.Contains(said, "resol"):
		return "the bastion does not know the name of the worker; its internal address needs none"
	case e.unanswered():
		_, port, err := net.SplitHostPort(e.addr)
		if err != nil {
			port = "22"
		}
		return "the machine is off, is in a network that the bastion does not reach, or no firewall rule lets tcp:" + port + " in from the bastion"
	}
	return "" // this is the bastion's own problem, and Said has its text
}

// jumpTurns limits how many handshakes are in progress through one bastion. sshd begins to
// drop connections when ten of them have not logged in yet (MaxStartups 10:30:100).
const jumpTurns = 8

// A hop is a bastion and the connection to it. All workers behind the bastion share this
// connection. It is opened when it is first used, and again after it has ended.
type hop struct {
	fleet  *Fleet
	to     JumpHost
	before *hop // the bastion before it; nil: this machine dials it directly
	turns  chan struct{}

	mu      sync.Mutex
	link    *link
	dialing *hopDial
	fails   int       // number of failed attempts in a row
	rest    time.Time // no attempt before this time
	broken  error     // permanent failure; no further attempt follows
}

// A hopDial is an attempt to connect. Several callers may wait for it.
type hopDial struct {
	done chan struct{}
	link *link
	err  error
}

// chain returns the last of the hops for jumps, or nil if there are none. Workers behind
// the same bastions share their connections.
func (f *Fleet) chain(jumps []JumpHost) *hop {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last *hop
	way := ""
	for _, j := range jumps {
		way += j.User + "@" + j.Addr + " "
		h := f.hops[way]
		if h == nil {
			h = &hop{fleet: f, to: j, before: last, turns: make(chan struct{}, jumpTurns)}
			f.hops[way] = h
		}
		last = h
	}
	return last
}

// route returns the address to dial for a worker's address, and the last bastion on the
// way, or nil.
func (f *Fleet) route(addr string) (string, *hop, error) {
	jumps := f.cfg.Jump
	if f.cfg.SSHConfig != nil {
		var configured []JumpHost
		var err error
		if addr, configured, err = f.cfg.SSHConfig.reach(addr); err != nil {
			return addr, nil, permanentError{err}
		}
		if len(jumps) == 0 {
			jumps = configured
		}
	}
	return addr, f.chain(jumps), nil
}

// dial opens a connection from the bastion to addr. If the bastion itself fails, the error
// is a *JumpError.
func (h *hop) dial(ctx context.Context, addr string) (net.Conn, error) {
	l, err := h.live(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := h.open(ctx, l, addr)
	var refused *ssh.OpenChannelError
	switch {
	case err == nil:
		return h.fleet.tunnel(ch)
	case errors.As(err, &refused):
		return nil, &ForwardError{
			Bastion:    h.to.Addr,
			Said:       plainText(refused.Message),
			addr:       addr,
			Prohibited: refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType,
		}
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		l.end(err)
		return nil, &JumpError{Addr: h.to.Addr, User: h.to.User, Stage: remote.StageDial, Err: fmt.Errorf("%w: %w", remote.ErrConnectionLost, err)}
	}
}

// plainText turns the text of another machine into one printable line.
func plainText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	const most = 200
	return strings.TrimSpace(s[:min(len(s), most)])
}

// open asks the bastion for a connection. A bastion may need minutes to find out that
// nobody answers at addr, and cannot be stopped meanwhile. So open returns when ctx ends,
// and closes a connection that comes later.
func (h *hop) open(ctx context.Context, l *link, addr string) (ssh.Channel, error) {
	host, portText, err := net.SplitHostPort(addr)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil {
		return nil, permanentError{fmt.Errorf("%q is no host:port", addr)}
	}
	request := ssh.Marshal(struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}{host, uint32(port), "127.0.0.1", 0})
	type result struct {
		ch  ssh.Channel
		err error
	}
	opened := make(chan result, 1)
	ask := func() {
		ch, reqs, err := l.conn.OpenChannel("direct-tcpip", request)
		if err == nil {
			h.fleet.spawn(func() { ssh.DiscardRequests(reqs) })
		}
		if err == nil && ctx.Err() != nil {
			_ = ch.Close()
		}
		opened <- result{ch, err}
	}
	if !h.fleet.spawn(ask) {
		return nil, remote.ErrClosed
	}
	select {
	case r := <-opened:
		return r.ch, r.err
	case <-ctx.Done():
		h.fleet.spawn(func() {
			if r := <-opened; r.err == nil {
				_ = r.ch.Close()
			}
		})
		return nil, context.Cause(ctx)
	}
}

// tunnel makes a net.Conn from a channel. A channel alone ends only when the bastion
// agrees. Close of the net.Conn must not wait for a bastion that has stopped answering.
func (f *Fleet) tunnel(ch ssh.Channel) (net.Conn, error) {
	near, far := net.Pipe()
	in := f.spawn(func() {
		_, _ = io.Copy(far, ch)
		_ = far.Close()
	})
	out := f.spawn(func() {
		_, _ = io.Copy(ch, far)
		_ = ch.Close()
	})
	if !in || !out {
		_ = near.Close()
		_ = ch.Close()
		return nil, remote.ErrClosed
	}
	return near, nil
}

// live returns the connection to the bastion, and opens one if there is none.
func (h *hop) live(ctx context.Context) (*link, error) {
	h.mu.Lock()
	switch {
	case h.broken != nil:
		defer h.mu.Unlock()
		return nil, h.broken
	case h.link != nil && !h.link.ended():
		defer h.mu.Unlock()
		return h.link, nil
	}
	d := h.dialing
	if d == nil {
		d = &hopDial{done: make(chan struct{})}
		// The attempt belongs to no caller. If one worker is given up, the attempt must
		// continue for the others.
		if !h.fleet.spawn(func() { h.lead(d) }) {
			h.mu.Unlock()
			return nil, remote.ErrClosed
		}
		h.dialing = d
	}
	h.mu.Unlock()
	select {
	case <-d.done:
		return d.link, d.err
	case <-ctx.Done():
		return nil, h.fail(ctx, remote.StageDial, context.Cause(ctx))
	}
}

// lead makes the attempt d. A failing bastion is tried at the pace of one client, however
// many workers wait. More tries would look like an attack.
func (h *hop) lead(d *hopDial) {
	clock := h.fleet.cfg.Clock
	h.mu.Lock()
	pause := h.rest.Sub(clock.Now())
	h.mu.Unlock()
	if pause > 0 {
		select {
		case <-clock.After(pause):
		case <-h.fleet.ctx.Done():
		}
	}
	l, err := h.connect()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dialing = nil
	if err == nil {
		h.link, h.fails = l, 0
	} else {
		h.fails++
		h.rest = clock.Now().Add(jittered(h.fails))
		if err.final {
			h.broken = err
		}
		d.err = err
	}
	d.link = l
	close(d.done)
}

// connect makes one attempt to log in to the bastion.
func (h *hop) connect() (*link, *JumpError) {
	// Do this before the timeout starts, because somebody may have to type a passphrase.
	keys, skipped := h.fleet.keyring.Offer(h.to.IdentityFiles, h.fleet.cfg.Identity.Signers())

	limit := h.fleet.cfg.ConnectTimeout
	ctx, cancel := context.WithTimeoutCause(h.fleet.ctx, limit, noAnswerError(limit))
	defer cancel()

	trust, err := h.trust()
	if err != nil {
		return nil, h.fail(ctx, remote.StageHostKey, err)
	}
	raw, err := h.fleet.dial(ctx, h.before, h.to.Addr)
	var before *JumpError
	switch {
	case errors.As(err, &before):
		return nil, before
	case err != nil:
		return nil, h.fail(ctx, remote.StageDial, err)
	}
	l, stage, err := h.fleet.login(ctx, raw, h.to.Addr, h.to.User, keys, trust)
	if err != nil {
		e := h.fail(ctx, stage, err)
		if stage == remote.StageAuth && e.final {
			e.refused(keys, skipped)
		}
		return nil, e
	}
	h.remember(trust)
	return l, nil
}

// fail returns the error for a failed attempt.
func (h *hop) fail(ctx context.Context, stage remote.Stage, err error) *JumpError {
	var keyErr *remote.HostKeyError
	var timeout interface{ Timeout() bool }
	var hinted interface{ Hint() string }
	unknown, isName := unresolved(err, context.Cause(ctx))
	e := &JumpError{Addr: h.to.Addr, User: h.to.User, Stage: stage}
	switch {
	case errors.As(err, &keyErr):
		e.hint, e.final = keyErr.Hint(), true
	case stage == remote.StageDial && isName:
		err = unknown
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	e.Err = plain(err)
	var name *remote.NameError
	switch {
	case errors.As(err, &name):
		e.hint = name.Hint()
	case errors.Is(err, errMoreThanKey):
		e.Err, e.final = errMoreThanKey, true
	case errors.Is(err, remote.ErrKeyRefused), errors.Is(err, ErrLoginRefused):
		// A bastion is already up, so it will also refuse the key later. The error is not
		// ErrKeyRefused, which is about the keys of workers.
		e.Err = errors.New("it accepts none of our keys")
		e.final = true
	case stage == remote.StageHostKey:
		e.final = true
	case stage == remote.StageDial && errors.As(err, &timeout) && timeout.Timeout():
		e.hint = "the bastion does not answer: it is off, the address is another one's, or no firewall rule lets this machine in"
	case errors.As(err, &hinted):
		e.hint = hinted.Hint()
	case stage == remote.StageHandshake && errors.As(err, &timeout) && timeout.Timeout():
		e.hint = "the bastion accepts connections and then says nothing"
	case stage == remote.StageHandshake:
		e.hint = atBastion(handshakeHint(err))
	}
	e.final = e.final || stays(err)
	return e
}

// stays reports whether another try would fail in the same way.
func stays(err error) bool {
	var other interface{ Permanent() bool }
	var dns *net.DNSError
	return errors.As(err, &other) && other.Permanent() || errors.As(err, &dns) && dns.IsNotFound
}

// atBastion turns a hint about a worker's sshd into one about a bastion's sshd.
func atBastion(hint string) string { return strings.Replace(hint, "the worker", "the bastion", 1) }

// refused adds to the error the keys that the bastion has refused, and the key file that
// could not be tried.
func (e *JumpError) refused(keys []ssh.Signer, skipped error) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = sshkey.Fingerprint(k.PublicKey())
	}
	e.Err = fmt.Errorf("%w: %s", e.Err, strings.Join(names, ", "))
	e.hint = "name the login with --ssh-proxy-jump=USER@HOST, and its key as IdentityFile in the file of --ssh-config; if both are right, " + atBastion(seeLog)
	if skipped != nil {
		e.hint = fmt.Sprintf("a key was left out: %v; %s", skipped, e.hint)
	}
}

// trust returns which host keys the bastion may show. These are the keys in the user's own
// known_hosts, or else the pinned key. If there is neither, the bastion may show any key.
func (h *hop) trust() (*trust, error) {
	f := h.fleet
	pin := "jump/" + h.to.Addr
	if !validPin(pin) || h.to.User == "" {
		return nil, permanentError{fmt.Errorf("%q as %q is no bastion", h.to.Addr, h.to.User)}
	}
	t := &trust{host: Host{Name: "bastion " + h.to.Addr, Pin: pin}, accept: f.accept(pin, pin)}
	files := h.to.KnownHosts
	if files == nil {
		files = f.cfg.UserKnownHosts
	}
	name := h.to.KnownAs
	if name == "" {
		name = h.to.Addr
	} else if _, _, err := net.SplitHostPort(name); err != nil {
		name = net.JoinHostPort(name, "22")
	}
	listed, revoked, err := lookUpKnownHosts(files, name)
	if err != nil {
		return nil, err
	}
	t.revoked = revoked
	if len(listed) > 0 {
		for _, k := range listed {
			t.listed = append(t.listed, k.Key)
		}
		t.listedIn = listed[0].Filename
		t.accept = "ssh-keygen -R " + remote.Quote(knownhosts.Normalize(name)) + " -f " + remote.Quote(t.listedIn)
		return t, nil
	}
	t.pinned, t.pinnedIn = f.pins.get(pin), f.pins.name()
	return t, nil
}

// remember pins the key of an unknown bastion, and warns about the bastion.
func (h *hop) remember(t *trust) {
	if !t.firstUse() {
		return
	}
	key, _ := t.outcome()
	h.fleet.pins.put(t.host.Pin, key, false)
	event.Notef(h.fleet.cfg.Sink, event.Warn, "",
		"trusted the host key of bastion %s on first use (%s): no known_hosts file has it", h.to.Addr, sshkey.Fingerprint(key))
}

// lookUpKnownHosts returns the host keys that ssh's own files have for a machine, without
// those of certificate authorities. revoked returns an error for a revoked key.
func lookUpKnownHosts(files []string, name string) (keys []knownhosts.KnownKey, revoked func(ssh.PublicKey) error, err error) {
	files = slices.DeleteFunc(slices.Clone(files), func(path string) bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	})
	if len(files) == 0 {
		return nil, nil, nil
	}
	check, err := knownhosts.New(files...)
	if err != nil {
		return nil, nil, permanentError{fmt.Errorf("read known hosts: %w", err)}
	}
	// The package names the known keys only in its error about a wrong key.
	wrong, err := ssh.NewPublicKey(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		return nil, nil, err
	}
	var keyErr *knownhosts.KeyError
	if err := check(name, &net.TCPAddr{}, wrong); !errors.As(err, &keyErr) {
		return nil, nil, permanentError{fmt.Errorf("look up %q in known hosts: %w", name, err)}
	}
	revoked = func(key ssh.PublicKey) error {
		var e *knownhosts.RevokedError
		if err := check(name, &net.TCPAddr{}, key); errors.As(err, &e) {
			return fmt.Errorf("host key %s is revoked in %s, line %d", sshkey.Fingerprint(key), e.Revoked.Filename, e.Revoked.Line)
		}
		return nil
	}
	return slices.DeleteFunc(keyErr.Want, isAuthority), revoked, nil
}

// isAuthority reports whether a line of a known_hosts file names an authority that signs
// host keys.
func isAuthority(k knownhosts.KnownKey) bool {
	data, err := os.ReadFile(k.Filename)
	if err != nil {
		return false
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		if n++; n == k.Line {
			return strings.HasPrefix(strings.TrimSpace(line), "@cert-authority")
		}
	}
	return false
}
