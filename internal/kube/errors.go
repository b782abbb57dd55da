package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/oauth2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/event"
	"multihost/internal/fault"
)

// An Error is a call that failed. It wraps client-go's error.
type Error struct {
	What  string // work of the call: `get Pod "default/p"`
	Tries int
	Err   error

	kind fault.Kind
	hint string
}

func (e *Error) Error() string {
	text := e.Err.Error()
	if status := apierrors.APIStatus(nil); errors.As(e.Err, &status) && status.Status().Message != "" {
		text = status.Status().Message
	}
	if e.Tries > 1 {
		return fmt.Sprintf("%s: %s (%d tries)", e.What, text, e.Tries)
	}
	return e.What + ": " + text
}

func (e *Error) Unwrap() error { return e.Err }

// Fault is Permission if the server refuses the caller. It is Temporary if the server is
// overloaded or does not answer in time. It is Configuration if the server is not the one
// in its certificate. It is Usage if the server refuses an object as invalid, and otherwise
// Unavailable.
func (e *Error) Fault() fault.Kind { return e.kind }

func (e *Error) Hint() string { return e.hint }

// NotFound reports whether an error says that an object, or its kind, does not exist.
func NotFound(err error) bool { return apierrors.IsNotFound(err) }

// AlreadyExists reports whether an error says that an object of this name exists.
func AlreadyExists(err error) bool { return apierrors.IsAlreadyExists(err) }

// Conflict reports whether an error says that an object has changed, or that another program
// has set a field that Apply would change.
func Conflict(err error) bool { return apierrors.IsConflict(err) }

// Expired reports whether an error says that a list or watch must start again from the beginning.
func Expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// Invalid reports whether an error says that the server refuses an object as it is.
func Invalid(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

// fail returns the Error of a call.
func (c *Client) fail(what string, err error, tries int) error {
	e := &Error{What: what, Tries: tries, Err: err, kind: fault.Unavailable}
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		handshake *tls.CertificateVerificationError
	)
	switch {
	case withoutCredentials(err):
		e.kind, e.hint = fault.Permission, strings.Join(append(fault.Hints(err), c.cfg.SignIn)[:1], "")
	case apierrors.IsUnauthorized(err):
		e.kind, e.hint = fault.Permission, c.cfg.SignIn
	case apierrors.IsForbidden(err):
		e.kind = fault.Permission
		e.hint = "ask an administrator of the cluster for this right (on GKE the role roles/container.developer has it)"
	case apierrors.IsConflict(err):
		e.hint = conflictHint(err)
	case Invalid(err):
		e.kind = fault.Usage
	case errors.Is(err, errNoAnswer), apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err):
		e.kind = fault.Temporary
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &handshake):
		e.kind = fault.Configuration
		e.hint = "the address or the certificate authority belongs to another cluster, or a proxy is in between"
	case brokenConnection(err):
		e.hint = fmt.Sprintf("check that this machine reaches %s: curl -k %s/version", c.server, c.server)
	}
	return e
}

// conflictHint returns the hint for a field that another program has set, or "".
func conflictHint(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			return "another program has set this field; remove the object, or change the field there"
		}
	}
	return ""
}

// withoutCredentials reports whether a call failed for lack of credentials.
func withoutCredentials(err error) bool {
	var refused *oauth2.RetrieveError
	return fault.Of(err) == fault.Permission || errors.As(err, &refused) || strings.Contains(err.Error(), "getting credentials: ")
}

// brokenConnection reports whether a call failed before the server's answer.
func brokenConnection(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "http2: client connection lost") || strings.Contains(err.Error(), "server sent GOAWAY")
}

// retryable reports whether a failed call may soon succeed.
func retryable(err error) bool {
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) || withoutCredentials(err) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.Is(err, errNoAnswer) || brokenConnection(err)
	}
	return status.Status().Code >= 500 && !refusedByWebhook(err) || apierrors.IsTooManyRequests(err)
}

// refusedByWebhook reports whether a webhook of the cluster has refused an object. An unreachable
// webhook does not count, because it may be starting.
func refusedByWebhook(err error) bool {
	text := err.Error()
	return strings.Contains(text, "admission webhook") && strings.Contains(text, "denied the request")
}

const (
	tryLimit  = 30 * time.Second // of one try of a call
	mostPause = 5 * time.Second  // between two tries
)

var errNoAnswer = fault.New(fault.Temporary, fmt.Sprintf("no complete answer in %s", tryLimit))

// do makes a call, and repeats it after temporary failures. When ctx ends, do returns the
// cause of ctx.
func (c *Client) do(ctx context.Context, what string, call func(context.Context) error) error {
	begin, pause := c.cfg.Clock.Now(), 200*time.Millisecond
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		err := once(ctx, call)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case !retryable(err):
			return c.fail(what, err, try)
		}
		wait := pause
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			wait = max(wait, time.Duration(seconds)*time.Second)
		}
		failed := c.fail(what, err, try)
		if c.cfg.Clock.Now().Sub(begin)+wait > c.cfg.MaxRetry {
			return failed
		}
		level := event.Debug
		if try == 3 {
			level = event.Warn
		}
		event.Notef(c.cfg.Sink, level, "", "%v; it is tried again for %s", failed, c.cfg.MaxRetry)
		select {
		case <-c.cfg.Clock.After(wait):
		case <-ctx.Done():
		}
		pause = min(2*pause, mostPause)
	}
}

// once makes one try of a call.
func once(ctx context.Context, call func(context.Context) error) error {
	limited, cancel := context.WithTimeoutCause(ctx, tryLimit, errNoAnswer)
	defer cancel()
	err := call(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return errNoAnswer
	}
	return err
}
