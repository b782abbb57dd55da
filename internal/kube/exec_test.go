package kube_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/testkit"
)

// execServer answers commands by a function that speaks the protocol.
func execServer(t *testing.T, run func(conn *websocket.Conn, r *http.Request)) *kube.Client {
	t.Helper()
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	return client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			refuse(w, 401, metav1.StatusReasonUnauthorized, "Unauthorized")
			return
		}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		run(conn, r)
	}))
}

func say(conn *websocket.Conn, channel byte, text string) {
	_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, text...))
}

func status(s metav1.Status) string {
	data, _ := json.Marshal(s)
	return string(data)
}

// exited is the status of a command that ended with a code.
func exited(code string) string {
	return status(metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated with non-zero exit code",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: code}}}})
}

func TestExec(t *testing.T) {
	var got [][]byte
	c := execServer(t, func(conn *websocket.Conn, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/namespaces/team/pods/p/exec" || !slices.Equal(q["command"], []string{"bash", "-c", "a b&c=d"}) ||
			q.Get("stdin") != "true" || q.Get("stderr") != "true" || q.Get("tty") != "false" || q.Get("container") != "main" {
			t.Errorf("got %s", r.URL)
		}
		for len(got) < 3 {
			_, message, err := conn.ReadMessage()
			if err != nil {
				t.Error(err)
				return
			}
			got = append(got, message)
		}
		say(conn, 1, "out\x00\xff")
		say(conn, 2, "err")
		say(conn, 1, "more")
		say(conn, 3, exited("7"))
	})
	s, err := c.Exec(t.Context(), kube.ExecRequest{Namespace: "team", Pod: "p", Container: "main", Command: []string{"bash", "-c", "a b&c=d"}})
	testkit.Must(t, err)
	defer s.Close()
	_, err = s.Write([]byte("in"))
	testkit.Must(t, err)
	testkit.Must(t, s.Resize(80, 24))
	testkit.Must(t, s.CloseInput())
	var out, errs bytes.Buffer
	code, err := s.Receive(&out, &errs)
	if code != 7 || err != nil || out.String() != "out\x00\xffmore" || errs.String() != "err" {
		t.Errorf("got %d, %v, %q, %q", code, err, out.String(), errs.String())
	}
	for i, want := range []string{"\x00in", "\x04" + `{"Width":80,"Height":24}`, "\xff\x00"} {
		if string(got[i]) != want {
			t.Errorf("message %d is %q, want %q", i, got[i], want)
		}
	}
}

func TestExecEnds(t *testing.T) {
	for _, tt := range []struct {
		name, out, status string
		is                error
		text              string
	}{
		{name: "success", status: status(metav1.Status{Status: metav1.StatusSuccess})},
		{name: "cut without a status", out: "x", is: kube.ErrCut},
		{name: "no such program", is: kube.ErrNotStarted, text: "executable file not found",
			status: status(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
				Message: `error executing command in container: OCI runtime exec failed: exec: "bash": executable file not found in $PATH`})},
		{name: "the node fails later", out: "x", is: kube.ErrCut, text: "container not found",
			status: status(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: "container not found"})},
		{name: "the node fails for an unknown reason", is: kube.ErrCut,
			status: status(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: "EOF"})},
		{name: "a torn status", is: kube.ErrCut, status: "{"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := execServer(t, func(conn *websocket.Conn, _ *http.Request) {
				if tt.out != "" {
					say(conn, 1, tt.out)
				}
				if tt.status != "" {
					say(conn, 3, tt.status)
				}
			})
			s, err := c.Exec(t.Context(), kube.ExecRequest{Pod: "p", Command: []string{"true"}})
			testkit.Must(t, err)
			defer s.Close()
			code, err := s.Receive(io.Discard, io.Discard)
			if code != 0 || !errors.Is(err, tt.is) || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %d, %v", code, err)
			}
		})
	}
}

func TestExecRefused(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 404, metav1.StatusReasonNotFound, `pods "p" not found`)
	}))
	_, err := c.Exec(t.Context(), kube.ExecRequest{Pod: "p", Command: []string{"true"}})
	if !kube.NotFound(err) || fault.Of(err) != fault.Unavailable || err.Error() != `run a command in pod "default/p": pods "p" not found` {
		t.Errorf("got %v", err)
	}
}

// The server answers pings while the command is silent.
func TestExecHears(t *testing.T) {
	release := make(chan struct{})
	c := execServer(t, func(conn *websocket.Conn, _ *http.Request) {
		go func() {
			<-release
			say(conn, 3, status(metav1.Status{Status: metav1.StatusSuccess}))
			conn.Close()
		}()
		for { // answers pings
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	})
	s, err := c.Exec(t.Context(), kube.ExecRequest{Pod: "p", Command: []string{"true"}})
	testkit.Must(t, err)
	defer s.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Receive(io.Discard, io.Discard)
		ended <- err
	}()
	_, err = s.Write([]byte("x"))
	testkit.Must(t, err)
	if !s.Pulse().Unread {
		t.Error("input counts as read before an answer")
	}
	before := time.Now()
	testkit.Eventually(t, "an answer to a ping", func() bool {
		testkit.Must(t, s.Ping())
		now := s.Pulse()
		return !now.Busy && !now.Unread && now.Heard.After(before)
	})
	close(release)
	testkit.Must(t, <-ended)
}

func TestExecWriterFails(t *testing.T) {
	full := errors.New("disk is full")
	c := execServer(t, func(conn *websocket.Conn, _ *http.Request) { say(conn, 1, "x"); conn.ReadMessage() })
	s, err := c.Exec(t.Context(), kube.ExecRequest{Pod: "p", Command: []string{"true"}})
	testkit.Must(t, err)
	defer s.Close()
	if _, err := s.Receive(failing{full}, io.Discard); !errors.Is(err, full) || errors.Is(err, kube.ErrCut) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
