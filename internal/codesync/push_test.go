package codesync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// write makes files below dir. A name that ends with a slash is a directory. A content that
// begins with "-> " is a link.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		full := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			testkit.Must(t, os.MkdirAll(full, 0o755))
			continue
		}
		testkit.Must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			testkit.Must(t, os.Symlink(target, full))
			continue
		}
		testkit.Must(t, os.WriteFile(full, []byte(content), 0o644))
	}
}

// read reverses write. It also returns the modes that are not 0644.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	testkit.Must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			files[rel+"/"] = ""
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			files[rel] = "-> " + target
		default:
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files[rel] = string(content)
			if info.Mode().Perm() != 0o644 {
				files[rel] = fmt.Sprintf("%o %s", info.Mode().Perm(), content)
			}
		}
		return nil
	}))
	return files
}

func scanDir(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := Scan(t.Context(), Options{Dir: dir})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, tree.Close()) })
	return tree
}

func push(t *testing.T, tree *Tree, w *localRunner, run string) Report {
	t.Helper()
	rep, err := tree.Push(t.Context(), w, run)
	testkit.Must(t, err)
	if rep.Uploaded < rep.SentBytes {
		t.Errorf("%d bytes left this machine, %d of contents among them", rep.Uploaded, rep.SentBytes)
	}
	rep.Uploaded = 0 // another test checks it
	return rep
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestPushMakesTheRunDirectoryEqual(t *testing.T) {
	t.Parallel()
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		dir, w := t.TempDir(), newWorker(t)
		login.At(t, w.home)
		write(t, dir, map[string]string{
			"train.py": "print(1)\n", "pkg/mod.py": "x = 1\n", "pkg/copy.py": "x = 1\n", "empty": "", "void/": "",
			"with space/new\nline": "a", "-rf": "dash", "--help/-x": "b", "caf\xe9": "latin1", "'q\"$(id)`": "quotes", "*": "star",
			"pkg/link": "-> mod.py", "up/down": "-> ../pkg", "dangling": "-> nowhere", "loop": "-> .",
		})
		testkit.Must(t, os.Chmod(filepath.Join(dir, "train.py"), 0o755))
		testkit.Must(t, os.Chmod(filepath.Join(dir, "-rf"), 0o444))
		testkit.Must(t, os.Link(filepath.Join(dir, "empty"), filepath.Join(dir, "hardlink")))
		tree := scanDir(t, dir)
		rep := push(t, tree, w, "run1")
		same(t, "run directory", read(t, filepath.Join(w.home, "run1")), read(t, dir))
		same(t, "files", tree.Count, 11)
		// Eleven files: train.py, mod.py and its copy, empty and its hard link, and six
		// more. The copy and the hard link are not sent.
		same(t, "report", Report{SentFiles: rep.SentFiles, Reused: rep.Reused, Removed: rep.Removed}, Report{SentFiles: 9, Reused: 2})
		if rep.SentBytes == 0 {
			t.Error("no bytes sent")
		}

		before := w.execs
		same(t, "second push", push(t, tree, w, "run1"), Report{Reused: 11})
		same(t, "commands of a push that finds all equal", w.execs-before, 1)

		same(t, "push into another run", push(t, tree, w, "run2"), Report{Reused: 11})
		same(t, "other run directory", read(t, filepath.Join(w.home, "run2")), read(t, dir))
		same(t, "commands when the store has all", w.execs-before-1, 2)
	})
}

