//go:build !linux

package worker

import (
	"context"
	"errors"
)

var errNeedLinux = errors.New("simulated workers need Linux")

// NewProcess returns the backend that needs no privileges. It works only on Linux, since
// it needs /proc and a whole network of loopback addresses.
func NewProcess(ProcessConfig) (Backend, error) { return nil, errNeedLinux }

// NewNetns returns the backend whose machines have their own kernel namespaces. It works
// only on Linux.
func NewNetns(NetnsConfig) (Backend, error) { return nil, errNeedLinux }

// TryPort reports why machines cannot listen on a port here.
func TryPort(int) error { return errNeedLinux }

// NetnsReady reports why the netns backend cannot work here.
func NetnsReady() error { return errNeedLinux }

// MaybeInit reports whether the program was started as process 1 of a machine.
func MaybeInit([]string) (handled bool) { return false }

// Sweep removes what a netns backend left.
func Sweep(context.Context, string) error { return nil }
