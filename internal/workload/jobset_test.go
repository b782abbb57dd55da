package workload_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/fault"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

var update = flag.Bool("update", false, "write the golden files")

func spec(t *testing.T, accelerator string, change func(*workload.Spec)) workload.Spec {
	t.Helper()
	s := workload.Spec{
		Name: "w", Slices: 2, Command: "python3 train.py", Image: "example.com/p/train@sha256:0123",
		Queue: workload.DefaultQueue, Priority: workload.DefaultPriority, TTL: workload.DefaultTTL, Grace: workload.DefaultGrace, MaxRestarts: 3,
	}
	if accelerator != "" {
		ty, err := tpu.ParseType(accelerator)
		if err != nil {
			t.Fatal(err)
		}
		s.Type = ty
	}
	if change != nil {
		change(&s)
	}
	return s
}

func made(t *testing.T, s workload.Spec) *jobset.JobSet {
	t.Helper()
	js, err := workload.JobSet(s)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// numbers matches a list of numbers. Indented JSON writes each number on its own line.
var numbers = regexp.MustCompile(`\[[\d,\s]+\]`)

// missing appends the fields of want that got lacks or has with another value.
func missing(path string, want, got any, to []string) []string {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for key, v := range w {
			to = missing(path+"."+key, v, g[key], to)
		}
	case []any:
		g, _ := got.([]any)
		for i, v := range w {
			var one any
			if i < len(g) {
				one = g[i]
			}
			to = missing(fmt.Sprintf("%s[%d]", path, i), v, one, to)
		}
	default:
		if fmt.Sprint(want) != fmt.Sprint(got) {
			to = append(to, fmt.Sprintf("%s: %v, want %v", path, got, want))
		}
	}
	return to
}

