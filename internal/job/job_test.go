package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestEqualFailuresOfWorkersAreOneClause(t *testing.T) {
	all := testkit.WorkerIDs(2, 4)
	errs := make([]error, len(all))
	for i := range errs {
		errs[i] = errors.New(all[i].String() + ": connection refused")
	}
	errs[5] = errors.New("no route to host")
	errs[0] = nil
	err := workersError(StageConnect, all, errs)
	want := "connect: 7 of 8 workers failed: s0w[1-3],s1w[0,2-3]: connection refused; s1w1: no route to host"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if workersError(StageConnect, all, make([]error, len(all))) != nil {
		t.Error("no failure is an error")
	}
}

// TestErrorsOfTheEngineAreFolded guards that what differs from worker to worker,
// its name, address and tries, keeps equal causes apart only where it is the only
// one.
func TestErrorsOfTheEngineAreFolded(t *testing.T) {
	all := testkit.WorkerIDs(1, 4)
	refused := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), User: "ann", Stage: remote.StageDial, Addr: "10.0.0." + strconv.Itoa(i), Tries: i + 2, Err: syscall.ECONNREFUSED}
	}
	unknown := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageDial, Addr: fmt.Sprintf("h%d.invalid:22", i), Err: &remote.NameError{Name: fmt.Sprintf("h%d.invalid", i), Why: "no such host"}}
	}
	changed := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageHostKey, Err: &remote.HostKeyError{Host: all[i].String(), Source: "the file pins", Known: []string{"old"}, Offered: "new " + strconv.Itoa(i)}}
	}
	noAddress := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageDial, Err: &sshfan.NoAddressError{Worker: all[i].String(), Kind: "external"}}
	}
	readOnly := func(path string) error { return fmt.Errorf("mkdir %s: Read-only file system", path) }
	full := func(i int) error {
		return fmt.Errorf("arm: %w", &launch.RemoteError{Worker: all[i].String(), Op: "arm", Text: "write ~/x: No space left on device"})
	}
	for _, row := range []struct {
		errs       []error
		want, cure string
	}{
		{[]error{refused(0), nil, refused(2), refused(3)}, "start: 3 of 4 workers failed: s0w[0,2-3]: connect: connection refused", ""},
		{[]error{nil, refused(1), nil, nil}, "start: 1 of 4 workers failed: s0w1: connect to s0w1 (10.0.0.1): connection refused (after 3 tries)", ""},
		{[]error{unknown(0), unknown(1), unknown(2), unknown(3)}, "start: 4 of 4 workers failed: s0w[0-3]: connect: its name has no address here: no such host", unknown(0).(*remote.ConnectError).Hint()},
		{[]error{changed(0), changed(1), nil, changed(3)}, "start: 3 of 4 workers failed: s0w[0-1,3]: verify host key: the host key changed: the file pins has another one than the machine offers", ""},
		{[]error{noAddress(0), noAddress(1), noAddress(2), nil}, "start: 3 of 4 workers failed: s0w[0-2]: connect: it has no external address", ""},
		{[]error{fmt.Errorf("learn the VM name of s0w0 for it"), fmt.Errorf("learn the VM name of s0w1 for it"), nil, nil}, "start: 2 of 4 workers failed: s0w[0-1]: learn the VM name of the worker for it", ""},
		{[]error{readOnly("~/.multihost"), nil, nil, nil}, "start: 1 of 4 workers failed: s0w0: mkdir ~/.multihost: Read-only file system", readOnlyCure},
		{[]error{readOnly("/proc/sys/net (a container may write there only with securityContext: privileged: true)"), nil, nil, nil}, "start: 1 of 4 workers failed: s0w0: mkdir /proc/sys/net (a container may write there only with securityContext: privileged: true): Read-only file system", ""},
		{[]error{nil, full(1), full(2), nil}, "start: 2 of 4 workers failed: s0w[1-2]: arm: arm: write ~/x: No space left on device", diskCure},
	} {
		var err *Error
		if !errors.As(workersError(StageStart, all, row.errs), &err) || err.Error() != row.want || err.Hint() != row.cure {
			t.Errorf("got  %v (%s)\nwant %s (%s)", err, err.Hint(), row.want, row.cure)
		}
	}
}

