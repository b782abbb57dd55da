package stage

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

func TestEqualFailuresOfWorkersAreOneClause(t *testing.T) {
	all := testkit.WorkerIDs(2, 4)
	errs := make([]error, len(all))
	for i := range errs {
		errs[i] = errors.New(all[i].String() + ": connection refused")
	}
	errs[5] = errors.New("no route to host")
	errs[0] = nil
	err := WorkersError(Connect, all, errs)
	want := "connect: 7 of 8 workers failed: s0w[1-3],s1w[0,2-3]: connection refused; s1w1: no route to host"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if WorkersError(Connect, all, make([]error, len(all))) != nil {
		t.Error("no failure is an error")
	}
}

// Equal causes are folded, although name, address and number of tries differ between workers.
func TestErrorsOfTheEngineAreFolded(t *testing.T) {
	all := testkit.WorkerIDs(1, 4)
	refused := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), User: "ann", Stage: remote.StageDial, Addr: "10.0.0." + strconv.Itoa(i), Tries: i + 2, Err: syscall.ECONNREFUSED}
	}
	unknown := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageDial, Addr: fmt.Sprintf("h%d.invalid:22", i), Err: &remote.NameError{Name: fmt.Sprintf("h%d.invalid", i), Why: "no such host"}}
	}
	changed := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageHostKey, Err: &remote.HostKeyError{Host: all[i].String(), Source: "the file pins", Known: []string{"old"}, Offered: "new " + strconv.Itoa(i)}}
	}
	noAddress := func(i int) error {
		return &remote.ConnectError{Host: all[i].String(), Stage: remote.StageDial, Err: &sshfan.NoAddressError{Worker: all[i].String(), Kind: "external"}}
	}
	readOnly := func(path string) error { return fmt.Errorf("mkdir %s: Read-only file system", path) }
	full := func(i int) error {
		return fmt.Errorf("arm: %w", &launch.RemoteError{Worker: all[i].String(), Op: "arm", Text: "write ~/x: No space left on device"})
	}
	for _, row := range []struct {
		errs       []error
		want, cure string
	}{
		{[]error{refused(0), nil, refused(2), refused(3)}, "start: 3 of 4 workers failed: s0w[0,2-3]: connect: connection refused", ""},
		{[]error{nil, refused(1), nil, nil}, "start: 1 of 4 workers failed: s0w1: connect to s0w1 (10.0.0.1): connection refused (after 3 tries)", ""},
		{[]error{unknown(0), unknown(1), unknown(2), unknown(3)}, "start: 4 of 4 workers failed: s0w[0-3]: connect: its name has no address here: no such host", unknown(0).(*remote.ConnectError).Hint()},
		{[]error{changed(0), changed(1), nil, changed(3)}, "start: 3 of 4 workers failed: s0w[0-1,3]: verify host key: the host key changed: the file pins has another one than the machine offers", ""},
		{[]error{noAddress(0), noAddress(1), noAddress(2), nil}, "start: 3 of 4 workers failed: s0w[0-2]: connect: it has no external address", ""},
		{[]error{fmt.Errorf("learn the VM name of s0w0 for it"), fmt.Errorf("learn the VM name of s0w1 for it"), nil, nil}, "start: 2 of 4 workers failed: s0w[0-1]: learn the VM name of the worker for it", ""},
		{[]error{readOnly("~/.multihost"), nil, nil, nil}, "start: 1 of 4 workers failed: s0w0: mkdir ~/.multihost: Read-only file system", readOnlyCure},
		{[]error{readOnly("/proc/sys/net (a container may write there only with securityContext: privileged: true)"), nil, nil, nil}, "start: 1 of 4 workers failed: s0w0: mkdir /proc/sys/net (a container may write there only with securityContext: privileged: true): Read-only file system", ""},
		{[]error{nil, full(1), full(2), nil}, "start: 2 of 4 workers failed: s0w[1-2]: arm: arm: write ~/x: No space left on device", DiskCure},
	} {
		var err *Error
		if !errors.As(WorkersError(Start, all, row.errs), &err) || err.Error() != row.want || err.Hint() != row.cure {
			t.Errorf("got  %v (%s)\nwant %s (%s)", err, err.Hint(), row.want, row.cure)
		}
	}
}

// The error stays readable for any number of failed workers and causes.
func TestAnErrorOfAThousandWorkersCanBeRead(t *testing.T) {
	all := testkit.WorkerIDs(1, 1001)
	for name, c := range map[string]struct {
		cause func(i int) string
		want  string
	}{
		"one cause":       {func(int) string { return "refused" }, "connect: 1001 of 1001 workers failed: s0w[0-1000]: refused"},
		"two in turn":     {func(i int) string { return []string{"refused", "off"}[i%2] }, "connect: 1001 of 1001 workers failed: s0w[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,…] (501 workers): refused; s0w[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,…] (500 workers): off"},
		"each of its own": {func(i int) string { return fmt.Sprintf("cause %d", i) }, "connect: 1001 of 1001 workers failed: s0w0: cause 0; s0w1: cause 1; s0w2: cause 2; s0w3: cause 3; s0w[4-1000]: 997 other causes, such as: cause 4"},
	} {
		errs := make([]error, len(all))
		for i := range errs {
			errs[i] = errors.New(c.cause(i))
		}
		if err := WorkersError(Connect, all, errs); err == nil || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", name, err, c.want)
		}
	}
	names, errs := make([]string, 300), make([]error, 300)
	for i := range names {
		names[i] = fmt.Sprintf("q%d", i)
		errs[i] = fmt.Errorf("delete queued resource %q: 403 denied", names[i])
	}
	want := "q0, q1, q2 and 297 more: delete queued resource …: 403 denied"
	if err := JoinNamed(names, errs); err == nil || err.Error() != want || !errors.Is(err, errs[7]) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := JoinNamed(names[:2], []error{nil, errs[1]}); err == nil || err.Error() != errs[1].Error() {
		t.Errorf("a single failure: %v", err)
	}
	if err := JoinNamed(names, make([]error, 300)); err != nil {
		t.Errorf("no failure: %v", err)
	}
}
