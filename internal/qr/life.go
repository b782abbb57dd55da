package qr

import (
	"fmt"

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
	case "WAITING_FOR_RESOURCES":
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
	return provision.Requested // CREATING, ACCEPTED
}

// kind is what messages call a queued resource.
const kind = "queued resource"

// Gone is the sight of a queued resource that existed and is not found any more.
func Gone() provision.Sight {
	return provision.Sight{Kind: kind, Life: provision.Absent, Word: NotFound, Existed: true}
}

// Sight puts together what the API says of r and what reach says of its slices, by
// name. A nil reach has tried none.
func (r Resource) Sight(reach func(slice string) provision.Reach) provision.Sight {
	s := provision.Sight{
		Kind: kind, Life: LifeOf(r.State), Word: r.State, Detail: r.Failure, Existed: true,
		ByUser: r.StateInitiator == "USER", Reclaimable: r.Tier.preemptible() || r.Tier == FlexStart,
	}
	for _, name := range r.Nodes {
		var have SliceState // none that the API does not list
		for _, slice := range r.Slices {
			if slice.Name == name {
				have = slice
			}
		}
		seen := SliceSight(name, have.State, have.Health)
		if reach != nil {
			seen.Reach = reach(name)
		}
		s.Slices = append(s.Slices, seen)
	}
	return s
}

// SliceSight describes a slice by the API's words for its state and its health. An
// empty state means that the API does not list the slice. Its Reach is Untried.
func SliceSight(name, state, health string) provision.SliceSight {
	s := provision.SliceSight{Name: name, Loss: provision.Infrastructure, State: fmt.Sprintf("slice %s is %s", name, state)}
	switch state {
	case "":
		s.State = fmt.Sprintf("slice %s is gone", name)
	case "PREEMPTED", "TERMINATED": // the queued resource follows: SUSPENDING
		s.Loss = provision.Preempted
	case "READY":
		s.Up = true
		if health == "UNHEALTHY_MAINTENANCE" {
			s.Loss = provision.Maintenance
		} else if tpu.Healthy(health) {
			s.Loss = provision.NoLoss
		}
		if s.Loss != provision.NoLoss {
			s.State += " and its health is " + health
		}
	}
	return s // STOPPED is a loss, too: the API starts only slices of one host again
}
