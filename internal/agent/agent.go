// Package agent has what a program on a worker needs when no runner watches it. It calls
// the metadata server, and Google's APIs with the VM's own token. It reads and writes
// objects of a bucket, and files that survive a crash. Before it deletes a resource, it
// checks that the resource belongs to the run.
//
// Every worker gets the program, so the program is small: this package and those below it
// import only the standard library and fault. They read no environment. Every function that
// waits ends when its context does.
//
// # Decisions
//
//   - The program has no version: workers know it by its SHA-256. A login runs only its own
//     copy. The script that runs the copy contains the right hash, and first compares it
//     with the hash of the copy.
package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"multihost/internal/fault"
)

const (
	connectLimit  = 10 * time.Second
	metadataLimit = 10 * time.Second // limit of one call of the metadata server
	answerLimit   = 64 << 20         // limit of an answer that is kept in memory, in bytes
	textLimit     = 400              // limit of the part of an answer that an error shows, in bytes
)

// Transport returns a transport for Metadata and Client. It follows the proxy variables of
// the environment for calls of APIs. A program makes one Transport and keeps it.
func Transport() *http.Transport {
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.Header.Get(flavor) != "" {
				return nil, nil
			}
			return http.ProxyFromEnvironment(r)
		},
		DialContext:         (&net.Dialer{Timeout: connectLimit}).DialContext,
		TLSHandshakeTimeout: connectLimit,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		MaxIdleConns:        4,
		IdleConnTimeout:     90 * time.Second,
	}
}

// A StatusError is an answer that refuses a call.
type StatusError struct {
	Status int
	Text   string // the message of the service, on one line
}

func (e *StatusError) Error() string { return fmt.Sprintf("HTTP status %d: %s", e.Status, e.Text) }

// Fault returns fault.Permission if the caller lacks the permission, else
// fault.Unavailable.
func (e *StatusError) Fault() fault.Kind {
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		return fault.Permission
	}
	return fault.Unavailable
}

// StatusOf returns the HTTP status of a refused call. It returns 200 for nil, and 0 if
// there was no whole answer.
func StatusOf(err error) int {
	var refused *StatusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return refused.Status
	}
	return 0
}

// refusal returns the error for an answer that refuses the call.
func refusal(status int, body []byte) error {
	var told struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := string(body)
	if json.Unmarshal(body, &told) == nil && told.Error.Message != "" {
		text = told.Error.Message
	}
	if len(text) > textLimit {
		text = strings.ToValidUTF8(text[:textLimit], "")
	}
	return &StatusError{status, strings.NewReplacer("\n", " ", "\r", " ").Replace(strings.TrimRight(text, "\r\n"))}
}

// client returns an HTTP client that follows no redirect, because an answer from another
// address proves nothing about the API.
func client(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// noAnswer describes a call that got no whole answer. The error does not contain the URL.
func noAnswer(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	return fmt.Errorf("no answer: %w", err)
}

// Sleep waits for d. It returns the context's error if the context ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Note writes a line for the serial console and the journal. It ignores errors.
func Note(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "multihost: "+format+"\n", args...)
}
