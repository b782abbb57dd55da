package lease

import (
	"context"
	"errors"
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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
)

func TestScriptsPassShellcheck(t *testing.T) {
	for name, text := range map[string]string{"lease": leaseProgram.Text(), "startup": startup(program.Set{})} {
		check := exec.Command(testkit.Need(t, "shellcheck"), "-")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("shellcheck of %s: %v\n%s", name, err, out)
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r > 0x7e }) {
			t.Errorf("%s is not ASCII: its bytes are counted in whatever locale the login has", name)
		}
	}
}

// A cloud serves the watch of worker 0. The job's other worker only shares its state.
type cloud struct {
	*testkit.LeaseCloud
	URL string
}

// undoing returns how to delete the queued resource.
func (c *cloud) undoing() provision.Undoing {
	resource := c.URL + testkit.LeaseResource
	return provision.Undoing{Parts: []provision.Part{{Look: resource, Labels: "/tpu/nodeSpec/*/node/labels", Going: provision.Field{Path: "/state/state", Value: "DELETING"},
		Delete: resource + "?force=true", Probe: resource + "-probe"}}, Peers: provision.Peers{
		Read: c.URL + testkit.LeaseZone + "/nodes/{slice}:getGuestAttributes", Body: `{"queryPath":"multihost/lease"}`, Told: "/guestAttributes/*/queryValue/items/*/value"}}
}

// ofGroups returns how to delete two groups of two VMs.
func (c *cloud) ofGroups() (u provision.Undoing) {
	u.Peers = provision.Peers{
		List: c.URL + testkit.LeaseVMs + "/instanceGroupManagers/{slice}/listManagedInstances", Names: "/managedInstances/*/instance", States: "/managedInstances/*/instanceStatus",
		Idle: "PENDING TERMINATED", More: "/nextPageToken",
		Read: c.URL + testkit.LeaseVMs + "/instances/{vm}/getGuestAttributes?queryPath=multihost/lease", Told: "/queryValue/items/*/value",
	}
	for n := range 2 {
		group := c.URL + testkit.LeaseGroup(n)
		u.Parts = append(u.Parts, provision.Part{Look: group, About: "of", Delete: group})
	}
	return u
}

func newCloud(t *testing.T) *cloud { return newCloudOf(t, 2) }

func newCloudOf(t *testing.T, workers int) *cloud {
	c := &cloud{LeaseCloud: testkit.NewLeaseCloud(workers)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.Serve(w, r, 0) }))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// refuses makes the cloud refuse all calls that begin with this text, with this status. 0
// ends that.
func (c *cloud) refuses(what string, status int) {
	c.Do(func() {
		c.Refuse = func(call string) int {
			if strings.HasPrefix(call, what) {
				return status
			}
			return 0
		}
	})
}

func (c *cloud) isDeleted() (is bool) {
	c.Do(func() { is = !c.Deleted.IsZero() })
	return is
}

// A vm is this machine as a worker.
type vm struct {
	t      *testing.T
	c      *cloud
	root   string
	env    []string
	agents program.Set
	sent   int // how often the agent was sent
}

func newVM(t *testing.T, c *cloud) *vm {
	testkit.Need(t, "curl")
	testkit.Need(t, "setsid")
	built, err := builtagent.Folder("../..")
	testkit.Must(t, err)
	agents := program.In(os.DirFS(built))
	v := &vm{t: t, c: c, root: testkit.SharedDir(t), agents: agents}
	for _, dir := range []string{"tmp", "home", "dev", "dev/shm", "bin"} {
		testkit.Must(t, os.Mkdir(filepath.Join(v.root, dir), 0o755))
	}
	v.env = []string{"PATH=" + filepath.Join(v.root, "bin") + ":" + os.Getenv("PATH"), "HOME=" + filepath.Join(v.root, "home"), "MULTIHOST_ROOT_TMP=" + v.root, "MULTIHOST_ROOT_DEV=" + v.root, "GCE_METADATA_HOST=" + strings.TrimPrefix(c.URL, "http://")}
	t.Cleanup(v.kill)
	return v
}

func (v *vm) Name() string { return "s0w0" }

