package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	agentprogram "multihost/internal/agent/program"
	"multihost/internal/sim"
	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	// Most of the time stories wait: for boots, reboots, leases and each other. -parallel
	// on the command line overrides this value.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testscript.Main(suite{m}, map[string]func(){
		"multihost": func() {
			leastTerm, namesLimit = time.Second, scriptWait
			if dir := os.Getenv("AGENT_DIR"); dir != "" {
				agents = func() agentprogram.Set { return agentprogram.In(os.DirFS(dir)) }
			}
			os.Exit(checkedStatus())
		},
	})
}

// builtAgent returns a folder with multihost-agent for this machine. The test binary may
// contain another agent, or none.
func builtAgent() (string, error) { return builtagent.Folder("../..") }

// suite is the run of the tests, without the programs that tests start from this binary.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	testkit.HearSignals()
	agents = func() agentprogram.Set { // the agents of programs that run in the process of the tests
		dir, err := builtAgent()
		if err != nil {
			return agentprogram.Set{}
		}
		return agentprogram.In(os.DirFS(dir))
	}
	return s.m.Run()
}

// besideOthers lets a test run in parallel with others although it runs many programs in
// this process. Such programs share flags of the command library, as separate processes
// never would. The race detector reports that, so with it the test runs alone.
func besideOthers(t *testing.T) {
	if !testkit.RaceDetector {
		t.Parallel()
	}
}

// TestScripts runs the scripts in testdata/script. Each script is one story with the real
// binary and a simulator of its own.
//
// The condition [all] holds in make test-all. make test leaves out the slow lines after
// "[!all] skip" or "[!all] stop".
//
// Scripts have these commands in addition to those of testscript:
//
//	sim [-step=D] [-backend=B] [-login] [-metadata=KEY=VALUE] [NAME:COUNTxTYPE …]   start a simulator and point multihost at it
//	simfault FAULT                      set a fault on it
//	kube COUNTxTYPE …                   start a cluster with a node pool for each slice; KUBECONFIG names its context sim; TYPE may be gpu or cpu
//	kubefault FAULT                     cut the commands in pods, let the API go away or come back, or kill PODS
//	completed JOBSET                    wait until a JobSet of the cluster is complete
//	exits N PROGRAM ARG…                run and require that exit status
//	start NAME PROGRAM ARG…             run in the background, output in NAME.out and NAME.err
//	starttty NAME PROGRAM ARG…          the same on a terminal of its own; what it shows is in NAME.out
//	type NAME KEYS                      type on that terminal; \x03 is Ctrl-C, \r is Enter
//	signal NAME SIGNAL                  send a signal to it
//	ended NAME N                        wait for its end and require that exit status
//	waitfor FILE REGEXP                 wait until the file has a match
//	gone ID                             wait until the simulator has no queued resource and no group of VMs of that name
//	terminal WxH [-SETTING=VALUE …] COMMAND   start a shell command in a terminal (tmux) of that size, with these variables
//	screen [-colour] [!] REGEXP         wait until the terminal shows a match, with ! until it shows none; -colour: colours are escapes
//	press KEY …                         press keys in it, by tmux's names
//	resize WxH                          change its size
//	alljson                             require that every command has answered in JSON in this script
//	left COUNT TEXT                     wait until the simulator has COUNT processes with TEXT in their command lines
func TestScripts(t *testing.T) {
	t.Parallel()
	testkit.NeedWorker(t)
	testscript.Run(t, scriptParams(t, stories(t), "process"))
}

