package launch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// simulated starts one simulated worker and connects to it as each of logins.
func simulated(t *testing.T, logins ...string) (worker.Machine, []*sshfan.Conn) {
	t.Helper()
	return simulatedAt(t, t.TempDir(), 10*time.Second, logins...)
}

// simulatedAt does what simulated does, in the given directory. A connection is given up after
// three intervals keepAlive without a byte.
func simulatedAt(t *testing.T, root string, keepAlive time.Duration, logins ...string) (worker.Machine, []*sshfan.Conn) {
	t.Helper()
	testkit.Need(t, "ps")
	w := simworker.Start(t, simworker.Config{
		Root: root, Devices: []string{"/dev/accel0"}, Logins: logins,
		SSH: sshfan.Config{RetryFor: patience, KeepAlive: keepAlive},
	})
	return w.Machine, w.Conns
}

func TestOverSSHEveryByteArrivesWhateverIsCut(t *testing.T) {
	t.Parallel()
	machine, conns := simulated(t, "ann", "bob")
	s := spec("r", lines(4000)+"; exit 7")
	begin(t, conns[0], s)
	if err := machine.SetFault(worker.Fault{Kind: worker.Cut, Mode: "out", Bytes: 25000, Count: 3}); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	var out bytes.Buffer
	exit, err := Follow(t.Context(), conns[0], s.Ref(), 0, &out, FollowOptions{Lost: func(error, int64) { cuts++ }})
	if err != nil || exit.Code != 7 || exit.Signal != "" {
		t.Fatalf("%+v, %v", exit, err)
	}
	if want := numbered(4000); out.String() != want || cuts == 0 {
		t.Errorf("%d cuts: got %d bytes, want %d", cuts, out.Len(), len(want))
	}
}

func TestOverSSHACutNeverStartsTwice(t *testing.T) {
	t.Parallel()
	machine, conns := simulated(t, "ann")
	for i := range 4 {
		s := spec(fmt.Sprint("cut", i), "echo started; exec sleep 1000")
		a, err := Arm(t.Context(), conns[0], s)
		if err != nil {
			t.Fatal(err)
		}
		// Cut the connection in the middle of the order, or of its answer.
		f := worker.Fault{Kind: worker.Cut, Mode: []string{"in", "out"}[i%2], Bytes: int64(1 + 30*(i/2)), Count: 1}
		if err := machine.SetFault(f); err != nil {
			t.Fatal(err)
		}
		started, err := a.ReleaseAt(t.Context(), time.Time{})
		if err != nil && !errors.Is(err, ErrNotStarted) {
			t.Fatal(err)
		}
		report := stopped(t, conns[0], s.Ref(), time.Second)
		if !report.Free() || (err == nil) != (report.Exit != nil) {
			t.Errorf("cut %d: started %+v, %v; stopped %+v", i, started, err, report)
		}
		if err := machine.SetFault(worker.Fault{Kind: worker.Clear}); err != nil {
			t.Fatal(err)
		}
	}
}

// The connection may break at any byte of any step. The command still starts once. At every
// moment the local bytes are a prefix of the command's output, and at the end all of it.
// Nothing of the command is left.
func TestOverSSHAnyStepMayBreakAnywhere(t *testing.T) {
	t.Parallel()
	rounds := 3
	if os.Getenv("MULTIHOST_SOAK") == "1" {
		rounds = 60
	}
	for _, seed := range testkit.Some(t, []uint64{0, 1}, 2) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			machine, conns := simulatedAt(t, root, 400*time.Millisecond, "ann")
			b := &breaker{t: t, machine: machine, conn: conns[0], home: filepath.Join(root, "home/ann"), rng: rand.New(rand.NewPCG(seed, 42))}
			for i := range rounds {
				b.round(i)
			}
			if b.lost == 0 {
				t.Error("no connection was lost")
			}
		})
	}
}

type breaker struct {
	t       *testing.T
	machine worker.Machine
	conn    *sshfan.Conn
	home    string
	rng     *rand.Rand
	lost    int
}

// trouble sets a fault for the next step.
func (b *breaker) trouble(step string) {
	b.t.Helper()
	for _, f := range []worker.FaultKind{worker.Cut, worker.Freeze, worker.Unreachable} {
		if err := b.machine.SetFault(worker.Fault{Kind: worker.Clear, Name: string(f)}); err != nil {
			b.t.Fatal(err)
		}
	}
	f := worker.Fault{Kind: worker.Cut, Mode: []string{"in", "out"}[b.rng.IntN(2)], Count: 1 + b.rng.IntN(2)}
	f.Bytes = int64(math.Pow(2, 5+b.rng.Float64()*11)) // 32 to 64 Ki, mostly small numbers
	switch b.rng.IntN(10) {
	case 0:
		f = worker.Fault{Kind: worker.Freeze, Duration: time.Duration(b.rng.IntN(1600)) * time.Millisecond}
	case 1:
		f = worker.Fault{Kind: worker.Unreachable, Mode: "hang", Duration: time.Duration(b.rng.IntN(1600)) * time.Millisecond}
	case 2:
		f = worker.Fault{Kind: worker.Unreachable, Mode: "refuse", Duration: time.Duration(b.rng.IntN(300)) * time.Millisecond}
	}
	b.t.Logf("%s: %s", step, f)
	if err := b.machine.SetFault(f); err != nil {
		b.t.Fatal(err)
	}
}

