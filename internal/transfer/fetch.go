package transfer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/remote"
)

//go:embed get.sh
var getText string

var getScript = remote.NewProgram("get", remote.Prelude(), getText)

// Place is where files go on this machine.
type Place struct {
	Dir  string // the directory; made if it is missing
	Name string // new name for a single file; "" keeps the names
}

// PlaceFor returns the Place for dest. dest is a directory if it ends with a slash, if such a
// directory exists, or if into is true.
func PlaceFor(dest string, into bool) Place {
	if info, err := os.Stat(dest); into || strings.HasSuffix(dest, "/") || err == nil && info.IsDir() {
		return Place{Dir: filepath.Clean(dest)}
	}
	return Place{Dir: filepath.Dir(dest), Name: filepath.Base(dest)}
}

// Fetched describes what has come from a worker.
type Fetched struct {
	Files   int
	Bytes   int64    // bytes of contents
	LeftOut []string // names of anything but a file, directory or link
	Changed bool     // somebody wrote to a file while the worker read it
	// Placed has the paths of new files and directories on this machine, without the contents
	// of new directories. Replaced has the paths of files that existed here before. Made is the
	// outermost directory made for the files, or "". All are right even if Fetch failed.
	Placed, Replaced []string
	Made             string
}

// Progress shows the progress of a Fetch. Each function may be nil.
type Progress struct {
	Size  func(n int64) // an estimate of the bytes to come
	Moved func(n int64) // number of bytes of contents that have just come
}

// Asked returns an error if a path to copy from a worker does not end with a name or a shell
// pattern.
func Asked(paths []string) error {
	for _, p := range paths {
		name := path.Base(strings.TrimRight(p, "/"))
		if _, err := path.Match(name, ""); err != nil {
			return fmt.Errorf("copy %q: %w", p, err)
		}
		if strings.ContainsRune(p, 0) || p == "" || name == "." || name == ".." || name == "/" || name == "~" {
			return fmt.Errorf("copy %q: name the file or directory itself", p)
		}
	}
	return nil
}

// Fetch copies files of a worker to a place on this machine. Each path is relative to the home
// directory, is absolute, or begins with "~/". It may be a pattern. If Fetch fails before all
// files have arrived, it has changed nothing on this machine. If it fails later, each file is
// either the old or the new one.
func Fetch(ctx context.Context, r remote.Runner, paths []string, to Place, progress Progress) (Fetched, error) {
	if err := Asked(paths); err != nil {
		return Fetched{}, err
	}
	st, err := openStage(to)
	if err != nil {
		return Fetched{}, err
	}
	defer st.close()
	st.wanted, st.progress = paths, progress.Moved
	changed, err := st.receive(ctx, r, paths, progress)
	if err != nil {
		return Fetched{}, err
	}
	if err := st.put(); err != nil {
		return Fetched{Placed: st.got.Placed, Replaced: st.got.Replaced, Made: st.got.Made}, err
	}
	st.got.Changed = changed
	return st.got, nil
}

// receive makes the worker send the files, and compares the digest of what arrived. changed is
// true if a file changed while the worker read it.
func (st *stage) receive(ctx context.Context, r remote.Runner, paths []string, progress Progress) (changed bool, err error) {
	nonce := remote.NewNonce()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	archive, sink := io.Pipe()
	raw := &archived{w: sink, sum: sha256.New()}
	begun := false
	out := &remote.Stream{Raw: raw, Answer: remote.Answer{Nonce: nonce, Next: func(r remote.Record) bool {
		if r.Word == "stream" {
			begun = true
			if size, err := strconv.ParseInt(r.Rest, 10, 64); err == nil && size >= 0 && progress.Size != nil {
				progress.Size(size)
			}
		}
		return false
	}}}
	var status, sum string
	errs := &remote.Answer{Nonce: nonce, Next: func(r remote.Record) bool {
		if r.Word == "sent" {
			status, sum, _ = strings.Cut(r.Rest, " ")
		}
		return false
	}}
	var unpacked error
	var unpacking sync.WaitGroup
	unpacking.Go(func() {
		unpacked = st.unpack(ctx, archive)
		archive.CloseWithError(errStopped)
	})
	cmd := getScript.Cmd(nil, append([]string{nonce}, paths...)...)
	cmd.Stdout, cmd.Stderr = out, errs
	ran, err := r.Run(ctx, cmd)
	sink.Close()
	unpacking.Wait()
	switch {
	case raw.stopped:
		return false, unpacked
	case err != nil:
		return false, err
	case !begun, status == "":
		err := trouble(errs, &out.Answer)
		if ran.Code == 0 {
			err = fmt.Errorf("%w (%s)", err, describe(ran))
		}
		return false, err
	}
	lines := complaints(errs)
	switch {
	case status == "0":
	case status == "1" && len(lines) > 0 && !slices.ContainsFunc(lines, func(line string) bool { return !strings.HasSuffix(line, ": file changed as we read it") }):
		changed = true
	default:
		text := "tar: status " + remote.Clean(status, 20)
		if len(lines) > 0 {
			text = remote.Clean(lines[0], 500)
		}
		return false, &WorkerError{text}
	}
	if unpacked != nil {
		return false, unpacked
	}
	if sum != hex.EncodeToString(raw.sum.Sum(nil)) {
		return false, &WorkerError{"what has arrived is not what was sent, by its digest"}
	}
	return changed, nil
}

