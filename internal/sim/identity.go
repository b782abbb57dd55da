package sim

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// How the simulator finds out who calls an API. A worker presents the token of its
// metadata server, which stands for the service account and the scopes of its node. Every
// caller with another token or none is the user, who may do everything.
//
// Everybody has all permissions by inheritance, except those that the fault
// permission-denied removes; the project's policy may grant those again. The default
// service account has only what the policy grants, at first roles/editor. Scopes are
// modelled.

// tokenLife is how long a worker's token is valid.
const tokenLife = time.Hour

// A caller is the sender of a request.
type caller struct {
	email  string
	scopes []string // nil: every scope
}

// A token is an access token that the metadata server of one worker issued.
type token struct {
	text    string
	node    string // resource name
	email   string
	scopes  []string
	expires time.Time
}

// tokenOf returns the token of worker i of n. As on a real machine the token stays the
// same until shortly before it expires. The caller holds s.mu.
func (s *Cloud) tokenOf(n *node, i int) *token {
	now := s.clock.Now()
	key := fmt.Sprintf("%s/%d", n.msg.Name, i)
	t := s.state.tokens[key]
	if t == nil || t.expires.Sub(now) < 5*time.Minute {
		t = &token{
			text: fmt.Sprintf("%s%s-%d-%x", workerToken, n.id, i, newID()), node: n.msg.Name,
			email: n.msg.ServiceAccount.Email, scopes: n.msg.ServiceAccount.Scope, expires: now.Add(tokenLife),
		}
		s.state.tokens[key] = t
	}
	return t
}

// callerOf returns the sender of a request, or an error for an invalid worker token.
func (s *Cloud) callerOf(r *http.Request) (caller, *apiError) {
	text, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer || !strings.HasPrefix(text, workerToken) {
		return caller{email: simAccount}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.state.tokens {
		if t.text == text && s.clock.Now().Before(t.expires) && s.state.nodes[t.node] != nil {
			return caller{t.email, t.scopes}, nil
		}
	}
	return caller{}, errorf(http.StatusUnauthorized, "%s", refusedToken)
}

const scopeRoot = "https://www.googleapis.com/auth/"

// checkScopes refuses a token whose scopes do not cover the API.
func (who caller) checkScopes(r *http.Request) *apiError {
	wanted := []string{"cloud-platform"}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case isStorage(r):
		wanted = append(wanted, "devstorage.full_control", "devstorage.read_write")
		if reads {
			wanted = append(wanted, "devstorage.read_only", "cloud-platform.read-only")
		}
	case strings.HasPrefix(r.URL.Path, "/compute/"):
		wanted = append(wanted, "compute")
		if reads {
			wanted = append(wanted, "compute.readonly")
		}
	case isOSLogin(r), isSecrets(r):
	default:
		wanted = append(wanted, "cloud.tpu")
	}
	if who.scopes == nil {
		return nil
	}
	for _, name := range wanted {
		if slices.Contains(who.scopes, scopeRoot+name) {
			return nil
		}
	}
	return errorf(http.StatusForbidden, "Request had insufficient authentication scopes.").withReason("insufficientPermissions").withDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "domain": "googleapis.com",
	})
}

// may reports whether the caller has a permission. If a fault denies it, that counts as
// one use of the fault. The caller holds s.mu.
func (who caller) may(s *Cloud, permission string) bool {
	a, denied := who.denied(s, permission)
	if a != nil {
		s.use(a)
	}
	return !denied
}

// denied reports whether the caller lacks a permission. a is the fault that takes it
// away; nil if none does. The caller holds s.mu.
func (who caller) denied(s *Cloud, permission string) (a *activeFault, denied bool) {
	if s.granted(who.email, permission, false) {
		return nil, false
	}
	if who.email == defaultAccount && !s.granted(who.email, permission, true) {
		return nil, true
	}
	a = s.find("permission-denied", func(a *activeFault) bool {
		return glob(a.Permission, permission) && glob(a.Account, who.email)
	})
	return a, a != nil
}

// checkTPU refuses a caller of the TPU API without the permission. Queued resources have
// no permissions of their own; those of nodes apply. The caller holds s.mu.
func (who caller) checkTPU(s *Cloud, c *call) error {
	verb := c.method()
	switch {
	case c.collection != "nodes" && c.collection != "queuedResources", verb == "":
		return nil
	case verb == "patch":
		verb = "update"
	case c.verb != "" && c.verb != "getGuestAttributes":
		verb = "update"
	case c.verb == "getGuestAttributes":
		verb = "get"
	}
	permission := "tpu.nodes." + verb
	if who.may(s, permission) {
		return nil
	}
	return errorf(http.StatusForbidden, "Permission '%s' denied on '%s'.", permission, strings.TrimSuffix(c.name(), "/")).withDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED", "domain": "tpu.googleapis.com",
		"metadata": map[string]string{"permission": permission, "resource": c.name()},
	})
}

