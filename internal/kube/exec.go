package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/transport"
	socket "k8s.io/client-go/transport/websocket"

	"multihost/internal/fault"
)

type proxyFunc func(*http.Request) (*url.URL, error)

var (
	// ErrCut says that the connection to a command ended before the command's status came.
	// The command may still run.
	ErrCut = fault.New(fault.Unavailable, "the connection to the pod was cut")

	// ErrNotStarted says that the cluster did not start a command.
	ErrNotStarted = fault.New(fault.Unavailable, "the command was not started")
)

// An ExecRequest is a command in a container.
type ExecRequest struct {
	Namespace, Pod string // "": of the client
	Container      string // "": the only one
	Command        []string
	Terminal       bool // give the command a terminal; its stderr is then part of its stdout
}

// A Stream is a command that Exec has started in a container. Closing it does not end the
// command. Call Receive once. All other methods are safe for concurrent use.
type Stream struct {
	socket *websocket.Conn
	writes sync.Mutex   // held while a message is written
	heard  atomic.Int64 // Unix time of the last message from the server, in nanoseconds
	idle   atomic.Bool  // Receive waits for the server, not for a writer
	sent   atomic.Int64 // number of messages of input that send has begun
	taken  atomic.Int64 // number of messages of input that the server is known to have read
}

// Exec starts a command in a container. Do not put a secret into the command, because the server
// writes the command into its audit log. Send it as input. Exec returns when the API server has
// accepted the request. If the node then does not start the command, Receive returns
// ErrNotStarted. Exec does not retry, because the command could run twice.
func (c *Client) Exec(ctx context.Context, r ExecRequest) (*Stream, error) {
	what := fmt.Sprintf("run a command in pod %q", namespaceOf(r.Namespace, c)+"/"+r.Pod)
	limited, cancel := context.WithTimeoutCause(ctx, tryLimit, errNoAnswer)
	defer cancel()
	conn, err := c.dial(limited, r)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case limited.Err() != nil:
		return nil, c.fail(what, errNoAnswer, 1)
	default:
		return nil, c.fail(what, err, 1)
	}
	s := &Stream{socket: conn}
	s.hear()
	conn.SetPongHandler(func(data string) error {
		s.hear()
		if n, err := strconv.ParseInt(data, 10, 64); err == nil {
			s.taken.Store(max(n, s.taken.Load()))
		}
		return nil
	})
	ping := conn.PingHandler()
	conn.SetPingHandler(func(data string) error { s.hear(); return ping(data) })
	return s, nil
}

func namespaceOf(namespace string, c *Client) string {
	if namespace == "" {
		return c.namespace
	}
	return namespace
}