func (*vm) ClockOffset() time.Duration { return 0 }

func (v *vm) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	cmd = cmd.Whole()
	c := exec.CommandContext(ctx, testkit.LoginShell(filepath.Join(v.root, "home")), "-c", cmd.Line)
	c.Env, c.Dir, c.Stdin, c.Stdout, c.Stderr = v.env, v.root, cmd.Stdin, cmd.Stdout, cmd.Stderr
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		return remote.Status{}, err
	}
	return remote.Status{Code: c.ProcessState.ExitCode()}, nil
}

// pid returns the process of the active watch, or 0.
func (v *vm) pid() int {
	names, _ := filepath.Glob(v.index("train.watch.*"))
	if len(names) == 0 {
		return 0
	}
	text, _ := os.ReadFile(names[0])
	word, _, _ := strings.Cut(string(text), " ")
	pid, _ := strconv.Atoi(word)
	return pid
}

func (v *vm) kill() {
	if pid := v.pid(); pid > 1 {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // its whole group, because it leads a session
	}
}

func (v *vm) index(name string) string { return filepath.Join(v.root, "tmp", ".multihost", name) }

func (v *vm) log() string {
	text, _ := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.log"))
	return string(text)
}

// runs holds the worker's lock, as a command does. The returned function ends the command
// and records how it ended.
func (v *vm) runs() (end func(code int)) {
	testkit.Must(v.t, os.MkdirAll(v.index(""), 0o755))
	lock, err := os.OpenFile(v.index("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	testkit.Must(v.t, err)
	testkit.Must(v.t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	entry := v.index(fmt.Sprintf("%d-train-1.run", os.Getuid()))
	testkit.Must(v.t, os.WriteFile(entry, []byte("run=train\nstarted=1 2 3 4\n"), 0o644))
	return func(code int) {
		testkit.Must(v.t, os.WriteFile(entry, fmt.Appendf(nil, "run=train\nexit_code=%d\n", code), 0o644))
		lock.Close()
	}
}

func (v *vm) wait(what string, ok func() bool) {
	v.t.Helper()
	if !testkit.Await(4*time.Minute, ok) {
		v.t.Fatalf("waited too long for %s; the watch says\n%s", what, v.log())
	}
}

func terms(c *cloud, change func(*Terms)) Terms {
	t := Terms{Run: "train", Undoing: c.undoing(), Label: "multihost-run=train", Nodes: []string{"train"}, Workers: 1, Lease: time.Second, Grace: time.Second}
	if change != nil {
		change(&t)
	}
	return t
}

// tryArm arms the worker, and sends the agent if the worker lacks it.
func (v *vm) tryArm(terms Terms) (Armed, error) {
	v.t.Helper()
	a, err := Arm(v.t.Context(), v, v.agents.Sums(), terms)
	var lacks *LacksError
	if !errors.As(err, &lacks) {
		return a, err
	}
	v.sent++
	if err := Send(v.t.Context(), v, v.agents, lacks.Machine); err != nil {
		return a, err
	}
	return Arm(v.t.Context(), v, v.agents.Sums(), terms)
}

func (v *vm) arm(terms Terms) Armed {
	v.t.Helper()
	a, err := v.tryArm(terms)
	testkit.Must(v.t, err)
	if !a.Watched {
		v.t.Fatalf("got %+v, want a watch\n%s", a, v.log())
	}
	return a
}

// boot runs the startup script of slices with these terms, as root would at boot.
func (v *vm) boot(terms Terms) {
	v.t.Helper()
	m := terms.Metadata(v.agents, nil)
	v.c.Do(func() { v.c.Terms = m["multihost-lease"] })
	script := filepath.Join(v.root, "startup")
	testkit.WriteProgram(v.t, script, m["startup-script"])
	boot := exec.Command("/bin/bash", script)
	boot.Env, boot.Dir = v.env, v.root
	if out, err := boot.CombinedOutput(); err != nil {
		v.t.Fatalf("%v: %s", err, out)
	}
}

// stand replaces a program of the worker by a script.
func (v *vm) stand(name, text string) {
	testkit.WriteProgram(v.t, filepath.Join(v.root, "bin", name), "#!/bin/bash\n"+text+"\n")
}

// A lease works over SSH with any start-up files of the login. The agent is sent once. When
// the command has ended and nobody renews the lease, the agent deletes the slices.
func TestALeaseOverSSH(t *testing.T) {
	t.Parallel()
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		c := newCloud(t)
		v := newVM(t, c)
		login.At(t, filepath.Join(v.root, "home"))
		if look, err := Look(t.Context(), v, v.agents.Sums(), "train"); err != nil || look.Watched {
			t.Errorf("a worker without the agent knows no lease: got %+v, %v", look, err)
		}
		end := v.runs()
		if a := v.arm(terms(c, nil)); a.Right != nil || a.Apart != nil || a.Lease != time.Second {
			t.Errorf("got %+v", a)
		}
		pid := v.pid()
		if v.arm(terms(c, nil)); v.pid() != pid || v.sent != 1 {
			t.Errorf("armed twice: processes %d and %d, the agent sent %d times", pid, v.pid(), v.sent)
		}
		if h, err := Renew(t.Context(), v, "", "train", 0); err != nil || !h.Watched { // a runner of another version
			t.Errorf("got %+v, %v", h, err)
		}
		if c.isDeleted() {
			t.Fatal("deleted while the command ran")
		}
		end(1)
		v.wait("the deletion", c.isDeleted)
	})
}

// Before a runner comes, the startup script guards the slices. After a reboot it starts the
// watch itself.
func TestTheGuard(t *testing.T) {
	t.Parallel()
	t.Run("deletes what nobody adopts", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		v.boot(terms(c, func(t *Terms) { t.Adopt, t.Workers, t.KeepOnFailure = time.Second, 2, true }))
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("follows no link of the login that made the index", func(t *testing.T) {
		t.Parallel()
		if os.Getuid() != 0 {
			t.Skip("only root has logins to protect itself from")
		}
		const login = 65534
		c := newCloud(t)
		v := newVM(t, c)
		v.stand("uname", "echo riscv64")
		victim, link := filepath.Join(v.root, "victim"), v.index("train.watch.0")
		testkit.Must(t, os.WriteFile(victim, nil, 0o600))
		testkit.Must(t, os.Mkdir(v.index(""), 0o777))
		testkit.Must(t, os.Symlink(victim, link))
		testkit.Must(t, os.Lchown(link, login, login))
		testkit.Must(t, os.Chown(v.index(""), login, login))
		v.boot(terms(c, func(t *Terms) { t.Adopt = time.Hour }))
		v.wait("the guard", func() bool { return v.pid() > 1 })
		if text, err := os.ReadFile(victim); err != nil || len(text) > 0 {
			t.Errorf("the guard wrote %q through a link, %v", text, err)
		}
		if info, err := os.Lstat(v.index("")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode()&os.ModeSticky == 0 {
			t.Errorf("the index is %v, %v", info, err)
		}
	})
	t.Run("deletes at the end of the time to live", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		v.boot(terms(c, func(t *Terms) { t.Adopt, t.TTL, t.Asked = time.Hour, time.Minute, time.Now().Add(-time.Hour) }))
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("counts the time to live from the boot if nobody says when it was asked for", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		v.stand("uname", "echo riscv64")
		limited := terms(c, func(t *Terms) { t.Adopt, t.TTL, t.Grace = time.Hour, time.Hour, 0 })
		v.boot(limited)
		v.wait("the guard", func() bool { return v.pid() > 1 })
		end := v.runs()
		if _, err := v.tryArm(limited); err == nil { // the guard still has these terms
			t.Error("armed")
		}
		v.wait("the command to be seen", func() bool {
			text, err := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.terms"))
			return err == nil && strings.Contains(string(text), "adopted=yes")
		})
		end(0)
		v.wait("the deletion", c.isDeleted)
		if log := v.log(); strings.Contains(log, "--ttl") || !strings.Contains(log, ": nobody has renewed the lease for") {
			t.Errorf("the guard says\n%s", log)
		}
	})
	t.Run("asks the others", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		c.Told[1] = fmt.Sprintf("run=train state=awaited at=%d", time.Now().Unix())
		v := newVM(t, c)
		v.boot(terms(c, func(t *Terms) { t.Adopt, t.Workers = time.Second, 2 }))
		v.wait("the other to be asked", func() bool {
			asked := 0
			c.Do(func() { asked = c.Asked })
			return asked > 1
		})
		if c.isDeleted() {
			t.Fatal("deleted")
		}
		c.Do(func() { c.Told[1] = fmt.Sprintf("run=train state=none at=%d", time.Now().Unix()) })
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("deletes nothing while it does not know of the others", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		const asking = "POST /v2alpha1/projects/p/locations/z/nodes/"
		c.refuses(asking, http.StatusForbidden)
		v := newVM(t, c)
		v.boot(terms(c, func(t *Terms) { t.Adopt, t.Workers = time.Second, 2 }))
		v.wait("the reason", func() bool {
			return strings.Contains(v.log(), "not deleted: whether the command runs is not known of slice train: HTTP status 403: refused")
		})
		if c.isDeleted() {
			t.Fatal("deleted")
		}
		c.refuses(asking, 0)
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("asks the VMs of groups", func(t *testing.T) {
		t.Parallel()
		c := newCloudOf(t, 4)
		told := func(state string) string { return fmt.Sprintf("run=train state=%s at=%d", state, time.Now().Unix()) }
		// The last VM does not exist yet.
		c.VMs, c.States = 2, []string{"", "TERMINATED", "", "NONE"}
		c.Told[1], c.Told[2], c.Told[3] = told("running"), told("awaited"), told("running")
		v := newVM(t, c)
		v.stand("sleep", "exec /bin/sleep 0.1")
		v.boot(terms(c, func(t *Terms) {
			t.Adopt, t.Workers, t.Nodes, t.Undoing = time.Second, 4, []string{"train-0", "train-1"}, c.ofGroups()
		}))
		v.wait("the others to be asked", func() bool {
			asked := 0
			c.Do(func() { asked = c.Asked })
			return asked > 3
		})
		const asking = "GET " + testkit.LeaseVMs + "/instances/vm-2/"
		c.Do(func() { c.Told[2] = told("none") })
		c.refuses(asking, http.StatusForbidden)
		v.wait("the reason", func() bool {
			return strings.Contains(v.log(), "not deleted: whether the command runs is not known of slice train-1: HTTP status 403: refused")
		})
		if c.isDeleted() {
			t.Fatal("deleted")
		}
		c.refuses("DELETE "+testkit.LeaseGroup(0), http.StatusServiceUnavailable)
		v.wait("the deletion of the other", func() bool {
			gone := false
			c.Do(func() { gone = c.Gone["train-1"] })
			return gone
		})
		c.refuses("", 0)
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("does not call what another login wants", func(t *testing.T) {
		t.Parallel()
		if os.Getuid() != 0 {
			t.Skip("only root can write files of other logins")
		}
		c := newCloud(t)
		c.Do(func() {
			c.Refuse = func(call string) int {
				if strings.Contains(call, "evil") {
					t.Errorf("called %s", call)
				}
				return 0
			}
		})
		v := newVM(t, c)
		v.stand("uname", "echo riscv64")
		v.boot(terms(c, func(t *Terms) { t.Adopt = time.Hour }))
		v.wait("the guard", func() bool { return v.pid() > 1 })
		theirs := v.index("train.lease.1001")
		evil := fmt.Sprintf("run=train\nlease=2\nnodes=evil\ntotal=2\npeers={\"read\":\"%[1]s/evil/p\"}\ndeletion={\"read\":\"%[1]s/evil\",\"url\":\"%[1]s/evil\",\"method\":\"DELETE\",\"proof\":{\"path\":\"/a\",\"value\":\"b\"}}\n", c.URL)
		testkit.Must(t, os.WriteFile(theirs, []byte(evil), 0o644))
		testkit.Must(t, os.Chown(theirs, 1001, 1001))
		v.wait("the guard to read it", func() bool {
			text, _ := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.terms"))
			if strings.Contains(string(text), "evil") {
				t.Errorf("the guard keeps\n%s", text)
			}
			return strings.Contains(string(text), "\nlease=2\n")
		})
		_, _ = Renew(t.Context(), v, v.agents.Sums(), "train", 3*time.Second) // it copies the newest lease
		if text, err := os.ReadFile(v.index("train.lease.0")); err != nil || strings.Contains(string(text), "evil") || !strings.Contains(string(text), "\nlease=2\n") {
			t.Errorf("renewed to %v\n%s", err, text)
		}
		v.wait("the deletion", c.isDeleted)
		if text := v.log(); !strings.Contains(text, "nobody has renewed the lease for") {
			t.Errorf("the guard says\n%s", text)
		}
	})
	t.Run("leaves another run's alone", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		c.Label = "other"
		v := newVM(t, c)
		v.boot(terms(c, func(t *Terms) { t.Adopt = time.Second }))
		v.wait("the reason", func() bool { return strings.Contains(v.log(), "it is not of this run: it stays") })
		if c.isDeleted() {
			t.Error("deleted")
		}
	})
	t.Run("gives the agent its place", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		ends := terms(c, func(t *Terms) { t.Adopt, t.Lease = time.Hour, time.Hour })
		v.boot(ends)
		v.wait("the guard", func() bool { return v.pid() > 1 })
		guard := v.pid()
		v.arm(ends)
		v.wait("the watch", func() bool { return strings.Contains(v.log(), "watching run train") })
		if v.pid() != guard {
			t.Errorf("the guard was process %d, the watch is %d", guard, v.pid())
		}
		if h, err := Look(t.Context(), v, v.agents.Sums(), "train"); err != nil || !h.Watched || h.Lease != time.Hour {
			t.Errorf("got %+v, %v", h, err)
		}
		v.kill()
		v.wait("the watch to be gone", func() bool { return os.RemoveAll(v.index("")) == nil })
		v.boot(terms(c, func(t *Terms) { t.Adopt = time.Second })) // a reboot
		if guard := v.pid(); guard <= 1 || strings.Count(v.log(), "watching run train") != 2 || strings.Count(v.log(), "guarding") != 1 {
			t.Errorf("process %d; the watch says\n%s", guard, v.log())
		}
	})
}

// kept returns the processes of the keeper and of its watch, once both are running.
func (v *vm) kept() (keeper, watch int) {
	v.wait("a watch and its keeper", func() bool {
		names, _ := filepath.Glob(v.index("train.watch.*"))
		if len(names) != 1 {
			return false
		}
		text, _ := os.ReadFile(names[0])
		lines := strings.Split(string(text), "\n")
		if len(lines) < 2 {
			return false
		}
		_, err := fmt.Sscan(lines[0], &keeper)
		_, err2 := fmt.Sscan(lines[1], &watch)
		return err == nil && err2 == nil && syscall.Kill(watch, 0) == nil
	})
	return keeper, watch
}

// If a watch is killed, for example by the kernel for lack of memory, its keeper restarts
// it at once. If the keeper is killed, the watch continues. No other watch begins
// meanwhile.
func TestAKilledWatchGoesOn(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(v *vm, terms Terms){
		"from a runner":  func(v *vm, terms Terms) { v.arm(terms) },
		"from the guard": func(v *vm, terms Terms) { v.boot(terms); v.arm(terms) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			v := newVM(t, c)
			end := v.runs()
			long := terms(c, func(t *Terms) { t.Adopt = time.Hour })
			begin(v, long)
			keeper, first := v.kept()
			testkit.Must(t, syscall.Kill(first, syscall.SIGKILL))
			v.wait("the next watch", func() bool {
				again, second := v.kept()
				return again == keeper && second != first
			})
			if !strings.Contains(v.log(), "the watch has died (signal: killed); it starts again in 1s") {
				t.Errorf("the log has\n%s", v.log())
			}
			if h, err := Look(t.Context(), v, v.agents.Sums(), "train"); err != nil || !h.Watched || h.Lease != time.Second {
				t.Errorf("got %+v, %v", h, err)
			}
			_, second := v.kept()
			testkit.Must(t, syscall.Kill(keeper, syscall.SIGKILL))
			v.arm(long)
			if _, now := v.kept(); now != second {
				t.Errorf("without its keeper process %d is the watch, want %d", now, second)
			}
			end(0)
			v.wait("the deletion", c.isDeleted)
			testkit.Must(t, syscall.Kill(second, syscall.SIGKILL))
		})
	}
}

// If a runner lets the slices stay for ever, the watch and its keeper end.
func TestADismissedWatchLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	end := v.runs()
	defer end(0)
	v.arm(terms(c, nil))
	keeper, watch := v.kept()
	if _, err := v.tryArm(terms(c, func(t *Terms) { t.Lease = 0 })); err != nil {
		t.Fatal(err)
	}
	v.wait("the end of both", func() bool {
		return !running(keeper) && !running(watch)
	})
}

// running reports whether a process lives and is no zombie.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// A watch that cannot begin at a boot, because its metadata are missing, begins later.
func TestABootThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	v.stand("sleep", "exec /bin/sleep 0.1")
	testkit.Must(t, Send(t.Context(), v, v.agents, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]))
	const missing = "GET attributes/multihost-lease"
	c.refuses(missing, http.StatusNotFound)
	v.boot(terms(c, func(t *Terms) { t.Adopt = time.Second }))
	c.refuses(missing, 0)
	v.wait("the deletion", c.isDeleted)
	if log := v.log(); !strings.Contains(log, "watching run train") {
		t.Errorf("the watch says\n%s", log)
	}
}

// A worker that cannot have the agent says why, and its guard deletes.
func TestAWorkerThatCannotRunTheAgent(t *testing.T) {
	t.Parallel()
	other := func(text string) func(v *vm) {
		return func(v *vm) {
			made, err := program.Files(runtime.GOARCH, []byte(text))
			testkit.Must(v.t, err)
			files := fstest.MapFS{}
			for name, data := range made {
				files[name] = &fstest.MapFile{Data: data}
			}
			v.agents = program.In(files)
		}
	}
	// large affects only the program. Scripts are sent in the same way, but are small
	// enough.
	const large = `in=$(mktemp) && cat >"$in" && (($(stat -c %s "$in") > 100000)) || exec /bin/gzip "$@" <"$in"` + "\n"
	for name, row := range map[string]struct {
		trouble func(v *vm)
		want    string
	}{
		"no exec anywhere": {func(v *vm) { v.stand("chmod", `exec /bin/chmod 644 "${@:2}"`) }, "cannot run .*/agent/[0-9a-f]{64}: Permission denied"},
		"another format":   {other("\x7fELF, and not for this machine"), "cannot run .*/agent/[0-9a-f]{64}: .*(Exec format error|cannot execute)"},
		"no space": {func(v *vm) {
			v.stand("gzip", large+"echo 'gzip: stdout: No space left on device' >&2; exit 1")
		}, "write .*/agent: No space left on device"},
		"a differing hash": {func(v *vm) { v.stand("gzip", large+`/bin/gzip "$@" <"$in" | tail -c +2`) }, "is not multihost-agent with the SHA-256"},
		"another machine":  {func(v *vm) { v.stand("uname", "echo riscv64") }, "there is no multihost-agent for machines of type riscv64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			v := newVM(t, c)
			row.trouble(v)
			v.boot(terms(c, func(t *Terms) { t.Adopt = time.Hour }))
			v.wait("the guard", func() bool { return v.pid() > 1 })
			end := v.runs()
			_, err := v.tryArm(terms(c, nil))
			if err == nil || !regexp.MustCompile(row.want).MatchString(err.Error()) {
				t.Errorf("got %v, want %s", err, row.want)
			}
			// The guard still learns of the runner.
			lease := v.index(fmt.Sprintf("train.lease.%d", os.Getuid()))
			before, err := os.Stat(lease)
			testkit.Must(t, err)
			_, _ = RenewOne(t.Context(), v, v.agents, "train", time.Hour) // fails for the same reason
			text, err := os.ReadFile(lease)
			testkit.Must(t, err)
			if after, err := os.Stat(lease); err != nil || !after.ModTime().After(before.ModTime()) || !strings.HasSuffix(string(text), "\nhold=3600\n") {
				t.Errorf("the renewed lease: %v, %v\n%s", err, after, text)
			}
			end(0)
		})
	}
	t.Run("no place in the home", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		testkit.Must(t, os.Mkdir(filepath.Join(v.root, "home", ".multihost"), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(v.root, "home", ".multihost", "agent"), nil, 0o644))
		v.arm(terms(c, func(t *Terms) { t.Lease = time.Hour }))
		if kept, _ := filepath.Glob(filepath.Join(v.root, "tmp", ".multihost-agent-*", "*")); len(kept) != 1 {
			t.Errorf("kept %q", kept)
		}
	})
	t.Run("the guard is the last resort", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		v.stand("uname", "echo riscv64")
		v.boot(terms(c, func(t *Terms) { t.Adopt = time.Hour }))
		v.wait("the guard", func() bool { return v.pid() > 1 })
		end := v.runs()
		if _, err := v.tryArm(terms(c, nil)); err == nil {
			t.Error("armed")
		}
		v.wait("the command to be seen", func() bool {
			text, err := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.terms"))
			return err == nil && strings.Contains(string(text), "adopted=yes")
		})
		end(0)
		v.wait("the deletion", c.isDeleted)
		if !strings.Contains(v.log(), "the guard goes on: there is no multihost-agent for machines of type riscv64") {
			t.Error(v.log())
		}
	})
}