func TestEveryFieldOfXPKIsThere(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/xpk.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := yaml.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(made(t, spec(t, "v5litepod-16", nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, line := range missing("", want, got, nil) {
		t.Error(line)
	}
}

func TestTheWholeJobSet(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]workload.Spec{
		"tpu": spec(t, "v5litepod-16", func(s *workload.Spec) {
			s.Labels = map[string]string{"multihost-user": "ann"}
			s.Env = []workload.Variable{{Name: "A", Value: `{"a": "$(HOME) $$"}`}}
			s.AgentImage, s.Preflight, s.NUMA = "example.com/p/agent@sha256:4567", "apply", "preferred"
		}),
		"tpu7x": spec(t, "tpu7x-128", func(s *workload.Spec) { s.PlacementPolicy = "tpu7x-128-4x4x4-placement-policy" }),
		"gpu": spec(t, "", func(s *workload.Spec) {
			s.Pods, s.Resources = 2, []workload.Resource{{Name: "nvidia.com/gpu", Quantity: "8"}, {Name: "memory", Quantity: "64Gi"}}
			s.NodeSelector = map[string]string{"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
			s.Queue, s.Priority, s.PodNetwork, s.Unprivileged, s.TTL = "", "", true, true, -1
			s.PullSecret, s.Account, s.Namespace = "pull", "trainer", "team"
		}),
	} {
		got, err := json.MarshalIndent(made(t, s), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(numbers.ReplaceAllFunc(got, func(list []byte) []byte { return bytes.Join(bytes.Fields(list), []byte(" ")) }), '\n')
		path := "testdata/" + name + ".json"
		if *update {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (write it with -update):\n%s", name, diff)
		}
	}
}

// The disruption rule comes first, because a program that exits with 1 when its node shuts down
// has not failed by itself.
func TestWhatRestartsAWorkload(t *testing.T) {
	t.Parallel()
	rules := made(t, spec(t, "v5litepod-16", func(s *workload.Spec) { s.RestartOn = []int{1, 42, 3} })).Spec.ReplicatedJobs[0].Template.Spec.PodFailurePolicy.Rules
	if len(rules) != 2 || rules[0].Action != batchv1.PodFailurePolicyActionCount || rules[0].OnPodConditions[0].Type != corev1.DisruptionTarget {
		t.Fatalf("rules %+v", rules)
	}
	codes := rules[1].OnExitCodes
	if rules[1].Action != batchv1.PodFailurePolicyActionFailJob || codes.Operator != batchv1.PodFailurePolicyOnExitCodesOpNotIn || !slices.IsSorted(codes.Values) || len(codes.Values) != len(slices.Compact(slices.Clone(codes.Values))) {
		t.Errorf("rule %+v", rules[1])
	}
	for code := range 256 {
		restarts := slices.Contains(codes.Values, int32(code))
		if want := code == 1 || code == 3 || code == 42 || code >= 127; restarts != want {
			t.Errorf("exit code %d restarts: %v, want %v", code, restarts, want)
		}
	}
}

// expand does to a text what Kubernetes documents for arguments and values of variables.
func expand(text string, vars map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		switch next := text[i+1]; next {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			if end := strings.IndexByte(text[i:], ')'); end > 0 {
				if v, ok := vars[text[i+2:i+end]]; ok {
					b.WriteString(v)
					i += end
					continue
				}
			}
			b.WriteByte('$')
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

func TestTheCommandArrivesAsItWasTyped(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"python3 train.py", "echo $$ $(HOME) ${A} $", "a\nb 'c' \"d\" # e", `x=$((1+2)); echo "$x" &`, "$$$$(A)$$(A)",
	} {
		js := made(t, spec(t, "v5litepod-16", func(s *workload.Spec) {
			s.Command, s.Env = text, []workload.Variable{{Name: "V", Value: "old"}, {Name: "V", Value: text}}
		}))
		c := js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
		vars := map[string]string{"HOME": "/root", "A": "a"}
		if got := expand(c.Command[len(c.Command)-1], vars); got != text {
			t.Errorf("command %q arrives as %q", text, got)
		}
		last := c.Env[len(c.Env)-1]
		if got := expand(last.Value, vars); last.Name != "V" || got != text || c.Env[len(c.Env)-2].Name == "V" {
			t.Errorf("value %q arrives as %q in %+v", text, got, c.Env)
		}
	}
}

func TestOneClearErrorForEachFault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		accelerator string
		change      func(*workload.Spec)
		want, hint  string
	}{
		{"v5litepod-16", func(s *workload.Spec) { s.Name = "My_Run" }, `workload name "My_Run" is not allowed: it begins with a letter and has only lower-case letters, digits and single words joined by "-"`, "choose another name, such as: my-run"},
		{"v5litepod-16", func(s *workload.Spec) { s.Name = "7" }, `workload name "7" is not allowed: it begins with a letter and has only lower-case letters, digits and single words joined by "-"`, "choose another name, such as: w-7"},
		{"v5litepod-16", func(s *workload.Spec) { s.Name = strings.Repeat("a", 44) }, `workload name "` + strings.Repeat("a", 44) + `" has 44 characters: with 2 slices of 4 workers it can have 43, because the names of pods have at most 63`, "choose a shorter name, such as: " + strings.Repeat("a", 43)},
		{"v5litepod-256", func(s *workload.Spec) { s.Name, s.Slices = strings.Repeat("a", 42), 11 }, `workload name "` + strings.Repeat("a", 42) + `" has 42 characters: with 11 slices of 64 workers it can have 41, because the names of pods have at most 63`, "choose a shorter name, such as: " + strings.Repeat("a", 41)},
		{"v5litepod-16", func(s *workload.Spec) { s.Slices = 0 }, "a workload needs at least one slice, not 0", "type: --num-slices=1"},
		{"v5litepod-2", nil, `choose nodes of "v5litepod-2": Google Kubernetes Engine has no node pools for it`, "node pools have slices of 1 chip, or of 4 chips and more"},
		{"", nil, "a workload without a TPU type needs the number of its pods", "name the type of the slices, or the number of pods: --tpu-type=v5litepod-16, or --num-nodes=2 --resource=nvidia.com/gpu=8"},
		{"v5litepod-16", func(s *workload.Spec) { s.Pods = 3 }, "a slice of v5litepod-16 has 4 workers: the number of pods cannot be chosen", "leave out --num-nodes"},
		{"v5litepod-16", func(s *workload.Spec) { s.Command = " " }, "a workload needs a command", "type: --command='python3 train.py'"},
		{"v5litepod-16", func(s *workload.Spec) { s.Image = "" }, "a workload needs an image", "name one that has all of the program, or one that gets your code: --docker-image=IMAGE, or --base-docker-image=IMAGE --script-dir=DIR"},
		{"v5litepod-16", func(s *workload.Spec) { s.Env = []workload.Variable{{Name: "MULTIHOST_RUN"}} }, `environment variable "MULTIHOST_RUN" belongs to multihost, which sets it`, "choose another name"},
		{"v5litepod-16", func(s *workload.Spec) { s.Env = []workload.Variable{{Name: "A=B"}} }, `environment variable "A=B" is not possible`, "type: --env=NAME=VALUE"},
		{"v5litepod-16", func(s *workload.Spec) { s.RestartOn = []int{0} }, "exit code 0 cannot restart a workload: exit codes of failures are 1 to 255", "type: --restart-on-exit-codes=1,2"},
		{"v5litepod-16", func(s *workload.Spec) { s.MaxRestarts = -1 }, "a workload cannot restart -1 times", "type: --max-restarts=0"},
		{"v5litepod-16", func(s *workload.Spec) { s.NUMA = "all" }, "--numa=all: it is bind, preferred or off", "type: --numa=off"},
		{"v5litepod-16", func(s *workload.Spec) { s.Grace = -1 }, "a grace period cannot be -1 seconds", "type: --termination-grace-period-seconds=30"},
		{"v5litepod-16", func(s *workload.Spec) { s.Priority = "Very High" }, `priority "Very High" is not a name that Kubernetes allows: at most 63 lower-case letters, digits and "-"`, "correct the name"},
		{"v5litepod-16", func(s *workload.Spec) { s.Resources = []workload.Resource{{"google.com/tpu", "4"}} }, "the type of the slices says how many chips a worker has", "leave out --resource=google.com/tpu"},
		{"v5litepod-16", func(s *workload.Spec) { s.Resources = []workload.Resource{{"cpu", "many"}} }, `resource "many" of "cpu" is not possible: a quantity is a number above 0, such as 8 or 64Gi`, "type: --resource=nvidia.com/gpu=8"},
		{"v5litepod-16", func(s *workload.Spec) { s.NodeSelector = map[string]string{"a b": "c"} }, `node selector: "a b" is no name of a label`, "type: --node-selector=cloud.google.com/gke-accelerator=nvidia-h100-80gb"},
		{"v5litepod-16", func(s *workload.Spec) { s.NodeSelector = map[string]string{"a/b": "c/d"} }, `node selector: "c/d" is no value of the label a/b`, "type: --node-selector=cloud.google.com/gke-accelerator=nvidia-h100-80gb"},
		{"v5litepod-16", func(s *workload.Spec) {
			s.NodeSelector = map[string]string{"cloud.google.com/gke-tpu-topology": "4x4"}
		}, "the type of the slices says which cloud.google.com/gke-tpu-topology the nodes have", "leave out --node-selector=cloud.google.com/gke-tpu-topology"},
	} {
		_, err := workload.JobSet(spec(t, tt.accelerator, tt.change))
		if err == nil || err.Error() != tt.want || fault.Of(err) != fault.Usage {
			t.Errorf("error %v of kind %v, want %s", err, fault.Of(err), tt.want)
			continue
		}
		if got := fault.Hints(err); len(got) != 1 || got[0] != tt.hint {
			t.Errorf("%v: hints %q, want %q", err, got, tt.hint)
		}
	}
}

// The agent binds the command to a NUMA node only where that is advised.
func TestWhatTheAgentIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		accelerator string
		change      func(*workload.Spec)
		want        string
	}{
		{"v5litepod-16", nil, "/multihost-agent pod run --"},
		{"v5p-16", nil, "/multihost-agent pod run --numa=bind --"},
		{"v5p-16", func(s *workload.Spec) { s.NUMA = "off" }, "/multihost-agent pod run --"},
		{"tpu7x-16", func(s *workload.Spec) { s.Preflight = "require" }, "/multihost-agent pod run --preflight=/multihost-preflight.sh --preflight-mode=require --"},
		{"v4-16", func(s *workload.Spec) { s.Preflight, s.AgentImage = "apply", "a" }, "/multihost/multihost-agent pod run --preflight=/multihost/multihost-preflight.sh --preflight-mode=apply --numa=bind --"},
	} {
		c := made(t, spec(t, tt.accelerator, tt.change)).Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
		if got := strings.Join(c.Command, " "); got != tt.want+" bash -c python3 train.py" {
			t.Errorf("%s: %s, want %s", tt.accelerator, got, tt.want)
		}
	}
}

// The pods of the workload with the longest allowed name have names of 63 characters.
func TestTheLongestName(t *testing.T) {
	t.Parallel()
	js := made(t, spec(t, "v5litepod-256", func(s *workload.Spec) { s.Name, s.Slices = strings.Repeat("a", 42), 10 }))
	if pod := js.Name + "-slice-job-9-63-abcde"; len(pod) != 63 {
		t.Errorf("pod %s has %d characters", pod, len(pod))
	}
}

func TestResourcesAreRead(t *testing.T) {
	t.Parallel()
	if r, err := workload.ParseResource("nvidia.com/gpu=8"); err != nil || r != (workload.Resource{Name: "nvidia.com/gpu", Quantity: "8"}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{"nvidia.com/gpu", "=8", "cpu=0", "cpu=-1", "cpu="} {
		if _, err := workload.ParseResource(text); fault.Of(err) != fault.Usage {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSelectorsAreRead(t *testing.T) {
	t.Parallel()
	got, err := workload.ParseSelector([]string{"a=b", "example.com/c=d=e", "f="})
	if want := (map[string]string{"a": "b", "example.com/c": "d=e", "f": ""}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for texts, want := range map[string]string{
		"a":       `node selector "a" has no value`,
		"a=b a=c": `node selector "a=c": a node cannot also have a=b`,
	} {
		if _, err := workload.ParseSelector(strings.Fields(texts)); fault.Of(err) != fault.Usage || err.Error() != want {
			t.Errorf("%q: %v, want %s", texts, err, want)
		}
	}
}
