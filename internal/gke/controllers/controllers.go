// Package controllers installs JobSet and Kueue in a cluster, by server-side apply of the
// objects that their projects publish, and makes the queue of the slices.
//
// An installation that is newer, or that somebody else has made, stays as it is, because
// other workloads rely on it. multihost only checks that it can use the installation.
package controllers

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:generate go run multihost/release/manifests

// A Controller is one of the programs that a cluster needs for workloads.
type Controller struct {
	Name       string // "JobSet"
	Module     string // Go module with the manifests
	Version    string // of the module and of the image
	Image      string // without version
	Namespace  string
	Deployment string
	APIVersion string // of Kind, a kind that the controller serves
	Kind       string
}

// All returns the controllers in the order of installation.
func All() []Controller {
	return []Controller{
		{
			Name: "JobSet", Module: "sigs.k8s.io/jobset", Version: "v0.11.1", Image: "registry.k8s.io/jobset/jobset",
			Namespace: "jobset-system", Deployment: "jobset-controller-manager", APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet",
		},
		{
			Name: "Kueue", Module: "sigs.k8s.io/kueue", Version: "v0.17.0", Image: "registry.k8s.io/kueue/kueue",
			Namespace: "kueue-system", Deployment: "kueue-controller-manager", APIVersion: "kueue.x-k8s.io/v1beta1", Kind: "ClusterQueue",
		},
	}
}

// File returns the name of the file with the objects of c.
func (c Controller) File() string {
	return c.Deployment[:len(c.Deployment)-len("-controller-manager")] + ".json.gz"
}

//go:embed *.json.gz
var files embed.FS

// Objects returns the objects of c in the order in which Apply makes them. Namespaces, kinds and
// other objects that later ones need come first. Objects that let the API server call the
// controller come last.
func (c Controller) Objects() ([]unstructured.Unstructured, error) {
	packed, err := files.ReadFile(c.File())
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("read objects of %s: %w", c.Name, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("read objects of %s: %w", c.Name, err)
	}
	var all []map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read objects of %s: %w", c.Name, err)
	}
	objects := make([]unstructured.Unstructured, len(all))
	for i, o := range all {
		objects[i] = unstructured.Unstructured{Object: o}
	}
	slices.SortStableFunc(objects, func(a, b unstructured.Unstructured) int { return rank(a.GetKind()) - rank(b.GetKind()) })
	return objects, nil
}

const kindCRD = "CustomResourceDefinition"

// rank returns the place of a kind in the order of Objects.
func rank(kind string) int {
	order := []string{"Namespace", kindCRD, "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "Service", "Deployment", "APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}
