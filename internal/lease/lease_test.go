package lease

import (
	"bytes"
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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/testkit"
)

func TestScriptPassesShellcheck(t *testing.T) {
	check := exec.Command(testkit.Need(t, "shellcheck"), "-")
	check.Stdin = strings.NewReader(watchProgram.Text())
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v\n%s", err, out)
	}
	if strings.ContainsFunc(watchProgram.Text(), func(r rune) bool { return r > 0x7e }) {
		t.Error("not ASCII: its bytes are counted in whatever locale the login has")
	}
}

// A cloud is what a watch sees of Google Cloud: the metadata server of its VM and
// the TPU API.
type cloud struct {
	*httptest.Server
	mu      sync.Mutex
	label   string
	terms   string // in the metadata of the slices
	own     string // what the watch tells in its guest attribute
	others  string // what the guest attributes of another worker tell
	refuse  map[string]int
	deleted bool
	asked   int // for guest attributes
}

const address = "/v2alpha1/projects/p/locations/z/queuedResources/train"

// undoing says how the queued resource is deleted.
func (c *cloud) undoing() provision.Undoing {
	return provision.Undoing{Look: c.URL + address, Going: provision.Field{Path: "/state/state", Value: "DELETING"}, Delete: c.URL + address + "?force=true",
		Probe: c.URL + address + "-probe", Peers: c.URL + "/v2alpha1/projects/p/locations/z/nodes/{slice}:getGuestAttributes"}
}

func newCloud(t *testing.T) *cloud {
	c := &cloud{label: "train", refuse: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *cloud) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *cloud) isDeleted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deleted
}

func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/instance/")
	for what, status := range c.refuse {
		if strings.HasPrefix(r.Method+" "+path, what) {
			http.Error(w, "refused "+what, status)
			return
		}
	}
	switch {
	case path == "service-accounts/default/token":
		fmt.Fprint(w, `{"access_token":"t","expires_in":3599}`)
	case path == "service-accounts/default/email":
		fmt.Fprint(w, "1-compute@developer.gserviceaccount.com")
	case path == "attributes/multihost-lease":
		io.WriteString(w, c.terms)
	case path == "guest-attributes/multihost/lease":
		text, _ := io.ReadAll(r.Body)
		c.own = string(text)
	case strings.HasPrefix(path, "guest-attributes/"):
	case strings.HasSuffix(path, ":getGuestAttributes"):
		c.asked++
		var all []string
		for _, value := range []string{c.own, c.others} {
			if value == "" {
				all = append(all, "{}")
				continue
			}
			all = append(all, fmt.Sprintf(`{"queryValue":{"items":[{"namespace":"multihost","key":"lease","value":%q}]}}`, value))
		}
		fmt.Fprintf(w, `{"guestAttributes":[%s]}`, strings.Join(all, ","))
	case path != address || c.deleted && r.Method == http.MethodGet:
		http.NotFound(w, r)
	case r.Header.Get("Authorization") != "Bearer t":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodDelete:
		c.deleted = true
	default:
		fmt.Fprintf(w, `{"name":"train","labels":{"multihost-run": %q},"state":{"state": "ACTIVE"}}`, c.label)
	}
}

// A vm is this machine as a worker.
type vm struct {
	t    *testing.T
	root string
	env  []string
}

func newVM(t *testing.T, c *cloud) *vm {
	testkit.Need(t, "curl")
	testkit.Need(t, "setsid")
	v := &vm{t: t, root: testkit.SharedDir(t)}
	for _, dir := range []string{"tmp", "home"} {
		testkit.Must(t, os.Mkdir(filepath.Join(v.root, dir), 0o755))
	}
	v.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(v.root, "home"), "MULTIHOST_ROOT_TMP=" + v.root, "GCE_METADATA_HOST=" + strings.TrimPrefix(c.URL, "http://")}
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

