package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// A canary is a secret with a name. Its text occurs nowhere else.
type canary struct{ name, text string }

// TestSecretsStayWhereTheyBelong gives every kind of secret to the commands that a user
// types. The runs succeed, fail or are stopped. Then the test looks for each secret in all
// that the commands have shown, sent, recorded or left behind, here and on the workers.
// While the commands run, it also looks at every command line. Only the user can read the
// local files. The commands leave no goroutine and no open file.
func TestSecretsStayWhereTheyBelong(t *testing.T) {
	dir, err := os.MkdirTemp(memoryDir(), "multihost-canary-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	workers := filepath.Join(dir, "sim", "workers")
	server, err := sim.Start(context.Background(), sim.Config{Dir: filepath.Dir(workers), Step: 10 * time.Millisecond,
		Slices: []sim.SliceSpec{{Name: "t", Count: 1, Type: "v5litepod-8"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	env := server.Env()
	delete(env, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS") // so that the commands use the token file

	canaries := []canary{
		{"value of --secret-env", "canary-env-5f1c9b7e"}, {"access token", "ya29.canary-token-0d84e6a2"},
		{"passphrase", "canary-passphrase-b3907d1f"},
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"token": canaries[1].text + "\n", "code/a.py": "print(1)\n", "tell.sh": "cat >>" + in("told") + "\n",
	} {
		if err := os.MkdirAll(filepath.Dir(in(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env["HOME"], env["USER"], env["TOKEN"] = dir, "ann", canaries[0].text
	keyboard, terminal, err := openTerminal()
	if err != nil {
		testkit.Lacks(t, "no pseudo-terminal: %v", err)
	}
	defer keyboard.Close()
	defer terminal.Close()

	var seen bytes.Buffer // output of all commands
	invoke := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		p := process{stdin: terminal, stdout: &out, stderr: &errs, home: dir, leave: make(chan struct{}),
			lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
		got := p.run(args)
		fmt.Fprintf(&seen, "$ %s %s\n%s%s", args[0], strings.Join(args[1:], " "), out.String(), errs.String())
		if got != want {
			t.Fatalf("%q ended with %d, want %d:\n%s%s", args, got, want, out.String(), errs.String())
		}
		return out.String() + errs.String()
	}
	cloud := []string{"--access-token-file=" + in("token"), "--state-dir=" + in("state"), "--debug"}
	run := func(want int, name, command string, more ...string) string {
		t.Helper()
		args := []string{"run", "--tpu-prefix=t", "--run-name=" + name, "--secret-env=TOKEN", "--script-dir=" + in("code"),
			"--notify=sh " + in("tell.sh"), "--command=[ ${#TOKEN} = 19 ] && " + command}
		return invoke(want, append(append(args, more...), cloud...)...)
	}

	invoke(0, append([]string{"ps"}, cloud...)...) // makes the key; all later commands must close their files
	plain, err := os.ReadFile(env["MULTIHOST_FLAG_IDENTITY_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(plain)), "\n")[3:5] { // the fields after the public key
		canaries = append(canaries, canary{"private key", line})
	}
	parsed, err := ssh.ParseRawPrivateKey(plain)
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(parsed, "", []byte(canaries[2].text))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("locked"), pem.EncodeToMemory(locked), 0o600); err != nil {
		t.Fatal(err)
	}
	watched := watchCommandLines(canaries)
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)

	if _, err := keyboard.WriteString(canaries[2].text + "\n"); err != nil {
		t.Fatal(err)
	}
	step := "echo completed step: 1, seconds: 1.0, TFLOP/s/device: 1.0, loss: 1.0"
	if text := run(0, "good", step, "--identity-file="+in("locked")); !strings.Contains(text, "passphrase of ") {
		t.Errorf("the passphrase was not asked for:\n%s", text)
	}
	run(3, "bad", "echo $TOKEN; exit 3", "--output=json", "--max-restarts=1")
	run(0, "long", "exec sleep 981", "--detach")
	for _, path := range holders(t, workers, canaries) {
		info, err := os.Stat(path)
		if err == nil && !isLog(path) && (filepath.Base(path) != "env" || info.Mode().Perm() != 0o600) {
			t.Errorf("%s of a living run holds a secret, mode %v", path, info.Mode())
		}
	}
	for _, args := range [][]string{{"ps"}, {"ps", "--all", "--output=json"}, {"logs", "long"}, {"logs", "--verify", "good"}, {"stop", "long"}, {"stop", "long", "--output=json"}} {
		invoke(0, append(args, cloud...)...)
	}
	invoke(3, append([]string{"attach", "bad"}, cloud...)...)
	invoke(64, "run", "--secret-env=TOKEN", "--no-such-flag")
	wrong := len(seen.String())
	invoke(64, append([]string{"run", "--tpu-prefix=t", "--secret-env=TOKEN=" + canaries[0].text, "--command=true", "--script-dir=" + in("code")}, cloud...)...)
	// Search only the answers: the user typed the rest.
	said := seen.String()[wrong:]
	seen.Truncate(wrong)
	_, said, _ = strings.Cut(said, "\n")
	seen.WriteString(said)
	for _, name := range []string{"good", "bad"} {
		invoke(0, "report", name, "--out="+in(name+".html"), "--state-dir="+in("state"))
		invoke(0, "metrics", name, "--output=json", "--state-dir="+in("state"))
	}
	for _, found := range watched() {
		t.Error(found)
	}

	if told, err := os.ReadFile(in("told")); err != nil || bytes.Count(told, []byte(`"event":"end"`)) < 2 {
		t.Errorf("who is notified was not told: %v\n%s", err, told)
	}
	if err := os.WriteFile(in("seen"), seen.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	mine := map[string]bool{in("token"): true, env["MULTIHOST_FLAG_IDENTITY_FILE"]: true}
	for _, path := range holders(t, dir, canaries) {
		if !mine[path] && !isLog(path) {
			t.Errorf("%s holds a secret", path)
		}
	}
	journals, _ := filepath.Glob(in("state/runs/*/events.jsonl"))
	if len(journals) != 3 {
		t.Errorf("journals looked at: %q, want those of 3 runs", journals)
	}
	err = filepath.WalkDir(in("state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	backTo(t, "goroutines", goroutines, runtime.NumGoroutine)
	backTo(t, "descriptors", descriptors, func() int { return openFiles(t) })
}

// isLog reports whether a file is a log. Logs have every byte that the command printed.
func isLog(path string) bool {
	name := filepath.Base(path)
	return name == "output.log" || strings.HasPrefix(name, "output_slice_")
}

// holders returns the files below dir that contain a canary.
func holders(t *testing.T, dir string, canaries []canary) (found []string) {
	t.Helper()
	looked := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // commands on the workers make and remove files all the time
			return nil
		}
		text, _ := os.ReadFile(path)
		looked++
		for _, c := range canaries {
			if bytes.Contains(text, []byte(c.text)) {
				found = append(found, path)
				t.Logf("%s has the %s", path, c.name)
				break
			}
		}
		return nil
	})
	if err != nil || looked == 0 {
		t.Errorf("looked at %d files below %s: %v", looked, dir, err)
	}
	return found
}

// watchCommandLines looks at the command lines of all processes of the machine until the
// caller calls end. end returns what it found.
func watchCommandLines(canaries []canary) (end func() []string) {
	var done sync.WaitGroup
	stop := make(chan struct{})
	found := map[string]bool{}
	done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range lines {
				text, _ := os.ReadFile(path) // a process that has ended has no command line
				for _, c := range canaries {
					if bytes.Contains(text, []byte(c.text)) {
						found[fmt.Sprintf("the %s is on a command line: %q", c.name, text)] = true
					}
				}
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	return func() (all []string) {
		close(stop)
		done.Wait()
		for text := range found {
			all = append(all, text)
		}
		return all
	}
}
