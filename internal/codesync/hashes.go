package codesync

import (
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A hashCache saves Scan from reading files that have not changed since an earlier Scan of
// the same directory. Each scanned directory has one file below Options.Cache.
//
// A file is unchanged if its size, time of modification, time of change and inode are the
// same. Nobody can set the time of change back. But a file may change twice within one tick
// of the file system's clock, before and after Scan read it. These values are then the same.
// So the cache does not keep the hash of a file that changed within settleTime before it
// was read, or whose times lie in the future. The next Scan reads such a file again.
type hashCache struct {
	path    string // "": nothing is stored
	old     map[string]cachedHash
	now     map[string]cachedHash
	changed bool
}

const (
	// settleTime is more than the tick of any file system (2 s on FAT). It allows for a
	// file server whose clock differs.
	settleTime = 10 * time.Second
	// mostCaches limits the directories that the cache remembers.
	mostCaches = 32
)

type cachedHash struct {
	Size         int64
	Inode        uint64
	ModNS, ChgNS int64
	Hash         string
}

// openHashes reads the cache of a directory. An unreadable cache counts as empty.
func openHashes(dir, root string) *hashCache {
	c := &hashCache{old: map[string]cachedHash{}, now: map[string]cachedHash{}}
	if dir == "" {
		return c
	}
	sum := sha256.Sum256([]byte(root))
	c.path = filepath.Join(dir, hex.EncodeToString(sum[:8])+".hashes")
	f, err := os.Open(c.path)
	if err != nil {
		return c
	}
	defer f.Close()
	if gob.NewDecoder(f).Decode(&c.old) != nil {
		c.old = map[string]cachedHash{}
	}
	return c
}

// state returns the values that change with a file. It returns false if the system does not
// have them.
func state(info fs.FileInfo) (cachedHash, bool) {
	inode, changed, ok := identity(info)
	return cachedHash{Size: info.Size(), Inode: inode, ModNS: info.ModTime().UnixNano(), ChgNS: changed}, ok
}

// get returns the hash of a file in this state, if the hash is known.
func (c *hashCache) get(name string, info fs.FileInfo) (hash string, ok bool) {
	want, ok := state(info)
	if !ok {
		return "", false
	}
	known, ok := c.old[name]
	want.Hash = known.Hash
	return known.Hash, ok && known == want && len(known.Hash) == 2*sha256.Size
}

// keep stores the hash of a file. info is the file's state, which was read at the time
// begun, before the content. keep is not safe for concurrent use.
func (c *hashCache) keep(name, hash string, info fs.FileInfo, begun time.Time) {
	s, ok := state(info)
	if !ok {
		return
	}
	settled := begun.Add(-settleTime).UnixNano()
	if s.ModNS >= settled || s.ChgNS >= settled {
		return
	}
	s.Hash = hash
	c.now[name] = s
	c.changed = c.changed || c.old[name] != s
}

// save replaces the stored hashes by the hashes of this Scan.
func (c *hashCache) save() error {
	if c.path == "" || !c.changed && len(c.now) == len(c.old) {
		return nil
	}
	err := replaceFile(c.path, func(f *os.File) error { return gob.NewEncoder(f).Encode(c.now) })
	if err != nil {
		return err
	}
	return dropOldest(filepath.Dir(c.path), "*.hashes", mostCaches)
}

// replaceFile writes a file atomically. At every moment the file is the old one or the new
// one. replaceFile creates a missing directory.
func replaceFile(path string, write func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600: the names in it are private
	if err != nil {
		return err
	}
	err = write(tmp)
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the caller gets the first error
	}
	return err
}

// dropOldest removes all but the most recently used files.
func dropOldest(dir, pattern string, most int) error {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) <= most {
		return err
	}
	age := make(map[string]time.Time, len(names))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			age[name] = info.ModTime()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return age[a].Compare(age[b]) })
	for _, name := range names[:len(names)-most] {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}
