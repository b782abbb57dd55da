package codesync

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// adopting returns a tree whose sync takes over directories that no sync made.
func adopting(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := Scan(t.Context(), Options{Dir: dir, Adopt: true})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, tree.Close()) })
	return tree
}

// Files of the user at ~/r stay, and a dry run says so. With --adopt, a sync takes over a
// directory.
func TestPushLeavesWhatIsTheUsers(t *testing.T) {
	t.Parallel()
	type place struct {
		name  string
		setUp string // script that runs in the worker's home
		want  string // the error's text after "~/r "; "": no error
		never bool   // even with --adopt
	}
	for _, row := range testkit.Some(t, []place{
		{"nothing is there", "", "", false},
		{"a directory with a file", "mkdir r; echo precious >r/train.py", "has files that no run brought there; they are left as they are", false},
		{"a directory with a hidden file", "mkdir r; touch r/.env", "has files that no run brought there; they are left as they are", false},
		{"an empty directory", "mkdir r", "", false},
		{"a link to a directory with files", "mkdir -p disk/r; echo precious >disk/r/train.py; ln -s disk/r r", `is a link to "disk/r", which has files that no run brought there; they are left as they are`, false},
		{"a link to an empty directory", "mkdir -p disk/r; ln -s disk/r r", "", false},
		{"a link to nothing", "ln -s disk/r r", `is a link to "disk/r", where no directory is`, true},
		{"a link to a file", "touch file; ln -s file r", `is a link to "file", where no directory is`, true},
		{"a file", "echo precious >r", "is a file of yours, which is left as it is", true},
		{"notes of a sync that never began", "mkdir -p r .multihost/sync/r; touch r/a .multihost/sync/r/lock .multihost/sync/r/manifest.new", "has files that no run brought there; they are left as they are", false},
		{"a directory that an earlier version made", "mkdir -p r .multihost/sync/r; touch r/a .multihost/sync/r/manifest .multihost/sync/r/fingerprint .multihost/sync/r/digest", "", false},
		{"an earlier version that was interrupted", "mkdir -p r .multihost/sync/r; touch r/a .multihost/sync/r/manifest", "", false},
		{"made after what an earlier version made was removed", "mkdir -p r .multihost/sync/r; touch r/a; touch -d '2 days ago' .multihost/sync/r/manifest .multihost/sync/r/digest", "has files that no run brought there; they are left as they are", false},
	}, 2) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir, w := t.TempDir(), newWorker(t)
			write(t, dir, map[string]string{"train.py": "print(1)\n"})
			if out, err := w.shell(row.setUp).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			before := read(t, w.home)
			tree := scanDir(t, dir)
			_, looked := tree.Foresee(t.Context(), readOnlyRunner{t, w}, "r")
			same(t, "worker after a look", read(t, w.home), before)
			_, err := tree.Push(t.Context(), w, "r")
			if row.want == "" {
				testkit.Must(t, looked)
				testkit.Must(t, err)
				return
			}
			for _, err := range []error{looked, err} {
				var foreign *ForeignError
				if !errors.As(err, &foreign) || err.Error() != "~/r "+row.want {
					t.Fatalf("got %v, want that ~/r %s", err, row.want)
				}
				same(t, "--adopt is offered", strings.Contains(foreign.Hint(), "--adopt"), !row.never)
			}
			same(t, "worker after a push", read(t, w.home), before)

			_, err = adopting(t, dir).Push(t.Context(), w, "r")
			if row.never {
				if err == nil || err.Error() != "~/r "+row.want {
					t.Errorf("taken over: got %v, want that ~/r %s", err, row.want)
				}
				return
			}
			testkit.Must(t, err)
			after, err := os.ReadFile(filepath.Join(w.home, "r/train.py"))
			testkit.Must(t, err)
			same(t, "the shipped file", string(after), "print(1)\n")
			for name, content := range before {
				if name != "disk/r/train.py" && name != "r/train.py" && !strings.HasPrefix(name, ".multihost/") {
					same(t, name, read(t, w.home)[name], content)
				}
			}
			push(t, tree, w, "r") // without the flag: the directory is now ours
		})
	}
}

