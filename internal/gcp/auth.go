package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/impersonate"
	"google.golang.org/api/option"

	"multihost/internal/fault"
)

const cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

// A CredentialsError says that there are no credentials, or that they are refused. A retry
// with the same credentials does not help, but a later call looks for credentials again.
type CredentialsError struct {
	Err     error
	Expired bool // credentials exist and were refused
	File    string

	remedy string // command that renews them, or ""
}

func (e *CredentialsError) Error() string {
	switch {
	case e.File != "":
		return fmt.Sprintf("read access token file %q: %v", e.File, e.Err)
	case e.Expired:
		return fmt.Sprintf("refresh credentials: %s", oneLine(e.Err.Error()))
	}
	return fmt.Sprintf("find credentials for Google Cloud: %s", oneLine(e.Err.Error()))
}

func (e *CredentialsError) Unwrap() error { return e.Err }

// Fault returns fault.Permission.
func (e *CredentialsError) Fault() fault.Kind { return fault.Permission }

// Hint returns the command to type.
func (e *CredentialsError) Hint() string {
	switch {
	case e.File != "":
		return remedyFile(e.File)
	case e.remedy != "":
		return e.remedy
	case e.Expired:
		return remedyUser
	}
	return "log in with: gcloud auth application-default login (or pass a token with --access-token-file)"
}

// tokens provides access tokens. It keeps no token source: each refresh reads the current
// credentials, with the context of the request that needs the token. So a refresh can be
// cancelled, and uses a new login.
type tokens struct {
	cfg Config
	// adc finds application default credentials. Tests replace it.
	adc func(ctx context.Context, scopes ...string) (*google.Credentials, error)

	turn chan struct{} // held by the request that refreshes

	mu      sync.Mutex // guards the fields below
	current *oauth2.Token
	quota   string // of the credentials
	remedy  string // command that renews the newest credentials
}

func newTokens(cfg Config) *tokens {
	return &tokens{cfg: cfg, adc: google.FindDefaultCredentials, turn: make(chan struct{}, 1)}
}

// A token is no longer used when its expiry is as near as early. That time is longer than a
// request takes to arrive. It is short enough that every issuer then gives out a new token.
const early = time.Minute

// token returns a valid access token and the quota project of the credentials. One request
// at a time refreshes, and the others wait.
func (t *tokens) token(ctx context.Context) (token, quota string, err error) {
	if t.cfg.AccessTokenFile != "" && t.cfg.Impersonate == "" {
		token, err := readTokenFile(t.cfg.AccessTokenFile)
		return token, "", err
	}
	if token, quota, ok := t.cached(); ok {
		return token, quota, nil
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", "", stoppedBy(ctx)
	}
	if token, quota, ok := t.cached(); ok {
		return token, quota, nil
	}
	fresh, quota, err := t.fetch(ctx)
	if err != nil {
		return "", "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current, t.quota = fresh, quota
	return fresh.AccessToken, quota, nil
}

func (t *tokens) cached() (token, quota string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil || (!t.current.Expiry.IsZero() && t.cfg.Clock.Now().Add(early).After(t.current.Expiry)) {
		return "", "", false
	}
	return t.current.AccessToken, t.quota, true
}

// forget drops a token that the server refused.
func (t *tokens) forget(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && t.current.AccessToken == token {
		t.current = nil
	}
}

func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, string, error) {
	source, quota, remedy, err := t.source(ctx)
	if err != nil {
		return nil, "", err
	}
	t.mu.Lock()
	t.remedy = remedy
	t.mu.Unlock()
	if t.cfg.Impersonate != "" {
		source, err = impersonate.CredentialsTokenSource(ctx, impersonate.CredentialsConfig{
			TargetPrincipal: t.cfg.Impersonate,
			Scopes:          []string{cloudPlatform},
		}, option.WithTokenSource(source))
		if err != nil {
			return nil, "", fmt.Errorf("impersonate service account %q: %w", t.cfg.Impersonate, err)
		}
	}
	token, err := source.Token()
	if err != nil {
		return nil, "", refreshError(ctx, err, remedy)
	}
	return token, quota, nil
}

// gcloudTokenLife is how long a token of gcloud is used before gcloud is asked again.
// gcloud says only that its token is valid for at least five more minutes.
const gcloudTokenLife = 4 * time.Minute

