package options

import (
	"multihost/internal/cmdline"
	"multihost/internal/help"
	"multihost/internal/qr/createflags"
	"multihost/internal/tpu"
)

// Rules say what is special about multihost's flags and commands. complete says how to
// complete values and words.
func Rules(complete cmdline.CompleteRules) cmdline.Rules {
	return cmdline.Rules{
		Private: privateFlags, Never: neverInFiles, Paths: pathFlags, PathPairs: []string{"metadata-from-file"},
		Alternatives: alternatives, BelongsTo: map[string]string{"max-run-duration": "flex-start", "topology": "type"},
		NoFiles:    []string{"init", "completion", "manual", "version"},
		OtherWords: otherWords, Nearest: tpu.Suggest, Foreign: foreignFlag,
		Help: cmdline.HelpRules{
			Commands: CommandGroups, Common: commonFlags, Groups: flagGroups,
			Apart: []help.Group{{Title: "where", Shown: WhereFlags}, {Title: loginTitle, Rest: LoginFlags()}},
		},
		Complete: complete,
	}
}

// foreignFlag returns the error for a flag of gcloud that the qr commands do not take, or of
// XPK that the xpk commands do not take.
func foreignFlag(path []string, flag string) error {
	if len(path) > 0 && path[0] == "qr" {
		if refused := createflags.Refused(flag); refused != nil {
			return refused
		}
	}
	return xpkRefused(path, flag)
}

// privateFlags are not read from a project's file, which may come with somebody else's
// directory. They reach beyond that directory: they open a network, end other users' runs,
// delete, name an identity, or send the user's data elsewhere.
var privateFlags = map[string]string{
	"access-token-file": "it says who you are",
	"iap-endpoint":      "your access token is sent there",
	"registry-endpoint": "your access token is sent there",
	"configuration":     "it says who you are",
	"service-account":   "it says who the workers are",
	"cqr-extra-args":    "it can say who the workers are",
	"range":             "it says which addresses of your network the workers get",
	"identity-file":     "it names your key",
	"known-hosts":       "it says which machines are trusted",
	"ssh-config":        "it can name your key, and which machines are trusted",
	"state-dir":         "your records of runs and host keys are kept there",
	"notify":            "it runs a program on this machine",
	"notify-url":        "what happens in your runs is sent there",
	"listen":            "it can open the simulator, and a shell on this machine, to others",
	"force":             "it deletes without a question",
	"delete":            "it deletes",
	"yes":               "it answers questions for you",
	"confirm":           "it says whether you are asked",
	"fix":               "it changes your project",
	"forward-agent":     "it lends your keys",
	"ssh-source-ranges": "it opens a network to others",
	"source-ranges":     "it opens a network to others",
	"all-ports-from":    "it opens a network to others",
	"allow":             "it opens a network",
	"replace":           "it ends what others run",
	"kill-stale":        "it ends what others run",
	"adopt":             "it replaces your files on the workers",
	"all-users":         "it reaches what others run",
	"sudo":              "it makes you root on the workers",
}

// neverInFiles lists the flags that make no sense in a file, and why.
var neverInFiles = map[string]string{
	"config":  "it names the file",
	"profile": "the default profile stands at the top of a file, outside of sections and profiles",
	"version": "it is a command",
}

// pathFlags name local files and directories.
var pathFlags = []string{
	"access-token-file", "env-file", "hosts-file", "identity-file", "known-hosts", "kubeconfig", "log-dir", "out", "script-dir", "sim-dir", "ssh-config", "state-dir",
}

