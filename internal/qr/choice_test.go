package qr

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/gcloud"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

func TestChoice(t *testing.T) {
	t.Parallel()
	made := func(id string) Resource { return newResource(&tpuapi.QueuedResource{Name: "x/" + id}) }
	for _, tt := range []struct {
		filter, keys string
		limit        int
		want         string
	}{
		{"", "", -1, "b a c"},
		{"", "name", -1, "a b c"},
		{"name:(a c)", "~name", -1, "c a"},
		{"name:(a c)", "~name", 1, "c"},
		{"name:zz", "", 5, ""},
	} {
		filter, err := gcloud.ParseFilter(tt.filter, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		keys, err := gcloud.ParseSortKeys(tt.keys)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range (Choice{filter, keys, tt.limit}).Of([]Resource{made("b"), made("a"), made("c")}) {
			got = append(got, r.ID)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q by %q, at most %d: %q, want %q", tt.filter, tt.keys, tt.limit, got, tt.want)
		}
	}
}
