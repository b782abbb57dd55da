// Package workload makes the JobSet of a workload for a Kubernetes cluster. From the cluster's
// objects it finds the attempts of a workload, the pod that failed first, and why the workload
// waits. It does no I/O.
//
// A workload has slices, and a slice has workers. Each slice is a Job of the JobSet, and each
// worker a pod. The label job-index has the number of the slice, and job-completion-index the
// number of the worker.
//
// # Decisions
//
//   - Names, labels, queue, priorities and policies are those of XPK, so that both tools list,
//     wait for and delete each other's workloads.
//   - The agent of multihost is process 1 of each container. It gets the command as one
//     argument, so no text of the command is ever part of a script of ours.
//   - Kubernetes replaces $(NAME) and $$ in arguments and in values of variables. This
//     package doubles each dollar sign, so that the program gets what the user typed.
//   - A pod that the cluster takes away counts as a failure that a restart repairs,
//     whatever its exit code. This rule comes before those about exit codes, because a
//     program may end with 1 when it is told to stop.
//   - The number of restarts does not identify an attempt: if Kueue takes a workload's quota
//     and gives it back, the number stays. Therefore a new attempt also begins when a worker
//     gets another pod after all pods of the attempt have ended.
package workload

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// Defaults of a Spec, the same as XPK's.
const (
	DefaultNamespace = "default"
	DefaultQueue     = "multislice-queue"
	DefaultPriority  = "medium"
	DefaultContainer = "jax-tpu"
	DefaultScheduler = "default-scheduler"
	DefaultTTL       = 43200 // seconds that a workload stays after its end
	DefaultGrace     = 30    // seconds between SIGTERM and SIGKILL
)

// JobName is the name of the only replicated job of a workload. The names of Jobs and pods
// contain it.
const JobName = "slice-job"

// LabelWorkload is the label of JobSets and pods with the name of the workload. XPK sets
// it, too.
const LabelWorkload = "xpk.google.com/workload"

// LabelQueue is the label by which Kueue finds the queue of a JobSet.
const LabelQueue = "kueue.x-k8s.io/queue-name"

// A Spec describes a workload. Name, Slices, Command, Image and either Type or Pods are
// required.
type Spec struct {
	Name      string
	Namespace string // "": DefaultNamespace
	Slices    int
	Labels    map[string]string // more labels of the JobSet and its pods

	Type            tpu.Type // type of the slices; zero: pods without TPU
	PlacementPolicy string   // placement policy of the node pools, for tpu7x; "": any
	Apart           bool     // give each worker with two or more chips only one container, even where the default is two

	Pods         int               // number of pods of a slice without TPU
	Resources    []Resource        // limits of each container
	NodeSelector map[string]string // labels that a node must have, besides those of Type

	Command string // a command line for bash
	Env     []Variable
	Image   string
	// AgentImage is an image with only the agent, from which an init container copies the
	// agent. "" means that Image has the agent, as package image adds it.
	AgentImage string
	Preflight  string // mode of the preflight: apply, require or check; "": none. Its script is in the agent's image
	NUMA       string // bind, preferred or off, as in --numa; "": bind or off, whichever is advised for Type
	PullSecret string // name of the secret for pulling the images; "": none
	Account    string // service account of the pods; "": the namespace's default

	Queue     string // queue of Kueue; "": none
	Priority  string // name of a PriorityClass; "": the cluster's default
	Scheduler string // "": DefaultScheduler
	Container string // name of the container; "": DefaultContainer

	MaxRestarts int
	RestartOn   []int // exit codes that restart the workload, besides RestartCodes
	TTL         int   // seconds from the end to the deletion of the JobSet; negative: never
	Grace       int   // seconds between SIGTERM and SIGKILL

	PodNetwork   bool // give pods a network of their own, not their node's
	Unprivileged bool // do not let the pods change settings of their node
}

// A Resource is something that a container needs, such as nvidia.com/gpu, and how much.
type Resource struct{ Name, Quantity string }

// A Variable is an environment variable.
type Variable struct{ Name, Value string }

// ParseResource reads NAME=QUANTITY. The error is a *SpecError.
func ParseResource(text string) (Resource, error) {
	name, quantity, ok := strings.Cut(text, "=")
	r := Resource{name, quantity}
	if !ok {
		return r, &SpecError{Text: fmt.Sprintf("resource %q has no quantity", text), Advice: "type: --resource=nvidia.com/gpu=8"}
	}
	_, err := r.quantity()
	return r, err
}