// alternatives are groups of flags that replace each other. If a layer sets one flag of a
// group, the values of the others in lower layers are dropped. cmdline.Dashes stands for
// the words after it.
var alternatives = [][]string{
	{"command", cmdline.Dashes},
	{"tpu-prefix", "hosts", "hosts-file"},
	{"on-demand", "spot", "best-effort", "reserved", "reservation", "flex-start", "guaranteed", "provisioning-model",
		"reservation-host-project", "reservation-host-folder", "reservation-host-organization"},
	{"valid-after-duration", "valid-after-time"},
	{"valid-until-duration", "valid-until-time"},
	{"tpu-type", "type", "machine-type"},
	{"network-config", "network"}, {"network-config", "subnetwork"}, {"network-config", "internal-ips"},
	{"ip", "internal-ip"},
	{"node-prefix", "node-id"},
	{"notify", "notify-url"},
}

// otherWords maps words of other tools to our commands or their paths, the most probable
// first.
var otherWords = map[string][]string{
	"ls": {"list", "show", "qr list"}, "list": {"show", "qr list"}, "get": {"show", "qr show"}, "describe": {"show", "qr show"},
	"rm": {"delete", "qr delete"}, "remove": {"delete", "qr delete"}, "delete": {"qr delete"}, "create": {"qr create"}, "wait": {"qr wait"}, "show": {"qr show"},
	"status": {"show", "ps"}, "runs": {"ps"}, "jobs": {"ps"}, "kill": {"stop"}, "cancel": {"stop"}, "log": {"logs"}, "tail": {"logs"},
	"scp": {"cp"}, "copy": {"cp"}, "login": {"ssh"}, "start": {"up", "run"}, "launch": {"run"}, "submit": {"job"},
	"firewall": {"network firewall"}, "cleanup": {"gc"}, "check": {"doctor"}, "diagnose": {"doctor"}, "simulator": {"sim"},
}

// CommandGroups are the commands by purpose, rarely needed ones last.
var CommandGroups = []cmdline.CommandGroup{
	{Title: "make slices", Commands: []string{"network", "slices", "qr", "cluster"}},
	{Title: "run a command on all workers", Commands: []string{"run", "job", "workload"}},
	{Title: "follow and end runs", Commands: []string{"ps", "attach", "logs", "stop"}},
	{Title: "see how a run goes", Commands: []string{"top", "metrics", "report", "dump"}},
	{Title: "work on workers by hand", Commands: []string{"ssh", "exec", "cp", "preflight"}},
	{Title: "find what is wrong or left", Commands: []string{"doctor", "gc"}},
	{Title: "set up multihost", Commands: []string{"init", "completion", "version"}},
	{Title: "rarely needed", Commands: []string{"hostkey", "manual", "xla", "xpk", "config", "sim"}},
}

// commonFlags come first in the help of a command with many flags. flagGroups has the other
// flags of such a command, together with those of every command.
var commonFlags = map[string][]string{
	"":          {},
	"run":       {"tpu-prefix", "zone", "command", "run-name", "script-dir", "env", "detach", "dry-run"},
	"job":       {"tpu-type", "num-slices", "spot", "zone", "command", "run-name", "script-dir", "dry-run"},
	"qr create": {"tpu-type", "node-count", "node-prefix", "spot", "network", "zone", "wait", "dry-run"},

	"cluster create": {"tpu-type", "num-slices", "spot", "reservation", "network", "zone", "confirm", "dry-run"},

	"workload create": {"cluster", "tpu-type", "num-slices", "docker-image", "base-docker-image", "command", "detach", "dry-run"},

	"xpk cluster create":  {"cluster", "tpu-type", "num-slices", "spot", "reservation", "custom-cluster-arguments", "zone", "dry-run"},
	"xpk workload create": {"cluster", "workload", "tpu-type", "num-slices", "docker-image", "command", "wait", "dry-run"},

	"slices create": {"tpu-type", "node-count", "spot", "zone", "max-run-duration", "slices-deadline", "wait", "dry-run"},
}

