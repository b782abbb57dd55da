package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	tpuv2 "google.golang.org/api/tpu/v2"
	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

// The simulator stores everything as v2alpha1 messages. They have all of v2, except that v2
// calls multiNodeParams multisliceParams.

// Encode encodes a v2alpha1 message in the given version. It renames fields, and drops
// those that the version lacks.
func Encode(version string, v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	if err != nil || version == "v2alpha1" {
		return b, err
	}
	var known reflect.Type
	switch v.(type) {
	case *tpualpha.QueuedResource:
		b = RenameParams(b, "multiNodeParams", "multisliceParams")
		known = reflect.TypeFor[tpuv2.QueuedResource]()
	case *tpualpha.Node:
		known = reflect.TypeFor[tpuv2.Node]()
	default:
		return b, nil
	}
	var raw any
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	walkNames(raw, known, "", func(m map[string]any, name, _ string) { delete(m, name) })
	return json.Marshal(raw)
}

// A Message keeps the JSON of a message until the message changes, because waiting clients
// read it again and again. The zero value is ready for use.
type Message struct {
	of   any
	json json.RawMessage
}

// Encode does what the function Encode does, and keeps the result.
func (m *Message) Encode(version string, v any) (json.RawMessage, error) {
	if version == "v2alpha1" && reflect.DeepEqual(m.of, v) {
		return m.json, nil
	}
	b, err := Encode(version, v)
	if err != nil || version != "v2alpha1" {
		return b, err
	}
	same := reflect.New(reflect.TypeOf(v).Elem()).Interface()
	err = json.Unmarshal(b, same)
	m.of, m.json = same, slices.Clip(b) // nobody appends to it
	return m.json, err
}

// List returns an answer with a list of messages in a field, and the token of the next
// page, or "" on the last page. It encodes no message again.
func List(field string, messages []json.RawMessage, next string) json.RawMessage {
	b := []byte("{")
	if next != "" {
		b = fmt.Appendf(b, "%q:%q", "nextPageToken", next)
	}
	for i, m := range messages {
		switch {
		case i > 0:
			b = append(b, ',')
		case next != "":
			b = fmt.Appendf(b, ",%q:[", field)
		default:
			b = fmt.Appendf(b, "%q:[", field)
		}
		b = append(b, m...)
	}
	if len(messages) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

// RenameParams renames a field of a queued resource's node specifications. A text that is
// no JSON object stays as it is.
func RenameParams(body []byte, from, to string) []byte {
	var raw map[string]any
	if json.Unmarshal(body, &raw) != nil {
		return body
	}
	spec, _ := raw["tpu"].(map[string]any)
	list, _ := spec["nodeSpec"].([]any)
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			if v, ok := m[from]; ok {
				delete(m, from)
				m[to] = v
			}
		}
	}
	renamed, err := json.Marshal(raw)
	if err != nil {
		return body
	}
	return renamed
}

// DecodeStrict unmarshals body. It refuses what the JSON layer of Google's APIs refuses:
// bad syntax, unknown names, wrong types. root is the name of the message there.
func DecodeStrict(body []byte, into any, root string) error {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	var raw any
	if err := json.Unmarshal(body, &raw); err != nil {
		return Errorf(http.StatusBadRequest, "Invalid JSON payload received. %v", err)
	}
	if _, ok := raw.(map[string]any); !ok {
		return Errorf(http.StatusBadRequest, "Invalid JSON payload received. Unknown name \"\": Root element must be a message.")
	}
	var texts []string
	var violations []any
	walkNames(raw, reflect.TypeOf(into).Elem(), root, func(_ map[string]any, name, path string) {
		text := fmt.Sprintf("Invalid JSON payload received. Unknown name %q at '%s': Cannot find field.", name, path)
		texts = append(texts, text)
		violations = append(violations, map[string]any{"field": path, "description": text})
	})
	if len(texts) > 0 {
		return Errorf(http.StatusBadRequest, "%s", strings.Join(texts, "\n")).WithDetails(map[string]any{
			"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations,
		})
	}
	if err := json.Unmarshal(body, into); err != nil {
		field := root
		if bad := (*json.UnmarshalTypeError)(nil); errors.As(err, &bad) {
			field += "." + Snake(bad.Field)
		}
		return Errorf(http.StatusBadRequest, "Invalid value at '%s': %v", field, err)
	}
	return nil
}

