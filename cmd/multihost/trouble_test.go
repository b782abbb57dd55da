package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// A trouble is a problem of worker 1 of 2, or of both workers, with the messages about it.
type trouble struct {
	story   string
	faults  []string // set before the run; the test adds "node="
	needs   string   // a program that the test needs
	netns   bool     // needs namespaces: the process backend cannot do it
	again   bool     // similar to another trouble, so that only make test-all tries it
	after   string   // stderr has this text before the faults are set
	args    []string
	command string // "" means "echo hello"

	status int
	says   string // all warnings, errors and hints, without addresses
	prints string // what worker 0 prints on stdout
}

// Texts that several rows of the table share.
const (
	lookAtStartup = "; to look, as another login there (--user=NAME): sudo tail ~ann/.bashrc /etc/bash.bashrc ~ann/.ssh/rc\n"
	noShell       = "multihost: hint: its login shell is no shell, such as nologin or false, or sshd runs another command (ForceCommand); as another login there (--user=NAME): getent passwd ann; sudo chsh -s /bin/bash ann\n"
	oneFails      = "multihost: error: connect: 1 of 2 workers failed: s0w1: run a command on s0w1 as \"ann\": the login shell "
	startupExits  = "multihost: hint: a start-up file of the login exits, or its login shell is no shell" + lookAtStartup
	startupWaits  = "multihost: hint: a start-up file of the login waits for something, or a disk hangs" + lookAtStartup
	letSudo       = "multihost: hint: let the login use sudo without a password on the worker, as members of google-sudoers may on a TPU VM, or use one that may: --user=NAME"
	installSudo   = "multihost: hint: install it as root on the worker: apt-get install sudo"
	seeSettings   = "; to see each setting: multihost preflight check --tpu-prefix=SLICE; to make it an error: --preflight=require, or --require\n"
	freeDisk      = "multihost: hint: free some space on the worker: df -h ~ /tmp shows where, and df -i ~ /tmp if there are too many files; what multihost keeps to send less may go: rm -rf ~/.multihost/store\n"
	wrongClock    = "; what is shown is corrected, but certificates and tokens may be refused\n"
)

// firstOutput is the value of trouble.after for the first output of worker 1.
const firstOutput = "first output"

