package launch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/testkit"
)

func TestTheLastLineIsNeverLost(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	for i := range 5 {
		out, exit := complete(t, l, spec(fmt.Sprint("r", i), "echo first; sleep 0.0"+fmt.Sprint(i)+"; echo last; kill -KILL $$"))
		if out != "first\nlast\n" || exit.Signal != "KILL" {
			t.Errorf("got %q, %+v", out, exit)
		}
	}
}

func TestTenMegabytesArriveByteForByte(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("big", "head -c 10000000 /dev/urandom; printf '\\xe2\\x82'")
	begin(t, l, s)
	var out bytes.Buffer
	exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := os.ReadFile(filepath.Join(l.dir(s.Ref()), "output.log"))
	if err != nil {
		t.Fatal(err)
	}
	if exit.LogSize != 10_000_002 || sha256.Sum256(remote) != sha256.Sum256(out.Bytes()) {
		t.Errorf("got %d bytes of %d (%+v)", out.Len(), len(remote), exit)
	}
}

// lines is a command that writes n numbered lines, slowly enough to be cut.
func lines(n int) string {
	return fmt.Sprintf(`for ((i = 0; i < %d; i++)); do echo "line $i of the output"; ((i %% 50)) || sleep 0.01; done`, n)
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d of the output\n", i)
	}
	return b.String()
}

func TestFollowGoesOnAtTheNextByte(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("cut", lines(4000))
	begin(t, l, s)
	rng := rand.New(rand.NewPCG(1, 2))
	l.mu.Lock()
	l.cutAfterOut = func() int { return rng.IntN(9000) }
	l.mu.Unlock()
	cuts := 0
	var out bytes.Buffer
	exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{Lost: func(err error, offset int64) {
		if cuts++; cuts == 15 {
			l.mu.Lock()
			l.cutAfterOut = nil
			l.mu.Unlock()
		}
		if offset != int64(out.Len()) {
			t.Errorf("offset %d, received %d", offset, out.Len())
		}
	}})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if cuts < 10 {
		t.Errorf("only %d cuts", cuts)
	}
	if want := numbered(4000); out.String() != want {
		t.Errorf("got %d bytes, want %d", out.Len(), len(want))
	}
}

func TestFollowFromAnOffsetOfARunThatHasEnded(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	complete(t, l, spec("r", "printf 0123456789; exit 3"))
	var out bytes.Buffer
	exit, err := Follow(t.Context(), l, Ref{"r", 1}, 4, &out, FollowOptions{})
	if err != nil || out.String() != "456789" || exit.Code != 3 {
		t.Errorf("got %q, %+v, %v", out.String(), exit, err)
	}
	out.Reset()
	exit, err = Follow(t.Context(), l, Ref{"r", 1}, 10, &out, FollowOptions{})
	if err != nil || out.Len() != 0 || exit.Code != 3 {
		t.Errorf("from the end: got %q, %+v, %v", out.String(), exit, err)
	}
	n, err := ReadLog(t.Context(), l, Ref{"r", 1}, 8, &out)
	if err != nil || n != 2 || out.String() != "89" {
		t.Errorf("read: got %d, %q, %v", n, out.String(), err)
	}
	for count, want := range map[int64]string{0: "", 3: "234", 100: "23456789"} {
		out.Reset()
		if n, err := ReadPart(t.Context(), l, Ref{"r", 1}, 2, count, &out); err != nil || n != int64(len(want)) || out.String() != want {
			t.Errorf("read %d bytes: got %d, %q, %v", count, n, out.String(), err)
		}
	}
}

