package projectapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

// How the simulator finds out who calls an API: a worker presents the token of its metadata
// server, which stands for the service account and the scopes of its node. Every caller
// with another token or none is the user, who may do everything.
//
// Everybody has all permissions by inheritance, except those that the fault
// permission-denied removes and the project's policy does not grant again. The default
// service account has only what the policy grants, at first roles/editor. Scopes are
// modelled.

// Secret Manager, v1, can create a secret, add a version, and access the newest or a
// numbered version. Nothing else is modelled.

// DispatchSecrets returns the function that answers requests to Secret Manager from the
// caller who. The caller of that function holds the lock.
func (s API) DispatchSecrets(who cloud.Caller) func(r *http.Request, body []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		if err := wire.CheckQuery(r.URL.Query(), "secretId"); err != nil {
			return nil, err
		}
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/projects/"), "/")
		project, rest := parts[0], parts[2:]
		if project != s.Config.Project && project != cloud.ProjectNumber {
			return nil, wire.Errorf(http.StatusForbidden, "Permission denied on resource project %s.", project)
		}
		may := func(permission, name string) error {
			if who.May(s.Cloud, permission) {
				return nil
			}
			return wire.Errorf(http.StatusForbidden, "Permission '%s' denied for resource '%s' (or it may not exist).", permission, name)
		}
		switch {
		case len(rest) == 0 && r.Method == http.MethodPost:
			return s.createSecret(r.URL.Query().Get("secretId"), may)
		case len(rest) == 1 && r.Method == http.MethodPost && strings.HasSuffix(rest[0], ":addVersion"):
			return s.addSecretVersion(strings.TrimSuffix(rest[0], ":addVersion"), body, may)
		case len(rest) == 3 && rest[1] == "versions" && r.Method == http.MethodGet && strings.HasSuffix(rest[2], ":access"):
			return s.accessSecret(rest[0], strings.TrimSuffix(rest[2], ":access"), may)
		}
		return nil, wire.NotModelled("secrets/" + strings.Join(rest, "/"))
	}
}

func secretName(id string) string { return "projects/" + cloud.ProjectNumber + "/secrets/" + id }

func (s API) createSecret(id string, may func(permission, name string) error) (any, error) {
	if err := may("secretmanager.secrets.create", "projects/"+s.Config.Project); err != nil {
		return nil, err
	}
	if id == "" || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" || len(id) > 255 {
		return nil, wire.Errorf(http.StatusBadRequest, "The provided Secret ID [%s] does not match the expected format [[a-zA-Z_0-9-]+]", id)
	}
	if s.State.Secrets[id] != nil {
		return nil, wire.Errorf(http.StatusConflict, "Secret [%s] already exists.", secretName(id))
	}
	s.State.Secrets[id] = [][]byte{}
	return map[string]any{"name": secretName(id), "createTime": s.Timestamp()}, nil
}

func (s API) addSecretVersion(id string, body []byte, may func(permission, name string) error) (any, error) {
	var req struct {
		Payload struct {
			Data []byte `json:"data"`
		} `json:"payload"`
	}
	if err := wire.DecodeStrict(body, &req, "add_secret_version_request"); err != nil {
		return nil, err
	}
	if err := may("secretmanager.versions.add", secretName(id)); err != nil {
		return nil, err
	}
	if s.State.Secrets[id] == nil {
		return nil, wire.Errorf(http.StatusNotFound, "Secret [%s] not found or has no versions.", secretName(id))
	}
	s.State.Secrets[id] = append(s.State.Secrets[id], req.Payload.Data)
	return map[string]any{"name": fmt.Sprintf("%s/versions/%d", secretName(id), len(s.State.Secrets[id])), "state": "ENABLED"}, nil
}

func (s API) accessSecret(id, version string, may func(permission, name string) error) (any, error) {
	name := secretName(id) + "/versions/" + version
	if err := may("secretmanager.versions.access", name); err != nil {
		return nil, err
	}
	versions := s.State.Secrets[id]
	n := len(versions)
	if version != "latest" {
		if _, err := fmt.Sscanf(version, "%d", &n); err != nil {
			return nil, wire.Errorf(http.StatusBadRequest, "Invalid resource field value in the request.")
		}
	}
	if n < 1 || n > len(versions) {
		return nil, wire.Errorf(http.StatusNotFound, "Secret Version [%s] not found.", name)
	}
	return map[string]any{
		"name":    fmt.Sprintf("%s/versions/%d", secretName(id), n),
		"payload": map[string]any{"data": base64.StdEncoding.EncodeToString(versions[n-1])},
	}, nil
}
