package attempt

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/hosts"
	"multihost/internal/record"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// The four variables are set for slices without common metadata, and removed for all
// others.
func TestMegascaleVariables(t *testing.T) {
	slice := func(name, queue string) tpu.Slice {
		return tpu.Slice{Name: name, QueuedResource: queue, MultiSlice: queue != "", Workers: []tpu.Worker{{Internal: "10.0.0." + name[len(name)-1:]}}}
	}
	for _, row := range []struct {
		story   string
		slices  []tpu.Slice
		partial bool
		set     bool
	}{
		{"one slice", []tpu.Slice{slice("t", "")}, false, false},
		{"one multi-node queued resource", []tpu.Slice{slice("t-0", "q"), slice("t-1", "q")}, false, false},
		{"a part of one", []tpu.Slice{slice("t-0", "q"), slice("t-1", "q")}, true, true},
		{"a part of one, told by the names", []tpu.Slice{slice("t-0", "q"), slice("t-2", "q")}, false, true},
		{"slices made apart", []tpu.Slice{slice("t-0", ""), slice("t-1", "")}, false, true},
	} {
		t.Run(row.story, func(t *testing.T) {
			r := deciderFor(t, Options{AllowPartial: row.partial}, nil)
			r.workers.Slices = row.slices
			for i := range row.slices {
				r.workers.Slices[i].Index = i
				r.workers.IDs = append(r.workers.IDs, tpu.WorkerID{Slice: i})
			}
			last := len(row.slices) - 1
			set, unset := r.environment(last)
			got := map[string]string{}
			for _, v := range set {
				if strings.HasPrefix(v.Name, "MEGASCALE_") {
					got[v.Name] = v.Value
				}
			}
			if row.set {
				want := map[string]string{"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_PORT": "8081"}
				if diff := cmp.Diff(want, got); diff != "" || len(unset) != 0 {
					t.Errorf("set (-want +got), unset %v:\n%s", unset, diff)
				}
				return
			}
			if len(got) != 0 || len(unset) != 4 {
				t.Errorf("set %v, unset %v; want none set and four unset", got, unset)
			}
		})
	}
}

func TestProcessNumbersCountThroughSlicesAndProcesses(t *testing.T) {
	r := deciderFor(t, Options{Processes: 4}, nil)
	r.Cloud = hosts.HostList{{Name: "a"}, {Name: "b"}}
	sel, _ := r.Cloud.Slices(t.Context())
	r.workers = &workers.Connected{Slices: sel, IDs: testkit.WorkerIDs(1, 2)}
	set, _ := r.environment(1)
	got := map[string]string{}
	for _, v := range set {
		got[v.Name] = v.Value
	}
	for name, want := range map[string]string{
		"MULTIHOST_PROCESS_ID": "4", "MULTIHOST_NUM_PROCESSES": "8", "JAX_PROCESS_ID": "4", "JAX_NUM_PROCESSES": "8", "JAX_COORDINATOR_ADDRESS": "a:8482",
	} {
		if got[name] != want {
			t.Errorf("%s=%s, want %s", name, got[name], want)
		}
	}
}

func TestASecretVariableWithMergedFlagsIsSecret(t *testing.T) {
	var told strings.Builder
	r := deciderFor(t, Options{
		Env:      []config.EnvVar{{Name: "LIBTPU_INIT_ARGS", Value: "--xla_canary_1=canary-2 --xla_tpu_scoped_vmem_limit_kib=98304", Secret: true}},
		XLAFlags: []string{"xla_tpu_scoped_vmem_limit_kib=4096"},
	}, nil)
	r.Sink = event.SinkFunc(func(e event.Event) { fmt.Fprintln(&told, e) })
	vars, err := r.xlaFlags("v5litepod-8")
	if err != nil || len(vars) != 1 || !vars[0].Secret || !strings.Contains(vars[0].Value, "--xla_canary_1=canary-2") || !strings.Contains(vars[0].Value, "4096") {
		t.Errorf("got %+v, %v", vars, err)
	}
	if strings.Contains(told.String(), "canary") || strings.Contains(told.String(), "98304") || !strings.Contains(told.String(), "LIBTPU_INIT_ARGS=") {
		t.Errorf("told:\n%s", told.String())
	}
}

func TestSecretsAreNotInTheRecord(t *testing.T) {
	o := Options{Script: "train --token=hunter2", Env: []config.EnvVar{{Name: "TOKEN", Value: "hunter2", Secret: true}}}
	dir := t.TempDir()
	rec := &record.Record{Run: "r", Command: CommandText(o)}
	if err := rec.Save(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(record.RecordPath(dir, "r"))
	if err != nil || strings.Contains(string(data), "hunter2") || !strings.Contains(string(data), "train --token=***") {
		t.Errorf("record holds the secret (%v):\n%s", err, data)
	}
}