// until repeats an idempotent step until it succeeds.
func (b *breaker) until(what string, step func() error) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := step()
		if err == nil {
			return
		}
		b.lost++
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: %v", what, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (b *breaker) round(i int) {
	t := b.t
	t.Helper()
	const n = 1500
	s := spec(fmt.Sprint("r", i), "echo x >>~/count-$MULTIHOST_RUN; "+lines(n)+"; [ $MULTIHOST_RUN = r0 ] || exec sleep 1000; exit 7")
	started := false
	for !started {
		b.trouble("arm")
		var a *Armed
		b.until("arm", func() (err error) {
			a, err = Arm(t.Context(), b.conn, s)
			if errors.Is(err, ErrAlreadyStarted) {
				t.Fatal(err)
			}
			return err
		})
		b.trouble("release")
		_, err := a.ReleaseAt(t.Context(), time.Time{})
		if err != nil && !errors.Is(err, ErrNotStarted) {
			t.Fatal(err)
		}
		started = err == nil
	}
	b.trouble("follow")
	want := numbered(n)
	var got strings.Builder
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	exit, err := Follow(ctx, b.conn, s.Ref(), 0, writerFunc(func(p []byte) (int, error) {
		got.Write(p)
		if !strings.HasPrefix(want, got.String()) {
			t.Errorf("at %d bytes: not a prefix", got.Len())
			enough()
		}
		if i > 0 && got.Len() == len(want) {
			enough()
		}
		return len(p), nil
	}), FollowOptions{Lost: func(error, int64) { b.lost++ }})
	if got.String() != want || i == 0 && (err != nil || exit.Code != 7) {
		t.Fatalf("got %d bytes of %d, %+v, %v", got.Len(), len(want), exit, err)
	}
	b.trouble("stop")
	var report StopReport
	b.until("stop", func() (err error) {
		report, err = Stop(t.Context(), b.conn, s.Ref(), StopOptions{Grace: patience, Reason: "test"})
		return err
	})
	if !report.Free() || report.Phase != Exited || i > 0 && report.Exit.Signal != "TERM" {
		t.Errorf("stop: %+v", report)
	}
	if text, err := os.ReadFile(filepath.Join(b.home, "count-"+s.Run)); err != nil || string(text) != "x\n" {
		t.Errorf("started %d times, %v", len(text)/2, err)
	}
	var sum string
	b.until("digest", func() (err error) {
		sum, _, err = Digest(t.Context(), b.conn, s.Ref(), int64(got.Len()))
		return err
	})
	if sum != fmt.Sprintf("%x", sha256.Sum256([]byte(got.String()))) {
		t.Error("the digests differ")
	}
}

func TestOverSSHAnotherLoginIsRefused(t *testing.T) {
	t.Parallel()
	_, conns := simulated(t, "ann", "bob")
	ann, bob := conns[0], conns[1]
	begin(t, ann, spec("hers", "exec 3<$MULTIHOST_ROOT_DEV/dev/accel0; touch ready; exec sleep 1000"))
	_, err := Arm(t.Context(), bob, spec("his", "true"))
	var busy *BusyError
	if !errors.As(err, &busy) || busy.Info.Run != "hers" || busy.Info.Login != "ann" {
		t.Errorf("got %v", err)
	}
	if infos, err := List(t.Context(), bob); err != nil || len(infos) != 1 || infos[0].Mine || infos[0].Login != "ann" {
		t.Errorf("list: %+v, %v", infos, err)
	}
	var held *HoldersError
	testkit.Eventually(t, "the TPU is held", func() bool {
		_, err := FreeTPU(t.Context(), bob, FreeOptions{Policy: FreeAll, Grace: time.Second})
		return errors.As(err, &held)
	})
	if h := held.Holders[0]; h.Run.Run != "hers" || !h.RunAlive {
		t.Errorf("holder: %+v", h)
	}
	if report := stopped(t, ann, Ref{"hers", 1}, time.Second); !report.Free() || len(report.Devices) != 0 {
		t.Errorf("stop: %+v", report)
	}
	if out, _ := complete(t, bob, spec("his", "echo mine")); out != "mine\n" {
		t.Errorf("got %q", out)
	}
}

func TestOverSSHARebootIsSeen(t *testing.T) {
	t.Parallel()
	machine, conns := simulated(t, "ann")
	s := spec("r", "echo out; exec sleep 1000")
	begin(t, conns[0], s)
	var out strings.Builder
	seen := make(chan struct{})
	done := make(chan error, 1)
	var exit Exit
	go func() {
		var err error
		exit, err = Follow(t.Context(), conns[0], s.Ref(), 0, writerFunc(func(p []byte) (int, error) {
			close(seen)
			return out.Write(p)
		}), FollowOptions{})
		done <- err
	}()
	<-seen
	if err := machine.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !exit.Lost || !strings.Contains(exit.Reason, "reboot") || out.String() != "out\n" {
		t.Errorf("got %q, %+v, %v", out.String(), exit, err)
	}
}
