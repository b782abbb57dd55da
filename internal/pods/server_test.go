//go:build unix

package pods_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/event"
	"multihost/internal/kube"
	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
)

// A server is an API server with one pod, whose commands are processes of this machine.
type server struct {
	t      *testing.T
	worker *localworker.Worker
	http   *httptest.Server

	mu    sync.Mutex
	pod   *corev1.Pod // nil: there is none
	conns map[net.Conn]bool
	away  bool                // the server refuses everything
	deaf  bool                // the server reads nothing from commands, so it answers no ping
	fails *metav1.Status      // commands end at once with this status
	asked map[string][]string // parameters of the last command
}

const podName = "train-slice-0-0-abcde"

func newServer(t *testing.T) *server {
	t.Helper()
	home := t.TempDir()
	s := &server{t: t, conns: map[net.Conn]bool{}, pod: runningPod(),
		worker: &localworker.Worker{User: "root", Home: home, Env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}}}
	s.http = httptest.NewUnstartedServer(s)
	s.http.Config.ConnState = func(c net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns[c] = state != http.StateClosed
	}
	s.http.StartTLS()
	t.Cleanup(func() {
		s.cut()
		s.http.Close()
		s.worker.Cut()
		s.worker.Wait()
	})
	return s
}

func runningPod() *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: podName},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
}

// client returns a client of the server.
func (s *server) client() *kube.Client {
	s.t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	c, err := kube.New(kube.Config{Server: s.http.URL, CA: ca, Sink: event.Discard, MaxRetry: time.Millisecond})
	testkit.Must(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// cut breaks all connections.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	pod, away, deaf, fails := s.pod, s.away, s.deaf, s.fails
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	at := "/api/v1/namespaces/team/pods/" + podName
	switch {
	case away:
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/version":
		io.WriteString(w, `{"gitVersion":"v1.35.4"}`)
	case r.URL.Path == at && pod != nil:
		_ = json.NewEncoder(w).Encode(pod)
	case r.URL.Path == at+"/exec" && pod != nil:
		s.set(func() { s.asked = r.URL.Query() })
		s.exec(w, r, deaf, fails)
	default:
		w.WriteHeader(404)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: 404, Reason: metav1.StatusReasonNotFound, Message: "pods not found"})
	}
}

// exec runs a command as an API server and a node do.
func (s *server) exec(w http.ResponseWriter, r *http.Request, deaf bool, fails *metav1.Status) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer socket.Close()
	out := &channels{socket: socket}
	if fails != nil {
		out.end(*fails)
		return
	}
	conn := s.worker.Connect("pod", false, time.Minute)
	defer conn.Close()
	session, err := conn.Start(r.Context(), remote.Cmd{Line: "exec " + remote.Quote(r.URL.Query()["command"]...),
		Stdout: channel{out, 1}, Stderr: channel{out, 2}})
	if err != nil {
		s.t.Error(err)
		return
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer socket.Close()
	reading.Go(func() {
		defer session.Close() // the client has gone
		if deaf {
			_, _ = io.Copy(io.Discard, socket.NetConn())
			return
		}
		for {
			_, message, err := socket.ReadMessage()
			switch {
			case err != nil:
				return
			case message[0] == 255:
				_ = session.Stdin().Close()
			case message[0] == 0:
				_, _ = session.Stdin().Write(message[1:])
			}
		}
	})
	status, err := session.Wait()
	switch {
	case err != nil:
	case status.Code == 0:
		out.end(metav1.Status{Status: metav1.StatusSuccess})
	default:
		out.end(metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(status.Code)}}}})
	}
}

// channels writes the messages of one command.
type channels struct {
	socket *websocket.Conn
	mu     sync.Mutex
}

type channel struct {
	*channels
	number byte
}

func (c channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(p), c.socket.WriteMessage(websocket.BinaryMessage, append([]byte{c.number}, p...))
}

// end sends the status of the command.
func (c *channels) end(status metav1.Status) {
	data, _ := json.Marshal(status)
	_, _ = channel{c, 3}.Write(data)
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
