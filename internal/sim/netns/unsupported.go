//go:build !linux

package netns

import (
	"context"
	"errors"

	"multihost/internal/sim/worker"
)

var errNeedLinux = errors.New("simulated workers need Linux")

// New returns the backend whose machines have kernel namespaces of their own. It works only
// on Linux.
func New(Config) (worker.Backend, error) { return nil, errNeedLinux }

// Ready returns why the backend cannot work here.
func Ready() error { return errNeedLinux }

// MaybeInit reports whether the program was started as process 1 of a machine.
func MaybeInit([]string) (handled bool) { return false }

// Sweep removes what a backend left.
func Sweep(context.Context, string) error { return nil }
