package xpk_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/fault"
	"multihost/internal/provision"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/xpk"
)

// told joins the texts of errors.
func told(all []*xpk.FlagError) string {
	var lines []string
	for _, e := range all {
		lines = append(lines, e.Flag+": "+e.Text)
	}
	return strings.Join(lines, "\n")
}

func TestType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"v5litepod-16": "v5litepod-16", "v5litepod-4x4": "v5litepod-16", "v5e-4x4": "v5litepod-16", "v5p-2x2x2": "v5p-16", "tpu7x-4x4x4": "tpu7x-128",
		"v5p-4x4x8": "v5p-256", "v6e-16": "v6e-16", "tpu7x-16": "tpu7x-16", "v4-32": "v4-32",
	} {
		got, err := xpk.Type(text)
		if err != nil || got.Name != want {
			t.Errorf("%s: %s, %v; want %s", text, got.Name, err, want)
		}
	}
	for _, text := range []string{"", "v5p", "v5p-7x7x7", "h100-80gb-8", "v5litepod-17"} {
		if got, err := xpk.Type(text); err == nil {
			t.Errorf("%q: %s", text, got.Name)
		}
	}
}

// sound is a cluster with XPK's defaults.
func sound() xpk.Cluster {
	return xpk.Cluster{Name: "c", TPUType: "v5litepod-16", Slices: 1, CPUMachine: "e2-standard-16", CPUNodes: 6, Maintenance: "AS_NEEDED"}
}

func TestClusterOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		set   func(c *xpk.Cluster)
		wrong string // part of the errors; "": there is none
	}{
		{name: "two networks", set: func(c *xpk.Cluster) { c.Arguments = "--network=a --subnetwork b --network 'A B'" }, wrong: "custom-cluster-arguments: --custom-cluster-arguments: --network: network name \"A B\": want"},
		{name: "a long network", set: func(c *xpk.Cluster) { c.Arguments = "--network=" + strings.Repeat("n", 63) }},
		{name: "too long a network", set: func(c *xpk.Cluster) { c.Arguments = "--network=" + strings.Repeat("n", 64) }, wrong: "longer than 63 characters"},
		{name: "gcloud's flags", set: func(c *xpk.Cluster) { c.Arguments = "--network=a --release-channel=rapid" }, wrong: "cannot pass it --release-channel"},
		{name: "a word", set: func(c *xpk.Cluster) { c.Arguments = "mtu9k" }, wrong: `"mtu9k" is no flag of gcloud`},
		{name: "a quote", set: func(c *xpk.Cluster) { c.Arguments = "--network='a" }, wrong: "custom-cluster-arguments: "},
		{name: "what clusters have", set: func(c *xpk.Cluster) { c.Arguments = "--enable-ip-alias --enable-dataplane-v2" }},
		{name: "pools", set: func(c *xpk.Cluster) { c.PoolArguments = "--disk-size=300" }, wrong: "custom-nodepool-arguments: "},
		{name: "old pools", set: func(c *xpk.Cluster) { c.OldPoolArguments = "--disk-size=300" }, wrong: "custom-tpu-nodepool-arguments: "},
		{name: "spot pools", set: func(c *xpk.Cluster) { c.PoolArguments = "--spot" }},
		{name: "spot twice", set: func(c *xpk.Cluster) { c.PoolArguments, c.Flex = "--spot", true }, wrong: "flex: --spot and --flex exclude each other"},
		{name: "reserved pools", set: func(c *xpk.Cluster) { c.OldPoolArguments = "--reservation-affinity=specific --reservation=r" }},
		{name: "a reservation without a name", set: func(c *xpk.Cluster) { c.PoolArguments = "--spot --reservation=" }, wrong: "custom-nodepool-arguments: --custom-nodepool-arguments: --reservation has no name"},
		{name: "no name", set: func(c *xpk.Cluster) { c.Name = "" }, wrong: "cluster: which cluster? --cluster is missing"},
		{name: "bad name", set: func(c *xpk.Cluster) { c.Name = "A" }, wrong: "cluster: "},
		{name: "long name", set: func(c *xpk.Cluster) { c.Name = strings.Repeat("c", 40) }, wrong: "more than 40 characters"},
		{name: "no type", set: func(c *xpk.Cluster) { c.TPUType = "" }, wrong: "tpu-type: which accelerator type?"},
		{name: "device", set: func(c *xpk.Cluster) { c.TPUType, c.DeviceType = "", "v5p-2x2x2" }},
		{name: "two types", set: func(c *xpk.Cluster) { c.DeviceType = "v4-8" }, wrong: "exclude each other"},
		{name: "GPUs", set: func(c *xpk.Cluster) { c.TPUType, c.DeviceType = "", "h100-80gb-8" }, wrong: "device-type: --device-type=h100-80gb-8 has no TPU chips"},
		{name: "CPUs", set: func(c *xpk.Cluster) { c.TPUType, c.DeviceType = "", "n2-standard-32-4" }, wrong: "has no TPU chips"},
		{name: "unknown type", set: func(c *xpk.Cluster) { c.TPUType = "v4-17" }, wrong: "tpu-type: "},
		{name: "not on GKE", set: func(c *xpk.Cluster) { c.TPUType = "v3-8" }, wrong: "tpu-type: "},
		{name: "no slices", set: func(c *xpk.Cluster) { c.Slices = 0 }, wrong: "num-slices: "},
		{name: "two tiers", set: func(c *xpk.Cluster) { c.Spot, c.Flex = true, true }, wrong: "flex: --spot and --flex exclude each other"},
		{name: "reservation", set: func(c *xpk.Cluster) { c.Reservation = "/" }, wrong: "reservation: "},
		{name: "version", set: func(c *xpk.Cluster) { c.Version = "x" }, wrong: "gke-version: "},
		{name: "maintenance", set: func(c *xpk.Cluster) { c.Maintenance = "x" }, wrong: "host-maintenance-interval: "},
		{name: "CPU nodes", set: func(c *xpk.Cluster) { c.CPUNodes = 0 }, wrong: "default-pool-cpu-num-nodes: "},
	} {
		c := sound()
		tt.set(&c)
		o, wrong := c.Options()
		if said := told(wrong); (said == "") != (tt.wrong == "") || !strings.Contains(said, tt.wrong) {
			t.Errorf("%s: %q, want %q", tt.name, said, tt.wrong)
		}
		if tt.wrong == "" && o.Validate() != nil {
			t.Errorf("%s: %v", tt.name, o.Validate())
		}
	}
}

func TestClusterDefaults(t *testing.T) {
	t.Parallel()
	c := sound()
	c.Arguments, c.OldCPUMachine = "--network=mtu9k --subnetwork=sub", "n2-standard-8"
	o, _ := c.Options()
	if o.Network != "mtu9k" || o.Subnetwork != "sub" || o.CPUMachine != "n2-standard-8" || o.CPUNodes != 6 || o.Tier != provision.OnDemand || o.Force {
		t.Errorf("%+v", o)
	}
	c = sound()
	if o, _ = c.Options(); o.Network != "default" || o.Subnetwork != "" || o.CPUMachine != "e2-standard-16" {
		t.Errorf("%+v", o)
	}
	c = sound()
	c.OldPoolArguments = "--reservation-affinity=specific --reservation=r"
	if o, _ = c.Options(); o.Tier != provision.Reserved || o.Reservation != "r" {
		t.Errorf("%+v", o)
	}
	for tier, set := range map[provision.Tier]func(*xpk.Cluster){
		provision.Spot: func(c *xpk.Cluster) { c.Spot = true }, provision.FlexStart: func(c *xpk.Cluster) { c.Flex = true },
		provision.OnDemand: func(c *xpk.Cluster) { c.OnDemand = true }, provision.Reserved: func(c *xpk.Cluster) { c.Reservation = "projects/p/reservations/r" },
	} {
		c = sound()
		set(&c)
		if o, wrong := c.Options(); o.Tier != tier || len(wrong) > 0 {
			t.Errorf("%s: %s %s", tier, o.Tier, told(wrong))
		}
	}
}

