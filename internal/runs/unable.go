package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// askAgain is the pause between two questions of WarnUnable to the API.
const askAgain = 10 * time.Second

// WarnUnable warns of workers that cannot begin: they have reported nothing to the bucket,
// and give the reason in a guest attribute. It asks the API at most every 10 s, and repeats
// no warning. It returns the phase of such a worker, or "".
func WarnUnable(ctx context.Context, r *BucketRun, state detach.State) string {
	if r.asked.IsZero() || r.Clock.Now().Sub(r.asked) >= askAgain {
		r.asked, r.unable = r.Clock.Now(), findUnable(ctx, r, state)
	}
	text := unableText(r.Desc.Run, len(r.Desc.IDs()), r.unable)
	if text != "" && text != r.warned {
		event.Notef(r.Sink, event.Warn, "the workers try on; to give the run up, type: multihost stop "+r.Desc.Run, "%s", text)
	}
	r.warned = text
	if len(r.unable) == 0 {
		return ""
	}
	return r.unable[0].Phase
}

// findUnable asks every slice that has a worker without a report. It ignores slices whose
// answer cannot be read.
func findUnable(ctx context.Context, r *BucketRun, state detach.State) []detach.Seen {
	reader, ok := provision.As[provision.AttributeReader](provider.Of(r.Cloud, r.Desc.Kind))
	if !ok || state.Over(r.Desc) {
		return nil
	}
	reported := map[tpu.WorkerID]bool{}
	of := make([]int, len(r.Desc.Nodes)) // number of workers of each slice that have reported
	for _, w := range state.Seen {
		if reported[w.Worker] = true; w.Worker.Slice < len(of) {
			of[w.Worker.Slice]++
		}
	}
	var mu sync.Mutex
	var found []detach.Seen
	var group errgroup.Group
	group.SetLimit(16)
	for slice, name := range r.Desc.Nodes {
		if of[slice] >= r.Desc.Workers {
			continue
		}
		group.Go(func() error {
			texts, err := reader.Attributes(ctx, name, detach.ReportKey)
			if err != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, text := range texts {
				s, ok := detach.ParseReport(r.Desc.Run, text)
				known := s.Attempt > 0 && reported[s.Worker]
				if ok && !known && s.Detail != "" && (s.Phase == "boot" || s.Phase == "failed") {
					found = append(found, s)
				}
			}
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	slices.SortFunc(found, func(a, b detach.Seen) int {
		return cmp.Or(strings.Compare(b.Phase, a.Phase), strings.Compare(a.Detail, b.Detail))
	})
	return found
}

// unableText says in one line what the workers in found report, or returns "". It shows the
// reason of the first one; findUnable puts the phase failed before the phase boot. The text
// is not trusted: every process of a worker can write it.
func unableText(run string, total int, found []detach.Seen) string {
	if len(found) == 0 {
		return ""
	}
	same := 0
	for _, s := range found {
		if s.Phase == found[0].Phase && s.Detail == found[0].Detail {
			same++
		}
	}
	reason, waits := strings.CutPrefix(found[0].Detail, "waiting: ")
	verb := "cannot begin"
	if waits {
		verb = "waits to begin"
	}
	text := fmt.Sprintf("run %s %s on %d of %s: %s", run, verb, same, event.Count(total, "worker"), remote.Clean(reason, 500))
	if others := len(found) - same; others > 0 {
		text += fmt.Sprintf("; for other reasons on %d", others)
	}
	return text
}
