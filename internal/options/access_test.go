package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/access"
	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/hosts"
	"multihost/internal/overssh"
	"multihost/internal/testkit"

	"github.com/urfave/cli/v2"
)

// of returns a machine with the environment env and a new home directory.
func of(t *testing.T, env map[string]string) Machine {
	t.Helper()
	m := machine
	m.Home, m.StateDir, m.UserNote, m.Account = t.TempDir(), "/state", "your login is ada", "ada@example.com"
	m.Lookup = func(key string) (string, bool) { v, ok := env[key]; return v, ok }
	return m
}

func TestHowWorkersAreReached(t *testing.T) {
	t.Parallel()
	type result struct {
		a    overssh.Access
		note string
	}
	reach := func(m Machine, words ...string) (result, error) {
		return read(t, SSHFlags(), func(c *Call) (r result) {
			r.a, r.note = Access(c, m, Key(c, m))
			return r
		}, append([]string{"ssh"}, words...)...)
	}
	m := of(t, map[string]string{"USER": "ada", "SSH_AUTH_SOCK": "/agent"})
	r, err := reach(m)
	if a := r.a; err != nil || a.Login != "ada" || r.note != m.UserNote || a.Port != 22 || a.KnownHosts != "/state/known_hosts" || a.KeyFile != filepath.Join(m.Home, ".ssh/google_compute_engine") ||
		a.Way != overssh.Auto || a.RetryFor != 2*time.Minute || a.ConnectTimeout != 15*time.Second || a.AgentSocket != "/agent" || len(a.UserKnownHosts) != 3 {
		t.Errorf("%+v, %q, %v", a, r.note, err)
	}
	r, err = reach(m, "--user=eve", "--internal-ip", "--identity-file=/key", "--connect-timeout=3s", "--ssh-proxy-jump=bob@bastion:2222")
	if a := r.a; err != nil || a.Login != "eve" || r.note != "" || a.Way != overssh.Internal || a.KeyFile != "/key" || a.ConnectTimeout != 3*time.Second || len(a.Jump) != 1 {
		t.Errorf("%+v, %q, %v", a, r.note, err)
	}
	// A value in a simulator's environment goes before a default, and a typed value before
	// both.
	sim := of(t, map[string]string{"MULTIHOST_FLAG_SSH_PORT": "2200"})
	if r, err := reach(sim); err != nil || r.a.Port != 2200 {
		t.Errorf("port %d, %v", r.a.Port, err)
	}
	if r, err := reach(sim, "--ssh-port=23"); err != nil || r.a.Port != 23 {
		t.Errorf("port %d, %v", r.a.Port, err)
	}
	for line, want := range map[string]string{
		"--user=root": "TPU VMs take no root login", "--user=A B": "--user=A", "--ssh-port=70000": "--ssh-port=70000", "--connect-timeout=0s": "--connect-timeout",
		"--max-dials=0": "--max-dials", "--ip=x": "--ip", "--internal-ip --ip=external": "contradict each other", "--ssh-config=/no/such": "--ssh-config", "--ssh-proxy-jump=@": "--ssh-proxy-jump",
	} {
		_, err := reach(m, strings.Fields(line)...)
		refusal(t, line, err, want)
	}
	key, err := read(t, SSHFlags(), func(c *Call) access.Key { return Key(c, m) }, "ssh")
	if err != nil || !key.Ours || key.Agent != "/agent" {
		t.Errorf("%+v, %v", key, err)
	}
}

func TestMachinesThatReplaceSlices(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts")
	testkit.Must(t, os.WriteFile(file, []byte("a\nb:2222\n"), 0o600))
	list := func(c *Call) hosts.HostList { return Hosts(c, "/no/such") }
	for line, want := range map[string]int{"": 0, "--hosts=a,b,c": 3, "--hosts-file=" + file: 2} {
		if l, err := read(t, HostFlags(), list, append([]string{"ps"}, strings.Fields(line)...)...); err != nil || len(l) != want {
			t.Errorf("%s: %v, %v", line, l, err)
		}
	}
	for line, want := range map[string]string{"--hosts=a,,@": "--hosts", "--hosts-file=/no/such": "--hosts-file", "--hosts=a --hosts-file=" + file: "not both"} {
		_, err := read(t, HostFlags(), list, append([]string{"ps"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
}

func TestGcloudsConfigurationGivesWay(t *testing.T) {
	t.Parallel()
	m := of(t, map[string]string{"CLOUDSDK_CONFIG": t.TempDir(), "CLOUDSDK_CORE_PROJECT": "of-gcloud", "MULTIHOST_FLAG_ZONE": "us-central2-b"})
	g, err := read(t, nil, func(c *Call) config.Gcloud { return Gcloud(c, m) }, "ps")
	if err != nil || g.Project != "of-gcloud" || g.Zone != "us-central2-b" || g.Source["Zone"] != "MULTIHOST_FLAG_ZONE" {
		t.Errorf("%+v, %v", g, err)
	}
	g, err = read(t, nil, func(c *Call) config.Gcloud { return Gcloud(c, m) }, "ps", "--project=typed")
	if err != nil || g.Project != "typed" || g.Source["Project"] != "--project" {
		t.Errorf("%+v, %v", g, err)
	}
	for _, bad := range []string{"--configuration=no/such"} {
		_, err := read(t, nil, func(c *Call) config.Gcloud { return Gcloud(c, m) }, "ps", bad)
		refusal(t, bad, err, "")
	}
	_, err = read(t, nil, func(c *Call) int { CheckGcloud(c, m); return 0 }, "show", "--configuration=no/such")
	refusal(t, "config show", err, "no/such")
}

func TestWhereDefaultsComeFrom(t *testing.T) {
	t.Parallel()
	m := of(t, map[string]string{"CLOUDSDK_CONFIG": t.TempDir(), "CLOUDSDK_CORE_PROJECT": "of-gcloud"})
	p := cmdline.Program{App: &cli.App{Name: "multihost", Flags: GlobalFlags(), Commands: []*cli.Command{{Name: "run", Flags: RunFlags()}, {Name: "ps", Flags: HostFlags()}}},
		Rules: Rules(cmdline.CompleteRules{}), Lookup: m.Lookup, Home: m.Home, Dir: t.TempDir()}
	explain := func(words ...string) (Defaults, error) {
		var failed error
		d, err := read(t, []cli.Flag{&cli.BoolFlag{Name: "all"}}, func(c *Call) Defaults {
			d, err := Explain(c, m, p)
			failed = err
			return d
		}, append([]string{"show"}, words...)...)
		testkit.Must(t, err)
		return d, failed
	}
	d, err := explain()
	if err != nil || d.UserExists || !strings.Contains(d.String(), "profile:      none\n") || !strings.Contains(d.String(), "of-gcloud") {
		t.Errorf("%v\n%s", err, d)
	}
	run, err := explain("run", "--all")
	if err != nil || run.Command != "run" || len(run.Flags) < 50 || !strings.Contains(run.String(), "grace ") {
		t.Errorf("%v, %d flags\n%s", err, len(run.Flags), run)
	}
	if _, err := explain("nothing"); err == nil {
		t.Error("a command that does not exist is explained")
	}
}
