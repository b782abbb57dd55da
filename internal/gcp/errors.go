package gcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"multihost/internal/fault"
	"multihost/internal/provision"

	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/googleapi"
)

// A Class is a kind of failure, for code that reacts to errors.
type Class int

const (
	Unknown         Class = iota
	NotFound              // the resource, or its parent, does not exist
	AlreadyExists         // the resource exists already
	Permission            // the caller lacks the permission, or the API is not enabled
	Unauthenticated       // the credentials are missing or refused
	Quota                 // a limit of the project; waiting does not help
	Capacity              // Google has no machines now; waiting may help
	Invalid               // the request is wrong
	Conflict              // the resource is in use or in another state
	Unavailable           // the API, or the network to it, fails now, or limits the rate
	Timeout               // no answer in time; the request may have had an effect
)

var classNames = [...]string{
	Unknown:         "unknown",
	NotFound:        "not found",
	AlreadyExists:   "already exists",
	Permission:      "permission denied",
	Unauthenticated: "unauthenticated",
	Quota:           "quota exceeded",
	Capacity:        "no capacity",
	Invalid:         "invalid request",
	Conflict:        "conflict",
	Unavailable:     "unavailable",
	Timeout:         "timeout",
}

func (c Class) String() string {
	if c < 0 || int(c) >= len(classNames) {
		return fmt.Sprintf("Class(%d)", int(c))
	}
	return classNames[c]
}

// Fault returns the kind of a class: fault.Unknown for Unknown.
func (c Class) Fault() fault.Kind {
	switch c {
	case Permission, Unauthenticated:
		return fault.Permission
	case Quota, Capacity, Timeout:
		return fault.Temporary
	case NotFound, AlreadyExists, Conflict, Unavailable:
		return fault.Unavailable
	case Invalid:
		return fault.Usage
	}
	return fault.Unknown
}

// An Error is a failed call, in one line. It wraps the client library's error.
type Error struct {
	What       string        // the work: `create network "mtu9k"`
	Class      Class         //
	HTTP       int           // of the answer; 0: no answer
	Status     string        // the API's word: "PERMISSION_DENIED"
	Reason     string        // the machine-readable reason: "SERVICE_DISABLED"
	Message    string        // the API's message with its EID, on one line
	Tries      int           // number of tries
	RetryAfter time.Duration // pause that the server asked for; 0: none
	Lapsed     bool          // refused credentials had worked before

	err error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", e.What, e.Message)
	var marks []string
	if e.HTTP != 0 {
		marks = append(marks, strings.TrimSpace(fmt.Sprintf("HTTP %d %s", e.HTTP, e.Status)))
	}
	if e.Reason != "" && !strings.Contains(e.Message, e.Reason) && e.Reason != e.Status {
		marks = append(marks, e.Reason)
	}
	if e.Tries > 1 {
		marks = append(marks, fmt.Sprintf("%d tries", e.Tries))
	}
	if len(marks) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(marks, ", "))
	}
	return b.String()
}

// Unwrap returns the client library's error.
func (e *Error) Unwrap() error { return e.err }

// Fault returns the kind of the error's class.
func (e *Error) Fault() fault.Kind { return e.Class.Fault() }

// ErrPartial says that an API listed things of several places without reaching all of them.
// Items that the list lacks may exist.
var ErrPartial = fault.New(fault.Unavailable, "the API could not list everything")

// Partial returns an error of kind ErrPartial that names the places that the API could not
// reach, or nil if there is none. Without this error, items that the list lacks would seem
// to be deleted.
func Partial(unreachable []string) error {
	if len(unreachable) == 0 {
		return nil
	}
	return fmt.Errorf("%w: it could not reach %s", ErrPartial, strings.Join(unreachable, ", "))
}

// An OperationError is the failure of a long-running operation.
type OperationError struct {
	Code    int    // google.rpc code (TPU) or HTTP status code (Compute; 0: none)
	Status  string // "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", …
	Reason  string // machine-readable reason in the details, or ""
	Message string // one line
	Target  string // resource of the operation
}

