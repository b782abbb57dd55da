package sshfan_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/event"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

// A server is an SSH server that runs real commands with /bin/sh. Its fields set its
// faults. Set them before the server is used, or while holding mu.
type server struct {
	t        testing.TB
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	hostKeys []ssh.Signer
	conns    map[*serverConn]struct{}
	accept   func(user string, key ssh.PublicKey) bool
	sessions int // most sessions per connection; 0: no limit
	closed   bool

	handshakes  atomic.Int32 // number of connections that are not logged in
	mostAtOnce  atomic.Int32 // the peak of handshakes
	logins      atomic.Int32
	holdLogins  chan struct{} // if not nil, logins wait until this channel is closed
	execs       atomic.Int32
	silent      bool // accepts TCP and then says nothing
	nologin     bool // nobody may log in yet, even with the right key, as with pam_nologin
	startups    int  // closes new connections while more than this many are not logged in; 0: no limit
	forwards    atomic.Int32
	mayForward  func(addr string) (reason ssh.RejectionReason, message string) // decides where to forward; nil: everywhere
	hangUpFirst atomic.Int32
}

// serverConn is a connection that can be frozen.
type serverConn struct {
	net.Conn
	frozen chan struct{} // once this is closed, nothing may be read or written
	gone   chan struct{}
	once   sync.Once
	freeze sync.Once
}

func (c *serverConn) wait() {
	select {
	case <-c.frozen:
		<-c.gone
	default:
	}
}

func (c *serverConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

func (c *serverConn) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

func (c *serverConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

func newServer(t testing.TB, configure ...func(*server)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		t:        t,
		listener: l,
		hostKeys: []ssh.Signer{newSigner(t)},
		conns:    make(map[*serverConn]struct{}),
		accept:   func(string, ssh.PublicKey) bool { return true },
	}
	for _, c := range configure {
		c(s)
	}
	s.wg.Go(s.listen)
	t.Cleanup(s.stop)
	return s
}

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func (s *server) addr() string { return s.listener.Addr().String() }

// keyLines returns the host keys as the API would return them.
func (s *server) keyLines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, k := range s.hostKeys {
		lines = append(lines, k.PublicKey().Type()+" "+base64.StdEncoding.EncodeToString(k.PublicKey().Marshal()))
	}
	return lines
}

func (s *server) setHostKeys(keys ...ssh.Signer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hostKeys = keys
}

// each calls f with every open connection.
func (s *server) each(f func(*serverConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// open returns the number of open connections.
func (s *server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *server) cut() { s.each(func(c *serverConn) { c.Close() }) }
func (s *server) freeze() {
	s.each(func(c *serverConn) { c.freeze.Do(func() { close(c.frozen) }) })
}

func (s *server) stop() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.listener.Close()
	s.cut()
	s.wg.Wait()
}

func (s *server) listen() {
	for {
		raw, err := s.listener.Accept()
		if err != nil {
			return
		}
		if s.hangUpFirst.Add(-1) >= 0 {
			raw.Close()
			continue
		}
		c := &serverConn{Conn: raw, frozen: make(chan struct{}), gone: make(chan struct{})}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			raw.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			s.serve(c)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *server) serve(c *serverConn) {
	if s.silent {
		<-c.gone
		return
	}
	now := s.handshakes.Add(1)
	for {
		most := s.mostAtOnce.Load()
		if now <= most || s.mostAtOnce.CompareAndSwap(most, now) {
			break
		}
	}
	config := &ssh.ServerConfig{
		MaxAuthTries: 6,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			s.mu.Lock()
			accept := s.accept
			s.mu.Unlock()
			if !accept(meta.User(), key) {
				return nil, errors.New("key not known")
			}
			return nil, nil
		},
	}
	s.mu.Lock()
	for _, k := range s.hostKeys {
		config.AddHostKey(k)
	}
	s.mu.Unlock()
	if s.holdLogins != nil {
		select {
		case <-s.holdLogins:
		case <-c.gone:
		}
	}
	if s.startups > 0 && int(now) > s.startups {
		s.handshakes.Add(-1)
		return
	}
	if s.nologin {
		config.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return nil, &ssh.BannerError{
				Message: "System is booting up. Unprivileged users are not permitted to log in yet. See pam_nologin(8).\n",
				Err:     errors.New("not yet"),
			}
		}
	}
	// The client knows that it is logged in before this side does.
	in := false
	config.AuthLogCallback = func(_ ssh.ConnMetadata, _ string, err error) {
		if err == nil {
			in = true
			s.handshakes.Add(-1)
		}
	}
	conn, chans, reqs, err := ssh.NewServerConn(c, config)
	if !in {
		s.handshakes.Add(-1)
	}
	if err != nil {
		return
	}
	s.logins.Add(1)
	s.wg.Go(func() { ssh.DiscardRequests(reqs) })
	open := new(atomic.Int32)
	for newChannel := range chans {
		if newChannel.ChannelType() == "direct-tcpip" {
			s.wg.Go(func() { s.forward(newChannel) })
			continue
		}
		if limit := s.sessions; limit > 0 && int(open.Load()) >= limit {
			newChannel.Reject(ssh.ConnectionFailed, "open failed")
			continue
		}
		ch, requests, err := newChannel.Accept()
		if err != nil {
			break
		}
		open.Add(1)
		s.wg.Go(func() {
			s.session(conn, ch, requests)
			open.Add(-1)
		})
	}
	conn.Wait()
}