// However many workers fail, and for however many causes, the error is one that can be
// read.
func TestAnErrorOfAThousandWorkersCanBeRead(t *testing.T) {
	all := testkit.WorkerIDs(1, 1001)
	for name, c := range map[string]struct {
		cause func(i int) string
		want  string
	}{
		"one cause":       {func(int) string { return "refused" }, "connect: 1001 of 1001 workers failed: s0w[0-1000]: refused"},
		"two in turn":     {func(i int) string { return []string{"refused", "off"}[i%2] }, "connect: 1001 of 1001 workers failed: s0w[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,…] (501 workers): refused; s0w[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,…] (500 workers): off"},
		"each of its own": {func(i int) string { return fmt.Sprintf("cause %d", i) }, "connect: 1001 of 1001 workers failed: s0w0: cause 0; s0w1: cause 1; s0w2: cause 2; s0w3: cause 3; s0w[4-1000]: 997 other causes, such as: cause 4"},
	} {
		errs := make([]error, len(all))
		for i := range errs {
			errs[i] = errors.New(c.cause(i))
		}
		if err := workersError(StageConnect, all, errs); err == nil || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", name, err, c.want)
		}
	}
	names, errs := make([]string, 300), make([]error, 300)
	for i := range names {
		names[i] = fmt.Sprintf("q%d", i)
		errs[i] = fmt.Errorf("delete queued resource %q: 403 denied", names[i])
	}
	want := "q0, q1, q2 and 297 more: delete queued resource …: 403 denied"
	if err := JoinNamed(names, errs); err == nil || err.Error() != want || !errors.Is(err, errs[7]) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := JoinNamed(names[:2], []error{nil, errs[1]}); err == nil || err.Error() != errs[1].Error() {
		t.Errorf("a single failure: %v", err)
	}
	if err := JoinNamed(names, make([]error, 300)); err != nil {
		t.Errorf("no failure: %v", err)
	}
}

