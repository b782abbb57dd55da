package codesync

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/event"
)

const (
	// Scan names the largest files of a tree above bigTree.
	bigTree = 100 << 20
	// countLimit limits the count of files in a skipped directory.
	countLimit = 100_000
	// readTries limits how often Scan reads a file that changes while it is read.
	readTries = 3
)

// Scan lists and hashes the files of o.Dir to send. In a git work tree, these are the
// tracked files and the untracked files that are not ignored, also of submodules and of
// repositories inside. Elsewhere, these are all files. Scan never sends .git, paths that an
// IgnoreFile names, or files that commands wrote there (Remember).
//
// Scan sends symbolic links as links. It skips links that lead out of the directory,
// sockets, FIFOs and devices: it lists them in Tree.Skipped and never opens them. A file
// that cannot be read, or that changes during each read, is a *FileError. Scan emits Notes
// about sent and skipped files.
func Scan(ctx context.Context, o Options) (*Tree, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		git = ""
	}
	s := &scanner{opts: o, git: git, open: openRegular}
	return s.scan(ctx)
}

// A scanner holds the state of one Scan.
type scanner struct {
	opts  Options
	git   string // path of git; "": not installed
	open  func(name string) (*os.File, error)
	root  string
	list  *listing
	ours  ours
	names []string // names of the ignore files in use
	tree  *Tree
	notes []event.Note
}