var errStopped = errors.New("what comes cannot be taken")

// complaints returns the lines outside of the answer, without harmless remarks of tar.
func complaints(errs *remote.Answer) []string {
	return slices.DeleteFunc(errs.Noise(), func(line string) bool {
		return line == "" || strings.HasSuffix(line, ": socket ignored") || strings.Contains(line, "Removing leading")
	})
}

// An archived writer passes on the bytes of an archive and computes their digest.
type archived struct {
	w       io.Writer
	sum     hash.Hash
	stopped bool // w takes no more bytes
}

func (a *archived) Write(p []byte) (int, error) {
	a.sum.Write(p)
	n, err := a.w.Write(p)
	a.stopped = a.stopped || err != nil
	return n, err
}

// A stage is a directory that holds the files until all have arrived. All work happens in an
// os.Root at the nearest directory that existed before, so no name or link leads out of it.
type stage struct {
	root     *os.Root
	dir      string // path of the stage in root
	to       string // path of the place in root
	name     string // new name for a single file, or ""
	wanted   []string
	progress moved

	got    Fetched
	tops   []string // top-level names that have come
	known  map[string]bool
	dirs   []tar.Header
	joined map[string]bool // directories that existed at the place before
}

func openStage(to Place) (*stage, error) {
	above := to.Dir
	for {
		info, err := os.Stat(above)
		if err == nil && !info.IsDir() {
			return nil, fmt.Errorf("copy to %q: %s is no directory", to.Dir, above)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		above = filepath.Dir(above)
	}
	rel, err := filepath.Rel(above, to.Dir)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(above, ".multihost-cp-")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(above)
	if err != nil {
		os.Remove(dir)
		return nil, err
	}
	return &stage{root: root, dir: filepath.Base(dir), to: rel, name: to.Name, joined: make(map[string]bool), known: make(map[string]bool)}, nil
}

// close removes the files that were not moved to their place.
func (st *stage) close() {
	_ = st.root.RemoveAll(st.dir)
	_ = st.root.Close()
}

// unpack writes the archive below the stage.
func (st *stage) unpack(ctx context.Context, r io.Reader) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // the padding of the last block
			return err
		}
		if err != nil {
			return fmt.Errorf("read what the worker sends: %w", err)
		}
		if err := st.take(h, archive); err != nil {
			return err
		}
	}
}

// take writes one file, directory or link into the stage.
func (st *stage) take(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	top, _, nested := strings.Cut(name, "/")
	if !filepath.IsLocal(name) || name == "." {
		return &WorkerError{fmt.Sprintf("it sends %q, which leads elsewhere: refused", remote.Clean(h.Name, 500))}
	}
	if !st.asked(top) {
		return &WorkerError{fmt.Sprintf("it sends %q, which nobody asked for: refused", remote.Clean(h.Name, 500))}
	}
	if !st.known[top] {
		if st.name != "" && len(st.tops) > 0 {
			return fmt.Errorf("copy to %q: there are several files, %s and %s; make it a directory, with a slash at the end", st.name, st.tops[0], top)
		}
		st.tops, st.known[top] = append(st.tops, top), true
	}
	at := filepath.Join(st.dir, filepath.FromSlash(name))
	if nested {
		if err := st.within(at); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return st.file(at, h, content)
	case tar.TypeDir:
		st.dirs = append(st.dirs, tar.Header{Name: name, Mode: h.Mode, ModTime: h.ModTime})
		if err := st.root.Mkdir(at, 0o700); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return st.isDir(at)
	case tar.TypeSymlink:
		return st.root.Symlink(h.Linkname, at)
	}
	st.got.LeftOut = append(st.got.LeftOut, name)
	return nil
}

