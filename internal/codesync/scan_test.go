package codesync

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/testkit"
)

func paths(tree *Tree) (all []string) {
	for _, e := range tree.Entries {
		if e.Kind != Dir {
			all = append(all, e.Path)
		}
	}
	return all
}

func skipped(tree *Tree) (all []string) {
	for _, s := range tree.Skipped {
		all = append(all, s.String())
	}
	return all
}

// git runs git in dir with a private configuration.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(testkit.Need(t, "git"), args...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestScanTakesWhatGitWouldTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	write(t, dir, map[string]string{
		".gitignore": "*.pyc\n/data/\n!data/keep\nbuild/\n", "a.py": "1", "deleted.py": "2", "tracked.pyc": "3",
		"pkg/b.py": "4", "pkg/.gitignore": "/local\n", "pkg/local": "5", "pkg/local.txt": "6", "pkg/x.pyc": "7",
		"data/big": "8", "data/keep": "9", "src/build/out": "10", "src/build/deep/out": "11", "empty/": "", "new file": "12",
		IgnoreFile: "secret*\n", "secret.key": "13", "secrets/a": "14", "pkg/" + IgnoreFile: "!secret.py\n", "pkg/secret.py": "15",
	})
	git(t, dir, "add", "-f", "a.py", "deleted.py", "tracked.pyc", "secret.key")
	git(t, dir, "commit", "-q", "-m", "x")
	testkit.Must(t, os.Remove(filepath.Join(dir, "deleted.py")))
	tree := scanDir(t, dir)
	same(t, "taken", paths(tree), []string{".gitignore", IgnoreFile, "a.py", "new file", "pkg/.gitignore", "pkg/" + IgnoreFile,
		"pkg/b.py", "pkg/local.txt", "pkg/secret.py", "tracked.pyc"})
	same(t, "skipped", skipped(tree), []string{
		"data/ (ignored by git, 2 files)", "pkg/local (ignored by git)", "pkg/x.pyc (ignored by git)",
		"secret.key (ignored by .multihostignore)", "secrets/ (ignored by .multihostignore, 1 file)",
		"src/ (ignored by git, 2 files)",
	})

	sub := scanDir(t, filepath.Join(dir, "pkg"))
	same(t, "taken of a subdirectory", paths(sub), []string{".gitignore", IgnoreFile, "b.py", "local.txt", "secret.py"})

	all, err := Scan(t.Context(), Options{Dir: dir, NoIgnore: true})
	testkit.Must(t, err)
	same(t, "skipped with NoIgnore", skipped(all), []string(nil))
	for _, name := range []string{"data/big", "secret.key", "pkg/x.pyc", "src/build/deep/out"} {
		if !slices.Contains(paths(all), name) {
			t.Errorf("NoIgnore leaves out %q", name)
		}
	}

	plain := &scanner{opts: Options{Dir: dir}, open: openRegular}
	tree, err = plain.scan(t.Context())
	testkit.Must(t, err)
	same(t, "taken without git on the machine", paths(tree), []string{".gitignore", IgnoreFile, "a.py", "new file", "pkg/.gitignore",
		"pkg/" + IgnoreFile, "pkg/b.py", "pkg/local.txt", "pkg/secret.py"})
	plain = &scanner{opts: Options{Dir: filepath.Join(dir, "pkg")}, open: openRegular}
	tree, err = plain.scan(t.Context())
	testkit.Must(t, err)
	same(t, "subdirectory without git on the machine", paths(tree), []string{".gitignore", IgnoreFile, "b.py", "local.txt", "secret.py"})
}