// checkCompute refuses a caller of the Compute API without the permission. The caller
// holds s.mu.
func (who caller) checkCompute(s *Cloud, c *computeCall) error {
	resource, verb := c.collection, map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodDelete: "delete", http.MethodPatch: "update",
	}[c.r.Method]
	switch {
	case resource == "":
		resource = "projects"
	case resource == "setCommonInstanceMetadata":
		resource, verb = "projects", resource
	case resource == "operations":
		resource, verb = "globalOperations", "get"
		if strings.HasPrefix(c.scope, "regions/") {
			resource = "regionOperations"
		}
	case c.id == "" && verb == "get":
		verb = "list"
	}
	permission := "compute." + resource + "." + verb
	if who.may(s, permission) {
		return nil
	}
	name := "projects/" + s.cfg.Project
	if c.id != "" {
		name = c.name()
	}
	return errorf(http.StatusForbidden, "Required '%s' permission for '%s'", permission, name)
}

// Secret Manager, v1: creating a secret, adding a version, accessing the newest or a
// numbered version. Everything else is not modelled.

// isSecrets reports whether a request is for Secret Manager.
func isSecrets(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/projects/")
	_, rest, _ = strings.Cut(rest, "/")
	return ok && (rest == "secrets" || strings.HasPrefix(rest, "secrets/"))
}

func (s *Cloud) dispatchSecrets(who caller) func(r *http.Request, body []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		if err := checkQuery(r.URL.Query(), "secretId"); err != nil {
			return nil, err
		}
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/projects/"), "/")
		project, rest := parts[0], parts[2:]
		if project != s.cfg.Project && project != projectNumber {
			return nil, errorf(http.StatusForbidden, "Permission denied on resource project %s.", project)
		}
		may := func(permission, name string) error {
			if who.may(s, permission) {
				return nil
			}
			return errorf(http.StatusForbidden, "Permission '%s' denied for resource '%s' (or it may not exist).", permission, name)
		}
		switch {
		case len(rest) == 0 && r.Method == http.MethodPost:
			return s.createSecret(r.URL.Query().Get("secretId"), may)
		case len(rest) == 1 && r.Method == http.MethodPost && strings.HasSuffix(rest[0], ":addVersion"):
			return s.addSecretVersion(strings.TrimSuffix(rest[0], ":addVersion"), body, may)
		case len(rest) == 3 && rest[1] == "versions" && r.Method == http.MethodGet && strings.HasSuffix(rest[2], ":access"):
			return s.accessSecret(rest[0], strings.TrimSuffix(rest[2], ":access"), may)
		}
		return nil, notModelled("secrets/" + strings.Join(rest, "/"))
	}
}

func secretName(id string) string { return "projects/" + projectNumber + "/secrets/" + id }

func (s *Cloud) createSecret(id string, may func(permission, name string) error) (any, error) {
	if err := may("secretmanager.secrets.create", "projects/"+s.cfg.Project); err != nil {
		return nil, err
	}
	if id == "" || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" || len(id) > 255 {
		return nil, errorf(http.StatusBadRequest, "The provided Secret ID [%s] does not match the expected format [[a-zA-Z_0-9-]+]", id)
	}
	if s.state.secrets[id] != nil {
		return nil, errorf(http.StatusConflict, "Secret [%s] already exists.", secretName(id))
	}
	s.state.secrets[id] = [][]byte{}
	return map[string]any{"name": secretName(id), "createTime": s.timestamp()}, nil
}

func (s *Cloud) addSecretVersion(id string, body []byte, may func(permission, name string) error) (any, error) {
	var req struct {
		Payload struct {
			Data []byte `json:"data"`
		} `json:"payload"`
	}
	if err := decodeStrict(body, &req, "add_secret_version_request"); err != nil {
		return nil, err
	}
	if err := may("secretmanager.versions.add", secretName(id)); err != nil {
		return nil, err
	}
	if s.state.secrets[id] == nil {
		return nil, errorf(http.StatusNotFound, "Secret [%s] not found or has no versions.", secretName(id))
	}
	s.state.secrets[id] = append(s.state.secrets[id], req.Payload.Data)
	return map[string]any{"name": fmt.Sprintf("%s/versions/%d", secretName(id), len(s.state.secrets[id])), "state": "ENABLED"}, nil
}

func (s *Cloud) accessSecret(id, version string, may func(permission, name string) error) (any, error) {
	name := secretName(id) + "/versions/" + version
	if err := may("secretmanager.versions.access", name); err != nil {
		return nil, err
	}
	versions := s.state.secrets[id]
	n := len(versions)
	if version != "latest" {
		if _, err := fmt.Sscanf(version, "%d", &n); err != nil {
			return nil, errorf(http.StatusBadRequest, "Invalid resource field value in the request.")
		}
	}
	if n < 1 || n > len(versions) {
		return nil, errorf(http.StatusNotFound, "Secret Version [%s] not found.", name)
	}
	return map[string]any{
		"name":    fmt.Sprintf("%s/versions/%d", secretName(id), n),
		"payload": map[string]any{"data": base64.StdEncoding.EncodeToString(versions[n-1])},
	}, nil
}
