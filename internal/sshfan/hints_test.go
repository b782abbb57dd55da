package sshfan_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/iap"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// unproven lists claims that a hint may make only with proof.
var unproven = []string{"overloaded", "MaxStartups", "metadata", "OS Login", "max-dials"}

// The test runs the real sshd with each setting that keeps us out. The hint may claim only
// what the answers of sshd prove.
func TestHintsAreThoseOfTheSettingThatKeepsUsOut(t *testing.T) {
	testkit.NoLeaks(t)
	const keyRules = "sshd refuses the login (DenyUsers, AllowUsers) or the kind of key (PubkeyAcceptedAlgorithms); why is in sshd's log"
	for _, tt := range []struct {
		name     string
		settings []string
		unknown  bool // sshd does not know the key
		says     string
		hint     string
	}{
		{"key exchange", []string{"KexAlgorithms=diffie-hellman-group14-sha1"}, false, "no common algorithm for key exchange; it offers only diffie-hellman-group14-sha1", "sudo sshd -T | grep -i KexAlgorithms"},
		{"cipher", []string{"Ciphers=3des-cbc"}, false, "it offers only 3des-cbc", "sudo sshd -T | grep -i Ciphers"},
		{"MAC", []string{"MACs=umac-64@openssh.com", "Ciphers=aes128-ctr"}, false, "it offers only umac-64@openssh.com", "sudo sshd -T | grep -i MACs"},
		{"host keys that are none", []string{"HostKeyAlgorithms=ssh-ed25519-cert-v01@openssh.com"}, false, "ssh handshake with", "why is in sshd's log on the worker: sudo journalctl -u ssh -n 20"},
		{"DenyUsers", []string{"DenyUsers=tester"}, false, "key refused for ", keyRules},
		{"AllowUsers", []string{"AllowUsers=bob"}, false, "key refused for ", keyRules},
		{"kind of key", []string{"PubkeyAcceptedAlgorithms=rsa-sha2-512"}, false, "key refused for ", keyRules},
		{"unknown key", nil, true, "key refused for ", "is the key ssh-ed25519 SHA256:"},
		{"no keys at all", []string{"PubkeyAuthentication=no", "PasswordAuthentication=yes"}, false, "key refused: sshd takes no keys for this login", "PubkeyAuthentication yes in /etc/ssh/sshd_config"},
		{"a password besides", []string{"AuthenticationMethods=publickey,password", "PasswordAuthentication=yes"}, false, "sshd wants more than a key: AuthenticationMethods", "grep -i authenticationmethods"},
		{"MaxAuthTries", []string{"MaxAuthTries=1"}, true, "key refused: too many keys were refused on one connection", "(MaxAuthTries): name the one that it knows with --identity-file=PATH"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startOpenSSH(t)
			id := newIdentity(t)
			to := s.target(id)
			to.authorize(!tt.unknown)
			for _, o := range tt.settings {
				s.argv = append(s.argv, "-o", o)
			}
			f := newFleet(t, func(c *sshfan.Config) { c.Identity, c.RetryFor, c.AuthRetryFor = id, 2*time.Second, time.Millisecond })
			_, errs := f.Connect(t.Context(), []sshfan.Host{to.host(to.addr)})
			var e *remote.ConnectError
			if !errors.As(errs[0], &e) || !strings.Contains(e.Error(), tt.says) || !strings.Contains(e.Hint(), tt.hint) {
				t.Fatalf("got %v\nwith %q\nwant %q and %q", errs[0], hintIn(errs[0]), tt.says, tt.hint)
			}
			for _, word := range unproven {
				if strings.Contains(e.Hint(), word) {
					t.Errorf("hint %q speaks of %s", e.Hint(), word)
				}
			}
		})
	}
	t.Run("MaxSessions", func(t *testing.T) {
		s := startOpenSSH(t)
		id := newIdentity(t)
		to := s.target(id)
		to.authorize(true)
		s.argv = append(s.argv, "-o", "MaxSessions=0")
		c := connect(t, newFleet(t, func(c *sshfan.Config) { c.Identity = id }), to.host(to.addr))
		_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
		if !errors.Is(err, sshfan.ErrTooManySessions) || !strings.Contains(hintIn(err), "MaxSessions 10 in /etc/ssh/sshd_config") {
			t.Errorf("got %v with %q", err, hintIn(err))
		}
	})
	t.Run("MaxStartups", func(t *testing.T) {
		s := startOpenSSH(t)
		id := newIdentity(t)
		to := s.target(id)
		to.authorize(true)
		addr := s.daemon("MaxStartups=1")
		var waiting net.Conn // takes the only place for a login
		testkit.Eventually(t, "sshd has a place", func() bool {
			var err error
			waiting, err = net.Dial("tcp", addr)
			testkit.Must(t, err)
			greeting := make([]byte, 8)
			if _, err := io.ReadFull(waiting, greeting); err == nil && string(greeting) == "SSH-2.0-" {
				return true
			}
			waiting.Close() // the check whether sshd listens may still use the place
			return false
		})
		defer waiting.Close()
		f := newFleet(t, func(c *sshfan.Config) { c.Identity, c.RetryFor = id, time.Second })
		_, errs := f.Connect(t.Context(), []sshfan.Host{to.host(addr)})
		hint := hintIn(errs[0])
		// A reset of the connection may destroy the reason. Then the hint names the log.
		if !strings.Contains(hint, "(MaxStartups); fewer at once: --max-dials=8") && !strings.HasPrefix(hint, "why is in sshd's log") {
			t.Errorf("got %v with %q", errs[0], hint)
		}
	})
}