func TestScanTakesSubmodulesAndRepositoriesInside(t *testing.T) {
	t.Parallel()
	lib, dir := t.TempDir(), t.TempDir()
	git(t, lib, "init", "-q")
	write(t, lib, map[string]string{"lib.py": "1", ".gitignore": "*.o\n"})
	git(t, lib, "add", ".")
	git(t, lib, "commit", "-q", "-m", "x")
	git(t, dir, "init", "-q")
	git(t, dir, "submodule", "--quiet", "add", lib, "third party/lib")
	git(t, dir, "clone", "-q", lib, "nested")
	write(t, dir, map[string]string{"third party/lib/x.o": "2", "third party/lib/new.py": "3", "nested/x.o": "4"})
	sink := &testkit.Recorder{}
	tree, err := Scan(t.Context(), Options{Dir: dir, Sink: sink})
	testkit.Must(t, err)
	same(t, "taken", paths(tree), []string{".gitmodules", "nested/.gitignore", "nested/lib.py",
		"third party/lib/.gitignore", "third party/lib/lib.py", "third party/lib/new.py"})
	if !strings.Contains(text(sink), `"nested/" is another git repository`) {
		t.Errorf("the repository inside was not named:\n%s", text(sink))
	}

	git(t, dir, "submodule", "--quiet", "deinit", "-f", "--all")
	sink = &testkit.Recorder{}
	_, err = Scan(t.Context(), Options{Dir: dir, Sink: sink})
	testkit.Must(t, err)
	if !strings.Contains(text(sink), `submodule "third party/lib" is not checked out`) {
		t.Errorf("the submodule was not named:\n%s", text(sink))
	}
}

// Some people keep their home directory in a git repository that ignores everything. Scan
// sends all of a program below it.
func TestScanTakesAllOfADirectoryThatItsWorkTreeIgnores(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	git(t, home, "init", "-q")
	write(t, home, map[string]string{".gitignore": "*\n", "prog/a.py": "1", "prog/x/b.py": "2"})
	same(t, "taken", paths(scanDir(t, filepath.Join(home, "prog"))), []string{"a.py", "x/b.py"})
}

func TestScanSkipsOddFilesByName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "up": "-> ../x", "abs": "-> " + dir + "/a", "in": "-> a", "d/parent": "-> ..", "d/far": "-> ../../x"})
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	testkit.Must(t, err)
	defer socket.Close()
	sink := &testkit.Recorder{}
	tree, err := Scan(t.Context(), Options{Dir: dir, Sink: sink})
	testkit.Must(t, err)
	same(t, "taken", paths(tree), []string{"a", "d/parent", "in"})
	same(t, "skipped", skipped(tree), []string{
		fmt.Sprintf(`abs (link out of the directory, to "%s/a")`, dir), `d/far (link out of the directory, to "../../x")`,
		"fifo (FIFO)", "s (socket)", `up (link out of the directory, to "../x")`})
	if !strings.Contains(text(sink), "warning: cannot be sent: abs ") {
		t.Errorf("odd files were not named:\n%s", text(sink))
	}
}

func TestScanStopsAtAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"ok": "1", "sub/secret": "2"})
	s := &scanner{opts: Options{Dir: dir}, open: func(name string) (*os.File, error) {
		if strings.HasSuffix(name, "secret") {
			return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EACCES}
		}
		return openRegular(name)
	}}
	_, err := s.scan(t.Context())
	var ferr *FileError
	if !errors.As(err, &ferr) || err.Error() != `read "sub/secret": permission denied` || ferr.Hint() == "" {
		t.Errorf("scan of a file that cannot be read: %v", err)
	}
}

func TestScanReadsAgainAFileThatChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		changes int
		ok      bool
	}{{2, true}, {100, false}} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"log": "0"})
		opened := 0
		s := &scanner{opts: Options{Dir: dir}, open: func(name string) (*os.File, error) {
			if opened++; opened <= c.changes {
				// A file of /proc has the size 0 and still has contents, as if it had grown
				// during the read.
				return os.Open("/proc/self/status")
			}
			return openRegular(name)
		}}
		tree, err := s.scan(t.Context())
		if c.ok {
			testkit.Must(t, err)
			same(t, "size", tree.Bytes, int64(1))
		} else if !errors.Is(err, ErrChanging) || !strings.Contains(err.Error(), `"log"`) {
			t.Errorf("scan of a file that never rests: %v", err)
		}
	}
}

