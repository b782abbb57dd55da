package projectapi

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

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

// These are the APIs about the project itself.
//
// Service Usage, v1: the services are those of cloud.APIs. All are enabled, except those
// that the fault api-disabled disables. Enabling a service ends that fault at once.
//
// Resource Manager, v1: the project's policy. At first it has the bindings of a new
// project: the user is its owner, and the default service account has roles/editor. Every
// caller has every permission by inheritance, with two exceptions. The default service
// account has only what the policy gives it, and tests remove its binding. The fault
// permission-denied takes permissions from callers who have them by inheritance or from the
// first two bindings; any other binding still grants the permissions of its role. Roles are
// those of cloud.Roles. Conditions are not modelled.
//
// Cloud Quotas, v1, and v1beta for gcloud: the quotas of the TPU API. The simulator has one
// pool per zone, so every quota of a zone has the same limit. It grants a preference at
// once.

// DispatchProject returns the function that answers requests about the project from the
// caller who. The caller of that function holds the lock.
func (s API) DispatchProject(who cloud.Caller) func(r *http.Request, body []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		_, rest, _ := strings.Cut(r.URL.Path, "/projects/")
		project, rest, _ := strings.Cut(rest, "/")
		project, verb, _ := strings.Cut(project, ":")
		if project != s.Config.Project && project != cloud.ProjectNumber {
			return nil, wire.Errorf(http.StatusForbidden, "The caller does not have permission")
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
		return nil, wire.UnknownMethod()
	}
}

// need returns an error for a caller without a permission in the project.
func (s API) need(who cloud.Caller, permission string) error {
	if who.May(s.Cloud, permission) {
		return nil
	}
	return wire.Errorf(http.StatusForbidden, "Permission '%s' denied on resource '//cloudresourcemanager.googleapis.com/projects/%s' (or it may not exist).", permission, s.Config.Project)
}

// serveServices answers Service Usage. rest is the part of the path after "services".
func (s API) serveServices(who cloud.Caller, r *http.Request, rest string, body []byte) (any, error) {
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
			if name != "" || parent != "projects/"+s.Config.Project && parent != "projects/"+cloud.ProjectNumber {
				return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'names': %q", full)
			}
			svc, err := s.Identity().Service(api)
			if err != nil {
				return nil, err
			}
			out.Services = append(out.Services, svc)
		}
		return out, nil
	case "GET ":
		if err := wire.CheckQuery(query); err != nil {
			return nil, err
		}
		if err := s.need(who, "serviceusage.services.get"); err != nil {
			return nil, err
		}
		if name == "" {
			return nil, wire.NotModelled("services.list")
		}
		return s.Identity().Service(name)
	case "POST enable":
		if err := wire.DecodeStrict(body, new(serviceusage.EnableServiceRequest), "enable_service_request"); err != nil {
			return nil, err
		}
		if err := s.need(who, "serviceusage.services.enable"); err != nil {
			return nil, err
		}
		if cloud.APIs()[name] == "" {
			return nil, cloud.NoService(name)
		}
		s.State.Faults = slices.DeleteFunc(s.State.Faults, func(a *cloud.ActiveFault) bool { return a.Name == "api-disabled" && a.Service == name })
		svc, err := s.Identity().Service(name)
		return map[string]any{"name": "operations/noop.DONE_OPERATION", "done": true, "response": map[string]any{
			"@type": "type.googleapis.com/google.api.serviceusage.v1.EnableServiceResponse", "service": svc,
		}}, err
	}
	return nil, wire.NotModelled("services" + rest)
}

// checkNames is checkQuery for a method with one parameter that may occur several times.
func checkNames(query url.Values, repeated string) error {
	query = maps.Clone(query)
	delete(query, repeated)
	return wire.CheckQuery(query)
}

var permissionPattern = regexp.MustCompile(`^[a-z]+\.[A-Za-z]+\.[A-Za-z]+$`)

// known reports whether a role other than those of the owner and the editor has a
// permission.
func known(permission string) bool {
	if !permissionPattern.MatchString(permission) {
		return false
	}
	for role, list := range cloud.Roles() {
		if role != "roles/owner" && role != "roles/editor" && slices.ContainsFunc(list, func(p string) bool { return cloud.Glob(p, permission) }) {
			return true
		}
	}
	return false
}

var memberPattern = regexp.MustCompile(`^(user|serviceAccount|group):[^@ :]+@[^@ :]+$`)

