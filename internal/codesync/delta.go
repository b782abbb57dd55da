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

// Manifests are kept beside the hashes by digest, so that a worker that tells
// which one it has last had is sent what is different in the new one. Of 5000
// files that is a hundred bytes in place of 200 kB.

// mostManifests is how many are kept.
const mostManifests = 32

// mostPieces bounds how many pieces a manifest is put together from; beyond
// that it is sent whole.
const mostPieces = 256

func (t *Tree) manifestFile(digest string) string {
	return filepath.Join(t.opts.Cache, digest+".manifest")
}

// keepManifest remembers the manifest for later runs.
func (t *Tree) keepManifest() error {
	if t.opts.Cache == "" || t.opts.ReadOnly {
		return nil
	}
	name := t.manifestFile(t.Digest)
	if now := time.Now(); os.Chtimes(name, now, now) == nil {
		return nil // it is known, and used again
	}
	if err := replaceFile(name, func(f *os.File) error {
		_, err := f.Write(t.manifest)
		return err
	}); err != nil {
		return err
	}
	return dropOldest(t.opts.Cache, "*.manifest", mostManifests)
}

// A recipe is how a worker makes the manifest: each piece is the length of new
// bytes, or "offset+length" of its old manifest. Without pieces all is new.
type recipe struct {
	pieces []string
	fresh  []byte
	packed []byte // fresh, as it travels
}

// recipes are those that were asked for, by the digest of the old manifest: of
// thousands of workers nearly all have had the same one.
type recipes struct {
	mu    sync.Mutex
	known map[string]recipe
}

// mostRecipes is more than a fleet has that was used by one person.
const mostRecipes = 16

// recipeFrom is the way from the manifest with that digest, if we know it.
func (t *Tree) recipeFrom(digest string) recipe {
	t.recipes.mu.Lock()
	defer t.recipes.mu.Unlock()
	if r, ok := t.recipes.known[digest]; ok {
		return r
	}
	r := t.newRecipe(digest)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(r.fresh) // to memory
	_ = z.Close()
	r.packed = b.Bytes()
	if t.recipes.known == nil || len(t.recipes.known) == mostRecipes {
		t.recipes.known = map[string]recipe{}
	}
	t.recipes.known[digest] = r
	return r
}

func (t *Tree) newRecipe(digest string) recipe {
	whole := recipe{fresh: t.manifest}
	if t.opts.Cache == "" || digest == "" {
		return whole
	}
	old, err := os.ReadFile(t.manifestFile(digest))
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
	from, to, fresh := 0, 0, 0 // the piece that is being made: of the old one, or new
	flush := func() {
		if to > from {
			r.pieces = append(r.pieces, strconv.Itoa(from)+"+"+strconv.Itoa(to-from))
		}
		if fresh > 0 {
			r.pieces = append(r.pieces, strconv.Itoa(fresh))
		}
		from, to, fresh = 0, 0, 0
	}
	for offset := 0; offset < len(t.manifest); {
		entry := t.manifest[offset : offset+entryLength(t.manifest[offset:])]
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

// entryLength is how long the first entry of a manifest is: six fields.
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