func TestMetadataOfOthersStays(t *testing.T) {
	full := Terms{Run: "r", Lease: time.Hour}
	for _, m := range []map[string]string{{"startup-script": "x"}, {"startup-script-url": "gs://x"}} {
		if got := full.Metadata(program.Set{}, maps.Clone(m)); got != nil {
			t.Errorf("%v: got %d keys", m, len(got))
		}
	}
	if got := (Terms{Run: "r"}).Metadata(program.Set{}, nil); got != nil {
		t.Errorf("no lease: got %d keys", len(got))
	}
}

// Any answer of a worker is only text.
func FuzzAnswer(f *testing.F) {
	f.Add("NONCE lease yes 1800 0 12 never 0\nNONCE right no 403 a@b.com denied\n")
	f.Add("NONCE right no\nNONCE apart\nNONCE lease yes 99999999999999999999 -1 x y z\n")
	f.Add("NONCE error \x1b[2J\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Arm(t.Context(), answering(text), "", Terms{Run: "r"})
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < 0x20 }) {
			t.Errorf("control characters in %q", err)
		}
		if a.Lease < 0 || a.TTL < 0 || a.Age < 0 || a.KeepFor < 0 {
			t.Errorf("got %+v", a)
		}
	})
}

type answering string

var aNonce = regexp.MustCompile(`\bmh[0-9a-f]{16}\b`)

