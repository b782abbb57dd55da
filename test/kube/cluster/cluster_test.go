package cluster

import (
	"encoding/json"
	"slices"
	"testing"

	"multihost/internal/gke/controllers"
	"multihost/internal/testkit"
	"multihost/test/kube/parts"
)

// TestLocal: webhooks lead to processes on this machine. Those for kinds that the cluster lacks
// are removed.
func TestLocal(t *testing.T) {
	counts := map[string]int{}
	for _, c := range controllers.All() {
		objects, err := c.Objects()
		testkit.Must(t, err)
		for _, o := range objects {
			local(o.Object, "https://127.0.0.1:1", []byte("CA"))
			text, err := json.Marshal(o.Object)
			testkit.Must(t, err)
			var found struct {
				Spec struct {
					Conversion struct{ Webhook struct{ ClientConfig config } }
				}
				Webhooks []struct {
					Name         string
					ClientConfig config
				}
			}
			testkit.Must(t, json.Unmarshal(text, &found))
			for _, w := range found.Webhooks {
				counts[c.Name+" "+o.GetKind()]++
				if w.ClientConfig.Service != nil || string(w.ClientConfig.CABundle) != "CA" || len(w.ClientConfig.URL) < 30 {
					t.Errorf("%s asks %+v", w.Name, w.ClientConfig)
				}
			}
			if w := found.Spec.Conversion.Webhook.ClientConfig; w.URL != "" || w.Service != nil {
				counts[c.Name+" conversion"]++
				if w.URL != "https://127.0.0.1:1/convert" || w.Service != nil {
					t.Errorf("%s is converted by %+v", o.GetName(), w)
				}
			}
		}
	}
	for what, want := range map[string]int{
		"JobSet MutatingWebhookConfiguration": 2, "JobSet ValidatingWebhookConfiguration": 2, "JobSet conversion": 1,
		"Kueue MutatingWebhookConfiguration": 5, "Kueue ValidatingWebhookConfiguration": 6, "Kueue conversion": 5,
	} {
		if counts[what] != want {
			t.Errorf("%s: %d, want %d", what, counts[what], want)
		}
	}
}

// TestVersions: the running controllers have the versions of the applied objects.
func TestVersions(t *testing.T) {
	for _, c := range controllers.All() {
		if !slices.ContainsFunc(parts.All(), func(p parts.Part) bool { return p.Module == c.Module && p.Version == c.Version }) {
			t.Errorf("no part is %s %s", c.Module, c.Version)
		}
	}
}

type config struct {
	URL      string
	CABundle []byte
	Service  map[string]any
}
