package xpk

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/gke"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// DefaultBaseImage is the image that gets the files of --script-dir if the command line
// names no image.
const DefaultBaseImage = "python:3.10"

// Workload has the flags of xpk workload create that multihost supports.
type Workload struct {
	Name                string // --workload
	Cluster             string
	Command             string
	TPUType, DeviceType string
	Slices              int
	Image               string // --docker-image or --base-docker-image
	Container           string // --docker-name
	Priority, Scheduler string
	MaxRestarts         int
	RestartOn           string // --restart-on-exit-codes
	TTL, Grace          int
	Env                 []workload.Variable
	PullSecret          string // --docker-image-pull-secret
	DebugLogs           bool
	Parallel            bool // --use-parallel-containers
}

// debugLogs are the variables that XPK sets for --enable-debug-logs.
var debugLogs = []workload.Variable{
	{Name: "TPU_STDERR_LOG_LEVEL", Value: "0"}, {Name: "TPU_MIN_LOG_LEVEL", Value: "0"},
	{Name: "TF_CPP_MIN_LOG_LEVEL", Value: "0"}, {Name: "TPU_VMODULE", Value: "real_program_continuator=1"},
}

// Priorities are XPK's priorities, the lowest first.
var Priorities = []string{"very-low", "low", "medium", "high", "very-high"}

// Spec returns the workload, or the errors of the flags. Like XPK, it does not bind programs to
// a NUMA node.
func (w Workload) Spec() (workload.Spec, []*FlagError) {
	var p problems
	s := workload.Spec{
		Name: w.Name, Namespace: workload.DefaultNamespace, Slices: w.Slices, Command: w.Command, Image: w.Image,
		Queue: workload.DefaultQueue, Priority: w.Priority, Scheduler: w.Scheduler, Container: w.Container,
		MaxRestarts: w.MaxRestarts, TTL: w.TTL, Grace: w.Grace, Env: slices.Clone(w.Env), PullSecret: w.PullSecret,
		Apart: !w.Parallel, NUMA: "off",
	}
	p.cluster(w.Cluster)
	if w.Name == "" {
		p.add("workload", "add --workload=NAME", "which name? --workload is missing")
	}
	s.Type = p.typeOf(w.TPUType, w.DeviceType, "type: multihost workload create NAME --cluster="+w.Cluster+" --num-nodes=1 --resource=nvidia.com/gpu=8")
	if !slices.Contains(Priorities, w.Priority) {
		last := len(Priorities) - 1
		p.add("priority", "", "--priority=%s: it is %s or %s", w.Priority, strings.Join(Priorities[:last], ", "), Priorities[last])
	}
	if w.DebugLogs {
		s.Env = append(slices.Clone(debugLogs), s.Env...)
	}
	s.RestartOn = p.codes(w.RestartOn)
	p.check(s)
	if len(p) == 0 {
		if err := s.Check(); err != nil { // the name is too long for this number of slices
			p.add("workload", strings.Join(fault.Hints(err), "\n"), "--workload: %v", err)
		}
	}
	return s, p
}

// cluster checks --cluster, which every command about workloads needs.
func (p *problems) cluster(name string) {
	if name == "" {
		p.add("cluster", "add --cluster=NAME; multihost xpk cluster list shows those of the project", "which cluster? --cluster is missing")
	} else if err := gke.CheckName(name); err != nil {
		p.add("cluster", "", "--cluster: %v", err)
	}
}

// CheckCluster returns an error if the name of an existing cluster is wrong, or nil.
func CheckCluster(name string) *FlagError {
	var p problems
	if p.cluster(name); len(p) > 0 {
		return p[0]
	}
	return nil
}

// codes reads --restart-on-exit-codes.
func (p *problems) codes(text string) (all []int) {
	const flag = "restart-on-exit-codes"
	for one := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		code, err := strconv.Atoi(strings.TrimSpace(one))
		if err != nil {
			p.add(flag, "", "--%s=%s: want numbers with commas between them, such as 1,2", flag, text)
			return nil
		}
		all = append(all, code)
	}
	return all
}

// check checks the parts of a workload one by one, to find the wrong flag.
func (p *problems) check(s workload.Spec) {
	sound := workload.Spec{Name: "w", Slices: 1, Pods: 1, Command: "true", Image: "i"}
	for _, one := range []struct {
		flag string
		set  func(*workload.Spec)
	}{
		{"num-slices", func(o *workload.Spec) { o.Slices = s.Slices }},
		{"command", func(o *workload.Spec) { o.Command = s.Command }},
		{"docker-name", func(o *workload.Spec) { o.Container = s.Container }},
		{"env", func(o *workload.Spec) { o.Env = s.Env }},
		{"max-restarts", func(o *workload.Spec) { o.MaxRestarts = s.MaxRestarts }},
		{"restart-on-exit-codes", func(o *workload.Spec) { o.RestartOn = s.RestartOn }},
		{"ttl-seconds-after-finished", func(o *workload.Spec) { o.TTL = s.TTL }},
		{"termination-grace-period-seconds", func(o *workload.Spec) { o.Grace = s.Grace }},
	} {
		o := sound
		one.set(&o)
		if err := o.Check(); err != nil {
			p.add(one.flag, strings.Join(fault.Hints(err), "\n"), "--%s: %v", one.flag, err)
		}
	}
	if s.Name == "" {
		return
	}
	o := sound
	o.Name = s.Name
	if err := o.Check(); err != nil {
		p.add("workload", strings.Join(fault.Hints(err), "\n"), "--workload: %v", err)
	}
}