// pid is the watch that lives, 0 when there is none.
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
		_ = syscall.Kill(-pid, syscall.SIGKILL) // its group: it is the leader of a session
	}
}

func (v *vm) index(name string) string { return filepath.Join(v.root, "tmp", ".multihost", name) }

func (v *vm) log() string {
	text, _ := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.log"))
	return string(text)
}

// runs has a command hold the worker until the returned function is called, which
// records how it ended.
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
	deadline := time.After(4 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			v.t.Fatalf("waited too long for %s; the watch says\n%s", what, v.log())
		}
	}
}

func terms(c *cloud, change func(*Terms)) Terms {
	t := Terms{Run: "train", Undoing: c.undoing(), Label: "multihost-run=train", Nodes: []string{"train"}, Workers: 1, Lease: time.Second, Grace: time.Second}
	if change != nil {
		change(&t)
	}
	return t
}

func arm(t *testing.T, v *vm, terms Terms) Armed {
	t.Helper()
	a, err := Arm(t.Context(), v, terms)
	testkit.Must(t, err)
	if !a.Watched {
		t.Fatalf("got %+v, want a watch\n%s", a, v.log())
	}
	return a
}

// A lease that nobody renews ends nothing while the command runs, and the queued
// resource when it has ended.
func TestTheEndOfTheCommandAndOfTheLease(t *testing.T) {
	t.Parallel()
	testkit.EachLogin(t, func(t *testing.T, login testkit.HostileLogin) {
		c := newCloud(t)
		v := newVM(t, c)
		login.At(t, filepath.Join(v.root, "home"))
		end := v.runs()
		if a := arm(t, v, terms(c, nil)); a.Right != nil || a.Apart != "" || a.Lease != time.Second {
			t.Errorf("got %+v", a)
		}
		pid := v.pid()
		if arm(t, v, terms(c, nil)); v.pid() != pid {
			t.Error("armed twice, another watch lives")
		}
		look, err := Look(t.Context(), v, "train")
		testkit.Must(t, err)
		v.wait("the lease to be old", func() bool {
			later, err := Look(t.Context(), v, "train")
			return err == nil && later.Age > look.Age+2*time.Second
		})
		if c.isDeleted() {
			t.Fatal("deleted while the command ran")
		}
		end(1)
		v.wait("the deletion", c.isDeleted)
	})
}

// What another worker runs, or what cannot be learned of it, ends nothing.
func TestOthersThatRunEndNothing(t *testing.T) {
	t.Parallel()
	two := func(t *Terms) { t.Workers = 2 }
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		c.others = fmt.Sprintf("run=train state=running at=%d", time.Now().Unix())
		v := newVM(t, c)
		arm(t, v, terms(c, two))
		v.wait("it to be asked", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.asked > 1
		})
		if strings.Contains(v.log(), "deleting") {
			t.Fatal(v.log())
		}
		c.set(func() { c.others = fmt.Sprintf("run=train state=failed at=%d", time.Now().Unix()) })
		v.wait("the deletion", c.isDeleted)
	})
	t.Run("guest attributes are off", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		c.refuse["PUT guest-attributes/"] = http.StatusForbidden
		v := newVM(t, c)
		if a := arm(t, v, terms(c, two)); a.Apart == "" {
			t.Errorf("got %+v, want Apart", a)
		}
		v.wait("the reason", func() bool { return strings.Contains(v.log(), "not deleted: the workers cannot tell each other") })
		if c.isDeleted() {
			t.Error("deleted")
		}
	})
	t.Run("has never told", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		v := newVM(t, c)
		arm(t, v, terms(c, two))
		v.wait("the reason", func() bool {
			return strings.Contains(v.log(), "not deleted: whether the command runs is not known of slice train: 1 of 2 workers have told")
		})
		if c.isDeleted() {
			t.Error("deleted")
		}
	})
	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t)
		c.others = fmt.Sprintf("run=train state=running at=%d", time.Now().Add(-time.Hour).Unix())
		v := newVM(t, c)
		end := v.runs() // or all would be over before arming has said so
		arm(t, v, terms(c, two))
		end(0)
		v.wait("the deletion", c.isDeleted)
	})
}

