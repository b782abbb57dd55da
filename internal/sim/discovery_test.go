package sim_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A discovery document is Google's own description of one version of an API. It has only
// what the checks need.
type discovery struct {
	Name, Version, ServicePath string
	Parameters                 map[string]*schema
	Resources                  map[string]*discoveryResource
	Schemas                    map[string]*schema

	methods []*discoveryMethod
}

type discoveryResource struct {
	Methods   map[string]*discoveryMethod
	Resources map[string]*discoveryResource
}

type discoveryMethod struct {
	ID, HTTPMethod, Path string
	Parameters           map[string]*schema
	Request, Response    *schema

	doc      *discovery
	template *regexp.Regexp // matches the path, including the first slash
}

// A schema describes a value: a parameter or a part of a body.
type schema struct {
	Ref                  string `json:"$ref"`
	Type, Format         string
	Pattern              string
	Location             string // place of a parameter: path or query
	Description          string
	Enum                 []string
	Required, Repeated   bool
	ReadOnly             bool
	Properties           map[string]*schema
	AdditionalProperties *schema
	Items                *schema
	Annotations          struct{ Required []string } // ids of methods
}

// loadDiscovery reads the documents in Google's Go clients.
func loadDiscovery(t *testing.T) []*discovery {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		t.Fatalf("find module google.golang.org/api: %v", err)
	}
	var docs []*discovery
	for _, file := range []string{"tpu/v2alpha1/tpu", "tpu/v2/tpu", "compute/v1/compute", "oslogin/v1/oslogin", "serviceusage/v1/serviceusage", "cloudresourcemanager/v1/cloudresourcemanager", "container/v1/container", "container/v1beta1/container"} {
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(file)+"-api.json"))
		if err != nil {
			t.Fatal(err)
		}
		d := new(discovery)
		if err := json.Unmarshal(b, d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		d.collect(d.Resources)
		docs = append(docs, d)
	}
	return docs
}

var pathVariable = regexp.MustCompile(`\\\{(\\\+)?([A-Za-z]+)\\\}`)

func (d *discovery) collect(resources map[string]*discoveryResource) {
	for _, r := range resources {
		for _, m := range r.Methods {
			m.doc = d
			// {+name} may contain slashes. {name} is one segment.
			text := pathVariable.ReplaceAllStringFunc(regexp.QuoteMeta("/"+d.ServicePath+m.Path), func(v string) string {
				name := pathVariable.FindStringSubmatch(v)
				if name[1] != "" {
					return "(?P<" + name[2] + ">.+)"
				}
				return "(?P<" + name[2] + ">[^/]+)"
			})
			m.template = regexp.MustCompile("^" + text + "$")
			d.methods = append(d.methods, m)
		}
		d.collect(r.Resources)
	}
}

// findMethod returns the method that a request calls.
func findMethod(docs []*discovery, verb, path string) (*discoveryMethod, error) {
	var found []*discoveryMethod
	for _, d := range docs {
		for _, m := range d.methods {
			if m.HTTPMethod == verb && m.matches(path) {
				found = append(found, m)
			}
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d methods match, want 1", len(found))
	}
	return found[0], nil
}

func (m *discoveryMethod) matches(path string) bool {
	values := m.template.FindStringSubmatch(path)
	if values == nil {
		return false
	}
	for i, name := range m.template.SubexpNames() {
		p := m.Parameters[name]
		if i > 0 && (p == nil || p.Pattern != "" && !matchesWhole(p.Pattern, values[i])) {
			return false
		}
	}
	return true
}

func matchesWhole(pattern, text string) bool {
	return regexp.MustCompile("^(?:" + pattern + ")$").MatchString(text)
}

// An exchange is one request and its answer.
type exchange struct {
	verb            string
	url             *url.URL
	request, answer string
	code            int
}

func (e exchange) String() string { return e.verb + " " + e.url.RequestURI() }

// A checker collects where exchanges contradict the documents, each contradiction once.
type checker struct {
	docs     []*discovery
	problems map[string]string // the problem → the first exchange with it
	called   map[string]int    // number of successful calls, by id of the method
	current  string
}

func (c *checker) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if _, ok := c.problems[text]; !ok {
		c.problems[text] = c.current
	}
}

