// Package sshkey has the keys with which the user logs in to workers, from a file or an
// ssh-agent.
package sshkey

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"multihost/internal/fault"
	"multihost/internal/remote"
)

// An Identity holds the keys to log in with. It is safe for concurrent use, so that 2048
// logins can sign on all cores.
type Identity struct {
	signers []ssh.Signer
	agent   io.Closer // nil unless an agent holds the keys
}

// Error reports a private key that cannot be used.
type Error struct {
	Path      string
	PublicKey string // in authorized_keys form, if the key is encrypted and it is known
	Err       error

	hint string
}

func (e *Error) Error() string {
	return fmt.Sprintf("load private key %q: %v", e.Path, e.Err)
}

// Fault returns fault.Configuration.
func (e *Error) Fault() fault.Kind { return fault.Configuration }

func (e *Error) Unwrap() error { return e.Err }

// Hint returns what to type, or "".
func (e *Error) Hint() string { return e.hint }

// Problems of a private key that the file system does not report.
var (
	// ErrPassphrase reports that the key is encrypted and the passphrase is unknown or
	// wrong. An agent may hold the key (see LoadAgent).
	ErrPassphrase = fault.New(fault.Configuration, "key is protected by a passphrase")

	// ErrExposed reports that other users can read the key.
	ErrExposed = fault.New(fault.Configuration, "private key can be read by others")
)

// Load reads a private key (RSA, ECDSA or ed25519, in OpenSSH or PEM form). It calls
// passphrase at most once, only for an encrypted key. passphrase is nil if nobody can be
// asked. The error is an *Error.
func Load(path string, passphrase func() (string, error)) (*Identity, error) {
	fail := func(err error, hint string) (*Identity, error) {
		return nil, &Error{Path: path, Err: err, hint: hint}
	}
	file, err := os.Open(path)
	if err != nil {
		hint := ""
		if errors.Is(err, fs.ErrPermission) {
			hint = "this user may not read it; name a key of your own with --identity-file=PATH"
		}
		return fail(Bare(err), hint)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fail(Bare(err), "")
	}
	if !info.Mode().IsRegular() {
		return fail(errors.New("not a regular file"), "")
	}
	if mode := info.Mode().Perm(); exposed(mode) {
		return fail(fmt.Errorf("%w (mode %#o)", ErrExposed, mode), "chmod 600 "+remote.Quote(path))
	}
	const enough = 1 << 20
	if info.Size() > enough {
		return fail(errors.New("too large for a private key"), "")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fail(Bare(err), "")
	}
	key, err := ssh.ParseRawPrivateKey(data)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return unlock(path, data, locked, passphrase)
	}
	if err != nil {
		hint := ""
		if _, _, _, _, err := ssh.ParseAuthorizedKey(data); err == nil || bytes.Contains(data, []byte("PUBLIC KEY")) {
			hint = "--identity-file names the private key, not the .pub beside it"
		}
		return fail(fmt.Errorf("not a private key: %w", err), hint)
	}
	return newIdentity(path, key)
}

// unlock decrypts a private key with the result of passphrase.
func unlock(path string, data []byte, locked *ssh.PassphraseMissingError, passphrase func() (string, error)) (*Identity, error) {
	e := &Error{
		Path: path,
		Err:  ErrPassphrase,
		hint: "ssh-add " + remote.Quote(path) + " makes an agent hold it",
	}
	if locked.PublicKey != nil {
		e.PublicKey = Authorized(locked.PublicKey)
	} else if pub, err := os.ReadFile(path + ".pub"); err == nil {
		if key, _, _, _, err := ssh.ParseAuthorizedKey(pub); err == nil {
			e.PublicKey = Authorized(key)
		}
	}
	if passphrase == nil {
		return nil, e
	}
	secret, err := passphrase()
	if err != nil {
		e.Err = fmt.Errorf("%w: %w", ErrPassphrase, err)
		return nil, e
	}
	key, err := ssh.ParseRawPrivateKeyWithPassphrase(data, []byte(secret))
	if err != nil {
		e.Err = fmt.Errorf("%w, and this is not it", ErrPassphrase)
		return nil, e
	}
	return newIdentity(path, key)
}

func newIdentity(path string, key any) (*Identity, error) {
	if k, ok := key.(*ed25519.PrivateKey); ok {
		key = *k
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, &Error{Path: path, Err: fmt.Errorf("unsupported kind of key: %w", err)}
	}
	return &Identity{signers: []ssh.Signer{signer}}, nil
}

// Bare returns err without the path, for callers whose own error has the path.
func Bare(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// Create makes an ed25519 key at path, with mode 0600, and the public key beside it, at
// path.pub. It makes a missing directory with mode 0700. Create never replaces a key. If the
// key exists, or another process makes one at the same time, the error is fs.ErrExist.
func Create(path string) (*Identity, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create private key %q: %w", path, err)
	}
	comment := ownName()
	if err := writeIdentity(path, key, comment); err != nil {
		return nil, fmt.Errorf("create private key %q: %w", path, Bare(err))
	}
	return newIdentity(path, key)
}

