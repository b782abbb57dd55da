package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
)

// simulated starts one simulated worker and connects to it as each of logins.
func simulated(t *testing.T, logins ...string) (worker.Machine, []*sshfan.Conn) {
	t.Helper()
	backend, err := worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	identity, err := sshfan.CreateIdentity(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	machine, err := backend.Start(t.Context(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "uid-0", Hostname: "t1v-n-01234567-w-0", Devices: []string{"/dev/accel0"},
		AuthorizedKeys: func() (lines []string) {
			for _, login := range logins {
				lines = append(lines, login+":"+identity.PublicKey()+" "+login)
			}
			return lines
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := sshfan.New(sshfan.Config{Identity: identity, RetryFor: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	var hosts []sshfan.Host
	for _, login := range logins {
		hosts = append(hosts, sshfan.Host{
			Name: "s0w0", User: login, Pin: "uid-0/0",
			Addr: func(context.Context) (string, error) {
				return net.JoinHostPort(machine.Addr(), fmt.Sprint(backend.Port())), nil
			},
		})
	}
	conns, errs := fleet.Connect(t.Context(), hosts)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return machine, conns
}

func TestOverSSHEveryByteArrivesWhateverIsCut(t *testing.T) {
	t.Parallel()
	machine, conns := simulated(t, "ann", "bob")
	s := spec("r", lines(4000)+"; exit 7")
	begin(t, conns[0], s)
	if err := machine.SetFault(worker.Fault{Kind: worker.Cut, Mode: "out", Bytes: 25000, Count: 5}); err != nil {
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
		// In the middle of the order, or of the answer to it.
		f := worker.Fault{Kind: worker.Cut, Mode: []string{"in", "out"}[i%2], Bytes: int64(1 + 30*(i/2)), Count: 1}
		if err := machine.SetFault(f); err != nil {
			t.Fatal(err)
		}
		started, err := a.Release(t.Context())
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
	eventually(t, "the TPU is held", func() bool {
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
