package store

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// A Kind is one kind of object that the API serves.
type Kind struct {
	Group      string
	Versions   []string // the last version is preferred, and the stored one
	Kind       string
	Plural     string
	Singular   string
	Short      []string
	Namespaced bool
	Status     bool // it has a status subresource

	// Typed returns an empty object of the stored version, whose type says which fields
	// exist. If Typed is nil, every field exists.
	Typed func() any
}

// Resource returns the group and the plural name.
func (k *Kind) Resource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Plural}
}

// Stored returns the stored version.
func (k *Kind) Stored() string { return k.Versions[len(k.Versions)-1] }

// GroupVersion returns the group of the kind with a version.
func (k *Kind) GroupVersion(version string) schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: version}
}

// GroupKind returns the group and the kind.
func (k *Kind) GroupKind() schema.GroupKind { return schema.GroupKind{Group: k.Group, Kind: k.Kind} }

// Serves reports whether the API serves the kind in a version.
func (k *Kind) Serves(version string) bool { return slices.Contains(k.Versions, version) }

// The controllers and the kubelet of the simulator work on these kinds.
var (
	Pods            = &Kind{Versions: []string{"v1"}, Kind: "Pod", Plural: "pods", Singular: "pod", Short: []string{"po"}, Namespaced: true, Status: true, Typed: func() any { return new(corev1.Pod) }}
	Services        = &Kind{Versions: []string{"v1"}, Kind: "Service", Plural: "services", Singular: "service", Short: []string{"svc"}, Namespaced: true, Status: true, Typed: func() any { return new(corev1.Service) }}
	Nodes           = &Kind{Versions: []string{"v1"}, Kind: "Node", Plural: "nodes", Singular: "node", Short: []string{"no"}, Status: true, Typed: func() any { return new(corev1.Node) }}
	Namespaces      = &Kind{Versions: []string{"v1"}, Kind: "Namespace", Plural: "namespaces", Singular: "namespace", Short: []string{"ns"}, Status: true, Typed: func() any { return new(corev1.Namespace) }}
	Events          = &Kind{Versions: []string{"v1"}, Kind: "Event", Plural: "events", Singular: "event", Short: []string{"ev"}, Namespaced: true, Typed: func() any { return new(corev1.Event) }}
	Jobs            = &Kind{Group: "batch", Versions: []string{"v1"}, Kind: "Job", Plural: "jobs", Singular: "job", Namespaced: true, Status: true, Typed: func() any { return new(batchv1.Job) }}
	JobSets         = &Kind{Group: "jobset.x-k8s.io", Versions: []string{"v1alpha2"}, Kind: "JobSet", Plural: "jobsets", Singular: "jobset", Namespaced: true, Status: true, Typed: func() any { return new(jobset.JobSet) }}
	Workloads       = kueueKind("Workload", "workloads", true, func() any { return new(kueue.Workload) }, "kwl", "kueueworkload", "kueueworkloads")
	LocalQueues     = kueueKind("LocalQueue", "localqueues", true, func() any { return new(kueue.LocalQueue) }, "queue", "queues", "lq")
	ClusterQueues   = kueueKind("ClusterQueue", "clusterqueues", false, func() any { return new(kueue.ClusterQueue) }, "cq")
	ResourceFlavors = kueueKind("ResourceFlavor", "resourceflavors", false, func() any { return new(kueue.ResourceFlavor) }, "flavor", "flavors", "rf")
	PriorityClasses = &Kind{Group: "scheduling.k8s.io", Versions: []string{"v1"}, Kind: "PriorityClass", Plural: "priorityclasses", Singular: "priorityclass", Short: []string{"pc"}}
	CRDs            = &Kind{Group: "apiextensions.k8s.io", Versions: []string{"v1"}, Kind: "CustomResourceDefinition", Plural: "customresourcedefinitions", Singular: "customresourcedefinition", Short: []string{"crd", "crds"}, Status: true}
	Deployments     = &Kind{Group: "apps", Versions: []string{"v1"}, Kind: "Deployment", Plural: "deployments", Singular: "deployment", Short: []string{"deploy"}, Namespaced: true, Status: true}
)