// Data is often on a disk of its own, and a file cannot be renamed to another disk.
func TestPushIntoADirectoryThatIsAMount(t *testing.T) {
	t.Parallel()
	dir, w, disk := t.TempDir(), newWorker(t), t.TempDir()
	w.enter = []string{testkit.Need(t, "unshare"), "-rm", "sh", "-c", `mount --bind "$1" "$2" && shift 2 && exec "$@"`, "sh", disk, filepath.Join(w.home, "r/data")}
	write(t, w.home, map[string]string{"r/data/": ""})
	if out, err := exec.Command(w.enter[0], append(w.enter[1:], "true")...).CombinedOutput(); err != nil {
		testkit.Lacks(t, "this login cannot mount in a namespace of its own: %s", out)
	}
	for _, content := range []string{"old", "new"} {
		write(t, dir, map[string]string{"train.py": content, "data/a": content + " a", "data/-f\n": content + " b", "data/sub/c": content + " c"})
		push(t, adopting(t, dir), w, "r") // the user has made the directory for the disk
		same(t, "the disk", read(t, disk), read(t, filepath.Join(dir, "data")))
		same(t, "the file beside it", read(t, filepath.Join(w.home, "r"))["train.py"], content)
	}
	same(t, "a push that finds all equal", push(t, scanDir(t, dir), w, "r"), Report{Reused: 4})
}

func TestPushFollowsLocalChanges(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	write(t, dir, map[string]string{
		"keep": "1", "gone": "2", "old/only/here": "3", "old/made": "4", "edit": "5",
		"file2dir": "6", "dir2file/a": "7", "dir2link/b": "8", "link2file": "-> keep", "link2dir": "-> old",
	})
	push(t, scanDir(t, dir), w, "r")
	there := filepath.Join(w.home, "r")
	info, err := os.Stat(filepath.Join(there, "keep"))
	testkit.Must(t, err)

	write(t, there, map[string]string{"out/result": "r", "old/only/result": "r", "edit": "changed by the run"})
	for _, name := range []string{"gone", "old", "file2dir", "dir2file", "dir2link", "link2file", "link2dir"} {
		testkit.Must(t, os.RemoveAll(filepath.Join(dir, name)))
	}
	write(t, dir, map[string]string{"file2dir/x": "9", "dir2file": "10", "dir2link": "-> keep", "link2file": "11", "link2dir/y": "12", "new": "13"})
	rep := push(t, scanDir(t, dir), w, "r")

	want := read(t, dir)
	for name, content := range map[string]string{"out/": "", "out/result": "r", "old/": "", "old/only/": "", "old/only/result": "r"} {
		want[name] = content
	}
	same(t, "run directory", read(t, there), want)
	// Seven are gone: old/only/here, old/made, dir2file/a and dir2link/b, and file2dir and
	// link2dir, which became directories.
	same(t, "removed", rep.Removed, 7)
	same(t, "sent", rep.SentFiles, 5)
	after, err := os.Stat(filepath.Join(there, "keep"))
	testkit.Must(t, err)
	if !os.SameFile(info, after) || !info.ModTime().Equal(after.ModTime()) {
		t.Error("a file that did not change was replaced")
	}
}

