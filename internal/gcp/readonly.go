package gcp

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"multihost/internal/fault"
)

// A ReadOnlyError is a request that a Client with Config.ReadOnly did not send,
// because it could have changed something. It is never retried.
type ReadOnlyError struct {
	Method string
	URL    string
	Body   []byte // body of that request
}

func (e *ReadOnlyError) Error() string {
	return fmt.Sprintf("%s %s was not sent: it changes something, and this is a dry run", e.Method, e.URL)
}

// Fault returns fault.Internal.
func (e *ReadOnlyError) Fault() fault.Kind { return fault.Internal }

// reads has the ends of paths of POST requests that only read. Every other request except
// GET and HEAD may change something.
var reads = []string{":getGuestAttributes", ":testIamPermissions", "/testIamPermissions", ":getIamPolicy", "/listManagedInstances"}

type readOnly struct{ base http.RoundTripper }

// CloseIdleConnections is called by http.Client.
func (t readOnly) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t readOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	ends := func(suffix string) bool { return strings.HasSuffix(req.URL.Path, suffix) }
	switch {
	case req.Method == http.MethodGet, req.Method == http.MethodHead:
		return t.base.RoundTrip(req)
	case req.Method == http.MethodPost && slices.ContainsFunc(reads, ends):
		return t.base.RoundTrip(req)
	}
	refused := &ReadOnlyError{Method: req.Method, URL: req.URL.String()}
	defer closeBody(req)
	if req.Body != nil {
		var err error
		if refused.Body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	return nil, refused
}
