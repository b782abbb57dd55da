package sshfan

import (
	"errors"
	"io/fs"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"
)

// A keyring holds the keys for bastions. It loads each key, and asks for its passphrase,
// at most once.
type keyring struct {
	socket string // of the agent; empty: there is none
	ask    func(path string) (string, error)

	mu      sync.Mutex // held while asking: one question at a time
	loaded  map[string]keyFile
	agents  []*Identity
	others  []ssh.Signer // what rest has found in the agent
	gotThem bool
}

// A keyFile is the result of loading a private key: signers or an error. Both are nil if
// the file does not exist.
type keyFile struct {
	signers []ssh.Signer
	err     error
}

// offer returns the keys to log in with: the keys of files, our own, then the other keys
// of the agent, at most as many as sshd takes. skipped is the error of a file that could
// not be used.
func (k *keyring) offer(files []string, own []ssh.Signer) (keys []ssh.Signer, skipped error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	add := func(signers []ssh.Signer) {
		for _, s := range signers {
			known := func(o ssh.Signer) bool { return sameKey(o.PublicKey(), s.PublicKey()) }
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

// load reads a private key. If the key is encrypted, load looks for it in the agent
// before it asks for the passphrase.
func (k *keyring) load(path string) keyFile {
	id, err := LoadIdentity(path, nil)
	var locked *IdentityError
	if errors.Is(err, ErrPassphrase) && errors.As(err, &locked) {
		if k.socket != "" && locked.PublicKey != "" {
			if held, err := LoadAgentIdentity(k.socket, locked.PublicKey); err == nil {
				k.agents = append(k.agents, held)
				return keyFile{signers: held.signers}
			}
		}
		if k.ask != nil {
			id, err = LoadIdentity(path, func() (string, error) { return k.ask(path) })
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

// rest returns the keys of the agent. It asks the agent once.
func (k *keyring) rest() []ssh.Signer {
	if k.gotThem || k.socket == "" {
		return k.others
	}
	k.gotThem = true
	// An agent that does not answer counts as none, without a message, as in ssh.
	if held, err := LoadAgentIdentity(k.socket, ""); err == nil {
		k.agents = append(k.agents, held)
		k.others = held.signers
	}
	return k.others
}

// close ends the connections to the agent.
func (k *keyring) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.agents {
		_ = a.Close() // nothing is under way
	}
	k.agents = nil
}
