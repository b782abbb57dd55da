package cloud

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/shlex"

	"multihost/internal/sim/worker"
	"multihost/internal/tpu"
)

// A Fault is a simulated failure. Faults says which fields each fault uses, and what they
// mean. All other fields must be zero. The name of a resource may be a pattern in which *
// matches any text. "" matches every resource.
type Fault struct {
	Name string `json:"name"`

	QR      string `json:"qr,omitempty"`
	Node    string `json:"node,omitempty"`
	Group   string `json:"group,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Pod     string `json:"pod,omitempty"`
	Worker  string `json:"worker,omitempty"`
	Zone    string `json:"zone,omitempty"`
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Count   int    `json:"n,omitempty"` // how often; 0: once; AllCalls: until cleared
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	RetryAfter time.Duration `json:"retry_after,omitempty"`
	Delay      time.Duration `json:"delay,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"`

	State     string `json:"state,omitempty"`
	Initiator string `json:"initiator,omitempty"`
	Vanish    bool   `json:"vanish,omitempty"`
	Cores     int    `json:"cores,omitempty"`
	Type      string `json:"type,omitempty"`

	Service    string `json:"service,omitempty"`
	Permission string `json:"permission,omitempty"`
	Account    string `json:"account,omitempty"`

	Mode    string `json:"mode,omitempty"`
	Setting string `json:"setting,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
}

// AllCalls as Fault.Count keeps a fault active until it is cleared. Its text form is n=all.
const AllCalls = -1

// A FaultDoc describes one fault for help texts.
type FaultDoc struct {
	Name     string
	Args     []string // its words KEY=…, which FaultArgs explains
	Required []string
	What     string
}

