package xpk

import (
	"strings"

	"multihost/internal/fault"
)

// A RefusedFlag is the error for a flag of XPK that multihost does not support.
type RefusedFlag struct{ name, why, advice string }

func (r *RefusedFlag) Error() string { return "--" + r.name + " is not served: " + r.why }

// Fault returns fault.Usage.
func (r *RefusedFlag) Fault() fault.Kind { return fault.Usage }

// Hint says what to do.
func (r *RefusedFlag) Hint() string { return r.advice }

// Refused returns the error for a flag of XPK that multihost does not support, or nil for other
// flags. flag has no dashes.
func Refused(flag string) *RefusedFlag {
	for _, r := range refused {
		if r.name == flag || "no-"+r.name == flag {
			r.name = flag
			return &r
		}
	}
	return nil
}

const (
	leaveOut = "leave it out"
	withXPK  = "use XPK for this cluster; multihost works on its workloads all the same"
)

var refused = []RefusedFlag{
	{"authorized-networks", "multihost makes clusters with a public endpoint", withXPK},
	{"autoprovisioning-max-chips", "multihost makes the node pools itself", "give --num-slices"},
	{"autoprovisioning-min-chips", "multihost makes the node pools itself", "give --num-slices"},
	{"cpu-limit", "Kueue gets the resources that its manifest asks for", leaveOut},
	{"create-vertex-tensorboard", "multihost makes nothing in Vertex AI", "read the training steps with: multihost metrics"},
	{"debug-dump-gcs", "the image has no program that uploads the dump", "set XLA_FLAGS with --env, and copy the dump in the command"},
	{"deploy-stacktrace-sidecar", "the pods have one container for the program", "let the program write stack traces to its output"},
	{"enable-autoprovisioning", "multihost makes the node pools itself", "give --num-slices; --flex has pools that are empty until a workload asks for them"},
	{"enable-gcpfilestore-csi-driver", "clusters get no storage drivers", withXPK},
	{"enable-gcsfuse-csi-driver", "clusters get no storage drivers", withXPK},
	{"enable-legacy-lustre-port", "clusters get no storage drivers", withXPK},
	{"enable-lustre-csi-driver", "clusters get no storage drivers", withXPK},
	{"enable-mtc", "clusters get no storage drivers", withXPK},
	{"enable-parallelstore-csi-driver", "clusters get no storage drivers", withXPK},
	{"enable-pathways", "Pathways needs XPK", withXPK},
	{"enable-pd-csi-driver", "clusters get no storage drivers", withXPK},
	{"enable-workload-identity", "pods have the service account of their node", withXPK},
	{"experiment-name", "multihost makes nothing in Vertex AI", "read the training steps with: multihost metrics"},
	{"ignore-nodepool-creation-errors", "a cluster with fewer slices than asked for is a failure", "type the same command again: it makes what is missing"},
	{"managed-mldiagnostics", "clusters get JobSet and Kueue only", withXPK},
	{"memory-limit", "Kueue gets the resources that its manifest asks for", leaveOut},
	{"mtc-enabled", "pods get no storage", withXPK},
	{"mtc-gcs-bucket", "clusters get no storage drivers", withXPK},
	{"mtc-ramdisk-size", "clusters get no storage drivers", withXPK},
	{"mtc-toleration-key", "clusters get no storage drivers", withXPK},
	{"num-cubes", "slices are whole node pools", "give --num-slices"},
	{"output-manifest-file", "the JobSet goes to the cluster only", "add --dry-run --output=json, which prints it"},
	{"private", "multihost makes clusters with a public endpoint", withXPK},
	{"ramdisk-directory", "pods get no storage", withXPK},
	{"remote-python-sidecar-image", "Pathways needs XPK", withXPK},
	{"restart-on-user-code-failure", "XPK has replaced it", "name the exit codes: --restart-on-exit-codes=1"},
	{"storage", "pods get no storage", withXPK},
	{"sub-slicing", "slices are whole node pools", leaveOut},
	{"sub-slicing-topology", "slices are whole node pools", "give --tpu-type"},
	{"super-slicing", "slices are whole node pools", leaveOut},
	{"super-slicing-topology", "slices are whole node pools", "give --tpu-type"},
	{"use-pathways", "Pathways needs XPK", withXPK},
	{"use-vertex-tensorboard", "multihost makes nothing in Vertex AI", "read the training steps with: multihost metrics"},
}

// ofPools is why flags are refused that describe node pools which GKE would make for a
// workload.
const ofPools = "the node pools of the cluster decide it"

// An IgnoredFlag is a flag of XPK that multihost accepts without effect.
type IgnoredFlag struct {
	Name   string
	Switch bool   // it has no value
	Why    string // why the flag has no effect
}

// Ignored returns the flags without effect of a command, such as "workload create".
func Ignored(command string) []IgnoredFlag {
	all := []IgnoredFlag{{"skip-validation", true, "kubectl, gcloud and docker are not needed"}}
	if strings.HasPrefix(command, "workload ") || command == "cluster create" {
		all = append(all, IgnoredFlag{"sandbox-kubeconfig", true, "no kubeconfig is written"})
	}
	switch command {
	case "cluster create":
		all = append(all,
			IgnoredFlag{"cluster-state-gcs-bucket", false, "XPK uses it for GPUs only"},
			IgnoredFlag{"num-nodes", false, "the type of a TPU slice says how many nodes it has"},
			IgnoredFlag{"pathways-gce-machine-type", false, "XPK uses it for Pathways only"},
			IgnoredFlag{"tensorboard-name", false, "XPK uses it for Vertex AI only"},
			IgnoredFlag{"tensorboard-region", false, "XPK uses it for Vertex AI only"})
	case "cluster delete":
		all = append(all, IgnoredFlag{"cluster-state-gcs-bucket", false, "XPK uses it for GPUs only"})
	case "workload create":
		all = append(all,
			IgnoredFlag{"flex", true, ofPools}, IgnoredFlag{"on-demand", true, ofPools},
			IgnoredFlag{"reservation", false, ofPools}, IgnoredFlag{"spot", true, ofPools},
			IgnoredFlag{"num-nodes", false, "the type of a TPU slice says how many nodes it has"})
	}
	return all
}
