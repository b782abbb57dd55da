package launch

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

func TestEveryByteArrivesAsItWasWritten(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var want []byte
	for i := range 256 {
		want = append(want, byte(i))
	}
	want = append(want, strings.Repeat("no newline ", 100_000)...)
	want = append(want, strings.Repeat("\rprogress 50%", 1000)+"\x1b[2J\x00\x00\x00\xe2\x82"...)
	for range 100_000 {
		want = append(want, byte(rng.Uint32()))
	}
	l.write("home/r/want", string(want), 0o644)
	// The command writes in pieces, so that Follow also reads a growing log.
	s := spec("r", "for ((i = 0; i < 13; i++)); do dd if=want bs=100001 skip=$i count=1 status=none; done; printf '\\0'")
	out, exit := complete(t, l, s)
	if out != string(want)+"\x00" || exit.LogSize != int64(len(want))+1 {
		t.Errorf("got %d bytes, want %d (%+v)", len(out), len(want)+1, exit)
	}
	for _, size := range []int64{-1, 0, 300, 1 << 40} {
		n := min(int64(len(out)), size)
		if size < 0 {
			n = int64(len(out))
		}
		sum, got, err := Digest(t.Context(), l, s.Ref(), size)
		if want := fmt.Sprintf("%x", sha256.Sum256([]byte(out[:n]))); err != nil || sum != want || got != n {
			t.Errorf("digest of %d: %s of %d, %v, want %s of %d", size, sum, got, err, want, n)
		}
	}
	if _, _, err := Digest(t.Context(), l, Ref{"none", 1}, 0); err == nil {
		t.Error("digest of no run")
	}
}

func TestOutputBeyondTheLimitIsDropped(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", `seq 1000000; touch ready; while [ ! -e go ]; do sleep 0.1; done; seq 1000; echo last words`)
	s.MaxLog = 10_000
	begin(t, l, s)
	var out bytes.Buffer
	var exit Exit
	var err error
	var full int64
	var wg sync.WaitGroup
	wg.Go(func() {
		exit, err = Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{Full: func(limit int64) { full = limit }})
	})
	ready(t, l, "r")
	testkit.Eventually(t, "all is dropped", func() bool {
		state, err := Status(t.Context(), l, s.Ref())
		return err == nil && state.LogSize == 10_000 && state.LogLimit == 10_000 && state.Dropped == 6_888_896-10_000
	})
	var blocks int64
	for _, name := range []string{"output.log", "dropped", "lost"} {
		info, err := os.Stat(filepath.Join(l.dir(s.Ref()), name))
		if err != nil {
			t.Fatal(err)
		}
		blocks += info.Sys().(*syscall.Stat_t).Blocks
	}
	if blocks*512 > 2<<20 {
		t.Errorf("the output takes %d bytes of the disk", blocks*512)
	}
	l.write("home/r/go", "", 0o644)
	wg.Wait()
	all := bytes.Buffer{}
	for i := range 1_000_000 {
		fmt.Fprintln(&all, i+1)
	}
	if err != nil || out.String() != all.String()[:10_000] || full != 10_000 {
		t.Errorf("got %d bytes, %v", out.Len(), err)
	}
	dropped := int64(6_888_896 - 10_000 + 3893 + len("last words\n"))
	if exit.Code != 0 || exit.LogSize != 10_000 || exit.Dropped != dropped {
		t.Errorf("exit %+v, want %d dropped", exit, dropped)
	}
	if end, err := os.ReadFile(filepath.Join(l.dir(s.Ref()), "dropped")); err != nil || !bytes.HasSuffix(end, []byte("\n1000\nlast words\n")) {
		t.Errorf("the last words are not kept beside the log: %v", err)
	}
	out.Reset()
	if exit, err := Follow(t.Context(), l, s.Ref(), 9_000, &out, FollowOptions{}); err != nil || exit.Dropped != dropped || out.Len() != 1000 {
		t.Errorf("got %d bytes, %+v, %v", out.Len(), exit, err)
	}
	if n, err := ReadLog(t.Context(), l, s.Ref(), 0, &out); err != nil || n != 10_000 {
		t.Errorf("read: %d, %v", n, err)
	}
}