// ParseSelector reads labels that a node must have, each as KEY=VALUE. The error is a
// *SpecError.
func ParseSelector(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if was, twice := labels[key]; twice {
			return nil, &SpecError{fmt.Sprintf("node selector %q: a node cannot also have %s=%s", text, key, was), "give each label once"}
		}
		if !ok {
			return nil, &SpecError{fmt.Sprintf("node selector %q has no value", text), "type: --node-selector=cloud.google.com/gke-accelerator=nvidia-h100-80gb"}
		}
		labels[key] = value
	}
	return labels, nil
}

// RestartCodes returns the exit codes that restart every workload with MaxRestarts above 0. A
// program asks for a restart with 42. Codes from 127 mean a missing command or a signal.
func RestartCodes() []int {
	codes := []int{42}
	for code := 127; code <= 255; code++ {
		codes = append(codes, code)
	}
	return codes
}

// A SpecError says what is wrong with a Spec.
type SpecError struct {
	Text   string
	Advice string // what to type
}

func (e *SpecError) Error() string { return e.Text }

// Fault returns fault.Usage.
func (e *SpecError) Fault() fault.Kind { return fault.Usage }

// Hint returns the advice.
func (e *SpecError) Hint() string { return e.Advice }

// longestName limits the names of Jobs and pods, and the values of labels, in characters.
const longestName = 63

// podSuffix stands for the random end of a pod's name.
const podSuffix = "-xxxxx"

var namePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// Workers returns the number of pods of a slice.
func (s Spec) Workers() int {
	if s.Type.Name == "" {
		return s.Pods
	}
	n, err := tpu.NodesOf(s.Type)
	if err != nil {
		return 0 // reported by Check
	}
	return n.Count
}

// SliceName returns the name of a slice of a workload.
func SliceName(workload string, slice int) string { return fmt.Sprintf("%s-%d", workload, slice) }

// Host returns the name under which the pods of a workload reach a worker.
func (s Spec) Host(w tpu.WorkerID) string {
	return fmt.Sprintf("%s-%s-%d-%d.%s", s.Name, JobName, w.Slice, w.Worker, s.Name)
}

// Check returns what is wrong with the Spec, a *SpecError or a *tpu.NodesError, or nil.
func (s Spec) Check() error {
	if s.Type.Name != "" {
		if _, err := tpu.NodesOf(s.Type); err != nil {
			return err
		}
	}
	for _, check := range []func() error{s.checkSize, s.checkName, s.checkCommand, s.checkEnv, s.checkResources, s.checkSelector, s.checkEnd} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s Spec) checkSize() error {
	switch {
	case s.Slices < 1:
		return &SpecError{fmt.Sprintf("a workload needs at least one slice, not %d", s.Slices), "type: --num-slices=1"}
	case s.Type.Name == "" && s.Pods < 1:
		return &SpecError{"a workload without a TPU type needs the number of its pods", "name the type of the slices, or the number of pods: --tpu-type=v5litepod-16, or --num-nodes=2 --resource=nvidia.com/gpu=8"}
	case s.Type.Name != "" && s.Pods > 0:
		return &SpecError{fmt.Sprintf("a slice of %s has %d workers: the number of pods cannot be chosen", s.Type.Name, s.Workers()), "leave out --num-nodes"}
	}
	return nil
}

func (s Spec) checkName() error {
	if !namePattern.MatchString(s.Name) {
		return &SpecError{fmt.Sprintf("workload name %q is not allowed: it begins with a letter and has only lower-case letters, digits and single words joined by \"-\"", s.Name), "choose another name, such as: " + suggestName(s.Name)}
	}
	pod := fmt.Sprintf("-%s-%d-%d%s", JobName, s.Slices-1, s.Workers()-1, podSuffix)
	if most := longestName - len(pod); len(s.Name) > most {
		return &SpecError{fmt.Sprintf("workload name %q has %d characters: with %d slices of %d workers it can have %d, because the names of pods have at most %d", s.Name, len(s.Name), s.Slices, s.Workers(), most, longestName), "choose a shorter name, such as: " + strings.TrimRight(s.Name[:most], "-")}
	}
	for _, named := range []struct{ what, name string }{{"namespace", s.Namespace}, {"queue", s.Queue}, {"priority", s.Priority}, {"container", s.Container}} {
		if named.name != "" && (!otherName.MatchString(named.name) || len(named.name) > longestName) {
			return &SpecError{fmt.Sprintf("%s %q is not a name that Kubernetes allows: at most %d lower-case letters, digits and \"-\"", named.what, named.name, longestName), "correct the name"}
		}
	}
	return nil
}