func (e *OperationError) Error() string {
	msg := e.Message
	if msg == "" {
		msg = "operation failed without a message"
	}
	var marks []string
	for _, m := range []string{e.Status, e.Reason} {
		if m != "" && !strings.Contains(msg, m) {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 {
		return msg
	}
	return fmt.Sprintf("%s (%s)", msg, strings.Join(marks, ", "))
}

// Fault returns the kind of the error's class.
func (e *OperationError) Fault() fault.Kind { return e.class().Fault() }

// newError makes an *Error from the error of a client library. An error without an answer
// of a server keeps its own text.
func newError(what string, err error, tries int) *Error {
	e := &Error{What: what, Class: ClassOf(err), Tries: tries, err: err}
	if a, ok := readAnswer(err); ok {
		e.HTTP, e.Status, e.Reason, e.Message = a.http, a.status, a.reason, a.message
		return e
	}
	var inner *Error
	if errors.As(err, &inner) {
		e.HTTP, e.Status, e.Reason = inner.HTTP, inner.Status, inner.Reason
	}
	e.Message = oneLine(transportMessage(err))
	return e
}

// asError is errors.As for the package's own error.
func asError(err error) (e *Error, ok bool) {
	ok = errors.As(err, &e)
	return e, ok
}

// transportMessage returns the text of err without the "Get https://…: " of net/http.
func transportMessage(err error) string {
	var ce *CredentialsError
	if errors.As(err, &ce) {
		return ce.Error()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		host := ue.URL
		if u, perr := url.Parse(ue.URL); perr == nil && u.Host != "" {
			host = u.Host
		}
		if errors.Is(ue.Err, io.EOF) {
			return fmt.Sprintf("%s closed the connection without an answer", host)
		}
		return fmt.Sprintf("%s: %v", host, ue.Err)
	}
	return err.Error()
}

// ClassOf returns the class of err. It knows the errors of both Google client
// libraries, *Error, *OperationError, *CredentialsError, broken connections and ended
// contexts, wrapped or not. If an error in the chain has a Class method, ClassOf
// returns its result.
func ClassOf(err error) Class {
	if err == nil {
		return Unknown
	}
	var own interface{ Class() Class }
	if errors.As(err, &own) {
		return own.Class()
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	var ce *CredentialsError
	if errors.As(err, &ce) {
		return Unauthenticated
	}
	var oe *OperationError
	if errors.As(err, &oe) {
		return oe.class()
	}
	if a, ok := readAnswer(err); ok {
		return a.class()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Unknown
	case errors.Is(err, provision.ErrNotFound): // from a provider without Google's APIs
		return NotFound
	case errors.Is(err, ErrPartial):
		return Unavailable
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case brokenConnection(err):
		return Unavailable
	}
	return Unknown
}

// FaultOf is fault.Of that also knows the bare errors of client libraries.
func FaultOf(err error) fault.Kind {
	if kind := fault.Of(err); kind != fault.Unknown {
		return kind
	}
	return ClassOf(err).Fault()
}

// retryable reports whether a retry of the same request can succeed.
func retryable(err error) bool {
	var oe *OperationError
	if errors.As(err, &oe) {
		return false // the operation has ended, so only a new request can help
	}
	if a, ok := readAnswer(err); ok {
		return a.retryable()
	}
	if errors.Is(err, errNoAnswer) || errors.Is(err, ErrPartial) {
		return true
	}
	// Nothing listens at this port of this machine, and waiting does not help.
	if loopback(err) && errors.Is(err, errRefused) {
		return false
	}
	return brokenConnection(err)
}

// brokenConnection reports whether err is a failure of the connection that may be
// temporary.
func brokenConnection(err error) bool {
	var (
		ce *CredentialsError
		ts *tokenServerError
	)
	switch {
	case strangeServer(err), errors.As(err, &ce):
		return false
	case errors.As(err, &ts):
		return true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED),
		errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNABORTED):
		return true
	}
	var op *net.OpError
	var dns *net.DNSError
	if errors.As(err, &op) || errors.As(err, &dns) {
		return true
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() && !errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	// net/http has no types for these errors.
	var ue *url.Error
	if errors.As(err, &ue) {
		text := ue.Err.Error()
		return strings.Contains(text, "server closed idle connection") ||
			strings.Contains(text, "http2: server sent GOAWAY") ||
			strings.Contains(text, "http2: client connection lost") ||
			strings.Contains(text, "stream error:")
	}
	return false
}

// strangeServer reports whether another server answered instead of the API: a proxy has
// wrong settings, or the network wants a login first.
func strangeServer(err error) bool {
	var (
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
	)
	return errors.As(err, &cert) || errors.As(err, &unknown) || errors.As(err, &host)
}

func loopback(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) {
		return false
	}
	addr, ok := op.Addr.(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// answer has the parts of an error from a server.
type answer struct {
	http    int
	status  string
	reason  string
	message string
	// waits says that the server asked for a pause before a retry.
	waits bool
}

// readAnswer returns the server's answer in err. ok is false without one.
func readAnswer(err error) (a answer, ok bool) {
	var ge *googleapi.Error
	if errors.As(err, &ge) {
		return httpAnswer(ge), true
	}
	var ae *apierror.APIError
	if errors.As(err, &ae) && ae.GRPCStatus() != nil {
		st := ae.GRPCStatus()
		return answer{status: rpcName(int(st.Code())), reason: ae.Reason(), message: oneLine(st.Message())}, true
	}
	return answer{}, false
}

func httpAnswer(ge *googleapi.Error) answer {
	a := answer{http: ge.Code, message: oneLine(ge.Message), status: bodyStatus(ge.Body)}
	a.reason, a.message = readDetails(ge.Details, a.message)
	if a.reason == "" && len(ge.Errors) > 0 {
		a.reason = ge.Errors[0].Reason
	}
	if a.message == "" {
		a.message = bodyText(ge)
	}
	for _, d := range ge.Details {
		if m, ok := d.(map[string]any); ok && detailType(m) == "RetryInfo" {
			a.waits = true
		}
	}
	if ge.Header.Get("Retry-After") != "" {
		a.waits = true
	}
	return a
}

var statusField = regexp.MustCompile(`"status"\s*:\s*"([A-Z_]+)"`)

// bodyStatus returns the "status" of an error's body, which googleapi.Error lacks.
func bodyStatus(body string) string {
	if m := statusField.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	return ""
}

var markup = regexp.MustCompile(`(?s)<(style|script)\b.*?</(style|script)>|<[^>]*>`)

// bodyText returns one short line for a body that is no API error, for example from a proxy
// or a load balancer.
func bodyText(ge *googleapi.Error) string {
	text := oneLine(markup.ReplaceAllString(ge.Body, " "))
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "…"
	}
	if text == "" {
		text = strings.ToLower(http.StatusText(ge.Code))
	}
	return text
}

// readDetails returns the reason of the first ErrorInfo, and message with the texts of the
// details: violations of fields, quotas and preconditions.
func readDetails(details []any, message string) (reason, text string) {
	text = message
	add := func(s string) {
		if s = oneLine(s); s != "" && !strings.Contains(text, s) {
			if text != "" {
				text += "; "
			}
			text += s
		}
	}
	for _, d := range details {
		m, ok := d.(map[string]any)
		if !ok {
			continue
		}
		switch detailType(m) {
		case "ErrorInfo":
			if r, _ := m["reason"].(string); r != "" && reason == "" {
				reason = r
			}
		case "QuotaFailure":
			for _, v := range mapsOf(m["violations"]) {
				s, _ := v["description"].(string)
				add(s)
			}
		case "BadRequest":
			for _, v := range mapsOf(m["fieldViolations"]) {
				field, _ := v["field"].(string)
				s, _ := v["description"].(string)
				if field != "" && s != "" && !(strings.Contains(text, field) && strings.Contains(text, oneLine(s))) {
					s = field + ": " + s
				}
				add(s)
			}
		case "PreconditionFailure":
			for _, v := range mapsOf(m["violations"]) {
				s, _ := v["description"].(string)
				add(s)
			}
		}
	}
	return reason, text
}

// detailType returns "ErrorInfo" for "type.googleapis.com/google.rpc.ErrorInfo".
func detailType(m map[string]any) string {
	t, _ := m["@type"].(string)
	if i := strings.LastIndexByte(t, '.'); i >= 0 {
		return t[i+1:]
	}
	return t
}

func mapsOf(v any) []map[string]any {
	list, _ := v.([]any)
	var out []map[string]any
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// Three failures have code 8 and 429: a limit per minute, a limit on the amount, and no
// free machines. Only Google's texts distinguish them. TestForeignTexts checks these
// expressions with real messages.
var (
	capacityText = regexp.MustCompile(`(?i)no more capacity|insufficient (reserved )?capacity|not enough (resources|capacity)|stockout|does not have enough resources`)
	rateText     = regexp.MustCompile(`(?i)per (minute|second|100 seconds)|rate limit|too many requests|requests per`)
	quotaText    = regexp.MustCompile(`(?i)\bquotas?\b|limit exceeded`)
	existsText   = regexp.MustCompile(`(?i)already exists`)
	inUseText    = regexp.MustCompile(`(?i)(already )?being used by|is in use`)
)

func isRateReason(r string) bool {
	switch r {
	case "RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded":
		return true
	}
	return false
}

func isQuotaReason(r string) bool {
	switch r {
	case "QUOTA_EXCEEDED", "quotaExceeded", "limitExceeded", "RESOURCE_QUOTA_EXCEEDED":
		return true
	}
	return false
}

func (a answer) class() Class {
	switch {
	case capacityText.MatchString(a.message) || a.reason == "ZONE_RESOURCE_POOL_EXHAUSTED":
		return Capacity
	case a.rateLimited():
		return Unavailable
	case isQuotaReason(a.reason):
		return Quota
	case a.reason == "resourceNotReady":
		return Unavailable
	case a.reason == "resourceInUseByAnotherResource":
		return Conflict
	}
	if a.http == 0 {
		return rpcClass(a.status, a.message)
	}
	return a.httpClass()
}

// classOfCode has the HTTP status codes that decide the class alone.
var classOfCode = map[int]Class{
	http.StatusUnauthorized:       Unauthenticated,
	http.StatusForbidden:          Permission,
	http.StatusNotFound:           NotFound,
	http.StatusGone:               NotFound,
	http.StatusPreconditionFailed: Conflict,
	http.StatusTooManyRequests:    Quota, // unless it is rateLimited, a limit on the amount
	http.StatusRequestTimeout:     Timeout,
	http.StatusGatewayTimeout:     Timeout,
	http.StatusNotImplemented:     Invalid,
}

// httpClass returns the class of an HTTP status code. Status and message may make it more
// precise.
func (a answer) httpClass() Class {
	if class, known := classOfCode[a.http]; known {
		return class
	}
	switch {
	case a.http >= 500:
		return Unavailable
	case a.http == http.StatusConflict:
		if a.status == "ALREADY_EXISTS" || a.reason == "alreadyExists" || existsText.MatchString(a.message) {
			return AlreadyExists
		}
		return Conflict
	case a.http >= 400:
		if a.status == "FAILED_PRECONDITION" || inUseText.MatchString(a.message) {
			return Conflict
		}
		return Invalid
	}
	return Unknown
}

// rateLimited reports whether the limit is on requests per time, and not on the amount.
func (a answer) rateLimited() bool {
	if isRateReason(a.reason) {
		return true
	}
	if a.http != http.StatusTooManyRequests && a.status != "RESOURCE_EXHAUSTED" {
		return false
	}
	if a.waits || rateText.MatchString(a.message) {
		return true
	}
	return !isQuotaReason(a.reason) && !quotaText.MatchString(a.message) && !capacityText.MatchString(a.message)
}

func (a answer) retryable() bool {
	switch a.class() {
	case Capacity, Quota:
		return false
	case Unavailable:
		return a.http != http.StatusNotImplemented
	case Timeout:
		return true
	}
	return false
}

// rpcClass returns the class of a google.rpc code by its name.
func rpcClass(status, message string) Class {
	switch status {
	case "NOT_FOUND":
		return NotFound
	case "ALREADY_EXISTS":
		return AlreadyExists
	case "PERMISSION_DENIED":
		return Permission
	case "UNAUTHENTICATED":
		return Unauthenticated
	case "RESOURCE_EXHAUSTED":
		if capacityText.MatchString(message) {
			return Capacity
		}
		return Quota
	case "INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED":
		return Invalid
	case "FAILED_PRECONDITION", "ABORTED":
		return Conflict
	case "UNAVAILABLE", "INTERNAL":
		return Unavailable
	case "DEADLINE_EXCEEDED":
		return Timeout
	}
	return Unknown
}

// class looks at Status before the code, because Compute's statuses say more than its
// codes, which are often missing.
func (e *OperationError) class() Class {
	if capacityText.MatchString(e.Message) {
		return Capacity
	}
	switch e.Status {
	case "QUOTA_EXCEEDED", "LIMIT_EXCEEDED":
		return Quota
	case "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED", "STOCKOUT":
		return Capacity
	case "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "RESOURCE_NOT_READY":
		return Conflict
	case "RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS":
		return AlreadyExists
	case "RESOURCE_NOT_FOUND", "NOT_FOUND":
		return NotFound
	case "PERMISSIONS_ERROR", "PERMISSION_DENIED":
		return Permission
	case "INTERNAL_ERROR":
		return Unavailable
	case "INVALID_FIELD_VALUE", "INVALID_USAGE", "UNSUPPORTED_OPERATION":
		return Invalid
	}
	if e.Code > 0 && e.Code < 20 {
		return rpcClass(rpcName(e.Code), e.Message)
	}
	if e.Code >= 400 {
		return answer{http: e.Code, status: e.Status, reason: e.Reason, message: e.Message}.class()
	}
	return Unknown
}

// rpcName returns the name of a google.rpc code in the REST APIs.
func rpcName(code int) string {
	names := [...]string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
		"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
		"ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
		"UNAUTHENTICATED",
	}
	if code < 0 || code >= len(names) {
		return fmt.Sprintf("CODE_%d", code)
	}
	return names[code]
}

// oneLine replaces each run of white space, with line ends, by one space.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
