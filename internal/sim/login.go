package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

func (s *Server) credentialsFile() string {
	return filepath.Join(s.Config.Dir, "application_default_credentials.json")
}

// Login does what "gcloud auth application-default login" does: it writes new application
// default credentials to the file that Env names.
func (s *Server) Login() error {
	if !s.Config.Login {
		return errors.New("log in: this simulator lets everybody in")
	}
	s.Mu.Lock()
	l := &s.State.Login
	l.Count++
	l.Refresh = fmt.Sprintf("1//simulated-refresh-%d", l.Count)
	refresh := l.Refresh
	s.Mu.Unlock()
	content, err := json.Marshal(map[string]string{
		"type": "authorized_user", "client_id": "simulated.apps.googleusercontent.com", "client_secret": "simulated",
		"refresh_token": refresh, "token_uri": s.BaseURL + cloud.TokenPath,
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

// serveToken is Google's token endpoint, for refresh tokens only.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	body, err := wire.ReadBody(r, wire.MaxBody)
	if err != nil {
		wire.WriteError(w, wire.AsAPIError(err), false)
		return
	}
	form, err := url.ParseQuery(string(body))
	s.Mu.Lock()
	l := &s.State.Login
	var answer map[string]any
	code := http.StatusBadRequest
	switch {
	case err != nil || r.Method != http.MethodPost || form.Get("grant_type") != "refresh_token":
		answer = map[string]any{"error": "unsupported_grant_type"}
	case l.Refresh == "" || form.Get("refresh_token") != l.Refresh:
		answer = map[string]any{"error": "invalid_grant", "error_description": "reauth related error (invalid_rapt)", "error_subtype": "invalid_rapt"}
	default:
		token := fmt.Sprintf("ya29.user-%d-%d", l.Count, len(l.Tokens)+1)
		if l.Tokens == nil {
			l.Tokens = map[string]bool{}
		}
		l.Tokens[token] = true
		code = http.StatusOK
		answer = map[string]any{"access_token": token, "expires_in": 3599, "token_type": "Bearer", "scope": "https://www.googleapis.com/auth/cloud-platform"}
	}
	s.Mu.Unlock()
	b, err := json.Marshal(answer)
	if err != nil {
		wire.WriteError(w, wire.AsAPIError(err), false)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(code)
	_, _ = w.Write(b) // an error means that the client has gone
}
