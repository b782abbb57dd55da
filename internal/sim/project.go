package sim

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/serviceusage/v1"
)

// The APIs about the project itself.
//
// Service Usage, v1: the services are those of apis. All are enabled, except those that
// the fault api-disabled disables; enabling one ends that fault at once.
//
// Resource Manager, v1: the project's policy. At first it has the bindings of a new
// project: the user is its owner, and the default service account has roles/editor. Every
// caller has every permission by inheritance, with two exceptions. The default service
// account has only what the policy gives it: tests remove its binding. The fault
// permission-denied removes permissions from everybody's inheritance and from the first
// two bindings; any other binding grants the permissions of its role even then. Roles are
// those of roles, without conditions.
//
// Cloud Quotas, v1, and v1beta, which gcloud uses: the quotas of the TPU API. The
// simulator has one pool for each zone, so every quota of a zone has the same limit; it
// grants a preference at once.

// apis returns the services that can be enabled, with their display names.
func apis() map[string]string {
	return map[string]string{
		"tpu.googleapis.com": "Cloud TPU API", "compute.googleapis.com": "Compute Engine API", "oslogin.googleapis.com": "Cloud OS Login API",
		"storage.googleapis.com": "Cloud Storage API", "secretmanager.googleapis.com": "Secret Manager API",
		"serviceusage.googleapis.com": "Service Usage API", "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
		"cloudquotas.googleapis.com": "Cloud Quotas API", "iap.googleapis.com": "Cloud Identity-Aware Proxy API",
	}
}

// apiOf returns the service that a request is for; "" means none that can be disabled.
func apiOf(r *http.Request) string {
	switch path := r.URL.Path; {
	case isStorage(r):
		return "storage.googleapis.com"
	case strings.HasPrefix(path, "/compute/"):
		return "compute.googleapis.com"
	case r.URL.Path == "/oauth2/v2/userinfo":
		return "" // works without any enabled API
	case isOSLogin(r):
		return "oslogin.googleapis.com"
	case isSecrets(r):
		return "secretmanager.googleapis.com"
	case isProject(r):
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

// disabled refuses requests for a disabled API. The caller holds s.mu.
func (s *Cloud) disabled(r *http.Request) *apiError {
	api := apiOf(r)
	if api == "" || s.find("api-disabled", func(a *activeFault) bool { return a.Service == api }) == nil {
		return nil
	}
	return errorf(http.StatusForbidden, "%s has not been used in project %s before or it is disabled. Enable it by visiting https://console.developers.google.com/apis/api/%s/overview?project=%s then retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry.",
		apis()[api], projectNumber, api, projectNumber).withReason("accessNotConfigured").withDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED", "domain": "googleapis.com",
		"metadata": map[string]string{"consumer": "projects/" + projectNumber, "service": api},
	})
}

// isProject reports whether a request is for one of the APIs of this file.
func isProject(r *http.Request) bool {
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

func (s *Cloud) dispatchProject(who caller) func(r *http.Request, body []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		_, rest, _ := strings.Cut(r.URL.Path, "/projects/")
		project, rest, _ := strings.Cut(rest, "/")
		project, verb, _ := strings.Cut(project, ":")
		if project != s.cfg.Project && project != projectNumber {
			return nil, errorf(http.StatusForbidden, "The caller does not have permission")
		}
		switch {
		case verb != "" && r.Method == http.MethodPost:
			return s.servePolicy(who, verb, r.URL.Query(), body)
		case rest == "locations/global/quotaPreferences":
			return s.serveQuotaPreferences(who, r, body)
		case strings.HasPrefix(rest, "locations/global/"):
			return s.serveQuotas(who, r, strings.TrimPrefix(rest, "locations/global/"))
		case strings.HasPrefix(rest, "services"):
			return s.serveServices(who, r, strings.TrimPrefix(rest, "services"), body)
		}
		return nil, unknownMethod()
	}
}

// need refuses a caller without a permission in the project.
func (s *Cloud) need(who caller, permission string) error {
	if who.may(s, permission) {
		return nil
	}
	return errorf(http.StatusForbidden, "Permission '%s' denied on resource '//cloudresourcemanager.googleapis.com/projects/%s' (or it may not exist).", permission, s.cfg.Project)
}