// source returns the first source of tokens that exists: the token file, application
// default credentials, gcloud's own login. It also returns the command that renews them.
func (t *tokens) source(ctx context.Context) (_ oauth2.TokenSource, quota, remedy string, err error) {
	if t.cfg.AccessTokenFile != "" {
		token, err := readTokenFile(t.cfg.AccessTokenFile)
		return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}), "", remedyFile(t.cfg.AccessTokenFile), err
	}
	creds, err := t.adc(ctx, cloudPlatform)
	if err == nil {
		remedy = remedyMetadata
		if creds.JSON != nil {
			remedy = remedyOf(t.cfg.CredentialsFile, creds.JSON)
		}
		return creds.TokenSource, quotaProject(creds.JSON), remedy, nil
	}
	if ctx.Err() != nil {
		return nil, "", "", stoppedBy(ctx)
	}
	if t.cfg.GcloudToken == nil {
		return nil, "", "", &CredentialsError{Err: errors.New("no application default credentials")}
	}
	token, gerr := t.cfg.GcloudToken(ctx)
	if gerr != nil {
		if ctx.Err() != nil {
			return nil, "", "", stoppedBy(ctx)
		}
		return nil, "", "", &CredentialsError{Err: fmt.Errorf("no application default credentials, and gcloud has none: %w", gerr), remedy: t.lastRemedy()}
	}
	return oauth2.StaticTokenSource(&oauth2.Token{
		AccessToken: strings.TrimSpace(token),
		Expiry:      t.cfg.Clock.Now().Add(gcloudTokenLife + early),
	}), "", remedyGcloud, nil
}

// describe returns in words where tokens come from now, and their account if known.
func (t *tokens) describe(ctx context.Context) (source, account string) {
	if t.cfg.AccessTokenFile != "" {
		return "access token in " + t.cfg.AccessTokenFile, ""
	}
	creds, err := t.adc(ctx, cloudPlatform)
	switch {
	case err != nil:
		return "gcloud's own login", ""
	case creds.JSON == nil:
		return "metadata server of this machine", ""
	}
	var f struct {
		Type  string `json:"type"`
		Email string `json:"client_email"`
	}
	_ = json.Unmarshal(creds.JSON, &f) // found credentials are valid JSON
	source = "application default credentials"
	if t.cfg.CredentialsFile != "" {
		source += " in " + t.cfg.CredentialsFile
	}
	if f.Type != "" {
		source += " (" + f.Type + ")"
	}
	return source, f.Email
}

// lastRemedy returns the command that renews the newest credentials, or "".
func (t *tokens) lastRemedy() string {
	if t.cfg.AccessTokenFile != "" && t.cfg.Impersonate == "" {
		return remedyFile(t.cfg.AccessTokenFile)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remedy
}

// refreshError returns a *tokenServerError if the token server did not answer, and a
// *CredentialsError if it refused the credentials. Only the first is retried.
func refreshError(ctx context.Context, err error, remedy string) error {
	if ctx.Err() != nil {
		return stoppedBy(ctx)
	}
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode >= 500 {
		return &tokenServerError{err}
	}
	var netErr net.Error
	if !errors.As(err, &refused) && errors.As(err, &netErr) {
		return &tokenServerError{err}
	}
	return &CredentialsError{Err: err, Expired: true, remedy: remedy}
}

type tokenServerError struct{ err error }

func (e *tokenServerError) Error() string { return "reach token server: " + oneLine(e.err.Error()) }
func (e *tokenServerError) Unwrap() error { return e.err }

// CheckTokenFile returns a *CredentialsError if a file has no access token. It does not ask
// the APIs whether they accept the token.
func CheckTokenFile(path string) error {
	_, err := readTokenFile(path)
	return err
}

func readTokenFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		var perr *os.PathError
		if errors.As(err, &perr) {
			err = perr.Err // the message names the file itself
		}
		return "", &CredentialsError{Err: err, File: path}
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n\x00") {
		return "", &CredentialsError{Err: errors.New("want one line with one access token"), File: path}
	}
	return token, nil
}

// quotaProject returns the quota_project_id of a credentials file, or "".
func quotaProject(file []byte) string {
	var f struct {
		QuotaProject string `json:"quota_project_id"`
	}
	if json.Unmarshal(file, &f) != nil {
		return ""
	}
	return f.QuotaProject
}

// authTransport adds credentials to requests. If the server refuses the token, it repeats
// the request once with a new token.
type authTransport struct {
	base         http.RoundTripper
	tokens       *tokens
	userAgent    string
	quotaProject string
}

// CloseIdleConnections is called by http.Client.
func (t *authTransport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *authTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.tokens.cfg.DisableAuth {
		return t.base.RoundTrip(t.prepare(req, "", t.quotaProject))
	}
	for try := 1; ; try++ {
		token, quota, err := t.tokens.token(req.Context())
		if err != nil {
			closeBody(req)
			return nil, err
		}
		if t.quotaProject != "" {
			quota = t.quotaProject
		}
		resp, err := t.base.RoundTrip(t.prepare(req, token, quota))
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		t.tokens.forget(token)
		if try == 2 || (req.Body != nil && req.GetBody == nil) || t.tokens.cfg.AccessTokenFile != "" {
			return resp, nil
		}
		if req.Body != nil {
			body, err := req.GetBody()
			if err != nil {
				return resp, nil
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
		resp.Body.Close()
	}
}

func (t *authTransport) prepare(req *http.Request, token, quota string) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", t.userAgent)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if quota != "" {
		req.Header.Set("X-Goog-User-Project", quota)
	}
	return req
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