// Faults lists every fault, in the order of help.
func Faults() []FaultDoc {
	workers := []string{"node", "worker"}
	with := func(args ...string) []string { return append(slices.Clone(workers), args...) }
	call := []string{"method", "path", "n"}
	return []FaultDoc{
		{Name: "no-capacity", Args: []string{"qr", "group"}, What: "requests stay WAITING_FOR_RESOURCES, groups get no VMs, and node pools end in state ERROR, until the fault is cleared; with only qr=, it affects requests, with only group=, groups and node pools"},
		{Name: "qr-failed", Args: []string{"qr", "state", "message"}, What: "a queued resource goes FAILED, at once or when it reaches STATE (WAITING_FOR_RESOURCES)"},
		{Name: "qr-suspended", Args: []string{"qr", "state", "initiator"}, What: "a queued resource goes SUSPENDING, SUSPENDED, at once or when it reaches STATE (PROVISIONING)"},
		{Name: "delete-stuck", Args: []string{"qr", "n"}, What: "deleting a FAILED or SUSPENDED queued resource reports success and leaves it there"},
		{Name: "quota", Args: []string{"zone", "cores"}, Required: []string{"cores"}, What: "sets how many TensorCores (chips for v5litepod and v6e) of a generation a zone may hold; 0: no limit"},
		{Name: "preempt", Args: []string{"node", "vanish"}, Required: []string{"node"}, What: "a node is PREEMPTED, its queued resource SUSPENDED; with vanish=true the node is gone from the list"},
		{Name: "maintenance", Args: []string{"node"}, Required: []string{"node"}, What: "a node reports UNHEALTHY_MAINTENANCE and maintenance under way"},
		{Name: "foreign-node", Args: []string{"node", "type", "zone"}, Required: []string{"node", "type"}, What: "a new node appears that no queued resource made"},
		{Name: "group-quota", Args: []string{"group"}, What: "a managed instance group waits for its VMs with QUOTA_EXCEEDED until the fault is cleared"},
		{Name: "group-error", Args: []string{"group", "message", "n"}, What: "the VMs of a group end in STAGING with INTERNAL_ERROR"},
		{Name: "group-stuck", Args: []string{"group", "worker"}, What: "a VM of a group stays STAGING until the fault is cleared"},
		{Name: "group-no-boot", Args: []string{"group", "worker", "message"}, What: "a VM of a group is RUNNING and does not boot until the fault is cleared; its serial console ends with MESSAGE (a kernel panic)"},
		{Name: "group-topology", Args: []string{"group", "state"}, Required: []string{"state"}, What: "the topology of a slice shows STATE (ACTIVE_DEGRADED, INCOMPLETE, FAILED, …) until the fault is cleared"},
		{Name: "group-preempt", Args: []string{"group"}, Required: []string{"group"}, What: "the VMs of a group are preempted"},
		{Name: "group-host-error", Args: []string{"group"}, Required: []string{"group"}, What: "a host fails: all VMs of the slice restart together, or stay TERMINATED without automaticRestart"},
		{Name: "group-no-recovery", Args: []string{"group"}, What: "a slice whose host has failed stays REACTIVATING until the fault is cleared"},
		{Name: "group-run-ends", Args: []string{"group"}, Required: []string{"group"}, What: "the maximum run duration of the VMs of a group has passed"},
		{Name: "group-maintenance", Args: []string{"group"}, Required: []string{"group"}, What: "the VMs of a group report maintenance under way, until their host fails"},
		{Name: "no-guest-attributes", Args: []string{"node"}, What: "guest attributes are switched off, as by an organization policy"},
		{Name: "api-error", Args: append([]string{"code", "message", "retry-after"}, call...), Required: []string{"code"}, What: "calls are answered with an HTTP status"},
		{Name: "expired-token", Args: call, What: "calls are answered with 401"},
		{Name: "login-ended", What: "the user's credentials are refused until multihost sim login; for sim up --login"},
		{Name: "api-disabled", Args: []string{"service"}, Required: []string{"service"}, What: "an API of the project is not enabled, until gcloud services enable does that"},
		{Name: "permission-denied", Args: []string{"permission", "account", "n"}, Required: []string{"permission"}, What: "an account lacks a permission, such as storage.objects.get or tpu.nodes.delete (of nodes and queued resources)"},
		{Name: "slow-api", Args: append([]string{"delay"}, call...), Required: []string{"delay"}, What: "calls take longer"},
		{Name: "drop-request", Args: call, What: "the connection is cut and nothing is done"},
		{Name: "drop-reply", Args: call, What: "the simulator carries out the request, then cuts the connection before it answers"},
		{Name: "slow-operations", Args: []string{"delay"}, Required: []string{"delay"}, What: "every change of state takes longer"},
		{Name: "op-error", Args: []string{"code", "message", "n"}, What: "a TPU create or update operation ends with an error (code is the HTTP status, 400)"},
		{Name: "compute-op-error", Args: []string{"message", "n"}, What: "a compute operation ends DONE with error set and no httpErrorStatusCode"},
		{Name: "worker-unreachable", Args: with("mode", "duration"), What: "a worker refuses connections (mode=refuse) or does not answer (mode=hang)"},
		{Name: "worker-freeze", Args: with("duration"), What: "a worker accepts connections and says nothing"},
		{Name: "worker-slow", Args: with("mode", "duration"), Required: []string{"duration"}, What: "each handshake (mode=handshake) or each start of a command (mode=exec) takes longer"},
		{Name: "worker-cut", Args: with("mode", "bytes", "n"), Required: []string{"bytes"}, What: "connections are reset after so many bytes in (mode=in) or out (mode=out)"},
		{Name: "worker-refuse-auth", Args: with("duration", "n"), What: "no key is accepted for a time or for N connections"},
		{Name: "worker-reboot", Args: with("mode", "duration"), What: "a worker runs its shutdown script and reboots, once; with mode=power it reboots without the script"},
		{Name: "worker-no-sudo", Args: with("mode"), What: "sudo asks for a password, or is not there (mode=missing; netns backend only)"},
		{Name: "worker-disk-space", Args: with("mode", "bytes"), What: "no more than BYTES (0) are free for homes (mode=home, the default) or in /tmp (mode=tmp); netns backend only"},
		{Name: "worker-read-only", Args: workers, What: "homes cannot be written; netns backend only"},
		{Name: "worker-clock", Args: with("mode", "duration"), Required: []string{"duration"}, What: "the clock is ahead (mode=ahead, the default) or behind (mode=behind), for programs that start after that; needs libfaketime"},
		{Name: "worker-startup", Args: with("mode", "setting"), What: "a start-up file prints (mode=print), exits (mode=exit) or waits for input (mode=hang): ~/.bashrc; netns backend: also setting=/etc/bash.bashrc or ~/.ssh/rc"},
		{Name: "worker-banner", Args: workers, What: "sshd shows a banner before each login"},
		{Name: "worker-shell", Args: with("setting"), Required: []string{"setting"}, What: "the user has another login shell (setting=/usr/sbin/nologin)"},
		{Name: "worker-missing", Args: with("setting"), Required: []string{"setting"}, What: "a sysctl key, a path below /proc/sys, /sys or /dev, or a module does not exist; process backend: also numactl or ethtool, until apt-get installs it"},
		{Name: "worker-denied", Args: with("setting"), Required: []string{"setting"}, What: "a sysctl key, ip-route or ethtool cannot be changed"},
		{Name: "worker-fixed", Args: with("setting"), Required: []string{"setting"}, What: "an ethtool feature cannot be changed"},
		{Name: "worker-rotate-host-keys", Args: workers, What: "a worker has new host keys, once"},
		{Name: "worker-kill", Args: with("setting"), What: "a signal (setting=TERM, default KILL) to every process of a worker, once"},
		{Name: "pod-kill", Args: []string{"cluster", "pod", "mode"}, Required: []string{"pod"}, What: "process 1 of a pod is killed, once; with mode=oom because its memory is used up"},
		{Name: "pod-stuck", Args: []string{"cluster", "pod"}, What: "deleted pods stay in Terminating until the fault is cleared"},
		{Name: "cluster-node-gone", Args: []string{"cluster", "node"}, Required: []string{"node"}, What: "a node of a cluster is gone with its pods, once"},
		{Name: "cluster-exec-cut", Args: []string{"cluster"}, What: "the connections of all commands in pods are cut, once; the commands run on"},
		{Name: "cluster-api-error", Args: []string{"cluster", "code", "n"}, Required: []string{"code"}, What: "the next calls of the Kubernetes API (n=1) are answered with an HTTP status"},
		{Name: "cluster-away", Args: []string{"cluster"}, What: "the Kubernetes API is away until the fault is cleared; pods run on"},
	}
}