// serveServices answers Service Usage; rest is what follows "services".
func (s *Cloud) serveServices(who caller, r *http.Request, rest string, body []byte) (any, error) {
	name, verb, _ := strings.Cut(strings.TrimPrefix(rest, "/"), ":")
	query := r.URL.Query()
	switch r.Method + " " + verb {
	case "GET batchGet":
		if err := checkNames(query, "names"); err != nil {
			return nil, err
		}
		if err := s.need(who, "serviceusage.services.get"); err != nil {
			return nil, err
		}
		out := &serviceusage.BatchGetServicesResponse{}
		for _, full := range query["names"] {
			parent, api, _ := strings.Cut(full, "/services/")
			if name != "" || parent != "projects/"+s.cfg.Project && parent != "projects/"+projectNumber {
				return nil, errorf(http.StatusBadRequest, "Invalid value at 'names': %q", full)
			}
			svc, err := s.service(api)
			if err != nil {
				return nil, err
			}
			out.Services = append(out.Services, svc)
		}
		return out, nil
	case "GET ":
		if err := checkQuery(query); err != nil {
			return nil, err
		}
		if err := s.need(who, "serviceusage.services.get"); err != nil {
			return nil, err
		}
		if name == "" {
			return nil, notModelled("services.list")
		}
		return s.service(name)
	case "POST enable":
		if err := decodeStrict(body, new(serviceusage.EnableServiceRequest), "enable_service_request"); err != nil {
			return nil, err
		}
		if err := s.need(who, "serviceusage.services.enable"); err != nil {
			return nil, err
		}
		if apis()[name] == "" {
			return nil, noService(name)
		}
		s.state.faults = slices.DeleteFunc(s.state.faults, func(a *activeFault) bool { return a.Name == "api-disabled" && a.Service == name })
		svc, err := s.service(name)
		return map[string]any{"name": "operations/noop.DONE_OPERATION", "done": true, "response": map[string]any{
			"@type": "type.googleapis.com/google.api.serviceusage.v1.EnableServiceResponse", "service": svc,
		}}, err
	}
	return nil, notModelled("services" + rest)
}

// checkNames is checkQuery for a method with one parameter that may be repeated.
func checkNames(query url.Values, repeated string) error {
	query = maps.Clone(query)
	delete(query, repeated)
	return checkQuery(query)
}

func noService(name string) error {
	return errorf(http.StatusForbidden, "Not found or permission denied for service(s): %s.", name)
}

func (s *Cloud) service(name string) (*serviceusage.GoogleApiServiceusageV1Service, error) {
	if apis()[name] == "" {
		return nil, noService(name)
	}
	state := "ENABLED"
	if s.find("api-disabled", func(a *activeFault) bool { return a.Service == name }) != nil {
		state = "DISABLED"
	}
	return &serviceusage.GoogleApiServiceusageV1Service{
		Name: "projects/" + projectNumber + "/services/" + name, Parent: "projects/" + projectNumber, State: state,
		Config: &serviceusage.GoogleApiServiceusageV1ServiceConfig{Name: name, Title: apis()[name]},
	}, nil
}