// TestBlame checks the verdict on runs whose workers fail one after another.
func TestBlame(t *testing.T) {
	begin := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	end := func(code int, seconds float64, reason string) ending {
		exit := launch.Exit{Code: code, Reason: reason}
		return ending{known: true, exit: exit, tail: leaves(exit, nil), at: at(seconds)}
	}
	tail := func(code int, seconds float64) ending {
		exit := launch.Exit{Code: code}
		return ending{known: true, exit: exit, tail: leaves(exit, []string{"F1128 client.h:77] Terminating process because the JAX distributed service detected fatal errors."}), at: at(seconds)}
	}
	ok := end(0, 5, "")
	for _, row := range []struct {
		story  string
		ends   []ending
		strict bool
		code   int
		first  int
	}{
		{"all succeed", []ending{ok, ok, ok}, false, 0, -1},
		{"the earliest failure is blamed, not the lowest worker", []ending{end(1, 300, ""), end(1, 300.1, ""), end(134, 2, "")}, false, 134, 2},
		{"a worker that we stopped is not to blame", []ending{end(143, 1, "fail-fast"), end(9, 2, ""), end(137, 0.5, "fail-fast")}, false, 9, 1},
		{"aborts after worker 0's success are a training's tail", []ending{end(0, 10, ""), end(134, 11, ""), tail(1, 12)}, false, 0, -1},
		{"an ordinary failure after it is none", []ending{end(0, 10, ""), end(134, 11, ""), end(100, 12, "")}, false, 100, 2},
		{"nor is a tail while worker 0 has failed", []ending{end(1, 10, ""), end(134, 11, "")}, false, 1, 0},
		{"nor one that had others stopped", []ending{end(0, 10, ""), end(134, 11, ""), end(143, 12, "fail-fast")}, false, 134, 1},
		{"nor one beside a worker whose end is not known", []ending{end(0, 10, ""), end(134, 11, ""), {err: errors.New("left")}}, false, 134, 1},
		{"nor an end that nobody saw", []ending{end(0, 10, ""), {known: true, exit: launch.Exit{Code: 134, Lost: true}, tail: true, at: at(11)}}, false, 69, 1},
		{"a lost end with status 0 is no success", []ending{end(0, 10, ""), {known: true, exit: launch.Exit{Lost: true}, at: at(11)}}, false, 69, 1},
		{"… unless exits are strict", []ending{end(0, 10, ""), end(134, 11, ""), end(134, 12, "")}, true, 134, 1},
		{"… or come long after", []ending{end(0, 10, ""), end(134, 70, "")}, false, 134, 1},
		{"… or came before", []ending{end(0, 10, ""), end(134, 9, "")}, false, 134, 1},
		{"all stopped by us", []ending{end(143, 10, "interrupted"), end(143, 11, "interrupted")}, false, 143, 0},
		{"a worker that was lost is a failure of 69", []ending{{known: true, err: errors.New("slice is gone"), at: at(1)}, end(143, 3, "fail-fast")}, false, 69, 0},
	} {
		t.Run(row.story, func(t *testing.T) {
			f := &following{ends: row.ends, strict: row.strict}
			code, first := f.verdict()
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
		var notes []event.Note
		f := &following{
			Deps: &Deps{Sink: event.SinkFunc(func(e event.Event) { notes = append(notes, e.(event.Note)) })},
			team: &team{ids: []tpu.WorkerID{{}}}, wraps: [][]string{row.wrap},
			ends: []ending{{known: true, exit: launch.Exit{Code: 137, Signal: "KILL", OOM: row.oom}}},
		}
		f.tellBinding(0)
		if told := len(notes) == 1 && strings.Contains(notes[0].Hint, "--numa=preferred"); told != row.told {
			t.Errorf("%s: notes %+v", row.story, notes)
		}
	}
}

// TestMegascaleVariables checks which of the four variables a command gets: set
// for slices that no metadata ties together, removed for all others.
func TestMegascaleVariables(t *testing.T) {
	slice := func(name, queue string) tpu.Slice {
		return tpu.Slice{Name: name, QueuedResource: queue, MultiSlice: queue != "", Workers: []tpu.Worker{{Internal: "10.0.0." + name[len(name)-1:]}}}
	}
	for _, row := range []struct {
		story   string
		slices  []tpu.Slice
		partial bool
		set     bool
	}{
		{"one slice", []tpu.Slice{slice("t", "")}, false, false},
		{"one multi-node queued resource", []tpu.Slice{slice("t-0", "q"), slice("t-1", "q")}, false, false},
		{"a part of one", []tpu.Slice{slice("t-0", "q"), slice("t-1", "q")}, true, true},
		{"a part of one, told by the names", []tpu.Slice{slice("t-0", "q"), slice("t-2", "q")}, false, true},
		{"slices made apart", []tpu.Slice{slice("t-0", ""), slice("t-1", "")}, false, true},
	} {
		t.Run(row.story, func(t *testing.T) {
			r := &run{Deps: &Deps{}, team: &team{slices: row.slices}, o: RunOptions{AllowPartial: row.partial}}
			for i := range row.slices {
				r.team.slices[i].Index = i
				r.team.ids = append(r.team.ids, tpu.WorkerID{Slice: i})
			}
			last := len(row.slices) - 1
			set, unset := r.environment(last)
			got := map[string]string{}
			for _, v := range set {
				if strings.HasPrefix(v.Name, "MEGASCALE_") {
					got[v.Name] = v.Value
				}
			}
			if row.set {
				want := map[string]string{"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_PORT": "8081"}
				if diff := cmp.Diff(want, got); diff != "" || len(unset) != 0 {
					t.Errorf("set (-want +got), unset %v:\n%s", unset, diff)
				}
				return
			}
			if len(got) != 0 || len(unset) != 4 {
				t.Errorf("set %v, unset %v; want none set and four unset", got, unset)
			}
		})
	}
}

func TestProcessNumbersCountThroughSlicesAndProcesses(t *testing.T) {
	r := &run{Deps: &Deps{Cloud: HostList{{Name: "a"}, {Name: "b"}}}, o: RunOptions{Processes: 4}}
	sel, _ := r.Cloud.Slices(t.Context())
	r.team = &team{slices: sel, ids: testkit.WorkerIDs(1, 2)}
	set, _ := r.environment(1)
	got := map[string]string{}
	for _, v := range set {
		got[v.Name] = v.Value
	}
	for name, want := range map[string]string{
		"MULTIHOST_PROCESS_ID": "4", "MULTIHOST_NUM_PROCESSES": "8", "JAX_PROCESS_ID": "4", "JAX_NUM_PROCESSES": "8", "JAX_COORDINATOR_ADDRESS": "a:8482",
	} {
		if got[name] != want {
			t.Errorf("%s=%s, want %s", name, got[name], want)
		}
	}
}

func TestRecordIsFoundByName(t *testing.T) {
	dir := t.TempDir()
	if rec, err := loadRecord(dir, "r"); rec != nil || err != nil {
		t.Errorf("a run without record: %v, %v", rec, err)
	}
	want := &Record{Run: "r", Attempt: 2, Prefix: "t", LogDir: "/logs", Hosts: "ann@h1:2222,h2"}
	if err := want.save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecord(dir, "r")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("err %v (-want +got):\n%s", err, diff)
	}
	hosts, err := RecordedHosts(dir, "r")
	if err != nil || hosts.String() != want.Hosts {
		t.Errorf("hosts = %v, %v", hosts, err)
	}
	if err := os.WriteFile(recordPath(dir, "r"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadRecord(dir, "r"); err == nil || !strings.Contains(err.Error(), "run.json") {
		t.Errorf("a broken record: %v", err)
	}
}

func TestAFileOfHostsIsReadWholeOrRefused(t *testing.T) {
	long := strings.Repeat("x", 70_000) // a bufio.Scanner ends there
	many := ""
	for i := range 5000 {
		many += fmt.Sprintf("10.0.%d.%d\n", i/250, i%250)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "hosts")
	for text, want := range map[string]string{
		"h1 # " + long + "\nh2\n":         "h1,h2",
		"# " + long + "\n" + many:         strings.ReplaceAll(strings.TrimSuffix(many, "\n"), "\n", ","),
		"\ufeffh1\r\n\r\n h2 \r\nh3":      "h1,h2,h3",
		"h1,h2\nh3":                       "h1,h2,h3",
		"h1\n" + long + "@\n":             path + ":2: host \"",
		"h1\n\nh2\x00\n":                  path + `:3: host "h2\x00": it has a character that cannot be printed`,
		"h1\rh2\r":                        path + `:1: host "h1\rh2": it has a character that cannot be printed`,
		"h1\nh2\n#\nh1":                   path + `:4: host "h1" is named twice`,
		"\xff\xfeh\x001\x00":              `read "` + path + `": it is UTF-16, want UTF-8`,
		"\n# nobody\n":                    `read "` + path + `": there is no host in it`,
		"":                                `read "` + path + `": there is no host in it`,
		"# " + strings.Repeat("x", 4<<20): `read "` + path + `": larger than 4194304 bytes`,
	} {
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := ReadHosts(t.Context(), path)
		if err != nil && !strings.HasPrefix(err.Error(), want) || err == nil && got.String() != want {
			t.Errorf("%.40q: %.60q, %.90v; want %.60q", text, got, err, want)
		}
	}
	for _, path := range []string{dir, "/proc/self/mem"} { // the latter fails only when it is read
		if got, err := ReadHosts(t.Context(), path); err == nil {
			t.Errorf("%s: %v, want an error", path, got)
		}
	}
}

func TestHostsAreReadAsTyped(t *testing.T) {
	for text, want := range map[string]string{
		"h1,h2":                     "h1,h2",
		"ann@h1:2222, bob@10.0.0.2": "ann@h1:2222,bob@10.0.0.2",
		"h1:0":                      "",
		"@h1":                       "",
		"root@h1":                   "",
		"a b":                       "",
		"":                          "",
		"h1,h1":                     "",
		"ann@h1,bob@h1":             "",
		"h1,":                       "",
		"h\x00":                     "",
		"h\xff":                     "",
		"a\u00a0b":                  "",
		"h\r":                       "h",
		"h\ri":                      "",
	} {
		list, err := ParseHosts(text)
		if want == "" {
			if err == nil {
				t.Errorf("ParseHosts(%q) = %v, want an error", text, list)
			}
			continue
		}
		if err != nil || list.String() != want {
			t.Errorf("ParseHosts(%q) = %q, %v, want %q", text, list, err, want)
		}
	}
}

// TestFullDiskKeepsTheViewAndThePrefix writes to a device that is always full.
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
		got := lastLines(path, 2, nil)
		if len(got) == 2 && len(want) == 1 { // the window cut the long line
			got = got[1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("last lines of %.10q (-want +got):\n%s", text, diff)
		}
	}
}

// A secret LIBTPU_INIT_ARGS stays one when --xla-flag is merged into it.
func TestASecretVariableWithMergedFlagsIsSecret(t *testing.T) {
	var told strings.Builder
	r := &run{Deps: &Deps{Sink: event.SinkFunc(func(e event.Event) { fmt.Fprintln(&told, e) })}, o: RunOptions{
		Env:      []config.EnvVar{{Name: "LIBTPU_INIT_ARGS", Value: "--xla_canary_1=canary-2 --xla_tpu_scoped_vmem_limit_kib=98304", Secret: true}},
		XLAFlags: []string{"xla_tpu_scoped_vmem_limit_kib=4096"},
	}}
	vars, err := r.xlaFlags("v5litepod-8")
	if err != nil || len(vars) != 1 || !vars[0].Secret || !strings.Contains(vars[0].Value, "--xla_canary_1=canary-2") || !strings.Contains(vars[0].Value, "4096") {
		t.Errorf("got %+v, %v", vars, err)
	}
	if strings.Contains(told.String(), "canary") || strings.Contains(told.String(), "98304") || !strings.Contains(told.String(), "LIBTPU_INIT_ARGS=") {
		t.Errorf("told:\n%s", told.String())
	}
}

func TestSecretsAreNotInTheRecord(t *testing.T) {
	o := RunOptions{Script: "train --token=hunter2", Env: []config.EnvVar{{Name: "TOKEN", Value: "hunter2", Secret: true}}}
	dir := t.TempDir()
	rec := &Record{Run: "r", Command: commandText(o)}
	if err := rec.save(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(recordPath(dir, "r"))
	if err != nil || strings.Contains(string(data), "hunter2") || !strings.Contains(string(data), "train --token=***") {
		t.Errorf("record holds the secret (%v):\n%s", err, data)
	}
}