// Nothing is deleted that is not of the run, and what is said of a right is what
// the API says.
func TestOnlyTheRunsOwnIsDeleted(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.label = "other"
	c.refuse["DELETE /v2alpha1"] = http.StatusForbidden
	v := newVM(t, c)
	end := v.runs() // or all would be over before arming has said so
	a := arm(t, v, terms(c, nil))
	end(0)
	var right *RightError
	if !errors.As(a.Right, &right) || right.Status != 403 || right.Account != "1-compute@developer.gserviceaccount.com" {
		t.Errorf("got %+v, want a refusal", a.Right)
	}
	v.wait("the reason", func() bool { return strings.Contains(v.log(), "it is not of this run: it stays") })
}

// After a failure the slices stay as long as was asked for, and after a success
// not.
func TestKeepOnFailure(t *testing.T) {
	t.Parallel()
	for code, keep := range map[int]time.Duration{0: time.Hour, 1: 5 * time.Second} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			v := newVM(t, c)
			end := v.runs()
			arm(t, v, terms(c, func(t *Terms) { t.KeepOnFailure, t.KeepFor = true, keep }))
			begin := time.Now()
			end(code)
			v.wait("the deletion", c.isDeleted)
			if took := time.Since(begin); code == 1 && took < 4*time.Second {
				t.Errorf("deleted after %s", took)
			}
		})
	}
}

// At the end of the time to live nobody deletes the slices under a command that
// is still ending on another worker.
func TestTheGraceIsThatOfAllWorkers(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.others = fmt.Sprintf("run=train state=running at=%d", time.Now().Unix())
	v := newVM(t, c)
	end := v.runs()
	arm(t, v, terms(c, func(t *Terms) { t.Workers, t.Lease, t.TTL, t.Grace = 2, 0, time.Second, time.Hour }))
	v.wait("the command to be stopped", func() bool { return strings.Contains(v.log(), "stopping the command") })
	end(143)
	v.wait("the other to be asked", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked > 1
	})
	if c.isDeleted() {
		t.Fatal("deleted while the other worker's command was ending")
	}
	c.set(func() { c.others = fmt.Sprintf("run=train state=failed at=%d", time.Now().Unix()) })
	v.wait("the deletion", c.isDeleted)
}

// The time to live asks a command that runs to end, and is not stopped by it.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	defer v.runs()(0)
	arm(t, v, terms(c, func(t *Terms) { t.Lease, t.TTL = 0, 2*time.Second }))
	v.wait("the command to be stopped", func() bool {
		return strings.Contains(v.log(), "stopping the command: the time to live of 2 s (--ttl) is over")
	})
	if c.isDeleted() {
		t.Error("deleted without grace")
	}
}

// After a reboot the startup script goes on with the terms that a runner told
// last; whoever renews later has them, too.
func TestTheStartupScriptKeepsTheTerms(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	arm(t, v, terms(c, func(t *Terms) { t.Lease = time.Hour }))
	v.wait("the terms to be kept", func() bool { return strings.Contains(v.log(), "watching") })
	v.kill()
	v.wait("the index to be gone with the watch", func() bool { return os.RemoveAll(v.index("")) == nil })
	m := terms(c, func(t *Terms) { t.Adopt = time.Second }).Metadata(map[string]string{"other": "x"})
	script := filepath.Join(v.root, "startup")
	testkit.Must(t, os.WriteFile(script, []byte(m["startup-script"]), 0o755))
	boot := exec.Command(script)
	boot.Env, boot.Dir = v.env, v.root
	c.set(func() { c.terms = m["multihost-lease"] })
	if out, err := boot.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	look, err := Look(t.Context(), v, "train")
	testkit.Must(t, err)
	v.wait("the time to adopt to be over", func() bool {
		later, err := Look(t.Context(), v, "train")
		return err == nil && later.Age > look.Age+2*time.Second
	})
	if c.isDeleted() {
		t.Fatal("deleted although a runner had come before the reboot")
	}
	if h, err := Renew(t.Context(), v, "train", 0); err != nil || h.Watched {
		t.Errorf("nobody has told it anything yet: got %+v, %v", h, err)
	}
	if a := arm(t, v, terms(c, func(t *Terms) { t.Lease = 2 * time.Hour })); a.Lease != 2*time.Hour {
		t.Errorf("got %+v", a)
	}
	if h, err := Renew(t.Context(), v, "train", time.Minute); err != nil || !h.Watched || h.Lease != 2*time.Hour {
		t.Errorf("got %+v, %v", h, err)
	}
}

