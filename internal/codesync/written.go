package codesync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Commands write files on this machine where the user wants them, often into the directory
// of the program. These files are from an ended run, so the next run does not need them on
// its workers. Commands therefore list the files that they wrote, and Scan leaves these
// out.

const (
	// mostWritten limits the commands that Remember keeps.
	mostWritten = 500
	// mostFiles limits the files of one directory whose state Remember keeps.
	mostFiles = 20_000
)

// A Written is something that a command wrote on this machine.
type Written struct {
	Path string `json:"path"`
	// Names are patterns for files in the directory Path, which the command wrote. Without
	// Names, the Written is Path itself.
	Names []string `json:"names,omitempty"`
	// Made says that the command made the directory Path. Scan leaves the directory out if
	// it has no file of the user.
	Made bool `json:"made,omitempty"`

	// Files are the files that the command wrote into the directory Path. Their paths are
	// relative, with slashes. Other files in that directory belong to the user. If the
	// command wrote more than mostFiles, Many is true, and Scan leaves out the whole
	// directory.
	Files []Written `json:"files,omitempty"`
	Many  bool      `json:"many,omitempty"`

	// Size and ModNS are the size and the time of modification right after the command
	// wrote the file. A file that is different now belongs to the user.
	Size  int64 `json:"size,omitempty"`
	ModNS int64 `json:"mod_ns,omitempty"`
}

// writtenFile is what Remember stores of one command.
type writtenFile struct {
	By    string    `json:"by"`
	Paths []Written `json:"paths"`

	at string // path of this file
}

// Remember stores which files a command wrote. dir is the directory for Options.Written. It
// forgets a command when none of its files exists.
func Remember(dir, by string, paths []Written) error {
	kept := writtenFile{By: by}
	for _, w := range paths {
		at, err := resolved(w.Path)
		if err != nil {
			return err
		}
		w.Path = at
		if info, err := os.Lstat(w.Path); err == nil && len(w.Names) == 0 && !w.Made {
			w.keepState(info, mostFiles)
		}
		kept.Paths = append(kept.Paths, w)
	}
	if len(kept.Paths) == 0 {
		return nil
	}
	forget(dir)
	hash := sha256.New()
	for _, w := range kept.Paths {
		hash.Write([]byte(by + "\x00" + w.Path + "\x00" + strings.Join(w.Names, "/") + "\x00"))
	}
	at := filepath.Join(dir, hex.EncodeToString(hash.Sum(nil)[:16])+".json")
	if err := replaceFile(at, func(f *os.File) error { return json.NewEncoder(f).Encode(kept) }); err != nil {
		return err
	}
	return dropOldest(dir, "*.json", mostWritten)
}

// keepState keeps the state of a file. For a directory, it keeps the states of its files,
// unless there are too many.
func (w *Written) keepState(info fs.FileInfo, most int) {
	if !info.IsDir() {
		w.Size, w.ModNS = info.Size(), info.ModTime().UnixNano()
		return
	}
	w.Made = true
	_ = filepath.WalkDir(w.Path, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // an unreadable file counts as the user's
		}
		rel, err := filepath.Rel(w.Path, at)
		info, infoErr := d.Info()
		if err != nil || infoErr != nil {
			return nil
		}
		if len(w.Files) == most {
			w.Files, w.Made, w.Many = nil, false, true
			return fs.SkipAll
		}
		file := Written{Path: filepath.ToSlash(rel)}
		file.keepState(info, 0)
		w.Files = append(w.Files, file)
		return nil
	})
}

// Remembered returns the paths that an earlier Remember has stored.
func Remembered(dir string, paths []string) (known []string) {
	if len(paths) == 0 {
		return nil
	}
	all := map[string]bool{}
	for _, kept := range writtenFiles(dir) {
		for _, w := range kept.Paths {
			all[w.Path] = all[w.Path] || len(w.Names) == 0
			for _, file := range w.Files {
				all[filepath.Join(w.Path, filepath.FromSlash(file.Path))] = true
			}
		}
	}
	for _, p := range paths {
		if at, err := resolved(p); err == nil && all[at] {
			known = append(known, p)
		}
	}
	return known
}

// resolved returns a path in the form of Scan's root: absolute, without links in the
// directories above.
func resolved(path string) (string, error) {
	at, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(at))
	return filepath.Join(above, filepath.Base(at)), err
}

// forget removes the records in dir whose files are all gone.
func forget(dir string) {
	for _, kept := range writtenFiles(dir) {
		if !slices.ContainsFunc(kept.Paths, func(w Written) bool { return exists(w.Path) }) {
			_ = os.Remove(kept.at) // the next command tries again
		}
	}
}

