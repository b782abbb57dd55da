package gcp_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/gcp"
)

// The error has the request that was not sent.
func TestAReadOnlyClientOnlyReads(t *testing.T) {
	f := setUp(t, func(c *gcp.Config) { c.ReadOnly = true }, answer(200, `{}`))
	svc, err := f.client.TPU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes := svc.Projects.Locations.Nodes
	const name = "projects/p/locations/z/nodes/t-0"
	do := func(call func(ctx context.Context) error) error {
		return f.client.Do(t.Context(), "try", call)
	}
	for what, call := range map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error { _, err := nodes.Get(name).Context(ctx).Do(); return err },
		"guest attributes": func(ctx context.Context) error {
			_, err := nodes.GetGuestAttributes(name, &tpuapi.GetGuestAttributesRequest{}).Context(ctx).Do()
			return err
		},
	} {
		if err := do(call); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	sent := f.server.Calls()
	for want, call := range map[string]func(ctx context.Context) error{
		http.MethodPost: func(ctx context.Context) error {
			_, err := nodes.Create("projects/p/locations/z", &tpuapi.Node{Description: "d"}).Context(ctx).Do()
			return err
		},
		http.MethodPatch: func(ctx context.Context) error {
			_, err := nodes.Patch(name, &tpuapi.Node{Description: "d"}).Context(ctx).Do()
			return err
		},
		http.MethodDelete: func(ctx context.Context) error { _, err := nodes.Delete(name).Context(ctx).Do(); return err },
	} {
		var refused *gcp.ReadOnlyError
		if err := do(call); !errors.As(err, &refused) || refused.Method != want || gcp.ClassOf(err) != gcp.Unknown {
			t.Errorf("%s: %v", want, err)
		} else if want != http.MethodDelete && string(refused.Body) != "{\"description\":\"d\"}\n" {
			t.Errorf("%s: body %q", want, refused.Body)
		}
	}
	if now := f.server.Calls(); !slices.Equal(now, sent) || len(sent) != 2 {
		t.Errorf("sent: %q, then %q", sent, now)
	}
}
