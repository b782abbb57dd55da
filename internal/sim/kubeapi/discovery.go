package kubeapi

import (
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"multihost/internal/sim/kubeapi/store"
)

// serverVersion returns the version of the real engine with which tests compare this one.
func serverVersion() version.Info {
	return version.Info{
		Major: "1", Minor: "35", GitVersion: "v1.35.4-gke.sim", GitCommit: "0000000000000000000000000000000000000000", GitTreeState: "clean",
		BuildDate: "2026-04-15T00:00:00Z", GoVersion: "go1.25.9", Compiler: "gc", Platform: "linux/amd64",
	}
}

var verbs = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// podSubs are the subresources of pods without the status.
var podSubs = []struct {
	name, group, version, kind string
	verbs                      metav1.Verbs
}{
	{"eviction", "policy", "v1", "Eviction", metav1.Verbs{"create"}},
	{"exec", "", "v1", "PodExecOptions", metav1.Verbs{"create", "get"}},
	{"log", "", "v1", "Pod", metav1.Verbs{"get"}},
}

// discover answers a request for what the API serves. It reports whether r was such a
// request.
func (s objects) discover(w http.ResponseWriter, r *http.Request) bool {
	path := strings.Trim(r.URL.Path, "/")
	parts := strings.Split(path, "/")
	aggregated := strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList") && strings.Contains(r.Header.Get("Accept"), "v=v2;")
	aggregated = aggregated || strings.Contains(r.Header.Get("Accept"), "v=v2,")
	switch {
	case (path == "api" || path == "apis") && aggregated:
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		writeJSON(w, http.StatusOK, s.aggregated(path == "api"))
	case path == "api":
		writeJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
		for _, g := range s.groups() {
			if g.Name != "" {
				list.Groups = append(list.Groups, g)
			}
		}
		writeJSON(w, http.StatusOK, list)
	case len(parts) == 2 && parts[0] == "api":
		return s.resources(w, "", parts[1])
	case len(parts) == 3 && parts[0] == "apis":
		return s.resources(w, parts[1], parts[2])
	case len(parts) == 2 && parts[0] == "apis":
		i := slices.IndexFunc(s.groups(), func(g metav1.APIGroup) bool { return g.Name == parts[1] })
		if i < 0 {
			return false
		}
		g := s.groups()[i]
		g.Kind, g.APIVersion = "APIGroup", "v1"
		writeJSON(w, http.StatusOK, g)
	case len(parts) >= 2 && parts[0] == "openapi":
		return s.openAPI(w, strings.Join(parts[1:], "/"))
	default:
		return false
	}
	return true
}

// groups returns the groups with their versions, the preferred version first.
func (s objects) groups() []metav1.APIGroup {
	var groups []metav1.APIGroup
	for _, k := range s.store.Served() {
		i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == k.Group })
		if i < 0 {
			i = len(groups)
			groups = append(groups, metav1.APIGroup{Name: k.Group})
		}
		g := &groups[i]
		for _, v := range slices.Backward(k.Versions) {
			gv := metav1.GroupVersionForDiscovery{GroupVersion: k.GroupVersion(v).String(), Version: v}
			if !slices.Contains(g.Versions, gv) {
				g.Versions = append(g.Versions, gv)
			}
		}
		g.PreferredVersion = g.Versions[0]
	}
	return groups
}

// of returns the kinds in a version of a group.
func (s objects) of(group, version string) []*store.Kind {
	return slices.DeleteFunc(s.store.Served(), func(k *store.Kind) bool { return k.Group != group || !k.Serves(version) })
}

func (s objects) resources(w http.ResponseWriter, group, version string) bool {
	kinds := s.of(group, version)
	if len(kinds) == 0 {
		return false
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: kinds[0].GroupVersion(version).String()}
	for _, k := range kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Plural, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: k.Kind, Verbs: verbs, ShortNames: k.Short})
		if k.Status {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Plural + "/status", Namespaced: k.Namespaced, Kind: k.Kind, Verbs: metav1.Verbs{"get", "patch", "update"}})
		}
		if k == store.Pods {
			for _, sub := range podSubs {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: "pods/" + sub.name, Namespaced: true, Group: sub.group, Version: sub.version, Kind: sub.kind, Verbs: sub.verbs})
			}
		}
	}
	writeJSON(w, http.StatusOK, list)
	return true
}

func (s objects) aggregated(core bool) apidiscovery.APIGroupDiscoveryList {
	list := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}, Items: []apidiscovery.APIGroupDiscovery{}}
	for _, g := range s.groups() {
		if (g.Name == "") != core {
			continue
		}
		item := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			version := apidiscovery.APIVersionDiscovery{Version: v.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
			for _, k := range s.of(g.Name, v.Version) {
				version.Resources = append(version.Resources, discovery(k, v.Version))
			}
			item.Versions = append(item.Versions, version)
		}
		list.Items = append(list.Items, item)
	}
	return list
}

func discovery(k *store.Kind, version string) apidiscovery.APIResourceDiscovery {
	kind := metav1.GroupVersionKind{Group: k.Group, Version: version, Kind: k.Kind}
	r := apidiscovery.APIResourceDiscovery{Resource: k.Plural, ResponseKind: &kind, Scope: apidiscovery.ScopeCluster, SingularResource: k.Singular, Verbs: verbs, ShortNames: k.Short}
	if k.Namespaced {
		r.Scope = apidiscovery.ScopeNamespace
	}
	if k.Status {
		r.Subresources = append(r.Subresources, apidiscovery.APISubresourceDiscovery{Subresource: "status", ResponseKind: &kind, Verbs: metav1.Verbs{"get", "patch", "update"}})
	}
	if k == store.Pods {
		for _, sub := range podSubs {
			r.Subresources = append(r.Subresources, apidiscovery.APISubresourceDiscovery{
				Subresource: sub.name, ResponseKind: &metav1.GroupVersionKind{Group: sub.group, Version: sub.version, Kind: sub.kind}, Verbs: sub.verbs,
			})
		}
	}
	return r
}

// openAPI answers with the part of the schema that kubectl reads before it creates objects:
// the server itself checks their fields.
func (s objects) openAPI(w http.ResponseWriter, path string) bool {
	rest, ok := strings.CutPrefix(path, "v3")
	if !ok {
		return false
	}
	rest = strings.Trim(rest, "/")
	paths := map[string]any{}
	for _, g := range s.groups() {
		for _, v := range g.Versions {
			at := "apis/" + v.GroupVersion
			if g.Name == "" {
				at = "api/" + v.Version
			}
			paths[at] = map[string]any{"serverRelativeURL": "/openapi/v3/" + at}
			if rest == at {
				writeJSON(w, http.StatusOK, map[string]any{"openapi": "3.0.0", "info": map[string]any{"title": "Kubernetes", "version": "v1.35.4"}, "paths": s.patches(g.Name, v.Version)})
				return true
			}
		}
	}
	if rest != "" {
		return false
	}
	writeJSON(w, http.StatusOK, map[string]any{"paths": paths})
	return true
}

func (s objects) patches(group, version string) map[string]any {
	paths := map[string]any{}
	for _, k := range s.of(group, version) {
		paths["/apis/"+group+"/"+version+"/"+k.Plural+"/{name}"] = map[string]any{"patch": map[string]any{
			"parameters":                      []any{map[string]any{"name": "dryRun", "in": "query"}, map[string]any{"name": "fieldValidation", "in": "query"}},
			"responses":                       map[string]any{},
			"x-kubernetes-group-version-kind": map[string]any{"group": k.Group, "version": version, "kind": k.Kind},
		}}
	}
	return paths
}
