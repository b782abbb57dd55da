package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/fault"
)

// A Deletion is one resource that a worker may delete. The provider that made the
// resource gives it as data: this package knows no name of a cloud.
type Deletion struct {
	Read   string `json:"read"`   // URL of the resource
	Method string `json:"method"` // HTTP method of the request that deletes the resource
	URL    string `json:"url"`    // of the request that deletes the resource
	// Proof is the field and the value that the resource must have before it is deleted.
	Proof Field `json:"proof"`
	// Going is the field that shows that the resource is already being deleted. Without a
	// Path, nothing shows that.
	Going Field `json:"going,omitzero"`
	// Probe is the URL of a resource of the same kind that does not exist. A request with
	// Method to this URL shows whether the caller may delete. Without Probe, nothing shows
	// that.
	Probe string `json:"probe,omitempty"`
}

// A Field is a place in a JSON text, and the value that this place must have. If Path has a
// *, at least one element must exist, and all elements must have the value.
type Field struct {
	// Path is a JSON pointer (RFC 6901) in which * stands for every element of an array.
	Path  string `json:"path"`
	Value string `json:"value"`
}

// ErrForeign reports a resource without the proof that it belongs to the run.
var ErrForeign = fault.New(fault.Permission, "it is not of this run: it stays")

// Delete requests the deletions, in the order of after. It continues after an error,
// because each resource costs money. Before each request it reads the resource and checks
// the proof. A
// resource that is gone, or is being deleted, needs no request. ErrForeign is final: every
// resource that is left belongs to another run. After any other result the caller may call
// Delete again, because a deletion that was accepted may fail later.
func (c *Client) Delete(ctx context.Context, deletions []Deletion) error {
	var trouble []error
	foreign, ours := false, false
	if len(deletions) > 1 {
		own, _ := c.Metadata.Optional(ctx, "attributes/created-by")
		deletions = after(own, deletions)
	}
	for _, d := range deletions {
		there, err := c.delete(ctx, d)
		switch {
		case errors.Is(err, ErrForeign):
			foreign = true
		case err != nil && len(deletions) > 1:
			trouble = append(trouble, fmt.Errorf("%s: %w", d.Read[strings.LastIndexByte(d.Read, '/')+1:], err))
		case err != nil:
			return err
		}
		ours = ours || there
	}
	if foreign && !ours && len(trouble) == 0 {
		return ErrForeign
	}
	return errors.Join(trouble...)
}

// after returns the deletions as a ring that begins behind own and ends with it. own is the
// group that made this VM, from the metadata value created-by:
// projects/NUMBER/zones/ZONE/instanceGroupManagers/NAME. The URL of the group may have the
// project's name in place of its number. A VM that deletes its own group may be gone before
// it has asked for the others, and a group in which no VM runs has nobody else. With the
// ring, a worker that ends another worker's VM has first deleted the groups between them.
func after(own string, deletions []Deletion) []Deletion {
	_, group, _ := strings.Cut(own, "/zones/")
	for i, d := range deletions {
		if group != "" && strings.HasSuffix(d.Read, "/zones/"+group) {
			return slices.Concat(deletions[i+1:], deletions[:i+1])
		}
	}
	return deletions
}

// delete requests one deletion. It returns true if the resource has the proof and may still
// exist.
func (c *Client) delete(ctx context.Context, d Deletion) (there bool, err error) {
	resource, err := c.object(ctx, Call{Method: http.MethodGet, URL: d.Read})
	if StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	if err == nil && len(resource) == 0 {
		err = errNoObject
	}
	if err != nil {
		return false, fmt.Errorf("it cannot be read: %w", err)
	}
	if d.Proof.Value == "" || !d.Proof.In(resource) {
		return false, ErrForeign
	}
	if d.Going.Path != "" && d.Going.In(resource) {
		return true, nil
	}
	_, err = c.Do(ctx, Call{Method: d.Method, URL: d.URL})
	if StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return true, err
}

// MayDelete returns nil if this VM may delete such resources. It tries to delete a resource
// that does not exist. A caller with the permission gets 404, and any other caller is
// refused. MayDelete retries temporary errors for about half a minute.
func (c *Client) MayDelete(ctx context.Context, deletions []Deletion) error {
	for _, d := range deletions {
		if d.Probe == "" {
			continue
		}
		err := c.patiently(ctx, func() error {
			_, err := c.Do(ctx, Call{Method: d.Method, URL: d.Probe})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Limits of a probe, for whose answer a runner waits.
const (
	probeRetries = 3
	probeLimit   = 20 * time.Second // no try begins after this
)

// patiently repeats a call that failed for a temporary reason. It returns nil if the
// resource does not exist: a caller without the permission would get a refusal.
func (c *Client) patiently(ctx context.Context, call func() error) error {
	begin := time.Now()
	for i := 0; ; i++ {
		err := call()
		var noToken *tokenError
		switch {
		case err == nil, StatusOf(err) == http.StatusNotFound:
			return nil
		case errors.As(err, &noToken), !temporary(err), i == probeRetries, time.Since(begin) >= probeLimit:
			return err
		case Sleep(ctx, time.Second<<i) != nil:
			return err
		}
	}
}

// In reports whether a decoded JSON value has f's value at f's place.
func (f Field) In(value any) bool {
	if f.Path == "" {
		return value == f.Value
	}
	path, ok := strings.CutPrefix(f.Path, "/")
	return ok && has(value, strings.Split(path, "/"), f.Value)
}

func has(value any, path []string, want string) bool {
	if len(path) == 0 {
		text, ok := value.(string)
		return ok && text == want
	}
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch v := value.(type) {
	case map[string]any:
		inner, ok := v[name]
		return ok && has(inner, path[1:], want)
	case []any:
		if name != "*" {
			i, err := strconv.Atoi(name)
			return err == nil && i >= 0 && i < len(v) && has(v[i], path[1:], want)
		}
		for _, element := range v {
			if !has(element, path[1:], want) {
				return false
			}
		}
		return len(v) > 0
	}
	return false
}
