//go:build linux

package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// LoginPath is the PATH in /etc/environment of Ubuntu.
const LoginPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games:/usr/local/games:/snap/bin"

// maxSessions is sshd's MaxSessions. As with sshd, a session counts until its channel is
// closed and its command has ended.
const maxSessions = 10

// acceptedEnv is AcceptEnv of Debian and Ubuntu.
var acceptedEnv = regexp.MustCompile(`^(LANG|LC_[A-Za-z_]*)$`)

// handle serves one connection until it ends. As with sshd, commands may outlive the
// connection.
func (m *machine) handle(c *FaultyConn) {
	if !c.Pause(m.Slowness("handshake").Duration) {
		return
	}
	_ = c.SetDeadline(time.Now().Add(loginGrace))
	conn, chans, reqs, err := ssh.NewServerConn(c, m.serverConfig())
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})

	l := &login{m: m, c: c, conn: conn, user: conn.User()}
	l.wg.Go(func() { l.globalRequests(reqs) })
	for nc := range chans {
		switch nc.ChannelType() {
		case "session":
			l.openSession(nc)
		case "direct-tcpip":
			l.openForward(nc)
		default:
			// With this text, sshd refuses every channel type that it does not open.
			_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		}
	}
	conn.Close()
	l.agent.close()
	l.wg.Wait()
}

// login is one authenticated connection.
type login struct {
	m     *machine
	c     *FaultyConn
	conn  ssh.Conn
	user  string
	agent forwardedAgent
	wg    sync.WaitGroup // goroutines that end with the connection

	mu     sync.Mutex
	open   int
	opened bool // a session has been opened
	noMore bool // the client has asked that no more sessions be opened
}

// globalRequests answers as sshd does. sshd refuses keepalive@openssh.com, which it does
// not know, and so shows that it is alive.
func (l *login) globalRequests(reqs <-chan *ssh.Request) {
	for r := range reqs {
		ok := r.Type == "no-more-sessions@openssh.com"
		if ok {
			l.mu.Lock()
			l.noMore = true
			l.mu.Unlock()
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
}

func (l *login) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// OpenSSH's client opens its session and then forbids further ones. The requests arrive
	// here on different channels, so the second may overtake the first.
	if l.noMore && l.opened || l.open >= maxSessions {
		return false
	}
	l.opened = true
	l.open++
	return true
}

func (l *login) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

func (l *login) openSession(nc ssh.NewChannel) {
	if !l.acquire() {
		_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		l.release()
		return
	}
	s := &session{login: l, ch: ch, closed: make(chan struct{})}
	l.wg.Go(func() { s.requests(reqs) })
}

// openForward serves a forwarded connection (ssh -L, -J through a worker).
func (l *login) openForward(nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	l.wg.Go(func() {
		d := net.Dialer{Timeout: 10 * time.Second}
		addr := net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))
		out, err := d.DialContext(l.m.Ctx, "tcp", addr)
		if err != nil {
			_ = nc.Reject(ssh.ConnectionFailed, reasonOf(err))
			return
		}
		defer out.Close()
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() {
			ssh.DiscardRequests(reqs) // until the channel is closed
			out.Close()
		})
		var copies sync.WaitGroup
		copies.Go(func() {
			_, _ = io.Copy(out, ch)
			_ = out.(*net.TCPConn).CloseWrite()
		})
		copies.Go(func() {
			_, _ = io.Copy(ch, out)
			_ = ch.CloseWrite()
		})
		copies.Wait()
		ch.Close()
	})
}

// reasonOf returns sshd's message about a forwarded connection that failed: the system's
// text for the error, such as "Connection refused".
func reasonOf(err error) string {
	text := "open failed"
	var errno syscall.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &errno):
		text = errno.Error()
	case errors.As(err, &dns):
		text = "name or service not known"
	case errors.Is(err, os.ErrDeadlineExceeded):
		text = syscall.ETIMEDOUT.Error()
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// session is one session channel and the command that it started.
type session struct {
	login *login
	ch    ssh.Channel
	env   []string // from env requests
	pty   *pty     // nil without a terminal

	proc   *process // nil before a command is started
	closed chan struct{}
}