func TestALogWithoutLimit(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "echo x; exit 1")
	s.MaxLog = -1
	out, exit := complete(t, l, s)
	state, err := Status(t.Context(), l, s.Ref())
	if out != "x\n" || exit.Dropped != 0 || err != nil || state.LogLimit != -1 || state.LogSize != 2 {
		t.Errorf("%q, %+v, %+v, %v", out, exit, state, err)
	}
}

// All files of the worker are on one small disk.
func TestAFullDiskDoesNotEndTheCommand(t *testing.T) {
	testkit.OnlyInAll(t, "TestOutputBeyondTheLimitIsDropped")
	t.Parallel()
	l := newLocal(t)
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4m", "none", l.root).Run(); err != nil {
		missing(t, "root, to mount a small file system,")
	}
	t.Cleanup(func() {
		l.killAll()
		if err := exec.Command("umount", "-l", l.root).Run(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"home", "tmp", "dev", "sys", "proc/sys/kernel/random"} {
		if err := os.MkdirAll(filepath.Join(l.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.setBoot("boot-1")
	// The command ends if it cannot print.
	s := spec("r", `set -e; echo begin; touch ready; await() { while [ ! -e $1 ]; do sleep 0.05; done; }
await go; for ((i = 0; i < 3000; i++)); do echo a line that is as long as others $i; done; echo end
await more; head -c 10000000 /dev/zero; await free; head -c 1000 /dev/zero; await last; echo; echo last words`)
	l.env = append(l.env, "TMPDIR="+filepath.Join(l.root, "tmp"))
	begin(t, l, s)
	ready(t, l, "r")
	l.write("home/r/go.new", "", 0o644)
	testkit.Eventually(t, "space is reserved", func() bool {
		info, err := os.Stat(filepath.Join(l.dir(s.Ref()), "output.log"))
		return err == nil && info.Sys().(*syscall.Stat_t).Blocks*512 >= 1<<20
	})
	full, err := os.Create(filepath.Join(l.root, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	fill := func() {
		var err error
		for err == nil {
			_, err = full.Write(make([]byte, 4096))
		}
	}
	fill()
	state, err := Status(t.Context(), l, s.Ref())
	if err != nil || state.Disk.Free != 0 || !state.Disk.Low() || state.Phase != Running {
		t.Errorf("status: %+v, %v", state, err)
	}
	step := func(from, to string, total int64) (state State) {
		t.Helper()
		if err := os.Rename(filepath.Join(l.home(), "r", from), filepath.Join(l.home(), "r", to)); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the output after "+to, func() bool {
			state, err = Status(t.Context(), l, s.Ref())
			return err == nil && state.LogSize+state.Dropped == total
		})
		return state
	}
	total := int64(len("begin\nend\n") + 3000*len("a line that is as long as others 1000\n") - 900 - 2*90 - 3*10)
	if state = step("go.new", "go", total); state.Dropped != 0 {
		t.Errorf("reserved space is not used: %+v", state)
	}
	total += 10_000_000 // beyond what is reserved
	if state = step("go", "more", total); state.Dropped < 5_000_000 || state.Phase != Running {
		t.Errorf("beyond: %+v", state)
	}
	if err := full.Truncate(0); err != nil {
		t.Fatal(err)
	}
	total += 1000
	step("more", "free", total)
	step("free", "last", total+int64(len("\nlast words\n")))
	var out bytes.Buffer
	exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{})
	if err != nil || exit.Code != 0 || exit.Lost || !strings.Contains(out.String(), "others 2999\nend\n\x00") || !strings.HasSuffix(out.String(), "last words\n") || int64(out.Len()) != exit.LogSize {
		t.Errorf("%d bytes, %+v, %v", out.Len(), exit, err)
	}
	if report := stopped(t, l, s.Ref(), time.Second); !report.Free() || report.Phase != Exited {
		t.Errorf("stop: %+v", report)
	}
	// The log says that the command could not be started.
	fill()
	if _, err := Arm(t.Context(), l, spec("next", "true")); err == nil || !strings.Contains(err.Error(), "o space left") {
		t.Errorf("arm: %v", err)
	}
}

func TestSilenceIsTold(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "echo begin; touch ready; while [ ! -e over ]; do :; done; echo end")
	begin(t, l, s)
	told := make(chan Silence, 100)
	var out strings.Builder
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{QuietAfter: 300 * time.Millisecond, Quiet: func(q Silence) { told <- q }})
		if err != nil || out.String() != "begin\nend\n" {
			t.Errorf("%q, %v", out.String(), err)
		}
	})
	// On a busy machine, the command may get no processor time between two looks.
	for busy := 0; busy < 2; {
		q := <-told
		if q.Err != nil || q.Since < 300*time.Millisecond || q.State.Phase != Running || q.State.Left != 1 || q.CPU < 0 || q.CPU > 20 {
			t.Fatalf("told %+v", q)
		}
		if q.CPU > 0.01 {
			busy++
		}
	}
	l.write("home/r/over", "", 0o644)
	wg.Wait()
}

