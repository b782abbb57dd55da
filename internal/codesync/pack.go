package codesync

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/pgzip"
)

const (
	// spoolMemory limits the part of a packed set that is in memory, not in a file. Only a
	// few sets exist at a time; see idlePacks.
	spoolMemory = 8 << 20
	// idlePacks limits the packed sets that no transfer uses now. Workers that lack the
	// same contents need the same set one after another.
	idlePacks = 4
)

// packs makes each set of contents once for all workers.
type packs struct {
	mu    sync.Mutex
	byKey map[string]*pack
	idle  []string // keys of packs that no transfer uses, longest idle first
	build sync.Mutex
}

// A pack is a set of contents as a tar archive. It is compressed if that makes it smaller.
type pack struct {
	ready chan struct{} // closed when data or err is set
	data  *spool
	plain bool // not compressed
	err   error
	files int
	users int // guarded by packs.mu
}

// form returns the word of the worker script for the format.
func (p *pack) form() string {
	if p.plain {
		return "plain"
	}
	return "gzip"
}

// acquire returns the pack of hashes. The caller must call the release function.
func (t *Tree) acquire(ctx context.Context, hashes []string) (*pack, func(), error) {
	sum := sha256.Sum256([]byte(strings.Join(hashes, "\n")))
	key := hex.EncodeToString(sum[:])
	for {
		p, mine := t.packs.enter(key)
		if mine {
			t.packs.build.Lock() // one at a time: each uses all processors
			p.data, p.plain, p.err = t.contents.pack(ctx, hashes)
			t.packs.build.Unlock()
			p.files = len(hashes)
			if p.err != nil {
				t.packs.forget(key, p)
			}
			close(p.ready)
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			t.packs.leave(key, p)
			return nil, nil, context.Cause(ctx)
		}
		if p.err == nil {
			return p, sync.OnceFunc(func() { t.packs.leave(key, p) }), nil
		}
		t.packs.leave(key, p)
		// If the context of another caller ended while it packed, this caller still needs the
		// pack and tries again.
		if mine || !errors.Is(p.err, errGivenUp) {
			return nil, nil, p.err
		}
	}
}

// errGivenUp is the error of a pack if the context of the caller that packed has ended.
var errGivenUp = errors.New("packing was given up")

func (ps *packs) enter(key string) (p *pack, mine bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byKey == nil {
		ps.byKey = map[string]*pack{}
	}
	p = ps.byKey[key]
	if p == nil {
		p = &pack{ready: make(chan struct{})}
		ps.byKey[key] = p
		mine = true
	}
	p.users++
	ps.idle = slices.DeleteFunc(ps.idle, func(k string) bool { return k == key })
	return p, mine
}

// forget removes a failed pack, so that later callers pack again.
func (ps *packs) forget(key string, p *pack) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byKey[key] == p {
		delete(ps.byKey, key)
	}
}

func (ps *packs) leave(key string, p *pack) {
	ps.mu.Lock()
	var drop []*pack
	p.users--
	if p.users == 0 && ps.byKey[key] == p {
		ps.idle = append(ps.idle, key)
		for len(ps.idle) > idlePacks {
			drop = append(drop, ps.byKey[ps.idle[0]])
			delete(ps.byKey, ps.idle[0])
			ps.idle = ps.idle[1:]
		}
	}
	ps.mu.Unlock()
	for _, p := range drop {
		p.data.Close()
	}
}

// Close frees the packed files. Call it after the last Push.
func (t *Tree) Close() error {
	t.packs.mu.Lock()
	defer t.packs.mu.Unlock()
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(t.packs.byKey)) {
		if p := t.packs.byKey[key]; p.data != nil {
			errs = append(errs, p.data.Close())
		}
	}
	clear(t.packs.byKey)
	t.packs.idle = nil
	return errors.Join(errs...)
}

type contents struct {
	dir    string // of the tree
	temp   string // for packed files
	byHash map[string]Entry
}

// A set is compressed only if gzip saves at least the share worthUnpacking. Decompressing
// takes a worker 10 ms for each MB, nearly half of all its work to receive a set, and a
// slice has many workers.
const worthUnpacking = 0.1

// pack writes the contents into a spool. The name of each content is its hash.
func (c *contents) pack(ctx context.Context, hashes []string) (_ *spool, plain bool, err error) {
	plain = !c.shrinks(hashes)
	s := &spool{dir: c.temp}
	if err := c.writeArchive(ctx, s, hashes, plain); err != nil {
		s.Close()
		if ctx.Err() != nil {
			return nil, false, fmt.Errorf("%w: %w", errGivenUp, context.Cause(ctx))
		}
		return nil, false, err
	}
	return s, plain, nil
}

// Number of samples, and bytes of each. The samples lie evenly over the bytes of a set.
const (
	samples    = 64
	sampleSize = 16 << 10
)

