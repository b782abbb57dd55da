package launch

import (
	"context"
	"time"

	"multihost/internal/config"
	"multihost/internal/fault"
	"multihost/internal/remote"
)

// A Venv is the Python virtual environment of a run on one worker.
type Venv struct {
	Dir  string
	Path string // for a command that uses the environment
}

// VenvDir returns the directory of a run's virtual environment, relative to the home
// directory.
func VenvDir(run string) string { return ".multihost/venv/" + run }

// VenvUnset are the variables that a command in a virtual environment must not
// inherit.
var VenvUnset = []string{"PYTHONHOME"}

// Env returns the variables of a command that uses the environment.
func (v Venv) Env() []EnvVar {
	return []EnvVar{{Name: "VIRTUAL_ENV", Value: v.Dir}, {Name: "PATH", Value: v.Path}}
}

// venvLimit is the longest time of venv.sh. It waits up to 10 minutes for another venv.sh
// that holds the lock, and spends 10 minutes on each of two ways to make the environment.
const venvLimit = 32 * time.Minute

// MakeVenv makes the virtual environment of a run, unless a complete environment exists. It
// replaces an incomplete environment. The error is a *VenvError if the worker cannot make
// an environment.
func MakeVenv(ctx context.Context, r remote.Runner, run string) (Venv, error) {
	if err := config.CheckRunName(run); err != nil {
		return Venv{}, err
	}
	records, err := callWithin(ctx, venvLimit, 0, r, "make a virtual environment", venvScript, run)
	if err != nil {
		return Venv{}, err
	}
	var v Venv
	for _, rec := range records {
		switch rec.Word {
		case "venv":
			v.Dir = rec.Rest
		case "path":
			v.Path = rec.Rest
		case "refused":
			f := rec.Fields(2)
			return Venv{}, &VenvError{Worker: r.Name(), Package: dash(remote.Clean(f[0], 100)), Text: remote.Clean(f[1], 500)}
		}
	}
	if v.Dir == "" || v.Path == "" {
		return Venv{}, &RemoteError{Worker: r.Name(), Op: "make a virtual environment", Text: "its answer was cut off", Silent: true}
	}
	return v, nil
}

// VenvError says why a worker cannot make a virtual environment.
type VenvError struct {
	Worker, Text string
	Package      string // missing package; "": another reason
}

// Error implements error.
func (e *VenvError) Error() string { return e.Worker + ": " + e.Cause() }

// Fault returns fault.Preflight.
func (e *VenvError) Fault() fault.Kind { return fault.Preflight }

// Cause returns the error without the worker's name.
func (e *VenvError) Cause() string {
	text := "make a virtual environment (--venv): "
	if e.Package != "" {
		text += "the package " + e.Package + " is not installed: "
	}
	return text + e.Text
}