// A FaultArg is one KEY=VALUE of a fault's text form.
type FaultArg struct {
	Key, What string
	get       func(*Fault) string
	set       func(*Fault, string) error
}

// FaultArgs lists every argument that faults take.
func FaultArgs() []FaultArg {
	return []FaultArg{
		textArg("qr", "queued resource id, or a pattern", func(f *Fault) *string { return &f.QR }),
		textArg("node", "node id, or a pattern; for faults of workers also the name of a managed instance group", func(f *Fault) *string { return &f.Node }),
		textArg("group", "name of a managed instance group or of a node pool, or a pattern", func(f *Fault) *string { return &f.Group }),
		textArg("cluster", "name of a GKE cluster, or a pattern; every cluster when left out", func(f *Fault) *string { return &f.Cluster }),
		textArg("pod", "name of a pod, or a pattern", func(f *Fault) *string { return &f.Pod }),
		textArg("worker", "worker number; all workers when left out", func(f *Fault) *string { return &f.Worker }),
		textArg("zone", "zone; the simulator's own when left out", func(f *Fault) *string { return &f.Zone }),
		textArg("method", "HTTP method; any when left out", func(f *Fault) *string { return &f.Method }),
		textArg("path", "pattern for the path, such as */queuedResources*; any when left out", func(f *Fault) *string { return &f.Path }),
		{"n", "how many times, or all; once when left out", func(f *Fault) string { return countText(f.Count) }, setCount},
		intArg("code", "HTTP status", func(f *Fault) *int { return &f.Code }),
		textArg("message", "text of the error", func(f *Fault) *string { return &f.Message }),
		durationArg("retry-after", "value of the Retry-After header, in whole seconds", func(f *Fault) *time.Duration { return &f.RetryAfter }),
		durationArg("delay", "how much longer", func(f *Fault) *time.Duration { return &f.Delay }),
		durationArg("duration", "for how long; until cleared when left out", func(f *Fault) *time.Duration { return &f.Duration }),
		textArg("state", "state of the queued resource or topology", func(f *Fault) *string { return &f.State }),
		textArg("initiator", "SERVICE (default) or USER", func(f *Fault) *string { return &f.Initiator }),
		{"vanish", "true or false", func(f *Fault) string { return boolText(f.Vanish) }, setVanish},
		{"cores", "a number", func(f *Fault) string { return strconv.Itoa(f.Cores) }, func(f *Fault, v string) error { return setInt(&f.Cores, v) }},
		textArg("type", "accelerator type", func(f *Fault) *string { return &f.Type }),
		textArg("service", "name of an API, such as tpu.googleapis.com", func(f *Fault) *string { return &f.Service }),
		textArg("permission", "name of a permission, or a pattern", func(f *Fault) *string { return &f.Permission }),
		textArg("account", "address of who calls, or a pattern: *gserviceaccount.com are the workers; any when left out", func(f *Fault) *string { return &f.Account }),
		textArg("mode", "see the fault", func(f *Fault) *string { return &f.Mode }),
		textArg("setting", "see the fault", func(f *Fault) *string { return &f.Setting }),
		{"bytes", "a number", func(f *Fault) string { return countText(int(f.Bytes)) }, func(f *Fault, v string) error {
			var n int
			err := setInt(&n, v)
			f.Bytes = int64(n)
			return err
		}},
	}
}