func troubles() []trouble {
	return []trouble{{
		story:  "nothing is wrong",
		prints: "hello\n",
	}, {
		story:  "~/.bashrc prints",
		faults: []string{"worker-startup mode=print"},
		prints: "hello\n",
	}, {
		story:  "~/.bashrc exits",
		faults: []string{"worker-startup worker=1 mode=exit"},
		status: 69,
		says:   oneFails + "ended before it ran a command (exit status 3); it said \"bye from ~/.bashrc\"\n" + startupExits,
	}, {
		story:  "~/.bashrc waits for input on all workers",
		faults: []string{"worker-startup mode=hang"},
		args:   []string{"--connect-timeout=15s"},
		status: 69,
		says:   "multihost: error: connect: 2 of 2 workers failed: s0w[0-1]: run a command as \"ann\": the login shell ran no command within 15s; it said \"waiting in ~/.bashrc\"\n" + startupWaits,
	}, {
		story: "/etc/bash.bashrc exits", netns: true, again: true,
		faults: []string{"worker-startup worker=1 mode=exit setting=/etc/bash.bashrc"},
		status: 69,
		says:   oneFails + "ended before it ran a command (exit status 3); it said \"bye from /etc/bash.bashrc\"\n" + startupExits,
	}, {
		story: "~/.ssh/rc prints", netns: true, again: true,
		faults: []string{"worker-startup worker=1 mode=print setting='~/.ssh/rc'"},
		prints: "hello\n",
	}, {
		story: "~/.ssh/rc exits", netns: true, again: true,
		faults: []string{"worker-startup worker=1 mode=exit setting='~/.ssh/rc'"},
		prints: "hello\n",
	}, {
		story: "~/.ssh/rc hangs", netns: true,
		faults: []string{"worker-startup worker=1 mode=hang setting='~/.ssh/rc'"},
		args:   []string{"--connect-timeout=15s"},
		status: 69,
		says:   oneFails + "ran no command within 15s; it said \"waiting in ~/.ssh/rc\"\n" + startupWaits,
	}, {
		story:  "sshd shows a banner",
		faults: []string{"worker-banner"},
		prints: "hello\n",
	}, {
		story:  "the login shell is dash",
		faults: []string{"worker-shell setting=/bin/dash"},
		prints: "hello\n",
	}, {
		story:  "the login shell is zsh",
		needs:  "zsh",
		faults: []string{"worker-shell setting=/usr/bin/zsh"},
		prints: "hello\n",
	}, {
		story:  "the login shell is nologin",
		faults: []string{"worker-shell worker=1 setting=/usr/sbin/nologin"},
		status: 69,
		says:   oneFails + "ended before it ran a command (exit status 1); it said \"This account is currently not available.\"\n" + noShell,
	}, {
		story: "the login shell is false", again: true,
		faults: []string{"worker-shell worker=1 setting=/bin/false"},
		status: 69,
		says:   oneFails + "ended before it ran a command (exit status 1)\n" + noShell,
	}, {
		story:   "the clock of a worker is an hour ahead",
		needs:   "faketime",
		faults:  []string{"worker-clock worker=1 duration=1h"},
		args:    []string{"--fail-fast=false"},
		command: "[ $MULTIHOST_WORKER_ID = 1 ] || { echo hello; sleep 2; exit 4; }; exit 3",
		status:  3,
		says: "multihost: warning: the clock of s0w1 is 1h00m ahead of this machine's" + wrongClock +
			"multihost: hint: on the worker: timedatectl; sudo systemctl restart chrony\n" +
			"multihost: warning: s0w1: exit code 3\n" +
			"multihost: hint: multihost logs RUN --worker=s0w1\n",
		prints: "hello\n",
	}, {
		story: "the clocks of all workers are an hour behind", again: true,
		needs:  "faketime",
		faults: []string{"worker-clock mode=behind duration=1h"},
		says: "multihost: warning: the clock of all workers is 1h00m behind this machine's" + wrongClock +
			"multihost: hint: the clock of this machine is the wrong one: timedatectl\n",
		prints: "hello\n",
	}, {
		story: "sudo asks for a password", netns: true,
		faults: []string{"worker-no-sudo worker=1"},
		says: "multihost: warning: preflight: N settings on s0w0; N settings on s0w1; SETTINGS failed on s0w1: no root rights: sudo: a password is required\n" + letSudo + seeSettings +
			"multihost: warning: s0w1: processes of other users that hold the TPU are not seen: sudo: a password is required\n" + letSudo + "\n",
		prints: "hello\n",
	}, {
		story:  "sudo asks for a password, and every setting is wanted",
		faults: []string{"worker-no-sudo worker=1"},
		args:   []string{"--preflight=require"},
		status: 76,
		says:   "multihost: error: preflight settings: 1 of 2 workers failed: s0w1: SETTINGS: no root rights: sudo: a password is required\n" + letSudo + "\n",
	}, {
		story: "there is no sudo", netns: true, again: true,
		faults: []string{"worker-no-sudo mode=missing"},
		says: "multihost: warning: preflight: N settings on s0w[0-1]; SETTINGS failed on s0w[0-1]: not root, and sudo is not installed\n" +
			installSudo + seeSettings +
			"multihost: warning: s0w[0-1]: processes of other users that hold the TPU are not seen: sudo is not installed\n" + installSudo + "\n",
		prints: "hello\n",
	}, {
		story: "the disk of a home is full", netns: true,
		faults: []string{"worker-disk-space worker=1"},
		status: 69,
		says:   "multihost: error: sync: 1 of 2 workers failed: s0w1: sync to worker (plan): cannot write ~/.multihost/sync/RUN: gzip: stdout: No space left on device\n" + freeDisk,
	}, {
		story: "the output fills the disk", netns: true,
		faults:  []string{"worker-disk-space worker=1 bytes=40000000"},
		command: "if [ $MULTIHOST_WORKER_ID = 0 ]; then echo hello; else head -c 37000000 /dev/zero >~/fill; seq 1000000; fi",
		says: "multihost: warning: s0w1: SIZE is free where the output is kept; when less than a fiftieth is free, no more is kept, and the run goes on\n" + freeDisk +
			"multihost: warning: s0w1: up to SIZE of the output were not kept: it reached --max-log, or the disk was full\n",
		prints: "hello\n",
	}, {
		story: "/tmp is full", netns: true, again: true,
		faults: []string{"worker-disk-space worker=1 mode=tmp"},
		says:   "multihost: warning: s0w1: SIZE is free in /tmp; a command that writes there fails when it is full\n" + freeDisk,
		prints: "hello\n",
	}, {
		story: "homes are read-only", netns: true,
		faults: []string{"worker-read-only"},
		status: 69,
		says: "multihost: error: sync: 2 of 2 workers failed: s0w[0-1]: sync to worker (plan): cannot make ~/.multihost: mkdir: cannot create directory '/home/ann/.multihost': Read-only file system\n" +
			"multihost: hint: on the worker, findmnt -T ~ shows how it is mounted; if the kernel made it read-only because of errors of the disk (sudo dmesg | grep -iE 'i/o error|remounting'), reboot the worker or recreate the slice\n",
	}, {
		story: "a worker reboots during the sync", again: true, after: "logs in",
		faults: []string{"worker-reboot worker=1"},
		prints: "hello\n",
	}, {
		story: "a worker reboots during the preflight", after: "\nsync: 1",
		faults: []string{"worker-reboot worker=1"},
		prints: "hello\n",
	}, {
		story: "a worker reboots during the start", after: "\nfree: no",
		faults: []string{"worker-reboot worker=1"},
		status: 69,
		says: "multihost: error: infrastructure: start: 1 of 2 workers failed: s0w1: it was rebooted after the preflight, and its settings are the defaults again; nothing was started; no further attempt: --max-restarts is 0\n" +
			"multihost: hint: give the same command again; a worker that reboots by itself is seen in: sudo journalctl --list-boots\n",
	}, {
		story: "a worker reboots during the run", after: firstOutput,
		faults:  []string{"worker-reboot worker=1 duration=1500ms"},
		command: "echo hello; exec sleep 977",
		status:  69,
		says: "multihost: warning: lost the connection to s0w1 (CUT); the command goes on there, connecting again for up to 10m (--lost-timeout)\n" +
			"multihost: connected to s0w1 again; none of the output is lost\n" +
			"multihost: warning: stopping run RUN on all workers: fail-fast: a worker failed\n" +
			"multihost: hint: multihost logs RUN --worker=s0w1\n",
		prints: "hello\n",
	}, {
		story: "a worker is away for a while", after: firstOutput,
		faults:  []string{"worker-unreachable worker=1 mode=refuse duration=1500ms"},
		command: "echo hello; sleep 5",
		says: "multihost: warning: lost the connection to s0w1 (CUT); the command goes on there, connecting again for up to 10m (--lost-timeout)\n" +
			"multihost: connected to s0w1 again; none of the output is lost\n",
		prints: "hello\n",
	}}
}