var otherName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)

// suggestName makes an allowed name of a text.
func suggestName(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String(), "-")
	if name == "" || name[0] < 'a' {
		name = strings.TrimRight("w-"+name, "-")
	}
	return name
}

func (s Spec) checkCommand() error {
	switch {
	case strings.TrimSpace(s.Command) == "":
		return &SpecError{"a workload needs a command", "type: --command='python3 train.py'"}
	case strings.ContainsRune(s.Command, 0):
		return &SpecError{"the command contains a NUL byte", "remove it from the command"}
	case s.Image == "":
		return &SpecError{"a workload needs an image", "name one that has all of the program, or one that gets your code: --docker-image=IMAGE, or --base-docker-image=IMAGE --script-dir=DIR"}
	}
	return nil
}

func (s Spec) checkEnv() error {
	for _, v := range s.Env {
		switch {
		case v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.ContainsRune(v.Value, 0):
			return &SpecError{fmt.Sprintf("environment variable %q is not possible", v.Name), "type: --env=NAME=VALUE"}
		case strings.HasPrefix(v.Name, "MULTIHOST_"):
			return &SpecError{fmt.Sprintf("environment variable %q belongs to multihost, which sets it", v.Name), "choose another name"}
		}
	}
	return nil
}

func (s Spec) checkResources() error {
	seen := map[string]bool{}
	for _, r := range s.Resources {
		if _, err := r.quantity(); err != nil {
			return err
		}
		switch {
		case seen[r.Name]:
			return &SpecError{fmt.Sprintf("resource %q is given twice", r.Name), "give each resource once"}
		case r.Name == ChipResource:
			return &SpecError{"the type of the slices says how many chips a worker has", "leave out --resource=" + ChipResource}
		}
		seen[r.Name] = true
	}
	return nil
}

// checkSelector checks NodeSelector by the rules of the API server. The server's own error would
// name the pod and not the flag.
func (s Spec) checkSelector() error {
	const advice = "type: --node-selector=cloud.google.com/gke-accelerator=nvidia-h100-80gb"
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return &SpecError{fmt.Sprintf("node selector: %q is no name of a label", key), advice}
		}
		if wrong := validation.IsValidLabelValue(s.NodeSelector[key]); len(wrong) > 0 {
			return &SpecError{fmt.Sprintf("node selector: %q is no value of the label %s", s.NodeSelector[key], key), advice}
		}
		if s.Type.Name != "" && (key == labelAccelerator || key == labelTopology) {
			return &SpecError{fmt.Sprintf("the type of the slices says which %s the nodes have", key), "leave out --node-selector=" + key}
		}
	}
	return nil
}

func (s Spec) checkEnd() error {
	if !slices.Contains([]string{"", "bind", "preferred", "off"}, s.NUMA) {
		return &SpecError{fmt.Sprintf("--numa=%s: it is bind, preferred or off", s.NUMA), "type: --numa=off"}
	}
	for _, code := range s.RestartOn {
		if code < 1 || code > 255 {
			return &SpecError{fmt.Sprintf("exit code %d cannot restart a workload: exit codes of failures are 1 to 255", code), "type: --restart-on-exit-codes=1,2"}
		}
	}
	switch {
	case s.MaxRestarts < 0 || s.MaxRestarts > math.MaxInt32:
		return &SpecError{fmt.Sprintf("a workload cannot restart %d times", s.MaxRestarts), "type: --max-restarts=0"}
	case s.TTL > math.MaxInt32:
		return &SpecError{fmt.Sprintf("a workload cannot stay for %d seconds", s.TTL), fmt.Sprintf("type: --ttl-seconds-after-finished=%d", DefaultTTL)}
	case s.Grace < 0:
		return &SpecError{fmt.Sprintf("a grace period cannot be %d seconds", s.Grace), fmt.Sprintf("type: --termination-grace-period-seconds=%d", DefaultGrace)}
	}
	return nil
}

// restarting returns the exit codes that restart the workload, sorted.
func (s Spec) restarting() []int32 {
	var codes []int32
	for _, code := range append(RestartCodes(), s.RestartOn...) {
		codes = append(codes, int32(code))
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