// While a run is active or waits for its start, its directory and the digest stay unchanged.
func TestPushLeavesTheCodeOfALivingRun(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	write(t, dir, map[string]string{"a": "1"})
	push(t, scanDir(t, dir), w, "r")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	testkit.Must(t, err)
	command := exec.Command("sleep", "1000")
	testkit.Must(t, command.Start())
	defer command.Wait()
	defer command.Process.Kill()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", command.Process.Pid))
	testkit.Must(t, err)
	start := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))[19]
	attempt := filepath.Join(w.home, ".multihost/runs/r/1")
	write(t, attempt, map[string]string{"meta": "owner=bob@pc\ncommand=train\n"})

	write(t, dir, map[string]string{"a": "2"})
	process := fmt.Sprintf("%d %s", command.Process.Pid, start)
	id := strings.TrimSpace(string(boot))
	for _, row := range []struct {
		name                string
		supervisor, started string
		lives               bool
	}{
		{"a supervisor", process + " " + id + " 17", "", true},
		{"a command whose supervisor was killed", "1 1 " + id + " 17", process + " 17 1", true},
		{"another process of that number", fmt.Sprintf("%d 1%s %s 17", command.Process.Pid, start, id), "", false},
		{"a process of another boot", process + " elsewhen 17", process + " 17 1", false},
	} {
		write(t, attempt, map[string]string{"supervisor": row.supervisor + "\n", "started": row.started + "\n"})
		before := read(t, filepath.Join(w.home, ".multihost/sync/r"))["digest"]
		tree := scanDir(t, dir)
		_, err := tree.Push(t.Context(), w, "r")
		if !row.lives {
			testkit.Must(t, err)
			push(t, tree, w, "r")
			testkit.Must(t, os.WriteFile(filepath.Join(dir, "a"), []byte(row.name), 0o600))
			continue
		}
		var used *InUseError
		if !errors.As(err, &used) || used.Owner != "bob@pc" {
			t.Errorf("%s: got %v, want an *InUseError", row.name, err)
		}
		same(t, row.name+": the file", read(t, filepath.Join(w.home, "r"))["a"], "1")
		same(t, row.name+": the digest", read(t, filepath.Join(w.home, ".multihost/sync/r"))["digest"], before)
	}
	write(t, attempt, map[string]string{"supervisor": process + " " + id + " 17\n", "exit": "code=0\n"})
	push(t, scanDir(t, dir), w, "r")
}

func TestForeseeIsWhatPushDoes(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	foresee := func(run string) Forecast {
		t.Helper()
		tree := scanDir(t, dir)
		before := read(t, w.home)
		f, err := tree.Foresee(t.Context(), readOnlyRunner{t, w}, run)
		testkit.Must(t, err)
		same(t, "worker after a look", read(t, w.home), before)
		rep := push(t, tree, w, run)
		same(t, "forecast and report", []int{f.Files, f.Removed}, []int{rep.SentFiles, rep.Removed})
		return f
	}
	write(t, dir, map[string]string{"a": "1", "sub/b": "22", "copy": "22", "gone/old": "3", "link": "-> a"})
	same(t, "nothing is there", foresee("r"), Forecast{Files: 3, Bytes: 4})
	same(t, "all is there", foresee("r"), Forecast{})
	same(t, "another run", foresee("s"), Forecast{})
	write(t, dir, map[string]string{"a": "new"})
	testkit.Must(t, os.RemoveAll(filepath.Join(dir, "gone")))
	same(t, "changed", foresee("r"), Forecast{Files: 1, Bytes: 3, Removed: 1})
	testkit.Must(t, os.Remove(filepath.Join(w.home, "r/copy")))
	same(t, "removed by a run", foresee("r"), Forecast{})
}

// readOnlyRunner runs only commands that are marked as reading.
type readOnlyRunner struct {
	t *testing.T
	r remote.Runner
}

func (readOnlyRunner) Name() string               { return "s0w0" }
func (readOnlyRunner) ClockOffset() time.Duration { return 0 }

func (r readOnlyRunner) Run(ctx context.Context, c remote.Cmd) (remote.Status, error) {
	if !c.ReadOnly {
		r.t.Error("a command does not say that it only reads")
	}
	return r.r.Run(ctx, c)
}

func TestPushRepairsWhatARunDidToSyncedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"changed":                 func(dir string) error { return os.WriteFile(filepath.Join(dir, "pkg/a"), []byte("2"), 0o644) },
		"removed":                 func(dir string) error { return os.Remove(filepath.Join(dir, "pkg/a")) },
		"mode":                    func(dir string) error { return os.Chmod(filepath.Join(dir, "pkg/a"), 0o600) },
		"whole directory removed": func(dir string) error { return os.RemoveAll(dir) },
		"made a link": func(dir string) error {
			testkit.Must(t, os.Remove(filepath.Join(dir, "pkg/a")))
			return os.Symlink("../b", filepath.Join(dir, "pkg/a"))
		},
		"directory moved behind a link": func(dir string) error {
			testkit.Must(t, os.Rename(filepath.Join(dir, "pkg"), filepath.Join(dir, "moved")))
			return os.Symlink("moved", filepath.Join(dir, "pkg"))
		},
		"same size and time": func(dir string) error {
			path := filepath.Join(dir, "pkg/a")
			info, err := os.Stat(path)
			testkit.Must(t, err)
			testkit.Must(t, os.WriteFile(path, []byte("2"), 0o644))
			return os.Chtimes(path, info.ModTime(), info.ModTime())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, w := t.TempDir(), newWorker(t)
			write(t, dir, map[string]string{"pkg/a": "1", "b": "b"})
			tree := scanDir(t, dir)
			push(t, tree, w, "r")
			there := filepath.Join(w.home, "r")
			testkit.Must(t, damage(there))
			same(t, "sent to repair", push(t, tree, w, "r").SentFiles, 0)
			got := read(t, there)
			delete(got, "moved/")
			delete(got, "moved/a")
			same(t, "run directory", got, read(t, dir))
		})
	}
}

// The run may replace a directory by a link out of the run directory. A sync writes and
// removes nothing behind such a link.
func TestPushDoesNotFollowLinksOfTheRun(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	write(t, dir, map[string]string{"data/a": "1", "data/b": "2"})
	push(t, scanDir(t, dir), w, "r")
	outside := filepath.Join(w.home, "outside")
	write(t, outside, map[string]string{"a": "precious", "b": "precious"})
	testkit.Must(t, os.RemoveAll(filepath.Join(w.home, "r/data")))
	testkit.Must(t, os.Symlink("../outside", filepath.Join(w.home, "r/data")))
	testkit.Must(t, os.Remove(filepath.Join(dir, "data/b")))
	push(t, scanDir(t, dir), w, "r")
	same(t, "outside", read(t, outside), map[string]string{"a": "precious", "b": "precious"})
	same(t, "run directory", read(t, filepath.Join(w.home, "r")), map[string]string{"data/": "", "data/a": "1"})
}

func TestPushRefusesToRemoveWhatTheRunMade(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	write(t, dir, map[string]string{"a": "1"})
	push(t, scanDir(t, dir), w, "r")
	write(t, filepath.Join(w.home, "r"), map[string]string{"b/checkpoint": "precious"})
	write(t, dir, map[string]string{"b": "2"})
	_, err := scanDir(t, dir).Push(t.Context(), w, "r")
	var werr *WorkerError
	if !errors.As(err, &werr) || !strings.Contains(err.Error(), "'b' is a directory with files that the run made") {
		t.Fatalf("push over a directory of the run: %v", err)
	}
	same(t, "checkpoint", read(t, filepath.Join(w.home, "r/b")), map[string]string{"checkpoint": "precious"})

	// The next sync notices the incomplete directory and completes it.
	testkit.Must(t, os.Remove(filepath.Join(dir, "b")))
	testkit.Must(t, os.Remove(filepath.Join(dir, "a")))
	write(t, dir, map[string]string{"c": "3"})
	push(t, scanDir(t, dir), w, "r")
	same(t, "run directory", read(t, filepath.Join(w.home, "r")), map[string]string{"b/": "", "b/checkpoint": "precious", "c": "3"})
}

// breakAfter ends the worker's stdin early, like a lost connection.
type breakAfter struct {
	*localRunner
	step  string
	bytes int64
	times int
}

func (*breakAfter) Name() string               { return "s0w0" }
func (*breakAfter) ClockOffset() time.Duration { return 0 }

func (b *breakAfter) Run(ctx context.Context, c remote.Cmd) (remote.Status, error) {
	c = c.Whole()
	if strings.Contains(c.Line, " "+b.step+" r ") && b.times > 0 {
		b.times--
		c.Stdin = &shortReader{c.Stdin, b.bytes}
		_, err := b.localRunner.Run(ctx, c)
		if err != nil {
			return remote.Status{}, err
		}
		return remote.Status{}, remote.ErrConnectionLost
	}
	return b.localRunner.Run(ctx, c)
}

