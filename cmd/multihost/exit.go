package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/preflight"
	"multihost/internal/qr"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// Exit statuses of multihost's own failures, after BSD's sysexits. The exit status of the
// user's command is passed on unchanged.
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
	exitUnavailable: "workers cannot be reached, a resource is not there or not usable, or the API is unavailable",
	exitInternal:    "a fault in multihost itself",
	exitIO:          "a local file cannot be read or written, or a log is not whole here",
	exitTempFail:    "no capacity or quota, or a deadline passed",
	exitPreflight:   "preflight failed, or workers differ (--skew=check)",
	exitPermission:  "permission denied or not signed in",
	exitConfig:      "configuration: project, zone, key or file is missing or malformed, or a run's directory on the workers is not its own",
	exitHangup:      "ended or detached by SIGHUP",
	exitInterrupt:   "ended by SIGINT",
	exitTerminate:   "ended by SIGTERM",
}

// usageError reports a command line that cannot be carried out as typed.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) Hint() string  { return e.hint }

func usagef(format string, args ...any) *usageError {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// configError reports a setting that is missing or malformed.
type configError struct {
	err  error
	hint string
}

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }
func (e *configError) Hint() string  { return e.hint }

// statusError carries an exit status whose reason the user has already been shown.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// exitCode maps an error to the status the process ends with.
func exitCode(err error) int {
	var (
		status    *statusError
		usage     *usageError
		conf      *configError
		gconf     *config.ConfigurationError
		fileConf  *config.FileError
		idError   *sshfan.IdentityError
		knownErr  *sshfan.KnownHostsError
		busy      *launch.BusyError
		code      *launch.CodeError
		inUse     *codesync.InUseError
		foreign   *codesync.ForeignError
		typeError *tpu.TypeError
		pattern   *tpu.PatternError
		noSlices  *tpu.NoSlicesError
		noNumber  *tpu.NumberError
		interrupt *job.Interrupted
		jobError  *job.Error
		connect   *sshfan.ConnectError
		hostKey   *sshfan.HostKeyError
		secret    *launch.SecretError
		state     *qr.StateError
		deadline  *qr.DeadlineError
		conflict  *qr.ConflictError
		invalid   *qr.InvalidError
		nodes     *qr.NodesError
		stranger  *qr.OwnerError
		numa      *preflight.NUMAError
		xlaName   *xla.NameError
		xlaKind   *xla.MismatchError
		xlaFlag   *xla.FlagError
		mismatch  *network.MismatchError
		failure   *job.Failure
		path      *fs.PathError
		netErr    net.Error
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return status.code
	case errors.As(err, &interrupt):
		switch interrupt.Signal {
		case syscall.SIGHUP:
			return exitHangup
		case syscall.SIGTERM:
			return exitTerminate
		}
		return exitInterrupt
	case errors.As(err, &usage), errors.As(err, &typeError), errors.As(err, &pattern), errors.As(err, &invalid), errors.As(err, &numa),
		errors.As(err, &xlaName), errors.As(err, &xlaKind), errors.As(err, &xlaFlag):
		return exitUsage
	case errors.As(err, &conf), errors.As(err, &gconf), errors.As(err, &fileConf), errors.As(err, &foreign), errors.As(err, &idError), errors.As(err, &knownErr):
		return exitConfig
	case errors.As(err, &jobError):
		switch jobError.Stage {
		case job.StageSettings, job.StageSkew, job.StageVenv:
			return exitPreflight
		case job.StageTimeout, job.StageStall:
			return exitTempFail
		case job.StageLocal, job.StageScan:
			return exitIO
		case job.StageInput:
			return exitUsage
		}
		if jobError.Err != nil {
			if c := exitCode(jobError.Err); c != exitInternal {
				return c
			}
		}
		return exitUnavailable
	case errors.As(err, &hostKey), errors.As(err, &secret) && secret.Status == http.StatusForbidden:
		return exitPermission
	case errors.As(err, &secret):
		return exitUnavailable
	case errors.As(err, &connect):
		if connect.Stage == sshfan.StageAuth {
			return exitPermission
		}
		return exitUnavailable
	case errors.As(err, &deadline), errors.As(err, &state) && state.NoCapacity():
		return exitTempFail
	case errors.As(err, &state), errors.As(err, &conflict), errors.As(err, &mismatch), errors.As(err, &noSlices), errors.As(err, &noNumber), errors.As(err, &busy), errors.As(err, &code), errors.As(err, &inUse), errors.As(err, &nodes), errors.As(err, &stranger):
		return exitUnavailable
	}
	switch gcp.ClassOf(err) {
	case gcp.Permission, gcp.Unauthenticated:
		return exitPermission
	case gcp.Quota, gcp.Capacity, gcp.Timeout:
		return exitTempFail
	case gcp.NotFound, gcp.AlreadyExists, gcp.Conflict, gcp.Unavailable:
		return exitUnavailable
	case gcp.Invalid:
		return exitUsage
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return exitTempFail
	case errors.As(err, &path):
		return exitIO
	case errors.As(err, &netErr), errors.Is(err, launch.ErrUnknownRun):
		return exitUnavailable
	case errors.As(err, &failure) && failure.Cause == job.Stall:
		return exitTempFail
	case errors.As(err, &failure):
		return exitUnavailable
	}
	return exitInternal
}

// hintOf returns what the user should type next, one line for each part of a joined
// error, or "". The hint of an error also covers the errors that it wraps.
func hintOf(err error) string {
	var lines []string
	var walk func(error)
	walk = func(err error) {
		if hinted, ok := err.(interface{ Hint() string }); ok {
			if h := strings.TrimSpace(hinted.Hint()); h != "" && !slices.Contains(lines, h) {
				lines = append(lines, h)
			}
			return
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				walk(inner)
			}
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				walk(inner)
			}
		}
	}
	walk(err)
	var connect *sshfan.ConnectError
	if errors.As(err, &connect) || errors.Is(err, sshfan.ErrConnectionLost) {
		return strings.Join(lines, "\n") // a network error, but not the API's
	}
	if len(lines) == 0 && gcp.ClassOf(err) != gcp.Unknown {
		return strings.TrimSpace(gcp.Hint(err))
	}
	return strings.Join(lines, "\n")
}
