package kubecontract

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"multihost/internal/testkit"
)

func execs(t *T) {
	t.shell("p", idle, corev1.PodRunning)
	big := make([]byte, 5<<20)
	_, _ = rand.Read(big) // never fails
	var out, errOut bytes.Buffer
	err := t.exec("p", remotecommand.StreamOptions{Stdin: bytes.NewReader(big), Stdout: &out, Stderr: &errOut}, "bash", "-c", "cat; echo no >&2; exit 7")
	var code exec.CodeExitError
	if !errors.As(err, &code) || code.Code != 7 {
		t.Errorf("error is %v, want exit code 7", err)
	}
	if !bytes.Equal(out.Bytes(), big) || errOut.String() != "no\n" {
		t.Errorf("got %d of %d bytes and %q", out.Len(), len(big), errOut.String())
	}
	err = t.exec("p", remotecommand.StreamOptions{Stdout: &out}, "bash", "-c", "kill -9 $$")
	if !errors.As(err, &code) || code.Code != 137 {
		t.Errorf("error is %v, want exit code 137", err)
	}
	err = t.exec("p", remotecommand.StreamOptions{Stdout: &out}, "no-such-program")
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("error of a program that is missing: %v", err)
	}
	err = t.exec("none", remotecommand.StreamOptions{Stdout: &out}, "true")
	if err == nil || !strings.Contains(err.Error(), `pods "none" not found`) {
		t.Errorf("error of a pod that is missing: %v", err)
	}

	// Processes that an exec leaves behind continue.
	testkit.Must(t, t.exec("p", remotecommand.StreamOptions{Stdout: &out}, "bash", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >$HOME/pid"))
	testkit.Must(t, t.exec("p", remotecommand.StreamOptions{Stdout: &out}, "bash", "-c", "kill -0 $(cat $HOME/pid)"))
}

// sizes is a queue of terminal sizes.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func terminals(t *T) {
	t.shell("p", idle, corev1.PodRunning)
	queue := make(sizes, 1)
	queue <- remotecommand.TerminalSize{Width: 81, Height: 25}
	defer close(queue)
	typed, keyboard := io.Pipe() // nothing is typed
	defer keyboard.Close()
	var out bytes.Buffer
	err := t.exec("p", remotecommand.StreamOptions{Stdout: &out, Tty: true, TerminalSizeQueue: queue, Stdin: typed},
		"bash", "-c", "until [ \"$(stty size)\" = '25 81' ]; do sleep 0.05; done; test -t 0 && stty size; exit 3")
	var code exec.CodeExitError
	if !errors.As(err, &code) || code.Code != 3 || out.String() != "25 81\r\n" {
		t.Errorf("error %v, output %q", err, out.String())
	}
}

func logs(t *T) {
	t.shell("p", `echo one; sleep 1.1; echo two >&2; sleep 0.3; printf '%s\n' "$(head -c 20000 /dev/zero | tr '\0' x)"; printf three`, corev1.PodSucceeded)
	long := strings.Repeat("x", 20000)
	for _, tt := range []struct{ options, want string }{
		{"", "one\ntwo\n" + long + "\nthree"},
		{"tailLines=1", "three"},
		{"tailLines=0", ""},
		{"limitBytes=5", "one\nt"},
		{"follow=true", "one\ntwo\n" + long + "\nthree"},
	} {
		if got := t.logText("p", tt.options); got != tt.want {
			t.Errorf("%s: %d bytes %.40q, want %d", tt.options, len(got), got, len(tt.want))
		}
	}
	stamps := strings.Split(t.logText("p", "timestamps=true"), "\n")
	var at []time.Time
	for _, line := range stamps {
		stamp, _, _ := strings.Cut(line, " ")
		when, err := time.Parse(time.RFC3339Nano, stamp)
		testkit.Must(t, err)
		at = append(at, when)
	}
	if len(at) != 4 || at[1].Sub(at[0]) < time.Second {
		t.Errorf("times of the lines are %v", at)
	}
	if got := t.logText("p", "sinceTime="+at[1].UTC().Format("2006-01-02T15:04:05Z")); !strings.HasPrefix(got, "two\n") {
		t.Errorf("log since the second line begins with %.20q", got)
	}
	_, err := t.log(t.Context(), "p", "container=none")
	t.has("log of a container that is missing", err, 400, "container none is not valid for pod p")
	_, err = t.log(t.Context(), "p", "previous=true")
	t.has("log of an earlier run that is missing", err, 400, `previous terminated container "main" in pod "p" not found`)
}

