package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// Limits for reading serial consoles: the time for a slice, and the number of slices. The
// provider limits the number of consoles of a slice.
const (
	consolesLimit  = 20 * time.Second
	consolesSlices = 8
)

// A ConsoleEnd is the end of the serial console of a worker that cannot be reached.
type ConsoleEnd struct {
	Worker  string   `json:"worker"`
	VM      string   `json:"vm"`
	Meaning string   `json:"meaning,omitempty"`
	Lines   []string `json:"lines"`
	Show    string   `json:"show"` // the command that prints the whole console

	text, hint string
}

// showConsoles emits one Result with the serial consoles of the workers in away. It emits
// nothing if their provider shows no consoles.
func showConsoles(ctx context.Context, d *workers.Reach, sel tpu.Selection, away map[tpu.WorkerID]error) {
	silent := make([][]tpu.WorkerID, len(sel.Slices))
	for id, err := range away {
		if !remote.Answered(err) {
			silent[id.Slice] = append(silent[id.Slice], id)
		}
	}
	found := make([][]ConsoleEnd, len(silent))
	var reads sync.WaitGroup
	asked, more := 0, 0
	for i, ids := range silent {
		s := sel.Slices[i]
		reader, ok := provision.As[provision.ConsoleReader](provider.Of(d.Cloud, s.Provider))
		switch {
		case !ok || len(ids) == 0:
		case asked == consolesSlices:
			more++
		default:
			asked++
			slices.SortFunc(ids, tpu.WorkerID.Compare)
			reads.Go(func() { found[i] = readConsoles(ctx, d, reader, s, ids) })
		}
	}
	reads.Wait()
	if all := slices.Concat(found...); len(all) > 0 && ctx.Err() == nil {
		d.Sink.Emit(event.Result{Name: "consoles", Text: consolesText(all, more), Data: all})
	}
}

// readConsoles reads the consoles of workers of a slice, as many as it can within its time
// limit.
func readConsoles(ctx context.Context, d *workers.Reach, reader provision.ConsoleReader, s tpu.Slice, ids []tpu.WorkerID) (ends []ConsoleEnd) {
	limited, cancel := context.WithTimeout(gcp.Unattended(ctx), consolesLimit)
	defer cancel()
	vms := make([]string, len(ids))
	for i, id := range ids {
		vms[i] = s.Workers[id.Worker].Name
	}
	all, err := reader.Consoles(limited, s, vms)
	if err != nil && ctx.Err() == nil {
		event.Notef(d.Sink, event.Warn, gcp.Hint(err), "not all serial consoles of slice %s could be read: %v", s.Name, err)
	}
	for _, c := range all {
		ends = append(ends, ConsoleEnd{
			Worker: ids[slices.Index(vms, c.VM)].String(), VM: c.VM, Meaning: c.Meaning, Lines: c.Lines, Show: c.Show, text: c.String(), hint: c.Hint,
		})
	}
	return ends
}

// consolesText describes consoles for people. more is the number of slices whose consoles
// were not read.
func consolesText(all []ConsoleEnd, more int) string {
	var b strings.Builder
	b.WriteString("serial consoles of workers that do not answer:\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\n%s, %s\n", c.Worker, c.text)
		for _, line := range c.Lines {
			fmt.Fprintf(&b, "    %s\n", line)
		}
		if c.hint != "" && !strings.Contains(c.hint, c.Show) {
			fmt.Fprintf(&b, "  %s\n", c.hint)
		}
		fmt.Fprintf(&b, "  all of it: %s\n", c.Show)
	}
	if more > 0 {
		fmt.Fprintf(&b, "\n… and %s more with workers that do not answer\n", event.Count(more, "slice"))
	}
	return b.String() + "\n"
}
