package sim

import (
	"multihost/internal/sim/cloud"
	"multihost/internal/sim/storageapi"
)

// Names of package cloud for programs that start a simulator.
type (
	Config    = cloud.Config
	Fault     = cloud.Fault
	FaultDoc  = cloud.FaultDoc
	FaultArg  = cloud.FaultArg
	SliceSpec = cloud.SliceSpec
	Request   = cloud.Request
	Object    = storageapi.Object
)

// The defaults for a zero Config, and the number of calls of a fault that stays active.
const (
	DefaultProject = cloud.DefaultProject
	DefaultZone    = cloud.DefaultZone
	DefaultBucket  = cloud.DefaultBucket
	AllCalls       = cloud.AllCalls
)

// Faults lists the faults that can be injected.
func Faults() []FaultDoc { return cloud.Faults() }

// FaultArgs lists the arguments of faults.
func FaultArgs() []FaultArg { return cloud.FaultArgs() }

// ParseFault reads a fault from a command line: a name and key=value words.
func ParseFault(text string) (Fault, error) { return cloud.ParseFault(text) }

// ParseSlices reads slices in the form of --sim-slices: NAME:COUNTxTYPE, separated by
// commas or spaces.
func ParseSlices(text string) ([]SliceSpec, error) { return cloud.ParseSlices(text) }

// Objects returns the objects of a bucket, in the order of their names.
func (s *Server) Objects(bucket string) []Object { return storageapi.New(s.Cloud).Objects(bucket) }
