package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/testkit"
)

// freeFlags take a text that only the user knows. Completion offers values for every other
// flag that takes a text.
var freeFlags = []string{
	"all-ports-from", "allow", "bucket-dir", "bucket-name", "command", "config", "cqr-extra-args", "data-disk", "description", "env",
	"hosts", "iap-endpoint", "keep-on-failure", "labels", "listen", "max-log", "max-preemptions", "max-run-duration", "metadata",
	"metadata-from-file", "metrics-regex", "network", "node-id", "node-prefix", "notify", "notify-url", "reservation", "scopes",
	"base-docker-image", "cluster", "container", "context", "docker-image", "image-repository", "registry-endpoint", "namespace", "node-selector", "priority", "queue", "resource", "restart-on-exit-codes", "workload",
	"cluster-cpu-machine-type", "cluster-state-gcs-bucket", "custom-cluster-arguments", "custom-nodepool-arguments", "custom-tpu-nodepool-arguments", "device-type", "docker-image-pull-secret",
	"docker-name", "filter-by-job", "filter-by-status", "num-nodes", "pathways-gce-machine-type", "scheduler", "tensorboard-name", "tensorboard-region", "wait-for-job-completion",
	"secret-env", "service-account", "sim-slices", "since", "slices", "source-ranges", "ssh-proxy-jump", "ssh-source-ranges", "stall-timeout",
	"subnetwork", "tags", "target-tags", "user", "valid-until-duration",
	"default-pool-cpu-machine-type", "gke-version", "cluster", "context", "docker-image", "namespace", "priority", "queue", "boot-disk", "boot-disk-type", "image", "filter", "limit", "min-duration", "network-config", "range", "reservation-host-folder", "reservation-host-organization", "reservation-host-project",
	"valid-after-duration", "sort-by", "valid-after-time", "valid-until-time",
}

// freeWords are commands whose words only the user knows.
var freeWords = []string{"exec", "job", "run", "qr create", "slices create", "cluster create", "cluster show", "cluster delete", "network create", "network show", "network update", "network delete", "network firewall create", "network firewall delete", "workload create", "workload status", "workload logs", "workload delete"}

// TestEveryFlagIsCompleted finds flags and commands without a completion that are not in
// these lists either.
func TestEveryFlagIsCompleted(t *testing.T) {
	commands := silent(nil).commands()
	everyFlag(func(command string, f cli.Flag) {
		name := f.Names()[0]
		known := commands.Completed(f)
		text := slices.Contains([]config.Kind{config.Text, config.List, config.Optional}, cmdline.KindOf(f))
		switch free := slices.Contains(freeFlags, name); {
		case text && !known && !free:
			t.Errorf("--%s of %s is not completed: give it a place in Rules of package complete, let its help begin with its words (\"a, b or c: …\"), or name it in freeFlags", name, command)
		case known && free:
			t.Errorf("--%s of %s is completed, and named in freeFlags", name, command)
		}
	})
	cmdline.Walk(app().Commands, func(path string, c *cli.Command) {
		if c.ArgsUsage != "" && !c.Hidden && !commands.WordsCompleted(path) && !slices.Contains(freeWords, path) {
			t.Errorf("the words of multihost %s (%s) are not completed: give it a place in Rules of package complete, or name it in freeWords", path, c.ArgsUsage)
		}
	})
}

// TestEnumerationsAreRead checks the values that completion reads from the help texts.
func TestEnumerationsAreRead(t *testing.T) {
	got := map[string]string{}
	everyFlag(func(command string, f cli.Flag) {
		if words := cmdline.Listed(f.(cli.DocGenerationFlag).GetUsage()); words != nil {
			got[f.Names()[0]] = strings.Join(words, " ")
		}
	})
	for name, want := range map[string]string{
		"backend": "process netns", "bgp-routing-mode": "regional global", "ip": "auto internal external iap", "kill-stale": "orphans all",
		"numa": "auto bind preferred off", "on-interrupt": "ask stop detach", "on-stall": "report dump restart stop",
		"platform": "gce gke", "preflight": "apply require check off", "relay": "auto on off", "sim-backend": "process netns",
		"stream": "first all none", "subnet-mode": "auto custom legacy",
	} {
		if got[name] != want {
			t.Errorf("--%s is completed with %q, want %q", name, got[name], want)
		}
	}
}

