package cloud

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	oslogin "google.golang.org/api/oslogin/v1"

	"multihost/internal/sim/wire"
)

// tokenLife is how long a worker's token is valid.
const tokenLife = time.Hour

// A Caller is the sender of a request.
type Caller struct {
	Email  string
	scopes []string // nil: every scope
}

// A token is an access token from the metadata server of one worker.
type token struct {
	text    string
	owner   string // resource name of its node or instance
	email   string
	scopes  []string
	expires time.Time
}

// tokenOf returns the token of worker i of n. The caller holds s.Mu.
func (s Identity) tokenOf(n *Node, i int) *token {
	return s.tokenFor(n.Msg.Name, fmt.Sprintf("%s-%d", n.Id, i), n.Msg.ServiceAccount.Email, n.Msg.ServiceAccount.Scope)
}

// tokenFor returns the token of the machine called name, which belongs to the resource
// owner. As on a real machine, the token stays the same until shortly before it expires.
// The caller holds s.Mu.
func (s Identity) tokenFor(owner, name, email string, scopes []string) *token {
	now := s.Clock.Now()
	key := owner + "/" + name
	t := s.State.tokens[key]
	if t == nil || t.expires.Sub(now) < 5*time.Minute {
		t = &token{text: fmt.Sprintf("%s%s-%x", workerToken, name, NewID()), owner: owner, email: email, scopes: scopes, expires: now.Add(tokenLife)}
		s.State.tokens[key] = t
	}
	return t
}

// CallerOf returns the sender of a request, or an error for an invalid token of a worker.
func (s Identity) CallerOf(r *http.Request) (Caller, *wire.Error) {
	text, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer || !strings.HasPrefix(text, workerToken) {
		return Caller{Email: SimAccount}, nil
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, t := range s.State.tokens {
		if t.text == text && s.Clock.Now().Before(t.expires) && (s.State.Nodes[t.owner] != nil || s.State.Instances[t.owner] != nil) {
			return Caller{t.email, t.scopes}, nil
		}
	}
	return Caller{}, wire.Errorf(http.StatusUnauthorized, "%s", refusedToken)
}

const scopeRoot = "https://www.googleapis.com/auth/"

// CheckScopes returns an error for a token whose scopes do not cover the API.
func (who Caller) CheckScopes(r *http.Request) *wire.Error {
	wanted := []string{"cloud-platform"}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case IsStorage(r):
		wanted = append(wanted, "devstorage.full_control", "devstorage.read_write")
		if reads {
			wanted = append(wanted, "devstorage.read_only", "cloud-platform.read-only")
		}
	case strings.HasPrefix(r.URL.Path, "/compute/"):
		wanted = append(wanted, "compute")
		if reads {
			wanted = append(wanted, "compute.readonly")
		}
	case IsOSLogin(r), IsSecrets(r):
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
	return wire.Errorf(http.StatusForbidden, "Request had insufficient authentication scopes.").WithReason("insufficientPermissions").WithDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "domain": "googleapis.com",
	})
}

// May reports whether the caller has a permission. If a fault denies it, that uses the
// fault once. The caller holds s.Mu.
func (who Caller) May(s *Cloud, permission string) bool {
	a, denied := who.Denied(s, permission)
	if a != nil {
		s.Injection().Use(a)
	}
	return !denied
}

// Denied reports whether the caller lacks a permission. a is the fault that denies it, or
// nil. The caller holds s.Mu.
func (who Caller) Denied(s *Cloud, permission string) (a *ActiveFault, denied bool) {
	if s.Identity().granted(who.Email, permission, false) {
		return nil, false
	}
	if who.Email == DefaultAccount && !s.Identity().granted(who.Email, permission, true) {
		return nil, true
	}
	a = s.Injection().find("permission-denied", func(a *ActiveFault) bool {
		return Glob(a.Permission, permission) && Glob(a.Account, who.Email)
	})
	return a, a != nil
}

// IsSecrets reports whether a request is for Secret Manager.
func IsSecrets(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/projects/")
	_, rest, _ = strings.Cut(rest, "/")
	return ok && (rest == "secrets" || strings.HasPrefix(rest, "secrets/"))
}

// A simLogin has the valid credentials of the only user of a simulator with Config.Login.
type simLogin struct {
	Count   int             // number of logins so far
	Refresh string          // the valid refresh token; "": the user must log in again
	Tokens  map[string]bool // valid access tokens
}

const TokenPath = "/token"

// workerToken is the prefix of the access tokens that the metadata server issues to
// workers.
const workerToken = "ya29.simulated-"

const refusedToken = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."

// endLogin invalidates every token of the user, like a company's rule that requires a new
// login. The caller holds s.Mu.
func (s Identity) endLogin() error {
	if !s.Config.Login {
		return errors.New(`inject fault "login-ended": this simulator lets everybody in`)
	}
	s.State.Login.Refresh, s.State.Login.Tokens = "", nil
	return nil
}

// letIn returns an error for a caller without a valid token. The caller holds s.Mu.
func (s Identity) letIn(r *http.Request) *wire.Error {
	if !s.Config.Login {
		return nil
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if s.State.Login.Tokens[token] || strings.HasPrefix(token, workerToken) {
		return nil
	}
	return wire.Errorf(http.StatusUnauthorized, "%s", refusedToken)
}

// SimAccount is the user, who sends all requests without credentials.
const SimAccount = "you@multihost.example"

// IsOSLogin reports whether a request is for OS Login, or asks for the owner of the
// credentials.
func IsOSLogin(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/users/") || r.URL.Path == "/oauth2/v2/userinfo"
}

// LoginProfile returns a copy of the profile of an account, without expired keys.
func (s Identity) LoginProfile(email string) *oslogin.LoginProfile {
	p := &oslogin.LoginProfile{Name: email}
	if known := s.State.Logins[email]; known != nil {
		*p = *known
		p.SshPublicKeys = maps.Clone(known.SshPublicKeys)
	}
	maps.DeleteFunc(p.SshPublicKeys, func(_ string, k oslogin.SshPublicKey) bool { return s.LoginKeyExpired(k) })
	return p
}

// LoginKeyExpired reports whether a key of OS Login has expired.
func (s Identity) LoginKeyExpired(k oslogin.SshPublicKey) bool {
	return k.ExpirationTimeUsec != 0 && k.ExpirationTimeUsec <= s.Clock.Now().UnixMicro()
}

// osLoginKeys returns the keys of all accounts, as lines of ssh-keys metadata. The caller
// holds s.Mu.
func (s Identity) osLoginKeys() []string {
	var lines []string
	for _, email := range slices.Sorted(maps.Keys(s.State.Logins)) {
		p := s.LoginProfile(email)
		for _, account := range p.PosixAccounts {
			for _, k := range p.SshPublicKeys {
				fields := strings.Fields(k.Key)
				lines = append(lines, account.Username+":"+fields[0]+" "+fields[1]+" "+email)
			}
		}
	}
	return lines
}
