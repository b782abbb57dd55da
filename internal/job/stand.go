package job

import (
	"fmt"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// A Stand is where a run stands, for who has to decide what an interrupt means.
type Stand struct {
	Run      string
	Running  string    // the workers on which the command runs, folded; empty: it does not
	Kept     time.Time // until when failed slices are kept for a look; zero: they are not
	Ours     bool      // this command has started it, and would stop it
	Resource string    // queued resource that is deleted at the end of this command; empty: none
	Billed   string    // what is billed for it, in words; empty: nothing yet
	Lease    string    // what its workers do about it by themselves, in words; empty: nothing
	Earlier  bool      // an earlier runner made the resource: its command may run on it already
	Waiting  string    // what becomes of it where nobody goes on with it before the command has started, in words
}

// Started reports whether there is a command, or what it left, to decide about.
func (s Stand) Started() bool { return s.Running != "" || !s.Kept.IsZero() }

// Second is what a second interrupt means while the question about the first one
// is open: a command that runs goes on, a request with nothing on it is deleted.
func (s Stand) Second() Answer {
	if s.Started() || s.Earlier {
		return Detach
	}
	return Stop
}

// stand keeps the Stand of a command.
type stand struct {
	mu sync.Mutex // guards at
	at Stand
}

// Stand returns where the run stands now. It may be asked at any time.
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

// runs notes that the command runs on the team, until over is called.
func (f *following) runs() (over func()) {
	f.setStand(func(s *Stand) {
		s.Run, s.Running, s.Ours = f.ref.Run, tpu.Fold(f.team.ids), !f.attached
		s.Billed = billed(f.team.slices)
	})
	return func() { f.setStand(func(s *Stand) { s.Running = "" }) }
}

// holds notes that this command will delete a queued resource at its end, and
// what becomes of it where it is left before the command has started.
func (d *Deps) holds(run, id, waiting string, earlier bool) {
	d.setStand(func(s *Stand) {
		s.Run, s.Resource, s.Waiting, s.Earlier, s.Ours = run, id, waiting, earlier, true
	})
}

// billed says what slices cost, in words. The tier is not known here, so the
// price is that of on-demand capacity, which no other exceeds.
func billed(all []tpu.Slice) string {
	if len(all) == 0 || all[0].UID == "" { // hosts that no cloud knows
		return ""
	}
	kinds := map[string]int{}
	var order []string
	total, known := 0.0, true
	for _, s := range all {
		if kinds[s.Type] == 0 {
			order = append(order, s.Type)
		}
		kinds[s.Type]++
		cost, ok := tpu.HourlyPrice(s.Type, s.Zone, false)
		total, known = total+cost, known && ok
	}
	text := ""
	for i, kind := range order {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d × %s", kinds[kind], kind)
	}
	if !known {
		return text + ", price unknown"
	}
	return text + ", about " + event.Dollars(total) + " an hour on demand"
}