func (s API) servePolicy(who cloud.Caller, verb string, query url.Values, body []byte) (any, error) {
	if err := wire.CheckQuery(query); err != nil {
		return nil, err
	}
	switch verb {
	case "testIamPermissions":
		req := new(cloudresourcemanager.TestIamPermissionsRequest)
		if err := wire.DecodeStrict(body, req, "test_iam_permissions_request"); err != nil {
			return nil, err
		}
		if len(req.Permissions) > 100 {
			return nil, wire.Errorf(http.StatusBadRequest, "Request contains an invalid argument: at most 100 permissions.")
		}
		out := &cloudresourcemanager.TestIamPermissionsResponse{}
		for _, p := range req.Permissions {
			if !known(p) {
				return nil, wire.Errorf(http.StatusBadRequest, "Permission %s is not valid for this resource.", p)
			}
			if _, denied := who.Denied(s.Cloud, p); !denied {
				out.Permissions = append(out.Permissions, p)
			}
		}
		return out, nil
	case "getIamPolicy":
		if err := wire.DecodeStrict(body, new(cloudresourcemanager.GetIamPolicyRequest), "get_iam_policy_request"); err != nil {
			return nil, err
		}
		if !who.May(s.Cloud, "resourcemanager.projects.getIamPolicy") {
			return nil, wire.Errorf(http.StatusForbidden, "The caller does not have permission")
		}
		return s.policy(), nil
	case "setIamPolicy":
		req := new(cloudresourcemanager.SetIamPolicyRequest)
		if err := wire.DecodeStrict(body, req, "set_iam_policy_request"); err != nil {
			return nil, err
		}
		return s.setPolicy(req)
	}
	return nil, wire.NotModelled("projects." + verb)
}

func (s API) policy() *cloudresourcemanager.Policy {
	return &cloudresourcemanager.Policy{Version: 1, Etag: s.policyTag(), Bindings: s.State.Policy}
}

func (s API) policyTag() string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "policy-%d", s.State.PolicyCount))
}

