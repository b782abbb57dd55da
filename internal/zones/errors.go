package zones

import (
	"fmt"

	"multihost/internal/fault"
	"multihost/internal/gcp"
)

// A NoTypeError says that a zone does not offer an accelerator type.
type NoTypeError struct {
	Type, Zone string
	Zones      []string // zones known to offer the type, nearest first
	Err        error    // the API's refusal
}

func (e *NoTypeError) Error() string {
	return e.Err.Error() + Name(e.Zones, "; zones that offer "+e.Type+": ")
}

// Unwrap returns the API's refusal.
func (e *NoTypeError) Unwrap() error { return e.Err }

// Fault returns the kind of the API's refusal.
func (e *NoTypeError) Fault() fault.Kind { return gcp.FaultOf(e.Err) }

// Hint returns what to type.
func (e *NoTypeError) Hint() string {
	if len(e.Zones) > 0 {
		return "repeat the command with --zone=" + e.Zones[0]
	}
	return "see what the zone offers: gcloud compute tpus accelerator-types list --zone=" + e.Zone
}

// A NoZoneError says that the zone does not exist, or has no Cloud TPU.
type NoZoneError struct {
	Zone string
	Near []string // zones with similar names, most likely first
	Err  error    // the API's refusal
}

func (e *NoZoneError) Error() string {
	return fmt.Sprintf("zone %q does not exist or has no Cloud TPU", e.Zone) + Name(e.Near, "; zones of like names: ") + ": " + e.Err.Error()
}

// Unwrap returns the API's refusal.
func (e *NoZoneError) Unwrap() error { return e.Err }

// Fault returns the kind of the API's refusal.
func (e *NoZoneError) Fault() fault.Kind { return gcp.FaultOf(e.Err) }

// Hint returns what to type.
func (e *NoZoneError) Hint() string {
	if len(e.Near) > 0 {
		return "repeat the command with --zone=" + e.Near[0]
	}
	return "check the zone; all that have Cloud TPU: gcloud compute tpus locations list"
}
