package gcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/gcp"
)

// A deadline or a broken connection may have any cause. Only errors of requests to the API
// get a hint about the API.
func TestOnlyWhatTheAPIDidIsBlamedOnIt(t *testing.T) {
	const status = "https://status.cloud.google.com"
	loopback := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}, Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		story string
		err   error
		want  string // part of the hint; "": no hint
	}{
		{"a limit of the user's own", fmt.Errorf("timeout: the command was stopped after 1.0 s (--timeout): %w", context.DeadlineExceeded), ""},
		{"another connection that broke", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, ""},
		{"a local server that is not there", loopback, ""},
		{"a file that ended too early", io.ErrUnexpectedEOF, ""},
		{"an answer that the service is away", &gcp.Error{Class: gcp.Unavailable, HTTP: 503}, status},
		{"an operation that failed so", &gcp.OperationError{Code: 14, Message: "unavailable"}, status},
		{"a list with holes", fmt.Errorf("list slices: %w", gcp.ErrPartial), status},
		{"no answer", &gcp.Error{Class: gcp.Timeout}, "check the network connection and any proxy settings"},
		{"too many requests", &gcp.Error{Class: gcp.Unavailable, HTTP: 429, Reason: "RATE_LIMIT_EXCEEDED"}, "too many requests per minute"},
		{"an account for billing that is no setting", &gcp.Error{Class: gcp.Permission, HTTP: 403, Message: "Permission 'compute.instances.get' denied on 'projects/billing-team'"}, "the missing permission is compute.instances.get"},
		{"a right on groups that is not named", &gcp.Error{What: "create group \"m-0\"", Class: gcp.Permission, HTTP: 403, Message: "no right"}, "roles/compute.instanceAdmin.v1"},
		{"a right on VMs that is not named", &gcp.Error{What: "list VMs", Class: gcp.Permission, HTTP: 403, Message: "no right"}, "roles/compute.instanceAdmin.v1"},
		{"a right on nodes that is not named", &gcp.Error{What: "list nodes", Class: gcp.Permission, HTTP: 403, Message: "no right"}, "roles/tpu.admin"},
		{"a project without an account for billing", &gcp.Error{Class: gcp.Permission, HTTP: 403, Message: "This API method requires billing to be enabled."}, "link a billing account"},
	} {
		hint := gcp.Hint(tt.err)
		if tt.want == "" && hint != "" || !strings.Contains(hint, tt.want) {
			t.Errorf("%s: %v is hinted at with %q, want %q", tt.story, tt.err, hint, tt.want)
		}
	}
	if err := errors.Join(context.DeadlineExceeded); gcp.Hint(err) != "" {
		t.Errorf("%v: hint %q", err, gcp.Hint(err))
	}
}
