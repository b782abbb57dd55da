package access

import (
	"strings"
	"testing"

	"multihost/internal/config"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	all := Need{Project: true, Zone: true}
	for _, tt := range []struct {
		name string
		g    config.Gcloud
		need Need
		want string // flags of the problems; "missing" for a problem without a flag
		hint string
	}{
		{name: "all is there", g: config.Gcloud{Project: "my-project", Zone: "us-central2-b"}, need: all},
		{name: "no project", need: all, want: "missing", hint: "--project=PROJECT"},
		{name: "no project, and none is needed", need: Need{Zone: true}},
		{name: "no zone", g: config.Gcloud{Project: "my-project"}, need: all, want: "missing", hint: "--zone=ZONE"},
		{name: "no zone, but a region", g: config.Gcloud{Project: "my-project", Region: "us-east1"}, need: all, want: "missing", hint: "such as us-east1-b"},
		{name: "no zone, and none is needed", g: config.Gcloud{Project: "my-project"}, need: Need{Project: true}},
		{name: "a zone that is none", g: config.Gcloud{Project: "my-project", Zone: "a b"}, want: "zone"},
		{name: "both are wrong", g: config.Gcloud{Project: "a b", Zone: "a b"}, need: all, want: "project zone"},
		{name: "a zone without a project", g: config.Gcloud{Zone: "a b"}},
	} {
		var got []string
		hints := ""
		for _, p := range Check(tt.g, tt.need) {
			if p.Flag == "" {
				p.Flag = "missing"
			}
			got = append(got, p.Flag)
			if h, ok := p.Err.(interface{ Hint() string }); ok {
				hints += h.Hint()
			}
		}
		if strings.Join(got, " ") != tt.want || !strings.Contains(hints, tt.hint) {
			t.Errorf("%s: problems %q with the hint %q, want %q with %q", tt.name, got, hints, tt.want, tt.hint)
		}
	}
}
