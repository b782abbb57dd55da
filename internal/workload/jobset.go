package workload

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/tpu"
)

// Labels and annotations that JobSet and the Job controller set on pods.
const (
	labelRestart = "jobset.sigs.k8s.io/restart-attempt"
	labelWorker  = batchv1.JobCompletionIndexAnnotation
)

// Labels of GKE's nodes with TPU chips.
const (
	labelAccelerator = "cloud.google.com/gke-tpu-accelerator"
	labelTopology    = "cloud.google.com/gke-tpu-topology"
	LabelPool        = "cloud.google.com/gke-nodepool"
	labelPolicy      = "cloud.google.com/placement-policy-name"
)

// ChipResource is the resource that counts TPU chips, and also the key of the taint of
// nodes with chips.
const ChipResource = "google.com/tpu"

// Paths and names of volumes in a pod. The init container copies AgentFile and PreflightFile from
// its image to AgentDir.
const (
	AgentDir      = "/multihost"              // an emptyDir, which also has the output of the command
	AgentFile     = "/multihost-agent"        // in an image
	PreflightFile = "/multihost-preflight.sh" // in an image, beside the agent
	shared        = "multihost"               // name of the volume and of the init container
	shmName       = "dshm-2"                  // name of the volume for shared memory
	shmDir        = "/dev/shm"
)

// quantity returns how much of a resource a container needs. The error is a *SpecError.
func (r Resource) quantity() (resource.Quantity, error) {
	q, err := resource.ParseQuantity(r.Quantity)
	if err != nil || q.Sign() <= 0 || r.Name == "" {
		return q, &SpecError{fmt.Sprintf("resource %q of %q is not possible: a quantity is a number above 0, such as 8 or 64Gi", r.Quantity, r.Name), "type: --resource=nvidia.com/gpu=8"}
	}
	return q, nil
}

// JobSet returns the JobSet of a workload. The error is that of Check.
func JobSet(s Spec) (*jobset.JobSet, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	labels := maps.Clone(s.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelWorkload] = s.Name
	js := &jobset.JobSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: jobset.SchemeGroupVersion.String(), Kind: "JobSet"},
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: cmp.Or(s.Namespace, DefaultNamespace), Labels: maps.Clone(labels)},
		Spec: jobset.JobSetSpec{
			FailurePolicy: &jobset.FailurePolicy{
				MaxRestarts: int32(s.MaxRestarts),
				Rules: []jobset.FailurePolicyRule{{
					Name: "programFailed", Action: jobset.FailJobSet, OnJobFailureReasons: []string{batchv1.JobReasonPodFailurePolicy},
				}},
			},
			ReplicatedJobs: []jobset.ReplicatedJob{{
				Name: JobName, Replicas: int32(s.Slices), Template: batchv1.JobTemplateSpec{Spec: s.job(labels)},
			}},
		},
	}
	if s.Queue != "" {
		js.Labels[LabelQueue] = s.Queue
	}
	if s.Type.Name != "" {
		js.Annotations = map[string]string{jobset.ExclusiveKey: LabelPool}
	}
	if s.TTL >= 0 {
		js.Spec.TTLSecondsAfterFinished = new(int32(s.TTL))
	}
	return js, nil
}

// job returns the Job of a slice.
func (s Spec) job(labels map[string]string) batchv1.JobSpec {
	codes := &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: s.restarting()}
	if names := s.containers(); len(names) == 1 { // otherwise the rule is for all containers
		codes.ContainerName = &names[0]
	}
	workers := int32(s.Workers())
	return batchv1.JobSpec{
		Parallelism: &workers, Completions: &workers, BackoffLimit: new(int32(0)), CompletionMode: new(batchv1.IndexedCompletion),
		PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionCount, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
			{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: codes},
		}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s.pod()},
	}
}

