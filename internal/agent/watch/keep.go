package watch

import (
	"context"
	"fmt"
	"time"

	"multihost/internal/agent"
)

// Pauses of Keep.
const (
	shortestPause = time.Second
	longestPause  = time.Minute
	steady        = 10 * time.Minute // if a watch lived this long, it died for a new reason
)

// Keep calls start until start returns nil: then nothing is left to watch. If a watch dies,
// for example by a signal, Keep restarts it after a pause, which doubles from 1 s to 1 min.
// It reports each restart through note. When the context ends, Keep returns the context's
// error.
func Keep(ctx context.Context, start func(context.Context) error, note func(text string)) error {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		began := time.Now()
		err := start(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) >= steady {
			pause = shortestPause
		}
		note(fmt.Sprintf("the watch has died (%v); it starts again in %v", err, pause))
		if err := agent.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}
