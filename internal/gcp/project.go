package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/googleapi"
	oauth2 "google.golang.org/api/oauth2/v2"
	"google.golang.org/api/option"
	"google.golang.org/api/serviceusage/v1"
)

// quotaHeader names the project whose quota a call uses. Without it, the APIs of this file
// refuse a person's credentials. A quota project of Config or of the credentials replaces
// it; see authTransport.
const quotaHeader = "X-Goog-User-Project"

// projectOptions returns the options for a client of an API about the project itself.
func (c *Client) projectOptions(api, endpoint string) ([]option.ClientOption, error) {
	opts := []option.ClientOption{option.WithHTTPClient(c.http), option.WithUserAgent(c.cfg.UserAgent)}
	if endpoint != "" {
		root, err := endpointRoot(api, endpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(root+"/"))
	}
	return opts, nil
}

func (c *Client) resourceManager(ctx context.Context) (*cloudresourcemanager.Service, error) {
	opts, err := c.projectOptions("Resource Manager", c.cfg.ResourceManagerEndpoint)
	if err != nil {
		return nil, err
	}
	svc, err := cloudresourcemanager.NewService(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open Resource Manager client: %w", err)
	}
	return svc, nil
}

// askProject makes a call of an API about the project itself. The parameter what describes
// the call in errors.
func askProject[T any, C interface {
	Context(ctx context.Context) C
	Header() http.Header
	Do(...googleapi.CallOption) (T, error)
}](ctx context.Context, c *Client, what string, call C) (answer T, err error) {
	err = c.Do(ctx, what, func(ctx context.Context) (err error) {
		call = call.Context(ctx)
		call.Header().Set(quotaHeader, c.cfg.Project)
		answer, err = call.Do()
		return err
	})
	return answer, err
}

// Enabled reports which of the APIs, for example tpu.googleapis.com, are enabled in the
// project.
func (c *Client) Enabled(ctx context.Context, apis ...string) (map[string]bool, error) {
	opts, err := c.projectOptions("Service Usage", c.cfg.ServiceUsageEndpoint)
	if err != nil {
		return nil, err
	}
	svc, err := serviceusage.NewService(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open Service Usage client: %w", err)
	}
	parent := "projects/" + c.cfg.Project
	names := make([]string, len(apis))
	for i, api := range apis {
		names[i] = parent + "/services/" + api
	}
	answer, err := askProject(ctx, c, "ask which APIs are enabled", svc.Services.BatchGet(parent).Names(names...))
	if err != nil {
		return nil, err
	}
	enabled := map[string]bool{}
	for _, s := range answer.Services {
		enabled[BaseName(s.Name)] = s.State == "ENABLED"
	}
	return enabled, nil
}

// Lacking returns the permissions that the caller lacks for the whole project. The caller
// may have them on single resources. permissions has at most 100 entries.
func (c *Client) Lacking(ctx context.Context, permissions []string) ([]string, error) {
	svc, err := c.resourceManager(ctx)
	if err != nil {
		return nil, err
	}
	request := &cloudresourcemanager.TestIamPermissionsRequest{Permissions: permissions}
	answer, err := askProject(ctx, c, fmt.Sprintf("test permissions in project %q", c.cfg.Project), svc.Projects.TestIamPermissions(c.cfg.Project, request))
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, p := range answer.Permissions {
		has[p] = true
	}
	var lacking []string
	for _, p := range permissions {
		if !has[p] {
			lacking = append(lacking, p)
		}
	}
	return lacking, nil
}

// A Binding gives a role in the project to members.
type Binding struct {
	Role        string
	Members     []string // "serviceAccount:NAME", "user:NAME", "group:NAME", …
	Conditional bool     // the members have the role only under a condition
}

// Policy returns the bindings of the project's own policy, without those of the folder or
// the organization above.
func (c *Client) Policy(ctx context.Context) ([]Binding, error) {
	svc, err := c.resourceManager(ctx)
	if err != nil {
		return nil, err
	}
	// With a lower version, the API omits the conditions of bindings.
	request := &cloudresourcemanager.GetIamPolicyRequest{Options: &cloudresourcemanager.GetPolicyOptions{RequestedPolicyVersion: 3}}
	policy, err := askProject(ctx, c, fmt.Sprintf("read the policy of project %q", c.cfg.Project), svc.Projects.GetIamPolicy(c.cfg.Project, request))
	if err != nil {
		return nil, err
	}
	bindings := make([]Binding, len(policy.Bindings))
	for i, b := range policy.Bindings {
		bindings[i] = Binding{Role: b.Role, Members: b.Members, Conditional: b.Condition != nil}
	}
	return bindings, nil
}

// RoleFor returns the smallest usual role with a permission, or "".
func RoleFor(permission string) string { return roleFor(permission) }

// A QuotaInfo is one quota of an API, according to Cloud Quotas.
type QuotaInfo struct {
	ID     string // as in the API's errors: TPUV6EPerProjectPerZoneForTPUAPI
	Limits []QuotaLimit
}

// A QuotaLimit is the limit of a quota in some places.
type QuotaLimit struct {
	Dimensions map[string]string // zone or region; empty: wherever no other limit applies
	Locations  []string          // the limit applies there
	Value      int64             // -1: no limit
}

// Unlimited is a Value without limit.
const Unlimited = -1