// requests serves the requests of the channel until the client closes it or the connection
// ends. Then the command loses its pipes, and nothing else happens to it.
func (s *session) requests(reqs <-chan *ssh.Request) {
	for r := range reqs {
		started := s.proc != nil
		ok := s.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if !started && s.proc != nil {
			s.login.m.Wg.Go(s.run)
		}
	}
	close(s.closed)
	if s.proc != nil {
		s.proc.closePipes()
		return
	}
	if s.pty != nil {
		s.pty.close()
	}
	s.ch.Close()
	s.login.release()
}

func (s *session) request(r *ssh.Request) bool {
	switch r.Type {
	case "env":
		var v struct{ Name, Value string }
		if ssh.Unmarshal(r.Payload, &v) != nil || !acceptedEnv.MatchString(v.Name) {
			return false
		}
		s.env = append(s.env, v.Name+"="+v.Value)
		return true
	case "pty-req":
		if s.pty != nil || s.proc != nil {
			return false
		}
		p, err := newPTY(r.Payload)
		s.pty = p
		return err == nil
	case "auth-agent-req@openssh.com":
		return s.login.forwardAgent() == nil
	case "window-change":
		return s.pty != nil && s.pty.resize(r.Payload) == nil
	case "exec":
		line, ok := textOf(r)
		return ok && s.start(filepath.Base(s.login.m.shell()), "-c", line)
	case "shell":
		return s.start("-" + filepath.Base(s.login.m.shell()))
	case "subsystem":
		name, _ := textOf(r)
		server := sftpServer()
		return name == "sftp" && server != "" && s.start(filepath.Base(s.login.m.shell()), "-c", server)
	case "signal":
		name, _ := textOf(r)
		sig, ok := Signals[name]
		return ok && s.proc != nil && s.proc.signalGroup(sig) == nil
	}
	return false
}

// textOf returns the only string in a request.
func textOf(r *ssh.Request) (text string, ok bool) {
	var v struct{ Text string }
	if ssh.Unmarshal(r.Payload, &v) != nil {
		return "", false
	}
	return v.Text, true
}

// sftpServer returns the path of OpenSSH's sftp-server, or "" if it is at none of the usual
// places.
func sftpServer() string {
	for _, file := range []string{"/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server", "/usr/libexec/sftp-server"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

func (s *session) start(argv ...string) bool {
	if s.proc != nil || !s.login.c.Pause(s.login.m.Slowness("exec").Duration) {
		return false
	}
	env, home, err := s.login.environment()
	if err != nil {
		return false
	}
	env = append(notIn(s.env, env), env...)
	if s.pty != nil {
		env = append(env, "TERM="+s.pty.term, "SSH_TTY="+s.pty.name)
	}
	p, err := s.login.m.startProcess(s.login.m.shell(), argv, env, home, s.pty)
	if err != nil {
		return false
	}
	s.proc = p
	return true
}

// run copies bytes between the channel and the command, and reports how the command ended.
// As with sshd, the channel then stays open while a process holds the other ends of the
// pipes.
func (s *session) run() {
	p := s.proc
	var in, out sync.WaitGroup
	in.Go(func() {
		_, err := io.Copy(p.stdin, s.ch)
		if p.tty && err == nil {
			return // the end of input does not end a terminal
		}
		p.stdin.Close()
		_, _ = io.Copy(io.Discard, s.ch)
	})
	var left atomic.Int32
	left.Store(int32(len(p.output)))
	for i, f := range p.output {
		to := io.Writer(s.ch)
		if i > 0 {
			to = s.ch.Stderr()
		}
		out.Go(func() {
			_, _ = io.Copy(to, f)
			if !p.tty {
				f.Close() // so that the command notices that the client no longer reads
			}
			if left.Add(-1) == 0 {
				_ = s.ch.CloseWrite()
			}
		})
	}

	status := p.wait()
	if status.Signaled() {
		_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal string
			Core   bool
			Error  string
			Lang   string
		}{signalName(status.Signal()), status.CoreDump(), "", ""}))
	} else {
		_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(status.ExitStatus())}))
	}
	if !p.tty {
		p.stdin.Close()
	}
	out.Wait()
	s.ch.Close()
	<-s.closed
	in.Wait()
	p.closePipes()
	s.login.release()
}