// flagGroups are the flags of the commands in commonFlags.
var flagGroups = []help.Group{
	{
		Title: "what runs",
		Shown: []string{"command", "run-name", "workload", "env", "env-file", "secret-env", "venv", "processes-per-worker", "xla-preset", "dry-run"},
		Rest:  []string{"xla-flag", "numa", "enable-debug-logs", "use-parallel-containers"},
	},
	{
		Title: "where",
		Shown: []string{"project", "zone", "tpu-prefix", "slices", "allow-partial", "hosts", "tpu-type", "num-slices", "node-count",
			"spot", "reserved", "network", "network-create", "runtime-version", "confirm"},
		Rest: []string{"hosts-file", "cluster", "context", "kubeconfig", "namespace", "docker-image", "base-docker-image", "image-repository", "registry-endpoint", "queue", "priority", "num-nodes", "resource", "node-selector", "device-type", "docker-image-pull-secret", "docker-name", "scheduler", "node-prefix", "node-id", "provider", "type", "machine-type", "topology", "on-demand", "flex", "flex-start", "best-effort", "guaranteed", "provisioning-model",
			"reservation", "subnetwork", "gke-version", "default-pool-cpu-machine-type", "default-pool-cpu-num-nodes", "cluster-cpu-machine-type", "custom-cluster-arguments", "custom-nodepool-arguments", "custom-tpu-nodepool-arguments", "host-maintenance-interval", "force", "yes",
			"internal-ips", "ssh-source-ranges", "configuration", "access-token-file", "platform"},
	},
	{
		Title: "code",
		Shown: []string{"script-dir", "no-ignore", "use-existing-folder", "adopt"},
		Rest:  []string{"relay", "relay-fanout", "scp-timeout-secs"},
	},
	{
		Title: "when it fails or ends",
		Shown: []string{"max-restarts", "max-preemptions", "fail-fast", "timeout", "on-interrupt", "replace", "keep-on-failure", "keep", "ttl", "lease"},
		Rest:  []string{"restart-on-exit-codes", "ttl-seconds-after-finished", "termination-grace-period-seconds", "on-stall", "stall-timeout", "lost-timeout", "quiet-after", "grace", "kill-stale", "strict-exit", "enable-autocheckpoint", "autocheckpoint-enabled"},
	},
	{
		Title: "output",
		Shown: []string{"stream", "timestamps", "log-dir", "notify", "output", "quiet"},
		Rest:  []string{"notify-url", "max-log", "log-timeout", "metrics-regex", "cloud-logging", "upload-every", "debug", "state-dir"},
	},
	{
		Title: "advanced",
		Shown: []string{"detach", "bucket-name", "preflight", "skew", "profile", "sim"},
		Rest: []string{"cluster-state-gcs-bucket", "pathways-gce-machine-type", "sandbox-kubeconfig", "skip-validation", "tensorboard-name", "tensorboard-region",
			"bucket-dir", "install", "config", "sim-slices", "sim-backend", "sim-step", "sim-fault", "version"},
	},
	{
		Title: "how long to wait",
		Rest:  []string{"wait", "async", "queue-timeout", "slices-deadline", "provision-timeout", "boot-timeout", "start-timeout"},
	},
	{
		Title: "the request in detail",
		Rest: []string{"cqr-extra-args", "workload-type", "reservation-host-project", "reservation-host-folder", "reservation-host-organization",
			"min-duration", "max-run-duration", "valid-after-duration", "valid-after-time", "valid-until-duration", "valid-until-time",
			"network-config", "range", "service-account", "scopes", "labels", "tags", "metadata", "metadata-from-file",
			"data-disk", "boot-disk", "boot-disk-size", "boot-disk-type", "image", "shielded-secure-boot", "description"},
	},
	{
		Title: loginTitle,
		Rest:  LoginFlags(),
	},
}

// WhereFlags have a section of their own in the help of a command without other groups.
var WhereFlags = []string{"tpu-prefix", "slices", "allow-partial", "hosts", "hosts-file", "cluster", "context", "kubeconfig", "namespace", "bucket-name", "bucket-dir"}

const loginTitle = "how workers are reached"

// LoginFlags returns the names of SSHFlags. No short help shows them.
func LoginFlags() (names []string) {
	for _, f := range SSHFlags() {
		names = append(names, cmdline.Name(f))
	}
	return names
}
