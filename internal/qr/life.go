package qr

import (
	"multihost/internal/provision"
)

// LifeOf returns the life for a state of the API, or for NotFound. An unknown state counts
// as requested, so that the job waits and deletes nothing.
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
	return provision.Requested // CREATING, or unknown
}

// kind is what messages call a queued resource.
const kind = "queued resource"
