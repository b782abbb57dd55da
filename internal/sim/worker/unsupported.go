//go:build !linux

package worker

import "errors"

var errNeedLinux = errors.New("simulated workers need Linux")

// NewProcess returns the backend that needs no privileges. It works only on Linux, because
// it needs /proc and a whole network of loopback addresses.
func NewProcess(ProcessConfig) (Backend, error) { return nil, errNeedLinux }

// TryPort returns why machines cannot listen on a port here.
func TryPort(int) error { return errNeedLinux }
