//go:build unix

package ops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/hosts"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
	"multihost/internal/transfer"
	"multihost/internal/workers"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// A rack is slice "t". Its workers are directories of this machine.
type rack struct {
	Deps
	said *testkit.Recorder
	of   []*localworker.Worker
}

func newRack(t *testing.T, n int) *rack {
	t.Helper()
	fleet := localworker.Fleet{}
	slice := fleet.Slice(t, "t", n)
	d, said := onworkers.Deps(t, fleet, &testkit.FixedSlices{All: []tpu.Slice{slice}})
	return &rack{Deps{d.Reach, d.Keeper}, said, fleet["t"]}
}

// result returns the newest result of that name.
func result[T any](r *rack, name string) (data T, text string) {
	for _, e := range r.said.Events() {
		if e, ok := e.(event.Result); ok && e.Name == name {
			data, text = e.Data.(T), e.Text
		}
	}
	return data, text
}

func pattern(t *testing.T, text string) tpu.Pattern {
	t.Helper()
	p, err := tpu.ParsePattern(text)
	testkit.Must(t, err)
	return p
}

func sh(script string) []string { return []string{"bash", "-c", script} }

func TestEqualAnswersAreShownOnce(t *testing.T) {
	t.Parallel()
	r := newRack(t, 3)
	testkit.Must(t, os.WriteFile(filepath.Join(r.of[2].Home, "other"), nil, 0o600))
	dir := filepath.Join(t.TempDir(), "logs")
	out, err := Exec(t.Context(), r.Deps, ExecOptions{Workers: workers.Workers{Prefix: "t"}, Argv: sh("seq 9; echo noise >&2; [ ! -e other ] || { echo mine; exit 3; }"), LogDir: dir})
	if err != nil || out.Code != 3 {
		t.Errorf("%+v, %v", out, err)
	}
	sum, text := result[ExecSummary](r, "exec_summary")
	if sum.Failed != 1 || fmt.Sprint(sum.Endings) != "[{s0w[0-1] 2 exit code 0} {s0w2 1 exit code 3}]" || len(sum.Stdout) != 2 || len(sum.Stderr) != 1 {
		t.Errorf("%+v", sum)
	}
	if want := "s0w[0-1] (2):\n  1\n  2\n  3\n  4\n  5\n  6\n  7\n  8\n  9\ns0w2, as s0w[0-1] but\n  + mine\n"; text != want {
		t.Errorf("shown %q, want %q", text, want)
	}
	if !r.said.Said(event.Warn, "s0w[0-2] (3), stderr: noise") || !r.said.Said(event.Warn, "s0w2: exit code 3") {
		t.Errorf("said %+v", r.said.Notes())
	}
	if log, _ := os.ReadFile(record.LogPath(dir, tpu.WorkerID{Worker: 2})); !strings.Contains(string(log), "9\n") || !strings.Contains(string(log), "noise\n") {
		t.Errorf("log %q", log)
	}
	_, err = Exec(t.Context(), r.Deps, ExecOptions{Workers: workers.Workers{Prefix: "t"}, Argv: sh("true"), LogDir: dir})
	if !stage.Is(err, stage.Local) {
		t.Errorf("logs were written over: %v", err)
	}
}