// TestScriptsOnNamespaces runs the stories that need several commands again, on workers
// with OpenSSH and a network in the kernel.
func TestScriptsOnNamespaces(t *testing.T) {
	t.Parallel()
	if testkit.RaceDetector || !testkit.All(t) {
		t.Skip("only make test-all tells these stories")
	}
	if err := netns.Ready(); err != nil {
		if os.Getenv("MULTIHOST_REQUIRE_TOOLS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	files := []string{"testdata/script/job_taken_over.txtar", "testdata/script/job_kept_stop.txtar"}
	testscript.Run(t, scriptParams(t, files, "netns"))
}

// scriptParams returns the parameters of scripts for simulators with this backend.
func scriptParams(t *testing.T, files []string, backend string) testscript.Params {
	return testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("USER", "ann")
			env.Setenv("BACKEND", backend)
			// Starting Python on each worker of every story would take a minute.
			env.Setenv("MULTIHOST_FLAG_SKEW", "off")
			// Few programs of a story run long enough to need garbage collection.
			env.Setenv("GOGC", "400")
			env.Setenv("CLOUDSDK_CONFIG", filepath.Join(home, "gcloud"))
			code := filepath.Join(env.WorkDir, "src")
			env.Cd = code
			for name, dir := range map[string]string{"TRAIN": "../../examples/train", "DOCS": "../../docs", "SCHEMA_DIR": schemaDir} {
				path, err := filepath.Abs(dir)
				if err != nil {
					return err
				}
				env.Setenv(name, path)
			}
			dir, err := builtAgent()
			if err != nil {
				return err
			}
			env.Setenv("AGENT_DIR", dir)
			env.Setenv("SCHEMA_SEEN", filepath.Join(env.WorkDir, "seen")) // see checkedStatus
			return errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(code, 0o755))
		},
		Condition: func(cond string) (bool, error) {
			if slices.Contains([]string{"tmux", "zsh", "fish", "gcloud"}, cond) {
				_, err := exec.LookPath(cond)
				if err != nil && os.Getenv("MULTIHOST_REQUIRE_TOOLS") == "1" {
					return false, err
				}
				return err == nil, nil
			}
			var err error
			switch cond {
			case "all":
				return testkit.All(t), nil
			case "netns":
				err = netns.Ready()
			case "port22":
				err = worker.TryPort(22)
			default:
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			if err != nil && os.Getenv("MULTIHOST_REQUIRE_TOOLS") == "1" {
				return false, err
			}
			return err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sim":       scriptSim,
			"simfault":  scriptFault,
			"kube":      scriptKube,
			"kubefault": scriptKubeFault,
			"completed": scriptCompleted,
			"exits":     scriptExits,
			"start":     scriptStart,
			"starttty":  scriptStartTTY,
			"type":      scriptType,
			"signal":    scriptSignal,
			"ended":     scriptEnded,
			"waitfor":   scriptWaitFor,
			"gone":      scriptGone,
			"left":      scriptLeft,
			"alljson":   scriptAllJSON,
			"terminal":  scriptTerminal,
			"screen":    scriptScreen,
			"press":     scriptPress,
			"resize":    scriptResize,
		},
	}
}

// raced are the stories in which the program does much at once: it connects, copies,
// follows, stops, is interrupted, begins again. With the race detector, other stories would
// only take time.
var raced = []string{
	"cp", "ctrl_c", "exec", "iap", "job_detached", "job_preempted", "job_twice", "logs_verify", "metrics", "run_cut_and_resume",
	"run_detach_logs_stop", "run_relay", "run_runner_killed", "run_second_interrupt", "ssh", "top", "top_detached", "unreachable",
}

// stories returns the files of the scripts to run.
func stories(t *testing.T) []string {
	files, err := filepath.Glob("testdata/script/*.txtar")
	testkit.Must(t, err)
	byName := map[string]string{}
	for _, file := range files {
		byName[strings.TrimSuffix(filepath.Base(file), ".txtar")] = file
	}
	for _, name := range raced {
		if byName[name] == "" {
			t.Errorf("there is no script %q", name)
		}
	}
	if testkit.RaceDetector {
		maps.DeleteFunc(byName, func(name, _ string) bool { return !slices.Contains(raced, name) })
	}
	return slices.Sorted(maps.Values(byName))
}

// scriptWait limits every wait of a script. It is long, because many tests share the
// machine.
const scriptWait = 2 * time.Minute

