package follow

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

func TestBlame(t *testing.T) {
	begin := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	end := func(code int, seconds float64, reason string) Ending {
		exit := launch.Exit{Code: code, Reason: reason}
		return Ending{Known: true, Exit: exit, tail: leaves(exit, nil), at: at(seconds)}
	}
	tail := func(code int, seconds float64) Ending {
		exit := launch.Exit{Code: code}
		return Ending{Known: true, Exit: exit, tail: leaves(exit, []string{"F1128 client.h:77] Terminating process because the JAX distributed service detected fatal errors."}), at: at(seconds)}
	}
	ok := end(0, 5, "")
	for _, row := range []struct {
		story  string
		ends   []Ending
		strict bool
		code   int
		first  int
	}{
		{"all succeed", []Ending{ok, ok, ok}, false, 0, -1},
		{"the earliest failure is blamed, not the lowest worker", []Ending{end(1, 300, ""), end(1, 300.1, ""), end(134, 2, "")}, false, 134, 2},
		{"a worker that we stopped is not to blame", []Ending{end(143, 1, "fail-fast"), end(9, 2, ""), end(137, 0.5, "fail-fast")}, false, 9, 1},
		{"aborts after worker 0's success are a training's tail", []Ending{end(0, 10, ""), end(134, 11, ""), tail(1, 12)}, false, 0, -1},
		{"an ordinary failure after it is none", []Ending{end(0, 10, ""), end(134, 11, ""), end(100, 12, "")}, false, 100, 2},
		{"nor is a tail while worker 0 has failed", []Ending{end(1, 10, ""), end(134, 11, "")}, false, 1, 0},
		{"nor one that had others stopped", []Ending{end(0, 10, ""), end(134, 11, ""), end(143, 12, "fail-fast")}, false, 134, 1},
		{"nor one beside a worker whose end is not known", []Ending{end(0, 10, ""), end(134, 11, ""), {Err: errors.New("left")}}, false, 134, 1},
		{"nor an end that nobody saw", []Ending{end(0, 10, ""), {Known: true, Exit: launch.Exit{Code: 134, Lost: true}, tail: true, at: at(11)}}, false, 69, 1},
		{"a lost end with status 0 is no success", []Ending{end(0, 10, ""), {Known: true, Exit: launch.Exit{Lost: true}, at: at(11)}}, false, 69, 1},
		{"… unless exits are strict", []Ending{end(0, 10, ""), end(134, 11, ""), end(134, 12, "")}, true, 134, 1},
		{"… or come long after", []Ending{end(0, 10, ""), end(134, 70, "")}, false, 134, 1},
		{"… or came before", []Ending{end(0, 10, ""), end(134, 9, "")}, false, 134, 1},
		{"all stopped by us", []Ending{end(143, 10, "interrupted"), end(143, 11, "interrupted")}, false, 143, 0},
		{"a worker that was lost is a failure of 69", []Ending{{Known: true, Err: errors.New("slice is gone"), at: at(1)}, end(143, 3, "fail-fast")}, false, 69, 0},
	} {
		t.Run(row.story, func(t *testing.T) {
			code, first := Endings(row.ends).verdict(row.strict)
			if code != row.code || first != row.first {
				t.Errorf("verdict = %d, worker %d; want %d, worker %d", code, first, row.code, row.first)
			}
		})
	}
}

func TestAnOOMKillUnderBindingNamesThePreferredNode(t *testing.T) {
	bound := []string{"numactl", "--membind=0", "--cpunodebind=0"}
	for _, row := range []struct {
		story string
		wrap  []string
		oom   bool
		told  bool
	}{
		{"bound and killed for want of memory", bound, true, true},
		{"bound and failed of itself", bound, false, false},
		{"killed for want of memory, but free to use all", []string{"numactl", "--preferred=0", "--cpunodebind=0"}, true, false},
		{"never bound", nil, true, false},
	} {
		if got := outOfBoundMemory(launch.Exit{Code: 137, Signal: "KILL", OOM: row.oom}, row.wrap); got != row.told {
			t.Errorf("%s: %v", row.story, got)
		}
	}
}

// The test writes to a device that is always full.
func TestFullDiskKeepsTheViewAndThePrefix(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full here: %v", err)
	}
	var shown []byte
	var notes []string
	sink := event.SinkFunc(func(e event.Event) {
		switch e := e.(type) {
		case event.Output:
			shown = append(shown, e.Data...)
		case event.Note:
			notes = append(notes, e.Text)
		}
	})
	var cuts cutLogs
	for i := range 2 {
		id := tpu.WorkerID{Worker: i}
		l := &logFile{id: id, file: full, sink: sink, cut: func(err error) { cuts.add(id, err) }}
		for range 3 {
			if n, err := l.Write([]byte("line\n")); n != 5 || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
		}
	}
	cuts.tell(sink, "r")
	cuts.tell(sink, "r")
	want := []string{"the output of s0w[0-1] cannot be kept here any more: no space left on device; the run goes on and the workers keep the whole log"}
	if string(shown) != strings.Repeat("line\n", 6) || !slices.Equal(notes, want) {
		t.Errorf("shown %q, notes %q, want %q", shown, notes, want)
	}
}

func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 100<<10)
	for text, want := range map[string][]string{
		"":               nil,
		"one":            {"one"},
		"a\nb\nc\n":      {"b", "c"},
		long + "\nend\n": {"end"},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := LastLines(path, 2, nil)
		if len(got) == 2 && len(want) == 1 { // the window cut the long line
			got = got[1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("last lines of %.10q (-want +got):\n%s", text, diff)
		}
	}
}