// In returns the limit of the quota in a zone, and its dimension: "zone=Z" or "region=R".
// ok is false if no limit applies there.
func (q QuotaInfo) In(zone string) (value int64, dimension string, ok bool) {
	region := Region(zone)
	for _, place := range []struct{ key, name string }{{"zone", zone}, {"region", region}} {
		for _, l := range q.Limits {
			if l.Dimensions[place.key] == place.name {
				return l.Value, place.key + "=" + place.name, true
			}
		}
	}
	for _, l := range q.Limits {
		for _, location := range l.Locations {
			if location == zone || location == region {
				if location == zone {
					return l.Value, "zone=" + zone, true
				}
				return l.Value, "region=" + region, true
			}
		}
	}
	return 0, "", false
}

// quotasRoot is Google's address of Cloud Quotas. google.golang.org/api has no client
// for it.
const quotasRoot = "https://cloudquotas.googleapis.com"

// largestAnswer limits the bytes of an answer. The largest is the list of an API's quotas.
const largestAnswer = 32 << 20

// Quotas returns the quotas of an API, for example tpu.googleapis.com: the limits, not the
// usage.
func (c *Client) Quotas(ctx context.Context, api string) ([]QuotaInfo, error) {
	root := quotasRoot
	if c.cfg.QuotasEndpoint != "" {
		var err error
		if root, err = endpointRoot("Cloud Quotas", c.cfg.QuotasEndpoint); err != nil {
			return nil, err
		}
	}
	var all []QuotaInfo
	for page := ""; ; {
		var answer quotaPage
		err := c.Do(ctx, "read the quotas of "+api, func(ctx context.Context) error {
			address := fmt.Sprintf("%s/v1/projects/%s/locations/global/services/%s/quotaInfos?pageSize=1000&pageToken=%s", root, c.cfg.Project, api, url.QueryEscape(page))
			return c.getJSON(ctx, address, &answer)
		})
		if err != nil {
			return nil, err
		}
		for _, info := range answer.QuotaInfos {
			all = append(all, info.quota())
		}
		if page = answer.NextPageToken; page == "" {
			return all, nil
		}
	}
}

type quotaPage struct {
	QuotaInfos    []quotaWire `json:"quotaInfos"`
	NextPageToken string      `json:"nextPageToken"`
}

type quotaWire struct {
	QuotaID         string `json:"quotaId"`
	DimensionsInfos []struct {
		Dimensions map[string]string `json:"dimensions"`
		Details    struct {
			Value string `json:"value"` // missing if these dimensions have no limit of their own
		} `json:"details"`
		ApplicableLocations []string `json:"applicableLocations"`
	} `json:"dimensionsInfos"`
}

func (i quotaWire) quota() QuotaInfo {
	q := QuotaInfo{ID: i.QuotaID}
	for _, d := range i.DimensionsInfos {
		value, err := strconv.ParseInt(d.Details.Value, 10, 64)
		if err != nil {
			continue
		}
		q.Limits = append(q.Limits, QuotaLimit{Dimensions: d.Dimensions, Locations: d.ApplicableLocations, Value: value})
	}
	return q
}

// getJSON makes a GET request to address, and decodes the answer into v.
func (c *Client) getJSON(ctx context.Context, address string, v any) error {
	body, err := c.getBody(ctx, address, http.Header{quotaHeader: {c.cfg.Project}})
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// getBody makes a GET request to address, and returns the answer.
func (c *Client) getBody(ctx context.Context, address string, header http.Header) (body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if err := googleapi.CheckResponse(resp); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(resp.Body, largestAnswer))
}

// An Identity describes the credentials of calls.
type Identity struct {
	Source       string // where they come from, in words
	Account      string // account of the credentials, if they name it
	QuotaProject string // whose quota calls use; empty: the API chooses
}

// Identify finds the credentials, checks that they give a token, and reads their account.
// After an error, no calls are possible with them.
func (c *Client) Identify(ctx context.Context) (Identity, error) {
	var id Identity
	if c.cfg.DisableAuth {
		id.Source = "none: requests go without credentials, as gcloud's auth/disable_credentials says"
	} else {
		_, quota, err := c.tokens.token(ctx)
		if err != nil {
			return id, err
		}
		id.Source, id.Account = c.tokens.describe(ctx)
		id.QuotaProject = quota
	}
	if c.cfg.QuotaProject != "" {
		id.QuotaProject = c.cfg.QuotaProject
	}
	if c.cfg.Impersonate != "" {
		id.Source, id.Account = "service account acted as with "+id.Source, c.cfg.Impersonate
	}
	if id.Account != "" {
		return id, nil
	}
	email, err := c.Email(ctx)
	if ClassOf(err) == Unauthenticated && !c.cfg.DisableAuth {
		return id, err
	}
	id.Account = email // empty for a token without the scope for it
	return id, nil
}

// Email returns the account of the credentials. Credentials without a name are an error.
func (c *Client) Email(ctx context.Context) (string, error) {
	opts, err := c.OSLoginOptions()
	if err != nil {
		return "", err
	}
	svc, err := oauth2.NewService(ctx, opts...)
	if err != nil {
		return "", fmt.Errorf("open client: %w", err)
	}
	var info *oauth2.Userinfo
	err = c.Do(ctx, "ask whose the credentials are", func(ctx context.Context) (err error) {
		info, err = svc.Userinfo.Get().Context(ctx).Do()
		return err
	})
	switch {
	case err != nil:
		return "", err
	case info.Email == "":
		return "", errors.New("the credentials do not tell whose they are")
	}
	return info.Email, nil
}
