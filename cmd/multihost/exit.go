package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"multihost/internal/cmdline"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/remote"
	"multihost/internal/stage"
)

// Exit statuses of multihost's own failures, after BSD's sysexits. If the user's command
// fails, multihost ends with its exit status, unchanged.
const (
	exitOK          = 0
	exitUsage       = 64
	exitUnavailable = 69
	exitInternal    = 70
	exitIO          = 74
	exitTempFail    = 75
	exitPreflight   = 76
	exitPermission  = 77
	exitConfig      = 78
	exitHangup      = 129
	exitInterrupt   = 130
	exitTerminate   = 143
)

// exitTexts describes each status for the EXIT STATUS section of a command.
var exitTexts = map[int]string{
	exitOK:          "success",
	exitFindings:    "the run is below --fail-below",
	exitUsage:       "usage: a flag or argument is wrong",
	exitUnavailable: "workers cannot be reached, a run or a resource does not exist or cannot be used, or the API is unavailable",
	exitInternal:    "a fault in multihost itself",
	exitIO:          "a local file cannot be read or written, or this machine has a log only in part",
	exitTempFail:    "no capacity or quota, or a deadline passed",
	exitPreflight:   "settings, TPU devices or packet sizes of workers are wrong",
	exitPermission:  "permission denied or not signed in",
	exitConfig:      "configuration: project, zone, key or file is missing or malformed, or the run's directory on a worker exists and no run made it",
	exitHangup:      "ended or detached by SIGHUP",
	exitInterrupt:   "ended by SIGINT",
	exitTerminate:   "ended by SIGTERM",
}

// usageError reports a command line that cannot be carried out as typed.
type usageError = cmdline.UsageError

func usagef(format string, args ...any) *usageError { return cmdline.Usagef(format, args...) }

// asUsage turns an error into a usage error.
func asUsage(err error) error { return &usageError{Err: err} }

// configError reports a setting that is missing or malformed.
type configError = cmdline.ConfigError

// statusError only carries an exit status: the user already knows the reason.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// statuses holds the exit status of each kind of error.
var statuses = map[fault.Kind]int{
	fault.Unknown:       exitInternal,
	fault.Internal:      exitInternal,
	fault.Usage:         exitUsage,
	fault.Configuration: exitConfig,
	fault.Permission:    exitPermission,
	fault.Temporary:     exitTempFail,
	fault.Unavailable:   exitUnavailable,
	fault.IO:            exitIO,
	fault.Preflight:     exitPreflight,
	fault.Interrupted:   exitInterrupt,
}

// exitCode returns the exit status for an error.
func exitCode(err error) int {
	var (
		status    *statusError
		interrupt *stage.Interrupted
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return status.code
	case errors.As(err, &interrupt) && interrupt.Signal == syscall.SIGHUP:
		return exitHangup
	case errors.As(err, &interrupt) && interrupt.Signal == syscall.SIGTERM:
		return exitTerminate
	case errors.As(err, &interrupt):
		return exitInterrupt
	}
	return statuses[gcp.FaultOf(err)]
}

// hintOf returns what the user should type next, or "". It returns the hints of the error.
// If the error has none, it returns the hint for the class of the API's error.
func hintOf(err error) string {
	lines := fault.Hints(err)
	var connect *remote.ConnectError
	isConnection := errors.As(err, &connect) || errors.Is(err, remote.ErrConnectionLost) // a network error that does not come from the API
	if len(lines) == 0 && !isConnection && gcp.ClassOf(err) != gcp.Unknown {
		return strings.TrimSpace(gcp.Hint(err))
	}
	return strings.Join(lines, "\n")
}