// work is a workload with XPK's defaults.
func work() xpk.Workload {
	return xpk.Workload{Name: "w", Cluster: "c", Command: "true", TPUType: "v5litepod-16", Slices: 1, Image: "i", Container: "jax-tpu", Priority: "medium", Scheduler: "default-scheduler", TTL: 43200, Grace: 30, Parallel: true}
}

func TestWorkloadFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		set   func(w *xpk.Workload)
		wrong string
	}{
		{"defaults", func(*xpk.Workload) {}, ""},
		{"no cluster", func(w *xpk.Workload) { w.Cluster = "" }, "cluster: which cluster? --cluster is missing"},
		{"no name", func(w *xpk.Workload) { w.Name = "" }, "workload: which name? --workload is missing"},
		{"bad name", func(w *xpk.Workload) { w.Name = "A" }, "workload: "},
		{"long name", func(w *xpk.Workload) { w.Name = strings.Repeat("w", 60) }, "workload: "},
		{"no command", func(w *xpk.Workload) { w.Command = " " }, "command: "},
		{"no type", func(w *xpk.Workload) { w.TPUType = "" }, "tpu-type: which accelerator type?"},
		{"GPUs", func(w *xpk.Workload) { w.TPUType, w.DeviceType = "", "a100-40gb-8" }, "device-type: "},
		{"priority", func(w *xpk.Workload) { w.Priority = "urgent" }, "it is very-low, low, medium, high or very-high"},
		{"slices", func(w *xpk.Workload) { w.Slices = 0 }, "num-slices: "},
		{"container", func(w *xpk.Workload) { w.Container = "A B" }, "docker-name: "},
		{"restarts", func(w *xpk.Workload) { w.MaxRestarts = -1 }, "max-restarts: "},
		{"codes", func(w *xpk.Workload) { w.RestartOn = "1,x" }, "restart-on-exit-codes: "},
		{"code", func(w *xpk.Workload) { w.RestartOn = "300" }, "restart-on-exit-codes: "},
		{"grace", func(w *xpk.Workload) { w.Grace = -1 }, "termination-grace-period-seconds: "},
	} {
		w := work()
		tt.set(&w)
		s, wrong := w.Spec()
		if said := told(wrong); (said == "") != (tt.wrong == "") || !strings.Contains(said, tt.wrong) {
			t.Errorf("%s: %q, want %q", tt.name, said, tt.wrong)
		}
		if tt.wrong == "" && s.Check() != nil {
			t.Errorf("%s: %v", tt.name, s.Check())
		}
	}
}