// roles returns the permissions of each role, as patterns. Google has more roles; the
// table has those that multihost and its documents mention.
func roles() map[string][]string {
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
		"roles/compute.viewer":                    append(reads("compute.networks", "compute.subnetworks", "compute.firewalls", "compute.zones", "compute.regions", "compute.globalOperations", "compute.regionOperations"), "compute.projects.get"),
		"roles/compute.networkAdmin":              append(reads("compute.firewalls", "compute.zones", "compute.regions"), "compute.networks.*", "compute.subnetworks.*", "compute.globalOperations.*", "compute.regionOperations.get", "compute.regionOperations.list", "compute.projects.get"),
		"roles/compute.securityAdmin":             append(reads("compute.networks", "compute.zones", "compute.regions"), "compute.firewalls.*", "compute.networks.updatePolicy", "compute.globalOperations.get", "compute.projects.get"),
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

var permissionPattern = regexp.MustCompile(`^[a-z]+\.[A-Za-z]+\.[A-Za-z]+$`)

// known reports whether a role other than the owner's and the editor's has a permission.
func known(permission string) bool {
	if !permissionPattern.MatchString(permission) {
		return false
	}
	for role, list := range roles() {
		if role != "roles/owner" && role != "roles/editor" && slices.ContainsFunc(list, func(p string) bool { return glob(p, permission) }) {
			return true
		}
	}
	return false
}

// defaultAccount is the service account of nodes whose request names none.
const defaultAccount = projectNumber + "-compute@developer.gserviceaccount.com"

// firstPolicy returns the bindings of a new project.
func firstPolicy() []*cloudresourcemanager.Binding {
	return []*cloudresourcemanager.Binding{
		{Role: "roles/editor", Members: []string{"serviceAccount:" + defaultAccount}},
		{Role: "roles/owner", Members: []string{"user:" + simAccount}},
	}
}

// isFirst reports whether b gives email the role that it has in firstPolicy.
func isFirst(b *cloudresourcemanager.Binding, email string) bool {
	return b.Role == "roles/editor" && email == defaultAccount || b.Role == "roles/owner" && email == simAccount
}

// granted reports whether a binding of the project's policy grants a permission. With
// first, the bindings of firstPolicy count too. The caller holds s.mu.
func (s *Cloud) granted(email, permission string, first bool) bool {
	for _, b := range s.state.policy {
		if !first && isFirst(b, email) || !slices.ContainsFunc(b.Members, func(m string) bool { _, who, _ := strings.Cut(m, ":"); return who == email }) {
			continue
		}
		if slices.ContainsFunc(roles()[b.Role], func(p string) bool { return glob(p, permission) }) {
			return true
		}
	}
	return false
}

var memberPattern = regexp.MustCompile(`^(user|serviceAccount|group):[^@ :]+@[^@ :]+$`)

func (s *Cloud) servePolicy(who caller, verb string, query url.Values, body []byte) (any, error) {
	if err := checkQuery(query); err != nil {
		return nil, err
	}
	switch verb {
	case "testIamPermissions":
		req := new(cloudresourcemanager.TestIamPermissionsRequest)
		if err := decodeStrict(body, req, "test_iam_permissions_request"); err != nil {
			return nil, err
		}
		if len(req.Permissions) > 100 {
			return nil, errorf(http.StatusBadRequest, "Request contains an invalid argument: at most 100 permissions.")
		}
		out := &cloudresourcemanager.TestIamPermissionsResponse{}
		for _, p := range req.Permissions {
			if !known(p) {
				return nil, errorf(http.StatusBadRequest, "Permission %s is not valid for this resource.", p)
			}
			if _, denied := who.denied(s, p); !denied {
				out.Permissions = append(out.Permissions, p)
			}
		}
		return out, nil
	case "getIamPolicy":
		if err := decodeStrict(body, new(cloudresourcemanager.GetIamPolicyRequest), "get_iam_policy_request"); err != nil {
			return nil, err
		}
		if !who.may(s, "resourcemanager.projects.getIamPolicy") {
			return nil, errorf(http.StatusForbidden, "The caller does not have permission")
		}
		return s.policy(), nil
	case "setIamPolicy":
		req := new(cloudresourcemanager.SetIamPolicyRequest)
		if err := decodeStrict(body, req, "set_iam_policy_request"); err != nil {
			return nil, err
		}
		return s.setPolicy(req)
	}
	return nil, notModelled("projects." + verb)
}

func (s *Cloud) policy() *cloudresourcemanager.Policy {
	return &cloudresourcemanager.Policy{Version: 1, Etag: s.policyTag(), Bindings: s.state.policy}
}

func (s *Cloud) policyTag() string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "policy-%d", s.state.policyCount))
}

func (s *Cloud) setPolicy(req *cloudresourcemanager.SetIamPolicyRequest) (any, error) {
	if req.Policy == nil {
		return nil, errorf(http.StatusBadRequest, "Request contains an invalid argument: policy is required.")
	}
	if req.Policy.Etag != "" && req.Policy.Etag != s.policyTag() {
		return nil, errorf(http.StatusConflict, "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.").withStatus("ABORTED")
	}
	for _, b := range req.Policy.Bindings {
		switch {
		case b.Condition != nil:
			return nil, notModelled("A condition of a binding")
		case roles()[b.Role] == nil:
			return nil, errorf(http.StatusBadRequest, "Role %s is not supported for this resource.", b.Role)
		}
		for _, m := range b.Members {
			if !memberPattern.MatchString(m) {
				return nil, errorf(http.StatusBadRequest, "Invalid policy member: %s", m)
			}
		}
	}
	s.state.policy = req.Policy.Bindings
	s.state.policyCount++
	return s.policy(), nil
}

