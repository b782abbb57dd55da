package qr

import (
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// LifeOf returns the life of a queued resource in a state of the API, or in NotFound.
// A word that it does not know counts as requested: waiting shows what becomes of the
// resource, and nothing is deleted because of a word.
func LifeOf(state string) provision.Life {
	switch state {
	case NotFound:
		return provision.Absent
	case "ACCEPTED", "WAITING_FOR_RESOURCES":
		return provision.Waiting
	case "PROVISIONING":
		return provision.Provisioning
	case "ACTIVE":
		return provision.Active
	case "SUSPENDING":
		return provision.Suspending
	case "SUSPENDED":
		return provision.Suspended
	case "FAILED":
		return provision.Failed
	case "DELETING":
		return provision.Deleting
	}
	return provision.Requested // CREATING
}

// kind is what messages call a queued resource.
const kind = "queued resource"

// conditionOf returns the condition of a slice from the API's words for its state and its
// health. An empty state means that the API does not list the slice.
func conditionOf(state, health string) tpu.Condition {
	switch state {
	case "READY":
		switch health {
		case "", "HEALTHY", "HEALTH_UNSPECIFIED":
			return tpu.Usable
		case "UNHEALTHY_MAINTENANCE":
			return tpu.Serviced
		}
		return tpu.Ill
	case "CREATING":
		return tpu.Making
	case "PREEMPTED", "TERMINATED": // the queued resource follows: SUSPENDING
		return tpu.Taken
	case "STOPPED", "STOPPING": // the API starts only slices of one host again
		return tpu.Halted
	case "DELETING":
		return tpu.Leaving
	}
	return tpu.Unclear // RESTARTING, REPAIRING and others
}