// TestTroubleOfAWorkerIsTold sets each trouble on workers of both backends. It compares
// warnings, errors, hints and the status with the expected ones. The run must leave nothing
// behind. make test tries most troubles, each on one backend.
func TestTroubleOfAWorkerIsTold(t *testing.T) {
	besideOthers(t)
	for _, backend := range []string{"process", "netns"} {
		t.Run(backend, func(t *testing.T) {
			if testkit.RaceDetector {
				t.Skip("many programs in one process share the flags of the command library, which one program never does")
			}
			rows := slices.DeleteFunc(troubles(), func(row trouble) bool {
				return row.netns && backend != "netns" || (row.again || !row.netns && backend == "netns") && !testkit.All(t)
			})
			lab := newTroubleLab(t, backend, len(rows))
			for i, row := range rows {
				t.Run(row.story, func(t *testing.T) {
					if row.needs != "" {
						testkit.Need(t, row.needs)
					}
					if i > 0 {
						t.Parallel() // the first trouble runs alone, because it makes the SSH key
					}
					lab.try(t, i, row)
				})
			}
		})
	}
}

// troubleLab is a simulator with a slice of two workers for each trouble.
type troubleLab struct {
	dir, code string
	server    *sim.Server
	env       map[string]string
}

func newTroubleLab(t *testing.T, backend string, slices int) *troubleLab {
	return newLab(t, backend, sim.SliceSpec{Name: "t", Count: slices, Type: "v4-16"})
}

