package sshfan_test

import (
	"bufio"
	"bytes"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

// An openSSH is the real sshd, with one process for each connection (sshd -i) and its own
// host key and authorized_keys. It changes nothing on the machine. As root, it runs in a
// mount namespace that has the users root and tester. Otherwise it accepts the current
// user, and HOME is a private directory.
type openSSH struct {
	t        testing.TB
	dir      string
	user     string
	listener net.Listener
	argv     []string
	wg       sync.WaitGroup

	mu      sync.Mutex
	running map[*exec.Cmd]bool
}

const (
	testerUID = 61234
	loginPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games:/usr/local/games:/snap/bin"
	sshdInit  = `set -e
umask 022
mount --bind "$1" /etc/passwd
[ -d /run/sshd ] || { mount -t tmpfs none /run; mkdir /run/sshd; }
shift
exec "$@"`
)

func startOpenSSH(t testing.TB) *openSSH {
	t.Helper()
	sshd := testkit.Need(t, "sshd")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// Other users cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", "multihost-sshd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &openSSH{t: t, dir: dir, user: me.Username, running: make(map[*exec.Cmd]bool)}
	s.write("sshd_config", fmt.Sprintf(`HostKey %[1]s/host_key
AuthorizedKeysFile %[1]s/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
PrintMotd no
PrintLastLog no
UseDNS no
PidFile none
LogLevel VERBOSE
`, dir), 0o644)
	s.argv = []string{sshd, "-i", "-e", "-f", s.path("sshd_config")}
	home := s.path("home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	// With PAM, these variables would come from /etc/environment and /etc/default/locale.
	setenv := "SetEnv=LANG=C.UTF-8 PATH=" + loginPath
	if os.Getuid() != 0 {
		setenv += " HOME=" + home
	}
	s.argv = append(s.argv, "-o", setenv)
	if os.Getuid() == 0 {
		s.user = "tester"
		s.inNamespace(home)
	}
	s.rotate()
	s.write("authorized_keys", "", 0o644)
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.wg.Go(s.listen)
	t.Cleanup(s.stop)
	return s
}

// inNamespace makes s.argv run where a user tester exists.
func (s *openSSH) inNamespace(home string) {
	s.t.Helper()
	if err := os.Chmod(s.dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err == nil {
		err = os.Chown(home, testerUID, testerUID)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	lines := fmt.Sprintf("tester:*:%d:%[1]d::%s:/bin/bash\n", testerUID, home)
	if !bytes.Contains(passwd, []byte("sshd:")) {
		lines += "sshd:*:61235:65534::/run/sshd:/usr/sbin/nologin\n"
	}
	s.write("passwd", string(passwd)+lines, 0o644)
	init := []string{testkit.Need(s.t, "unshare"), "--mount", "--propagation", "private", "sh", "-c", sshdInit, "sh", s.path("passwd")}
	if out, err := exec.Command(init[0], append(init[1:], "true")...).CombinedOutput(); err != nil {
		testkit.Lacks(s.t, "no mount namespace for the user of a real sshd: %v: %s", err, out)
	}
	s.argv = append(init, s.argv...)
}

func (s *openSSH) path(name string) string { return filepath.Join(s.dir, name) }

func (s *openSSH) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// rotate makes a new host key for all later connections.
func (s *openSSH) rotate() {
	s.t.Helper()
	_, key := newKey(s.t)
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("host_key", string(pem.EncodeToMemory(block)), 0o600)
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("host_key.pub", string(ssh.MarshalAuthorizedKey(signer.PublicKey())), 0o644)
}

func (s *openSSH) listen() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		if err := s.serve(conn.(*net.TCPConn)); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *openSSH) serve(conn *net.TCPConn) error {
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		return err
	}
	defer file.Close()
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.running[cmd] = true
	s.wg.Go(func() {
		_ = cmd.Wait() // the exit status of sshd is 255 for every lost connection
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, cmd)
	})
	return nil
}

// signal sends a signal to all processes of sshd, but not to commands: they have sessions
// of their own.
func (s *openSSH) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cmd := range s.running {
		_ = syscall.Kill(-cmd.Process.Pid, sig) // the process may have ended
	}
}

func (s *openSSH) stop() {
	s.listener.Close()
	s.signal(syscall.SIGKILL)
	s.wg.Wait()
	if !s.t.Failed() {
		return
	}
	const last = 30
	if lines := s.said(""); len(lines) > 0 {
		s.t.Logf("log of sshd ends with:\n%s", strings.Join(lines[max(0, len(lines)-last):], "\n"))
	}
}

// target returns s as a target of the contract.
func (s *openSSH) target(key *sshkey.Identity) target {
	return target{
		addr:  s.listener.Addr().String(),
		login: s.user,
		keys: func() []string {
			line, err := os.ReadFile(s.path("host_key.pub"))
			if err != nil {
				s.t.Error(err)
			}
			return []string{string(line)}
		},
		authorize: func(yes bool) {
			line := ""
			if yes {
				line = key.PublicKey() + "\n"
			}
			s.write("authorized_keys", line, 0o644)
		},
		freeze: func() { s.signal(syscall.SIGSTOP) },
		thaw:   func() { s.signal(syscall.SIGCONT) },
		rotate: s.rotate,
		asRoot: os.Getuid() == 0,
	}
}

// said returns the lines of sshd's log that contain part.
func (s *openSSH) said(part string) (lines []string) {
	file, err := os.Open(s.path("log"))
	if err != nil {
		s.t.Error(err)
		return nil
	}
	defer file.Close()
	for scan := bufio.NewScanner(file); scan.Scan(); {
		if strings.Contains(scan.Text(), part) {
			lines = append(lines, scan.Text())
		}
	}
	return lines
}
