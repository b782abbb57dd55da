package codesync

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
)

// The cache directory has hashes and recent manifests, by digest. A worker reports which
// manifest it had last, and we send only the differences. For 5000 files, the differences
// take a hundred bytes and the manifest 200 kB.

// mostManifests limits the manifests in the directory.
const mostManifests = 32

// mostPieces limits the pieces of a manifest. With more pieces, the manifest is sent whole.
const mostPieces = 256

// A manifest has the entries of a tree in the form that workers get.
type manifest struct {
	text   []byte
	digest string
	cache  string // directory of recent manifests; "": none

	mu sync.Mutex
	// recipes by the digest of the old manifest. Nearly all of thousands of workers have
	// the same old manifest.
	recipes map[string]recipe
}

// file returns the path of a manifest in the cache.
func (m *manifest) file(digest string) string {
	return filepath.Join(m.cache, digest+".manifest")
}

// keep stores the manifest for later runs.
func (m *manifest) keep() error {
	if m.cache == "" {
		return nil
	}
	name := m.file(m.digest)
	if now := time.Now(); os.Chtimes(name, now, now) == nil {
		return nil // already stored; now marked as used
	}
	if err := replaceFile(name, func(f *os.File) error {
		_, err := f.Write(m.text)
		return err
	}); err != nil {
		return err
	}
	return dropOldest(m.cache, "*.manifest", mostManifests)
}

// A recipe tells a worker how to make the manifest from pieces. Each piece is a number of
// new bytes, or "offset+length" of the worker's old manifest. A recipe without pieces has
// the whole manifest as new bytes.
type recipe struct {
	pieces []string
	fresh  []byte
	packed []byte // fresh, compressed
}

// mostRecipes limits the recipes in memory. One person's workers have fewer different
// manifests than that.
const mostRecipes = 16

// recipeFrom returns the recipe for a worker whose manifest has that digest. If we do not
// have that manifest, the recipe has the whole new one.
func (m *manifest) recipeFrom(digest string) recipe {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.recipes[digest]; ok {
		return r
	}
	r := m.newRecipe(digest)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(r.fresh) // a write to memory cannot fail
	_ = z.Close()
	r.packed = b.Bytes()
	if m.recipes == nil || len(m.recipes) == mostRecipes {
		m.recipes = map[string]recipe{}
	}
	m.recipes[digest] = r
	return r
}

func (m *manifest) newRecipe(digest string) recipe {
	whole := recipe{fresh: m.text}
	if m.cache == "" || digest == "" {
		return whole
	}
	old, err := os.ReadFile(m.file(digest))
	if err != nil {
		return whole
	}
	if sum := sha256.Sum256(old); hex.EncodeToString(sum[:]) != digest {
		return whole
	}
	at := map[string]int{}
	for offset := 0; offset < len(old); {
		n := entryLength(old[offset:])
		at[string(old[offset:offset+n])] = offset
		offset += n
	}
	var r recipe
	from, to, fresh := 0, 0, 0 // the current piece: a range of the old manifest, or a number of new bytes
	flush := func() {
		if to > from {
			r.pieces = append(r.pieces, strconv.Itoa(from)+"+"+strconv.Itoa(to-from))
		}
		if fresh > 0 {
			r.pieces = append(r.pieces, strconv.Itoa(fresh))
		}
		from, to, fresh = 0, 0, 0
	}
	for offset := 0; offset < len(m.text); {
		entry := m.text[offset : offset+entryLength(m.text[offset:])]
		offset += len(entry)
		place, known := at[string(entry)]
		switch {
		case !known:
			if to > from {
				flush()
			}
			fresh += len(entry)
			r.fresh = append(r.fresh, entry...)
		case to > from && place == to:
			to += len(entry)
		default:
			flush()
			from, to = place, place+len(entry)
		}
	}
	flush()
	if len(r.pieces) == 0 || len(r.pieces) > mostPieces {
		return whole
	}
	return r
}

// entryLength returns the length of the first entry of a manifest. An entry has six fields.
func entryLength(manifest []byte) int {
	n := 0
	for range 6 {
		i := bytes.IndexByte(manifest[n:], 0)
		if i < 0 {
			return len(manifest)
		}
		n += i + 1
	}
	return n
}