func newLab(t *testing.T, backend string, slices sim.SliceSpec) *troubleLab {
	t.Helper()
	testkit.NeedWorker(t)
	if backend == "netns" {
		simworker.NeedNetns(t)
	}
	dir, err := os.MkdirTemp(memoryDir(), "multihost-trouble-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	server, err := sim.Start(t.Context(), sim.Config{Dir: filepath.Join(dir, "sim"), Step: 10 * time.Millisecond, Backend: backend,
		Slices: []sim.SliceSpec{slices}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	l := &troubleLab{dir: dir, code: filepath.Join(dir, "code"), server: server, env: server.Env()}
	l.env["HOME"], l.env["USER"], l.env["MULTIHOST_FLAG_SKEW"] = dir, "ann", "off" // comparing versions would start Python on each worker
	if err := os.MkdirAll(l.code, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.code, "a.py"), []byte("print(1)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *troubleLab) program(stdout, stderr io.Writer) process {
	return process{stdin: strings.NewReader(""), stdout: stdout, stderr: stderr, home: l.dir, leave: make(chan struct{}),
		lookup: func(key string) (string, bool) { v, ok := l.env[key]; return v, ok }}
}

func (l *troubleLab) inject(t *testing.T, node, text string) {
	t.Helper()
	f, err := sim.ParseFault(text + " node=" + node)
	if err == nil {
		_, err = l.server.Inject(f)
	}
	if err != nil {
		t.Fatalf("set fault %q: %v", text, err)
	}
}

func (l *troubleLab) try(t *testing.T, i int, row trouble) {
	node, run := fmt.Sprintf("t-%d", i), fmt.Sprintf("run-%d", i)
	set := func() {
		for _, f := range row.faults {
			l.inject(t, node, f)
		}
	}
	if row.after == "" {
		set()
	} else {
		l.inject(t, node, "worker-slow mode=exec duration=600ms")
	}
	command := row.command
	if command == "" {
		command = "[ $MULTIHOST_WORKER_ID = 1 ] || echo hello"
	}
	var stdout, stderr transcript
	p := l.program(&stdout, &stderr)
	ended := make(chan int, 1)
	go func() {
		ended <- p.run(append([]string{"run", "--tpu-prefix=" + node, "--run-name=" + run, "--script-dir=" + l.code,
			"--log-dir=" + filepath.Join(l.dir, run), "--grace=1s", "--connect-timeout=30s", "--command=" + command}, row.args...))
	}()
	switch row.after {
	case "":
	case firstOutput:
		testkit.Eventually(t, "worker 1 has printed", func() bool {
			info, err := os.Stat(filepath.Join(l.dir, run, "output_slice_0000_worker_0001.txt"))
			return err == nil && info.Size() > 0
		})
		set()
	default:
		testkit.Eventually(t, row.after, func() bool { return strings.Contains(untimed(stderr.String()), row.after) })
		set()
	}
	select {
	case status := <-ended:
		if status != row.status {
			t.Errorf("status %d, want %d", status, row.status)
		}
	case <-time.After(2 * scriptWait):
		t.Fatalf("run has not ended:\n%s", stderr.String())
	}
	if diff := cmp.Diff(row.says, said(stderr.String(), node, run)); diff != "" {
		t.Errorf("what is said (-want +got):\n%s\nall of it:\n%s", diff, stderr.String())
	}
	if diff := cmp.Diff(row.prints, stdout.String()); diff != "" {
		t.Errorf("what is printed (-want +got):\n%s", diff)
	}
	testkit.Eventually(t, "no process is left", func() bool { return len(processesBelow(run+"\x00", "")) == 0 })
}

// cut matches the messages about the end of a connection. Chance decides which one appears.
var cut = regexp.MustCompile(`connection reset by peer|closed by the other side: EOF|EOF|broken pipe`)

// The kernel decides which settings differ from the wanted values.
var (
	count     = regexp.MustCompile(`[0-9]+/[0-9]+ settings`)
	differing = regexp.MustCompile(`[a-z_-]+(, [a-z_-]+){2,}`)
)

var size = regexp.MustCompile(`[0-9.]+ [kMG]?B( \([0-9]+ %\))?`)

var address = regexp.MustCompile(` \(127\.[0-9.]+:[0-9]+\)`)

var timeOfDay = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `)

// untimed removes the time of day from the beginning of lines.
func untimed(text string) string { return timeOfDay.ReplaceAllString(text, "") }

// said returns the warnings, errors and hints without what differs from run to run, such as
// whether a connection broke while it was in use.
func said(stderr, node, run string) string {
	names := strings.NewReplacer("="+node+";", "=SLICE;", run, "RUN")
	var b strings.Builder
	for line := range strings.Lines(untimed(stderr)) {
		for _, kind := range []string{"warning: ", "error: ", "hint: ", "connected to "} {
			if strings.HasPrefix(line, "multihost: "+kind) {
				if strings.HasSuffix(line, "; trying again\n") {
					continue
				}
				line = count.ReplaceAllString(differing.ReplaceAllString(line, "SETTINGS"), "N settings")
				line = size.ReplaceAllString(line, "SIZE")
				line = cut.ReplaceAllString(address.ReplaceAllString(line, ""), "CUT")
				b.WriteString(names.Replace(line))
			}
		}
	}
	return b.String()
}

// A transcript is what a program has written. A test can read it while the program runs.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *transcript) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// TestStopDoesNotWaitForWorkersThatAreAway stops a run of unreachable workers. The stop
// takes the grace time and a few seconds, and names the workers. A user can repeat it when
// they are back.
func TestStopDoesNotWaitForWorkersThatAreAway(t *testing.T) {
	besideOthers(t)
	lab := newTroubleLab(t, "process", 2)
	var stdout, stderr transcript
	p := lab.program(&stdout, &stderr)
	ended := make(chan int, 1)
	go func() {
		ended <- p.run([]string{"run", "--tpu-prefix=t-0", "--run-name=away", "--script-dir=" + lab.code, "--log-dir=" + filepath.Join(lab.dir, "away"),
			"--preflight=off", "--grace=1s", "--timeout=10s", "--command=echo hello; sleep 978"})
	}()
	defer func() { t.Logf("run:\n%s", stderr.String()) }()
	testkit.Eventually(t, "the command has begun", func() bool { return strings.Contains(stdout.String(), "hello") })
	lab.inject(t, "t-0", "worker-unreachable mode=refuse")
	select {
	case status := <-ended:
		if status != 75 {
			t.Errorf("ended with %d, want 75:\n%s", status, stderr.String())
		}
	case <-time.After(scriptWait):
		t.Fatalf("has not ended:\n%s", stderr.String())
	}
	want := "may still be running: 2 of 2 workers failed: s0w[0-1]: stop: connect: not reached within 6s"
	if !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr has no %q:\n%s", want, stderr.String())
	}
	if left := processesBelow(lab.dir, "sleep 978"); len(left) != 2 {
		t.Errorf("the command runs in %d processes, want 2", len(left))
	}
	if _, err := lab.server.Clear("all"); err != nil {
		t.Fatal(err)
	}
	var again transcript
	if status := lab.program(&again, &again).run([]string{"stop", "away", "--grace=1s"}); status != 0 {
		t.Errorf("stop ended with %d:\n%s", status, again.String())
	}
	testkit.Eventually(t, "no process is left", func() bool { return len(processesBelow(lab.dir, "sleep 978")) == 0 })
}
