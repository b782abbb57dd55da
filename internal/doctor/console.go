package doctor

import (
	"context"
	"strings"
	"sync"

	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// checkConsoles reads the serial consoles of slices that are not ready. Their VMs may run
// without having booted.
func (e workerChecks) checkConsoles(ctx context.Context) {
	var group sync.WaitGroup
	for _, s := range e.sel.Unready {
		group.Go(func() { e.checkConsole(ctx, s, nil) })
	}
	group.Wait()
}

// checkSilent reads the serial consoles of workers that do not answer SSH.
func (e workerChecks) checkSilent(ctx context.Context, visit *workers.Visit) {
	silent := map[int][]tpu.WorkerID{} // by slice
	for _, w := range visit.Workers {
		if w.Err != nil && !remote.Answered(w.Err) {
			silent[w.ID.Slice] = append(silent[w.ID.Slice], w.ID)
		}
	}
	var group sync.WaitGroup
	for slice, ids := range silent {
		group.Go(func() { e.checkConsole(ctx, e.sel.Slices[slice], ids) })
	}
	group.Wait()
}

// checkConsole reports the messages on the serial console of one VM of a slice. It takes
// one of ids. If ids is empty, it takes one that has not reported its number. The other VMs
// of a slice usually have the same messages.
func (e workerChecks) checkConsole(ctx context.Context, s tpu.Slice, ids []tpu.WorkerID) {
	reader, ok := provision.As[provision.ConsoleReader](provider.Of(e.Provider, s.Provider))
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	of := map[string]tpu.WorkerID{}
	var vms []string
	for _, id := range ids {
		name := s.Workers[id.Worker].Name
		of[name], vms = id, append(vms, name)
	}
	all, err := reader.Consoles(ctx, s, vms)
	if err != nil {
		e.fail(CheckConsole, err)
	}
	if len(all) == 0 {
		return
	}
	c := provision.Foremost(all)
	f := Finding{Check: CheckConsole, Level: Warning, Text: c.String(), Advice: c.Hint, Lines: c.Lines}
	if id, known := of[c.VM]; known {
		f.Workers, f.count = tpu.Fold([]tpu.WorkerID{id}), 1
	}
	if c.Fatal {
		f.Level = Error
	}
	if !strings.Contains(f.Advice, c.Show) {
		f.Advice = strings.TrimPrefix(f.Advice+"; see all of it with: "+c.Show, "; ")
	}
	e.add(f)
}
