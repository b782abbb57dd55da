//go:build linux

package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// serverVersion is the version string of Ubuntu 22.04's sshd.
	serverVersion = "SSH-2.0-OpenSSH_8.9p1 Ubuntu-3ubuntu0.10"

	loginGrace = 120 * time.Second // sshd's LoginGraceTime
	maxAuth    = 6                 // sshd's MaxAuthTries
)

var (
	// LoginName matches the names that useradd accepts. A name is also the name of a
	// directory.
	LoginName = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)

	errRefused = errors.New("key refused")
)

// serverConfig returns the configuration for one connection.
func (m *machine) serverConfig() *ssh.ServerConfig {
	refuse := sync.OnceValue(m.TakeRefusal)
	// Like sshd, count every unknown key as a try. x/crypto/ssh does not count keys that a
	// client only asks about.
	var refused atomic.Int32
	cfg := &ssh.ServerConfig{
		ServerVersion: serverVersion,
		MaxAuthTries:  maxAuth,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if refused.Load() >= maxAuth || refuse() || !m.mayLogIn(meta.User(), key) {
				refused.Add(1)
				return nil, errRefused
			}
			return nil, nil
		},
	}
	if _, ok := m.fault(Banner); ok {
		cfg.BannerCallback = func(ssh.ConnMetadata) string { return BannerText }
	}
	for _, s := range m.signers() {
		cfg.AddHostKey(s)
	}
	return cfg
}

// mayLogIn reports whether the metadata has the key for the login now. As on the images of
// TPU VMs, root cannot log in.
func (m *machine) mayLogIn(login string, key ssh.PublicKey) bool {
	if m.Spec.AuthorizedKeys == nil || login == "root" || !LoginName.MatchString(login) {
		return false
	}
	want := key.Marshal()
	for _, line := range m.Spec.AuthorizedKeys() {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || name != login {
			continue
		}
		got, comment, _, _, err := ssh.ParseAuthorizedKey([]byte(rest))
		if err == nil && bytes.Equal(got.Marshal(), want) && !Expired(comment, m.b.cfg.Now()) {
			return true
		}
	}
	return false
}

// Expired reports whether a key's comment is Google's annotation and its expiry time has
// passed. The guest agent drops such keys, and also keys with an annotation that it cannot
// parse.
func Expired(comment string, now time.Time) bool {
	note, ok := strings.CutPrefix(comment, "google-ssh ")
	if !ok {
		return false
	}
	var v struct {
		ExpireOn string `json:"expireOn"`
	}
	if err := json.Unmarshal([]byte(note), &v); err != nil {
		return true
	}
	if v.ExpireOn == "" {
		return false
	}
	for _, layout := range []string{"2006-01-02T15:04:05-0700", time.RFC3339} {
		if end, err := time.Parse(layout, v.ExpireOn); err == nil {
			return !now.Before(end)
		}
	}
	return true
}
