package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	"multihost/internal/sim/kubeapi/kubelet"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/sim/worker"
)

// serveSub serves the subresources of pods without the status.
func (s *Server) serveSub(w http.ResponseWriter, q *request) error {
	if q.kind != store.Pods {
		return notFound()
	}
	o, err := s.store.Get(store.Pods, q.namespace, q.name)
	if err != nil {
		return err
	}
	var pod corev1.Pod
	if err := store.Decode(o, &pod); err != nil {
		return err
	}
	switch {
	case q.sub == "log" && q.Method == http.MethodGet:
		return s.log(w, q, &pod)
	case q.sub == "exec" && (q.Method == http.MethodGet || q.Method == http.MethodPost):
		return s.exec(w, q, &pod)
	case q.sub == "eviction" && q.Method == http.MethodPost:
		return s.evict(w, q)
	}
	return notFound()
}

// container returns the name of the container that a request means.
func container(q *request, pod *corev1.Pod) (string, error) {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	all := slices.Clone(names)
	for _, c := range pod.Spec.InitContainers {
		all = append(all, c.Name)
	}
	name := q.query.Get("container")
	switch {
	case name == "" && len(names) == 1:
		return names[0], nil
	case name == "":
		text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name, strings.Join(names, " "))
		if len(all) > len(names) {
			text += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(all[len(names):], " "))
		}
		return "", apierrors.NewBadRequest(text)
	case !slices.Contains(all, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	return name, nil
}

func (s *Server) log(w http.ResponseWriter, q *request, pod *corev1.Pod) error {
	name, err := container(q, pod)
	if err != nil {
		return err
	}
	opts, err := kubelet.ReadLogOptions(q.query, time.Now())
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if pod.Spec.NodeName == "" { // there is no kubelet to ask
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusOK)
		return nil
	}
	l, err := s.kubelet.Log(pod, name, opts)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	defer l.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = l.CopyTo(q.Context(), w, control.Flush) // an error means that the client has gone
	return nil
}

func (s *Server) evict(w http.ResponseWriter, q *request) error {
	r, err := q.removal()
	if err != nil {
		return err
	}
	err = changeStatus(s.store, q.namespace, q.name, func(now *corev1.Pod) error {
		kubelet.SetCondition(now, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}, metav1.NewTime(s.cfg.Now()))
		return nil
	})
	if err != nil {
		return err
	}
	if _, _, err := s.store.Remove(store.Pods, q.namespace, q.name, r); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated})
	return nil
}

// Channels of an exec's WebSocket. The first byte of each message is its channel.
const (
	toStdin   = 0
	toStdout  = 1
	toStderr  = 2
	toError   = 3
	toResize  = 4
	closeFlag = 255 // in such a message, the second byte is the channel that the client closes
)

// An execution is one exec on its connection.
type execution struct {
	conn   *websocket.Conn
	writes sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
}

// enter registers an exec in progress, unless the server is closing.
func (s *Server) enter(e *execution) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.execs[e] = true
	s.running.Add(1)
	return true
}

func (s *Server) leave(e *execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.execs, e)
	s.running.Done()
}

func (e *execution) cut() {
	e.cancel()
}

// write sends data on a channel.
func (e *execution) write(channel byte, data []byte) error {
	e.writes.Lock()
	defer e.writes.Unlock()
	return e.conn.Write(e.ctx, websocket.MessageBinary, append([]byte{channel}, data...))
}