func (s *scanner) scan(ctx context.Context) (*Tree, error) {
	if s.opts.Sink == nil {
		s.opts.Sink = event.Discard
	}
	root, err := s.findRoot()
	if err != nil {
		return nil, err
	}
	s.root = root
	s.tree = &Tree{dir: root, opts: s.opts}
	base, err := s.chooseRules(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.findOurs(ctx); err != nil {
		return nil, err
	}
	if err := s.walk(ctx, "", base); err != nil {
		return nil, err
	}
	if err := s.hashAll(ctx); err != nil {
		return nil, err
	}
	s.tree.finish()
	if !s.opts.ReadOnly {
		if err := s.tree.manifest.keep(); err != nil {
			s.note(event.Debug, fmt.Sprintf("the list of files is not remembered: %v", err), "")
		}
	}
	for _, n := range append(s.notes, s.tree.describe()...) {
		s.opts.Sink.Emit(n)
	}
	return s.tree, nil
}

// findRoot checks the directory and returns its path without links.
func (s *scanner) findRoot() (string, error) {
	dir := s.opts.Dir
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &DirError{dir, "no such directory", ""}
	} else if err != nil {
		return "", &DirError{dir, err.Error(), ""}
	}
	info, err := os.Stat(root)
	switch {
	case err != nil:
		return "", &DirError{dir, err.Error(), ""}
	case !info.IsDir():
		return "", &DirError{dir, "not a directory", "give the directory that the file is in"}
	case filepath.Dir(root) == root:
		return "", &DirError{dir, "this is the whole file system", "change to the directory of your program"}
	}
	if s.opts.Home == "" {
		return root, nil
	}
	home, err := filepath.EvalSymlinks(s.opts.Home)
	if err != nil {
		return root, nil
	}
	if strings.HasPrefix(home, root+string(filepath.Separator)) {
		return "", &DirError{dir, "your home directory lies in it", "change to the directory of your program"}
	}
	if home == root && !exists(filepath.Join(root, IgnoreFile)) && !exists(filepath.Join(root, ".git")) {
		return "", &DirError{dir, "this is your home directory: keys and caches would be sent to every worker",
			"change to the directory of your program, or say in ~/" + IgnoreFile + " what not to send"}
	}
	return root, nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// chooseRules decides how to select files: by git, by ignore files, or not at all. It
// returns the rules from the directories above.
func (s *scanner) chooseRules(ctx context.Context) ([][]ignoreFile, error) {
	if s.opts.NoIgnore {
		return nil, nil
	}
	s.names = []string{IgnoreFile}
	rules := [][]ignoreFile{nil}
	top := workTree(s.root)
	switch {
	case top == "":
	case s.git != "":
		list, err := s.listGit(ctx, s.root)
		if err != nil {
			return nil, err
		}
		if list == nil {
			s.note(event.Info, fmt.Sprintf("%q is not part of the git work tree %q: everything in it is sent", s.root, top), "")
			break
		}
		s.list = list
		for _, text := range list.notes {
			s.note(event.Warn, text, "")
		}
	default:
		above, err := gitRules(top, s.root)
		if err != nil {
			return nil, err
		}
		s.names = append(s.names, ".gitignore")
		rules = append(rules, above)
		s.note(event.Warn, "git is not installed: files are chosen by .gitignore alone, so tracked files that match it are not sent",
			"apt-get install git")
	}
	return rules, nil
}

func (s *scanner) note(level event.Level, text, hint string) {
	s.notes = append(s.notes, event.Note{Level: level, Text: text, Hint: hint})
}

// walk adds the entries to send below dir. rules[i] has the ignore files called names[i] of
// the directories above.
func (s *scanner) walk(ctx context.Context, dir string, rules [][]ignoreFile) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	found, err := os.ReadDir(filepath.Join(s.root, dir))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return &FileError{dir + "/", cause(err)}
	}
	here := make([][]ignoreFile, len(s.names))
	for i, name := range s.names {
		text, err := readIfThere(filepath.Join(s.root, dir, name))
		if err != nil {
			return &FileError{path.Join(dir, name), cause(err)}
		}
		here[i] = rules[i]
		if own := parseRules(text); len(own) > 0 {
			base := ""
			if dir != "" {
				base = dir + "/"
			}
			here[i] = append(slices.Clip(here[i]), ignoreFile{base: base, rules: own})
		}
	}
	for _, entry := range found {
		if entry.Name() == ".git" {
			continue
		}
		if err := s.visit(ctx, path.Join(dir, entry.Name()), entry, here); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) visit(ctx context.Context, name string, entry fs.DirEntry, rules [][]ignoreFile) error {
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return &FileError{name, cause(err)}
	}
	for i, files := range rules {
		if ignored(files, name, info.IsDir()) {
			s.skip(name, "ignored by "+s.names[i], info)
			return nil
		}
	}
	if why := s.ours.of(name); why != "" && !s.opts.NoIgnore && (s.list == nil || s.list.files[name] || s.list.dirs[name]) {
		if _, wanted := judged(rules[0], name, info.IsDir()); !wanted {
			s.skip(name, why, info)
			s.tree.ours = true
			return nil
		}
	}
	if info.IsDir() {
		return s.visitDir(ctx, name, info, rules)
	}
	if why := oddType(info.Mode()); why != "" {
		s.tree.Skipped = append(s.tree.Skipped, Skip{Path: name, Why: why, Odd: true})
		return nil
	}
	if s.list != nil && !s.list.files[name] {
		s.skip(name, "ignored by git", info)
		return nil
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return s.visitLink(name)
	}
	s.tree.Entries = append(s.tree.Entries, Entry{Path: name, Kind: File, Mode: permissions(info) | 0o400})
	return nil
}

func (s *scanner) visitDir(ctx context.Context, name string, info fs.FileInfo, rules [][]ignoreFile) error {
	if s.list != nil && !s.list.dirs[name] {
		// Either the directory has no file to send, or git could not read it.
		if _, err := os.ReadDir(filepath.Join(s.root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) &&
			!s.gitIgnores(ctx, s.root, name) {
			return &FileError{name + "/", cause(err)}
		}
		s.skip(name, "ignored by git", info)
		return nil
	}
	s.tree.Entries = append(s.tree.Entries, Entry{Path: name, Kind: Dir, Mode: permissions(info) | 0o700})
	return s.walk(ctx, name, rules)
}

func (s *scanner) visitLink(name string) error {
	target, err := os.Readlink(filepath.Join(s.root, name))
	if err != nil {
		return &FileError{name, cause(err)}
	}
	target = filepath.ToSlash(target)
	if leadsOut(name, target) {
		s.tree.Skipped = append(s.tree.Skipped, Skip{Path: name, Why: fmt.Sprintf("link out of the directory, to %q", target), Odd: true})
		return nil
	}
	s.tree.Entries = append(s.tree.Entries, Entry{Path: name, Kind: Symlink, Target: target})
	return nil
}

// leadsOut reports whether the link called name, with the text target, leads out of the
// directory. A link with an absolute target always does, because on the worker that target
// means another file.
func leadsOut(name, target string) bool {
	if path.IsAbs(target) || filepath.IsAbs(target) {
		return true
	}
	to := path.Join(path.Dir(name), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

// oddType names the type of a socket, FIFO or device. For other types it returns "".
func oddType(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "FIFO"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&(fs.ModeDevice|fs.ModeCharDevice) != 0:
		return "device"
	case mode&fs.ModeIrregular != 0:
		return "no regular file"
	}
	return ""
}

// skip records that Scan leaves out name, and why. It ignores directories without files.
func (s *scanner) skip(name, why string, info fs.FileInfo) {
	skip := Skip{Path: name, Why: why}
	if info.IsDir() {
		skip.Path += "/"
		skip.Files = countFiles(filepath.Join(s.root, name))
		if skip.Files == 0 {
			return
		}
	}
	s.tree.Skipped = append(s.tree.Skipped, skip)
}

// countFiles counts everything below dir except directories, up to countLimit.
func countFiles(dir string) int {
	n := 0
	// Nobody sends unreadable directories, so do not count them.
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		if n >= countLimit {
			return fs.SkipAll
		}
		return nil
	})
	return n
}