// memoryDir returns a directory in memory, if the machine has one. Workers have many small
// files, and the disk of a test machine may be slow.
func memoryDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func scriptSim(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	dir, err := os.MkdirTemp(memoryDir(), "multihost-script-")
	ts.Check(err)
	ts.Defer(func() { os.RemoveAll(dir) })
	cfg := sim.Config{Dir: dir, Step: 10 * time.Millisecond, Backend: ts.Getenv("BACKEND"), Agent: agents().Here()}
	for _, a := range args {
		if entry, ok := strings.CutPrefix(a, "-metadata="); ok {
			key, value, _ := strings.Cut(entry, "=")
			cfg.ProjectMetadata = map[string]string{key: value}
			continue
		}
		if a == "-login" {
			cfg.Login = true
			continue
		}
		if backend, ok := strings.CutPrefix(a, "-backend="); ok {
			cfg.Backend = backend
			continue
		}
		if step, ok := strings.CutPrefix(a, "-step="); ok {
			d, err := time.ParseDuration(step)
			ts.Check(err)
			cfg.Step = d
			continue
		}
		list, err := sim.ParseSlices(a)
		ts.Check(err)
		cfg.Slices = append(cfg.Slices, list...)
	}
	server, err := sim.Start(context.Background(), cfg)
	ts.Check(err)
	ts.Defer(func() { server.Close() })
	for k, v := range server.Env() {
		ts.Setenv(k, v)
	}
	ts.Setenv("SIM_DIR", cfg.Dir)
	servers.put(ts.Getenv("WORK"), server)
}

// noNegation refuses "! command" for commands for which it has no meaning.
func noNegation(ts *testscript.TestScript, neg bool) {
	if neg {
		ts.Fatalf("this command knows no !")
	}
}

func scriptFault(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	fault, err := sim.ParseFault(strings.Join(args, " "))
	ts.Check(err)
	_, err = servers.get(ts.Getenv("WORK")).Inject(fault)
	ts.Check(err)
}

// exitStatus returns the status of a finished program, or 128+n for signal n.
func exitStatus(err error) int {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if err != nil {
			return -1
		}
		return 0
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return exit.ExitCode()
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	if len(args) < 2 {
		ts.Fatalf("usage: exits N PROGRAM ARG…")
	}
	got := exitStatus(ts.Exec(args[1], args[2:]...))
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s ended with %d, want %s", args[1], got, args[0])
	}
}

func scriptStart(ts *testscript.TestScript, neg bool, args []string) {
	cmd := scriptCommand(ts, args)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := os.Create(filepath.Join(ts.Getenv("WORK"), args[0]+".out"))
	ts.Check(err)
	errFile, err := os.Create(filepath.Join(ts.Getenv("WORK"), args[0]+".err"))
	ts.Check(err)
	cmd.Stdout, cmd.Stderr = out, errFile
	ts.Check(cmd.Start())
	scriptKeep(ts, args[0], &background{cmd: cmd}, func() {
		out.Close()
		errFile.Close()
	})
}

// scriptCommand returns the program that start and starttty start.
func scriptCommand(ts *testscript.TestScript, args []string) *exec.Cmd {
	path, err := exec.LookPath(args[1])
	if err != nil {
		path = filepath.Join(ts.Getenv("PATH"), args[1])
		for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
			if p := filepath.Join(dir, args[1]); fileExists(p) {
				path = p
				break
			}
		}
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = scriptEnviron(ts)
	return cmd
}

// scriptKeep waits for a started program, and kills it at the end of the script.
func scriptKeep(ts *testscript.TestScript, name string, p *background, ended func()) {
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		ended()
		close(p.done)
	}()
	ts.Defer(func() {
		select {
		case <-p.done:
		default:
			p.cmd.Process.Kill()
			<-p.done
		}
	})
	backgrounds.put(ts.Getenv("WORK")+name, p)
}