// walkNames calls unknown for every name in raw that is no field of t. It compares names
// exactly: encoding/json alone would ignore their case.
func walkNames(raw any, t reflect.Type, path string, unknown func(m map[string]any, name, path string)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice:
		list, _ := raw.([]any)
		for i, item := range list {
			walkNames(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i), unknown)
		}
	case t.Kind() == reflect.Struct:
		m, _ := raw.(map[string]any)
		names := make([]string, 0, len(m))
		for name := range m {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			field, ok := fieldNamed(t, name)
			if !ok {
				unknown(m, name, path)
				continue
			}
			walkNames(m[name], field, path+"."+Snake(name), unknown)
		}
	}
}

func fieldNamed(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if tag == name && tag != "-" && tag != "" {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

// Snake returns a JSON name in the form of Google's error texts.
func Snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// systemParameters are those that every method of every Google API accepts, except fields:
// the simulator models partial responses only for Cloud Storage.
var systemParameters = []string{"alt", "$alt", "prettyPrint", "key", "quotaUser", "access_token", "oauth_token", "uploadType", "$.xgafv", "$prettyPrint"}

// CheckQuery returns an error for query parameters that the method does not have.
func CheckQuery(query url.Values, known ...string) error {
	for name, values := range query {
		switch {
		case name == "fields":
			return NotModelled("The query parameter fields")
		case name == "alt" || name == "$alt":
			if format, _, _ := strings.Cut(values[0], ";"); format != "json" {
				return NotModelled("The output format " + values[0])
			}
		case slices.Contains(systemParameters, name):
		case !slices.Contains(known, name):
			text := fmt.Sprintf("Invalid JSON payload received. Unknown name %q: Cannot bind query parameter. Field '%s' could not be found in request message.", name, name)
			return Errorf(http.StatusBadRequest, "%s", text).WithReason("badRequest").WithDetails(map[string]any{
				"@type":           "type.googleapis.com/google.rpc.BadRequest",
				"fieldViolations": []any{map[string]any{"description": text}},
			})
		case len(values) > 1 && name != "updateMask":
			return Errorf(http.StatusBadRequest, "Invalid value at '%s': repeated.", Snake(name))
		}
	}
	return nil
}

// QueryBool parses a boolean as the API does. gcloud sends True.
func QueryBool(query url.Values, name string) (bool, error) {
	switch strings.ToLower(query.Get(name)) {
	case "":
		return false, nil
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, Errorf(http.StatusBadRequest, "Invalid value at '%s' (TYPE_BOOL), %q", Snake(name), query.Get(name))
}

// Page returns one page of all, which must be in a stable order. The token encodes the
// number of items before the page, so that nobody is tempted to guess it.
func Page[T any](all []T, query url.Values, sizeName string, largest int) (items []T, next string, err error) {
	start, size := 0, largest
	if text := query.Get(sizeName); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, "", Errorf(http.StatusBadRequest, "Invalid value at '%s' (TYPE_INT32), %q", Snake(sizeName), text)
		}
		if n > 0 {
			size = min(n, largest)
		}
	}
	if token := query.Get("pageToken"); token != "" {
		if _, err := fmt.Sscanf(token, "sim-page-%x", &start); err != nil || start > len(all) {
			return nil, "", Errorf(http.StatusBadRequest, "Invalid value at 'page_token': %q", token)
		}
	}
	end := min(start+size, len(all))
	if end < len(all) {
		next = fmt.Sprintf("sim-page-%x", end)
	}
	return all[start:end], next, nil
}

// MaxBody is larger than any legal request. A metadata value of a node has at most 256 KiB.
const MaxBody = 8 << 20

// ReadBody reads the body of a request, at most limit bytes.
func ReadBody(r *http.Request, limit int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	if err != nil {
		return nil, Errorf(http.StatusBadRequest, "Request body could not be read: %v", err)
	}
	if len(b) > limit {
		return nil, Errorf(http.StatusRequestEntityTooLarge, "Request payload size exceeds the limit: %d bytes.", limit)
	}
	return b, nil
}
