package qr

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"multihost/internal/tpu"
)

// A keyCache stores the guest attributes of workers, so that 2048 workers cost 2048
// calls once and not for every command.
//
// An entry belongs to one worker of one node. The API's id and the creation time
// identify the node: both differ for a new node under an old name. A VM that is
// repaired in place keeps both but may have new keys: a caller that sees a key which
// is not in the cache calls DoubtHostKeys and asks again. An entry expires after
// keysFor.
type keyCache struct {
	path string // "": the cache ends with the process

	mu      sync.Mutex
	loaded  bool
	changed bool
	workers map[string]knownKeys
}

const (
	keysFor        = 14 * 24 * time.Hour
	keyCacheFormat = 1
	// attributeCalls limits the calls for guest attributes that run at once: the
	// API would refuse thousands at once with status 429.
	attributeCalls = 32
)

// knownKeys is one answer of the API.
type knownKeys struct {
	Created  time.Time `json:"created"` // of the node
	Asked    time.Time `json:"asked"`
	Hostname string    `json:"hostname"`
	Keys     []string  `json:"keys"`
}

type keyCacheFile struct {
	Format  int                  `json:"format"`
	Workers map[string]knownKeys `json:"workers"` // by node id and worker number
}

// CacheHostKeys makes HostKeys use the file at path as its cache; KeepHostKeys writes
// it. The file need not exist. One that cannot be read is replaced: the cache only
// saves calls.
func (c *hostKeys) CacheHostKeys(path string) { c.cache.path = path }

// DoubtHostKeys removes a worker from the cache because it showed another key. It
// reports whether HostKeys may now return something else.
func (c *hostKeys) DoubtHostKeys(s tpu.Slice, worker int) bool {
	return c.cache.forget(s, worker)
}

// KeepHostKeys writes the cache of HostKeys to the file for the next command.
func (c *hostKeys) KeepHostKeys() error {
	if err := c.cache.save(c.now()); err != nil {
		return fmt.Errorf("keep host keys: %w", err)
	}
	return nil
}

func cacheKey(s tpu.Slice, worker int) string { return s.UID + "/" + strconv.Itoa(worker) }

// load reads the file once. k.mu is held.
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

// save replaces the file and drops expired entries. If two processes save at the same
// time, only the later one's entries remain.
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
