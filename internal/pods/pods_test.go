//go:build unix

package pods_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/pods"
	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

var (
	_ remote.Conn   = (*pods.Conn)(nil)
	_ remote.Dialer = (*pods.Dialer)(nil)
)

// dialer returns a dialer to the server's pod.
func (s *server) dialer(keepAlive time.Duration) *pods.Dialer {
	return &pods.Dialer{Cluster: pods.Of(s.client()), Namespace: "team", Container: "main", User: "root", KeepAlive: keepAlive, Clock: gcp.SystemClock}
}

func (s *server) dial(t *testing.T, d *pods.Dialer, retryFor time.Duration, readOnly bool) (remote.Conn, error) {
	t.Helper()
	dialed, err := d.Dial(t.Context(), remote.Request{
		Slices:   []tpu.Slice{{Name: "train-0", Workers: []tpu.Worker{{Name: podName}}}},
		Workers:  []tpu.WorkerID{{Slice: 0, Worker: 0}},
		RetryFor: retryFor, ReadOnly: readOnly, Sink: event.Discard,
	})
	testkit.Must(t, err)
	t.Cleanup(dialed.Close)
	return dialed.Conns[0], dialed.Errs[0]
}

func (s *server) connect(t *testing.T, readOnly bool) remote.Conn {
	t.Helper()
	c, err := s.dial(t, s.dialer(time.Minute), time.Minute, readOnly)
	testkit.Must(t, err)
	return c
}

func TestBytesAreExact(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	data := bytes.Repeat([]byte("\x00\xff\n\r 0123456789"), 1<<19)
	var out bytes.Buffer
	status, err := c.Run(t.Context(), remote.Cmd{Line: "cat", Stdin: bytes.NewReader(data), Stdout: &out})
	if err != nil || status.Code != 0 || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("got %d of %d bytes, %+v, %v", out.Len(), len(data), status, err)
	}
}

// TestLongLine: a long command line travels on the input, and the command's own input stays
// whole.
func TestLongLine(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	long := strings.Repeat("é", 100<<10)
	for _, stdin := range []io.Reader{nil, strings.NewReader("input\n")} {
		var out bytes.Buffer
		status, err := c.Run(t.Context(), remote.Cmd{Line: "x=" + long + "; echo ${#x}; cat; exit 3", Stdin: stdin, Stdout: &out})
		want := []string{"204800"}
		if stdin != nil {
			want = append(want, "input")
		}
		if err != nil || status.Code != 3 || strings.Join(lines(out.String()), " ") != strings.Join(want, " ") {
			t.Errorf("got %q, %+v, %v", out.String(), status, err)
		}
		if command := strings.Join(s.asked["command"], " "); len(command) > 200 {
			t.Errorf("%d bytes in the address", len(command))
		}
	}
}

func TestTerminal(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	var out bytes.Buffer
	_, err := c.Run(t.Context(), remote.Cmd{Line: "echo $TERM", Stdout: &out,
		Terminal: &remote.Terminal{Type: "xterm", Size: func() (int, int) { return 80, 24 }}})
	if err != nil || out.String() != "xterm\n" || s.asked["tty"][0] != "true" || s.asked["stderr"][0] != "false" {
		t.Errorf("got %q, %v; asked %v", out.String(), err, s.asked)
	}
}

func TestNoSSH(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	var refused *remote.ConnectError
	for _, cmd := range []remote.Cmd{{Line: "true", LoginTo: c}, {Line: "true", AgentSocket: "/s"}} {
		if _, err := c.Run(t.Context(), cmd); !errors.As(err, &refused) || refused.Stage != remote.StageExec {
			t.Errorf("got %v", err)
		}
	}
	if c.HostKey() != "" {
		t.Error("a pod has a host key")
	}
}

func TestPodsThatRunNothing(t *testing.T) {
	waiting := func(reason string) *corev1.Pod {
		p := runningPod()
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
		return p
	}
	ended, leaving, other := runningPod(), runningPod(), runningPod()
	other.Status.ContainerStatuses[0].Name = "sidecar"
	ended.Status.Phase, ended.Status.Reason = corev1.PodFailed, "Evicted"
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"waits", waiting("ContainerCreating"), "the pod waits to start: ContainerCreating"},
		{"pulls no image", waiting("ErrImagePull"), "the pod waits to start: ErrImagePull"},
		{"is not there", nil, "the pod does not exist any more"},
		{"has ended", ended, "the pod has ended (Evicted)"},
		{"is being deleted", leaving, "the pod is being deleted"},
		{"has another container", other, "the pod does not run yet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			s.set(func() { s.pod = tt.pod })
			_, err := s.dial(t, s.dialer(time.Minute), time.Millisecond, false)
			var refused *remote.ConnectError
			if !errors.As(err, &refused) || refused.Stage != remote.StageDial || fault.Of(err) != fault.Unavailable {
				t.Fatalf("got %v", err)
			}
			if want := "connect: " + tt.want; refused.Cause() != want {
				t.Errorf("got %q, want %q", refused.Cause(), want)
			}
		})
	}
}

// TestPodComes: a dial waits for a pod that starts.
func TestPodComes(t *testing.T) {
	s := newServer(t)
	s.set(func() { s.pod.Status.ContainerStatuses = nil })
	came := make(chan error, 1)
	go func() {
		_, err := s.dial(t, s.dialer(time.Minute), time.Minute, false)
		came <- err
	}()
	testkit.Eventually(t, "the first look", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.conns) > 0 })
	s.set(func() { s.pod = runningPod() })
	testkit.Must(t, <-came)
}

