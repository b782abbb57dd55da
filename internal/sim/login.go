package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// A simLogin holds the valid credentials of the only user of a simulator with
// Config.Login.
type simLogin struct {
	count   int             // logins so far
	refresh string          // the valid refresh token; empty: the login has ended
	tokens  map[string]bool // valid access tokens
}

// tokenPath is the path of the token endpoint.
const tokenPath = "/token"

// workerToken is the prefix of the access tokens that the metadata server issues to
// workers.
const workerToken = "ya29.simulated-"

const refusedToken = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."

func (s *Server) credentialsFile() string {
	return filepath.Join(s.cfg.Dir, "application_default_credentials.json")
}

// Login does what "gcloud auth application-default login" does: it writes new application
// default credentials to the file that Env names.
func (s *Server) Login() error {
	if !s.cfg.Login {
		return errors.New("log in: this simulator lets everybody in")
	}
	s.mu.Lock()
	l := &s.state.login
	l.count++
	l.refresh = fmt.Sprintf("1//simulated-refresh-%d", l.count)
	refresh := l.refresh
	s.mu.Unlock()
	content, err := json.Marshal(map[string]string{
		"type": "authorized_user", "client_id": "simulated.apps.googleusercontent.com", "client_secret": "simulated",
		"refresh_token": refresh, "token_uri": s.url + tokenPath,
	})
	if err != nil {
		return err
	}
	tmp := s.credentialsFile() + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, s.credentialsFile())
}

// endLogin invalidates every token of the user, as a company's rule that requires a new
// login does. The caller holds s.mu.
func (s *Cloud) endLogin() error {
	if !s.cfg.Login {
		return errors.New(`inject fault "login-ended": this simulator lets everybody in`)
	}
	s.state.login.refresh, s.state.login.tokens = "", nil
	return nil
}

// serveToken is Google's token endpoint, for refresh tokens only.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r, maxBody)
	if err != nil {
		writeError(w, asAPIError(err), false)
		return
	}
	form, err := url.ParseQuery(string(body))
	s.mu.Lock()
	l := &s.state.login
	var answer map[string]any
	code := http.StatusBadRequest
	switch {
	case err != nil || r.Method != http.MethodPost || form.Get("grant_type") != "refresh_token":
		answer = map[string]any{"error": "unsupported_grant_type"}
	case l.refresh == "" || form.Get("refresh_token") != l.refresh:
		answer = map[string]any{"error": "invalid_grant", "error_description": "reauth related error (invalid_rapt)", "error_subtype": "invalid_rapt"}
	default:
		token := fmt.Sprintf("ya29.user-%d-%d", l.count, len(l.tokens)+1)
		if l.tokens == nil {
			l.tokens = map[string]bool{}
		}
		l.tokens[token] = true
		code = http.StatusOK
		answer = map[string]any{"access_token": token, "expires_in": 3599, "token_type": "Bearer", "scope": "https://www.googleapis.com/auth/cloud-platform"}
	}
	s.mu.Unlock()
	b, err := json.Marshal(answer)
	if err != nil {
		writeError(w, asAPIError(err), false)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(code)
	_, _ = w.Write(b) // an error means that the client is gone
}

// letIn refuses callers without a valid token. The caller holds s.mu.
func (s *Cloud) letIn(r *http.Request) *apiError {
	if !s.cfg.Login {
		return nil
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if s.state.login.tokens[token] || strings.HasPrefix(token, workerToken) {
		return nil
	}
	return errorf(http.StatusUnauthorized, "%s", refusedToken)
}