// dial opens the WebSocket.
func (c *Client) dial(ctx context.Context, r ExecRequest) (*websocket.Conn, error) {
	query := url.Values{"command": r.Command, "stdin": {"true"}, "stdout": {"true"}}
	query.Set("stderr", strconv.FormatBool(!r.Terminal))
	query.Set("tty", strconv.FormatBool(r.Terminal))
	if r.Container != "" {
		query.Set("container", r.Container)
	}
	at := c.rest.Get().AbsPath("/api/v1/namespaces", namespaceOf(r.Namespace, c), "pods", r.Pod, "exec").URL()
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	proxy := c.proxy
	if proxy == nil {
		proxy = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	opener := &socket.RoundTripper{TLSConfig: c.tls, Proxier: proxy}
	signing, err := transport.HTTPWrappersForConfig(c.signed, opener)
	if err != nil {
		return nil, err
	}
	conn, err := socket.Negotiate(signing, opener, request, remotecommand.StreamProtocolV5Name)
	var refused *httpstream.UpgradeFailureError
	if errors.As(err, &refused) {
		err = refused.Cause
	}
	return conn, err
}

func (s *Stream) hear() { s.heard.Store(time.Now().UnixNano()) }

// A Pulse says whether the server still answers.
type Pulse struct {
	Heard time.Time // time of the last output or answer to a Ping

	// Busy says that Receive waits for a writer and hears nothing meanwhile.
	Busy bool

	// Unread says that the server may not have read all input. It then waits for the
	// command to read, and answers no Ping.
	Unread bool
}

// Pulse returns what is known now.
func (s *Stream) Pulse() Pulse {
	return Pulse{Heard: time.Unix(0, s.heard.Load()), Busy: !s.idle.Load(), Unread: s.sent.Load() > s.taken.Load()}
}

// Ping asks the server for an answer. Pulse then has the time of the answer. Ping waits while
// input is being sent.
func (s *Stream) Ping() error {
	s.writes.Lock()
	defer s.writes.Unlock()
	return s.socket.WriteControl(websocket.PingMessage, strconv.AppendInt(nil, s.sent.Load(), 10), time.Time{})
}

// closeLimit limits how long the server may take to close the connection after the status.
const closeLimit = 5 * time.Second

// send writes a message on a channel.
func (s *Stream) send(channel byte, data []byte) error {
	s.writes.Lock()
	defer s.writes.Unlock()
	if channel == remotecommand.StreamStdIn {
		s.sent.Add(1)
	}
	w, err := s.socket.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte{channel}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Close()
}

// mostInput limits the input in one message. The server reads a message as a whole.
const mostInput = 32 << 10

// Write sends input to the command. It waits while the command does not read.
func (s *Stream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), mostInput)]
		if err := s.send(remotecommand.StreamStdIn, part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// CloseInput ends the input of the command.
func (s *Stream) CloseInput() error {
	return s.send(remotecommand.StreamClose, []byte{remotecommand.StreamStdIn})
}

// Resize tells the command the size of its terminal.
func (s *Stream) Resize(columns, rows int) error {
	data, err := json.Marshal(remotecommandSize{clamp(columns), clamp(rows)})
	if err != nil {
		return err
	}
	return s.send(remotecommand.StreamResize, data)
}

type remotecommandSize struct{ Width, Height uint16 }

func clamp(n int) uint16 { return uint16(max(0, min(n, 1<<16-1))) }

// Close closes the connection. A pending Receive then returns ErrCut.
func (s *Stream) Close() { s.socket.Close() }

// Receive writes the command's output to stdout and stderr until the command has ended, and
// returns its exit code. All output is then written. The error is ErrCut, ErrNotStarted or
// the error of a writer.
func (s *Stream) Receive(stdout, stderr io.Writer) (code int, err error) {
	var ended *metav1.Status
	heard := false // the command has written output
	for {
		s.idle.Store(true)
		kind, message, err := s.socket.NextReader()
		s.idle.Store(false)
		if err != nil {
			if ended != nil {
				return exitCode(ended, heard)
			}
			return 0, fmt.Errorf("%w: %s", ErrCut, cutText(err))
		}
		s.hear()
		var channel [1]byte
		if _, err := io.ReadFull(message, channel[:]); err != nil || kind != websocket.BinaryMessage {
			continue // a message without a channel means nothing
		}
		switch channel[0] {
		case remotecommand.StreamStdOut:
			err, heard = s.copy(stdout, message), true
		case remotecommand.StreamStdErr:
			err, heard = s.copy(stderr, message), true
		case remotecommand.StreamErr:
			ended, err = s.readStatus(message)
			_ = s.socket.SetReadDeadline(time.Now().Add(closeLimit)) // the server now closes the connection
		}
		if err != nil {
			return 0, err
		}
	}
}

// copy copies a message. If reading it fails, the error is ErrCut.
func (s *Stream) copy(to io.Writer, message io.Reader) error {
	from := &readError{r: message}
	_, err := io.Copy(struct{ io.Writer }{to}, from)
	s.hear()
	if from.err != nil {
		return fmt.Errorf("%w: %s", ErrCut, cutText(from.err))
	}
	return err
}

// readError marks an error of the reader, not of the writer.
type readError struct {
	r   io.Reader
	err error
}

func (r *readError) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// mostStatus limits the length of a status.
const mostStatus = 1 << 20

func (s *Stream) readStatus(message io.Reader) (*metav1.Status, error) {
	data, err := io.ReadAll(io.LimitReader(message, mostStatus))
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrCut, cutText(err))
	}
	status := &metav1.Status{}
	if err := json.Unmarshal(data, status); err != nil {
		return nil, fmt.Errorf("%w: read the status of the command: %w", ErrCut, err)
	}
	return status, nil
}

// cutText returns why a connection ended, without the WebSocket library's text for a missing
// reason.
func cutText(err error) string {
	var closed *websocket.CloseError
	if errors.As(err, &closed) {
		if closed.Text != "" && closed.Text != io.ErrUnexpectedEOF.Error() {
			return fmt.Sprintf("the server closed it (%d): %s", closed.Code, closed.Text)
		}
		return fmt.Sprintf("the server closed it (%d)", closed.Code)
	}
	return err.Error()
}

// exitCode reads the status with which the node ends a command.
func exitCode(status *metav1.Status, heard bool) (int, error) {
	if status.Status == metav1.StatusSuccess {
		return 0, nil
	}
	if status.Reason == remotecommand.NonZeroExitCodeReason && status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Type == remotecommand.ExitCodeCauseType {
				code, err := strconv.Atoi(cause.Message)
				if err == nil {
					return code, nil
				}
			}
		}
	}
	text := strings.TrimSpace(status.Message)
	if !heard && notStarted(text, status.Reason) {
		return 0, fmt.Errorf("%w: %s", ErrNotStarted, text)
	}
	return 0, fmt.Errorf("%w: %s", ErrCut, text)
}

// notStarted reports whether a failure says that the command never ran.
func notStarted(text string, reason metav1.StatusReason) bool {
	if reason == metav1.StatusReasonNotFound || reason == metav1.StatusReasonForbidden || reason == metav1.StatusReasonBadRequest {
		return true
	}
	for _, known := range []string{
		"unable to upgrade connection", "container not found", "OCI runtime exec failed", "failed to create exec",
		"failed to start exec", "container is not running", "is not in running state", "error dialing backend", "no preserved logs", "executable file not found",
	} {
		if strings.Contains(text, known) {
			return true
		}
	}
	return false
}