func scriptStartTTY(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	cmd := scriptCommand(ts, args)
	keyboard, terminal, err := openTerminal()
	ts.Check(err)
	out, err := os.Create(filepath.Join(ts.Getenv("WORK"), args[0]+".out"))
	ts.Check(err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	terminal.Close()
	ts.Check(err)
	shown := make(chan struct{})
	go func() { // ends when nobody has the terminal open any more
		defer close(shown)
		io.Copy(out, keyboard)
	}()
	scriptKeep(ts, args[0], &background{cmd: cmd, keyboard: keyboard}, func() {
		<-shown
		keyboard.Close()
		out.Close()
	})
}

func scriptType(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	keys := strings.NewReplacer(`\x03`, "\x03", `\r`, "\r").Replace(args[1])
	_, err := io.WriteString(backgrounds.get(ts.Getenv("WORK")+args[0]).keyboard, keys)
	ts.Check(err)
}

// openTerminal makes a pseudo-terminal. The test writes to keyboard what a user types, and
// reads from keyboard what the terminal shows.
func openTerminal() (keyboard, terminal *os.File, err error) {
	if keyboard, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(keyboard.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160})
	}
	if err == nil {
		terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		keyboard.Close()
		return nil, nil, err
	}
	return keyboard, terminal, nil
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// scriptEnviron returns the environment of the script, which testscript gives only to
// programs that it starts itself.
func scriptEnviron(ts *testscript.TestScript) []string {
	var buf bytes.Buffer
	for _, name := range []string{"HOME", "USER", "PATH", "TMPDIR", "WORK", "CLOUDSDK_CONFIG", "SIM_DIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "AGENT_DIR", "GOGC", "KUBECONFIG"} {
		fmt.Fprintf(&buf, "%s=%s\x00", name, ts.Getenv(name))
	}
	if s := servers.get(ts.Getenv("WORK")); s != nil {
		for k, v := range s.Env() {
			fmt.Fprintf(&buf, "%s=%s\x00", k, v)
		}
	}
	return strings.Split(strings.TrimSuffix(buf.String(), "\x00"), "\x00")
}

func scriptSignal(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}
	ts.Check(backgrounds.get(ts.Getenv("WORK") + args[0]).cmd.Process.Signal(signals[args[1]]))
}

func scriptEnded(ts *testscript.TestScript, neg bool, args []string) {
	p := backgrounds.get(ts.Getenv("WORK") + args[0])
	select {
	case <-p.done:
	case <-time.After(scriptWait):
		p.cmd.Process.Signal(syscall.SIGQUIT)
		ts.Fatalf("%s has not ended after %s; its stderr:\n%s", args[0], scriptWait, ts.ReadFile(filepath.Join(ts.Getenv("WORK"), args[0]+".err")))
	}
	if got := exitStatus(p.err); strconv.Itoa(got) != args[1] {
		ts.Fatalf("%s ended with %d, want %s; its stderr:\n%s", args[0], got, args[1], ts.ReadFile(filepath.Join(ts.Getenv("WORK"), args[0]+".err")))
	}
}

func scriptWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	path := filepath.Join(ts.Getenv("WORK"), args[0])
	var data []byte
	if !testkit.Await(scriptWait, func() bool {
		data, _ = os.ReadFile(path)
		return re.Match(data)
	}) {
		ts.Fatalf("%s has no match for %q after %s:\n%s", args[0], args[1], scriptWait, data)
	}
}