// ResourcesMap returns the name of the ConfigMap in which XPK and multihost record the slices
// of a cluster.
func ResourcesMap(cluster string) string { return cluster + "-resources-configmap" }

// A RoomError reports that a cluster will never have enough slices for a workload.
type RoomError struct {
	Cluster, Type string
	Workers, Has  int // workers of the workload, and nodes of the type in the cluster
}

func (e *RoomError) Error() string {
	if e.Has == 0 {
		return fmt.Sprintf("cluster %q has no slices of type %s", e.Cluster, e.Type)
	}
	return fmt.Sprintf("cluster %q has %d nodes of type %s, and the workload needs %d", e.Cluster, e.Has, e.Type, e.Workers)
}

// Fault returns fault.Usage: with another --tpu-type or --num-slices the workload fits.
func (e *RoomError) Fault() fault.Kind { return fault.Usage }

// Hint says where the numbers come from.
func (e *RoomError) Hint() string {
	return "see what it has with: multihost cluster show " + e.Cluster + "; the number is from the ConfigMap " + ResourcesMap(e.Cluster)
}

// Fits returns a *RoomError if the cluster has too few nodes for a workload. data is from the
// ConfigMap ResourcesMap, and has the number of nodes by accelerator type. If Fits cannot parse
// an entry, it assumes that there are enough nodes.
func Fits(cluster string, data map[string]string, s workload.Spec) error {
	has := 0
	for name, text := range data {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		t, wrong := Type(name)
		if err != nil || wrong != nil {
			return nil
		}
		if same(t, s.Type) {
			has += n
		}
	}
	if need := s.Slices * s.Workers(); has < need {
		return &RoomError{Cluster: cluster, Type: s.Type.Name, Workers: need, Has: has}
	}
	return nil
}

func same(a, b tpu.Type) bool {
	return a.Generation.Name == b.Generation.Name && a.Topology == b.Topology
}

// Statuses are the values of --filter-by-status.
var Statuses = []string{"EVERYTHING", "FINISHED", "RUNNING", "QUEUED", "FAILED", "SUCCESSFUL"}

// A Filter chooses workloads of a list.
type Filter struct {
	Status string         // one of Statuses
	Job    *regexp.Regexp // matches a part of the name; nil: all names
}

// NewFilter reads --filter-by-status and --filter-by-job.
func NewFilter(status, job string) (Filter, []*FlagError) {
	var p problems
	f := Filter{Status: status}
	if last := len(Statuses) - 1; !slices.Contains(Statuses, status) {
		p.add("filter-by-status", "", "--filter-by-status=%s: it is %s or %s", status, strings.Join(Statuses[:last], ", "), Statuses[last])
	}
	if job != "" {
		var err error
		if f.Job, err = regexp.Compile(job); err != nil {
			p.add("filter-by-job", "", "--filter-by-job: %v", err)
		}
	}
	return f, p
}

// Takes reports whether the filter chooses a workload.
func (f Filter) Takes(name string, s workload.State) bool {
	if f.Job != nil && !f.Job.MatchString(name) {
		return false
	}
	switch f.Status {
	case "FINISHED":
		return s == workload.Succeeded || s == workload.Failed
	case "RUNNING":
		return s == workload.Running || s == workload.Starting
	case "QUEUED":
		return s == workload.Queued
	case "FAILED":
		return s == workload.Failed
	case "SUCCESSFUL":
		return s == workload.Succeeded
	}
	return true
}

var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?$`)

// EnvFile reads the text of an --env-file. A line is NAME=VALUE, or NAME for a variable of this
// machine. A value ends at the end of its line, and quotes are part of it. Empty lines and
// lines that begin with "#" are ignored.
func EnvFile(text string, lookup func(name string) (string, bool)) ([]workload.Variable, *FlagError) {
	var all []workload.Variable
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		m := variable.FindStringSubmatch(line)
		if m == nil { // the line may have a secret
			return nil, &FlagError{Flag: "env-file", Text: fmt.Sprintf("--env-file: line %d: want NAME=VALUE or NAME", n+1)}
		}
		v := workload.Variable{Name: m[1], Value: m[2]}
		if !strings.Contains(line, "=") {
			value, is := lookup(v.Name)
			if !is {
				return nil, &FlagError{Flag: "env-file", Text: fmt.Sprintf("--env-file: line %d: the variable %s is not set on this machine", n+1, v.Name), Advice: "type: export " + v.Name + "=VALUE"}
			}
			v.Value = value
		}
		all = append(all, v)
	}
	return all, nil
}