// Ensure returns the key that load reads. If there is none, it makes one at path, and made
// is true. If several processes do this at the same time, one of them makes the key, and
// all return it.
func Ensure(path string, load func() (*Identity, error)) (id *Identity, made bool, err error) {
	if id, err = load(); !errors.Is(err, fs.ErrNotExist) {
		return id, false, err
	}
	id, err = Create(path)
	if errors.Is(err, fs.ErrExist) {
		id, err = load()
		return id, false, err
	}
	return id, err == nil, err
}

func writeIdentity(path string, key crypto.PrivateKey, comment string) error {
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".multihost-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(pem.EncodeToMemory(block))
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	// Unlike a rename, a link fails if the name exists.
	if err := os.Link(tmp.Name(), path); err != nil {
		var linkErr *os.LinkError
		if errors.As(err, &linkErr) {
			return linkErr.Err
		}
		return err
	}
	public := Authorized(signer.PublicKey()) + " " + comment + "\n"
	return ReplaceFile(path+".pub", []byte(public), 0o644)
}

// ownName returns user@host for the comment of a key, which only tells people whose key it
// is.
func ownName() string {
	login, host := "multihost", "localhost"
	if u, err := user.Current(); err == nil && u.Username != "" {
		login = u.Username
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	return strings.Join(strings.Fields(login+"@"+host), "_")
}

// agentKeys is how many keys of an agent we offer. sshd closes the connection after six
// refused keys (MaxAuthTries).
const agentKeys = 5

// LoadAgent uses the keys of an ssh-agent on a Unix socket or a named pipe of Windows.
// publicKey, in authorized_keys form, chooses one key. "" means up to five keys, those of
// type ed25519 first. The caller closes the Identity after the Fleet.
func LoadAgent(socket, publicKey string) (*Identity, error) {
	conn, err := dialAgent(socket)
	if err != nil {
		return nil, fmt.Errorf("connect to ssh-agent: %w", err)
	}
	signers, err := agent.NewClient(conn).Signers()
	if err == nil {
		signers, err = chooseSigners(signers, publicKey)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("ask ssh-agent for keys: %w", err)
	}
	return &Identity{signers: signers, agent: conn}, nil
}

func chooseSigners(signers []ssh.Signer, publicKey string) ([]ssh.Signer, error) {
	if publicKey != "" {
		wanted, _, _, _, err := ssh.ParseAuthorizedKey([]byte(publicKey))
		if err != nil {
			return nil, fmt.Errorf("parse public key: %w", err)
		}
		signers = slices.DeleteFunc(signers, func(s ssh.Signer) bool { return !Same(s.PublicKey(), wanted) })
		if len(signers) == 0 {
			return nil, fmt.Errorf("it does not hold %s", Fingerprint(wanted))
		}
		return signers, nil
	}
	if len(signers) == 0 {
		return nil, errors.New("it holds none")
	}
	slices.SortStableFunc(signers, func(a, b ssh.Signer) int {
		return Rank(a.PublicKey().Type() == ssh.KeyAlgoED25519) - Rank(b.PublicKey().Type() == ssh.KeyAlgoED25519)
	})
	return signers[:min(len(signers), agentKeys)], nil
}

// Close ends the connection to the agent, if there is one.
func (id *Identity) Close() error {
	if id.agent == nil {
		return nil
	}
	return id.agent.Close()
}

// PublicKey returns the first public key in authorized_keys form, without a comment:
// "ssh-ed25519 AAAA…".
func (id *Identity) PublicKey() string { return Authorized(id.signers[0].PublicKey()) }

// Fingerprint returns the type of each key and the fingerprint that ssh-keygen -l shows:
// "ssh-ed25519 SHA256:…".
func (id *Identity) Fingerprint() string {
	names := make([]string, len(id.signers))
	for i, s := range id.signers {
		names[i] = Fingerprint(s.PublicKey())
	}
	return strings.Join(names, ", ")
}

// Signers returns the keys.
func (id *Identity) Signers() []ssh.Signer { return id.signers }

// Slow reports whether every login needs an RSA signature.
func (id *Identity) Slow() bool { return id.signers[0].PublicKey().Type() == ssh.KeyAlgoRSA }

func Authorized(key ssh.PublicKey) string {
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n")
}

// Same reports whether two keys are the same.
func Same(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// Fingerprint returns the type of a key and its fingerprint, as in Identity.Fingerprint.
func Fingerprint(key ssh.PublicKey) string {
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}

func Rank(known bool) int {
	if known {
		return 0
	}
	return 1
}

// ReplaceFile writes a file. At every moment, path has the whole old file or the whole new
// one.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
