package sshfan

import (
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
	"multihost/internal/sshkey"
)

const ProgressIdle = progressIdle // the clock of the other tests needs this

// If no byte comes from a peer for three times KeepAlive, its connection is given up.
func TestADeadPeerIsNoticedInTime(t *testing.T) {
	id, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := New(Config{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Close()
	if limit := (giveUpAt + 1) * fleet.cfg.KeepAlive / looks; limit > 30*time.Second {
		t.Errorf("a dead peer is noticed after %s", limit)
	}
}

func TestConnectionKeepsItsHostKeyAtRekeying(t *testing.T) {
	var keys [2]ssh.PublicKey
	for i := range keys {
		public, _, err := ed25519.GenerateKey(nil)
		if err == nil {
			keys[i], err = ssh.NewPublicKey(public)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	firstUse := &trust{host: Host{Name: "s0w0"}}
	if err := firstUse.verify(keys[0]); err != nil {
		t.Fatal(err)
	}
	if err := firstUse.verify(keys[0]); err != nil {
		t.Errorf("same key again: %v", err)
	}
	var keyErr *remote.HostKeyError
	if err := firstUse.verify(keys[1]); !errors.As(err, &keyErr) {
		t.Errorf("another key in the middle: got %v, want a HostKeyError", err)
	}
	two := &trust{listed: keys[:]}
	if err := two.verify(keys[0]); err != nil {
		t.Fatal(err)
	}
	if err := two.verify(keys[1]); err == nil {
		t.Error("a connection changed from one known key to the other")
	}
}

func TestJitterSpreadsAndGrows(t *testing.T) {
	for try := 1; try < 50; try++ {
		if d := jittered(try); d < firstWait/2 || d >= mostWait+mostWait/2 {
			t.Fatalf("try %d waits %s", try, d)
		}
	}
	if d := jittered(40); d < mostWait/2 {
		t.Errorf("try 40 waits %s only", d)
	}
}

func FuzzPins(f *testing.F) {
	key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1o5NLBzK3yZzTfhcU+JSjJc7XmZm5rGfKzJ9CGFoxk"
	f.Add("1234/0 " + key)
	f.Add("# comment")
	f.Add("host/10.0.0.1:22 ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIJ1o5NLBzK3yZzTfhcU+JSjJc7XmZm5rGfKzJ9CGFoxk")
	f.Add("x y AAAA////")
	f.Add("x ssh-ed25519 AAAA\x00")
	f.Fuzz(func(t *testing.T, line string) {
		pin, parsed, err := parsePin(line)
		if err != nil || parsed == nil {
			return
		}
		again, key, err := parsePin(formatPin(pin, parsed))
		if err != nil || again != pin || !sshkey.Same(key, parsed) {
			t.Fatalf("%q: %q, %v", line, again, err)
		}
	})
}