func TestFollowMayBeginBeforeTheStart(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	a, err := Arm(t.Context(), l, spec("r", "echo x"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		if exit, err := Follow(t.Context(), l, Ref{"r", 1}, 0, &out, FollowOptions{}); err != nil || exit.Code != 0 {
			t.Errorf("%+v, %v", exit, err)
		}
	})
	testkit.Eventually(t, "it is followed", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.lines) >= 2
	})
	if _, err := a.ReleaseAt(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if out.String() != "x\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestFollowOfAnAbortedOrUnknownRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	if _, err := Follow(t.Context(), l, Ref{"none", 1}, 0, &bytes.Buffer{}, FollowOptions{}); !errors.Is(err, ErrUnknownRun) {
		t.Errorf("got %v, want ErrUnknownRun", err)
	}
	if s, err := Status(t.Context(), l, Ref{"none", 1}); err != nil || s.Phase != Unknown {
		t.Errorf("status: %+v, %v", s, err)
	}
}

func TestALogThatBecameShorterIsSaid(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	complete(t, l, spec("r", "printf 0123456789; exit 4"))
	if err := os.Truncate(filepath.Join(l.dir(Ref{"r", 1}), "output.log"), 5); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		from        int64
		out         string
		there, here int64
	}{
		{8, "", 5, 8},
		{2, "234", 5, 10}, // the existing rest comes first, then the report of the loss
	} {
		var out bytes.Buffer
		var told []TruncatedError
		exit, err := Follow(t.Context(), l, Ref{"r", 1}, row.from, &out, FollowOptions{Shorter: func(e *TruncatedError) { told = append(told, *e) }})
		if err != nil || exit.Code != 4 || exit.LogSize != 10 || out.String() != row.out {
			t.Errorf("from %d: got %q, %+v, %v", row.from, out.String(), exit, err)
		}
		if len(told) == 0 || told[0].Size != row.there || told[0].Offset != row.here || !errors.Is(&told[0], ErrTruncated) {
			t.Errorf("from %d: told %+v", row.from, told)
		}
	}
}

// A command may cut its own log. The received bytes stay, nothing comes twice, and the
// command ends by itself.
func TestALogThatIsCutWhileFollowedIsSaid(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	begin(t, l, spec("r", "printf 0123456789; while [ ! -e go ]; do sleep 0.05; done; : >$MULTIHOST_RUN_DIR/output.log; while [ ! -e on ]; do sleep 0.05; done; printf after; exit 3"))
	var out bytes.Buffer
	var once sync.Once
	told := 0
	exit, err := Follow(t.Context(), l, Ref{"r", 1}, 0, writerFunc(func(p []byte) (int, error) {
		once.Do(func() { l.write("home/r/go", "", 0o644) })
		return out.Write(p)
	}), FollowOptions{Shorter: func(*TruncatedError) {
		told++
		l.write("home/r/on", "", 0o644)
	}})
	if err != nil || exit.Code != 3 || exit.Lost {
		t.Errorf("ended with %+v, %v", exit, err)
	}
	if got := out.String(); !strings.HasPrefix(got, "0123456789") || strings.Count(got, "0") != 1 || strings.Count(got, "after") > 1 || told == 0 {
		t.Errorf("got %q, told %d times", got, told)
	}
}

func (l *local) move(from, to string) {
	if err := os.Rename(filepath.Join(l.root, from), filepath.Join(l.root, to)); err != nil {
		l.t.Error(err)
	}
}