func (w *localRunner) shell(text string) *exec.Cmd {
	c := exec.Command("bash", "-ec", text)
	c.Dir, c.Env = w.home, []string{"HOME=" + w.home, "PATH=/usr/bin:/bin"}
	return c
}

// A directory that was removed and made again is another directory. After any other change
// it is the same directory.
func TestPushKnowsItsDirectoryAgain(t *testing.T) {
	t.Parallel()
	type change struct {
		name, change string
		ours         bool
	}
	for _, row := range testkit.Some(t, []change{
		{"as it was", "", true},
		{"all its files are others", "rm -r r/*; echo mine >r/train.py", true},
		{"moved and moved back", "mv r s; mv s r", true},
		{"moved, with a link in its place", "mkdir disk; mv r disk/r; ln -s disk/r r", true},
		{"removed", "rm -r r", true},
		{"removed and made anew", "rm -r r; mkdir r; echo mine >r/train.py", false},
		{"replaced by another one", "mv r old; mkdir r; echo mine >r/train.py", false},
		{"a copy in its place", "cp -a r s; rm -r r; mv s r; echo mine >r/train.py", false},
		{"a link to another one in its place", "mv r old; mkdir other; echo mine >other/train.py; ln -s other r", false},
		{"removed, and empty", "rm -r r; mkdir r", true},
		{"a sync that was interrupted at once", "rm .multihost/sync/r/digest .multihost/sync/r/manifest; echo mine >r/train.py", true},
		{"another device and another boot", "sed -i 's/^[0-9]* /7 /' .multihost/sync/r/place; echo mine >r/train.py", true},
	}, 2) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir, w := t.TempDir(), newWorker(t)
			write(t, dir, map[string]string{"train.py": "print(1)\n"})
			push(t, scanDir(t, dir), w, "r")
			if place := read(t, w.home)[".multihost/sync/r/place"]; !row.ours && strings.HasSuffix(place, " 0.000000000\n") {
				testkit.Lacks(t, "a file system that tells when a directory was made")
			}
			if out, err := w.shell(row.change).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			before := read(t, w.home)
			write(t, dir, map[string]string{"train.py": "print(2)\n"})
			_, err := scanDir(t, dir).Push(t.Context(), w, "r")
			if row.ours {
				testkit.Must(t, err)
				return
			}
			var foreign *ForeignError
			if !errors.As(err, &foreign) {
				t.Fatalf("got %v, want a *ForeignError", err)
			}
			same(t, "worker", read(t, w.home), before)
		})
	}
}

// A sync may be killed at any moment. The next sync does not take its remains for files of
// the user.
func TestPushGoesOnAfterAKilledSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "pkg/b": "2", "link": "-> a"})
	tree := scanDir(t, dir)
	killed := 0
	tools := testkit.Some(t, []string{"mkdir", "mv", "touch", "cat", "cp", "stat"}, 2)
	for _, name := range tools {
		for call := 1; call <= 3; call++ {
			w, calls := newWorker(t), filepath.Join(t.TempDir(), "calls")
			w.tool(t, name, fmt.Sprintf(`echo >>%[1]s; mapfile -t lines <%[1]s
if ((${#lines[@]} == %[2]d)); then
	parent=$PPID
	while [[ $(</proc/$parent/comm) == xargs ]]; do read -r _ _ _ parent _ </proc/$parent/stat; done
	kill -9 "$parent"
	exit 1
fi
exec "$REAL" "$@"`, calls, call))
			if _, err := tree.Push(t.Context(), w, "r"); err != nil {
				killed++
			}
			w.tools = ""
			push(t, tree, w, "r")
			same(t, fmt.Sprintf("run directory after a kill at call %d of %s", call, name), read(t, filepath.Join(w.home, "r")), read(t, dir))
		}
	}
	if killed < len(tools) {
		t.Errorf("%d syncs were killed", killed)
	}
}
