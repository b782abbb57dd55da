package network

import "testing"

func TestTextOfADeletion(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]Deletion{
		"network n is not there: nothing to delete\n":           {},
		"would delete network n\n":                              {Network: true},
		"would delete network n with its firewall rules a, b\n": {Network: true, Firewalls: []string{"a", "b"}},
	} {
		if got := d.Text("n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