// pod returns the pod of a worker.
func (s Spec) pod() corev1.PodSpec {
	pod := corev1.PodSpec{
		SchedulerName: cmp.Or(s.Scheduler, DefaultScheduler), RestartPolicy: corev1.RestartPolicyNever,
		NodeSelector: s.nodes(), PriorityClassName: s.Priority, ServiceAccountName: s.Account,
		TerminationGracePeriodSeconds: new(int64(s.Grace)), Tolerations: s.tolerations(),
		Volumes: []corev1.Volume{
			{Name: shmName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			{Name: shared, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	if !s.PodNetwork {
		pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
	}
	if s.PullSecret != "" {
		pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: s.PullSecret}}
	}
	if s.AgentImage != "" {
		pod.InitContainers = []corev1.Container{{
			Name: shared, Image: s.AgentImage, Command: []string{AgentFile, "pod", "place", AgentDir},
			VolumeMounts: []corev1.VolumeMount{{Name: shared, MountPath: AgentDir}},
		}}
	}
	for i, name := range s.containers() {
		pod.Containers = append(pod.Containers, s.container(i, name))
	}
	return pod
}

// containers returns the names of the containers of a pod. As with XPK, a worker of tpu7x
// has two, each with half of the chips.
func (s Spec) containers() []string {
	name := cmp.Or(s.Container, DefaultContainer)
	if n, err := tpu.NodesOf(s.Type); err == nil && s.Type.Generation.Devices > 1 && n.Machine.Chips > 1 && !s.Apart {
		return []string{name + "-1", name + "-2"}
	}
	return []string{name}
}

func (s Spec) container(i int, name string) corev1.Container {
	dir := AgentDir
	if s.AgentImage == "" {
		dir = ""
	}
	command := []string{dir + AgentFile, "pod", "run"}
	if s.Preflight != "" {
		command = append(command, "--preflight="+dir+PreflightFile, "--preflight-mode="+s.Preflight)
	}
	if numa := s.numa(); numa != "off" {
		command = append(command, "--numa="+numa)
	}
	c := corev1.Container{
		Name: name, Image: s.Image, Command: append(command, "--", "bash", "-c", plain(s.Command)),
		Env:       s.env(i),
		Resources: corev1.ResourceRequirements{Limits: s.limits()},
		VolumeMounts: []corev1.VolumeMount{
			{Name: shmName, MountPath: shmDir},
			{Name: shared, MountPath: AgentDir},
		},
	}
	if !s.Unprivileged {
		c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	}
	return c
}

// numa returns how the agent binds the command to a NUMA node: bind, preferred or off. Two
// containers of a worker would be bound to the same NUMA node. Therefore the default for two
// containers is off.
func (s Spec) numa() string {
	switch {
	case s.NUMA != "":
		return s.NUMA
	case s.Type.Generation.NUMA && len(s.containers()) == 1:
		return "bind"
	}
	return "off"
}

// env returns the variables of a container: multihost's own and the user's. From its own, the
// agent makes the variables that multihost sets on all kinds of workers. If a name has several
// values, env keeps the last one, because Kubernetes takes each name once.
func (s Spec) env(local int) []corev1.EnvVar {
	from := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	value := func(name string, n int) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: strconv.Itoa(n)} }
	all := []corev1.EnvVar{
		{Name: "MULTIHOST_RUN", Value: s.Name},
		from("MULTIHOST_RESTARTS", "metadata.labels['"+labelRestart+"']"),
		from("MULTIHOST_SLICE_ID", "metadata.labels['"+jobset.JobIndexKey+"']"),
		value("MULTIHOST_NUM_SLICES", s.Slices),
		from("MULTIHOST_WORKER_ID", "metadata.annotations['"+labelWorker+"']"),
		value("MULTIHOST_NUM_WORKERS", s.Workers()),
		value("MULTIHOST_LOCAL_ID", local),
		value("MULTIHOST_NUM_LOCAL", len(s.containers())),
		{Name: "MULTIHOST_COORDINATOR_IP", Value: s.Host(tpu.WorkerID{})},
		from("MULTIHOST_POD_UID", "metadata.uid"),
	}
	at := map[string]int{}
	for _, v := range s.Env {
		i, ok := at[v.Name]
		if !ok {
			i = len(all)
			at[v.Name] = i
			all = append(all, corev1.EnvVar{Name: v.Name})
		}
		all[i].Value = plain(v.Value)
	}
	return all
}

// CommandOf returns the command of a workload that this package has made, or "".
func CommandOf(js *jobset.JobSet) string {
	for _, job := range js.Spec.ReplicatedJobs {
		for _, c := range job.Template.Spec.Template.Spec.Containers {
			if n := len(c.Command); n > 2 && c.Command[n-3] == "bash" && c.Command[n-2] == "-c" {
				return strings.ReplaceAll(c.Command[n-1], "$$", "$")
			}
		}
	}
	return ""
}

// plain doubles each dollar sign. Kubernetes replaces $(NAME) and $$, and so turns the result
// back into text.
func plain(text string) string { return strings.ReplaceAll(text, "$", "$$") }

func (s Spec) limits() corev1.ResourceList {
	limits := corev1.ResourceList{}
	for _, r := range s.Resources {
		limits[corev1.ResourceName(r.Name)], _ = r.quantity() // Check has parsed it
	}
	if chips := s.Chips(); chips > 0 {
		limits[ChipResource] = *resource.NewQuantity(int64(chips), resource.DecimalSI)
	}
	return limits
}

// Chips returns the number of TPU chips of a container.
func (s Spec) Chips() int {
	n, err := tpu.NodesOf(s.Type)
	if err != nil { // pods without TPU
		return 0
	}
	return n.Machine.Chips / len(s.containers())
}

// nodes returns the labels that a node must have.
func (s Spec) nodes() map[string]string {
	nodes := maps.Clone(s.NodeSelector)
	if n, err := tpu.NodesOf(s.Type); err == nil {
		if nodes == nil {
			nodes = map[string]string{}
		}
		nodes[labelAccelerator], nodes[labelTopology] = n.Accelerator, n.Topology
		if s.PlacementPolicy != "" {
			nodes[labelPolicy] = s.PlacementPolicy
		}
	}
	return nodes
}

// tolerations returns the tolerations for the taints that GKE sets on nodes with
// accelerators. The key of such a taint is the name of the resource that counts the
// accelerators.
func (s Spec) tolerations() (all []corev1.Toleration) {
	if s.Type.Name != "" {
		all = append(all, corev1.Toleration{Key: ChipResource, Operator: corev1.TolerationOpExists})
	}
	for _, r := range s.Resources {
		if strings.Contains(r.Name, "/") {
			all = append(all, corev1.Toleration{Key: r.Name, Operator: corev1.TolerationOpExists})
		}
	}
	return all
}
