package codesync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// A listing has the files of a directory that git tracks or would add.
type listing struct {
	files map[string]bool // tracked, or untracked and not ignored
	dirs  map[string]bool // directories above these files
	notes []string
}

func (l *listing) add(file string) {
	l.files[file] = true
	for dir := path.Dir(file); dir != "." && !l.dirs[dir]; dir = path.Dir(dir) {
		l.dirs[dir] = true
	}
}

// workTree returns the nearest directory from dir upwards that has a .git, or "".
func workTree(dir string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

// listGit asks git for the files of dir. It returns nil if dir is in no work tree, or if
// its work tree ignores dir itself.
func (s *scanner) listGit(ctx context.Context, dir string) (*listing, error) {
	inside, err := s.runGit(ctx, dir, "rev-parse", "--is-inside-work-tree")
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(inside)) != "true" {
		return nil, nil
	}
	l := &listing{files: map[string]bool{}, dirs: map[string]bool{}}
	if err := s.addRepository(ctx, l, dir, ""); err != nil {
		return nil, err
	}
	if len(l.files) == 0 && s.gitIgnores(ctx, filepath.Dir(dir), filepath.Base(dir)) {
		return nil, nil
	}
	return l, nil
}

// addRepository adds the files of the repository at dir/prefix. Then it adds the files of
// its submodules and of other repositories inside it, each of which git lists as one entry.
func (s *scanner) addRepository(ctx context.Context, l *listing, dir, prefix string) error {
	here := filepath.Join(dir, filepath.FromSlash(prefix))
	names, err := s.runGit(ctx, here, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	staged, err := s.runGit(ctx, here, "ls-files", "-z", "--stage")
	if err != nil {
		return err
	}
	submodules := map[string]bool{}
	for entry := range strings.SplitSeq(string(staged), "\x00") {
		if meta, name, ok := strings.Cut(entry, "\t"); ok && strings.HasPrefix(meta, "160000 ") {
			submodules[name] = true
		}
	}
	for name := range strings.SplitSeq(string(names), "\x00") {
		nested := strings.HasSuffix(name, "/")
		full := path.Join(prefix, name)
		switch {
		case name == "":
		case submodules[name] && workTree(filepath.Join(here, name)) != filepath.Join(here, name):
			l.notes = append(l.notes, fmt.Sprintf("submodule %q is not checked out (git submodule update --init)", full))
		case submodules[name] || nested:
			if nested {
				l.notes = append(l.notes, fmt.Sprintf("%q is another git repository; its files are sent too", full+"/"))
			}
			if err := s.addRepository(ctx, l, dir, full); err != nil {
				return err
			}
		default:
			l.add(full)
		}
	}
	return nil
}

// gitIgnores reports whether git's rules exclude name in dir.
func (s *scanner) gitIgnores(ctx context.Context, dir, name string) bool {
	_, err := s.runGit(ctx, dir, "check-ignore", "-q", "--", name)
	return err == nil
}

// runGit runs git in dir, for the repository of dir. It drops the GIT_ variables that a
// hook sets, because multihost may run in a hook of another repository. It executes nothing
// that the repository configures.
func (s *scanner) runGit(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.git, append([]string{"-C", dir, "-c", "core.fsmonitor=false"}, args...)...)
	for _, variable := range cmd.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY",
			"GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS",
			"GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "LC_ALL":
		default:
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, &gitError{dir, args[0], strings.TrimSpace(stderr.String()), err}
	}
	return out, nil
}

type gitError struct {
	dir, command, text string
	err                error
}

func (e *gitError) Error() string {
	return fmt.Sprintf("list files of %q with git %s: %v: %s", e.dir, e.command, e.err, e.text)
}

func (e *gitError) Unwrap() error { return e.err }

func (e *gitError) Hint() string { return "what git says above, or send everything with --no-ignore" }

// gitRules replaces git on a machine without git. It returns the rules that git would apply
// in dir: info/exclude, and the .gitignore files from top down to the parent of dir.
func gitRules(top, dir string) ([]ignoreFile, error) {
	below, err := filepath.Rel(top, dir)
	if err != nil {
		return nil, err
	}
	var rules []rule
	text, err := readIfThere(filepath.Join(top, ".git", "info", "exclude"))
	if err != nil {
		return nil, err
	}
	rules = append(rules, parseRules(text)...)
	if below == "." {
		return []ignoreFile{{rules: rules}}, nil
	}
	// A rule in a directory above dir matches paths relative to that directory. So the
	// function ignored puts the path from that directory to dir in front of each path.
	var files []ignoreFile
	files = append(files, ignoreFile{rules: rules, above: below + "/"})
	parts := strings.Split(below, "/")
	for i := range parts {
		text, err := readIfThere(filepath.Join(top, filepath.Join(parts[:i]...), ".gitignore"))
		if err != nil {
			return nil, err
		}
		files = append(files, ignoreFile{rules: parseRules(text), above: strings.Join(parts[i:], "/") + "/"})
	}
	return files, nil
}

// readIfThere reads a regular file. A missing file counts as empty.
func readIfThere(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		// If a parent is not a directory, as with the .git file of a submodule, the file is
		// missing too.
		if parent, perr := os.Stat(filepath.Dir(name)); perr != nil || !parent.IsDir() {
			return nil, nil
		}
		return nil, err
	}
	return os.ReadFile(name)
}