// exec runs a program in a container, on a WebSocket.
func (s *Server) exec(w http.ResponseWriter, q *request, pod *corev1.Pod) error {
	name, err := container(q, pod)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	if !slices.ContainsFunc([]string{"stdin", "stdout", "stderr"}, q.flag) {
		return apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
	}
	if len(q.query["command"]) == 0 {
		return apierrors.NewBadRequest("you must specify at least one command for the container")
	}
	if !strings.EqualFold(q.Header.Get("Upgrade"), "websocket") {
		return apierrors.NewBadRequest("Upgrade request required")
	}
	conn, err := websocket.Accept(w, q.Request, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}, InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	e := &execution{conn: conn}
	e.ctx, e.cancel = context.WithCancel(s.ctx)
	defer e.cancel()
	if !s.enter(e) {
		return nil
	}
	defer s.leave(e)
	if conn.Subprotocol() == "" {
		conn.Close(websocket.StatusProtocolError, "unsupported subprotocol")
		return nil
	}
	l, err := s.kubelet.Exec(pod, name, q.query["command"], q.flag("tty"))
	if err != nil {
		at := "error executing command in container"
		if errors.Is(err, kubelet.ErrNoContainer) {
			at = "unable to upgrade connection"
		}
		e.finish(internalStatus(fmt.Errorf("%s: %w", at, err)))
		return nil
	}
	e.serve(q, l, &s.running)
	return nil
}

// serve copies between the connection and the program. It ends when the program and all
// holders of its output have ended, or with the connection. In that case the program runs
// on.
func (e *execution) serve(q *request, l worker.Launched, running *sync.WaitGroup) {
	stdin, stdout, stderr := l.Streams()
	if !q.flag("stdin") && !q.flag("tty") {
		stdin.Close()
	}
	var in, out sync.WaitGroup
	in.Go(func() {
		e.read(l, stdin, q.flag("tty"))
		e.cancel() // the connection is over
	})
	copyOut := func(channel byte, from io.ReadCloser, wanted bool) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 && wanted && e.write(channel, buf[:n]) != nil {
				break
			}
			if err != nil {
				break
			}
		}
		from.Close()
	}
	out.Go(func() { copyOut(toStdout, stdout, q.flag("stdout")) })
	if stderr != nil {
		out.Go(func() { copyOut(toStderr, stderr, q.flag("stderr")) })
	}
	waited := make(chan struct{})
	running.Go(func() {
		defer close(waited)
		status := l.Wait()
		out.Wait()
		e.finish(exitStatus(kubelet.ExitCode(status)))
	})
	select {
	case <-waited:
	case <-e.ctx.Done():
		stdin.Close()
		stdout.Close()
		if stderr != nil {
			stderr.Close()
		}
	}
	e.conn.CloseNow()
	in.Wait()
}

// read passes on what the client sends until the connection ends.
func (e *execution) read(l worker.Launched, stdin io.WriteCloser, tty bool) {
	defer func() {
		if !tty {
			stdin.Close()
		}
	}()
	for {
		_, msg, err := e.conn.Read(e.ctx)
		if err != nil {
			return
		}
		if len(msg) == 0 {
			continue
		}
		switch channel, data := msg[0], msg[1:]; {
		case channel == toStdin && len(data) > 0:
			if _, err := stdin.Write(data); err != nil && !errors.Is(err, os.ErrClosed) && !tty {
				stdin.Close() // the program reads no more: drop the rest
			}
		case channel == toResize:
			var size struct{ Width, Height uint16 }
			if json.Unmarshal(data, &size) == nil {
				_ = l.Resize(size.Width, size.Height) // the program may have ended
			}
		case channel == closeFlag && len(data) > 0 && data[0] == toStdin && !tty:
			stdin.Close()
		}
	}
}

// finish sends the status of the exec and closes the connection.
func (e *execution) finish(st *metav1.Status) {
	text, err := json.Marshal(st)
	if err != nil || e.write(toError, text) != nil {
		return
	}
	_ = e.conn.Close(websocket.StatusNormalClosure, "") // the client may have gone
}

// exitStatus returns the status for a program that has run.
func exitStatus(code int) *metav1.Status {
	if code == 0 {
		return &metav1.Status{Status: metav1.StatusSuccess}
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
		Message: fmt.Sprintf("command terminated with non-zero exit code: command terminated with exit code %d", code),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
	}
}

func internalStatus(err error) *metav1.Status { return statusOf(apierrors.NewInternalError(err)) }
