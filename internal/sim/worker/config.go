package worker

import (
	"errors"
	"strings"
	"time"
)

// A ProcessConfig says how the process backend works.
type ProcessConfig struct {
	Root string           // directory for the stand-ins and the machines; made if need be
	Port int              // SSH port of every machine; 0 means a free one, chosen at the first start
	Now  func() time.Time // clock for keys that expire; nil means the system's
}

// A NetnsConfig says how the netns backend works.
type NetnsConfig struct {
	Root string // directory for what it needs on disk; made if need be, emptied by Close
	Port int    // SSH port at which the caller reaches every machine; 0 means a free one
}

// A ToolsError names the programs that the netns backend lacks.
type ToolsError struct {
	Missing  []string // programs
	Packages []string // of Debian and Ubuntu, that have them
}

func (e *ToolsError) Error() string {
	return "programs are missing: " + strings.Join(e.Missing, ", ")
}

// Hint is what to type.
func (e *ToolsError) Hint() string {
	return "install them: apt-get install " + strings.Join(e.Packages, " ")
}

// ErrNotRoot says that the caller may not make namespaces.
var ErrNotRoot = errors.New("network namespaces need root")
