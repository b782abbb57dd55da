package follow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

const (
	// OutageLook is the time between two questions to the cloud whether the slices of lost
	// workers exist.
	OutageLook = 10 * time.Second
	// longestLook is the longest pause between two questions while the cloud does not answer.
	// Each question is reported.
	longestLook = 2 * time.Minute
)

// ErrSliceGone marks the end of a worker whose slice is gone or was taken away, according
// to the API. No command can be running there.
var ErrSliceGone = fault.New(fault.Unavailable, "nothing runs there any more")

// An outage is a time in which one worker cannot be followed.
type outage struct {
	giveUp context.CancelCauseFunc // nil: no outage
	begin  time.Time               // when the time limit of the outage began to count
	kind   trouble                 // of the last failed try
	cause  string                  // of the last failed try, in words
	gone   bool                    // the worker's slice is gone

	said      time.Time // time of the last report
	saidKind  trouble   // kind in the last report
	told      bool      // this outage was reported
	recovered bool      // the outage is over, and its end is still to be reported
}

// fail records a failed try to follow the worker. The result news says that something is to
// be reported. The result lost says that the worker was away for longer than limit; 0 means
// no limit.
func (o *outage) fail(now time.Time, kind trouble, cause string, giveUp context.CancelCauseFunc, limit time.Duration) (news, lost bool) {
	if o.giveUp == nil {
		news, o.begin = true, now
		if o.recovered { // the recovery was too short for a report
			o.recovered, o.told = false, true
		}
	}
	o.giveUp, o.kind, o.cause = giveUp, kind, cause
	if kind == OurLogin {
		o.begin = now // the worker itself is not lost
	}
	news = news || o.told && kind != o.saidKind
	return news, fateOf(evidence{trouble: kind, away: now.Sub(o.begin)}, limit) == fateLost
}

// end records that the worker is followed again. It reports whether something is to be
// reported.
func (o *outage) end() (news bool) {
	if o.giveUp == nil {
		return false
	}
	o.giveUp = nil
	o.recovered, o.told = o.told, false
	return true
}

// report returns the text about the outage that is due now, with %s for the worker, or "". If
// back is true, the end of the outage is to be reported. A change of the kind of trouble is
// due at once. Other reports of outages are at least a minute apart. A long outage is
// reported again each time its length has doubled.
func (o *outage) report(now time.Time, limit time.Duration) (text string, back bool) {
	away := now.Sub(o.begin)
	switch {
	case o.giveUp == nil:
	case !o.told && (o.said.IsZero() || now.Sub(o.said) > time.Minute):
		text = o.kind.Text(o.cause, 0, limit)
	case o.told && o.kind != o.saidKind: // the kind of trouble has changed
		text = o.kind.Text(o.cause, 0, limit)
	case o.told && now.Sub(o.said) >= max(away/2, time.Minute):
		text = o.kind.Text(o.cause, away, limit)
	}
	if text != "" {
		o.told, o.said, o.saidKind = true, now, o.kind
	}
	back, o.recovered = o.recovered, false
	return text, back
}

// outages are the outages of a run, by the index of the worker. The zero value is ready for
// use. It is safe for concurrent use.
type outages struct {
	mu  sync.Mutex
	all map[int]*outage
}

// at calls f with the outage of a worker.
func (o *outages) at(i int, f func(*outage)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[int]*outage{}
	}
	if o.all[i] == nil {
		o.all[i] = &outage{}
	}
	f(o.all[i])
}

// lost records that worker i could not be followed because of err, and gives it up after
// limit. It reports whether there is news.
func (o *outages) lost(i int, id tpu.WorkerID, giveUp context.CancelCauseFunc, err error, now time.Time, limit time.Duration) (news bool) {
	o.at(i, func(o *outage) {
		kind, over := TroubleOf(err), false
		news, over = o.fail(now, kind, remote.LostText(errors.New(stage.CauseText(err, id))), giveUp, limit)
		if over {
			giveUp(&lostError{kind, limit, err})
		}
	})
	return news
}

// back records that worker i is followed, or followed again. It reports whether there is
// news.
func (o *outages) back(i int) (news bool) {
	o.at(i, func(o *outage) { news = o.end() })
	return news
}

// over ends the outage of a worker that nobody follows any more.
func (o *outages) over(i int) { o.at(i, func(o *outage) { o.giveUp = nil }) }

// gone gives up worker i, whose slice is gone.
func (o *outages) gone(i int, why string) {
	o.at(i, func(o *outage) {
		o.gone = true
		if o.giveUp != nil {
			o.giveUp(fmt.Errorf("%s: %w", why, ErrSliceGone))
		}
	})
}

func (o *outages) isGone(i int) (gone bool) {
	o.at(i, func(o *outage) { gone = o.gone })
	return gone
}

// restart makes the time of the workers' outages begin now.
func (o *outages) restart(lost []int, now time.Time) {
	for _, i := range lost {
		o.at(i, func(o *outage) { o.begin = now })
	}
}

// causes returns why workers cannot be followed now, by the worker's index.
func (o *outages) causes() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	causes := map[int]string{}
	for i, out := range o.all {
		if out.giveUp != nil {
			causes[i] = out.cause
		}
	}
	return causes
}

// lostNow returns the workers that cannot be followed now, in order.
func (o *outages) lostNow() []int { return slices.Sorted(maps.Keys(o.causes())) }

// tell reports the workers that are newly lost, and those that are followed again.
func (o *outages) tell(sink event.Sink, ids []tpu.WorkerID, now time.Time, limit time.Duration) {
	var back []tpu.WorkerID
	texts := make([]string, len(ids))
	for i := range ids {
		o.at(i, func(o *outage) {
			text, again := o.report(now, limit)
			if texts[i] = text; again {
				back = append(back, ids[i])
			}
		})
	}
	for _, g := range tpu.GroupAlike(texts) {
		lost := make([]tpu.WorkerID, len(g.At))
		for i, at := range g.At {
			lost[i] = ids[at]
		}
		event.Notef(sink, event.Warn, "", g.Text, tpu.FoldShort(lost))
	}
	if len(back) > 0 {
		event.Notef(sink, event.Info, "", "connected to %s again; none of the output is lost", tpu.Fold(back))
	}
}

// ourNetwork reports whether this machine's network caused an outage. It did if no awaited
// worker can be followed and the API gave no answer either. err is the error of the API call.
func ourNetwork(lost, awaited int, err error) bool {
	switch gcp.ClassOf(err) {
	case gcp.Permission, gcp.Invalid, gcp.NotFound, gcp.Quota: // the API has answered
		return false
	}
	return err != nil && lost >= awaited
}

// nextLook returns the pause before the next question to the cloud. The parameter pause is
// the last pause, and err is the error of the last question.
func nextLook(pause, limit time.Duration, err error) time.Duration {
	switch {
	case err == nil:
		return OutageLook
	case limit > 0: // a look must come before the limit has passed
		return min(2*pause, longestLook, max(limit/2, OutageLook))
	}
	return min(2*pause, longestLook)
}

// LostSlice says why the slice cannot run anything any more, or "".
func LostSlice(nodes []tpu.Slice, s tpu.Slice) string {
	for _, n := range nodes {
		if n.Name == s.Name && n.UID != s.UID && n.Remade {
			return fmt.Sprintf("slice %q is being made again, and what was on its workers is lost", s.Name)
		}
		if n.Name != s.Name || n.UID != s.UID {
			continue
		}
		if n.Condition.Over() {
			return fmt.Sprintf("slice %q is %s", s.Name, n.State)
		}
		return ""
	}
	return fmt.Sprintf("slice %q is gone", s.Name)
}
