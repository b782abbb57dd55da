package stage

import (
	"fmt"
	"testing"
	"time"

	"multihost/internal/fault"
)

func TestEndOfRunner(t *testing.T) {
	t.Parallel()
	expired := &Error{Stage: Timeout, Err: ErrExpired, Text: fmt.Sprintf("%v (--ttl=3h)", ErrExpired)}
	for _, row := range []struct {
		reason, want string
	}{
		{TimeoutPassed(90 * time.Second).Text, "timeout: --timeout=1m30s has passed"},
		{expired.Error(), expired.Error()},
		{StandsStill, "stall: its training stands still"},
		{"stopped by ann@laptop", ""},
		{"interrupted (SIGINT)", ""},
		{"the command failed on s0w1", ""},
		{"", ""},
	} {
		err, got := EndOfRunner(row.reason), ""
		if err != nil {
			got = err.Error()
			if kind := err.(*Error).Fault(); kind != fault.Temporary {
				t.Errorf("%q: kind %v", row.reason, kind)
			}
		}
		if got != row.want {
			t.Errorf("%q: got %q, want %q", row.reason, got, row.want)
		}
	}
}