func TestScanRefusesDirectoriesThatNobodyMeans(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, home, map[string]string{"file": "1", "prog/a.py": "2"})
	for dir, want := range map[string]string{
		filepath.Join(home, "none"): "no such directory",
		filepath.Join(home, "file"): "not a directory",
		"/":                         "the whole file system",
		home:                        "your home directory: keys and caches",
		filepath.Dir(home):          "your home directory lies in it",
	} {
		_, err := Scan(t.Context(), Options{Dir: dir, Home: home})
		var derr *DirError
		if !errors.As(err, &derr) || !strings.Contains(err.Error(), want) {
			t.Errorf("scan of %q: %v, want %q", dir, err, want)
		}
	}
	_, err := Scan(t.Context(), Options{Dir: filepath.Join(home, "prog"), Home: home})
	testkit.Must(t, err)
	write(t, home, map[string]string{IgnoreFile: "*\n!prog/\n"})
	_, err = Scan(t.Context(), Options{Dir: home, Home: home})
	testkit.Must(t, err)
}

func TestScanNamesTheLargestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o644))
	testkit.Must(t, os.Truncate(filepath.Join(dir, "sparse"), 101<<20))
	sink := &testkit.Recorder{}
	_, err := Scan(t.Context(), Options{Dir: dir, Sink: sink})
	testkit.Must(t, err)
	if !strings.Contains(text(sink), "largest files: sparse (105.9 MB), a (1 B)") {
		t.Errorf("notes:\n%s", text(sink))
	}
}

// TestIgnoreLikeGit compares the matcher with git, on usual patterns and on generated ones.
func TestIgnoreLikeGit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	var files []string
	names := []string{"a", "b", "ab", "a.b", "foo", "bar", "A", "a b", "a ", "[x]", "\\", "*", "!a", "#a", "é", "\xff", "-a", "a]"}
	for i, n := range names {
		files = append(files, n, "d/"+n, "foo1/"+n, "a1/b1/"+n, "foo1/d/a1/"+names[(i+1)%len(names)])
	}
	for _, f := range files {
		write(t, dir, map[string]string{f: ""})
	}
	patterns := []string{
		"a", "/a", "a/", "d/", "/d/", "d/a", "/d/a", "d/*", "*/a", "**/a", "a1/**", "a1/**/a", "/**", "**/", "**/d/", "a1/**/", "foo**/a",
		"fo**", "f**o1/a", "*.b", "?", "??", "[ab]", "[!ab]", "[^ab]", "[a-c]", "[]x]", "[[:alpha:]]", "[[:upper:]]", "[[:nope:]]", "[a",
		"\\*", "\\\\", "\\!a", "\\#a", "#a", "a\\ ", "a ", "a  ", " a", "a\t", "a\r", "\\[x\\]", "[[]x]", "é", "\xff", "?\xa9", "-a", "[]-a]", "[\\]]",
		"*", "!a", "!/d/a", "!d/", "!foo", "/*", "!/foo1/", "foo1/*", "!foo1/d", "//a", "a//", "d//a", "/", "", "!", "\\", "a\\", "[a-]", "[--b]", "d/**b", "**b", "d/[!x]", "d[/]a", "d?a",
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var tests [][2]string // text of the top file, and of the file in foo1
	for _, p := range patterns {
		tests = append(tests, [2]string{p + "\n", ""}, [2]string{"*\n" + p, "!a\n/b\n"})
	}
	alphabet := []string{"a", "b", "d", "foo", "1", "/", "*", "**", "**/", "/**", "?", "[", "]", "!", "^", "-", "\\", " ", ".", "[:alpha:]", "#"}
	for range 100 {
		var text [2]strings.Builder
		for i := range text {
			for range rnd.IntN(4) {
				for range 1 + rnd.IntN(6) {
					text[i].WriteString(alphabet[rnd.IntN(len(alphabet))])
				}
				text[i].WriteByte('\n')
			}
		}
		tests = append(tests, [2]string{text[0].String(), text[1].String()})
	}
	gitPath := testkit.Need(t, "git")
	for _, text := range tests {
		write(t, dir, map[string]string{IgnoreFile: text[0], "foo1/" + IgnoreFile: text[1]})
		cmd := exec.Command(gitPath, "ls-files", "-z", "--others", "--exclude-per-directory="+IgnoreFile)
		cmd.Dir = dir
		out, err := cmd.Output()
		testkit.Must(t, err)
		want := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
		slices.Sort(want)
		s := &scanner{opts: Options{Dir: dir}, open: openRegular}
		s.root, s.tree, s.names = dir, &Tree{}, []string{IgnoreFile}
		testkit.Must(t, s.walk(t.Context(), "", [][]ignoreFile{nil}))
		got := paths(s.tree)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("patterns %q and, in foo1, %q: not like git\ngit takes, we do not: %q\nwe take, git does not: %q",
				text[0], text[1], without(want, got), without(got, want))
		}
	}
}

