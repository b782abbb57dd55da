package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A keyCache stores the host keys of workers. Without it, each command would need one call for
// each worker.
//
// An entry belongs to one worker of one slice. The provider's id and the creation time identify
// the slice. Both differ for a new slice with an old name. A VM repaired in place keeps both but
// may have new keys. A caller that sees a key which is not in the cache therefore calls DoubtKeys
// and asks again. An entry expires after keysFor.
type keyCache struct {
	path string // "": not on disk

	mu      sync.Mutex
	loaded  bool
	changed bool
	workers map[string]knownKeys
}

const (
	keysFor        = 14 * 24 * time.Hour
	keyCacheFormat = 1
)

// knownKeys is one answer of the provider.
type knownKeys struct {
	Created  time.Time `json:"created"` // when the slice was created
	Asked    time.Time `json:"asked"`
	Hostname string    `json:"hostname"`
	Keys     []string  `json:"keys"`
}

type keyCacheFile struct {
	Format  int                  `json:"format"`
	Workers map[string]knownKeys `json:"workers"` // keys by the slice's id and the worker's number
}

// Keys is a provider that wraps another one and caches its host keys.
type Keys struct {
	provision.Provider
	clock gcp.Clock
	cache keyCache
}

// KeepKeys returns a provider that asks p only for host keys that are not in the file at path.
// SaveKeys writes the file. KeepKeys ignores a missing or unreadable file. With path "", the
// answers stay in memory until the process ends.
func KeepKeys(p provision.Provider, clock gcp.Clock, path string) *Keys {
	return &Keys{Provider: p, clock: clock, cache: keyCache{path: path}}
}

// Unwrap returns the wrapped provider.
func (k *Keys) Unwrap() provision.Provider { return k.Provider }

// HostKeys returns an earlier answer, or asks the wrapped provider.
func (k *Keys) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	if known, ok := k.cache.get(s, worker, k.clock.Now()); ok {
		return known.Keys, known.Hostname, nil
	}
	keys, hostname, err = k.Provider.HostKeys(ctx, s, worker)
	if err == nil {
		k.cache.put(s, worker, knownKeys{Created: s.Created, Asked: k.clock.Now(), Hostname: hostname, Keys: keys})
	}
	return keys, hostname, err
}

// DoubtKeys forgets the cached keys of a worker that has shown another key. It reports whether it
// forgot any. If so, p.HostKeys may now return other keys.
func DoubtKeys(p provision.Provider, s tpu.Slice, worker int) bool {
	k, ok := provision.As[*Keys](p)
	return ok && k.cache.forget(s, worker)
}

// SaveKeys writes the keys to the file for the next command, if p is a *Keys.
func SaveKeys(p provision.Provider) error {
	k, ok := provision.As[*Keys](p)
	if !ok {
		return nil
	}
	if err := k.cache.save(k.clock.Now()); err != nil {
		return fmt.Errorf("keep host keys: %w", err)
	}
	return nil
}

func cacheKey(s tpu.Slice, worker int) string { return s.UID + "/" + strconv.Itoa(worker) }

// load reads the file once. The caller holds k.mu.
func (k *keyCache) load() {
	if k.loaded {
		return
	}
	k.loaded, k.workers = true, map[string]knownKeys{}
	if k.path == "" {
		return
	}
	var file keyCacheFile
	data, err := os.ReadFile(k.path)
	if err == nil && json.Unmarshal(data, &file) == nil && file.Format == keyCacheFormat && file.Workers != nil {
		k.workers = file.Workers
	}
}

func (k *keyCache) get(s tpu.Slice, worker int, now time.Time) (knownKeys, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load()
	known, ok := k.workers[cacheKey(s, worker)]
	fresh := ok && known.Created.Equal(s.Created) && !now.Before(known.Asked) && now.Sub(known.Asked) < keysFor
	return known, fresh && len(known.Keys) > 0
}

func (k *keyCache) put(s tpu.Slice, worker int, known knownKeys) {
	if s.UID == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load()
	k.workers[cacheKey(s, worker)] = known
	k.changed = true
}

func (k *keyCache) forget(s tpu.Slice, worker int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load()
	_, known := k.workers[cacheKey(s, worker)]
	delete(k.workers, cacheKey(s, worker))
	k.changed = k.changed || known
	return known
}

// save replaces the file, without expired entries. If two processes save at the same time, the
// file has the entries of the later one.
func (k *keyCache) save(now time.Time) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.changed || k.path == "" {
		return nil
	}
	for key, known := range k.workers {
		if now.Sub(known.Asked) >= keysFor {
			delete(k.workers, key)
		}
	}
	data, err := json.Marshal(keyCacheFile{Format: keyCacheFormat, Workers: k.workers})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(k.path), filepath.Base(k.path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if rmErr := os.Remove(tmp.Name()); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}()
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), k.path); err != nil {
		return err
	}
	k.changed = false
	return nil
}