// Kinds returns the kinds that every cluster serves, including JobSet and Kueue.
func Kinds() []*Kind {
	return []*Kind{
		Pods, Services, Nodes, Namespaces, Events, Jobs, JobSets, Workloads, LocalQueues, ClusterQueues, ResourceFlavors,
		PriorityClasses, CRDs, Deployments,
		{Versions: []string{"v1"}, Kind: "ConfigMap", Plural: "configmaps", Singular: "configmap", Short: []string{"cm"}, Namespaced: true, Typed: func() any { return new(corev1.ConfigMap) }},
		{Versions: []string{"v1"}, Kind: "Secret", Plural: "secrets", Singular: "secret", Namespaced: true, Typed: func() any { return new(corev1.Secret) }},
		{Versions: []string{"v1"}, Kind: "ServiceAccount", Plural: "serviceaccounts", Singular: "serviceaccount", Short: []string{"sa"}, Namespaced: true, Typed: func() any { return new(corev1.ServiceAccount) }},
		kueueKind("AdmissionCheck", "admissionchecks", false, nil),
		kueueKind("Cohort", "cohorts", false, nil),
		kueueKind("ProvisioningRequestConfig", "provisioningrequestconfigs", false, nil),
		kueueKind("Topology", "topologies", false, nil),
		kueueKind("WorkloadPriorityClass", "workloadpriorityclasses", false, nil),
		kueueKind("MultiKueueCluster", "multikueueclusters", false, nil),
		kueueKind("MultiKueueConfig", "multikueueconfigs", false, nil),
		{Group: "rbac.authorization.k8s.io", Versions: []string{"v1"}, Kind: "Role", Plural: "roles", Singular: "role", Namespaced: true},
		{Group: "rbac.authorization.k8s.io", Versions: []string{"v1"}, Kind: "RoleBinding", Plural: "rolebindings", Singular: "rolebinding", Namespaced: true},
		{Group: "rbac.authorization.k8s.io", Versions: []string{"v1"}, Kind: "ClusterRole", Plural: "clusterroles", Singular: "clusterrole"},
		{Group: "rbac.authorization.k8s.io", Versions: []string{"v1"}, Kind: "ClusterRoleBinding", Plural: "clusterrolebindings", Singular: "clusterrolebinding"},
		{Group: "admissionregistration.k8s.io", Versions: []string{"v1"}, Kind: "MutatingWebhookConfiguration", Plural: "mutatingwebhookconfigurations", Singular: "mutatingwebhookconfiguration"},
		{Group: "admissionregistration.k8s.io", Versions: []string{"v1"}, Kind: "ValidatingWebhookConfiguration", Plural: "validatingwebhookconfigurations", Singular: "validatingwebhookconfiguration"},
		{Group: "flowcontrol.apiserver.k8s.io", Versions: []string{"v1"}, Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations", Singular: "prioritylevelconfiguration", Status: true},
		{Group: "flowcontrol.apiserver.k8s.io", Versions: []string{"v1"}, Kind: "FlowSchema", Plural: "flowschemas", Singular: "flowschema", Status: true},
		{Group: "apiregistration.k8s.io", Versions: []string{"v1"}, Kind: "APIService", Plural: "apiservices", Singular: "apiservice", Status: true},
	}
}

func kueueKind(kind, plural string, namespaced bool, typed func() any, short ...string) *Kind {
	return &Kind{
		Group: "kueue.x-k8s.io", Versions: []string{"v1beta1", "v1beta2"}, Kind: kind, Plural: plural,
		Singular: lower(kind), Short: short, Namespaced: namespaced, Status: true, Typed: typed,
	}
}