func silent(env map[string]string) process {
	return process{lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
}

func (p process) commands() cmdline.Program { return (&call{process: p}).program() }

// TestCompletionOfLines checks the answers that depend on how a line is split.
func TestCompletionOfLines(t *testing.T) {
	for line, want := range map[string]string{
		`multihost qr sh`:                          "words show",
		`multihost qr 'sh`:                         "words show",
		`multihost  qr   "sho`:                     "words show",
		`multihost qr sh\ow`:                       "words show",
		`m ver`:                                    "words version",
		`multihost run --fail-f`:                   "words --fail-fast",
		`multihost run --stream=n`:                 "words none",
		`multihost run "--stream=n`:                "words none",
		`multihost run --stream n`:                 "words none",
		`multihost --stream=n`:                     "words",
		`multihost run --install --instal`:         "words",
		`multihost run --env=A --env`:              "open --env= --env-file=",
		`multihost run -- --stre`:                  "files",
		`multihost run --script-dir=`:              "dirs",
		`multihost run --tpu-type`:                 "words",
		`multihost job --TPU_TY`:                   "open --TPU_TYPE=",
		`multihost config show qr cr`:              "words create",
		`multihost run --xla-preset=v5p/32b,v5e/3`: "open v5p/32b,v5e/32b",
		`multihost run --he`:                       "words --help --help=all",
		`multihost qr list --help=`:                "words all",
		`multihost --sim job --zone=us-w`:          "words us-west1-c us-west4-a",
	} {
		var out bytes.Buffer
		p := silent(map[string]string{"MULTIHOST_FLAG_CONFIG": "none"})
		p.commands().Complete(t.Context(), &out, []string{"bash", " \t\n\"'><=;|&(:", line})
		var got []string
		for l := range strings.Lines(out.String()) {
			word, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
			got = append(got, word)
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

// TestOnlyPlainWordsAreCandidates: shells put candidates into the line unquoted. So a name
// with a character that is special to a shell must not be a candidate, whatever its source.
func TestOnlyPlainWordsAreCandidates(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"good-run.1", "$(id)", "`id`", "a;b", "a b", "a'b", "a\tb", "a\nb", "~", "a>b", "a{b,c}"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, "runs", name), 0o700))
	}
	for _, shell := range [][]string{{"bash", "=:", "multihost attach "}, {"zsh", "attach", ""}, {"fish", "attach", ""}} {
		var out bytes.Buffer
		p := silent(map[string]string{"MULTIHOST_FLAG_CONFIG": "none", "MULTIHOST_FLAG_STATE_DIR": dir})
		p.commands().Complete(t.Context(), &out, shell)
		if lines := strings.Split(out.String(), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[1], "good-run.1\t") {
			t.Errorf("%q: answer %q, want good-run.1 alone", shell, out.String())
		}
	}
}

// TestEveryFlagOfGcloudIsTakenOrRefused: each flag that gcloud takes for a queued resource
// is a flag of the qr commands, or they refuse it with a reason. The test of package gcloud
// compares the list with an installed gcloud.
func TestEveryFlagOfGcloudIsTakenOrRefused(t *testing.T) {
	text, err := os.ReadFile("../../internal/gcloud/testdata/gcloud-flags.json")
	if err != nil {
		t.Fatal(err)
	}
	var flags map[string][]string
	if err := json.Unmarshal(text, &flags); err != nil || len(flags) != 5 {
		t.Fatalf("%d commands, %v", len(flags), err)
	}
	for command, names := range flags {
		for _, name := range names {
			p := silent(nil).commands()
			_, alone := p.Parse([]string{"qr", command, "x", "--" + name})
			_, with := p.Parse([]string{"qr", command, "x", "--" + name + "=1"})
			unknown := func(err error) bool { return err != nil && strings.Contains(err.Error(), "unknown flag") }
			if unknown(alone) && unknown(with) {
				t.Errorf("qr %s: %v", command, alone)
			}
		}
	}
}