func scriptGone(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	paths := []string{
		"/v2alpha1/projects/" + sim.DefaultProject + "/locations/" + sim.DefaultZone + "/queuedResources/" + args[0],
		"/compute/v1/projects/" + sim.DefaultProject + "/zones/" + sim.DefaultZone + "/instanceGroupManagers/" + args[0],
	}
	left := ""
	if !testkit.Await(scriptWait, func() bool {
		left = ""
		for _, path := range paths {
			answer := httptest.NewRecorder()
			servers.get(ts.Getenv("WORK")).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			if answer.Code != http.StatusNotFound {
				left += answer.Body.String()
			}
		}
		return left == ""
	}) {
		watches, _ := exec.Command("sh", "-c", "tail -n 20 "+ts.Getenv("SIM_DIR")+"/workers/*/root/.multihost/lease/*.log "+ts.Getenv("SIM_DIR")+"/workers/*/home/*/.multihost/lease/*.log").CombinedOutput()
		ts.Fatalf("%s is still there after %s: %s\n%s", args[0], scriptWait, left, watches)
	}
}

// tmux runs tmux with a server of this script.
func tmux(ts *testscript.TestScript, env []string, args ...string) string {
	cmd := exec.Command("tmux", append([]string{"-S", filepath.Join(ts.Getenv("WORK"), "tmux"), "-f", "/dev/null"}, args...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(scriptEnviron(ts), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		ts.Fatalf("tmux %s: %v: %s", args[0], err, out)
	}
	return string(out)
}

func screenSize(ts *testscript.TestScript, text string) (flags []string) {
	width, height, ok := strings.Cut(text, "x")
	if !ok {
		ts.Fatalf("size %q: want WxH", text)
	}
	return []string{"-x", width, "-y", height}
}

func scriptTerminal(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	env := []string{"TERM=xterm-256color", "LC_ALL=C.UTF-8"}
	command := args[1:]
	for len(command) > 1 && strings.HasPrefix(command[0], "-") {
		env, command = append(env, command[0][1:]), command[1:]
	}
	new := append([]string{"new-session", "-d"}, screenSize(ts, args[0])...)
	tmux(ts, env, append(new, strings.Join(command, " "))...)
	ts.Defer(func() { // tmux may have ended with its last program
		exec.Command("tmux", "-S", filepath.Join(ts.Getenv("WORK"), "tmux"), "kill-server").Run()
	})
}

func scriptScreen(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	capture := []string{"capture-pane", "-p"}
	if args[0] == "-colour" {
		capture, args = append(capture, "-e"), args[1:]
	}
	want := args[0] != "!"
	re, err := regexp.Compile("(?m)" + args[len(args)-1])
	ts.Check(err)
	shown := ""
	if !testkit.Await(scriptWait, func() bool {
		shown = tmux(ts, nil, capture...)
		return re.MatchString(shown) == want
	}) {
		ts.Fatalf("the terminal matches %q: not %v after %s:\n%s", re, want, scriptWait, shown)
	}
}

func scriptPress(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	tmux(ts, nil, append([]string{"send-keys", "--"}, args...)...)
}

func scriptResize(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	tmux(ts, nil, append([]string{"resize-window"}, screenSize(ts, args[0])...)...)
}

// scriptLeft waits until the simulator has a certain number of processes with a text in
// their command line. It recognizes the simulator's processes by their environment.
func scriptLeft(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	var found []string
	if !testkit.Await(scriptWait, func() bool {
		found = processesBelow(ts.Getenv("SIM_DIR"), args[1])
		return strconv.Itoa(len(found)) == args[0]
	}) {
		ts.Fatalf("%d processes have %q in their command line, want %s: %v", len(found), args[1], args[0], found)
	}
}

func processesBelow(dir, text string) []string {
	var found []string
	for _, pid := range testkit.Processes("environ", dir) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		cmd := string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		if strings.Contains(cmd, text) && !strings.Contains(cmd, "bin/multihost ") {
			found = append(found, cmd)
		}
	}
	return found
}

func scriptAllJSON(ts *testscript.TestScript, neg bool, args []string) {
	noNegation(ts, neg)
	seen := strings.Split(ts.ReadFile(ts.Getenv("SCHEMA_SEEN")), "\n")
	for _, name := range leafCommands() {
		if !slices.Contains(seen, name) {
			ts.Fatalf("multihost %s --output=json is missing in this script, or has printed nothing", name)
		}
	}
}
