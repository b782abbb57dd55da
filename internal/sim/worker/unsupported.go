//go:build !linux

package worker

import "errors"

// NewProcess returns the backend that needs no privileges. It exists on Linux
// only, since it needs /proc and a whole network of loopback addresses.
func NewProcess(ProcessConfig) (Backend, error) {
	return nil, errors.New("make process backend: simulated workers need Linux")
}
