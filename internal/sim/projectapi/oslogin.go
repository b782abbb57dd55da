package projectapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	oslogin "google.golang.org/api/oslogin/v1"
)

// OS Login has accounts whose keys belong to people, not to machines. Workers use it if
// enable-oslogin is TRUE in the metadata of their node, or, if the node does not set it, in
// that of the project.
//
// Every address is an account. Its profile is empty until a key is imported. Then it has a
// login for the project, named after the address. Not modelled: login permissions (roles),
// second factors and certificates, systemId.

// maxLoginProfile is Google's limit for the size of one profile.
const maxLoginProfile = 32 << 10

// DispatchOSLogin answers a request to OS Login. The caller holds the lock.
func (s API) DispatchOSLogin(r *http.Request, body []byte) (any, error) {
	if r.URL.Path == "/oauth2/v2/userinfo" {
		if r.Method != http.MethodGet {
			return nil, wire.UnknownMethod()
		}
		return map[string]any{"email": cloud.SimAccount, "verified_email": true}, nil
	}
	for name := range r.URL.Query() {
		if !slices.Contains([]string{"alt", "prettyPrint", "projectId"}, name) {
			return nil, wire.Errorf(http.StatusBadRequest, "Invalid JSON payload received. Unknown name %q: Cannot bind query parameter.", name)
		}
	}
	project := r.URL.Query().Get("projectId")
	if project != "" && project != s.Config.Project {
		return nil, wire.Errorf(http.StatusForbidden, "Permission denied on resource project %s.", project)
	}
	rest := strings.TrimPrefix(r.URL.Path, "/v1/users/")
	switch email, isImport := strings.CutSuffix(rest, ":importSshPublicKey"); {
	case isImport && r.Method == http.MethodPost && isEmail(email):
		return s.importKey(email, project, body)
	case isImport:
		return nil, wire.UnknownMethod()
	}
	email, isProfile := strings.CutSuffix(rest, "/loginProfile")
	if !isProfile || r.Method != http.MethodGet || !isEmail(email) {
		return nil, wire.UnknownMethod()
	}
	return s.Identity().LoginProfile(email), nil
}

func isEmail(text string) bool {
	return strings.Contains(text, "@") && !strings.ContainsAny(text, "/: ")
}

func (s API) importKey(email, project string, body []byte) (any, error) {
	key := new(oslogin.SshPublicKey)
	if err := wire.DecodeStrict(body, key, "ssh_public_key"); err != nil {
		return nil, err
	}
	fields := strings.Fields(key.Key)
	if len(fields) < 2 {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.key': not an SSH public key.")
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.key': not an SSH public key.")
	}
	if s.Identity().LoginKeyExpired(*key) {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.expiration_time_usec': it has passed.")
	}
	sum := sha256.Sum256(blob)
	key.Fingerprint = hex.EncodeToString(sum[:])
	key.Name = "users/" + email + "/sshPublicKeys/" + key.Fingerprint

	p := s.Identity().LoginProfile(email)
	if p.SshPublicKeys == nil {
		p.SshPublicKeys = map[string]oslogin.SshPublicKey{}
	}
	p.SshPublicKeys[key.Fingerprint] = *key
	if len(p.PosixAccounts) == 0 && project != "" {
		login := loginName(email)
		id := int64(1_000_000 + len(s.State.Logins))
		p.PosixAccounts = []*oslogin.PosixAccount{{
			AccountId: project, Name: "users/" + email + "/projects/" + project, Primary: true, Username: login,
			Uid: id, Gid: id, HomeDirectory: "/home/" + login, Shell: "/bin/bash", OperatingSystemType: "LINUX",
		}}
	}
	size, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if len(size) > maxLoginProfile {
		return nil, wire.Errorf(http.StatusBadRequest, "Login profile size exceeds 32 KiB. Delete profile values to make additional space.")
	}
	if s.State.Logins == nil {
		s.State.Logins = map[string]*oslogin.LoginProfile{}
	}
	s.State.Logins[email] = p
	return &oslogin.ImportSshPublicKeyResponse{LoginProfile: s.Identity().LoginProfile(email)}, nil
}

var notLogin = regexp.MustCompile(`[^a-z0-9_]`)

// loginName returns the login that OS Login derives from an address.
func loginName(email string) string {
	name := notLogin.ReplaceAllString(strings.ToLower(email), "_")
	if local, domain, _ := strings.Cut(email, "@"); strings.HasSuffix(domain, ".gserviceaccount.com") {
		sum := sha256.Sum256([]byte(local))
		name = fmt.Sprintf("sa_%d", uint32(sum[0])<<24|uint32(sum[1])<<16|uint32(sum[2])<<8|uint32(sum[3]))
	}
	return name[:min(len(name), 32)]
}
