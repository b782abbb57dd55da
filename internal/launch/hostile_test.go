package launch

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// hostile returns a worker with these lines in the login's start-up file.
func hostile(t *testing.T, lines string) *local {
	t.Helper()
	l := newLocal(t)
	l.sh = filepath.Join(l.root, "bin", "login")
	l.write("rc", lines, 0o644)
	l.write("bin/login", "#!/bin/bash\n. "+l.root+"/rc\nbuiltin exec /bin/bash \"$@\"\n", 0o755)
	return l
}

func shell(run, script string) Spec {
	return Spec{Run: run, Attempt: 1, Owner: "ann@laptop", Argv: []string{"sh", "-c", script}}
}

func TestWhatALoginExportsChangesNoResult(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "localedef")
	logins := testkit.HostileLogins()
	if !testkit.All(t) {
		logins = logins[:1]
	}
	for _, login := range logins {
		t.Run(login.Name, func(t *testing.T) {
			t.Parallel()
			l := hostile(t, login.Lines)
			ends := []struct {
				script string
				want   Exit
			}{
				{"exit 9", Exit{Code: 9}},
				{"kill -9 $$", Exit{Code: 137, Signal: "KILL"}},
				{"exit 0", Exit{}},
				{"exit 137", Exit{Code: 137}},
			}
			if login.Name != "everything" {
				ends = ends[:2]
			}
			for i, test := range ends {
				s := shell(fmt.Sprint("end", i), "echo said; "+test.script)
				out, exit := complete(t, l, s)
				if exit.Code != test.want.Code || exit.Signal != test.want.Signal || exit.Lost || !strings.Contains(out, "said\n") || exit.LogSize != int64(len(out)) {
					t.Errorf("%s: %q, %+v", test.script, out, exit)
				}
				if _, size, err := Digest(t.Context(), l, s.Ref(), -1); err != nil || size != int64(len(out)) {
					t.Errorf("digest: %d bytes, %v", size, err)
				}
			}

			// No byte comes for longer than TMOUT, before the order and after it.
			quiet := time.Millisecond
			if strings.Contains(login.Lines, "TMOUT") {
				quiet = time.Duration(testkit.HostileTMOUT)*time.Second + 500*time.Millisecond
			}
			s := shell("quiet", fmt.Sprintf("sleep %.1f; echo late", quiet.Seconds()))
			a, err := Arm(t.Context(), l, s)
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(quiet)
			if _, err := a.ReleaseAt(t.Context(), time.Time{}); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{}); err != nil || exit.Code != 0 || exit.Signal != "" || !strings.HasSuffix(out.String(), "late\n") {
				t.Errorf("quiet run: %q, %+v, %v", out.String(), exit, err)
			}
			stdout, _, end, err := execute(t, t.Context(), l, ExecSpec{Argv: []string{"sh", "-c", fmt.Sprintf("sleep %.1f; echo late; exit 3", quiet.Seconds())}})
			if err != nil || stdout != "late\n" || end != (ExecEnd{Code: 3}) {
				t.Errorf("exec: %q, %+v, %v", stdout, end, err)
			}

			begin(t, l, shell("long", "echo said; while :; do sleep 600; done"))
			var busy *BusyError
			if _, err := Arm(t.Context(), l, shell("other", "true")); !errors.As(err, &busy) || busy.Info.Run != "long" {
				t.Errorf("arm while another run lives: %v", err)
			}
			ref := Ref{"long", 1}
			if s, err := Status(t.Context(), l, ref); err != nil || s.Phase != Running || s.Left == 0 || s.Disk.Size == 0 {
				t.Errorf("status: %+v, %v", s, err)
			}
			if infos, err := List(t.Context(), l); err != nil || !slices.ContainsFunc(infos, func(i Info) bool { return i.Run == "long" && i.Phase == Running && i.Mine }) {
				t.Errorf("list: %+v, %v", infos, err)
			}
			if stacks, _, err := Dump(t.Context(), l, ref, DumpOptions{}); err != nil || len(stacks) == 0 || !strings.Contains(stacks[0].Command, "sh") {
				t.Errorf("dump: %+v, %v", stacks, err)
			}
			if _, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeOrphans, Grace: time.Second}); err != nil {
				t.Errorf("free: %v", err)
			}
			report := stopped(t, l, ref, patience)
			if !report.Free() || report.Found == 0 || report.Killed != 0 || report.Exit == nil || report.Exit.Signal != "TERM" || !strings.Contains(report.Exit.Reason, "ann") {
				t.Errorf("stop: %+v, exit %+v", report, report.Exit)
			}
		})
	}
}