func TestClasses(t *testing.T) {
	for name := range classes {
		class := regexp.MustCompile("^[[:" + name + ":]]$")
		for c := range 256 {
			text := string([]byte{byte(c)})
			want := c < 128 && class.MatchString(text)
			if wildmatch("[[:"+name+":]]", text, false) != want || wildmatch("[![:"+name+":]]", text, false) == want {
				t.Errorf("%q is in the class %s: want %v", text, name, want)
			}
		}
	}
}

func TestBrackets(t *testing.T) {
	for _, tt := range []struct{ pattern, in, out string }{
		{"[ab]", "ab", "c-]"},
		{"[!ab]", "c!", "ab"},
		{"[^ab]", "c^", "ab"},
		{"[a-c]", "abc", "d-"},
		{"[a-c-e]", "abc-e", "d"},
		{"[a-]", "a-", "b"},
		{"[--0]", "-./0", "1"},
		{"[]a]", "]a", "b"},
		{"[!]a]", "b", "]a"},
		{"[a\\]]", "a]", "\\"},
		{"[\\a-\\c]", "abc", "\\-"},
		{"[[:digit:]x]", "07x", "y:"},
		{"[[:digit:]-z]", "0-z", "a"},
		{"[[:a]", "[:a", "b"},
		{"[[-a]", "[]^_`a", "b-"},
		{"[[:nope:]a]", "", "a"},
		{"[[:alpha", "", "a"},
		{"[a", "", "a"},
		{"[a\\", "", "a"},
		{"[a-\\", "", "a"},
		{"[", "", "["},
	} {
		for _, c := range tt.in {
			if !wildmatch(tt.pattern, string(c), false) {
				t.Errorf("%s does not match %q", tt.pattern, c)
			}
		}
		for _, c := range tt.out {
			if wildmatch(tt.pattern, string(c), false) {
				t.Errorf("%s matches %q", tt.pattern, c)
			}
		}
	}
	if wildmatch("[!a]", "/", true) || !wildmatch("[!a]", "/", false) {
		t.Error("a bracket expression matches a slash outside of paths only")
	}
}

func without(a, b []string) (rest []string) {
	for _, s := range a {
		if !slices.Contains(b, s) {
			rest = append(rest, s)
		}
	}
	return rest
}

func TestStarsTakeNoExponentialTime(t *testing.T) {
	t.Parallel()
	if wildmatch(strings.Repeat("*a", 40)+"b", strings.Repeat("a", 400), false) {
		t.Error("matched")
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add([]byte("a\n!b/\n[[:alpha:]]\\ "), "x/y")
	for _, line := range []string{
		"**/a/**", "/", "!", "\\#x", "\\", "[", "[!a-", "[]-]", "[[:no:]]", "a/**/b", "***", "?\r\n", "\ufeffa", "x \\  ", "\x00", "\xff*",
	} {
		f.Add([]byte(line), "x/a/y")
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		for _, r := range parseRules(text) {
			r.match(name, true)
		}
		if !bytes.Contains(text, []byte("\n")) && strings.HasPrefix(string(text), "#") && len(parseRules(text)) > 0 {
			t.Error("a comment is a rule")
		}
	})
}