// writtenFiles reads the records of Remember. It skips unreadable records, because they
// must not prevent a run.
func writtenFiles(dir string) (all []writtenFile) {
	if dir == "" {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, name := range names {
		kept := writtenFile{at: name}
		if data, err := os.ReadFile(name); err == nil && json.Unmarshal(data, &kept) == nil {
			all = append(all, kept)
		}
	}
	return all
}

// ours are the files below the root of a Scan that commands wrote.
type ours struct {
	whole   map[string]string // why Scan leaves out a file or directory, by name
	named   map[string][]namedFiles
	tracked map[string]bool // git tracks these files, so they are the user's
}

// namedFiles are the files of one directory whose names match patterns.
type namedFiles struct {
	patterns []string
	why      string
}

func (s *scanner) findOurs(ctx context.Context) error {
	s.ours = ours{whole: map[string]string{}, named: map[string][]namedFiles{}}
	if s.opts.NoIgnore || s.opts.Written == "" {
		return nil
	}
	var made []madeDir
	for _, kept := range writtenFiles(s.opts.Written) {
		why := "written here by " + kept.By
		for _, w := range kept.Paths {
			name, ok := s.below(w.Path)
			switch {
			case !ok || name == "." && len(w.Names) == 0:
			case len(w.Names) > 0:
				s.ours.named[name] = append(s.ours.named[name], namedFiles{w.Names, why})
			case w.Made:
				made = append(made, madeDir{name, why})
				for _, file := range w.Files {
					if file.unchanged(filepath.Join(w.Path, filepath.FromSlash(file.Path))) {
						s.ours.whole[path.Join(name, file.Path)] = why
					}
				}
			case w.Many:
				s.ours.whole[name] = fmt.Sprintf("%s, with more than %d files: your changes to them are not sent either", why, mostFiles)
			case w.unchanged(w.Path):
				s.ours.whole[name] = why
			}
		}
	}
	if state, err := filepath.EvalSymlinks(filepath.Dir(s.opts.Written)); err == nil {
		if name, ok := s.below(state); ok && name != "." {
			s.ours.whole[name] = "records of multihost"
		}
	}
	if err := s.leaveTracked(ctx); err != nil {
		return err
	}
	for _, dir := range made {
		if s.allOurs(dir.name) {
			s.ours.whole[dir.name] = dir.why
		}
	}
	return nil
}

// A madeDir is a directory below the root that a command made.
type madeDir struct{ name, why string }

// allOurs reports whether Scan leaves out all files in a directory.
func (s *scanner) allOurs(dir string) bool {
	all := true
	_ = filepath.WalkDir(filepath.Join(s.root, filepath.FromSlash(dir)), func(at string, d fs.DirEntry, err error) error {
		name, ok := s.below(at)
		switch {
		case err != nil || !ok:
			all = false
		case name != dir && s.ours.of(name) != "":
			if d.IsDir() {
				return fs.SkipDir
			}
		case !d.IsDir():
			all = false
		}
		if !all {
			return fs.SkipAll
		}
		return nil
	})
	return all
}

// leaveTracked gives the user the files that git tracks, and the directories above them.
func (s *scanner) leaveTracked(ctx context.Context) error {
	if s.list == nil || len(s.ours.whole)+len(s.ours.named) == 0 {
		return nil
	}
	tracked, err := s.runGit(ctx, s.root, "ls-files", "-z", "--cached")
	if err != nil {
		return err
	}
	s.ours.tracked = map[string]bool{}
	for name := range strings.SplitSeq(string(tracked), "\x00") {
		s.ours.tracked[name] = true
		for ; name != "." && name != ""; name = path.Dir(name) {
			delete(s.ours.whole, name)
		}
	}
	return nil
}

// below returns a path relative to the root, with slashes. It returns false if the path is
// not below the root.
func (s *scanner) below(at string) (string, bool) {
	rel, err := filepath.Rel(s.root, at)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	return filepath.ToSlash(rel), true
}

// unchanged reports whether the file at a path is as the command wrote it. A directory
// whose files are not known counts as unchanged.
func (w Written) unchanged(at string) bool {
	info, err := os.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		return true
	case w.Size == 0 && w.ModNS == 0 && !info.Mode().IsRegular():
		return true
	}
	return !info.IsDir() && info.Size() == w.Size && info.ModTime().UnixNano() == w.ModNS
}

// unfinished is the prefix of the directory in which cp gathers arriving files. If such a
// directory exists, a cp is running or was killed.
const unfinished = ".multihost-cp-"

// of says why a file is ours, or returns "".
func (o ours) of(name string) string {
	if why := o.whole[name]; why != "" {
		return why
	}
	if strings.HasPrefix(path.Base(name), unfinished) {
		return "not finished by multihost cp"
	}
	if o.tracked[name] {
		return ""
	}
	for _, n := range o.named[path.Dir(name)] {
		for _, pattern := range n.patterns {
			if ok, _ := path.Match(pattern, path.Base(name)); ok {
				return n.why
			}
		}
	}
	return ""
}