// daemon starts an sshd that listens itself, unlike sshd -i. It returns the address of the
// sshd.
func (s *openSSH) daemon(setting string) string {
	s.t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(s.t, err)
	addr := free.Addr().String()
	testkit.Must(s.t, free.Close())
	_, port, _ := net.SplitHostPort(addr)
	argv := append(slices.DeleteFunc(slices.Clone(s.argv), func(word string) bool { return word == "-i" }),
		"-D", "-p", port, "-o", "ListenAddress=127.0.0.1", "-o", setting)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testkit.Must(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // the process was killed
	})
	testkit.Eventually(s.t, "sshd listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}

// If a server says why it hangs up, the error has that reason.
func TestWhatAServerSaysInPlaceOfItsVersionDecidesTheHint(t *testing.T) {
	testkit.NoLeaks(t)
	for said, want := range map[string]string{
		"Exceeded MaxStartups\r\n":         "(MaxStartups); fewer at once: --max-dials=8",
		"Not allowed at this time\r\n":     "(PerSourcePenalties)",
		"HTTP/1.1 400 Bad Request\r\n\r\n": "--ssh-port=N",
		"":                                 "why is in sshd's log",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testkit.Must(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 256)) // otherwise a reset would destroy the reason
				_, _ = conn.Write([]byte(said))
				conn.Close()
			}
		}()
		h := hostAt("s0w0", l.Addr().String())
		_, errs := newFleet(t, func(c *sshfan.Config) { c.RetryFor = time.Millisecond }).Connect(t.Context(), []sshfan.Host{h})
		hint := hintIn(errs[0])
		line := strings.TrimSpace(strings.SplitN(said, "\r\n", 2)[0])
		if !strings.Contains(hint, want) || line != "" && !strings.Contains(errs[0].Error(), `which said "`+line+`"`) {
			t.Errorf("%q: %v with %q, want %q", said, errs[0], hint, want)
		}
		l.Close()
		<-ended
	}
}

// The silence of a worker does not prove a missing firewall rule if other workers of its
// slice were reached, in whatever way. It does not prove one either if the machine is not in
// Google's network.
func TestAMissingFirewallRuleIsNotGuessedAgainstTheEvidence(t *testing.T) {
	testkit.NoLeaks(t)
	silent := func(_ context.Context, _, addr string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	bastion := func(context.Context, string, string) (net.Conn, error) {
		return nil, &sshfan.ForwardError{Bastion: "gate:22", Said: "Connection timed out"}
	}
	relay := func(context.Context, string, string) (net.Conn, error) {
		return nil, &iap.Error{Code: 4003, Port: 22}
	}
	full := func(context.Context, string, string) (net.Conn, error) {
		return nil, &sshfan.ForwardError{Bastion: "gate:22", Said: "open failed"}
	}
	const others = "other workers of its slice were reached from here, so no firewall rule is missing"
	for _, tt := range []struct {
		name  string
		dial  sshfan.Dialer
		addr  string
		cloud bool
		slice string // slice of the silent worker; the worker that answers is in slice "t-0"
		want  string
	}{
		{"of the slice, others answer", silent, "203.0.113.7:22", true, "t-0", others},
		{"of another slice", silent, "203.0.113.7:22", true, "t-1", "multihost network firewall create allow-ssh --network=NETWORK --allow=tcp:22"},
		{"inside the network", silent, "10.0.0.7:22", true, "t-1", "an internal address is reached from inside the network only"},
		{"a host of no cloud", silent, "203.0.113.7:22", false, "", "the machine is off, the address is another one's, or a firewall drops them"},
		{"behind a bastion, others answer", bastion, "10.0.0.7:22", true, "t-0", others},
		{"behind a bastion", bastion, "10.0.0.7:22", true, "t-1", "no firewall rule lets tcp:22 in from the bastion"},
		{"a bastion with troubles of its own", full, "10.0.0.7:22", true, "t-0", ""},
		{"through IAP, others answer", relay, "10.0.0.7:22", true, "t-0", others},
		{"through IAP", relay, "10.0.0.7:22", true, "t-1", "no firewall rule lets IAP in"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			good := newServer(t)
			f := newFleet(t, func(c *sshfan.Config) {
				c.RetryFor = time.Millisecond
				c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == tt.addr {
						return tt.dial(ctx, network, addr)
					}
					return new(net.Dialer).DialContext(ctx, network, addr)
				}
			})
			first := good.host("s0w0")
			first.Cloud, first.Slice = tt.cloud, "t-0"
			connect(t, f, first)
			h := hostAt("s0w1", tt.addr)
			h.Cloud, h.Slice = tt.cloud, tt.slice
			_, errs := f.Connect(t.Context(), []sshfan.Host{h})
			if hint := hintIn(errs[0]); errs[0] == nil || !strings.Contains(hint, tt.want) || tt.want == "" && hint != "" {
				t.Errorf("%v with %q, want %q", errs[0], hint, tt.want)
			}
		})
	}
}

func hintIn(err error) string {
	var h interface{ Hint() string }
	if !errors.As(err, &h) {
		return ""
	}
	return h.Hint()
}