// The output of a single worker is shown as it arrives. A stopped command leaves no
// process.
func TestACommandOnOneWorker(t *testing.T) {
	t.Parallel()
	r := newRack(t, 2)
	one := workers.Workers{Prefix: "t", Only: pattern(t, "s0w1")}
	var stdout, stderr bytes.Buffer
	o := ExecOptions{Workers: one, Argv: sh("printf out; printf err >&2; exit 4"), Stdout: &stdout, Stderr: &stderr, Grace: 100 * time.Millisecond}
	if out, err := Exec(t.Context(), r.Deps, o); err != nil || out.Code != 4 || stdout.String() != "out" || stderr.String() != "err" {
		t.Errorf("%+v, %v, %q, %q", out, err, &stdout, &stderr)
	}
	o.Argv, o.Timeout = sh("exec sleep 300"), 300*time.Millisecond
	if _, err := Exec(t.Context(), r.Deps, o); !stage.Is(err, stage.Timeout) {
		t.Errorf("--timeout: %v", err)
	}
	o.Argv, o.Timeout = sh("echo $$ >pid; exec sleep 300"), 0
	gone, pid := &stage.Interrupted{}, 0
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		testkit.Eventually(t, "the command", func() bool {
			text, _ := os.ReadFile(filepath.Join(r.of[1].Home, "pid"))
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			return pid > 0
		})
		cancel(gone)
	}()
	if _, err := Exec(ctx, r.Deps, o); !errors.Is(err, gone) {
		t.Errorf("interrupted: %v", err)
	}
	testkit.Eventually(t, "the end of the command", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func TestWorkersThatAreAwayFailACommand(t *testing.T) {
	t.Parallel()
	r := newRack(t, 2)
	r.Access.RetryFor = time.Millisecond
	r.of[1].Leave()
	defer r.of[1].Return()
	_, err := Exec(t.Context(), r.Deps, ExecOptions{Workers: workers.Workers{Prefix: "t"}, Argv: sh("echo here")})
	if err == nil || !strings.Contains(err.Error(), "connect: 1 of 2 workers failed: s0w1") {
		t.Errorf("%v", err)
	}
	if _, text := result[ExecSummary](r, "exec_summary"); text != "s0w0: here\n" {
		t.Errorf("shown %q", text)
	}
}

func TestFilesGoThereAndBack(t *testing.T) {
	t.Parallel()
	r := newRack(t, 2)
	dir := t.TempDir()
	for i := range r.of {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), fmt.Appendf(nil, "for %d\n", i), 0o600))
	}
	all := workers.Workers{Prefix: "t"}
	testkit.Must(t, CopyTo(t.Context(), r.Deps, CopyOptions{Workers: all, Sources: []string{filepath.Join(dir, "f{worker}")}, Dest: "place"}))
	for i, w := range r.of {
		if text, err := os.ReadFile(filepath.Join(w.Home, "place")); err != nil || string(text) != fmt.Sprintf("for %d\n", i) {
			t.Errorf("worker %d has %q, %v", i, text, err)
		}
	}
	if sent, _ := result[[]Copied](r, "copied"); len(sent) != 2 || sent[1].Bytes != 6 || sent[1].Dest != "place" {
		t.Errorf("%+v", sent)
	}
	back := filepath.Join(dir, "back")
	testkit.Must(t, os.Remove(filepath.Join(r.of[1].Home, "place")))
	err := CopyFrom(t.Context(), r.Deps, CopyOptions{Workers: all, Sources: []string{"place"}, Dest: back})
	if !stage.Is(err, stage.Copy) || !strings.Contains(err.Error(), "1 of 2 workers failed: s0w1") {
		t.Errorf("fetch: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(back, "s0w0", "place")); err != nil || string(text) != "for 0\n" {
		t.Errorf("fetched %q, %v", text, err)
	}
	if got, _ := result[[]Copied](r, "copied"); len(got) != 2 || got[0].Error != "" || got[1].Error == "" {
		t.Errorf("%+v", got)
	}
	if err := CopyTo(t.Context(), r.Deps, CopyOptions{Workers: all, Sources: []string{filepath.Join(dir, "none")}, Dest: "place"}); !stage.Is(err, stage.Local) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestWhereFilesOfWorkersGo(t *testing.T) {
	ids := testkit.WorkerIDs(2, 1)
	for _, tt := range []struct {
		dest    string
		sources []string
		ids     []tpu.WorkerID
		want    map[tpu.WorkerID]transfer.Place
		err     string
	}{
		{"here", []string{"a"}, ids, map[tpu.WorkerID]transfer.Place{ids[0]: {Dir: "here/s0w0"}, ids[1]: {Dir: "here/s1w0"}}, ""},
		{"here-{slice}", []string{"a", "b"}, ids, map[tpu.WorkerID]transfer.Place{ids[0]: {Dir: "here-0"}, ids[1]: {Dir: "here-1"}}, ""},
		{"here-{worker}", []string{"a"}, ids, nil, `s0w0 and s1w0 would both go to "here-0"`},
	} {
		got, err := placesFor(CopyOptions{Sources: tt.sources, Dest: tt.dest}, tt.ids)
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: %v", tt.dest, err)
			}
			continue
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %+v, %v", tt.dest, got, err)
		}
	}
}

// A login goes to exactly one worker. Without a terminal, the command gets the input.
func TestALoginIsToOneWorker(t *testing.T) {
	t.Parallel()
	r := newRack(t, 2)
	_, err := Shell(t.Context(), r.Reach, ShellOptions{Workers: workers.Workers{Prefix: "t"}})
	if !stage.Is(err, stage.Input) || err.Error() != "s0w[0-1] is 2 workers; a login is to one" {
		t.Errorf("to two: %v", err)
	}
	list, err := hosts.ParseHosts("a,b")
	testkit.Must(t, err)
	onHosts := *r.Reach
	onHosts.Cloud = list
	_, err = Shell(t.Context(), &onHosts, ShellOptions{Workers: workers.Workers{Prefix: hosts.HostsPrefix}})
	var refused *stage.Error
	if !errors.As(err, &refused) || !strings.Contains(refused.Advice, "multihost ssh s0w0 --hosts=a,b;") {
		t.Errorf("to two hosts: %+v", err)
	}
	o := ShellOptions{Workers: workers.Workers{Prefix: "t", Only: pattern(t, "s0w1")}, Argv: sh("cat; exit 5")}
	var out bytes.Buffer
	closed := false
	o.Open = func(context.Context) (*Console, error) {
		return &Console{Stdin: strings.NewReader("typed"), Stdout: &out, Stderr: &out, Close: func() error { closed = true; return nil }}, nil
	}
	if end, err := Shell(t.Context(), r.Reach, o); err != nil || end.Code != 5 || out.String() != "typed" || !closed {
		t.Errorf("%+v, %v, %q, closed %v", end, err, &out, closed)
	}
}
