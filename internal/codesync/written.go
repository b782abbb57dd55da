package codesync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Commands write files on this machine where the user wants them, often into the
// directory of the program. They belong to a run that has ended, so the next run does not
// need them on its workers. Commands therefore remember what they wrote, and Scan leaves it
// out.

// mostWritten limits how many commands Remember keeps.
const mostWritten = 500

// A Written is something that a command wrote on this machine.
type Written struct {
	Path string `json:"path"`
	// Names are patterns of the names in the directory Path that are meant; none means
	// Path itself.
	Names []string `json:"names,omitempty"`

	// Size and ModNS are those of a file when it was written. A file that is different now
	// is the user's own.
	Size  int64 `json:"size,omitempty"`
	ModNS int64 `json:"mod_ns,omitempty"`
}

// writtenFile is what Remember keeps of one command.
type writtenFile struct {
	By    string    `json:"by"`
	Paths []Written `json:"paths"`

	at string // path of this file
}

// Remember keeps in dir what a command wrote, for Options.Written. It forgets commands of
// which nothing is left.
func Remember(dir, by string, paths []Written) error {
	kept := writtenFile{By: by}
	for _, w := range paths {
		at, err := resolved(w.Path)
		if err != nil {
			return err
		}
		w.Path = at
		if info, err := os.Lstat(w.Path); err == nil && info.Mode().IsRegular() {
			w.Size, w.ModNS = info.Size(), info.ModTime().UnixNano()
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

// Remembered returns those of the paths that Remember was once told of.
func Remembered(dir string, paths []string) (known []string) {
	if len(paths) == 0 {
		return nil
	}
	all := map[string]bool{}
	for _, kept := range writtenFiles(dir) {
		for _, w := range kept.Paths {
			all[w.Path] = all[w.Path] || len(w.Names) == 0
		}
	}
	for _, p := range paths {
		if at, err := resolved(p); err == nil && all[at] {
			known = append(known, p)
		}
	}
	return known
}

// resolved returns a path as Scan's root has it: absolute, without links in the
// directories above.
func resolved(path string) (string, error) {
	at, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(at))
	return filepath.Join(above, filepath.Base(at)), err
}

// forget removes the files in dir of which nothing is left.
func forget(dir string) {
	for _, kept := range writtenFiles(dir) {
		if !slices.ContainsFunc(kept.Paths, func(w Written) bool { return exists(w.Path) }) {
			_ = os.Remove(kept.at) // otherwise the next command tries it again
		}
	}
}

// writtenFiles reads what Remember has kept. It leaves out what cannot be read, because
// nobody should be kept from a run by it.
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

// ours are the files below the root of a Scan that commands wrote there.
type ours struct {
	whole   map[string]string // why a file or directory is left out, by its name
	named   map[string][]namedFiles
	tracked map[string]bool // files that git tracks are the user's
}

// namedFiles are files of one directory whose names match patterns.
type namedFiles struct {
	patterns []string
	why      string
}

// findOurs reads what commands wrote below the root.
func (s *scanner) findOurs(ctx context.Context) error {
	s.ours = ours{whole: map[string]string{}, named: map[string][]namedFiles{}}
	if s.opts.NoIgnore || s.opts.Written == "" {
		return nil
	}
	for _, kept := range writtenFiles(s.opts.Written) {
		why := "written here by " + kept.By
		for _, w := range kept.Paths {
			name, ok := s.below(w.Path)
			switch {
			case !ok || name == "." && len(w.Names) == 0:
			case len(w.Names) > 0:
				s.ours.named[name] = append(s.ours.named[name], namedFiles{w.Names, why})
			case w.unchanged():
				s.ours.whole[name] = why
			}
		}
	}
	if state, err := filepath.EvalSymlinks(filepath.Dir(s.opts.Written)); err == nil {
		if name, ok := s.below(state); ok && name != "." {
			s.ours.whole[name] = "records of multihost"
		}
	}
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

// below returns the name of a path relative to the root, with slashes, or false if it is
// not there.
func (s *scanner) below(at string) (string, bool) {
	rel, err := filepath.Rel(s.root, at)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	return filepath.ToSlash(rel), true
}

func (w Written) unchanged() bool {
	info, err := os.Lstat(w.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return err != nil || w.ModNS == 0 || info.Mode().IsRegular() && info.Size() == w.Size && info.ModTime().UnixNano() == w.ModNS
}

// unfinished is how the directory begins in which cp gathers what comes. One that is
// there belongs to a cp that still works, or was killed.
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