// check compares one exchange with the documents.
func (c *checker) check(e exchange) {
	c.current = e.String()
	m, err := findMethod(c.docs, e.verb, e.url.Path)
	if err != nil {
		c.problem("%s %s: %v", e.verb, e.url.Path, err)
		return
	}
	c.checkQuery(m, e.url.Query())
	switch {
	case m.Request != nil:
		w := walker{checker: c, doc: m.doc, method: m.ID, asked: true, whole: m.HTTPMethod != http.MethodPatch}
		w.text(m.ID+" request", e.request, m.Request)
	case strings.TrimSpace(e.request) != "":
		c.problem("%s: has a body", m.ID)
	}
	if e.code != http.StatusOK {
		return // the documents do not describe errors
	}
	c.called[m.ID]++
	w := walker{checker: c, doc: m.doc, method: m.ID}
	w.text(m.ID+" response", e.answer, m.Response)
}

func (c *checker) checkQuery(m *discoveryMethod, query url.Values) {
	for name, values := range query {
		p := m.Parameters[name]
		if p == nil || p.Location != "query" {
			p = m.doc.Parameters[name]
		}
		where := m.ID + " query " + name
		switch {
		case p == nil:
			c.problem("%s: unknown parameter", where)
			continue
		case len(values) > 1 && !p.Repeated:
			c.problem("%s: repeated", where)
		}
		for _, v := range values {
			// In a query, every value is a text, whatever its type.
			var err error
			switch p.Type {
			case "boolean":
				_, err = strconv.ParseBool(v)
			case "integer":
				_, err = strconv.ParseInt(v, 10, 64)
			}
			if err != nil || p.Enum != nil && !slices.Contains(p.Enum, v) {
				c.problem("%s: %q is no %s %v", where, v, p.Type, p.Enum)
			}
		}
	}
	for name, p := range m.Parameters {
		if p.Location == "query" && p.Required && !query.Has(name) {
			c.problem("%s query %s: missing", m.ID, name)
		}
	}
}

// A walker compares one body with its schema.
type walker struct {
	*checker
	doc    *discovery
	method string
	asked  bool // the body is a request, so it must not have output-only fields
	whole  bool // the body must have the required fields. A patch has only those in its mask
}

func (w walker) text(where, body string, s *schema) {
	if w.asked && strings.TrimSpace(body) == "" {
		body = "{}"
	}
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		w.problem("%s: %v", where, err)
		return
	}
	w.value(where, v, s)
}

func (w walker) value(where string, v any, s *schema) {
	if s.Ref != "" {
		// From here on, positions start at the message, so that a problem has the same name
		// wherever the message is, and appears once.
		where = strings.Fields(where)[0] + " " + strings.Fields(where)[1] + " " + s.Ref
		s = w.doc.Schemas[s.Ref]
	}
	switch s.Type {
	case "object":
		m, ok := v.(map[string]any)
		if !ok {
			w.problem("%s: %T is no object", where, v)
			return
		}
		w.object(where, m, s)
	case "array":
		list, ok := v.([]any)
		if !ok {
			w.problem("%s: %T is no array", where, v)
		}
		for _, item := range list {
			w.value(where+"[]", item, s.Items)
		}
	case "any":
		w.message(where, v)
	default:
		w.scalar(where, v, s)
	}
}

