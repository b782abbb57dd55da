// Package held is the provider of slices that a JobSet of idle pods holds. Kubernetes places
// the pods and makes them again when a node fails. A pod is a worker of a slice, a Job is a
// slice, and the JobSet is the resource. Commands reach the pods through package pods.
//
// # Decisions
//
//   - Process 1 of a pod does nothing. So the slices stay when a command ends, and a
//     command needs no image and no admission of its own.
//   - The pods have the network of their nodes and are privileged, like XPK's pods: the
//     preflight can then set what the node allows.
//   - When a pod fails, JobSet makes all pods of the JobSet again. A slice then has another
//     UID, because the new pods lack the files and processes of the old ones.
//   - Pods have no credentials, so they cannot delete the JobSet. When the time to live
//     ends or nobody uses a pod, process 1 of the pod ends with exit code 0. When all pods
//     have ended, the JobSet is complete, and Kubernetes deletes it. Pods cannot ask each
//     other either. If a command runs only in one pod, that pod stays and the others end.
package held

import (
	_ "embed" // the program of the pods
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

//go:embed holder.sh
var holderFile string

// holder is the program of the pods, without comments.
func holder() string {
	var b strings.Builder
	for line := range strings.Lines(holderFile) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Container is the container of a pod in which commands run.
const Container = "worker"

// Image is the default image of the pods. It has bash, tar, curl and Python.
const Image = "python:3.12"

// Renew is a bash command that marks a pod as used.
const Renew = `{ : >"${MULTIHOST_ROOT_TMP-}/tmp/.multihost-used"; } 2>/dev/null`

// RenewEvery is how often multihost runs Renew while it is connected to pods.
const RenewEvery = 2 * time.Minute

// Lease is the default of Settings.Lease.
const Lease = 12 * time.Hour

// Settings are the part of a request that only this provider understands. Request.Own holds
// them.
type Settings struct {
	Image    string // of the pods; "": Image
	Queue    string // local queue of Kueue that admits the pods; "": they are not queued
	Priority string // priority class of the pods; "": the cluster's default

	// TTL is the time from the request to the end of the pods, even if commands run in them. 0
	// means no limit.
	TTL time.Duration
	// Lease is how long a pod stays without use; 0 means no limit. A pod is in use while a
	// command of a run lives in it or multihost is connected to it.
	Lease time.Duration
}

// made returns a text that describes a request. Two requests for the same slices have equal
// texts.
func (s Settings) made(count int, kind string) string {
	text := fmt.Sprintf("%s of %s, image %s", event.Count(count, "slice"), kind, s.Image)
	if s.TTL > 0 {
		text += ", --ttl=" + event.Duration(s.TTL)
	}
	if s.Lease != Lease {
		text += ", --lease=" + event.Duration(s.Lease)
	}
	return text
}

const (
	labelHeld      = "multihost-held"     // on JobSets: "slices"
	annotationType = "multihost/tpu-type" // on JobSets
	annotationMade = "multihost/settings" // on JobSets: result of Settings.made
	annotationEnd  = "multihost/until"    // on JobSets: end of the time to live, in RFC 3339
	labelQueue     = "kueue.x-k8s.io/queue-name"
	labelPool      = "cloud.google.com/gke-nodepool"
	labelKind      = "cloud.google.com/gke-tpu-accelerator"
	labelTopology  = "cloud.google.com/gke-tpu-topology"
	chips          = "google.com/tpu"

	jobName     = "slice"
	mostRestart = 100
	grace       = 30   // seconds; holder.sh gives commands somewhat less
	tellEnd     = 3600 // seconds for which an ended JobSet stays
)

// A NameError says that a name does not fit Kubernetes.
type NameError struct{ Name, Why string }

func (e *NameError) Error() string { return fmt.Sprintf("name %q: %s", e.Name, e.Why) }

// Fault says that the command line is wrong.
func (*NameError) Fault() fault.Kind { return fault.Usage }

var nameForm = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

const mostName = 63 // characters of a host name; a pod's name is also its host name

// sliceNames returns the names of the slices of a resource.
func sliceNames(id string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = id + "-" + strconv.Itoa(i)
	}
	return names
}

// jobSet returns the JobSet for a request made at the time now. The error is a *tpu.NodesError
// or a *NameError.
func jobSet(r provision.Request, now time.Time) (*jobset.JobSet, error) {
	nodes, err := tpu.NodesOf(r.Type)
	if err != nil {
		return nil, err
	}
	own, _ := r.Own.(Settings)
	if own.Image == "" {
		own.Image = Image
	}
	count := max(1, r.NodeCount)
	longest := fmt.Sprintf("%s-%s-%d-%d", r.ID, jobName, count-1, nodes.Count-1)
	switch {
	case !nameForm.MatchString(r.ID):
		return nil, &NameError{r.ID, "it has lower-case letters, digits and dashes, begins with a letter and does not end with a dash"}
	case len(longest) > mostName:
		return nil, &NameError{r.ID, fmt.Sprintf("it is %d letters too long: the host names of the pods, such as %s, have at most %d letters", len(longest)-mostName, longest, mostName)}
	}
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Name: r.ID, Labels: maps.Clone(r.Labels), Annotations: map[string]string{
		jobset.ExclusiveKey: labelPool, annotationType: r.Type.Name, annotationMade: own.made(count, r.Type.Name),
	}}}
	var until int64
	if own.TTL > 0 {
		end := now.Add(own.TTL).Truncate(time.Second).UTC()
		until, js.Annotations[annotationEnd] = end.Unix(), end.Format(time.RFC3339)
	}
	if js.Labels == nil {
		js.Labels = map[string]string{}
	}
	js.Labels[labelHeld] = "slices"
	if own.Queue != "" {
		js.Labels[labelQueue] = own.Queue
	}
	workers := int32(nodes.Count)
	js.Spec.TTLSecondsAfterFinished = new(int32(tellEnd))
	js.Spec.FailurePolicy = &jobset.FailurePolicy{MaxRestarts: mostRestart}
	js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{Name: jobName, Replicas: int32(count), Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
		Parallelism: &workers, Completions: &workers, BackoffLimit: new(int32(0)), CompletionMode: new(batchv1.IndexedCompletion),
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(r.Labels)}, Spec: pod(nodes, own, until)},
	}}}}
	return js, nil
}

// pod returns the specification of a worker's pod. The pod ends at the time until, in seconds
// since 1970. 0 means never.
func pod(nodes tpu.Nodes, own Settings, until int64) corev1.PodSpec {
	const memory = "dshm"
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, PriorityClassName: own.Priority, TerminationGracePeriodSeconds: new(int64(grace)),
		HostNetwork: true, DNSPolicy: corev1.DNSClusterFirstWithHostNet,
		NodeSelector: map[string]string{labelKind: nodes.Accelerator, labelTopology: nodes.Topology},
		Tolerations:  []corev1.Toleration{{Key: chips, Operator: corev1.TolerationOpExists}},
		Volumes:      []corev1.Volume{{Name: memory, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
		Containers: []corev1.Container{{
			Name: Container, Image: own.Image, Command: []string{
				"bash", "-c", holder(), "multihost-holder", strconv.FormatInt(until, 10), strconv.FormatInt(int64((own.Lease+time.Second-1)/time.Second), 10),
			},
			SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
			Resources:       corev1.ResourceRequirements{Limits: corev1.ResourceList{chips: resource.MustParse(strconv.Itoa(nodes.Machine.Chips))}},
			VolumeMounts:    []corev1.VolumeMount{{Name: memory, MountPath: "/dev/shm"}},
		}},
	}
}
