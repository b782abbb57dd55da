package kubelet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	wire "k8s.io/apimachinery/pkg/util/remotecommand"
	client "k8s.io/client-go/tools/remotecommand"
	"k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	"k8s.io/utils/exec"

	pods "multihost/internal/sim/kubeapi/kubelet"
	"multihost/internal/sim/worker"
)

const (
	idleLimit   = 4 * time.Hour
	streamLimit = 30 * time.Second // until the client has opened all streams of an exec
)

// handler serves the paths of a kubelet that the API server calls, and the webhook.
func (k *Kubelet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", trusted(k.serveLog))
	mux.HandleFunc("POST /exec/{namespace}/{pod}/{container}", trusted(k.serveExec))
	mux.HandleFunc("GET /exec/{namespace}/{pod}/{container}", trusted(k.serveExec))
	mux.HandleFunc("POST "+webhookPath, k.serveWebhook)
	return mux
}

// trusted refuses clients that show no certificate of the CA.
func trusted(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		serve(w, r)
	}
}

func (k *Kubelet) serveLog(w http.ResponseWriter, r *http.Request) {
	pod := k.pods.Pod(r.PathValue("namespace"), r.PathValue("pod"))
	if pod == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	opts, err := pods.ReadLogOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l, err := k.pods.Log(pod, r.PathValue("container"), opts)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, err.Error()) // an error means that the client is gone
		return
	}
	defer l.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	_ = l.CopyTo(r.Context(), w, http.NewResponseController(w).Flush) // an error means that the client is gone
}

func (k *Kubelet) serveExec(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name, container := r.PathValue("pod"), r.PathValue("container")
	pod := k.pods.Pod(r.PathValue("namespace"), name)
	if pod == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", name), http.StatusNotFound)
		return
	}
	if !k.enter() {
		http.Error(w, "the kubelet is closing", http.StatusServiceUnavailable)
		return
	}
	defer k.running.Done()
	run := &execution{running: &k.running, start: func(argv []string, tty bool) (worker.Launched, error) { return k.pods.Exec(pod, container, argv, tty) }}
	remotecommand.ServeExec(w, r, run, name, pod.UID, container, r.URL.Query()["command"], opts, idleLimit, streamLimit, wire.SupportedStreamingProtocols)
}

// An execution runs a program in a container.
type execution struct {
	running *sync.WaitGroup // counts the request, and the goroutines that outlive the program
	start   func(argv []string, tty bool) (worker.Launched, error)
}

// ExecInContainer implements remotecommand.Executor. If the connection is lost, the program
// continues to run.
func (e *execution) ExecInContainer(_ context.Context, _ string, _ types.UID, _ string, argv []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan client.TerminalSize, _ time.Duration) error {
	l, err := e.start(argv, tty)
	if err != nil {
		return err
	}
	stdin, stdout, stderr := l.Streams()
	var all sync.WaitGroup
	all.Go(func() { forward(out, stdout) })
	if stderr != nil {
		all.Go(func() { forward(errOut, stderr) })
	}
	if in == nil {
		if !tty {
			stdin.Close()
		}
	} else {
		e.running.Go(func() { // ends with the connection, which the caller closes
			_, _ = io.Copy(stdin, in) // the program may read no more
			if !tty {
				stdin.Close()
			}
		})
	}
	if resize != nil {
		e.running.Go(func() { // ends with the connection
			for size := range resize {
				_ = l.Resize(size.Width, size.Height) // the program may have ended
			}
		})
	}
	code := pods.ExitCode(l.Wait())
	all.Wait()
	if code != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// forward copies a program's output from r to w. w is nil if the client does not want the
// output. After the client has gone, forward continues to read, so that the program never
// blocks.
func forward(w io.Writer, r io.ReadCloser) {
	defer r.Close()
	if w != nil {
		if _, err := io.Copy(w, r); err == nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, r) // the client has gone or wants no output
}

func splitAddr(a net.Addr) (host string, port int32) {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return "", 0 // cannot happen: it is a listener's address
	}
	return ap.Addr().String(), int32(ap.Port())
}
