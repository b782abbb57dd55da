package main

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/api/googleapi"

	"multihost/internal/codesync"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/stage"
)

func TestEveryKindHasAnExitStatus(t *testing.T) {
	for _, k := range fault.Kinds() {
		if statuses[k] == 0 {
			t.Errorf("kind %s has no exit status", k)
		} else if exitTexts[statuses[k]] == "" {
			t.Errorf("exit status %d has no text", statuses[k])
		}
	}
}

func TestExitStatusOfAnError(t *testing.T) {
	plain := errors.New("plain")
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"success", nil, 0},
		{"nobody knows", plain, 70},
		{"a status told already", &statusError{3}, 3},
		{"a closed terminal", fmt.Errorf("run: %w", &stage.Interrupted{Signal: syscall.SIGHUP}), 129},
		{"Ctrl-C", &stage.Interrupted{Signal: syscall.SIGINT}, 130},
		{"SIGTERM, with what failed meanwhile", errors.Join(&stage.Interrupted{Signal: syscall.SIGTERM}, &stage.Error{Stage: stage.Stopping, Err: plain}), 143},
		{"a flag", usagef("--x: wrong"), 64},
		{"a flag of a package", &stage.Error{Stage: stage.Start, Err: &preflight.NUMAError{}}, 64},
		{"what workers cannot start", &launch.InputError{}, 64},
		{"a setting", &configError{Err: plain}, 78},
		{"a directory of the user", &stage.Error{Stage: "sync", Err: &codesync.ForeignError{}}, 78},
		{"a worker is away", &remote.ConnectError{Stage: remote.StageDial, Err: plain}, 69},
		{"a worker refuses the key", &stage.Error{Stage: "connect", Err: &remote.ConnectError{Stage: remote.StageAuth, Err: plain}}, 77},
		{"a host key has changed", &remote.ConnectError{Stage: remote.StageHostKey, Err: &remote.HostKeyError{}}, 77},
		{"a bastion refuses the key", &sshfan.JumpError{Stage: remote.StageAuth, Err: plain}, 77},
		{"another run lives there", &launch.BusyError{}, 69},
		{"a secret that may not be read", &launch.SecretError{Status: 403}, 77},
		{"a secret that is not there", &launch.SecretError{Status: 404}, 69},
		{"no capacity", provision.NewStateError(qr.Resource{State: "FAILED", Failure: "no more capacity in the zone"}.Neutral()), 75},
		{"preempted", &provision.StateError{Life: provision.Suspended}, 69},
		{"a limit passed", &provision.DeadlineError{}, 75},
		{"a stage with a kind", &stage.Error{Stage: stage.Settings, Err: &remote.ConnectError{Stage: remote.StageExec, Err: plain}}, 76},
		{"a stage without one", &stage.Error{Stage: stage.Start, Err: plain}, 69},
		{"local files", &stage.Error{Stage: stage.Local, Err: plain}, 74},
		{"no progress", &stage.Failure{Cause: stage.Stall}, 75},
		{"a loss", &stage.Failure{Cause: stage.Preempted}, 69},
		{"a wrong request", &gcp.Error{Class: gcp.Invalid}, 64},
		{"no permission", &stage.Error{Stage: stage.Discover, Err: &gcp.Error{Class: gcp.Permission}}, 77},
		{"no permission, in the client library's words", &stage.Error{Stage: stage.Discover, Err: &googleapi.Error{Code: 403}}, 77},
		{"the first of two", errors.Join(&stage.Error{Stage: stage.Start, Err: plain}, &stage.Error{Stage: stage.Teardown, Err: &gcp.Error{Class: gcp.Quota}}), 69},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%s: exit status %d, want %d", tt.name, got, tt.want)
		}
	}
}
