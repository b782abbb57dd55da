package sim

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	oslogin "google.golang.org/api/oslogin/v1"
)

// OS Login: accounts whose keys belong to people instead of machines. The workers of a
// node use it when enable-oslogin is TRUE in the metadata of the node or, if the node
// does not set it, of the project.
//
// Every address is an account. Its profile is empty until a key is imported; then it has
// a login for the project, named after the address. Not modelled: login permissions
// (roles), second factors and certificates, systemId.

// simAccount is the user, who sends the requests without credentials.
const simAccount = "you@multihost.example"

// maxLoginProfile is Google's limit for the size of one profile.
const maxLoginProfile = 32 << 10

// isOSLogin reports whether a request is for OS Login, or asks for the owner of the
// credentials.
func isOSLogin(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/users/") || r.URL.Path == "/oauth2/v2/userinfo"
}

func (s *Cloud) dispatchOSLogin(r *http.Request, body []byte) (any, error) {
	if r.URL.Path == "/oauth2/v2/userinfo" {
		if r.Method != http.MethodGet {
			return nil, unknownMethod()
		}
		return map[string]any{"email": simAccount, "verified_email": true}, nil
	}
	for name := range r.URL.Query() {
		if !slices.Contains([]string{"alt", "prettyPrint", "projectId"}, name) {
			return nil, errorf(http.StatusBadRequest, "Invalid JSON payload received. Unknown name %q: Cannot bind query parameter.", name)
		}
	}
	project := r.URL.Query().Get("projectId")
	if project != "" && project != s.cfg.Project {
		return nil, errorf(http.StatusForbidden, "Permission denied on resource project %s.", project)
	}
	rest := strings.TrimPrefix(r.URL.Path, "/v1/users/")
	switch email, isImport := strings.CutSuffix(rest, ":importSshPublicKey"); {
	case isImport && r.Method == http.MethodPost && isEmail(email):
		return s.importKey(email, project, body)
	case isImport:
		return nil, unknownMethod()
	}
	email, isProfile := strings.CutSuffix(rest, "/loginProfile")
	if !isProfile || r.Method != http.MethodGet || !isEmail(email) {
		return nil, unknownMethod()
	}
	return s.loginProfile(email), nil
}

func isEmail(text string) bool {
	return strings.Contains(text, "@") && !strings.ContainsAny(text, "/: ")
}

// loginProfile returns a copy of the profile of an account without the expired keys.
func (s *Cloud) loginProfile(email string) *oslogin.LoginProfile {
	p := &oslogin.LoginProfile{Name: email}
	if known := s.state.logins[email]; known != nil {
		*p = *known
		p.SshPublicKeys = maps.Clone(known.SshPublicKeys)
	}
	maps.DeleteFunc(p.SshPublicKeys, func(_ string, k oslogin.SshPublicKey) bool { return s.loginKeyExpired(k) })
	return p
}

func (s *Cloud) loginKeyExpired(k oslogin.SshPublicKey) bool {
	return k.ExpirationTimeUsec != 0 && k.ExpirationTimeUsec <= s.clock.Now().UnixMicro()
}

func (s *Cloud) importKey(email, project string, body []byte) (any, error) {
	key := new(oslogin.SshPublicKey)
	if err := decodeStrict(body, key, "ssh_public_key"); err != nil {
		return nil, err
	}
	fields := strings.Fields(key.Key)
	if len(fields) < 2 {
		return nil, errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.key': not an SSH public key.")
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return nil, errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.key': not an SSH public key.")
	}
	if s.loginKeyExpired(*key) {
		return nil, errorf(http.StatusBadRequest, "Invalid value at 'ssh_public_key.expiration_time_usec': it has passed.")
	}
	sum := sha256.Sum256(blob)
	key.Fingerprint = hex.EncodeToString(sum[:])
	key.Name = "users/" + email + "/sshPublicKeys/" + key.Fingerprint

	p := s.loginProfile(email)
	if p.SshPublicKeys == nil {
		p.SshPublicKeys = map[string]oslogin.SshPublicKey{}
	}
	p.SshPublicKeys[key.Fingerprint] = *key
	if len(p.PosixAccounts) == 0 && project != "" {
		login := loginName(email)
		id := int64(1_000_000 + len(s.state.logins))
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
		return nil, errorf(http.StatusBadRequest, "Login profile size exceeds 32 KiB. Delete profile values to make additional space.")
	}
	if s.state.logins == nil {
		s.state.logins = map[string]*oslogin.LoginProfile{}
	}
	s.state.logins[email] = p
	return &oslogin.ImportSshPublicKeyResponse{LoginProfile: s.loginProfile(email)}, nil
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

// osLoginKeys returns the keys of all accounts, as lines of ssh-keys metadata. The caller
// holds s.mu.
func (s *Cloud) osLoginKeys() []string {
	var lines []string
	for _, email := range slices.Sorted(maps.Keys(s.state.logins)) {
		p := s.loginProfile(email)
		for _, account := range p.PosixAccounts {
			for _, k := range p.SshPublicKeys {
				fields := strings.Fields(k.Key)
				lines = append(lines, account.Username+":"+fields[0]+" "+fields[1]+" "+email)
			}
		}
	}
	return lines
}