// forward forwards a connection, as a bastion does.
func (s *server) forward(nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	addr := net.JoinHostPort(to.Host, fmt.Sprint(to.Port))
	if s.mayForward != nil {
		if reason, message := s.mayForward(addr); reason != 0 {
			nc.Reject(reason, message)
			return
		}
	}
	out, err := net.Dial("tcp", addr)
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	defer out.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	s.forwards.Add(1)
	s.wg.Go(func() { ssh.DiscardRequests(reqs); out.Close() })
	s.wg.Go(func() { io.Copy(out, ch); out.(*net.TCPConn).CloseWrite() })
	io.Copy(ch, out)
	ch.Close()
}

func (s *server) session(conn *ssh.ServerConn, ch ssh.Channel, requests <-chan *ssh.Request) {
	for req := range requests {
		if req.Type != "exec" {
			req.Reply(false, nil)
			continue
		}
		var msg struct{ Line string }
		if err := ssh.Unmarshal(req.Payload, &msg); err != nil {
			req.Reply(false, nil)
			continue
		}
		s.execs.Add(1)
		req.Reply(msg.Line != "refuse", nil)
		s.wg.Go(func() { ssh.DiscardRequests(requests) })
		s.run(conn, ch, msg.Line)
		return
	}
}

// run runs one command. For some lines it only pretends to.
func (s *server) run(conn *ssh.ServerConn, ch ssh.Channel, line string) {
	defer ch.Close()
	switch line {
	case "true":
		sendStatus(ch, 0)
		return
	case "refuse":
		return
	case "no-status":
		return
	case "cut":
		s.cut()
		return
	case "status-then-cut":
		sendStatus(ch, 0)
		s.cut()
		return
	case "sleep":
		io.Copy(io.Discard, ch.Stderr())
		conn.Wait()
		return
	case "wait-for-close":
		io.Copy(io.Discard, ch)
		io.WriteString(ch, "late")
		sendStatus(ch, 0)
		return
	case "signal-unknown":
		ch.SendRequest("exit-signal", false, ssh.Marshal(signalMsg{Signal: "SYS@openssh.com"}))
		return
	}
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(ch.Stderr(), err)
		sendStatus(ch, 127)
		return
	}
	s.wg.Go(func() {
		io.Copy(stdin, ch)
		stdin.Close()
	})
	ended := make(chan struct{})
	s.wg.Go(func() {
		lost := make(chan struct{})
		s.wg.Go(func() { conn.Wait(); close(lost) })
		select {
		case <-lost:
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		case <-ended:
		}
	})
	err = cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	switch {
	case err == nil:
		sendStatus(ch, 0)
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		name := map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM"}[exit.Sys().(syscall.WaitStatus).Signal()]
		ch.SendRequest("exit-signal", false, ssh.Marshal(signalMsg{Signal: name}))
	case errors.As(err, &exit):
		sendStatus(ch, exit.ExitCode())
	default:
		fmt.Fprintln(ch.Stderr(), err)
		sendStatus(ch, 126)
	}
}

type signalMsg struct {
	Signal  string
	Core    bool
	Message string
	Lang    string
}

func sendStatus(ch ssh.Channel, code int) {
	ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

// host returns a worker that is this server.
func (s *server) host(name string) sshfan.Host {
	return hostAt(name, s.addr())
}

// newIdentity makes a new key for a test.
func newIdentity(t testing.TB) *sshkey.Identity {
	t.Helper()
	id, err := sshkey.Create(filepath.Join(t.TempDir(), "ssh", "key"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// patience limits every wait for something that must happen. It is long, because many tests
// share the machine.
const patience = 2 * time.Minute

// newFleet makes a Fleet and closes it after the test.
func newFleet(t testing.TB, configure ...func(*sshfan.Config)) *sshfan.Fleet {
	t.Helper()
	config := sshfan.Config{
		ConnectTimeout: patience,
		RetryFor:       patience,
	}
	for _, c := range configure {
		c(&config)
	}
	if config.Identity == nil {
		config.Identity = newIdentity(t)
	}
	f, err := sshfan.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// notes collects events.
type notes struct{ testkit.Recorder }

// texts returns the texts of the notes that contain part.
func (n *notes) texts(part string) (found []string) {
	for _, note := range n.Notes() {
		if strings.Contains(note.Text, part) {
			found = append(found, note.Text)
		}
	}
	return found
}

func (n *notes) progress() (found []event.Progress) {
	for _, e := range n.Events() {
		if p, ok := e.(event.Progress); ok {
			found = append(found, p)
		}
	}
	return found
}
