package cloud

import (
	"net/http"
	"slices"
	"strings"

	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/serviceusage/v1"

	"multihost/internal/sim/wire"
)

// APIs returns the services that a user can enable, with their display names.
func APIs() map[string]string {
	return map[string]string{
		"tpu.googleapis.com": "Cloud TPU API", "compute.googleapis.com": "Compute Engine API", "oslogin.googleapis.com": "Cloud OS Login API",
		"storage.googleapis.com": "Cloud Storage API", "secretmanager.googleapis.com": "Secret Manager API",
		"serviceusage.googleapis.com": "Service Usage API", "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
		"cloudquotas.googleapis.com": "Cloud Quotas API", "container.googleapis.com": "Kubernetes Engine API", "iap.googleapis.com": "Cloud Identity-Aware Proxy API",
	}
}

// apiOf returns the service of a request, or "" if it cannot be disabled.
func apiOf(r *http.Request) string {
	switch path := r.URL.Path; {
	case IsStorage(r):
		return "storage.googleapis.com"
	case strings.HasPrefix(path, "/compute/"):
		return "compute.googleapis.com"
	case r.URL.Path == "/oauth2/v2/userinfo":
		return "" // works without any enabled API
	case IsOSLogin(r):
		return "oslogin.googleapis.com"
	case IsSecrets(r):
		return "secretmanager.googleapis.com"
	case IsContainer(r):
		return "container.googleapis.com"
	case IsProject(r):
		switch {
		case strings.Contains(path, "/locations/"):
			return "cloudquotas.googleapis.com"
		case strings.Contains(path, "/services"):
			return "serviceusage.googleapis.com"
		}
		return "cloudresourcemanager.googleapis.com"
	}
	return "tpu.googleapis.com"
}

// disabled returns an error for a request to a disabled API. The caller holds s.Mu.
func (s Identity) disabled(r *http.Request) *wire.Error {
	api := apiOf(r)
	if api == "" || s.Injection().find("api-disabled", func(a *ActiveFault) bool { return a.Service == api }) == nil {
		return nil
	}
	return wire.Errorf(http.StatusForbidden, "%s has not been used in project %s before or it is disabled. Enable it by visiting https://console.developers.google.com/apis/api/%s/overview?project=%s then retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry.",
		APIs()[api], ProjectNumber, api, ProjectNumber).WithReason("accessNotConfigured").WithDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED", "domain": "googleapis.com",
		"metadata": map[string]string{"consumer": "projects/" + ProjectNumber, "service": api},
	})
}

