package kube

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// A Kind is a kind of object on API servers. T is the struct of such an object: a typed
// one, or unstructured.Unstructured.
type Kind[T any] struct {
	Group    string // "jobset.x-k8s.io"; "" for the core kinds
	Version  string // "v1alpha2"
	Resource string // name in paths: "jobsets"
	Kind     string // name in objects: "JobSet"
	Cluster  bool   // its objects are in no namespace
}

// Kinds that this program uses. Resource finds others.
var (
	Pods            = Kind[corev1.Pod]{Version: "v1", Resource: "pods", Kind: "Pod"}
	Events          = Kind[corev1.Event]{Version: "v1", Resource: "events", Kind: "Event"}
	Services        = Kind[corev1.Service]{Version: "v1", Resource: "services", Kind: "Service"}
	ConfigMaps      = Kind[corev1.ConfigMap]{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}
	ServiceAccounts = Kind[corev1.ServiceAccount]{Version: "v1", Resource: "serviceaccounts", Kind: "ServiceAccount"}
	Nodes           = Kind[corev1.Node]{Version: "v1", Resource: "nodes", Kind: "Node", Cluster: true}
	Namespaces      = Kind[corev1.Namespace]{Version: "v1", Resource: "namespaces", Kind: "Namespace", Cluster: true}
	Jobs            = Kind[batchv1.Job]{Group: "batch", Version: "v1", Resource: "jobs", Kind: "Job"}
	PriorityClasses = Kind[schedulingv1.PriorityClass]{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses", Kind: "PriorityClass", Cluster: true}
	Roles           = Kind[rbacv1.Role]{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles", Kind: "Role"}
	RoleBindings    = Kind[rbacv1.RoleBinding]{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings", Kind: "RoleBinding"}

	// AccessReviews are questions about the caller's permissions. Create is their only
	// call, and the new object has the answer.
	AccessReviews = Kind[authorizationv1.SelfSubjectAccessReview]{Group: "authorization.k8s.io", Version: "v1", Resource: "selfsubjectaccessreviews", Kind: "SelfSubjectAccessReview", Cluster: true}

	JobSets = Kind[jobset.JobSet]{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets", Kind: "JobSet"}

	ResourceFlavors = Kind[kueue.ResourceFlavor]{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "resourceflavors", Kind: "ResourceFlavor", Cluster: true}
	ClusterQueues   = Kind[kueue.ClusterQueue]{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "clusterqueues", Kind: "ClusterQueue", Cluster: true}
	LocalQueues     = Kind[kueue.LocalQueue]{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "localqueues", Kind: "LocalQueue"}
	Workloads       = Kind[kueue.Workload]{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "workloads", Kind: "Workload"}
)

func (k Kind[T]) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

// APIVersion is the apiVersion of the objects.
func (k Kind[T]) APIVersion() string {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.String()
}
