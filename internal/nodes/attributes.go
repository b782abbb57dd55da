package nodes

import (
	"context"
	"fmt"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// Attributes implements provision.AttributeReader, with one call for the whole slice.
func (c *hostKeys) Attributes(ctx context.Context, slice, key string) (texts []string, err error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	var answer *tpuapi.GetGuestAttributesResponse
	err = c.gcp.Do(ctx, fmt.Sprintf("read guest attributes of slice %q", slice), func(ctx context.Context) (err error) {
		request := &tpuapi.GetGuestAttributesRequest{QueryPath: "multihost/" + key}
		answer, err = svc.Projects.Locations.Nodes.GetGuestAttributes(c.nodeName(slice), request).Context(ctx).Do()
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, worker := range answer.GuestAttributes {
		if worker == nil || worker.QueryValue == nil {
			continue
		}
		for _, item := range worker.QueryValue.Items {
			if item != nil && item.Namespace == "multihost" && item.Key == key {
				texts = append(texts, item.Value)
			}
		}
	}
	return texts, nil
}
