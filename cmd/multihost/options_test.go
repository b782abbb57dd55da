package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/options"
	"multihost/internal/qr/createflags"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// TestEveryFlagOfRunAndJobIsAnOption: a flag of run or job is in the table of options, in
// the table of requests of package qr, or describes a workload of a cluster.
func TestEveryFlagOfRunAndJobIsAnOption(t *testing.T) {
	t.Parallel()
	for path, rows := range map[string][]options.Option{"run": options.RunRows(), "job": options.JobRows()} {
		for _, f := range cmdline.FindCommand(commands(), path).Flags {
			name := f.Names()[0]
			requested := slices.ContainsFunc(createflags.All(), func(r createflags.Flag) bool { return r.Name == name })
			ofWorkload := path == "job" && slices.ContainsFunc(options.WorkloadFlags(), func(w cli.Flag) bool { return w.Names()[0] == name })
			if !requested && !ofWorkload && !slices.ContainsFunc(rows, func(o options.Option) bool { return o.Name() == name }) {
				t.Errorf("--%s of %s is no row of the table of options", name, path)
			}
		}
	}
}

// notTried are options whose other values need more than a command line: files, workers
// that answer, or another option.
var notTried = []string{"script-dir", "no-ignore", "env-file", "numa", "detach", "replace", "bucket-name", "network-create", "ssh-source-ranges", "ssh-config", "identity-file", "provider",
	"machine-type", "boot-disk-size", "boot-disk-type", "image", "slices-deadline"}

// TestOptionsShowWhereTheTableSays gives each option another value. Then the plan of a dry
// run must change in the field that the table names. A job without runner must get another
// value under the option's key, or refuse the option.
func TestOptionsShowWhereTheTableSays(t *testing.T) {
	t.Parallel()
	r := newRehearsal(t, sim.Config{})
	r.write("code/a", "a")
	base := []string{"job", "--run-name=r", "--tpu-type=v5litepod-16", "--command=true", "--script-dir=$DIR/code", "--runtime-version=v2-alpha-tpuv5-lite", "--dry-run", "--output=json"}
	alone := append(slices.Clone(base), "--detach", "--bucket-name=multihost-sim")
	attached, detached := planOf(r, base), planOf(r, alone)
	tried := 0
	for _, o := range options.JobRows() {
		key, isRefused := o.Key()
		if o.Try() == "" {
			if seen := o.Plan() != "" || key != ""; seen && !slices.Contains(notTried, o.Name()) {
				t.Errorf("--%s: the table has no value to try", o.Name())
			}
			continue
		}
		tried++
		typed := "--" + o.Name() + "=" + o.Try()
		with, before := append(slices.Clone(base), typed), attached
		if o.OfBucket() {
			with, before = append(slices.Clone(alone), typed), detached
		}
		if o.Plan() != "" && at(planOf(r, with), o.Plan()) == at(before, o.Plan()) {
			t.Errorf("%s: %s of the plan is the same: %s", typed, o.Plan(), at(before, o.Plan()))
		}
		switch {
		case isRefused:
			if status, said, _ := r.do(append(slices.Clone(alone), typed)...); status != exitUsage || !strings.Contains(said, "--"+o.Name()) {
				t.Errorf("%s with --detach --bucket-name ended with %d: %s", typed, status, said)
			}
		case key != "":
			if was, is := keyOf(t, detached, key), keyOf(t, planOf(r, append(slices.Clone(alone), typed)), key); was == is {
				t.Errorf("%s: a job without runner has the same %s: %q", typed, key, is)
			}
		}
	}
	if tried < 40 {
		t.Errorf("only %d options tried", tried)
	}
}

// planOf returns the plan of a dry run, decoded from JSON.
func planOf(r *rehearsal, line []string) map[string]any {
	r.Helper()
	stdout, _ := r.must(0, line...)
	for l := range strings.Lines(stdout) {
		var doc struct {
			Name string
			Data map[string]any
		}
		testkit.Must(r, json.Unmarshal([]byte(l), &doc))
		if doc.Name == "plan" {
			return doc.Data
		}
	}
	r.Fatalf("%q shows no plan:\n%s", line, stdout)
	return nil
}

// at returns the value at a path, as JSON. In a list, it follows the first element.
func at(doc any, path string) string {
	for name := range strings.SplitSeq(path, ".") {
		if list, ok := doc.([]any); ok && len(list) > 0 {
			doc = list[0]
		}
		fields, _ := doc.(map[string]any)
		doc = fields[name]
	}
	text, _ := json.Marshal(doc)
	return string(text)
}

// keyOf returns the line of a key in the description of a job without runner.
func keyOf(t *testing.T, plan map[string]any, key string) string {
	t.Helper()
	text := runnerless(plan)
	if text == "" {
		t.Fatal("the plan has no job without runner")
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, key+"="); found {
			return value
		}
	}
	return ""
}

// runnerless returns the text in a document that describes a job without runner, or "".
func runnerless(doc any) (text string) {
	switch doc := doc.(type) {
	case []any:
		for _, v := range doc {
			text = cmp.Or(text, runnerless(v))
		}
	case map[string]any:
		for _, v := range doc {
			text = cmp.Or(text, runnerless(v))
		}
	case string:
		if strings.HasPrefix(doc, "run=") && strings.Contains(doc, "\nbucket=") {
			return doc
		}
	}
	return text
}
