package follow

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"multihost/internal/cost"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// runs records that the command runs on the workers, until over is called.
func (f *Following) runs() (over func()) {
	f.SetStatus(func(s *stage.Status) {
		s.Run, s.Running, s.Ours, s.Ended = f.Ref.Run, tpu.Fold(f.Workers.IDs), !f.Attached, false
		s.Billed = Billed(s.Tier, f.Workers.Slices)
	})
	return func() { f.SetStatus(func(s *stage.Status) { s.Running, s.Ended = "", true }) }
}

// Holds records that this command will delete the queued resource id when this command ends.
// waiting says what happens to the resource if the user ends this command before the run's
// command has started. earlier means that an earlier runner made the resource, so the run's
// command may already run there.
func Holds(r *workers.Reach, run, id, waiting string, earlier bool) {
	r.SetStatus(func(s *stage.Status) {
		s.Run, s.Waiting, s.Earlier, s.Ours = run, waiting, earlier, true
		s.Resource, s.Delete = provision.NameOf(r.Cloud, id), r.Cloud.Undoing(id).Commands.Delete
	})
}

// Billed returns what slices of a tier cost, in words. tier is "" for slices that this
// command did not request: their tier is not known here. The text then has the price on
// demand and says so.
func Billed(tier string, all []tpu.Slice) string {
	if len(all) == 0 || all[0].UID == "" { // hosts that no cloud knows
		return ""
	}
	tier = cmp.Or(tier, cost.OnDemand)
	kinds := map[string]int{}
	var order []string
	total := 0.0
	var unpriced tpu.Slice
	for _, s := range all {
		if kinds[s.Type] == 0 {
			order = append(order, s.Type)
		}
		kinds[s.Type]++
		cost, ok := tpu.HourlyPrice(s.Type, s.Zone, tier)
		if total += cost; !ok {
			unpriced = s
		}
	}
	text := ""
	for i, kind := range order {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d × %s", kinds[kind], kind)
	}
	if unpriced.Name != "" {
		return text + ", " + cost.NoPrice(unpriced.Type, tier, unpriced.Zone)
	}
	return text + ", " + cost.PriceOf(&total, "", tier, all[0].Zone)
}

// SomeoneAt reports whether a command on this machine copies the logs of a run. It may
// wrongly return true if another command calls it at the same moment.
func SomeoneAt(stateDir, run string) bool {
	file, err := os.OpenFile(record.PresencePath(stateDir, run), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	taken, _ := record.TryLock(file)
	return taken
}

// Patience limits how long a worker of a started run may be away or silent. 0 means no
// limit for Lost, no wait for Log and no report for Quiet.
type Patience struct {
	// Lost is how long the run waits for a worker that cannot be reached. Then the attempt
	// has failed. A VM that reboots or migrates needs only minutes. During a longer failure
	// of a network the command continues, and attach finds it.
	Lost time.Duration

	// Log is how long the run waits, after the command has ended, for logs that are not
	// whole here.
	Log time.Duration

	// Quiet is the time without output after which a worker is reported, and reported
	// again. Compiling a large model is silent for ten minutes at most.
	Quiet time.Duration
}

// StopBy begins the reason of a stop by a user's command.
const StopBy = "multihost stop by "
