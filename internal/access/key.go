package access

import (
	"errors"
	"io/fs"
	"maps"

	"multihost/internal/sshkey"
)

// A Key is the file of the user's SSH key.
type Key struct {
	Path  string
	Ours  bool   // the user named no file, so Ensure makes a missing key
	Agent string // socket of the user's ssh-agent; "": none
	// Passphrase asks the user for the passphrase of the file. If it returns
	// sshkey.ErrPassphrase and the agent has the key, the agent's key is used.
	Passphrase func(path string) (string, error)
}

// Load reads the key.
func (k Key) Load() (*sshkey.Identity, error) {
	id, err := sshkey.Load(k.Path, func() (string, error) { return k.Passphrase(k.Path) })
	var locked *sshkey.Error
	if k.Agent != "" && errors.Is(err, sshkey.ErrPassphrase) && errors.As(err, &locked) {
		return sshkey.LoadAgent(k.Agent, locked.PublicKey)
	}
	return id, err
}

// Ensure reads the key. If there is no key and k is Ours, it makes one, and made is true. With
// dryRun, it makes no key and returns a nil identity.
func (k Key) Ensure(dryRun bool) (id *sshkey.Identity, made bool, err error) {
	if k.Ours && !dryRun {
		return sshkey.Ensure(k.Path, k.Load)
	}
	id, err = k.Load()
	if k.Ours && errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return id, false, err
}

// WithKey returns a copy of the metadata with the user's key added. Workers with this metadata
// accept the key from their first boot.
func WithKey(metadata map[string]string, login, publicKey string) map[string]string {
	all := maps.Clone(metadata)
	if all == nil {
		all = map[string]string{}
	}
	entry := login + ":" + publicKey + " " + login
	if old := all["ssh-keys"]; old != "" {
		entry = old + "\n" + entry
	}
	all["ssh-keys"] = entry
	return all
}
