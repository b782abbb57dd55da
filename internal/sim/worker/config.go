package worker

import (
	"strings"
	"time"

	"multihost/internal/fault"
)

// A ProcessConfig configures the process backend.
type ProcessConfig struct {
	Root string           // directory of the stand-ins and the machines; the backend creates it
	Port int              // SSH port of every machine; 0: the first start chooses a free port
	Now  func() time.Time // clock for the expiry of keys; nil: the clock of the system
}

// A ToolsError names missing programs of the netns backend.
type ToolsError struct {
	Missing  []string // programs
	Packages []string // Debian and Ubuntu packages with these programs
}

func (e *ToolsError) Error() string {
	return "programs are missing: " + strings.Join(e.Missing, ", ")
}

// Fault returns fault.Configuration.
func (e *ToolsError) Fault() fault.Kind { return fault.Configuration }

// Hint returns the command to type.
func (e *ToolsError) Hint() string {
	return "install them: apt-get install " + strings.Join(e.Packages, " ")
}

// ErrNotRoot says that the caller may not create namespaces.
var ErrNotRoot = fault.New(fault.Permission, "network namespaces need root")
