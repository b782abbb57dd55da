package gcp

import (
	"context"
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ReadCompute reads the resource of Compute Engine at path, "projects/P/zones/Z/…", into m.
// The parameter what describes the call in errors: "read reservation \"r\"". ReadCompute is
// for kinds of resources that are only read one by one: Google's client for a kind would
// add all of its calls to the program.
func (c *Client) ReadCompute(ctx context.Context, what, path string, m proto.Message) error {
	roots, err := c.Roots()
	if err != nil {
		return err
	}
	return c.Do(ctx, what, func(ctx context.Context) error {
		body, err := c.getBody(ctx, roots.Compute+"/compute/v1/"+path, http.Header{})
		if err != nil {
			return err
		}
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, m)
	})
}
