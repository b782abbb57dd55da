package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/doctor"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// A login may export settings that change what programs do. Every command must still work
// as for an ordinary login, on both kinds of workers.
func TestWhatALoginExportsChangesNoCommand(t *testing.T) {
	testkit.OnlyInAll(t, "TestWhatALoginExportsChangesNoResult of package launch")
	besideOthers(t)
	login := testkit.HostileLogins()[0]
	for _, backend := range []string{"process", "netns"} {
		t.Run(backend, func(t *testing.T) {
			lab := newLab(t, backend, sim.SliceSpec{Name: "t", Count: 1, Type: "v4-16"})
			do := func(status int, words ...string) string {
				t.Helper()
				var stdout, stderr transcript
				words = append(words[:1:1], append([]string{"--tpu-prefix=t"}, words[1:]...)...)
				if got := lab.program(&stdout, &stderr).run(words); got != status {
					t.Fatalf("%q: exit status %d, want %d\n%s%s", words, got, status, stdout.String(), stderr.String())
				}
				if wrong := said(stderr.String(), "t", "run"); status == 0 && wrong != "" {
					t.Errorf("%q: %s", words, wrong)
				}
				return stdout.String()
			}
			do(0, "exec", "--", "sh", "-c", `printf %s "$1" >~/.bashrc`, "sh", login.Lines)

			testkit.Must(t, os.WriteFile(filepath.Join(lab.code, "code.txt"), []byte("of the run\n"), 0o644))
			run := []string{"run", "--run-name=run", "--script-dir=" + lab.code, "--log-dir=" + filepath.Join(lab.dir, "logs"), "--", "/bin/cat", "code.txt"}
			if out := do(0, run...); !strings.Contains(out, "of the run\n") {
				t.Errorf("the run printed %q", out)
			}
			do(3, "run", "--run-name=other", "--script-dir="+lab.code, "--log-dir="+filepath.Join(lab.dir, "others"), "--", "/bin/sh", "-c", "exit 3")
			if out := do(3, "exec", "--workers=s0w0", "--", "/bin/sh", "-c", "/bin/sleep 2; /bin/echo late; exit 3"); !strings.Contains(out, "late\n") {
				t.Errorf("exec printed %q", out)
			}
			there, back := filepath.Join(lab.dir, "there"), filepath.Join(lab.dir, "back")
			testkit.Must(t, os.WriteFile(there, []byte("a file\n"), 0o644))
			do(0, "cp", there, "all:copied")
			do(0, "cp", "s0w1:copied", back)
			if got, err := os.ReadFile(back); err != nil || string(got) != "a file\n" {
				t.Errorf("copied %q, %v", got, err)
			}
			if out := do(0, "ps", "--all"); !strings.Contains(out, "other") || !strings.Contains(out, "exit code 3") {
				t.Errorf("ps printed %q", out)
			}
			r, status := lab.examine(t, "--tpu-prefix=t")
			if status != 0 {
				t.Errorf("doctor: exit status %d\n%s", status, r)
			}
			for _, check := range []string{doctor.CheckDevices, doctor.CheckSettings, doctor.CheckDisk, doctor.CheckVersions} {
				if f := troubleOf(r, check); f != nil {
					t.Errorf("doctor: %+v", *f)
				}
			}
		})
	}
}