// The command has the login's environment, byte for byte as with "ssh host command". No
// other process has it.
func TestTheCommandAloneHasTheLoginsEnvironment(t *testing.T) {
	t.Parallel()
	odd := testkit.HostileLogin{Name: "odd bytes", Lines: "export BYTES=$'\\xff\\n\\xfe = \\t' EMPTY= OLDPWD=/\nyell() { echo \"$1\"; }\nexport -f yell\n"}
	for _, login := range append(testkit.Some(t, testkit.HostileLogins(), 100), odd) {
		t.Run(login.Name, func(t *testing.T) {
			t.Parallel()
			l := hostile(t, login.Lines)
			var direct bytes.Buffer
			c := execCommand(l, "/usr/bin/env -0")
			c.Stdout = &direct
			if err := c.Run(); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			_, first, _ := strings.Cut(direct.String(), "SHELL=") // skip the output of start-up files
			for _, e := range strings.Split("SHELL="+first, "\x00") {
				name, value, _ := strings.Cut(e, "=")
				want[name] = value
			}
			check := func(what, got string, added ...string) {
				t.Helper()
				for _, e := range strings.Split(got, "\x00") {
					name, value, _ := strings.Cut(e, "=")
					if i := strings.LastIndexByte(name, '\n'); i >= 0 && want[name] == "" {
						name = name[i+1:] // skip a warning of ld.so before the name
					}
					w, known := want[name]
					delete(want, name)
					if slices.Contains(added, name) || name == "_" || name == "EPOCHREALTIME" || known && w == value {
						continue
					}
					t.Errorf("%s has %s=%q, and the login %q", what, name, value, w)
				}
				for name, value := range want {
					if name != "_" {
						t.Errorf("%s has no %s=%q", what, name, value)
					}
				}
			}
			kept := maps.Clone(want)
			out, exit := complete(t, l, Spec{Run: "r", Attempt: 1, Argv: []string{"env", "-0"}})
			if exit.Code != 0 {
				t.Fatalf("%q, %+v", out, exit)
			}
			check("the run", out, "PATH", "PWD", "PYTHONUNBUFFERED", "MULTIHOST_RUN", "MULTIHOST_ATTEMPT", "MULTIHOST_RUN_DIR")
			want = kept
			stdout, _, _, err := execute(t, t.Context(), l, ExecSpec{Argv: []string{"env", "-0"}})
			if err != nil {
				t.Fatal(err)
			}
			check("exec", stdout, "PATH", "MULTIHOST_EXEC")

			begin(t, l, Spec{Run: "long", Attempt: 1, Argv: []string{"sleep", "600"}})
			state, err := Status(t.Context(), l, Ref{"long", 1})
			if err != nil {
				t.Fatal(err)
			}
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", state.Supervisor))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range strings.Split(strings.TrimRight(string(environ), "\x00"), "\x00") {
				name, _, _ := strings.Cut(e, "=")
				if !slices.Contains([]string{"HOME", "USER", "LOGNAME", "PATH", "LC_ALL", "TMPDIR", "SHLVL", "PWD", "OLDPWD", "_"}, name) &&
					!strings.HasPrefix(name, "MULTIHOST_ROOT_") && !strings.HasPrefix(name, "BASH_FUNC_") {
					t.Errorf("the supervisor has %q", e)
				}
			}
			for _, name := range []string{"login", "env"} {
				if text, err := os.ReadFile(filepath.Join(l.dir(Ref{"long", 1}), name)); len(text) > 0 {
					t.Errorf("the environment is still in %s: %q, %v", name, text, err)
				}
			}
			stopped(t, l, Ref{"long", 1}, patience)
		})
	}
}

// An error of a tool does not mean that another run holds the worker.
func TestAFlockThatRefusesIsNoBusyWorker(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("bin/flock", "#!/bin/sh\necho 'flock: out of order' >&2\nexit 64\n", 0o755)
	l.env = append(l.env, "PATH="+filepath.Join(l.root, "bin")+":"+os.Getenv("PATH"))
	var busy *BusyError
	if _, err := Arm(t.Context(), l, shell("r", "true")); err == nil || errors.As(err, &busy) || !strings.Contains(err.Error(), "flock: out of order") {
		t.Errorf("got %v", err)
	}
}

// Every program of the machine prints a warning when it starts. Runs still end normally.
func TestAWarningOfEveryProgramIsNoSignal(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	setsid := testkit.Need(t, "setsid")
	l.write("bin/setsid", "#!/bin/sh\necho 'ERROR: ld.so: object nonsense cannot be preloaded: ignored.' >&2\nexec "+setsid+" \"$@\"\n", 0o755)
	l.env = append(l.env, "PATH="+filepath.Join(l.root, "bin")+":"+os.Getenv("PATH"))
	for i, test := range []struct {
		script, signal string
		code           int
	}{{"exit 0", "", 0}, {"exit 9", "", 9}, {"exit 137", "", 137}, {"kill -9 $$", "KILL", 137}} {
		if out, exit := complete(t, l, shell(fmt.Sprint("r", i), test.script)); exit.Code != test.code || exit.Signal != test.signal || out != "" {
			t.Errorf("%s: %q, %+v", test.script, out, exit)
		}
	}
}