func (s API) setPolicy(req *cloudresourcemanager.SetIamPolicyRequest) (any, error) {
	if req.Policy == nil {
		return nil, wire.Errorf(http.StatusBadRequest, "Request contains an invalid argument: policy is required.")
	}
	if req.Policy.Etag != "" && req.Policy.Etag != s.policyTag() {
		return nil, wire.Errorf(http.StatusConflict, "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.").WithStatus("ABORTED")
	}
	for _, b := range req.Policy.Bindings {
		switch {
		case b.Condition != nil:
			return nil, wire.NotModelled("A condition of a binding")
		case cloud.Roles()[b.Role] == nil:
			return nil, wire.Errorf(http.StatusBadRequest, "Role %s is not supported for this resource.", b.Role)
		}
		for _, m := range b.Members {
			if !memberPattern.MatchString(m) {
				return nil, wire.Errorf(http.StatusBadRequest, "Invalid policy member: %s", m)
			}
		}
	}
	s.State.Policy = req.Policy.Bindings
	s.State.PolicyCount++
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

func (s API) serveQuotas(who cloud.Caller, r *http.Request, rest string) (any, error) {
	api, below := strings.CutPrefix(rest, "services/")
	api, list := strings.CutSuffix(api, "/quotaInfos")
	if !below || !list || r.Method != http.MethodGet {
		return nil, wire.NotModelled(rest)
	}
	if err := wire.CheckQuery(r.URL.Query(), "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	if err := s.need(who, "cloudquotas.quotas.get"); err != nil {
		return nil, err
	}
	if api == "compute.googleapis.com" {
		return s.computeQuotas(r)
	}
	if api != "tpu.googleapis.com" {
		return nil, wire.NotModelled("The quotas of " + api)
	}
	ids, next, err := wire.Page(tpuQuotas(), r.URL.Query(), "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	infos := []any{}
	for _, id := range ids {
		var limits []any
		for _, zone := range s.Catalog().Zones() {
			value := int64(s.State.Quota[zone])
			if value == 0 {
				value = -1
			}
			limits = append(limits, map[string]any{
				"dimensions": map[string]string{"zone": zone}, "details": map[string]string{"value": strconv.FormatInt(value, 10)},
				"applicableLocations": []string{zone},
			})
		}
		infos = append(infos, map[string]any{
			"name":    fmt.Sprintf("projects/%s/locations/global/services/%s/quotaInfos/%s", cloud.ProjectNumber, api, id),
			"quotaId": id, "service": api, "isPrecise": true, "containerType": "PROJECT", "dimensions": []string{"zone"},
			"dimensionsInfos": limits,
		})
	}
	return map[string]any{"quotaInfos": infos, "nextPageToken": next}, nil
}

// computeQuotas lists the quotas of Compute Engine for TPU chips. Only the fault
// group-quota makes them a limit.
func (s API) computeQuotas(r *http.Request) (any, error) {
	value := "-1"
	if slices.ContainsFunc(s.State.Faults, func(a *cloud.ActiveFault) bool { return a.Name == "group-quota" }) {
		value = "0"
	}
	type quota struct{ id, family string }
	all := []quota{{"TPUS-PER-TPU-FAMILY-per-project-region", "CT5P"}, {"TPUS-PER-TPU-FAMILY-per-project-region", "CT6E"}, {"TPUS-PER-TPU-FAMILY-per-project-region", "TPU7X"}}
	for _, generation := range []string{"V5P", "V6E", "TPU7X"} {
		all = append(all, quota{"PREEMPTIBLE-TPU-" + generation + "-per-project-region", ""})
	}
	var infos []any
	var limits []any
	for n, q := range all {
		for _, region := range s.Catalog().Regions() {
			dimensions := map[string]string{"region": region}
			if q.family != "" {
				dimensions["tpu_family"] = q.family
			}
			limits = append(limits, map[string]any{"dimensions": dimensions, "details": map[string]string{"value": value}, "applicableLocations": []string{region}})
		}
		if n+1 < len(all) && all[n+1].id == q.id {
			continue
		}
		names := []string{"region"}
		if q.family != "" {
			names = append(names, "tpu_family")
		}
		infos = append(infos, map[string]any{
			"name":    fmt.Sprintf("projects/%s/locations/global/services/compute.googleapis.com/quotaInfos/%s", cloud.ProjectNumber, q.id),
			"quotaId": q.id, "service": "compute.googleapis.com", "isPrecise": true, "containerType": "PROJECT", "dimensions": names, "dimensionsInfos": limits,
		})
		limits = nil
	}
	infos, next, err := wire.Page(infos, r.URL.Query(), "pageSize", 1000)
	return map[string]any{"quotaInfos": infos, "nextPageToken": next}, err
}

func (s API) serveQuotaPreferences(who cloud.Caller, r *http.Request, body []byte) (any, error) {
	if r.Method != http.MethodPost {
		return nil, wire.NotModelled("quotaPreferences other than create")
	}
	if err := wire.CheckQuery(r.URL.Query(), "quotaPreferenceId"); err != nil {
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
	if err := wire.DecodeStrict(body, &req, "quota_preference"); err != nil {
		return nil, err
	}
	zone := req.Dimensions["zone"]
	value, err := strconv.Atoi(req.QuotaConfig.PreferredValue)
	switch {
	case req.Service != "tpu.googleapis.com" || !slices.Contains(tpuQuotas(), req.QuotaID):
		return nil, wire.Errorf(http.StatusNotFound, "The quota %s of service %s was not found.", req.QuotaID, req.Service)
	case len(req.Dimensions) != 1 || !slices.Contains(s.Catalog().Zones(), zone):
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid dimensions %v for quota %s.", req.Dimensions, req.QuotaID)
	case err != nil || value < 0:
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'quota_preference.quota_config.preferred_value': %q", req.QuotaConfig.PreferredValue)
	case value > s.State.Quota[zone] && req.ContactEmail == "":
		return nil, wire.Errorf(http.StatusBadRequest, "contact_email is required for an increase of quota.")
	}
	s.State.Quota[zone] = value
	id := r.URL.Query().Get("quotaPreferenceId")
	if id == "" {
		id = fmt.Sprintf("%x", cloud.NewID())
	}
	return map[string]any{
		"name": fmt.Sprintf("projects/%s/locations/global/quotaPreferences/%s", cloud.ProjectNumber, id), "service": req.Service, "quotaId": req.QuotaID,
		"dimensions": req.Dimensions, "quotaConfig": map[string]any{"preferredValue": req.QuotaConfig.PreferredValue, "grantedValue": req.QuotaConfig.PreferredValue},
		"createTime": s.Timestamp(), "reconciling": false,
	}, nil
}