func textArg(key, what string, field func(*Fault) *string) FaultArg {
	return FaultArg{key, what, func(f *Fault) string { return *field(f) }, func(f *Fault, v string) error { *field(f) = v; return nil }}
}

func intArg(key, what string, field func(*Fault) *int) FaultArg {
	return FaultArg{key, what, func(f *Fault) string { return countText(*field(f)) }, func(f *Fault, v string) error { return setInt(field(f), v) }}
}

func durationArg(key, what string, field func(*Fault) *time.Duration) FaultArg {
	return FaultArg{key, what + " (10s, 1m30s)",
		func(f *Fault) string {
			if *field(f) == 0 {
				return ""
			}
			return field(f).String()
		},
		func(f *Fault, v string) (err error) {
			if *field(f), err = time.ParseDuration(v); err == nil && *field(f) < 0 {
				err = errors.New("negative")
			}
			return err
		}}
}

func countText(n int) string {
	switch n {
	case 0:
		return ""
	case AllCalls:
		return "all"
	}
	return strconv.Itoa(n)
}

func setInt(to *int, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return errors.New("not a number from 0")
	}
	*to = n
	return nil
}

func setCount(f *Fault, v string) error {
	if v == "all" {
		f.Count = AllCalls
		return nil
	}
	if err := setInt(&f.Count, v); err != nil || f.Count == 0 {
		return errors.New("neither a number from 1 nor all")
	}
	return nil
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func setVanish(f *Fault, v string) error {
	if v != "true" && v != "false" {
		return errors.New("neither true nor false")
	}
	f.Vanish = v == "true"
	return nil
}

func faultDoc(name string) (FaultDoc, bool) {
	for _, d := range Faults() {
		if d.Name == name {
			return d, true
		}
	}
	return FaultDoc{}, false
}

// ParseFault parses the text form of a fault: its name, then words KEY=VALUE with a shell's
// quotes: `api-error code=429 path=*/nodes n=2 message="no more"`.
func ParseFault(text string) (Fault, error) {
	words, err := shlex.Split(text)
	if err != nil {
		return Fault{}, fmt.Errorf("parse fault %q: %w", text, err)
	}
	if len(words) == 0 {
		return Fault{}, errors.New("parse fault: no name given")
	}
	f := Fault{Name: words[0]}
	doc, ok := faultDoc(f.Name)
	if !ok {
		return Fault{}, f.Check()
	}
	var given []string
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		i := slices.IndexFunc(FaultArgs(), func(a FaultArg) bool { return a.Key == key })
		if !ok || i < 0 || !slices.Contains(doc.Args, key) {
			return Fault{}, fmt.Errorf("parse fault %q: unknown argument %q: it takes %s", f.Name, word, strings.Join(doc.Args, "=, ")+"=")
		}
		if err := FaultArgs()[i].set(&f, value); err != nil {
			return Fault{}, fmt.Errorf("parse fault %q: argument %q: %w", f.Name, word, err)
		}
		given = append(given, key)
	}
	for _, key := range doc.Required {
		if !slices.Contains(given, key) {
			return Fault{}, fmt.Errorf("parse fault %q: %s= is missing", f.Name, key)
		}
	}
	return f, f.Check()
}

