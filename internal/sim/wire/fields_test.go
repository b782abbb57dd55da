package wire

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	storage "google.golang.org/api/storage/v1"
)

func TestPartialResponses(t *testing.T) {
	t.Parallel()
	all := &storage.Objects{Kind: "storage#objects", Prefixes: []string{"p/"}, NextPageToken: "next", Items: []*storage.Object{
		{Name: "a", Size: 1, Metadata: map[string]string{"mode": "644", "uid": "7"}, Owner: &storage.ObjectOwner{Entity: "user-ann", EntityId: "9"}},
	}}
	message, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for fields, want := range map[string]string{
		"nextPageToken":                      `{"nextPageToken":"next"}`,
		"prefixes,items/name,items/size":     `{"prefixes":["p/"],"items":[{"name":"a","size":"1"}]}`,
		"items(name,metadata/mode)":          `{"items":[{"name":"a","metadata":{"mode":"644"}}]}`,
		"items(owner(entity)),items/owner/x": "",
		"items/owner/entity,items":           string(mustJSON(t, map[string]any{"items": all.Items})),
		"items/owner,items/owner/entity":     `{"items":[{"owner":{"entity":"user-ann","entityId":"9"}}]}`,
		"items/crc32c":                       `{"items":[{}]}`,
		"items/*":                            string(mustJSON(t, map[string]any{"items": all.Items})),
		"*":                                  string(message),
		"item/name":                          "", "items(name": "", "items/": "", "items)": "", ",": "", "items/name/x": "", "Items": "",
	} {
		mask, err := ParseFields(fields, all)
		if want == "" {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != 400 || e.Reason != "invalidParameter" {
				t.Errorf("%s: got %v, want a refusal", fields, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		got, err := mask.Of(message)
		if err != nil {
			t.Fatal(err)
		}
		var g, w any
		if json.Unmarshal(got, &g) != nil || json.Unmarshal([]byte(want), &w) != nil {
			t.Fatalf("%s: got %s", fields, got)
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%s (-want +got):\n%s", fields, diff)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