func TestPushGoesOnWhereABrokenTransferEnded(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	for i := range 20 {
		write(t, dir, map[string]string{fmt.Sprint("f", i): noise(i, 100_000)})
	}
	sink := &testkit.Recorder{}
	tree, err := Scan(t.Context(), Options{Dir: dir, Sink: sink})
	testkit.Must(t, err)
	b := &breakAfter{w, "receive", 1_500_000, 1}
	rep, err := tree.Push(t.Context(), b, "r")
	testkit.Must(t, err)
	same(t, "run directory", read(t, filepath.Join(w.home, "r")), read(t, dir))
	if rep.SentFiles == 0 || rep.SentFiles > 12 {
		t.Errorf("second try sent %d of 20 files, want only those that had not arrived", rep.SentFiles)
	}
	if !strings.Contains(text(sink), "trying again") {
		t.Errorf("the second try was not said:\n%s", text(sink))
	}

	testkit.Must(t, os.RemoveAll(w.home))
	testkit.Must(t, os.MkdirAll(w.home, 0o755))
	for _, step := range []string{"plan", "receive"} {
		b = &breakAfter{w, step, 100, 3}
		if _, err := tree.Push(t.Context(), b, "r"); !errors.Is(err, remote.ErrConnectionLost) {
			t.Errorf("push whose %s breaks each time: %v", step, err)
		}
		if _, err := os.Stat(filepath.Join(w.home, "r")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("run directory after a broken %s: %v", step, err)
		}
	}
	push(t, tree, w, "r")
	same(t, "run directory", read(t, filepath.Join(w.home, "r")), read(t, dir))
}

// noise is text that does not compress.
func noise(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		sum := sha256.Sum256(fmt.Append(nil, seed, i))
		b.Write(sum[:])
	}
	return b.String()[:n]
}

func TestPushNoticesASpoiltStore(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	write(t, dir, map[string]string{"a": "1", "b": "2"})
	tree := scanDir(t, dir)
	push(t, tree, w, "r1")
	sum := sha256.Sum256([]byte("1"))
	name := hex.EncodeToString(sum[:])
	testkit.Must(t, os.WriteFile(filepath.Join(w.home, ".multihost/store/sha256", name[:2], name), nil, 0o600))
	same(t, "sent again", push(t, tree, w, "r2").SentFiles, 1)
	same(t, "run directory", read(t, filepath.Join(w.home, "r2")), read(t, dir))
}

func TestPushTellsWhatTheWorkerSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	tree := scanDir(t, dir)
	w := newWorker(t)
	testkit.Must(t, os.WriteFile(filepath.Join(w.home, "r"), nil, 0o644))
	_, err := tree.Push(t.Context(), w, "r")
	if err == nil || err.Error() != "~/r is a file of yours, which is left as it is" {
		t.Errorf("push onto a file: %v", err)
	}
	for _, run := range []string{"", "..", "a/b", "-x", ".multihost", "a b", "a\n"} {
		if _, err := tree.Push(t.Context(), w, run); err == nil {
			t.Errorf("push to run %q was taken", run)
		}
	}
}

type runnerFunc func(ctx context.Context, c remote.Cmd) (remote.Status, error)

func (runnerFunc) Name() string               { return "s0w0" }
func (runnerFunc) ClockOffset() time.Duration { return 0 }

func (f runnerFunc) Run(ctx context.Context, c remote.Cmd) (remote.Status, error) { return f(ctx, c) }

func TestPushGivesUpAWorkerThatStalls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	tree, err := Scan(t.Context(), Options{Dir: dir, Stall: 10 * time.Millisecond})
	testkit.Must(t, err)
	tries := 0
	_, err = tree.Push(t.Context(), runnerFunc(func(ctx context.Context, c remote.Cmd) (remote.Status, error) {
		tries++
		<-ctx.Done()
		return remote.Status{}, ctx.Err()
	}), "r")
	if !errors.Is(err, ErrStalled) {
		t.Errorf("push to a worker that stalls: %v", err)
	}
	same(t, "tries", tries, pushTries)
}

func TestPushEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	tree := scanDir(t, dir)
	stop := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := tree.Push(ctx, runnerFunc(func(ctx context.Context, c remote.Cmd) (remote.Status, error) {
		cancel(stop)
		<-ctx.Done()
		return remote.Status{}, ctx.Err()
	}), "r")
	if !errors.Is(err, stop) {
		t.Errorf("push after cancel: %v", err)
	}
}

func TestPushPacksEachSetOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": noise(1, 10_000), "b": "2"})
	sink := &testkit.Recorder{}
	tree, err := Scan(t.Context(), Options{Dir: dir, Sink: sink, Workers: 4})
	testkit.Must(t, err)
	workers := make([]*localRunner, 4)
	errs := make(chan error)
	for i := range workers {
		workers[i] = newWorker(t)
		go func() {
			_, err := tree.Push(t.Context(), workers[i], "r")
			errs <- err
		}()
	}
	for range workers {
		testkit.Must(t, <-errs)
	}
	same(t, "packs", len(tree.packs.byKey), 1)
	for _, w := range workers {
		same(t, "run directory", read(t, filepath.Join(w.home, "r")), read(t, dir))
	}
	events := sink.Events()
	last, _ := events[len(events)-1].(event.Progress)
	same(t, "last progress", [2]int{last.Done, last.Total}, [2]int{4, 4})
	testkit.Must(t, tree.Close())
}

// If gzip saves little, decompressing costs every worker time for nothing. Compressing costs
// this machine more time than reading. So multihost decides before it packs.
func TestOnlyWhatShrinksTravelsCompressed(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for name, c := range map[string]struct {
		text, noise int // MB
		want        string
	}{
		"text":                       {3, 0, "gzip"},
		"noise":                      {0, 3, "plain"},
		"half of each":               {2, 2, "gzip"},
		"noise with a little text":   {1, 15, "plain"},
		"noise too small for a look": {0, 1, "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, map[string]string{"text": strings.Repeat("return self.config\n", c.text*mb/19), "noise": noise(1, c.noise*mb)})
			tree := scanDir(t, dir)
			var hashes []string
			for hash := range tree.contents.byHash {
				hashes = append(hashes, hash)
			}
			p, release, err := tree.acquire(t.Context(), hashes)
			testkit.Must(t, err)
			defer release()
			same(t, "form", p.form(), c.want)
			head := make([]byte, 2)
			_, err = io.ReadFull(p.data.reader(), head)
			testkit.Must(t, err)
			same(t, "gzip's magic number", string(head) == "\x1f\x8b", c.want == "gzip")
		})
	}
}

func TestPushNoticesAFileThatChangedSinceTheScan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"grown.log": "line\n", "b": "2"})
	tree := scanDir(t, dir)
	write(t, dir, map[string]string{"grown.log": "line\nnext\n"})
	w := newWorker(t)
	push(t, tree, w, "r")
	same(t, "file that has grown, as it was scanned", read(t, filepath.Join(w.home, "r"))["grown.log"], "line\n")

	tree = scanDir(t, dir)
	write(t, dir, map[string]string{"b": "3"})
	_, err := tree.Push(t.Context(), newWorker(t), "r")
	var ferr *FileError
	if !errors.As(err, &ferr) || ferr.Path != "b" || !errors.Is(err, ErrChanging) {
		t.Errorf("push of a file that changed: %v", err)
	}
}

