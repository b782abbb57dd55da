package transfer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/shlex"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// A local is a worker without a network. Its commands run in a home of its own.
type local struct{ home string }

func (local) Name() string { return "s0w0" }

func (local) ClockOffset() time.Duration { return 0 }

func (l local) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	cmd = cmd.Whole()
	c := exec.CommandContext(ctx, testkit.LoginShell(l.home), "-c", cmd.Line)
	c.Env, c.Dir = []string{"HOME=" + l.home, "PATH=" + os.Getenv("PATH")}, l.home
	c.Stdout, c.Stderr = cmd.Stdout, cmd.Stderr
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	stdin, err := c.StdinPipe()
	if err != nil {
		return remote.Status{}, err
	}
	if err := c.Start(); err != nil {
		return remote.Status{}, err
	}
	go func() {
		if cmd.Stdin != nil {
			io.Copy(stdin, cmd.Stdin)
		}
		stdin.Close()
	}()
	err = c.Wait()
	if ctx.Err() != nil {
		return remote.Status{}, context.Cause(ctx)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return remote.Status{Code: exit.ExitCode()}, nil
	case err != nil:
		return remote.Status{}, fmt.Errorf("write output: %w", err) // an error of our writers
	}
	return remote.Status{}, nil
}

// odd returns a tree with one of everything that a transfer keeps.
func odd(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for name, mode := range map[string]fs.FileMode{"empty": 0o755, "closed": 0o555, "-n": 0o700, "deep/er": 0o750} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(filepath.Join(dir, name), mode)
	}
	for name, mode := range map[string]fs.FileMode{
		"plain": 0o644, "run.sh": 0o755, "secret": 0o600, "-rf": 0o644, "a b\nc'\"$(x)*": 0o644, "caf\xe9": 0o444,
		"closed/inside": 0o644, "deep/er/" + strings.Repeat("n", 200): 0o640, ".hidden": 0o644, "..twice": 0o644, "[x]": 0o644, "back\\slash": 0o644,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(name, 1000)), mode); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(path, mode), os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0))); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"link": "plain", "dangling": "/no/such\nfile", "up": "../..", "deep/dir": "../empty"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// listing returns everything of a tree that a transfer keeps.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		line := fmt.Sprintf("%q %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x %v", sha256.Sum256(text), info.ModTime().Unix())
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line += " -> " + target
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func send(ctx context.Context, l local, sources []string, dest string, into bool) error {
	p, err := Pack(ctx, sources)
	if err != nil {
		return err
	}
	s, err := p.Send(ctx, l, dest, into, nil)
	if err != nil {
		return err
	}
	return s.Put()
}

func TestEverythingIsKeptBothWays(t *testing.T) {
	t.Parallel()
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		tree := odd(t)
		want := listing(t, tree)
		l := local{t.TempDir()}
		login.At(t, l.home)
		for _, dest := range []string{"there", "new/dir/", "~/other", l.home + "/abs"} {
			if err := send(t.Context(), l, []string{tree}, dest, false); err != nil {
				t.Fatalf("%s: %v", dest, err)
			}
		}
		for _, at := range []string{"there", "new/dir/tree", "other", "abs"} {
			if diff := cmp.Diff(want, listing(t, filepath.Join(l.home, at))); diff != "" {
				t.Errorf("%s: %s", at, diff)
			}
		}
		back := t.TempDir()
		for dest, at := range map[string]string{"copy": "copy", ".": "there", "a/b/": "a/b/there"} {
			to := PlaceFor(filepath.Join(back, dest)+dest[len(strings.TrimRight(dest, "/")):], false)
			got, err := Fetch(t.Context(), l, []string{"~/there"}, to, Progress{})
			if err != nil || got.Files != 12 {
				t.Fatalf("%s: %+v, %v", dest, got, err)
			}
			if diff := cmp.Diff(want, listing(t, filepath.Join(back, at))); diff != "" {
				t.Errorf("%s: %s", dest, diff)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(back, ".multihost-cp*")); left != nil {
			t.Errorf("left behind: %q", left)
		}
		if left, _ := filepath.Glob(filepath.Join(l.home, ".multihost-cp*")); left != nil {
			t.Errorf("left behind on the worker: %q", left)
		}
	})
}

