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

// A hashCache spares the reading of files that have not changed since an earlier
// Scan of the same directory: one file for each directory, below Options.Cache.
//
// A file is taken for unchanged when size, time of modification, time of change
// and inode are the same. The time of change is what makes that safe: nobody can
// set it back. What is left is a file that changes twice within one tick of the
// file system's clock, before and after it was read; so a file that had changed
// within settleTime before the reading is not remembered, and is read again the
// next time. The same holds for one whose times lie in the future.
type hashCache struct {
	path    string // "" keeps nothing
	old     map[string]cachedHash
	now     map[string]cachedHash
	changed bool
}

const (
	// settleTime is more than the tick of any file system (2 s on FAT), and
	// leaves room for the clock of a file server.
	settleTime = 10 * time.Second
	// mostCaches is how many directories are remembered.
	mostCaches = 32
)

type cachedHash struct {
	Size         int64
	Inode        uint64
	ModNS, ChgNS int64
	Hash         string
}

// openHashes reads what is known of a directory. What cannot be read is not
// known.
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

// state is what tells a file from a changed one; false where the system does not
// say.
func state(info fs.FileInfo) (cachedHash, bool) {
	inode, changed, ok := identity(info)
	return cachedHash{Size: info.Size(), Inode: inode, ModNS: info.ModTime().UnixNano(), ChgNS: changed}, ok
}

// get returns the hash of a file in that state, if it is known.
func (c *hashCache) get(name string, info fs.FileInfo) (hash string, ok bool) {
	want, ok := state(info)
	if !ok {
		return "", false
	}
	known, ok := c.old[name]
	want.Hash = known.Hash
	return known.Hash, ok && known == want && len(known.Hash) == 2*sha256.Size
}

// keep notes the hash of a file that was found in that state at a time before it
// was read. It must not be called by several goroutines.
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

// save writes what this Scan has found in place of what was known.
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

// replaceFile writes a file, in a directory that is made if need be, so that it is
// at every moment the old or the new one.
func replaceFile(path string, write func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600: names are nobody's business
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
		_ = os.Remove(tmp.Name()) // the first error tells
	}
	return err
}

// dropOldest keeps the files that were used last.
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