// String returns the text form that ParseFault reads.
func (f Fault) String() string {
	words := []string{f.Name}
	doc, _ := faultDoc(f.Name)
	for _, a := range FaultArgs() {
		if v := a.get(&f); slices.Contains(doc.Args, a.Key) && v != "" {
			if strings.ContainsAny(v, " \t\n\"'\\#") {
				v = "'" + strings.ReplaceAll(v, "'", `'"'"'`) + "'"
			}
			words = append(words, a.Key+"="+v)
		}
	}
	return strings.Join(words, " ")
}

// Check returns an error for a fault that can never have an effect.
func (f Fault) Check() error {
	doc, ok := faultDoc(f.Name)
	if !ok {
		var names []string
		for _, d := range Faults() {
			names = append(names, d.Name)
		}
		if near := tpu.Suggest(f.Name, names); near != "" {
			return fmt.Errorf("parse fault %q: no such fault: did you mean %s?", f.Name, near)
		}
		return fmt.Errorf("parse fault %q: no such fault", f.Name)
	}
	for _, a := range FaultArgs() {
		used := slices.Contains(doc.Args, a.Key)
		if v := a.get(&f); !used && v != "" && v != "0" {
			return fmt.Errorf("parse fault %q: it takes no %s=", f.Name, a.Key)
		} else if slices.Contains(doc.Required, a.Key) && v == "" {
			return fmt.Errorf("parse fault %q: %s= is missing", f.Name, a.Key)
		}
	}
	if err := f.CheckValues(); err != nil {
		return fmt.Errorf("parse fault %q: %w", f.Name, err)
	}
	if strings.HasPrefix(f.Name, "worker-") {
		_, err := f.forWorker()
		return err
	}
	return nil
}

// CheckValues returns an error for an argument that no fault can have.
func (f Fault) CheckValues() error {
	if f.Code != 0 && (f.Code < 400 || f.Code > 599) {
		return fmt.Errorf("code %d is not between 400 and 599", f.Code)
	}
	states := []string{"ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"}
	if f.Name == "group-topology" {
		states = []string{"ACTIVATING", "ACTIVE", "ACTIVE_DEGRADED", "DEACTIVATING", "FAILED", "INCOMPLETE", "REACTIVATING"}
	}
	if last := len(states) - 1; f.State != "" && !slices.Contains(states, f.State) {
		return fmt.Errorf("state %q is not %s or %s", f.State, strings.Join(states[:last], ", "), states[last])
	}
	if f.Initiator != "" && f.Initiator != "SERVICE" && f.Initiator != "USER" {
		return fmt.Errorf("initiator %q is neither SERVICE nor USER", f.Initiator)
	}
	if f.Service != "" && APIs()[f.Service] == "" {
		return fmt.Errorf("there is no API %q", f.Service)
	}
	if f.Worker != "" {
		if n, err := strconv.Atoi(f.Worker); err != nil || n < 0 {
			return fmt.Errorf("worker %q is not a number from 0", f.Worker)
		}
	}
	return nil
}

// forWorker returns the fault in the form of package worker.
func (f Fault) forWorker() (worker.Fault, error) {
	w := worker.Fault{
		Kind: worker.FaultKind(strings.TrimPrefix(f.Name, "worker-")),
		Mode: f.Mode, Name: f.Setting, Bytes: f.Bytes, Duration: f.Duration,
	}
	if f.Count > 0 {
		w.Count = f.Count
	}
	if w.Mode == "" {
		w.Mode = map[worker.FaultKind]string{worker.Unreachable: "refuse", worker.Slow: "handshake", worker.Cut: "out",
			worker.DiskSpace: "home", worker.Clock: "ahead", worker.Startup: "exit"}[w.Kind]
	}
	if _, err := worker.ParseFault(strings.Fields(w.String())...); err != nil {
		return w, fmt.Errorf("parse fault %q: %w", f.Name, err)
	}
	return w, nil
}

// once reports whether a worker fault happens only once, so that workers which start later
// do not have it.
func (f Fault) once() bool {
	return slices.Contains([]string{"worker-reboot", "worker-rotate-host-keys", "worker-kill"}, f.Name)
}
