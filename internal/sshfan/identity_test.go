package sshfan_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sync/errgroup"

	"multihost/internal/event"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

func newECDSASigner(t testing.TB) ssh.Signer {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(newECDSA(t))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func newECDSA(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeKey(t testing.TB, block *pem.Block, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, pem.EncodeToMemory(block), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func openssh(t testing.TB, key crypto.PrivateKey, passphrase string) *pem.Block {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(key, "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return block
}

func TestLoadIdentityLogsIn(t *testing.T) {
	testkit.NoLeaks(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec := newECDSA(t)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"rsa, openssh":     openssh(t, rsaKey, ""),
		"rsa, pem":         {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)},
		"ecdsa, openssh":   openssh(t, ec, ""),
		"ecdsa, pkcs8":     {Type: "PRIVATE KEY", Bytes: pkcs8},
		"ed25519, openssh": openssh(t, ed, ""),
		"ed25519, locked":  openssh(t, ed, "secret"),
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			id, err := sshkey.Load(writeKey(t, block, 0o600), func() (string, error) { asked++; return "secret", nil })
			if err != nil {
				t.Fatal(err)
			}
			if locked := strings.Contains(name, "locked"); locked != (asked == 1) {
				t.Errorf("passphrase asked for %d times", asked)
			}
			s := newServer(t, func(s *server) {
				s.accept = func(_ string, key ssh.PublicKey) bool {
					return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) == id.PublicKey()
				}
			})
			run(t, connect(t, newFleet(t, func(c *sshfan.Config) { c.Identity = id }), s.host("s0w0")), "true")
		})
	}
}

func TestLoadIdentityFailures(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	locked := openssh(t, ed, "secret")
	public, err := ssh.NewPublicKey(ed.Public())
	if err != nil {
		t.Fatal(err)
	}
	tty := errors.New("no terminal")
	for _, tt := range []struct {
		name       string
		path       string
		passphrase func() (string, error)
		want       error
		hint       string
	}{
		{name: "missing", path: filepath.Join(t.TempDir(), "none"), want: fs.ErrNotExist},
		{name: "directory", path: t.TempDir(), hint: ""},
		{name: "readable by others", path: writeKey(t, openssh(t, ed, ""), 0o644), want: sshkey.ErrExposed, hint: "chmod 600"},
		{name: "public key", path: writeKey(t, &pem.Block{Type: "PUBLIC KEY"}, 0o600), hint: "not the .pub"},
		{name: "locked, nobody to ask", path: writeKey(t, locked, 0o600), want: sshkey.ErrPassphrase, hint: "ssh-add"},
		{name: "locked, wrong passphrase", path: writeKey(t, locked, 0o600), passphrase: func() (string, error) { return "x", nil }, want: sshkey.ErrPassphrase},
		{name: "locked, cannot ask", path: writeKey(t, locked, 0o600), passphrase: func() (string, error) { return "", tty }, want: tty},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := sshkey.Load(tt.path, tt.passphrase)
			var e *sshkey.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an IdentityError", err)
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if !strings.Contains(e.Hint(), tt.hint) {
				t.Errorf("got hint %q, want %q", e.Hint(), tt.hint)
			}
			if n := strings.Count(err.Error(), tt.path); n != 1 {
				t.Errorf("error names the path %d times: %v", n, err)
			}
			if errors.Is(err, sshkey.ErrPassphrase) && e.PublicKey != strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))) {
				t.Errorf("got public key %q of a locked key", e.PublicKey)
			}
		})
	}
}

func TestCreateIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "ssh", "google_compute_engine")
	id, err := sshkey.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{filepath.Dir(path): 0o700, path: 0o600, path + ".pub": 0o644} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	public, err := os.ReadFile(path + ".pub")
	if err != nil || !strings.HasPrefix(string(public), id.PublicKey()+" ") || !strings.Contains(string(public), "@") {
		t.Errorf("public key file is %q, %v", public, err)
	}
	again, err := sshkey.Load(path, nil)
	if err != nil || again.PublicKey() != id.PublicKey() {
		t.Errorf("loaded another key: %v", err)
	}
	if _, err := sshkey.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist: a key is never replaced", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestAgentIdentity(t *testing.T) {
	testkit.NoLeaks(t)
	socket, keys := startAgent(t)
	s := newServer(t, func(s *server) {
		s.accept = func(_ string, key ssh.PublicKey) bool {
			return string(key.Marshal()) == string(keys[1].PublicKey().Marshal())
		}
	})
	wanted := string(ssh.MarshalAuthorizedKey(keys[1].PublicKey()))
	for _, public := range []string{"", wanted} {
		id, err := sshkey.LoadAgent(socket, public)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(t, func(c *sshfan.Config) { c.Identity = id })
		run(t, connect(t, f, s.host("s0w0")), "true")
		f.Close()
		id.Close()
	}
	if _, err := sshkey.LoadAgent(socket, string(ssh.MarshalAuthorizedKey(newSigner(t).PublicKey()))); err == nil {
		t.Error("a key that the agent does not hold was found")
	}
	if _, err := sshkey.LoadAgent(filepath.Join(t.TempDir(), "none"), ""); err == nil {
		t.Error("no agent, no error")
	}
}

// startAgent runs an agent with two keys.
func startAgent(t *testing.T) (socket string, signers []ssh.Signer) {
	t.Helper()
	ring := agent.NewKeyring()
	for range 2 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		signers = append(signers, signer)
	}
	socket = filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { agent.ServeAgent(ring, c); c.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return socket, signers
}

func TestRaiseFileLimit(t *testing.T) {
	if err := sshfan.RaiseFileLimit(1); err != nil {
		t.Error(err)
	}
	var e *sshfan.DescriptorError
	err := sshfan.RaiseFileLimit(1 << 30)
	if !errors.As(err, &e) || !strings.HasSuffix(e.Hint(), fmt.Sprintf("--nofile=%d", e.Need)) {
		t.Errorf("got %v, want a DescriptorError with a hint", err)
	}
}

// Every login needs a signature, which costs much with an RSA key. With many workers, one
// note says what this costs and which key costs less.
func TestWhatAnRSAKeyCostsIsSaidOnce(t *testing.T) {
	testkit.NoLeaks(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testkit.Must(t, err)
	slow, err := sshkey.Load(writeKey(t, openssh(t, key, ""), 0o600), nil)
	testkit.Must(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel() // no worker is dialled
	for _, c := range []struct {
		id    *sshkey.Identity
		hosts int
		want  int
	}{{slow, 65, 1}, {slow, 64, 0}, {newIdentity(t), 65, 0}} {
		said := &notes{}
		f := newFleet(t, func(cfg *sshfan.Config) { cfg.Identity, cfg.Sink = c.id, said })
		hosts := make([]sshfan.Host, c.hosts)
		for i := range hosts {
			hosts[i] = hostAt(fmt.Sprintf("s0w%d", i), "127.0.0.1:1")
		}
		f.Connect(over, hosts)
		f.Connect(over, hosts)
		if got := said.texts("RSA key costs"); len(got) != c.want {
			t.Errorf("%d workers: %q, want %d", c.hosts, got, c.want)
		}
		if c.want > 0 && !said.Said(event.Info, "ssh-keygen -t ed25519") {
			t.Error("a faster key is not offered")
		}
	}
}

func TestOfManyProcessesOneMakesTheKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ssh", "key")
	load := func() (*sshkey.Identity, error) { return sshkey.Load(path, nil) }
	const n = 16
	keys, makers := make([]string, n), make([]bool, n)
	var group errgroup.Group
	for i := range n {
		group.Go(func() error {
			id, made, err := sshkey.Ensure(path, load)
			if err == nil {
				keys[i], makers[i] = id.PublicKey(), made
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	made := 0
	for i, key := range keys {
		if key != keys[0] {
			t.Errorf("two keys: %s and %s", keys[0], key)
		}
		if makers[i] {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d have made it, want 1", made)
	}
}