// shrinks reports whether it is worth compressing the contents. It compresses samples,
// because compressing everything takes longer than sending it over a fast link. It returns
// true for a set no larger than the samples. It also returns true if a file cannot be read,
// because the caller reads everything and reports the error.
func (c *contents) shrinks(hashes []string) bool {
	var size int64
	for _, h := range hashes {
		size += c.byHash[h].Size
	}
	if size <= samples*sampleSize {
		return true
	}
	var packed countingWriter
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid
	var read, begin, next int64                          // offset of the content in the set
	buf := make([]byte, sampleSize)
	for _, h := range hashes {
		e := c.byHash[h]
		for ; next < begin+e.Size; next += size / samples {
			n, err := c.sample(e, buf, next-begin)
			if err != nil {
				return true
			}
			read += int64(n)
			_, _ = z.Write(buf[:n]) // a counter never fails
		}
		begin += e.Size
	}
	_ = z.Close()
	return float64(packed) < (1-worthUnpacking)*float64(read)
}

// sample reads buf from offset of a file, or less if the file ends earlier.
func (c *contents) sample(e Entry, buf []byte, offset int64) (int, error) {
	f, err := openRegular(filepath.Join(c.dir, e.Path))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(buf, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// A countingWriter counts the bytes written to it.
type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

func (c *contents) writeArchive(ctx context.Context, w io.Writer, hashes []string, plain bool) error {
	if !plain {
		// Compression matters only on a slow link. Even the fastest level gains most of
		// what is possible: it packs program text into a quarter.
		z, err := pgzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		if err := c.writeArchive(ctx, z, hashes, true); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return fmt.Errorf("pack files: %w", err)
		}
		return nil
	}
	archive := tar.NewWriter(w)
	for _, h := range hashes {
		e, ok := c.byHash[h]
		if !ok {
			return fmt.Errorf("pack files: worker asks for unknown content %q", h)
		}
		if err := c.addFile(ctx, archive, e, &tar.Header{Typeflag: tar.TypeReg, Name: e.Hash, Mode: 0o600, Size: e.Size}); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	return nil
}

// addFile adds one file with its scanned content. If the file has only grown since the
// scan, addFile takes the scanned part.
func (c *contents) addFile(ctx context.Context, archive *tar.Writer, e Entry, header *tar.Header) error {
	f, err := openRegular(filepath.Join(c.dir, e.Path))
	if err != nil {
		return &FileError{e.Path, fmt.Errorf("changed since it was listed: %w", cause(err))}
	}
	defer f.Close()
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(archive, h), &reader{ctx: ctx, r: io.LimitReader(f, e.Size)})
	if err != nil {
		return fmt.Errorf("pack %q: %w", e.Path, err)
	}
	if n != e.Size || hexSum(h) != e.Hash {
		return &FileError{e.Path, fmt.Errorf("changed since it was listed: %w", ErrChanging)}
	}
	return nil
}

// A spool keeps bytes in memory up to spoolMemory, then in a file without a name, which the
// system removes even if this process is killed.
type spool struct {
	dir  string
	mem  bytes.Buffer
	file *os.File
	size int64
}

func (s *spool) Write(p []byte) (int, error) {
	if s.file == nil && s.mem.Len()+len(p) > spoolMemory {
		f, err := os.CreateTemp(s.dir, "multihost-sync-")
		if err != nil {
			return 0, fmt.Errorf("spool packed files: %w", err)
		}
		s.file = f
		if err := os.Remove(f.Name()); err != nil {
			return 0, fmt.Errorf("spool packed files: %w", err)
		}
		if _, err := f.Write(s.mem.Bytes()); err != nil {
			return 0, fmt.Errorf("spool packed files in %q: %w", filepath.Dir(f.Name()), err)
		}
		s.mem = bytes.Buffer{}
	}
	var n int
	var err error
	if s.file != nil {
		if n, err = s.file.Write(p); err != nil {
			err = fmt.Errorf("spool packed files in %q: %w", filepath.Dir(s.file.Name()), err)
		}
	} else {
		n, err = s.mem.Write(p)
	}
	s.size += int64(n)
	return n, err
}

// reader returns a reader of all bytes, independent of other readers.
func (s *spool) reader() io.Reader {
	if s.file != nil {
		return io.NewSectionReader(s.file, 0, s.size)
	}
	return bytes.NewReader(s.mem.Bytes())
}

func (s *spool) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// Archive writes the whole tree as a gzipped tar archive, for workers that no Push can
// reach. If a file has changed since the Scan, the error is a *FileError.
func (t *Tree) Archive(ctx context.Context, w io.Writer) error { return t.ArchiveBelow(ctx, w, "") }

// ArchiveBelow is Archive with all names below folder. The archive also has the folder
// itself. The same tree always gives the same bytes.
func (t *Tree) ArchiveBelow(ctx context.Context, w io.Writer, folder string) error {
	z, err := pgzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(z)
	if folder != "" {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755}); err != nil {
			return fmt.Errorf("pack files: %w", err)
		}
	}
	for _, e := range t.Entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h := &tar.Header{Name: path.Join(folder, e.Path), Mode: int64(e.Mode.Perm())}
		switch e.Kind {
		case Dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case Symlink:
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Target, 0o777
		case File:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
			if err := t.contents.addFile(ctx, archive, e, h); err != nil {
				return err
			}
			continue
		}
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("pack files: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	return nil
}
