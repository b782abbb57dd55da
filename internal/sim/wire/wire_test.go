package wire

import (
	"encoding/json"
	"testing"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

// TestAKeptMessageFollowsItsMessage changes a message between two readings, also deep
// inside.
func TestAKeptMessageFollowsItsMessage(t *testing.T) {
	n := &tpualpha.Node{Name: "n", State: "CREATING", Labels: map[string]string{"a": "b"}, NetworkConfig: &tpualpha.NetworkConfig{Network: "x"}}
	var w Message
	for _, change := range []func(){
		func() {},
		func() { n.State = "READY" },
		func() { n.Labels["a"] = "c" },
		func() { n.NetworkConfig.Network = "y" },
		func() {
			n.NetworkEndpoints = append(n.NetworkEndpoints, &tpualpha.NetworkEndpoint{IpAddress: "1.2.3.4"})
		},
	} {
		change()
		for range 2 {
			want, err := Encode("v2alpha1", n)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := w.Encode("v2alpha1", n); err != nil || string(got) != string(want) {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		}
		older, err := w.Encode("v2", n)
		if want, _ := Encode("v2", n); err != nil || string(older) != string(want) {
			t.Errorf("as v2: got %s, %v, want %s", older, err, want)
		}
	}
	first, _ := w.Encode("v2alpha1", n)
	again, _ := w.Encode("v2alpha1", n)
	if &first[0] != &again[0] {
		t.Error("a message that has not changed is encoded anew")
	}
}

func TestList(t *testing.T) {
	messages := []json.RawMessage{json.RawMessage(`{"name":"a"}`), json.RawMessage(`{"name":"b"}`)}
	for _, tt := range []struct {
		messages []json.RawMessage
		next     string
		want     string
	}{
		{nil, "", `{}`},
		{nil, "n", `{"nextPageToken":"n"}`},
		{messages[:1], "", `{"nodes":[{"name":"a"}]}`},
		{messages, "", `{"nodes":[{"name":"a"},{"name":"b"}]}`},
		{messages, "n", `{"nextPageToken":"n","nodes":[{"name":"a"},{"name":"b"}]}`},
	} {
		got := string(List("nodes", tt.messages, tt.next))
		if got != tt.want || !json.Valid([]byte(got)) {
			t.Errorf("%d messages, next %q: got %s, want %s", len(tt.messages), tt.next, got, tt.want)
		}
	}
}