// boot runs the startup script of slices with these terms, as root would at boot.
func (v *vm) boot(c *cloud, terms Terms) {
	v.t.Helper()
	m := terms.Metadata(nil)
	c.set(func() { c.terms = m["multihost-lease"] })
	script := filepath.Join(v.root, "startup")
	testkit.Must(v.t, os.WriteFile(script, []byte(m["startup-script"]), 0o755))
	boot := exec.Command(script)
	boot.Env, boot.Dir = v.env, v.root
	if out, err := boot.CombinedOutput(); err != nil {
		v.t.Fatalf("%v: %s", err, out)
	}
}

// Slices to which no runner comes delete themselves, whatever they were to be
// kept for, and whether or not other workers have booted at all.
func TestSlicesThatNobodyAdoptsDeleteThemselves(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Terms){
		"one worker":                  func(t *Terms) {},
		"kept at the end":             func(t *Terms) { t.Lease = 0 },
		"kept on failure":             func(t *Terms) { t.KeepOnFailure = true },
		"another that never told":     func(t *Terms) { t.Workers = 2 },
		"the time to live is shorter": func(t *Terms) { t.Adopt, t.TTL, t.Asked = time.Hour, time.Minute, time.Now().Add(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			v := newVM(t, c)
			v.boot(c, terms(c, func(t *Terms) {
				t.Adopt = time.Second
				change(t)
			}))
			v.wait("the deletion", c.isDeleted)
		})
	}
}

// A runner that has come to one worker and waits for another keeps the slices;
// what it keeps for good stays although its watch has ended.
func TestSlicesOfARunnerThatWaitsForAWorkerStay(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"awaited", "running", "kept"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			at := time.Now().Unix()
			if state == "kept" {
				at -= 86400
			}
			c.others = fmt.Sprintf("run=train state=%s at=%d", state, at)
			v := newVM(t, c)
			v.boot(c, terms(c, func(t *Terms) { t.Workers, t.Adopt = 2, time.Second }))
			v.wait("the other to be asked", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.asked > 1
			})
			if c.isDeleted() {
				t.Fatal("deleted")
			}
			c.set(func() { c.others = fmt.Sprintf("run=train state=none at=%d", time.Now().Unix()) })
			v.wait("the deletion", c.isDeleted)
		})
	}
}

// Once a run has adopted slices that it keeps, the guard stands down for good: no
// watch is left, and none that starts later deletes anything.
func TestTheGuardOfKeptSlicesStandsDown(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	kept := terms(c, func(t *Terms) { t.Workers, t.Lease, t.Adopt = 2, 0, 3*time.Second })
	if _, err := Arm(t.Context(), v, kept); err != nil {
		t.Fatal(err)
	}
	v.boot(c, kept)
	v.wait("the watch to end", func() bool { return strings.Contains(v.log(), "dismissed") })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted || !strings.Contains(c.own, "state=kept") {
		t.Errorf("deleted: %t; told %q", c.deleted, c.own)
	}
}

