package job

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"multihost/internal/tpu"
)

// A Stand is a snapshot of the run's status for the Ctrl-C prompt.
type Stand struct {
	Run      string
	Running  string    // the workers on which the command runs, folded; empty: it runs on none
	Ended    bool      // the command has run and ended; another attempt may begin
	Kept     time.Time // until when failed slices are kept for a look; zero: they are not kept
	Ours     bool      // this command has started the run, and would stop it
	Resource string    // queued resource that is deleted at the end of this command; empty: none
	Billed   string    // what is billed for the run, in words; empty: nothing yet
	Lease    string    // what the run's workers do about the slices by themselves, in words; empty: nothing
	Earlier  bool      // an earlier runner made the resource: the command may run on it already
	Waiting  string    // what happens to the resource if no runner continues before the command has started, in words
}

// Started reports whether the command runs, or failed slices are kept, so that there is
// something to decide about.
func (s Stand) Started() bool { return s.Running != "" || !s.Kept.IsZero() }

// Second returns what a second interrupt means while the prompt for the first one is
// open: a running command continues; a queued resource on which nothing runs is deleted.
func (s Stand) Second() Answer {
	if s.Started() || s.Earlier {
		return Detach
	}
	return Stop
}

// stand holds the Stand of a command.
type stand struct {
	mu sync.Mutex // guards at
	at Stand
}

// Stand returns the current status of the run. It is safe for concurrent use.
func (d *Deps) Stand() Stand {
	d.stand.mu.Lock()
	defer d.stand.mu.Unlock()
	return d.stand.at
}

func (d *Deps) setStand(change func(*Stand)) {
	d.stand.mu.Lock()
	defer d.stand.mu.Unlock()
	change(&d.stand.at)
}

// runs records that the command runs on the team, until over is called.
func (f *following) runs() (over func()) {
	f.setStand(func(s *Stand) {
		s.Run, s.Running, s.Ours, s.Ended = f.ref.Run, tpu.Fold(f.team.ids), !f.attached, false
		s.Billed = f.billed(f.team.slices)
	})
	return func() { f.setStand(func(s *Stand) { s.Running, s.Ended = "", true }) }
}

// holds records that this command will delete the queued resource id at its end. waiting
// says what happens to the resource if the command is left before the run's command has
// started.
func (d *Deps) holds(run, id, waiting string, earlier bool) {
	d.setStand(func(s *Stand) {
		s.Run, s.Resource, s.Waiting, s.Earlier, s.Ours = run, id, waiting, earlier, true
	})
}

// billed returns what slices cost, in words. The tier of slices that this command did not
// ask for is not known here: their price is that of on-demand capacity, and says so.
func (d *Deps) billed(all []tpu.Slice) string {
	if len(all) == 0 || all[0].UID == "" { // hosts that no cloud knows
		return ""
	}
	tier := cmp.Or(d.tier, onDemand)
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
		return text + ", " + noPrice(unpriced.Type, tier, unpriced.Zone)
	}
	return text + ", " + priceOf(&total, "", tier, all[0].Zone)
}