// A login may run no command, answers may make no sense, or files may be unreadable for a
// while. Such a problem says nothing about the command. Follow reports the problem, and later
// continues at the next byte.
func TestFollowOutlivesItsOwnTrouble(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		story  string
		begin  func(l *local)
		end    func(l *local)
		reason string
	}{
		{"start-up files that exit", func(l *local) {
			l.write("home/noise", "echo garbage; exit 3", 0o644)
		}, func(l *local) { l.write("home/noise", "", 0o644) }, "no answer (exit code 3): garbage"},
		{"no process can be started", func(l *local) {
			l.write("home/noise", "echo 'bash: fork: retry: Resource temporarily unavailable' >&2; exit 254", 0o644)
		}, func(l *local) { l.write("home/noise", "", 0o644) }, "no answer (exit code 254): bash: fork"},
		{"the files of the run are away", func(l *local) {
			l.move("home/.multihost/runs", "home/.multihost/away")
		}, func(l *local) { l.move("home/.multihost/away", "home/.multihost/runs") }, "no such run"},
	} {
		t.Run(row.story, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			l.write("home/noise", "", 0o644)
			l.env = append(l.env, "BASH_ENV="+filepath.Join(l.home(), "noise"))
			s := spec("r", "printf '%0100d' 1; while [ ! -e go ]; do sleep 0.05; done; printf second; exit 5")
			s.Unset = []string{"BASH_ENV"}
			begin(t, l, s)
			l.mu.Lock()
			l.cutAfterOut = func() int { return 60 } // in the middle of the first output
			l.mu.Unlock()
			want := fmt.Sprintf("%0100dsecond", 1)
			var out bytes.Buffer
			var found, troubles int
			exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{
				Found: func() { found++ },
				Lost: func(err error, _ int64) {
					switch {
					case strings.Contains(err.Error(), row.reason):
						if troubles++; troubles == 3 {
							row.end(l)
							l.write("home/r/go", "", 0o644)
						}
					case out.Len() > 0 && troubles == 0: // after the cut of the connection
						l.mu.Lock()
						if l.cutAfterOut != nil {
							l.cutAfterOut = nil
							row.begin(l)
						}
						l.mu.Unlock()
					}
				},
			})
			if err != nil || exit.Code != 5 || out.String() != want || troubles < 3 {
				t.Errorf("got %q, %+v, %v after %d troubles", out.String(), exit, err, troubles)
			}
			if found != 2 {
				t.Errorf("found %d times, want once before the trouble and once after it", found)
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAFullLocalDiskEndsFollowAndNotTheRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", lines(200)+"; sleep 1000")
	begin(t, l, s)
	full := errors.New("no space left on device")
	var got bytes.Buffer
	_, err := Follow(t.Context(), l, s.Ref(), 0, writerFunc(func(p []byte) (int, error) {
		if room := 100 - got.Len(); len(p) > room {
			got.Write(p[:room])
			return room, full
		}
		return got.Write(p)
	}), FollowOptions{})
	if !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	want := numbered(200)
	_, err = Follow(ctx, l, s.Ref(), int64(got.Len()), writerFunc(func(p []byte) (int, error) {
		n, err := got.Write(p)
		if got.Len() == len(want) {
			cancel()
		}
		return n, err
	}), FollowOptions{})
	if !errors.Is(err, context.Canceled) || got.String() != want {
		t.Errorf("got %d bytes of %d, %v", got.Len(), len(want), err)
	}
	if s, err := Status(t.Context(), l, s.Ref()); err != nil || s.Phase != Running || s.LogSize != int64(len(want)) || s.LogTime.IsZero() || s.Disk.Free <= 0 {
		t.Errorf("status: %+v, %v", s, err)
	}
	stopped(t, l, s.Ref(), time.Second)
}

func TestTwoFollowersDoNoHarm(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", lines(500))
	begin(t, l, s)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var out bytes.Buffer
			if _, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{}); err != nil || out.String() != numbered(500) {
				t.Errorf("got %d bytes, %v", out.Len(), err)
			}
		})
	}
	wg.Wait()
}

func TestALoginShellThatPrintsDoesNotDisturb(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/noise", "echo welcome; echo -n no newline; echo trouble >&2", 0o644)
	l.env = append(l.env, "BASH_ENV="+filepath.Join(l.home(), "noise"))
	s := spec("r", "printf exact")
	s.Unset = []string{"BASH_ENV"}
	out, exit := complete(t, l, s)
	if out != "exact" || exit.LogSize != 5 {
		t.Errorf("got %q, %+v", out, exit)
	}
}

func TestALoginShellThatExitsIsNamed(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/noise", "exit 0", 0o644)
	l.env = append(l.env, "BASH_ENV="+filepath.Join(l.home(), "noise"))
	_, err := Arm(t.Context(), l, spec("r", "true"))
	if err == nil || !strings.Contains(err.Error(), ".bashrc") {
		t.Errorf("got %v", err)
	}
}
