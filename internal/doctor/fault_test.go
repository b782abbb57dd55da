package doctor

import (
	"testing"

	"multihost/internal/fault"
)

// The first error decides. Warnings do not matter.
func TestFaultOfAReport(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		findings []Finding
		want     fault.Kind
		failed   bool
	}{
		{name: "nothing found"},
		{name: "a warning", findings: []Finding{{Check: CheckQuota, Level: Warning}}},
		{"no key", []Finding{{Check: CheckQuota, Level: Warning}, {Check: CheckKey, Level: Error}}, fault.Configuration, true},
		{"no login", []Finding{{Check: CheckLogin, Level: Error}, {Check: CheckKey, Level: Error}}, fault.Permission, true},
		{"no quota", []Finding{{Check: CheckQuota, Level: Error}}, fault.Temporary, true},
		{"no devices", []Finding{{Check: CheckDevices, Level: Error}}, fault.Preflight, true},
		{"something else", []Finding{{Check: CheckClock, Level: Error}}, fault.Unavailable, true},
	} {
		if kind, failed := (Report{Findings: tt.findings}).Fault(); kind != tt.want || failed != tt.failed {
			t.Errorf("%s: %s, %v, want %s, %v", tt.name, kind, failed, tt.want, tt.failed)
		}
	}
}
