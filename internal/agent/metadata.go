package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"multihost/internal/fault"
)

// MetadataHost is the address of the metadata server of every VM in Google Cloud.
const MetadataHost = "169.254.169.254"

// Each call of the metadata server has the header flavor.
const flavor = "Metadata-Flavor"

// Metadata is the metadata server of this VM. It is safe for concurrent use.
type Metadata struct {
	Host      string // HOST[:PORT]; "": MetadataHost
	Transport http.RoundTripper
}

// Value returns a value below /computeMetadata/v1/instance/, without newlines at its end.
// While the server does not answer or has trouble, Value retries for about a minute. If the
// value does not exist, the error is a *StatusError of 404.
func (m *Metadata) Value(ctx context.Context, path string) (string, error) {
	text, err := m.again(ctx, 6, path)
	return strings.TrimRight(text, "\n"), err
}

// Optional is Value, but returns "" without an error if the value does not exist.
func (m *Metadata) Optional(ctx context.Context, path string) (string, error) {
	text, err := m.Value(ctx, path)
	if StatusOf(err) == http.StatusNotFound {
		return "", nil
	}
	return text, err
}

// Publish sets the guest attribute multihost/KEY, which other machines can read. It tries
// once.
func (m *Metadata) Publish(ctx context.Context, key, text string) error {
	_, err := m.call(ctx, http.MethodPut, "guest-attributes/multihost/"+key, text)
	return err
}

// Token returns an access token of the VM's service account. Call it before each call of an
// API, because the server renews the token. StatusOf returns 0 for its errors.
func (m *Metadata) Token(ctx context.Context) (string, error) {
	text, err := m.again(ctx, 3, "service-accounts/default/token")
	if err != nil {
		return "", &tokenError{err}
	}
	var token struct {
		Text string `json:"access_token"`
	}
	if json.Unmarshal([]byte(text), &token) != nil || token.Text == "" {
		return "", &tokenError{errNoToken}
	}
	return token.Text, nil
}

// A tokenError says why there is no access token. The metadata server's status is not the
// status of the called API, so StatusOf is 0.
type tokenError struct{ cause error }

func (e *tokenError) Error() string { return "no access token: " + e.cause.Error() }

func (e *tokenError) Fault() fault.Kind { return fault.Of(e.cause) }

func (e *tokenError) Unwrap() error {
	if StatusOf(e.cause) != 0 {
		return nil
	}
	return e.cause
}

// errNoToken does not quote the answer, which may contain a token.
var errNoToken = errors.New("the answer of the metadata server has none")

// again repeats a read that failed for a temporary reason, with pauses of 1 s, 2 s, 4 s ….
func (m *Metadata) again(ctx context.Context, retries int, path string) (text string, err error) {
	for i := 0; ; i++ {
		text, err = m.call(ctx, http.MethodGet, path, "")
		if !temporary(err) || i == retries || Sleep(ctx, time.Second<<i) != nil {
			return text, err
		}
	}
}

// temporary reports whether the same call may soon succeed.
func temporary(err error) bool {
	switch status := StatusOf(err); {
	case status == 0, status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return true
	default:
		return status >= http.StatusInternalServerError
	}
}

func (m *Metadata) call(ctx context.Context, method, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataLimit)
	defer cancel()
	host := m.Host
	if host == "" {
		host = MetadataHost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/computeMetadata/v1/instance/"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set(flavor, "Google")
	resp, err := client(m.Transport).Do(req)
	if err != nil {
		return "", noAnswer(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return "", noAnswer(err)
	}
	if resp.StatusCode/100 != 2 {
		return "", refusal(resp.StatusCode, text)
	}
	return string(text), nil
}
