package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"multihost/internal/sim/kubeapi/store"
)

// maxBody limits the body of a request, in bytes, as a real server does.
const maxBody = 3 << 20

// A request is a request for objects.
type request struct {
	*http.Request
	query     url.Values
	kind      *store.Kind
	version   string
	namespace string
	name      string
	sub       string // subresource
}

// parse reads the path of a request. It returns nil if the path does not name objects.
func (s objects) parse(r *http.Request) *request {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	q := &request{Request: r, query: r.URL.Query()}
	var group string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		q.version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group, q.version, parts = parts[1], parts[2], parts[3:]
	default:
		return nil
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		inside := s.store.Find(group, q.version, parts[2])
		if group != "" || inside != nil && inside.Namespaced {
			q.namespace, parts = parts[1], parts[2:]
		}
	}
	q.kind = s.store.Find(group, q.version, parts[0])
	if q.kind == nil || q.namespace != "" && !q.kind.Namespaced || len(parts) > 3 {
		return nil
	}
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if len(parts) > 2 {
		q.sub = parts[2]
	}
	return q
}

// flag reports whether a parameter of the query is true.
func (q *request) flag(name string) bool {
	v, _ := strconv.ParseBool(q.query.Get(name))
	return v
}

// write reads from the request how to write.
func (q *request) write() (store.Write, error) {
	w := store.Write{Manager: q.query.Get("fieldManager"), Status: q.sub == "status", Force: q.flag("force")}
	for _, d := range q.query["dryRun"] {
		if d != metav1.DryRunAll {
			return w, apierrors.NewBadRequest(fmt.Sprintf("dryRun: Unsupported value: %q: supported values: \"All\"", d))
		}
		w.DryRun = true
	}
	if w.Manager == "" {
		agent, _, _ := strings.Cut(q.UserAgent(), "/")
		w.Manager = agent
	}
	if w.Manager == "" {
		w.Manager = "unknown"
	}
	return w, nil
}

// body reads the body of the request.
func (q *request) body() ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(q.Body, maxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(b) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return b, nil
}

// contentType returns the type of the body without its parameters.
func (q *request) contentType() string {
	t, _, err := mime.ParseMediaType(q.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// object reads an object from a body, in the stored version.
func (q *request) object(body []byte) (*store.Object, error) {
	if strings.Contains(q.contentType(), "yaml") {
		text, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		body = text
	}
	o, err := store.Parse(body)
	if err != nil || o.Object == nil {
		if err == nil {
			err = errors.New("unexpected end of JSON input")
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v", q.kind.Kind, err))
	}
	gvk := q.kind.GroupVersion(q.version).WithKind(q.kind.Kind)
	if o.GetKind() == "" && o.GetAPIVersion() == "" {
		o.SetGroupVersionKind(gvk)
	}
	if have := o.GroupVersionKind(); have != gvk {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", have.GroupVersion(), gvk.GroupVersion()))
	}
	return q.kind.ToStored(q.version, o), nil
}

// checkFields refuses or reports unknown fields of an object, as the request asks.
func (q *request) checkFields(w http.ResponseWriter, o *store.Object) error {
	unknown := store.Unknown(q.kind, o)
	if len(unknown) == 0 {
		return nil
	}
	switch q.query.Get("fieldValidation") {
	case metav1.FieldValidationStrict:
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s", q.kind.Kind, q.version, q.kind.Kind, strings.Join(unknown, ", ")))
	case metav1.FieldValidationIgnore:
	default:
		for _, u := range unknown {
			w.Header().Add("Warning", "299 - "+strconv.Quote(u))
		}
	}
	return nil
}

// A selection says which objects a list or a watch shows.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func (q *request) selection() (selection, error) {
	s := selection{labels.Everything(), fields.Everything()}
	var err error
	if text := q.query.Get("labelSelector"); text != "" {
		if s.labels, err = labels.Parse(text); err != nil {
			return s, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %v", err))
		}
	}
	if text := q.query.Get("fieldSelector"); text != "" {
		if s.fields, err = fields.ParseSelector(text); err != nil {
			return s, apierrors.NewBadRequest(err.Error())
		}
	}
	for _, r := range s.fields.Requirements() {
		if _, ok := fieldOf(q.kind, &store.Object{}, r.Field); !ok {
			return s, notSelectable(q.kind, r.Field)
		}
	}
	if q.name != "" {
		s.fields = fields.AndSelectors(s.fields, fields.OneTermEqualSelector("metadata.name", q.name))
	}
	return s, nil
}

// notSelectable says that objects cannot be selected by a field. A real server has one text
// for kinds with fields of their own and for those of CustomResourceDefinitions, and another
// one for the rest.
func notSelectable(k *store.Kind, field string) error {
	if selectable[k.Kind] != nil || strings.HasSuffix(k.Group, ".x-k8s.io") {
		return apierrors.NewBadRequest("field label not supported: " + field)
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", field, "metadata.name", "metadata.namespace"))
}

// has reports whether the selection shows an object.
func (s selection) has(k *store.Kind, o *store.Object) bool {
	if o == nil || !s.labels.Matches(labels.Set(o.GetLabels())) {
		return false
	}
	set := fields.Set{}
	for _, r := range s.fields.Requirements() {
		set[r.Field], _ = fieldOf(k, o, r.Field)
	}
	return s.fields.Matches(set)
}

// selectable are the fields besides name and namespace by which objects can be selected.
var selectable = map[string][]string{
	"Pod":       {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"},
	"Event":     {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
	"Job":       {"status.successful"},
	"Namespace": {"status.phase"},
	"Node":      {"spec.unschedulable"},
	"Secret":    {"type"},
}

func fieldOf(k *store.Kind, o *store.Object, name string) (value string, ok bool) {
	switch name {
	case "metadata.name":
		return nameOf(o), true
	case "metadata.namespace":
		return namespaceOf(o), k.Namespaced
	}
	for _, f := range selectable[k.Kind] {
		if f != name {
			continue
		}
		if f == "source" {
			name = "source.component"
		}
		var v any = o.Object
		for _, part := range strings.Split(name, ".") {
			m, _ := v.(map[string]any)
			v = m[part]
		}
		if v == nil {
			return "", true
		}
		return fmt.Sprint(v), true
	}
	return "", false
}

func nameOf(o *store.Object) string {
	if o.Object == nil {
		return ""
	}
	return o.GetName()
}

func namespaceOf(o *store.Object) string {
	if o.Object == nil {
		return ""
	}
	return o.GetNamespace()
}

// statusOf returns the API's status for an error.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		st := known.Status()
		st.Kind, st.APIVersion = "Status", "v1"
		return &st
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}
}

func writeError(w http.ResponseWriter, err error) {
	st := statusOf(err)
	if st.Details != nil && st.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(st.Details.RetryAfterSeconds)))
	}
	writeJSON(w, int(st.Code), st)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(err.Error())
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // an error means that the client has gone
}

// notFound returns the answer for a path that the server does not serve.
func notFound() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}}
}
