package workloadrun

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/oauth2"

	"multihost/internal/gcp"
	"multihost/internal/kube"
	"multihost/internal/record"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// A signal just after the workload was made has the same effect as a later one: the run goes on,
// or Follow deletes its workload.
func TestASignalBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	s, err := kubeapi.New(kubeapi.Config{Dir: testkit.SharedDir(t)})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	said := &testkit.Recorder{}
	client, err := kube.New(kube.Config{Server: s.URL(), CA: s.CA(), Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: said})
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	c := &workloads.Cluster{Client: client, Flags: "--context=c", Sink: said}
	d := Deps{Keeper: &record.Keeper{Of: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}, StateDir: t.TempDir(), Owner: "ann@laptop"}, Cluster: c}
	for name, tt := range map[string]struct {
		signal os.Signal
		note   string
		stays  bool
	}{
		"left":    {syscall.SIGHUP, "left run left: the cluster goes on with it", true},
		"stopped": {syscall.SIGINT, "stopping run stopped (interrupted (SIGINT)): the cluster deletes its pods", false},
	} {
		_, err := c.Create(t.Context(), workloads.Request{ID: name, Spec: workload.Spec{Name: name, Slices: 1, Pods: 1, Command: "true", Image: "i", Grace: 1}})
		testkit.Must(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := &stage.Interrupted{Signal: tt.signal}
		cancel(cause)
		if _, err := Follow(ctx, d, name, Options{Ours: true}); !errors.Is(err, cause) || !said.Said("info", tt.note) {
			t.Errorf("%s: %v, notes %+v", name, err, said.Notes())
		}
		w, err := c.Find(t.Context(), name)
		if testkit.Must(t, err); (w != nil) != tt.stays {
			t.Errorf("%s: workload %+v", name, w)
		}
	}
}

func TestWhatALogKeeps(t *testing.T) {
	t.Parallel()
	for held, want := range map[bool]string{true: "before, and more", false: ", and more"} {
		file, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_RDWR, 0o600)
		testkit.Must(t, err)
		_, err = file.WriteString("before")
		testkit.Must(t, err)
		_, err = file.Seek(0, io.SeekStart)
		testkit.Must(t, err)
		r := &receiver{f: &following{Deps: Deps{Keeper: &record.Keeper{Of: &stage.Invocation{Sink: &testkit.Recorder{}}}}}, id: tpu.WorkerID{}, file: file}
		if held {
			had, err := r.Held()
			testkit.Must(t, err)
			if text, err := io.ReadAll(had); err != nil || string(text) != "before" {
				t.Errorf("it holds %q, %v", text, err)
			}
		}
		for _, text := range []string{", and", " more"} {
			_, err := r.Write([]byte(text))
			testkit.Must(t, err)
		}
		testkit.Must(t, r.Close())
		if got, err := os.ReadFile(file.Name()); err != nil || string(got) != want {
			t.Errorf("held %t: %q, %v, want %q", held, got, err, want)
		}
	}
}