// tpuQuotas returns the ids of the quotas of the TPU API.
func tpuQuotas() []string {
	var ids []string
	for _, family := range []string{"V2s%s", "V2s%sPod", "V3s%s", "V3s%sPod", "V4s%sPod", "V5s%sLitepod", "V5s%sLitepodServing", "V5P%s", "V6E%s"} {
		for _, tier := range []string{"", "Preemptible", "Reserved"} {
			ids = append(ids, "TPU"+fmt.Sprintf(family, tier)+"PerProjectPerZoneForTPUAPI")
		}
	}
	return ids
}

func (s *Cloud) serveQuotas(who caller, r *http.Request, rest string) (any, error) {
	api, below := strings.CutPrefix(rest, "services/")
	api, list := strings.CutSuffix(api, "/quotaInfos")
	if !below || !list || r.Method != http.MethodGet {
		return nil, notModelled(rest)
	}
	if err := checkQuery(r.URL.Query(), "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	if err := s.need(who, "cloudquotas.quotas.get"); err != nil {
		return nil, err
	}
	if api != "tpu.googleapis.com" {
		return nil, notModelled("The quotas of " + api)
	}
	ids, next, err := page(tpuQuotas(), r.URL.Query(), "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	infos := []any{}
	for _, id := range ids {
		var limits []any
		for _, zone := range s.zones() {
			value := int64(s.state.quota[zone])
			if value == 0 {
				value = -1
			}
			limits = append(limits, map[string]any{
				"dimensions": map[string]string{"zone": zone}, "details": map[string]string{"value": strconv.FormatInt(value, 10)},
				"applicableLocations": []string{zone},
			})
		}
		infos = append(infos, map[string]any{
			"name":    fmt.Sprintf("projects/%s/locations/global/services/%s/quotaInfos/%s", projectNumber, api, id),
			"quotaId": id, "service": api, "isPrecise": true, "containerType": "PROJECT", "dimensions": []string{"zone"},
			"dimensionsInfos": limits,
		})
	}
	return map[string]any{"quotaInfos": infos, "nextPageToken": next}, nil
}

func (s *Cloud) serveQuotaPreferences(who caller, r *http.Request, body []byte) (any, error) {
	if r.Method != http.MethodPost {
		return nil, notModelled("quotaPreferences other than create")
	}
	if err := checkQuery(r.URL.Query(), "quotaPreferenceId"); err != nil {
		return nil, err
	}
	if err := s.need(who, "cloudquotas.quotas.update"); err != nil {
		return nil, err
	}
	var req struct {
		Name        string            `json:"name"`
		Service     string            `json:"service"`
		QuotaID     string            `json:"quotaId"`
		Dimensions  map[string]string `json:"dimensions"`
		QuotaConfig struct {
			PreferredValue string `json:"preferredValue"`
		} `json:"quotaConfig"`
		ContactEmail  string `json:"contactEmail"`
		Justification string `json:"justification"`
	}
	if err := decodeStrict(body, &req, "quota_preference"); err != nil {
		return nil, err
	}
	zone := req.Dimensions["zone"]
	value, err := strconv.Atoi(req.QuotaConfig.PreferredValue)
	switch {
	case req.Service != "tpu.googleapis.com" || !slices.Contains(tpuQuotas(), req.QuotaID):
		return nil, errorf(http.StatusNotFound, "The quota %s of service %s was not found.", req.QuotaID, req.Service)
	case len(req.Dimensions) != 1 || !slices.Contains(s.zones(), zone):
		return nil, errorf(http.StatusBadRequest, "Invalid dimensions %v for quota %s.", req.Dimensions, req.QuotaID)
	case err != nil || value < 0:
		return nil, errorf(http.StatusBadRequest, "Invalid value at 'quota_preference.quota_config.preferred_value': %q", req.QuotaConfig.PreferredValue)
	case value > s.state.quota[zone] && req.ContactEmail == "":
		return nil, errorf(http.StatusBadRequest, "contact_email is required for an increase of quota.")
	}
	s.state.quota[zone] = value
	id := r.URL.Query().Get("quotaPreferenceId")
	if id == "" {
		id = fmt.Sprintf("%x", newID())
	}
	return map[string]any{
		"name": fmt.Sprintf("projects/%s/locations/global/quotaPreferences/%s", projectNumber, id), "service": req.Service, "quotaId": req.QuotaID,
		"dimensions": req.Dimensions, "quotaConfig": map[string]any{"preferredValue": req.QuotaConfig.PreferredValue, "grantedValue": req.QuotaConfig.PreferredValue},
		"createTime": s.timestamp(), "reconciling": false,
	}, nil
}
