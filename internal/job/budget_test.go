package job

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
)

func TestBudgets(t *testing.T) {
	app := func(code int, ran time.Duration) *stage.Failure {
		return &stage.Failure{Cause: stage.Application, Code: code, Ran: ran}
	}
	lost := func(cause stage.Cause, ran time.Duration) *stage.Failure {
		return &stage.Failure{Cause: cause, Ran: ran}
	}
	const hour, second = time.Hour, time.Second
	for _, row := range []struct {
		story    string
		budget   Budget
		failures []*stage.Failure
		again    string // y or n for each failure: another attempt follows
		refusal  string // after the last failure
	}{
		{"by default a command that fails is not started again", Budget{Preemptions: -1}, []*stage.Failure{app(1, hour)}, "n", "--max-restarts is 0"},
		{"restarts are counted", Budget{Restarts: 2}, []*stage.Failure{app(1, hour), app(1, hour), app(1, hour)}, "yyn", "--max-restarts=2 are used up"},
		{"preemptions do not touch them", Budget{Restarts: 1, Preemptions: -1},
			[]*stage.Failure{lost(stage.Preempted, hour), lost(stage.Maintenance, hour), lost(stage.Infrastructure, hour), app(1, hour), app(1, hour)}, "yyyyn", "--max-restarts=1"},
		{"preemptions without limit", Budget{Preemptions: -1}, []*stage.Failure{lost(stage.Preempted, second), lost(stage.Preempted, second), lost(stage.Preempted, second), lost(stage.Preempted, second)}, "yyyy", ""},
		{"preemptions with one", Budget{Preemptions: 1}, []*stage.Failure{lost(stage.Preempted, hour), lost(stage.Preempted, hour)}, "yn", "--max-preemptions=1"},
		{"a run's flag", Budget{LossFlag: "--max-restarts"}, []*stage.Failure{lost(stage.Preempted, hour)}, "n", "--max-restarts is 0"},
		{"none at all", Budget{}, []*stage.Failure{lost(stage.Preempted, hour)}, "n", "--max-preemptions is 0"},
		{"a command that is not there", Budget{Restarts: 9}, []*stage.Failure{app(127, second)}, "n", "exit code 127"},
		{"a command that cannot be run", Budget{Restarts: 9}, []*stage.Failure{app(126, second)}, "n", "exit code 126"},
		{"three quick failures in a row", Budget{Restarts: 9}, []*stage.Failure{app(1, second), app(1, second), app(1, second)}, "yyn", "3 attempts in a row"},
		{"a long run between them", Budget{Restarts: 9}, []*stage.Failure{app(1, second), app(1, second), app(1, hour), app(1, second), app(1, second), app(1, second)}, "yyyyyn", "3 attempts in a row"},
		{"a preemption says nothing about them", Budget{Restarts: 9, Preemptions: -1}, []*stage.Failure{app(1, second), app(1, second), lost(stage.Preempted, hour), app(1, second)}, "yyyn", "3 attempts in a row"},
		{"a host that is lost at each start", Budget{Preemptions: -1}, []*stage.Failure{lost(stage.Infrastructure, 0), lost(stage.Infrastructure, 0), lost(stage.Infrastructure, 0)}, "yyn", "in a row were lost"},
		{"a stall is the command's own", Budget{Restarts: 1, Preemptions: -1}, []*stage.Failure{{Cause: stage.Stall, Ran: hour}, {Cause: stage.Stall, Ran: hour}}, "yn", "--max-restarts=1"},
		{"a user's stop ends it", Budget{Restarts: 9, Preemptions: -1}, []*stage.Failure{lost(stage.UserStop, hour)}, "n", "nothing is tried again"},
		{"a mistake ends it", Budget{Restarts: 9, Preemptions: -1}, []*stage.Failure{lost(stage.Refused, 0)}, "n", "nothing is tried again"},
	} {
		t.Run(row.story, func(t *testing.T) {
			books := &ledger{Budget: row.budget}
			got, refusal := "", ""
			for _, f := range row.failures {
				if refusal = books.spend(f); refusal == "" {
					got += "y"
				} else {
					got += "n"
				}
			}
			if got != row.again || !strings.Contains(refusal, row.refusal) {
				t.Errorf("got %s, %q; want %s, %q", got, refusal, row.again, row.refusal)
			}
		})
	}
}

// Of two workers, one does not answer, and one refuses. Only the first case deserves
// another attempt.
func TestLostContact(t *testing.T) {
	dial := &remote.ConnectError{Host: "s0w0", Stage: remote.StageDial, Err: errors.New("connection refused")}
	auth := &remote.ConnectError{Host: "s0w0", Stage: remote.StageAuth, Err: remote.ErrKeyRefused}
	keys := func(err error) error {
		return &remote.ConnectError{Host: "s0w0", Stage: remote.StageHostKey, Err: fmt.Errorf("ask for host keys: %w", err)}
	}
	many := func(errs ...error) error {
		return stage.WorkersError(stage.Sync, testkit.WorkerIDs(1, len(errs)), errs)
	}
	for _, row := range []struct {
		story string
		err   error
		lost  bool
	}{
		{"nobody answers", many(dial, nil), true},
		{"one of two is gone, the other was refused first", many(auth, fmt.Errorf("sync: %w", remote.ErrConnectionLost)), true},
		{"a key that is refused", many(auth), false},
		{"a host key that is another one", many(&remote.ConnectError{Stage: remote.StageHostKey, Err: &remote.HostKeyError{Host: "s0w0"}}), false},
		{"an API that is away while it is asked for host keys", many(keys(&gcp.Error{Class: gcp.Unavailable})), true},
		{"an API that refuses to tell host keys", many(keys(&gcp.Error{Class: gcp.Permission})), false},
		{"a VM that boots", many(&remote.ConnectError{Stage: remote.StageAuth, Err: remote.ErrBooting}), true},
		{"a worker that was rebooted after its preflight", many(nil, stage.ErrRebooted), true},
		{"a copy that stands still", many(fmt.Errorf("sync: %w", codesync.ErrStalled)), true},
		{"a file that changed", many(&codesync.FileError{Path: "a", Err: codesync.ErrChanging}), false},
		{"a busy worker", &stage.Error{Stage: stage.Busy, Text: "run lives"}, false},
		{"a worker that says what is wrong", many(&launch.RemoteError{Worker: "s0w0", Op: "arm", Text: "no space left"}), false},
		{"the API is away", &gcp.Error{Class: gcp.Unavailable}, true},
		{"no permission", &gcp.Error{Class: gcp.Permission}, false},
		{"Secret Manager is away", many(&launch.SecretError{Status: 503}), true},
		{"Secret Manager is asked too much", many(nil, &launch.SecretError{Status: 429}), true},
		{"a secret that may not be read", many(&launch.SecretError{Status: 403}), false},
		{"a machine that cannot ask for secrets", many(&launch.SecretError{}), false},
		{"the start took too long", &stage.Error{Stage: stage.Start, Lost: true}, true},
	} {
		if got := lostContact(row.err); got != row.lost {
			t.Errorf("%s: %v, want %v", row.story, got, row.lost)
		}
	}
}

// If nothing was lost after all, the attempt costs nothing.
func TestALossThatWasNoneIsPaidBack(t *testing.T) {
	books := &ledger{Budget: Budget{Preemptions: 1}}
	for n := range 3 {
		if refusal := books.spend(&stage.Failure{Cause: stage.Infrastructure, Ran: time.Hour}); refusal != "" {
			t.Fatalf("loss %d: %s", n+1, refusal)
		}
		books.refund()
	}
}