func TestStoreIsPruned(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	stored := func() (n int) {
		testkit.Must(t, filepath.WalkDir(filepath.Join(w.home, ".multihost/store/sha256"), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		}))
		return n
	}
	notes := filepath.Join(w.home, ".multihost/store/pruned")
	age := func(age time.Duration) {
		var at, size int64
		text, err := os.ReadFile(notes)
		testkit.Must(t, err)
		_, err = fmt.Sscan(string(text), &at, &size)
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(notes, fmt.Appendf(nil, "%d\n%d\n", at-int64(age/time.Second), size), 0o600))
		testkit.Must(t, filepath.WalkDir(filepath.Join(w.home, ".multihost/store/sha256"), func(name string, d fs.DirEntry, err error) error {
			at := time.Now().Add(-age)
			return os.Chtimes(name, at, at)
		}))
	}
	sync := func(content string, limits StoreLimits) {
		write(t, dir, map[string]string{"a": content})
		tree, err := Scan(t.Context(), Options{Dir: dir, Store: limits})
		testkit.Must(t, err)
		push(t, tree, w, "r")
	}
	sync("1", StoreLimits{})
	sync("2", StoreLimits{})
	same(t, "contents", stored(), 2)
	age(31 * 24 * time.Hour)
	sync("3", StoreLimits{})
	same(t, "contents after 31 days", stored(), 1)
	age(2 * time.Hour)
	sync("44444", StoreLimits{MaxBytes: 5})
	same(t, "contents above the size", stored(), 1)
	sync("5", StoreLimits{MaxBytes: 1})
	same(t, "contents above the size that were just used", stored(), 2)
	// A crash may leave such bytes.
	testkit.Must(t, os.WriteFile(notes, []byte("\x00\x00a[$(false)]\n08\n"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(w.home, ".multihost/store/grown"), []byte("1\n\x00\x002+\n"), 0o600))
	sync("6", StoreLimits{})
	same(t, "contents with spoilt notes", stored(), 3)
	age(25 * time.Hour)
	sync("7", StoreLimits{MaxAge: 24 * time.Hour})
	same(t, "contents after a day with nothing else to say that it is time", stored(), 1)
}

// A sync does not look through the whole store. After a complete sync, it does not read
// unchanged files either.
func TestPushOfOneFileReadsNothingElse(t *testing.T) {
	t.Parallel()
	dir, w, log := t.TempDir(), newWorker(t), filepath.Join(t.TempDir(), "log")
	for i := range 60 {
		write(t, dir, map[string]string{fmt.Sprintf("pkg%d/file%d", i%3, i): fmt.Sprint("content ", i)})
	}
	push(t, scanDir(t, dir), w, "r")
	for _, program := range []string{"find", "sha256sum", "openssl", "touch", "cp", "chmod", "rm", "mv", "perl"} {
		if _, err := exec.LookPath(program); err == nil {
			w.tool(t, program, "printf '%s %s\\n' "+program+" \"$#\" \"$@\" >>"+log+"\nexec $REAL \"$@\"")
		}
	}
	there := filepath.Join(w.home, "r")
	for name, change := range map[string]func(){
		"changed here":  func() { write(t, dir, map[string]string{"pkg1/file1": "new"}) },
		"changed there": func() { write(t, there, map[string]string{"pkg1/file4": "by the run"}) },
		"removed here":  func() { testkit.Must(t, os.Remove(filepath.Join(dir, "pkg1/file7"))) },
		"removed there": func() { testkit.Must(t, os.Remove(filepath.Join(there, "pkg1/file10"))) },
		"another run":   nil,
	} {
		run, tree := "r", dir
		if change != nil {
			change()
		} else {
			run, tree = "other", t.TempDir()
			write(t, tree, map[string]string{"file": "of another run"})
		}
		testkit.Must(t, os.WriteFile(log, nil, 0o600))
		push(t, scanDir(t, tree), w, run)
		same(t, name, read(t, filepath.Join(w.home, run)), read(t, tree))
		used, err := os.ReadFile(log)
		testkit.Must(t, err)
		for _, line := range strings.Split(string(used), "\n") {
			if line == "find "+filepath.Join(w.home, ".multihost/store/sha256") || strings.Contains(line, "pkg2/") || strings.Contains(line, "file13") {
				t.Errorf("%s: the sync looked at %q", name, line)
			}
		}
		if n := strings.Count(string(used), "\n"); n > 80 {
			t.Errorf("%s: %d words to programs, want what one file takes:\n%s", name, n, used)
		}
	}
}

