package main

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/job"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// faultsOf returns what a row of the table of options lacks. reads are the names of the
// flags that have a function of their own.
func faultsOf(o option, reads []string) (faults []string) {
	fault := func(is bool, text string) {
		if is {
			faults = append(faults, text)
		}
	}
	places := []string{inSession, withWorkers, withRequest, withBucket, withNotify}
	numeric := slices.Contains([]config.Kind{config.Int, config.Float, config.Duration}, cmdline.KindOf(o.flag))
	fault((o.read == nil) == (o.with == ""), "either read or with says where it is read")
	fault(o.with != "" && !slices.Contains(places, o.with) && !slices.Contains(reads, o.with), "with names neither a place nor a flag that is read")
	fault(o.bad == "" && numeric && o.with != withBucket, "bad names no value that is refused")
	fault((o.plan == "") == (o.unplanned == ""), "either plan or unplanned says whether a dry run shows it")
	fault(o.plan != "" && !hasField(reflect.TypeFor[job.Plan](), strings.Split(o.plan, ".")), "plan names no field of job.Plan")
	fault((o.key == "") == (o.unneeded == ""), "either key or unneeded says whether a job without runner has it")
	return faults
}

// hasField reports whether the JSON of a type has a field of that path. Lists count as
// their elements.
func hasField(of reflect.Type, path []string) bool {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if len(path) == 0 {
		return true
	}
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name == path[0] {
			return hasField(of.Field(i).Type, path[1:])
		}
	}
	return false
}

// TestEveryFlagOfRunAndJobIsAnOption: a flag of run or job stands in the table of options
// with all that the program has to know about it, or in the table of requests of package qr.
func TestEveryFlagOfRunAndJobIsAnOption(t *testing.T) {
	t.Parallel()
	for _, command := range []struct {
		path string
		rows []option
	}{{"run", runRows()}, {"job", jobRows()}} {
		var names, reads []string
		for _, o := range command.rows {
			names = append(names, o.name())
			if o.read != nil {
				reads = append(reads, o.name())
			}
		}
		for _, o := range command.rows {
			for _, fault := range faultsOf(o, reads) {
				t.Errorf("--%s of %s: %s", o.name(), command.path, fault)
			}
		}
		for _, f := range cmdline.FindCommand(commands(), command.path).Flags {
			name := f.Names()[0]
			requested := slices.ContainsFunc(qr.CreateFlags(), func(r qr.Flag) bool { return r.Name == name })
			if !slices.Contains(names, name) && !requested {
				t.Errorf("--%s of %s is no row of the table of options", name, command.path)
			}
		}
	}
}

// A row that lacks something is found.
func TestFaultsOfAnOption(t *testing.T) {
	t.Parallel()
	whole := option{flag: &cli.IntFlag{Name: "x"}, read: func(reading) {}, bad: "-1", plan: "limits.grace_ns", key: "grace"}
	for want, change := range map[string]func(o *option){
		"":                         func(*option) {},
		"either read or with":      func(o *option) { o.read = nil },
		"with names neither":       func(o *option) { o.read, o.with = nil, "y" },
		"bad names no value":       func(o *option) { o.bad = "" },
		"either plan or unplanned": func(o *option) { o.plan = "" },
		"plan names no field":      func(o *option) { o.plan = "limits.grac" },
		"either key or unneeded":   func(o *option) { o.key = "" },
	} {
		o := whole
		change(&o)
		got := strings.Join(faultsOf(o, nil), "\n")
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// notTried are options whose other value would need more than a command line: files,
// workers that answer, another option.
var notTried = []string{"script-dir", "no-ignore", "env-file", "numa", "detach", "replace", "bucket-name", "network-create", "ssh-source-ranges", "ssh-config", "identity-file"}

// TestOptionsShowWhereTheTableSays: with another value of an option, a dry run shows
// another plan in the field that the table names, and a job without runner has another
// value under its key, or refuses the option.
func TestOptionsShowWhereTheTableSays(t *testing.T) {
	t.Parallel()
	r := newRehearsal(t, sim.Config{})
	r.write("code/a", "a")
	base := []string{"job", "--run-name=r", "--tpu-type=v5litepod-16", "--command=true", "--script-dir=$DIR/code", "--runtime-version=v2-alpha-tpuv5-lite", "--dry-run", "--output=json"}
	alone := append(slices.Clone(base), "--detach", "--bucket-name=multihost-sim")
	attached, detached := planOf(r, base), planOf(r, alone)
	tried := 0
	for _, o := range jobRows() {
		if o.try == "" {
			if seen := o.plan != "" || o.key != "" && o.key != refused && o.key != kit; seen && !slices.Contains(notTried, o.name()) {
				t.Errorf("--%s: the table has no value to try", o.name())
			}
			continue
		}
		tried++
		typed := "--" + o.name() + "=" + o.try
		with, before := append(slices.Clone(base), typed), attached
		if o.with == withBucket {
			with, before = append(slices.Clone(alone), typed), detached
		}
		if o.plan != "" && at(planOf(r, with), o.plan) == at(before, o.plan) {
			t.Errorf("%s: %s of the plan is the same: %s", typed, o.plan, at(before, o.plan))
		}
		switch o.key {
		case "", kit, request:
		case refused:
			if status, said, _ := r.do(append(slices.Clone(alone), typed)...); status != exitUsage || !strings.Contains(said, "--"+o.name()) {
				t.Errorf("%s with --detach --bucket-name ended with %d: %s", typed, status, said)
			}
		default:
			if was, is := keyOf(t, detached, o.key), keyOf(t, planOf(r, append(slices.Clone(alone), typed)), o.key); was == is {
				t.Errorf("%s: a job without runner has the same %s: %q", typed, o.key, is)
			}
		}
	}
	if tried < 40 {
		t.Errorf("only %d options tried", tried)
	}
}

// planOf returns the plan of a dry run as it is in JSON.
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

// at returns what stands under a path, as JSON. Lists count as their first element.
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

// keyOf returns the line of a key in the text that the workers of a job without runner read.
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

// runnerless returns the text of the job without runner that a document has in it, or "".
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
