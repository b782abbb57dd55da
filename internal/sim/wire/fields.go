package wire

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
)

// A fieldMask is the query parameter fields, which asks for a partial response. It maps the
// name of each wanted field to the wanted fields below it. nil means all fields. "*"
// matches every name.
type fieldMask map[string]fieldMask

// ParseFields parses "kind,items(name,metadata/mode),nextPageToken". v has the type of the
// answer.
func ParseFields(text string, v any) (fieldMask, error) {
	p := fieldParser{all: text, rest: text}
	mask, err := p.list(reflect.TypeOf(v))
	if err == nil && p.rest != "" {
		err = p.bad()
	}
	return mask, err
}

type fieldParser struct{ all, rest string }

func (p *fieldParser) bad() error {
	at := p.all[:len(p.all)-len(p.rest)]
	if i := strings.LastIndexAny(at, ",/("); i >= 0 {
		at = at[i+1:]
	}
	return Errorf(http.StatusBadRequest, "Invalid field selection %s", at).WithReason("invalidParameter")
}

func (p *fieldParser) list(t reflect.Type) (fieldMask, error) {
	mask := fieldMask{}
	for {
		if err := p.item(t, mask); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(p.rest, ",") {
			return mask, nil
		}
		p.rest = p.rest[1:]
	}
}

// item parses one name and the wanted fields below it.
func (p *fieldParser) item(t reflect.Type, mask fieldMask) error {
	end := strings.IndexAny(p.rest, ",/()")
	if end < 0 {
		end = len(p.rest)
	}
	name := p.rest[:end]
	p.rest = p.rest[end:]
	below, ok := typeBelow(t, name)
	if !ok {
		return p.bad()
	}
	var sub fieldMask
	var err error
	switch {
	case strings.HasPrefix(p.rest, "/"):
		p.rest = p.rest[1:]
		sub = fieldMask{}
		err = p.item(below, sub)
	case strings.HasPrefix(p.rest, "("):
		p.rest = p.rest[1:]
		if sub, err = p.list(below); err == nil && !strings.HasPrefix(p.rest, ")") {
			err = p.bad()
		}
		p.rest = strings.TrimPrefix(p.rest, ")")
	}
	if err != nil {
		return err
	}
	mask.add(name, sub)
	return nil
}

// add adds sub to the wanted fields below a field.
func (f fieldMask) add(name string, sub fieldMask) {
	old, had := f[name]
	switch {
	case !had || sub == nil:
		f[name] = sub
	case old != nil: // otherwise the mask has the whole field
		for k, v := range sub {
			old.add(k, v)
		}
	}
}

// typeBelow returns the type of a field of t, or of the elements of a list or pointer t.
func typeBelow(t reflect.Type, name string) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Map:
		return t.Elem(), name != ""
	case t.Kind() == reflect.Struct && name == "*":
		return reflect.TypeFor[map[string]any](), true
	case t.Kind() == reflect.Struct:
		return fieldNamed(t, name)
	case t.Kind() == reflect.Interface:
		return t, name != ""
	}
	return nil, false
}

// Of returns the part of a message that the mask selects.
func (f fieldMask) Of(message []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(message, &v); err != nil {
		return nil, err
	}
	f.prune(v)
	return json.MarshalIndent(v, "", "  ")
}

func (f fieldMask) prune(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			f.prune(item)
		}
	case map[string]any:
		for name, value := range v {
			sub, ok := f[name]
			if !ok {
				sub, ok = f["*"]
			}
			if !ok {
				delete(v, name)
			} else if sub != nil {
				sub.prune(value)
			}
		}
	}
}
