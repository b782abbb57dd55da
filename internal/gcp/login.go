package gcp

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"multihost/internal/event"
)

// loginPause is the pause between two checks for new credentials. A check reads a file, or
// sends one request to a token server.
var loginPause = Backoff{First: time.Second, Max: 10 * time.Second, Factor: 1.5}

// A login knows from the results of a Client's calls whether the credentials work. It
// reports once that they stop working, and once that they work again.
type login struct {
	cfg Config

	mu     sync.Mutex // guards the fields below
	worked bool
	ended  time.Time // when they stopped working; zero: they work
}

// hasWorked reports whether any call's credentials were accepted.
func (l *login) hasWorked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.worked
}

// works records that a call's credentials were accepted.
func (l *login) works() {
	l.mu.Lock()
	ended := l.ended
	l.worked, l.ended = true, time.Time{}
	l.mu.Unlock()
	if !ended.IsZero() {
		event.Notef(l.cfg.Sink, event.Info, "", "the credentials for Google Cloud work again after %s: going on", event.Age(l.cfg.Clock.Now().Sub(ended)))
	}
}

// ceased records that a call failed because of refused or missing credentials. It reports
// whether they were accepted before. If so, the login has expired, and the user can renew
// it while this program runs.
func (l *login) ceased(err error, remedy string) bool {
	l.mu.Lock()
	worked, first := l.worked, l.ended.IsZero()
	if worked && first {
		l.ended = l.cfg.Clock.Now()
	}
	l.mu.Unlock()
	if worked && first {
		event.Notef(l.cfg.Sink, event.Warn, remedy,
			"the credentials for Google Cloud do not work any more: what runs on the workers goes on, and new credentials are used as soon as they are there: %v", err)
	}
	return worked
}

type unattended struct{}

// Unattended returns a context with which Do does not wait for a new login. It is for loops
// that have a limit of their own and retry themselves.
func Unattended(ctx context.Context) context.Context {
	return context.WithValue(ctx, unattended{}, true)
}

// Lapsed reports whether err means that credentials which had worked were refused. The user
// may renew them while the program runs, so a retry can succeed.
func Lapsed(err error) bool {
	e, ok := asError(err)
	return ok && e.Lapsed
}

// remedyOf returns the command that renews the credentials of a file, by their type.
func remedyOf(file string, content []byte) string {
	var f struct {
		Type  string `json:"type"`
		Email string `json:"client_email"`
	}
	if json.Unmarshal(content, &f) != nil {
		return remedyUser
	}
	switch f.Type {
	case "service_account":
		return "make a new key: gcloud iam service-accounts keys create " + orDefault(file, "KEYFILE") + " --iam-account=" + f.Email
	case "external_account", "external_account_authorized_user":
		return "renew the identity that the credentials " + orDefault(file, "file") + " refer to, or log in: gcloud auth application-default login"
	}
	return remedyUser
}

// How to renew credentials that are not in a file.
const (
	remedyUser     = "log in again, in another terminal if this one is busy: gcloud auth application-default login"
	remedyGcloud   = "log in again, in another terminal if this one is busy: gcloud auth login"
	remedyMetadata = "look at the service account of this machine: gcloud compute instances describe $(hostname) --format='value(serviceAccounts)'"
)

func remedyFile(path string) string {
	return "write a fresh token to it: gcloud auth print-access-token > " + path
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
