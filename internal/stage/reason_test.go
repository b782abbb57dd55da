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
		kind         fault.Kind
	}{
		{TimeoutPassed(90 * time.Second).Text, "timeout: --timeout=1m30s has passed", fault.Temporary},
		{expired.Error(), expired.Error(), fault.Temporary},
		{StandsStill, "stall: its training stands still", fault.Temporary},
		{"interrupted (SIGINT)", "interrupted (SIGINT)", fault.Interrupted}, // attach ends with the exit status of the run
		{"terminated (SIGTERM)", "terminated (SIGTERM)", fault.Interrupted},
		{"stopped by ann@laptop", "", 0},
		{"the command failed on s0w1", "", 0},
		{"", "", 0},
	} {
		err, got := EndOfRunner(row.reason), ""
		if err != nil {
			got = err.Error()
			if kind := fault.Of(err); kind != row.kind {
				t.Errorf("%q: kind %v", row.reason, kind)
			}
		}
		if got != row.want {
			t.Errorf("%q: got %q, want %q", row.reason, got, row.want)
		}
	}
}
