package pod

import (
	"strings"
	"testing"
	"time"
)

func TestTheEndGoesThroughTheTerminationMessage(t *testing.T) {
	t.Parallel()
	for _, e := range []End{
		{Code: 143, Signal: "SIGTERM", Told: "SIGTERM", Time: time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC), Length: 1 << 40, SHA256: strings.Repeat("ab", 32)},
		{Code: 127, Failure: "start \"x\": no such file\n"},
	} {
		message := e.Message()
		if got, ok := ParseEnd(message); !ok || got != e {
			t.Errorf("%q: %+v, want %+v", message, got, e)
		}
	}
	long := End{Code: 1, SHA256: strings.Repeat("ab", 32), Failure: strings.Repeat("ü\n", MostMessage)}
	message := long.Message()
	if got, ok := ParseEnd(message); !ok || len(message) > MostMessage || got.SHA256 != long.SHA256 || got.Failure == "" || strings.Contains(message, "\n") {
		t.Errorf("%d bytes: %q", len(message), message)
	}
	for _, other := range []string{"", "out of memory", `{"code": 1}`, "multihost {", messageKey} {
		if e, ok := ParseEnd(other); ok {
			t.Errorf("%q is read as %+v", other, e)
		}
	}
}