// hashAll hashes all files without a known hash. It drops files that were deleted after the
// walk.
func (s *scanner) hashAll(ctx context.Context) error {
	now := time.Now
	if s.opts.Now != nil {
		now = s.opts.Now
	}
	cache := openHashes(s.opts.Cache, s.root)
	if s.opts.ReadOnly {
		cache.path = ""
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(8, runtime.GOMAXPROCS(0)))
	entries := s.tree.Entries
	found := make([]fs.FileInfo, len(entries)) // state before the read
	begun := make([]time.Time, len(entries))
	for i := range entries {
		if entries[i].Kind != File {
			continue
		}
		group.Go(func() error {
			e := &entries[i]
			begun[i] = now()
			info, err := os.Lstat(filepath.Join(s.root, e.Path))
			if err == nil && info.Mode().IsRegular() {
				found[i] = info
				if hash, ok := cache.get(e.Path, info); ok {
					e.Hash, e.Size = hash, info.Size()
					return nil
				}
			}
			e.Hash, e.Size, err = s.hashFile(ctx, e.Path)
			if errors.Is(err, fs.ErrNotExist) {
				e.Path = ""
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, e := range entries {
		if found[i] != nil && e.Path != "" && found[i].Size() == e.Size {
			cache.keep(e.Path, e.Hash, found[i], begun[i])
		}
	}
	if err := cache.save(); err != nil {
		s.note(event.Debug, fmt.Sprintf("hashes are not remembered: %v", err), "")
	}
	s.tree.Entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Path == "" })
	return nil
}

// hashFile reads the file until it has not changed during a read.
func (s *scanner) hashFile(ctx context.Context, name string) (sum string, size int64, err error) {
	for range readTries {
		if ctx.Err() != nil {
			return "", 0, context.Cause(ctx)
		}
		var stable bool
		sum, size, stable, err = s.readOnce(ctx, name)
		if err != nil || stable {
			return sum, size, err
		}
	}
	return "", 0, &FileError{name, ErrChanging}
}

func (s *scanner) readOnce(ctx context.Context, name string) (sum string, size int64, stable bool, err error) {
	f, err := s.open(filepath.Join(s.root, name))
	if err != nil {
		return "", 0, false, &FileError{name, cause(err)}
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return "", 0, false, &FileError{name, cause(err)}
	}
	h := sha256.New()
	// One byte more than expected shows that a file grows. The limit keeps Scan from reading
	// such a file for ever.
	n, err := io.Copy(h, &reader{ctx: ctx, r: io.LimitReader(f, before.Size()+1)})
	if err != nil {
		return "", 0, false, &FileError{name, cause(err)}
	}
	after, err := f.Stat()
	if err != nil {
		return "", 0, false, &FileError{name, cause(err)}
	}
	stable = n == before.Size() && n == after.Size() && before.ModTime().Equal(after.ModTime())
	return hexSum(h), n, stable, nil
}

// openRegular opens a regular file. If name is now something else, it does not block.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, readFlags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("is no regular file any more: %w", ErrChanging)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A reader fails when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// cause removes the path from err, because the caller names the file better.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// finish computes the fields that follow from the entries.
func (t *Tree) finish() {
	slices.SortFunc(t.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(t.Skipped, func(a, b Skip) int { return strings.Compare(a.Path, b.Path) })
	t.contents = contents{dir: t.dir, temp: t.opts.TempDir, byHash: map[string]Entry{}}
	var files []Entry
	for _, e := range t.Entries {
		if e.Kind == File {
			t.Count++
			t.Bytes += e.Size
			t.contents.byHash[e.Hash] = e
			files = append(files, e)
		}
	}
	slices.SortStableFunc(files, func(a, b Entry) int { return cmp.Compare(b.Size, a.Size) })
	t.Largest = slices.Clone(files[:min(5, len(files))])
	t.manifest.text, t.manifest.cache = encode(t.Entries), t.opts.Cache
	sum := sha256.Sum256(t.manifest.text)
	t.Digest = hex.EncodeToString(sum[:])
	t.manifest.digest = t.Digest
}

// encode returns the manifest: six fields of each entry, each followed by a NUL.
func encode(entries []Entry) []byte {
	var b []byte
	for _, e := range entries {
		size := ""
		if e.Kind == File {
			size = fmt.Sprint(e.Size)
		}
		for _, field := range []string{string(e.Kind), fmt.Sprintf("%04o", e.Mode), size, e.Hash, e.Path, e.Target} {
			b = append(append(b, field...), 0)
		}
	}
	return b
}

// Dir returns the scanned directory, without links in its path.
func (t *Tree) Dir() string { return t.dir }

// describe returns notes about sent and skipped files.
func (t *Tree) describe() []event.Note {
	what := fmt.Sprintf("sync %q: %s, %s", t.dir, event.Count(t.Count, "file"), event.Bytes(t.Bytes))
	notes := []event.Note{{Level: event.Info, Text: what}}
	if t.Count == 0 {
		notes[0].Level = event.Warn
		notes[0].Text = fmt.Sprintf("sync %q: no files to send", t.dir)
	}
	var asked, odd []string
	for _, skip := range t.Skipped {
		if skip.Odd {
			odd = append(odd, skip.String())
		} else {
			asked = append(asked, skip.String())
		}
	}
	if len(asked) > 0 {
		hint := "send them too with --no-ignore"
		if t.ours {
			hint += "; to send only one of them, write its name into " + IgnoreFile + ", with a ! before it"
		}
		notes = append(notes, event.Note{Level: event.Info, Text: "not sent: " + firstOf(asked, 10), Hint: hint})
	}
	if len(odd) > 0 {
		notes = append(notes, event.Note{Level: event.Warn, Text: "cannot be sent: " + firstOf(odd, 10)})
	}
	if t.Bytes > bigTree {
		var largest []string
		for _, e := range t.Largest {
			largest = append(largest, fmt.Sprintf("%s (%s)", printable(e.Path), event.Bytes(e.Size)))
		}
		notes = append(notes, event.Note{Level: event.Warn, Text: "largest files: " + strings.Join(largest, ", "),
			Hint: "name what the workers do not need in " + IgnoreFile})
	}
	return notes
}

func (s Skip) String() string {
	switch {
	case s.Files >= countLimit:
		return fmt.Sprintf("%s (%s, more than %d files)", printable(s.Path), s.Why, countLimit)
	case s.Files > 0:
		return fmt.Sprintf("%s (%s, %s)", printable(s.Path), s.Why, event.Count(s.Files, "file"))
	}
	return fmt.Sprintf("%s (%s)", printable(s.Path), s.Why)
}

// printable quotes a path that people would misread without quotes.
func printable(name string) string {
	if quoted := fmt.Sprintf("%q", name); quoted != `"`+name+`"` || strings.Contains(name, ", ") {
		return quoted
	}
	return name
}

func firstOf(items []string, n int) string {
	if len(items) <= n {
		return strings.Join(items, ", ")
	}
	return strings.Join(items[:n], ", ") + fmt.Sprintf(" and %d more", len(items)-n)
}