// logsOverOutage follows a log while the API goes away and comes back. It joins the parts
// by their times, like a client.
func logsOverOutage(t *T) {
	if t.SetAway == nil {
		t.Skip("the API cannot be taken away")
	}
	t.shell("p", "for i in $(seq 30); do echo line $i; sleep 0.1; done", corev1.PodRunning)
	r, err := t.log(t.Context(), "p", "follow=true&timestamps=true")
	testkit.Must(t, err)
	in := bufio.NewScanner(r)
	seen := make(map[string]bool)
	last := ""
	for len(seen) < 5 && in.Scan() {
		seen[in.Text()], last = true, in.Text()
	}
	testkit.Must(t, t.SetAway(true))
	for in.Scan() {
		seen[in.Text()], last = true, in.Text()
	}
	t.Logf("the log broke off: %v", in.Err())
	r.Close()
	testkit.Must(t, t.SetAway(false))
	t.await("p", corev1.PodSucceeded)
	stamp, _, _ := strings.Cut(last, " ")
	since, err := time.Parse(time.RFC3339Nano, stamp)
	testkit.Must(t, err)
	rest := t.logText("p", "timestamps=true&sinceTime="+since.UTC().Format("2006-01-02T15:04:05Z"))
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n") {
		seen[line] = true
	}
	if len(seen) != 30 {
		t.Errorf("%d of 30 lines arrived", len(seen))
	}
}

func podEnds(t *T) {
	failed := t.shell("failed", "exit 3", corev1.PodFailed)
	st := failed.Status.ContainerStatuses[0].State.Terminated
	if st == nil || st.ExitCode != 3 || st.Reason != "Error" || st.FinishedAt.IsZero() || st.StartedAt.IsZero() {
		t.Errorf("state of a container that failed: %+v", st)
	}
	done := t.shell("done", "true", corev1.PodSucceeded)
	if st := done.Status.ContainerStatuses[0].State.Terminated; st == nil || st.ExitCode != 0 || st.Reason != "Completed" {
		t.Errorf("state of a container that succeeded: %+v", st)
	}
	// SIGTERM goes to process 1. After the grace period, SIGKILL goes to all processes.
	t.shell("polite", `trap "exit 0" TERM; sleep 1000 & wait`, corev1.PodRunning)
	t.shell("deaf", `trap "" TERM; echo deaf; while :; do sleep 1; done`, corev1.PodRunning)
	t.eventually("the pod to be deaf", func() bool { return t.logText("deaf", "") != "" })
	gone := func(name string) bool {
		_, err := t.in(podsGVR).Get(t.Context(), name, metav1.GetOptions{})
		return err != nil
	}
	grace := int64(2)
	began := time.Now()
	testkit.Must(t, t.in(podsGVR).Delete(t.Context(), "polite", metav1.DeleteOptions{}))
	testkit.Must(t, t.in(podsGVR).Delete(t.Context(), "deaf", metav1.DeleteOptions{GracePeriodSeconds: &grace}))
	t.eventually("the end of polite", func() bool { return gone("polite") })
	t.eventually("the end of deaf", func() bool { return gone("deaf") })
	if d := time.Since(began); d < 2*time.Second {
		t.Errorf("a pod that ignores SIGTERM was gone after %v, with 2 s of grace", d)
	}
}

func podKilled(t *T) {
	if t.Kill == nil {
		t.Skip("process 1 cannot be killed")
	}
	t.shell("p", idle, corev1.PodRunning)
	testkit.Must(t, t.Kill(t.ns, "p"))
	t.await("p", corev1.PodFailed)
	if st := t.pod("p").Status.ContainerStatuses[0].State.Terminated; st == nil || st.ExitCode != 137 {
		t.Errorf("state of a container that was killed: %+v", st)
	}
}

func unschedulable(t *T) {
	t.create(podsGVR, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeSelector": {"none": "such"},
		"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "python", "command": ["true"]}]}}`)
	var message string
	t.eventually("a condition of the pod", func() bool {
		for _, c := range t.pod("p").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				message = c.Message
			}
		}
		return message != ""
	})
	if !strings.Contains(message, "nodes are available: ") || !strings.Contains(message, "node(s) didn't match Pod's node affinity/selector") {
		t.Errorf("message is %q", message)
	}
	t.eventually("an event", func() bool {
		l, err := t.in(gvr("", "v1", "events")).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=FailedScheduling"})
		testkit.Must(t, err)
		return len(l.Items) > 0
	})
	// A log that is followed does not wait for the node, either.
	if got := t.logText("p", "follow=true"); got != "" {
		t.Errorf("the log of a pod without node is %q", got)
	}
}