// The JobSet for XPK's defaults has the names, labels and limits with which XPK finds it.
func TestJobSetIsXPKs(t *testing.T) {
	t.Parallel()
	w := work()
	w.DebugLogs, w.RestartOn, w.MaxRestarts, w.PullSecret = true, "1, 7", 2, "key"
	w.Env = []workload.Variable{{Name: "TPU_MIN_LOG_LEVEL", Value: "3"}}
	s, wrong := w.Spec()
	js, err := workload.JobSet(s)
	if err != nil {
		t.Fatal(err, told(wrong))
	}
	if js.Name != "w" || js.Namespace != "default" || js.Labels["kueue.x-k8s.io/queue-name"] != "multislice-queue" || js.Labels["xpk.google.com/workload"] != "w" {
		t.Errorf("%s/%s %v", js.Namespace, js.Name, js.Labels)
	}
	job := js.Spec.ReplicatedJobs[0]
	pod := job.Template.Spec.Template.Spec
	c := pod.Containers[0]
	if job.Name != "slice-job" || *job.Template.Spec.Parallelism != 4 || *js.Spec.TTLSecondsAfterFinished != 43200 || js.Spec.FailurePolicy.MaxRestarts != 2 {
		t.Errorf("%+v", js.Spec)
	}
	if pod.PriorityClassName != "medium" || !pod.HostNetwork || *pod.TerminationGracePeriodSeconds != 30 || pod.ImagePullSecrets[0].Name != "key" || c.Name != "jax-tpu" || c.Resources.Limits.Name("google.com/tpu", "").Value() != 4 {
		t.Errorf("%+v", pod)
	}
	codes := job.Template.Spec.PodFailurePolicy.Rules[1].OnExitCodes.Values
	if diff := cmp.Diff([]int32{1, 7, 42, 127}, codes[:4]); diff != "" {
		t.Error(diff)
	}
	env := map[string]string{}
	for _, v := range c.Env {
		env[v.Name] = v.Value
	}
	if env["TPU_STDERR_LOG_LEVEL"] != "0" || env["TPU_MIN_LOG_LEVEL"] != "3" {
		t.Errorf("%v", env)
	}
	if words := strings.Join(c.Command, " "); strings.Contains(words, "--numa") {
		t.Errorf("XPK binds no NUMA node: %s", words)
	}
}

// A worker of tpu7x has two containers, unless the user wants one.
func TestParallelContainers(t *testing.T) {
	t.Parallel()
	for parallel, want := range map[bool]int{true: 2, false: 1} {
		w := work()
		w.TPUType, w.Parallel = "tpu7x-4x4x4", parallel
		s, wrong := w.Spec()
		js, err := workload.JobSet(s)
		if err != nil {
			t.Fatal(err, told(wrong))
		}
		if n := len(js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers); n != want {
			t.Errorf("parallel %v: %d containers, want %d", parallel, n, want)
		}
	}
}

