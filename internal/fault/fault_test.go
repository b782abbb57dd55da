package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"testing"

	"multihost/internal/fault"
)

// silent has the method Fault but reports no kind.
type silent struct{ error }

func (silent) Fault() fault.Kind { return fault.Unknown }
func (s silent) Unwrap() error   { return s.error }

// told reports a kind and wraps another error.
type told struct {
	kind fault.Kind
	error
}

func (e told) Fault() fault.Kind { return e.kind }
func (e told) Unwrap() error     { return e.error }

func TestOf(t *testing.T) {
	plain := errors.New("plain")
	usage := fault.New(fault.Usage, "usage")
	gone := fault.New(fault.Unavailable, "gone")
	noFile := &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		name string
		err  error
		want fault.Kind
	}{
		{"nothing", nil, fault.Unknown},
		{"an error without a kind", plain, fault.Unknown},
		{"an error with a kind", usage, fault.Usage},
		{"below a text", fmt.Errorf("more: %w", usage), fault.Usage},
		{"below one that says nothing", silent{usage}, fault.Usage},
		{"the outer one knows more", told{fault.Temporary, usage}, fault.Temporary},
		{"the first of joined ones", errors.Join(plain, gone, usage), fault.Unavailable},
		{"two causes in a text", fmt.Errorf("%w, then %w", usage, gone), fault.Usage},
		{"a file", noFile, fault.IO},
		{"the network", refused, fault.Unavailable},
		{"a deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), fault.Temporary},
		{"a deadline of the network", &net.OpError{Op: "read", Err: context.DeadlineExceeded}, fault.Temporary},
		{"an end without a reason", context.Canceled, fault.Unknown},
		{"a kind counts more than the standard library's errors", errors.Join(noFile, usage), fault.Usage},
		{"a file inside of an error with a kind", told{fault.Configuration, noFile}, fault.Configuration},
	} {
		if got := fault.Of(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestSentinelsAreTheirOwn(t *testing.T) {
	a, b := fault.New(fault.IO, "same"), fault.New(fault.IO, "same")
	if errors.Is(a, b) || !errors.Is(fmt.Errorf("in: %w", a), a) {
		t.Error("an error matches another one of the same text, or not itself")
	}
}

func TestEveryKindHasAName(t *testing.T) {
	for _, k := range fault.Kinds() {
		if k.String() == "" {
			t.Errorf("kind %d has no name", int(k))
		}
	}
}