// IsProject reports whether a request is for an API of this file.
func IsProject(r *http.Request) bool {
	if strings.HasPrefix(r.URL.Path, "/v1beta/projects/") {
		return strings.Contains(r.URL.Path, "/locations/global/")
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/projects/")
	if !ok {
		return false
	}
	project, rest, below := strings.Cut(rest, "/")
	return strings.Contains(project, ":") || below && (rest == "services" || strings.HasPrefix(rest, "services/") || strings.HasPrefix(rest, "services:") ||
		strings.HasPrefix(rest, "locations/global/"))
}

// NoService is the error of a service that does not exist.
func NoService(name string) error {
	return wire.Errorf(http.StatusForbidden, "Not found or permission denied for service(s): %s.", name)
}

// Service returns a service of the project, and whether it is enabled.
func (s Identity) Service(name string) (*serviceusage.GoogleApiServiceusageV1Service, error) {
	if APIs()[name] == "" {
		return nil, NoService(name)
	}
	state := "ENABLED"
	if s.Injection().find("api-disabled", func(a *ActiveFault) bool { return a.Service == name }) != nil {
		state = "DISABLED"
	}
	return &serviceusage.GoogleApiServiceusageV1Service{
		Name: "projects/" + ProjectNumber + "/services/" + name, Parent: "projects/" + ProjectNumber, State: state,
		Config: &serviceusage.GoogleApiServiceusageV1ServiceConfig{Name: name, Title: APIs()[name]},
	}, nil
}

// Roles returns the permissions of each role, as patterns: of the roles that multihost and
// its documents mention.
func Roles() map[string][]string {
	reads := func(resources ...string) (all []string) {
		for _, r := range resources {
			all = append(all, r+".get", r+".list")
		}
		return all
	}
	return map[string][]string{
		"roles/owner":                             {"*"},
		"roles/editor":                            {"*"},
		"roles/iam.securityReviewer":              {"resourcemanager.projects.getIamPolicy"},
		"roles/resourcemanager.projectIamAdmin":   {"resourcemanager.projects.get", "resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"},
		"roles/tpu.admin":                         {"tpu.*"},
		"roles/tpu.viewer":                        reads("tpu.nodes", "tpu.operations", "tpu.locations"),
		"roles/compute.viewer":                    append(reads("compute.instances", "compute.instanceGroupManagers", "compute.instanceTemplates", "compute.resourcePolicies", "compute.reservations", "compute.machineTypes", "compute.networks", "compute.subnetworks", "compute.firewalls", "compute.zones", "compute.regions", "compute.globalOperations", "compute.regionOperations", "compute.zoneOperations"), "compute.projects.get"),
		"roles/compute.networkAdmin":              append(reads("compute.firewalls", "compute.zones", "compute.regions"), "compute.networks.*", "compute.subnetworks.*", "compute.globalOperations.*", "compute.regionOperations.get", "compute.regionOperations.list", "compute.projects.get"),
		"roles/compute.securityAdmin":             append(reads("compute.networks", "compute.zones", "compute.regions"), "compute.firewalls.*", "compute.networks.updatePolicy", "compute.globalOperations.get", "compute.projects.get"),
		"roles/container.admin":                   {"container.*"},
		"roles/container.viewer":                  reads("container.clusters", "container.operations"),
		"roles/compute.admin":                     {"compute.*"},
		"roles/compute.instanceAdmin.v1":          append(reads("compute.networks", "compute.subnetworks", "compute.zones", "compute.regions", "compute.machineTypes", "compute.reservations", "compute.reservationBlocks", "compute.globalOperations", "compute.regionOperations", "compute.zoneOperations"), "compute.instances.*", "compute.instanceGroups.*", "compute.instanceGroupManagers.*", "compute.instanceTemplates.*", "compute.resourcePolicies.*", "compute.autoscalers.*", "compute.disks.*", "compute.images.*", "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.projects.get"),
		"roles/compute.osLogin":                   {"compute.instances.osLogin"},
		"roles/compute.osAdminLogin":              {"compute.instances.osLogin", "compute.instances.osAdminLogin"},
		"roles/iam.serviceAccountUser":            {"iam.serviceAccounts.actAs", "iam.serviceAccounts.get", "iam.serviceAccounts.list"},
		"roles/iap.tunnelResourceAccessor":        {"iap.tunnelInstances.accessViaIAP"},
		"roles/serviceusage.serviceUsageConsumer": append(reads("serviceusage.services", "serviceusage.quotas"), "serviceusage.services.use"),
		"roles/serviceusage.serviceUsageAdmin":    {"serviceusage.*"},
		"roles/cloudquotas.viewer":                {"cloudquotas.quotas.get"},
		"roles/cloudquotas.admin":                 {"cloudquotas.*"},
		"roles/storage.admin":                     {"storage.*"},
		"roles/secretmanager.secretAccessor":      {"secretmanager.versions.access"},
	}
}

// DefaultAccount is the service account of nodes whose request names none.
const DefaultAccount = ProjectNumber + "-compute@developer.gserviceaccount.com"

// firstPolicy returns the bindings of a new project.
func firstPolicy() []*cloudresourcemanager.Binding {
	return []*cloudresourcemanager.Binding{
		{Role: "roles/editor", Members: []string{"serviceAccount:" + DefaultAccount}},
		{Role: "roles/owner", Members: []string{"user:" + SimAccount}},
	}
}

// isFirst reports whether b gives email the role that it has in firstPolicy.
func isFirst(b *cloudresourcemanager.Binding, email string) bool {
	return b.Role == "roles/editor" && email == DefaultAccount || b.Role == "roles/owner" && email == SimAccount
}

// granted reports whether a binding of the project's policy grants a permission. With
// first, the bindings of firstPolicy count, too. The caller holds s.Mu.
func (s Identity) granted(email, permission string, first bool) bool {
	for _, b := range s.State.Policy {
		if !first && isFirst(b, email) || !slices.ContainsFunc(b.Members, func(m string) bool { _, who, _ := strings.Cut(m, ":"); return who == email }) {
			continue
		}
		if slices.ContainsFunc(Roles()[b.Role], func(p string) bool { return Glob(p, permission) }) {
			return true
		}
	}
	return false
}
