package options

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/plan"

	"github.com/urfave/cli/v2"
)

// faultsOf returns what a row of the table of options lacks. reads names the flags with a
// read function of their own.
func faultsOf(o Option, reads []string) (faults []string) {
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
	fault(o.plan != "" && !hasField(reflect.TypeFor[plan.Plan](), strings.Split(o.plan, ".")), "plan names no field of plan.Plan")
	fault((o.key == "") == (o.unneeded == ""), "either key or unneeded says whether a job without runner has it")
	return faults
}

// hasField reports whether the JSON of a type has a field with that path, in a list for its
// elements.
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

// TestRowsOfTheTable: every option of run and job has all that the program must know about
// it.
func TestRowsOfTheTable(t *testing.T) {
	t.Parallel()
	for path, rows := range map[string][]Option{"run": RunRows(), "job": JobRows()} {
		var reads []string
		for _, o := range rows {
			if o.read != nil {
				reads = append(reads, o.Name())
			}
		}
		for _, o := range rows {
			for _, fault := range faultsOf(o, reads) {
				t.Errorf("--%s of %s: %s", o.Name(), path, fault)
			}
		}
	}
}

func TestFaultsOfAnOption(t *testing.T) {
	t.Parallel()
	whole := Option{flag: &cli.IntFlag{Name: "x"}, read: func(reading) {}, bad: "-1", plan: "limits.grace_ns", key: "grace"}
	for want, change := range map[string]func(o *Option){
		"":                         func(*Option) {},
		"either read or with":      func(o *Option) { o.read = nil },
		"with names neither":       func(o *Option) { o.read, o.with = nil, "y" },
		"bad names no value":       func(o *Option) { o.bad = "" },
		"either plan or unplanned": func(o *Option) { o.plan = "" },
		"plan names no field":      func(o *Option) { o.plan = "limits.grac" },
		"either key or unneeded":   func(o *Option) { o.key = "" },
	} {
		o := whole
		change(&o)
		got := strings.Join(faultsOf(o, nil), "\n")
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
