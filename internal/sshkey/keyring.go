package sshkey

import (
	"errors"
	"io/fs"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"
)

// A Keyring holds the keys for bastions. It loads each key, and asks for its passphrase, at
// most once.
type Keyring struct {
	socket string // socket of the agent; "": there is none
	ask    func(path string) (string, error)

	mu      sync.Mutex // held during a question, so that there is one at a time
	loaded  map[string]keyFile
	agents  []*Identity
	others  []ssh.Signer // the keys that rest has found in the agent
	gotThem bool
}

// NewKeyring returns a Keyring. socket is the socket of an agent, or "". ask returns the
// passphrase of a key. It is nil if nobody can be asked. The caller closes the Keyring.
func NewKeyring(socket string, ask func(path string) (string, error)) *Keyring {
	return &Keyring{socket: socket, ask: ask, loaded: map[string]keyFile{}}
}

// A keyFile is the result of loading a private key: signers or an error, or neither if
// there is no file.
type keyFile struct {
	signers []ssh.Signer
	err     error
}

// Offer returns the keys to log in with, in this order: those in files, own, the other keys of
// the agent. It returns no more keys than sshd accepts. skipped is the error of a file that
// could not be used.
func (k *Keyring) Offer(files []string, own []ssh.Signer) (keys []ssh.Signer, skipped error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	add := func(signers []ssh.Signer) {
		for _, s := range signers {
			known := func(o ssh.Signer) bool { return Same(o.PublicKey(), s.PublicKey()) }
			if len(keys) < agentKeys && !slices.ContainsFunc(keys, known) {
				keys = append(keys, s)
			}
		}
	}
	for _, path := range files {
		file, ok := k.loaded[path]
		if !ok {
			file = k.load(path)
			k.loaded[path] = file
		}
		add(file.signers)
		if file.err != nil {
			skipped = file.err
		}
	}
	add(own)
	add(k.rest())
	return keys, skipped
}

// load reads a private key. It looks for an encrypted key in the agent before it asks for
// the passphrase.
func (k *Keyring) load(path string) keyFile {
	id, err := Load(path, nil)
	var locked *Error
	if errors.Is(err, ErrPassphrase) && errors.As(err, &locked) {
		if k.socket != "" && locked.PublicKey != "" {
			if held, err := LoadAgent(k.socket, locked.PublicKey); err == nil {
				k.agents = append(k.agents, held)
				return keyFile{signers: held.signers}
			}
		}
		if k.ask != nil {
			id, err = Load(path, func() (string, error) { return k.ask(path) })
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return keyFile{}
	case err != nil:
		return keyFile{err: err}
	}
	return keyFile{signers: id.signers}
}

// rest returns the keys of the agent, which it asks only once.
func (k *Keyring) rest() []ssh.Signer {
	if k.gotThem || k.socket == "" {
		return k.others
	}
	k.gotThem = true
	// As in ssh, an agent that does not answer is ignored without a message.
	if held, err := LoadAgent(k.socket, ""); err == nil {
		k.agents = append(k.agents, held)
		k.others = held.signers
	}
	return k.others
}

// Close ends the connections to the agent.
func (k *Keyring) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.agents {
		_ = a.Close() // nothing is under way
	}
	k.agents = nil
}