// environment returns the environment of a login, and its home, which it creates.
func (l *login) environment() (env []string, home string, err error) {
	m := l.m
	env, home, err = m.Login(l.user)
	if err != nil {
		return nil, "", err
	}
	fromIP, fromPort := SplitAddr(l.c.RemoteAddr())
	env = append(env,
		fmt.Sprintf("SSH_CLIENT=%s %d %d", fromIP, fromPort, m.port),
		fmt.Sprintf("SSH_CONNECTION=%s %d %s %d", fromIP, fromPort, m.addr, m.port),
	)
	if path := l.agent.path(); path != "" {
		env = append(env, "SSH_AUTH_SOCK="+path)
	}
	if f, ok := m.fault(Clock); ok && !m.clockSet() {
		library, err := FakeClock()
		if err != nil {
			return nil, "", err
		}
		env = append(env, "LD_PRELOAD="+library, "FAKETIME="+f.ClockText(), "FAKETIME_DONT_FAKE_MONOTONIC=1",
			"MULTIHOST_KEEP="+markerName+" "+ClockVars)
	}
	return append(env, m.Spec.Env...), home, m.startupFile(home)
}

// notIn returns the last value of each variable of the client, without variables that the
// machine sets itself, such as LANG.
func notIn(client, own []string) (rest []string) {
	name := func(entry string) string { return entry[:strings.IndexByte(entry, '=')+1] }
	for i, e := range client {
		same := func(other string) bool { return name(other) == name(e) }
		if !slices.ContainsFunc(own, same) && !slices.ContainsFunc(client[i+1:], same) {
			rest = append(rest, e)
		}
	}
	return rest
}

// clockSet reports whether somebody on the machine has corrected the clock that the fault
// changed. See standin/systemctl.sh.
func (d disk) clockSet() bool {
	_, err := os.Stat(d.path("state/clock-set"))
	return err == nil
}

// Login implements Host.
func (m *machine) Login(user string) (env []string, home string, err error) {
	home = filepath.Join(m.root, "home", user)
	return environment(m, user, home), home, os.MkdirAll(home, 0o755)
}

// environment returns the initial environment of every process of the machine.
func environment(m *machine, user, home string) []string {
	path := LoginPath
	if _, err := os.Lstat(m.path("programs")); err == nil {
		path = m.path("programs")
	}
	env := []string{
		"HOME=" + home,
		"USER=" + user,
		"LOGNAME=" + user,
		"SHELL=" + m.shell(),
		"MAIL=/var/mail/" + user,
		"PATH=" + m.path("bin") + ":" + path,
		"LANG=C.UTF-8",
		"TMPDIR=" + m.path("tmp"),
		"MULTIHOST_ROOT_PROC=" + m.root,
		"MULTIHOST_ROOT_SYS=" + m.root,
		"MULTIHOST_ROOT_DEV=" + m.root,
		"MULTIHOST_ROOT_TMP=" + m.root,
		markerName + "=" + m.root,
		"MULTIHOST_KEEP=" + markerName,
	}
	if m.metaAddr != "" {
		env = append(env, "GCE_METADATA_HOST="+string(m.metaAddr))
	}
	return env
}

// shell returns the path of the login shell.
func (m *machine) shell() string {
	if f, ok := m.fault(Shell); ok {
		return f.Name
	}
	return "/bin/bash"
}

// startupMark marks the start-up files that the simulator has written.
const startupMark = "# fault of the simulator\n"

// startupFile writes the start-up file of the fault to a home, or removes it if there is no
// fault.
func (m *machine) startupFile(home string) error {
	file := filepath.Join(home, ".bashrc")
	old, err := os.ReadFile(file)
	if f, ok := m.fault(Startup); ok {
		_, text := f.Startup()
		if string(old) == startupMark+text {
			return nil // another login may read the file now
		}
		return os.WriteFile(file, []byte(startupMark+text), 0o644)
	}
	if err == nil && strings.HasPrefix(string(old), startupMark) {
		return os.Remove(file)
	}
	return nil
}