// In XPK, these commands and values break the YAML text or change its meaning. multihost passes
// them to the program unchanged.
func TestTextsThatBreakXPK(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"echo a\necho b", `echo "a" 'b'`, "python3 t.py # a comment", "sleep 1 &", `printf 'a\nb'`, "python3 t.py | tee log; x", "echo $A $(B) $$", "a: b", "\ttabbed",
	} {
		w := work()
		w.Command, w.Env = text, []workload.Variable{{Name: "X", Value: text + `{"a":1}`}}
		s, wrong := w.Spec()
		js, err := workload.JobSet(s)
		if err != nil {
			t.Fatalf("%q: %v %s", text, err, told(wrong))
		}
		c := js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
		arrives := func(text string) string { return strings.ReplaceAll(text, "$$", "$") } // what Kubernetes makes of it
		if n := len(c.Command); arrives(c.Command[n-1]) != text || c.Command[n-3] != "bash" || c.Command[n-2] != "-c" || c.Command[n-4] != "--" {
			t.Errorf("%q: command %q", text, c.Command)
		}
		for _, v := range c.Env {
			if v.Name == "X" && arrives(v.Value) != text+`{"a":1}` {
				t.Errorf("%q: variable %q", text, v.Value)
			}
		}
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	w := work()
	w.Slices = 2 // of four nodes
	s, _ := w.Spec()
	for _, tt := range []struct {
		data map[string]string
		want string // "": it fits
	}{
		{map[string]string{"v5litepod-16": "8"}, ""},
		{map[string]string{"v5litepod-4x4": "8", "v4-8": "1"}, ""},
		{map[string]string{"v5litepod-16": "4"}, `cluster "c" has 4 nodes of type v5litepod-16, and the workload needs 8`},
		{map[string]string{"v5litepod-32": "8"}, `cluster "c" has no slices of type v5litepod-16`},
		{map[string]string{"a word": "8"}, ""},
		{map[string]string{"v5litepod-16": "many"}, ""},
	} {
		err := xpk.Fits("c", tt.data, s)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if said != tt.want || err != nil && fault.Of(err) != fault.Usage {
			t.Errorf("%v: %q, want %q", tt.data, said, tt.want)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	states := []workload.State{workload.Queued, workload.Starting, workload.Running, workload.Succeeded, workload.Failed, workload.Leaving}
	for status, want := range map[string]string{
		"EVERYTHING": "queued starting running succeeded failed being deleted", "FINISHED": "succeeded failed", "RUNNING": "starting running",
		"QUEUED": "queued", "FAILED": "failed", "SUCCESSFUL": "succeeded",
	} {
		f, wrong := xpk.NewFilter(status, "^a")
		var got []string
		for _, s := range states {
			if f.Takes("ab", s) {
				got = append(got, string(s))
			}
		}
		if strings.Join(got, " ") != want || len(wrong) > 0 || f.Takes("ba", workload.Queued) {
			t.Errorf("%s: %v, want %s", status, got, want)
		}
	}
	if _, wrong := xpk.NewFilter("DONE", "("); len(wrong) != 2 {
		t.Errorf("%s", told(wrong))
	}
}

func TestEnvFile(t *testing.T) {
	t.Parallel()
	lookup := func(name string) (string, bool) { return "mine", name == "HERE" }
	got, wrong := xpk.EnvFile("# comment\n\nA=b c\r\nQ=\"x\"\nHERE\nEMPTY=\nEQ=a=b", lookup)
	want := []workload.Variable{{Name: "A", Value: "b c"}, {Name: "Q", Value: `"x"`}, {Name: "HERE", Value: "mine"}, {Name: "EMPTY"}, {Name: "EQ", Value: "a=b"}}
	if diff := cmp.Diff(want, got); diff != "" || wrong != nil {
		t.Errorf("%v\n%s", wrong, diff)
	}
	for text, want := range map[string]string{"A=1\nMISSING": "line 2: the variable MISSING is not set", "1A=secret": "line 1: want NAME=VALUE or NAME"} {
		if _, wrong := xpk.EnvFile(text, lookup); wrong == nil || !strings.Contains(wrong.Text, want) || strings.Contains(wrong.Text, "secret") {
			t.Errorf("%q: %v", text, wrong)
		}
	}
}

// Each flag is refused or ignored, with one sentence.
func TestRefusedFlags(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"private", "storage", "enable-autoprovisioning", "no-enable-mtc", "super-slicing", "use-pathways"} {
		r := xpk.Refused(name)
		if r == nil {
			t.Errorf("--%s is not refused", name)
			continue
		}
		var kind interface{ Fault() fault.Kind }
		if !errors.As(error(r), &kind) || kind.Fault() != fault.Usage || !strings.HasPrefix(r.Error(), "--"+name+" is not served: ") || r.Hint() == "" {
			t.Errorf("--%s: %v (%s)", name, r, r.Hint())
		}
	}
	if r := xpk.Refused("cluster"); r != nil {
		t.Error(r)
	}
	for _, command := range []string{"cluster create", "cluster delete", "cluster list", "workload create", "workload list", "workload delete"} {
		for _, f := range xpk.Ignored(command) {
			if xpk.Refused(f.Name) != nil || f.Why == "" {
				t.Errorf("%s: --%s is refused and ignored", command, f.Name)
			}
		}
	}
}

// XPK's names for the sizes of tpu7x and v5p are known.
func TestEveryTypeByItsTopology(t *testing.T) {
	t.Parallel()
	for _, ty := range tpu.Types() {
		if ty.Generation.GKEAccelerator == "" {
			continue
		}
		got, err := xpk.Type(ty.Generation.Family + "-" + ty.Topology)
		if err != nil || got.Topology != ty.Topology || got.Generation.Name != ty.Generation.Name {
			t.Errorf("%s %s: %s, %v", ty.Name, ty.Topology, got.Name, err)
		}
	}
}
