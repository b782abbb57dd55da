package qr

import (
	"encoding/json"
	"slices"

	"multihost/internal/gcloud"
)

// fields returns the resource as the API reports it, as decoded JSON.
func (r Resource) fields() any {
	text, err := json.Marshal(r.body)
	if err != nil {
		return nil
	}
	var v any
	if json.Unmarshal(text, &v) != nil {
		return nil
	}
	return v
}

// Sort sorts resources by keys. The first key counts most.
func Sort(list []Resource, keys []gcloud.SortKey) {
	fields := make(map[string]any, len(list))
	for _, r := range list {
		fields[r.ID] = r.fields()
	}
	slices.SortStableFunc(list, func(a, b Resource) int { return gcloud.Compare(fields[a.ID], fields[b.ID], keys) })
}

// A Choice says which part of a list to show, and in which order.
type Choice struct {
	Filter gcloud.Filter
	Keys   []gcloud.SortKey
	Limit  int // -1: no limit
}

// Of sorts list in place, and returns the part to show.
func (c Choice) Of(list []Resource) []Resource {
	Sort(list, c.Keys)
	list = slices.DeleteFunc(list, func(r Resource) bool { return !c.Filter.Match(r.fields()) })
	if c.Limit >= 0 && len(list) > c.Limit {
		list = list[:c.Limit]
	}
	return list
}