// within makes the directories above a file. A link among them is an error.
func (st *stage) within(at string) error {
	dir := filepath.Dir(at)
	if err := st.root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for ; dir != st.dir; dir = filepath.Dir(dir) {
		if err := st.isDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) isDir(at string) error {
	info, err := st.root.Lstat(at)
	if err == nil && !info.IsDir() {
		rel, _ := filepath.Rel(st.dir, at)
		err = &WorkerError{fmt.Sprintf("it sends %q twice, once as no directory: refused", remote.Clean(rel, 500))}
	}
	return err
}

// asked reports whether the user asked for a top-level name.
func (st *stage) asked(name string) bool {
	return slices.ContainsFunc(st.wanted, func(p string) bool {
		pattern := path.Base(strings.TrimRight(p, "/"))
		if pattern == name {
			return true
		}
		ok, err := path.Match(pattern, name)
		return ok && err == nil && (name[0] != '.' || pattern[0] == '.')
	})
}

func (st *stage) file(at string, h *tar.Header, content io.Reader) (err error) {
	f, err := st.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, &counted{content, st.progress})
	st.got.Files++
	st.got.Bytes += n
	if err != nil {
		return err
	}
	if err := f.Chmod(fs.FileMode(h.Mode) & 0o777); err != nil {
		return err
	}
	return st.root.Chtimes(at, time.Time{}, h.ModTime)
}

// put moves everything to its place.
func (st *stage) put() error {
	if len(st.tops) == 0 {
		return &WorkerError{"it sends nothing"}
	}
	made := st.missing()
	if err := st.root.MkdirAll(st.to, 0o777); err != nil {
		return err
	}
	if made != "" {
		st.got.Made = filepath.Join(st.root.Name(), made)
		st.placed(st.to)
	}
	for _, top := range st.tops {
		name := top
		if st.name != "" {
			name = st.name
		}
		if err := st.place(top, filepath.Join(st.to, name)); err != nil {
			return err
		}
	}
	return st.finish()
}

// missing returns the outermost directory of the place that does not exist yet, or "".
func (st *stage) missing() string {
	made := ""
	for dir := st.to; ; dir = filepath.Dir(dir) {
		if _, err := st.root.Lstat(dir); err == nil || dir == "." {
			return made
		}
		made = dir
	}
}

// placed adds a new name to Placed, unless it is in a new directory.
func (st *stage) placed(name string) {
	at := filepath.Join(st.root.Name(), name)
	if n := len(st.got.Placed); n > 0 && strings.HasPrefix(at, st.got.Placed[0]+string(filepath.Separator)) {
		return
	}
	st.got.Placed = append(st.got.Placed, at)
}

// place moves the name from in the stage to the place to. It merges a directory into an
// existing one. Anything else replaces an existing file by a rename.
func (st *stage) place(from, to string) error {
	at := filepath.Join(st.dir, from)
	info, err := st.root.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // left out
	}
	if err != nil {
		return err
	}
	there, err := st.root.Lstat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		st.placed(to)
		return st.root.Rename(at, to)
	case err != nil:
		return err
	case info.IsDir() && there.IsDir():
		st.joined[filepath.ToSlash(from)] = true
		dir, err := st.root.Open(at)
		if err != nil {
			return err
		}
		entries, err := dir.ReadDir(-1)
		dir.Close()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := st.place(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
		return nil
	case info.IsDir():
		return fmt.Errorf("copy to %q: it is no directory here, and a directory comes", to)
	case there.IsDir():
		return fmt.Errorf("copy to %q: it is a directory here, and what comes is none", to)
	}
	st.got.Replaced = append(st.got.Replaced, filepath.Join(st.root.Name(), to))
	return st.root.Rename(at, to)
}

// finish sets the modes and times of the new directories, inner ones first.
func (st *stage) finish() error {
	for _, h := range slices.Backward(st.dirs) {
		if st.joined[h.Name] {
			continue
		}
		top, rest, _ := strings.Cut(h.Name, "/")
		if st.name != "" {
			top = st.name
		}
		at := filepath.Join(st.to, top, filepath.FromSlash(rest))
		if err := st.root.Chtimes(at, time.Time{}, h.ModTime); err != nil {
			return err
		}
		if err := st.root.Chmod(at, fs.FileMode(h.Mode)&0o777); err != nil {
			return err
		}
	}
	st.dirs = nil
	return nil
}
