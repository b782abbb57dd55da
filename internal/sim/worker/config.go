package worker

import "time"

// A ProcessConfig says how the process backend works.
type ProcessConfig struct {
	Root string           // directory for the stand-ins and the machines; made if need be
	Port int              // SSH port of every machine; 0 means a free one, chosen at the first start
	Now  func() time.Time // clock for keys that expire; nil means the system's
}