// The age of slices counts from their request; that of a clock that was ahead,
// from their first boot.
func TestTheTimeToLiveCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	for want, asked := range map[time.Duration]time.Time{
		time.Hour: time.Now().Add(-time.Hour),
		0:         time.Now().Add(time.Hour),
	} {
		c := newCloud(t)
		v := newVM(t, c)
		a := arm(t, v, terms(c, func(t *Terms) { t.TTL, t.Asked = 2*time.Hour, asked }))
		if off := a.Age - want; off < 0 || off > 5*time.Minute {
			t.Errorf("asked for %s ago: got an age of %s", want, a.Age)
		}
		v.kill()
	}
}

// Somebody else's startup script is left alone.
func TestMetadataOfOthersStays(t *testing.T) {
	full := Terms{Run: "r", Lease: time.Hour}
	for _, m := range []map[string]string{{"startup-script": "x"}, {"startup-script-url": "gs://x"}} {
		if got := full.Metadata(maps.Clone(m)); got != nil {
			t.Errorf("%v: got %d keys", m, len(got))
		}
	}
	if got := (Terms{Run: "r"}).Metadata(nil); got != nil {
		t.Errorf("no lease: got %d keys", len(got))
	}
}

// Every login of a worker can write a lease: nothing in it is run, by whomever
// the watch is.
func TestALeaseIsNoProgram(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	arm(t, v, terms(c, func(t *Terms) { t.Lease = time.Hour }))
	mark := filepath.Join(v.root, "mark")
	evil := fmt.Sprintf("lease=x[$(touch %[1]s)]\nttl=$(touch %[1]s)\nlook=1;touch %[1]s\nkeep=`touch %[1]s`\nfirst=08\nlease=1800\nrun=../../mark\n", mark)
	testkit.Must(t, os.WriteFile(v.index("train.lease.99999"), []byte(evil), 0o644))
	v.wait("it to be read", func() bool {
		text, err := os.ReadFile(filepath.Join(v.root, "home", ".multihost", "lease", "train.terms"))
		return err == nil && bytes.Contains(text, []byte("lease=1800\n")) && bytes.Contains(text, []byte("run=train\n")) && !bytes.Contains(text, []byte("mark"))
	})
	h, err := Look(t.Context(), v, "train")
	testkit.Must(t, err)
	if h.Lease != 30*time.Minute {
		t.Errorf("got %+v", h)
	}
	if names, err := filepath.Glob(filepath.Join(v.root, "mark*")); err != nil || len(names) > 0 {
		t.Errorf("it was run, or named a file: %v, %v", names, err)
	}
	if names, err := filepath.Glob(filepath.Join(v.root, "home", "mark*")); err != nil || len(names) > 0 {
		t.Errorf("it named a file: %v, %v", names, err)
	}
}

// A lease of 12 hours would be one of 1.
func TestAPartOfTheTermsIsNoLease(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	v := newVM(t, c)
	text := terms(c, func(t *Terms) { t.Lease = time.Hour }).text()
	for _, n := range []int{0, len(text) / 2, len(text) - 1, len(text)} {
		if _, err := call(t.Context(), v, text[:n], "arm"); err == nil || !strings.Contains(err.Error(), "did not arrive whole") {
			t.Errorf("%d bytes of terms: %v", n, err)
		}
	}
	if leases, _ := filepath.Glob(v.index("*train*")); len(leases) > 0 {
		t.Errorf("there are %q", leases)
	}
}

// A worker's answer is only text.
func FuzzAnswer(f *testing.F) {
	f.Add("NONCE lease yes 1800 0 12 never 0\nNONCE right no 403 a@b.com denied\n")
	f.Add("NONCE right no\nNONCE apart\nNONCE lease yes 99999999999999999999 -1 x y z\n")
	f.Add("NONCE error \x1b[2J\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Arm(t.Context(), answering(text), Terms{Run: "r"})
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