// The list of files stays correct with any bytes in a name.
func TestPushFindsChangesUnderAnyName(t *testing.T) {
	t.Parallel()
	dir, w := t.TempDir(), newWorker(t)
	names := []string{"plain", "a\x01", "a\x02b", "a\x03b", "\x03a\x02", "\x7f", "\xff\xfe", "*", "@", "a]b", "$(id)", "d", "f", "l", "\t", " x ", "two\nlines", "q'\"`"}
	for i, name := range names {
		write(t, dir, map[string]string{name + "0": "same " + fmt.Sprint(i), name + "1": "old", name + "2": "gone", name + "3/in": "x", name + "4": "-> " + name + "0", name: "one"})
	}
	push(t, scanDir(t, dir), w, "r")
	there := filepath.Join(w.home, "r")
	for _, name := range names {
		testkit.Must(t, os.RemoveAll(filepath.Join(dir, name+"2")))
		testkit.Must(t, os.RemoveAll(filepath.Join(dir, name+"3")))
		testkit.Must(t, os.Remove(filepath.Join(dir, name+"4")))
		write(t, dir, map[string]string{name + "1": "new " + name, name + "3": "a file now", name + "4": "-> " + name + "1", name + "5/deep/er": "added"})
		write(t, there, map[string]string{name: "by the run"})
	}
	push(t, scanDir(t, dir), w, "r")
	same(t, "run directory", read(t, there), read(t, dir))
	same(t, "a push that finds all equal", push(t, scanDir(t, dir), w, "r").SentFiles, 0)
}

// Two people sync to one run directory. Each gets all of its own files, or retries.
func TestPushesToOneDirectoryDoNotMix(t *testing.T) {
	t.Parallel()
	for name, whole := range map[string]bool{"the other one asks": false, "the other one ends": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs, w := t.TempDir(), t.TempDir(), newWorker(t)
			write(t, ours, map[string]string{"a": "ours", "only/ours": "1"})
			write(t, theirs, map[string]string{"a": "theirs", "only/theirs": "2"})
			other, between := scanDir(t, theirs), false
			_, err := scanDir(t, ours).Push(t.Context(), runnerFunc(func(ctx context.Context, c remote.Cmd) (remote.Status, error) {
				c = c.Whole()
				if strings.Contains(c.Line, " receive r ") && !between {
					between = true
					if whole {
						push(t, other, w, "r")
					} else {
						var rep Report
						_, err := other.ask(ctx, w, "r", &rep, false)
						testkit.Must(t, err)
					}
				}
				return w.Run(ctx, c)
			}), "r")
			testkit.Must(t, err)
			same(t, "a file came between", between, true)
			same(t, "run directory", read(t, filepath.Join(w.home, "r")), read(t, ours))
			same(t, "a push that finds all equal", push(t, scanDir(t, ours), w, "r").SentFiles, 0)
		})
	}
}

func TestAnswersThatAreNoAnswers(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", 32)
	for _, out := range []string{
		"", "\n", "missing\n", "missing 1\n", "hash ../../etc/passwd\nmissing 1\n", "missing 0\n", "hash " + hash + "\n", "filled\n",
		"filled -1\n", "same\n", "else\n", "\x00\xff\n",
	} {
		if _, err := heard("plan", out, "", remote.Status{}); err == nil {
			t.Errorf("answer %q was taken", out)
		}
	}
	if _, err := heard("check", "same\n", "", remote.Status{Code: 1}); err == nil {
		t.Error("answer of a step that failed was taken")
	}
}