// Events come in any order. No follower gets more than its share.
func TestAWindowIsNeverExceeded(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		n := 1 + rng.IntN(40)
		total := int64(n)*minPiece*2 + rng.Int64N(8<<20)
		w := NewWindow(total, n)
		rations := make([]*ration, n)
		for i := range rations {
			rations[i] = w.join()
		}
		for range 300 {
			r := rations[rng.IntN(n)]
			switch {
			case r.orders == nil:
				r.begin(newOrders(), rng.Int64N(1000))
				r.size(r.offset + rng.Int64N(4<<20))
			case rng.IntN(20) == 0:
				r.end()
			case r.asked == 0 || rng.IntN(4) == 0:
				r.size(r.offset + max(r.asked, rng.Int64N(4<<20)))
			default:
				r.received(1 + rng.Int64N(r.asked))
			}
			var sum int64
			for _, r := range rations {
				if r.orders != nil {
					sum += r.asked
				}
			}
			if sum > total {
				t.Fatalf("%d bytes are on their way to %d followers, more than %d", sum, n, total)
			}
		}
		for _, r := range rations {
			r.end()
		}
		if w.free != max(total-w.base*int64(n), 0) {
			t.Fatalf("%d bytes were not given back", total-w.base*int64(n)-w.free)
		}
	}
}

// The memory stays within the window, for any number of workers, and even if the writer
// blocks. Without a window, full channels would have 2 MiB for each worker.
func TestAWindowHoldsForThousandsOfFollowers(t *testing.T) {
	t.Parallel()
	const total = 128 << 20 // as in a run
	for _, n := range []int{1, 64, 2048, 50_000} {
		w := NewWindow(total, n)
		var asked int64
		for range n {
			r := w.join()
			r.begin(newOrders(), 0)
			r.size(1 << 30)
			asked += r.asked
		}
		if asked > total || asked < min(int64(n)*minPiece, total) {
			t.Errorf("%d followers hold %d bytes, of a window of %d", n, asked, total)
		}
	}
}

// Not parallel: it measures memory. Without a window each of the stalled sessions would
// have 2 MiB.
func TestOverSSHStalledReadersHoldNoMemory(t *testing.T) {
	_, conns := simulated(t, "ann", "bob")
	s := spec("r", "head -c 100000000 /dev/zero")
	if exit := quiet(t, conns[0], s); exit.LogSize != 100_000_000 {
		t.Fatalf("%+v", exit)
	}
	const n = 8
	window := NewWindow(2<<20, n)
	release := make(chan struct{})
	var wg, stalled sync.WaitGroup
	stalled.Add(n)
	before := heap()
	for range n {
		wg.Go(func() {
			var once sync.Once
			var count int64
			_, err := Follow(t.Context(), conns[0], s.Ref(), 98_000_000, writerFunc(func(p []byte) (int, error) {
				once.Do(func() { stalled.Done(); <-release })
				count += int64(len(p))
				return len(p), nil
			}), FollowOptions{Window: window})
			if err != nil || count != 2_000_000 {
				t.Errorf("%d bytes, %v", count, err)
			}
		})
	}
	stalled.Wait()
	<-time.After(300 * time.Millisecond) // time for bytes that should not come
	if grown := heap() - before; grown > 6<<20 {
		t.Errorf("%d stalled readers hold %d bytes", n, grown)
	}
	close(release)
	wg.Wait()
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// quiet runs a command to its end and fetches no output.
func quiet(t *testing.T, r remote.Runner, s Spec) Exit {
	t.Helper()
	begin(t, r, s)
	var state State
	testkit.Eventually(t, "it has ended", func() bool {
		var err error
		state, err = Status(t.Context(), r, s.Ref())
		return err == nil && state.Phase == Exited
	})
	return *state.Exit
}