func (w walker) object(where string, m map[string]any, s *schema) {
	if s.Properties == nil && s.AdditionalProperties != nil && s.AdditionalProperties.Type == "any" {
		w.message(where, m)
		return
	}
	for name, v := range m {
		p := s.Properties[name]
		if p == nil {
			p = s.AdditionalProperties
		}
		field := where + "." + name
		switch {
		case p == nil:
			w.problem("%s: unknown field", field)
			continue
		case w.asked && (p.ReadOnly || strings.HasPrefix(p.Description, "Output only") || strings.HasPrefix(p.Description, "[Output Only]")):
			w.problem("%s: is output only", field)
		}
		w.value(field, v, p)
	}
	for name, p := range s.Properties {
		required := strings.HasPrefix(p.Description, "Required.") || slices.Contains(p.Annotations.Required, w.method)
		if _, ok := m[name]; w.whole && required && !ok {
			w.problem("%s.%s: missing", where, name)
		}
	}
}

// message checks a message in a field for any type. Such a message names its own type.
func (w walker) message(where string, v any) {
	m, ok := v.(map[string]any)
	name, _ := m["@type"].(string)
	if !ok || !strings.HasPrefix(name, "type.googleapis.com/") {
		w.problem("%s: no message with @type: %.80v", where, v)
		return
	}
	name = name[strings.LastIndexByte(name, '.')+1:]
	if s := w.doc.Schemas[name]; s != nil {
		rest := maps.Clone(m)
		delete(rest, "@type")
		w.value(where, rest, &schema{Ref: name})
	} else if !strings.HasPrefix(m["@type"].(string), "type.googleapis.com/google.rpc.") {
		w.problem("%s: %s is no type of the API", where, m["@type"])
	}
}

var durationFormat = regexp.MustCompile(`^-?[0-9]+(\.[0-9]{1,9})?s$`)

func (w walker) scalar(where string, v any, s *schema) {
	number, _ := v.(json.Number)
	text, isText := v.(string)
	var err error
	ok := true
	switch s.Type {
	case "string":
		ok = isText
	case "boolean":
		_, ok = v.(bool)
	case "integer":
		var n int64
		if n, err = number.Int64(); s.Format == "int32" && n != int64(int32(n)) || s.Format == "uint32" && n != int64(uint32(n)) {
			ok = false
		}
	case "number":
		_, err = number.Float64()
	default:
		ok = false
	}
	if ok && isText {
		switch s.Format {
		case "int64":
			_, err = strconv.ParseInt(text, 10, 64)
		case "uint64":
			_, err = strconv.ParseUint(text, 10, 64)
		case "byte":
			// Compute encodes fingerprints with the alphabet for URLs.
			_, err = base64.StdEncoding.DecodeString(strings.NewReplacer("-", "+", "_", "/").Replace(text))
		case "google-datetime":
			_, err = time.Parse(time.RFC3339Nano, text)
		case "google-duration":
			ok = durationFormat.MatchString(text)
		}
		if s.Enum != nil && !slices.Contains(s.Enum, text) || s.Pattern != "" && !matchesWhole(s.Pattern, text) {
			ok = false
		}
	}
	if !ok || err != nil {
		w.problem("%s: %.80v is no %s %s %s %.300v", where, v, s.Type, s.Format, s.Pattern, s.Enum)
	}
}

// report fails t for every problem.
func (c *checker) report(t *testing.T) {
	t.Helper()
	for _, text := range slices.Sorted(maps.Keys(c.problems)) {
		t.Errorf("%s\n\tin %s", text, c.problems[text])
	}
}