// TestPodGoes: a command for a pod that has gone fails at once, with the error of a lost
// worker.
func TestPodGoes(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	s.set(func() { s.pod = nil })
	_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
	var refused *remote.ConnectError
	if !errors.As(err, &refused) || refused.Stage != remote.StageDial || !strings.Contains(err.Error(), "does not exist any more") {
		t.Errorf("got %v, want a loss of contact", err)
	}
}

// TestAwayForAWhile: a command waits while the API server is away, and is started only once.
func TestAwayForAWhile(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	s.set(func() { s.away = true })
	s.cut()
	ended := make(chan error, 1)
	var out bytes.Buffer
	go func() {
		_, err := c.Run(t.Context(), remote.Cmd{Line: "echo x", Stdout: &out})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("it ended without a server: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	s.set(func() { s.away = false })
	if err := <-ended; err != nil || out.String() != "x\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestNotStarted(t *testing.T) {
	s := newServer(t)
	c := s.connect(t, false)
	s.set(func() {
		s.fails = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
			Message: `OCI runtime exec failed: exec: "bash": executable file not found in $PATH`}
	})
	_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
	var refused *remote.ConnectError
	if !errors.As(err, &refused) || refused.Stage != remote.StageExec || errors.Is(err, remote.ErrConnectionLost) || !strings.Contains(err.Error(), "executable file not found") {
		t.Errorf("got %v", err)
	}
	s.set(func() { s.fails.Message = `unable to upgrade connection: container not found ("main")` })
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.As(err, &refused) || refused.Stage != remote.StageDial {
		t.Errorf("the container has ended: %v", err)
	}
}

// TestSilentServer: if the server answers no ping, its commands are lost. A command that does
// not read its input is not lost.
func TestSilentServer(t *testing.T) {
	const often = 50 * time.Millisecond
	t.Run("without a word", func(t *testing.T) {
		s := newServer(t)
		s.set(func() { s.deaf = true })
		c, err := s.dial(t, s.dialer(often), time.Minute, false)
		testkit.Must(t, err)
		_, err = c.Run(t.Context(), remote.Cmd{Line: "read -r _", Stdin: forever{t.Context()}})
		if !errors.Is(err, remote.ErrConnectionLost) || !errors.Is(err, remote.ErrSilent) {
			t.Errorf("got %v, want ErrSilent", err)
		}
		if since, silent := c.Silence(); !silent || since.IsZero() {
			t.Errorf("silent %t since %s", silent, since)
		}
	})
	t.Run("quiet but alive", func(t *testing.T) {
		s := newServer(t)
		c, err := s.dial(t, s.dialer(often), time.Minute, false)
		testkit.Must(t, err)
		if status, err := c.Run(t.Context(), remote.Cmd{Line: "sleep 1; exit 4"}); err != nil || status.Code != 4 {
			t.Errorf("got %+v, %v", status, err)
		}
	})
	t.Run("input is not read", func(t *testing.T) {
		s := newServer(t)
		c, err := s.dial(t, s.dialer(often), time.Minute, false)
		testkit.Must(t, err)
		status, err := c.Run(t.Context(), remote.Cmd{Line: "sleep 1; wc -c", Stdin: strings.NewReader(strings.Repeat("x", 5<<20)), Stdout: io.Discard})
		if err != nil || status.Code != 0 {
			t.Errorf("got %+v, %v", status, err)
		}
	})
	t.Run("output is not taken", func(t *testing.T) {
		s := newServer(t)
		c, err := s.dial(t, s.dialer(often), time.Minute, false)
		testkit.Must(t, err)
		status, err := c.Run(t.Context(), remote.Cmd{Line: "echo x", Stdout: slow{}})
		if err != nil || status.Code != 0 {
			t.Errorf("got %+v, %v", status, err)
		}
	})
}

// forever is a reader that waits for the end of a context.
type forever struct{ ctx context.Context }

func (f forever) Read([]byte) (int, error) {
	<-f.ctx.Done()
	return 0, io.EOF
}

// slow is a writer that takes a second.
type slow struct{}

func (slow) Write(p []byte) (int, error) {
	<-time.After(time.Second)
	return len(p), nil
}

// TestRenew: each command and each open connection mark a pod as used.
func TestRenew(t *testing.T) {
	s := newServer(t)
	d := s.dialer(time.Minute)
	d.Renew, d.RenewEvery = "echo used >>~/signs", 10*time.Millisecond
	signs := func() int {
		text, err := os.ReadFile(filepath.Join(s.worker.Home, "signs"))
		if err != nil {
			return 0
		}
		return bytes.Count(text, []byte("used"))
	}
	if c, err := s.dial(t, d, time.Minute, true); err != nil {
		t.Fatal(err)
	} else if _, err := c.Run(t.Context(), remote.Cmd{Line: "true", ReadOnly: true}); err != nil || signs() != 0 {
		t.Errorf("a dry run has left %d signs, %v", signs(), err)
	}
	_, err := s.dial(t, d, time.Minute, false)
	testkit.Must(t, err)
	testkit.Eventually(t, "signs of an open connection", func() bool { return signs() > 2 })
	s.cut()
	was := signs()
	testkit.Eventually(t, "signs after a cut", func() bool { return signs() > was })
	quiet := *d
	quiet.RenewEvery = time.Hour
	c, err := s.dial(t, &quiet, time.Minute, false)
	testkit.Must(t, err)
	var out bytes.Buffer
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "wc -l <~/signs", Stdout: &out}); err != nil || strings.TrimSpace(out.String()) == "0" {
		t.Errorf("a command sees %q signs, %v", out.String(), err)
	}
}