func (answering) Name() string { return "s0w0" }

func (answering) ClockOffset() time.Duration { return 0 }

func (text answering) Run(_ context.Context, cmd remote.Cmd) (remote.Status, error) {
	_, err := io.WriteString(cmd.Stdout, strings.ReplaceAll(string(text), "NONCE", aNonce.FindString(cmd.Line)))
	return remote.Status{}, err
}

// forgetful is a worker that loses its kit before each command, except right after it has
// refused a command because the kit was missing.
type forgetful struct {
	*vm
	refused bool
}

func (f *forgetful) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	if f.refused = !f.refused; f.refused {
		return remote.Status{}, remote.ErrProgramGone
	}
	return f.vm.Run(ctx, cmd)
}

// A kit that was removed after the connection was made is sent again.
func TestARemovedKitStopsNothing(t *testing.T) {
	t.Parallel()
	v := newVM(t, newCloud(t))
	if h, err := RenewOne(t.Context(), &forgetful{vm: v}, v.agents, "train", 0); err != nil || h.Watched {
		t.Errorf("got %+v, %v", h, err)
	}
	f := &forgetful{vm: v}
	errs := Each(t.Context(), []remote.Runner{f}, v.agents, nil, func(ctx context.Context, _ int) error {
		_, err := Renew(ctx, f, v.agents.Sums(), "train", 0)
		return err
	})
	if errs[0] != nil {
		t.Error(errs[0])
	}
}