// The check must find every kind of fault for which it is made.
func TestDiscoveryCheckFindsFaults(t *testing.T) {
	t.Parallel()
	docs := loadDiscovery(t)
	const (
		queue    = "/v2alpha1/projects/p/locations/us-central2-b/queuedResources"
		networks = "/compute/v1/projects/p/global/networks"
		op       = `{"name":"projects/p/locations/z/operations/o"}`
	)
	node := func(fields string) string {
		return `{"tpu":{"nodeSpec":[{"parent":"projects/p/locations/z","nodeId":"n","node":{` + fields + `}}]}}`
	}
	for _, test := range []struct{ verb, url, request, answer, want string }{
		{"POST", queue + "?queuedResourceId=q", node(`"runtimeVersion":"r","dataDisks":[{"mode":"READ_ONLY"}]`), op, ""},
		{"POST", queue, node(`"acceleratorType":"v4-8"`), op, "Node.runtimeVersion: missing"},
		{"POST", queue, node(`"runtimeVersion":"r","dataDisks":[{"mode":"READ_ONLY_MANY"}]`), op, "READ_ONLY_MANY is no string"},
		{"POST", queue, node(`"runtimeVersion":"r","tag":["t"]`), op, "Node.tag: unknown field"},
		{"POST", queue, node(`"runtimeVersion":"r","labels":{"k":1}`), op, "Node.labels.k: 1 is no string"},
		{"POST", queue, node(`"runtimeVersion":"r","id":"7"`), op, "Node.id: is output only"},
		{"POST", queue, `{"queueingPolicy":{"validUntilDuration":"1h"}}`, op, "1h is no string google-duration"},
		{"POST", queue, `{"queueingPolicy":{"validUntilTime":"tomorrow"}}`, op, "tomorrow is no string google-datetime"},
		{"POST", queue + "?qrId=q", `{}`, op, "query qrId: unknown parameter"},
		{"POST", queue + "?requestId=a&requestId=b", `{}`, op, "query requestId: repeated"},
		{"POST", queue, `{}`, `{"name":7}`, "Operation.name: 7 is no string"},
		{"POST", queue, `{}`, `{"done":true,"response":{"@type":"type.googleapis.com/google.cloud.tpu.v2alpha1.Node","nmae":"n"}}`, "Node.nmae: unknown field"},
		{"POST", queue, `{}`, `{"response":{"name":"n"}}`, "no message with @type"},
		{"DELETE", queue + "/q?force=yes", "", op, `"yes" is no boolean`},
		{"GET", queue + "/q", "{}", `{}`, "has a body"},
		{"GET", queue + "/q", "", `{"state":{"state":"HAPPY"}}`, "HAPPY is no string"},
		{"PUT", queue + "/q", "{}", `{}`, "0 methods match"},
		{"GET", "/v2alpha1/projects/p/queuedResources/q", "", `{}`, "0 methods match"},
		{"PATCH", "/v2alpha1/projects/p/locations/z/nodes/n?updateMask=metadata", `{"metadata":{"k":"v"}}`, op, ""},
		{"POST", networks, `{"name":"mtu9k","mtu":8896}`, `{"status":"DONE","id":"1","insertTime":"2026-01-02T03:04:05.678-07:00"}`, ""},
		{"POST", networks, `{"mtu":8896}`, `{}`, "Network.name: missing"},
		{"POST", networks, `{"name":"Mtu9k"}`, `{}`, "Mtu9k is no string"},
		{"POST", networks, `{"name":"n","mtu":"8896"}`, `{}`, "8896 is no integer"},
		{"POST", networks, `{"name":"n","mtu":3000000000}`, `{}`, "is no integer int32"},
		{"POST", networks, `{"name":"n"}`, `{"id":-1}`, "-1 is no string uint64"},
		{"POST", networks, `{"name":"n"`, `{}`, "unexpected EOF"},
	} {
		u, err := url.Parse(test.url)
		if err != nil {
			t.Fatal(err)
		}
		c := &checker{docs: docs, problems: map[string]string{}, called: map[string]int{}}
		c.check(exchange{verb: test.verb, url: u, request: test.request, answer: test.answer, code: http.StatusOK})
		found := strings.Join(slices.Sorted(maps.Keys(c.problems)), "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s %s %s %s: found %q, want %q", test.verb, test.url, test.request, test.answer, found, test.want)
		}
	}
}