func TestDirectoriesJoinAndFilesReplace(t *testing.T) {
	t.Parallel()
	here, l := t.TempDir(), local{t.TempDir()}
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	write(filepath.Join(here, "d/x"), "new")
	write(filepath.Join(here, "d/sub/y"), "new")
	write(filepath.Join(l.home, "d/x"), "old")
	write(filepath.Join(l.home, "d/kept"), "old")
	write(filepath.Join(l.home, "d/sub/kept"), "old")
	if err := send(t.Context(), l, []string{filepath.Join(here, "d")}, ".", false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x": "new", "sub/y": "new", "kept": "old", "sub/kept": "old"} {
		if got := read(filepath.Join(l.home, "d", name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	write(filepath.Join(l.home, "d/x"), "newer")
	write(filepath.Join(here, "d/mine"), "mine")
	got, err := Fetch(t.Context(), l, []string{"d"}, PlaceFor(here, false), Progress{})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got.Placed)
	slices.Sort(got.Replaced)
	if diff := cmp.Diff([][]string{{filepath.Join(here, "d/kept"), filepath.Join(here, "d/sub/kept")}, {filepath.Join(here, "d/sub/y"), filepath.Join(here, "d/x")}}, [][]string{got.Placed, got.Replaced}); diff != "" {
		t.Errorf("new and replaced: %s", diff)
	}
	if read(filepath.Join(here, "d/x")) != "newer" || read(filepath.Join(here, "d/mine")) != "mine" || read(filepath.Join(here, "d/sub/kept")) != "old" {
		t.Errorf("got %q", listing(t, here))
	}
	// A file cannot replace a directory, and a directory no file.
	write(filepath.Join(l.home, "f"), "file")
	if err := send(t.Context(), l, []string{filepath.Join(here, "d")}, "f", false); err == nil {
		t.Error("a directory took the place of a file")
	}
	if err := send(t.Context(), l, []string{filepath.Join(here, "d/x")}, "f/", false); err == nil || !strings.Contains(err.Error(), "no directory") {
		t.Errorf("a file was taken for a directory: %v", err)
	}
	write(filepath.Join(here, "f/x"), "dir")
	if _, err := Fetch(t.Context(), l, []string{"f"}, PlaceFor(here, false), Progress{}); err == nil {
		t.Error("a file took the place of a directory")
	}
	if read(filepath.Join(l.home, "f")) != "file" || read(filepath.Join(here, "f/x")) != "dir" {
		t.Error("what was there is not")
	}
	// Patterns and several files.
	into := filepath.Join(here, "into/the/deep")
	if got, err := Fetch(t.Context(), l, []string{"d/[xk]*", "f/"}, PlaceFor(into, true), Progress{}); err != nil || read(filepath.Join(into, "x")) != "newer" || read(filepath.Join(into, "f")) != "file" || read(filepath.Join(into, "kept")) != "old" || got.Made != filepath.Join(here, "into") || !slices.Equal(got.Placed, []string{into}) {
		t.Errorf("%+v, %v: %q", got, err, listing(t, into))
	}
	for _, paths := range [][]string{{"."}, {".."}, {"~"}, {"/"}, {""}, {"no-such"}, {"no*such"}} {
		if _, err := Fetch(t.Context(), l, paths, PlaceFor(into, true), Progress{}); err == nil {
			t.Errorf("%q was fetched", paths)
		}
	}
}

// A local link may lead elsewhere. A name from a worker must not write to its target.
func TestLinksHereAreNotFollowed(t *testing.T) {
	t.Parallel()
	here, outside, l := t.TempDir(), t.TempDir(), local{t.TempDir()}
	if err := errors.Join(os.Symlink(outside, filepath.Join(here, "d")), os.MkdirAll(filepath.Join(l.home, "d"), 0o755), os.WriteFile(filepath.Join(l.home, "d/x"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(t.Context(), l, []string{"d"}, PlaceFor(here, false), Progress{}); err == nil {
		t.Error("the link was followed, or replaced by a directory")
	}
	if files, _ := os.ReadDir(outside); len(files) > 0 {
		t.Errorf("outside: %q", files)
	}
}

func TestWhatIsNotWholeIsNowhere(t *testing.T) {
	t.Parallel()
	tree := odd(t)
	l := local{t.TempDir()}
	p, err := Pack(t.Context(), []string{tree})
	if err != nil {
		t.Fatal(err)
	}
	// Parcels are dropped, cut in the middle, or changed meanwhile.
	s, err := p.Send(t.Context(), l, "there", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Drop()
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := p.Send(ctx, l, "there", false, func(int64) { cancel(io.ErrUnexpectedEOF) }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(tree, "plain"), []byte(strings.Repeat("PLAIN", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), l, "there", false, nil); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a file that changed was sent: %v", err)
	}
	if err := os.Truncate(filepath.Join(tree, "plain"), 7); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), l, "there", false, nil); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a file that became shorter was sent: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(l.home, ".multihost")); err != nil { // the scripts
		t.Fatal(err)
	}
	if left := listing(t, l.home); len(left) != 1 {
		t.Errorf("left on the worker: %q", left)
	}
}

// A liar answers a fetch as it likes.
type liar struct {
	archive []byte
	sum     string // "": the right one
	status  string
	endless bool
}

func (liar) Name() string { return "s0w0" }

func (liar) ClockOffset() time.Duration { return 0 }

func (l liar) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	words, err := shlex.Split(cmd.Whole().Line)
	if err != nil {
		return remote.Status{}, err
	}
	nonce := words[slices.Index(words, "multihost-get")+3]
	if _, err := fmt.Fprintf(cmd.Stdout, "noise\n%s stream 5\n", nonce); err != nil {
		return remote.Status{}, err
	}
	if _, err := cmd.Stdout.Write(l.archive); err != nil {
		return remote.Status{}, fmt.Errorf("write output of s0w0: %w", err)
	}
	for l.endless {
		if _, err := cmd.Stderr.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
			return remote.Status{}, err
		}
	}
	sum := l.sum
	if sum == "" {
		sum = fmt.Sprintf("%x", sha256.Sum256(l.archive))
	}
	fmt.Fprintf(cmd.Stderr, "%s sent %s %s\n", nonce, l.status, sum)
	return remote.Status{}, nil
}

func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o6777
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "evil")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAHostileWorkerWritesNowhereElse(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	outside := t.TempDir()
	for story, l := range map[string]liar{
		"a name with dots":              {archive: archive(t, file("d/../../evil"))},
		"a name with dots at the end":   {archive: archive(t, dir("d/.."))},
		"an absolute name":              {archive: archive(t, file(outside+"/evil"))},
		"a name that nobody asked for":  {archive: archive(t, file(".bashrc"))},
		"one behind one that was asked": {archive: archive(t, dir("d"), file("e"))},
		"a file behind a link":          {archive: archive(t, link("d", outside), file("d/evil"))},
		"a file behind a deeper link":   {archive: archive(t, dir("d"), link("d/l", outside), file("d/l/evil"))},
		"a file through a link":         {archive: archive(t, link("d", outside+"/evil"), file("d"))},
		"a file behind a link inside":   {archive: archive(t, dir("d"), dir("d/real"), link("d/l", "real"), file("d/l/evil"))},
		"a directory through a link":    {archive: archive(t, dir("d"), link("d/l", outside), dir("d/l"))},
		"the stage itself":              {archive: archive(t, dir("."), file("./../x"))},
		"nothing":                       {archive: archive(t)},
		"half":                          {archive: archive(t, dir("d"), file("d/x"))[:1026]},
		"no archive":                    {archive: bytes.Repeat([]byte("no"), 2000)},
		"another digest":                {archive: archive(t, file("d")), sum: strings.Repeat("0", 64)},
		"a tar that failed":             {archive: archive(t, file("d")), status: "2"},
		"complaints without end":        {archive: archive(t, file("d")), endless: true},
	} {
		if l.status == "" {
			l.status = "0"
		}
		here := t.TempDir()
		before := listing(t, here)
		_, err := Fetch(t.Context(), l, []string{"d"}, PlaceFor(here, false), Progress{})
		if err == nil {
			t.Errorf("%s: no error", story)
		}
		if after := listing(t, here); !slices.Equal(after, before) {
			t.Errorf("%s: %q", story, after)
		}
		if files, _ := os.ReadDir(outside); len(files) > 0 {
			t.Fatalf("%s: outside: %q", story, files)
		}
	}

	// Devices and pipes are left out. No file gets more rights than it may have.
	here := t.TempDir()
	l := liar{status: "0", archive: archive(t, dir("d"), file("d/x"), tar.Header{Typeflag: tar.TypeFifo, Name: "d/pipe"}, tar.Header{Typeflag: tar.TypeChar, Name: "d/null", Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "/etc/passwd"})}
	got, err := Fetch(t.Context(), l, []string{"d"}, PlaceFor(here, false), Progress{})
	if err != nil || !slices.Equal(got.LeftOut, []string{"d/pipe", "d/null", "d/hard"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(here, "d/x")); err != nil || info.Mode() != 0o777 {
		t.Errorf("%v, %v", info, err)
	}
}
