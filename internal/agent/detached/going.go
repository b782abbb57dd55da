//go:build unix

package detached

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/agent"
)

const (
	// goingLimit limits Going. After an order to shut down, a preempted machine of Compute
	// Engine has 30 s, and other machines have more. The other processes need a part of
	// this time.
	goingLimit = 20 * time.Second
	goingCall  = 10 * time.Second // limit of one API call
	goingTries = 3
)

// Going works on a worker whose machine has got an order to shut down. It reports this
// order and its reason, and sends the rest of the log to the bucket. It ends no process. It
// returns after about 20 s at the latest, even if the disk hangs.
func Going(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, goingLimit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- going(ctx, cfg) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select { // only a call that hangs outlives the context
	case err := <-done:
		return err
	case <-time.After(time.Second):
		return ctx.Err()
	}
}

// A goer is a worker whose machine has got an order to shut down.
type goer struct{ *worker }

func going(ctx context.Context, cfg Config) error {
	w := goer{&worker{cfg: cfg, client: &agent.Client{Metadata: cfg.Metadata, Transport: cfg.Transport, Limit: goingCall}}}
	if err := w.describe(ctx); err != nil {
		return err
	}
	w.disk = disk{state: stateDir(cfg.Home, w.job.Run)}
	if w.disk.recall("boots") == "" {
		return nil // the job never came to this worker
	}
	if w.disk.runs = w.disk.recall("runs"); w.disk.runs != "" {
		w.m = &machine{job: w.job, attempt: w.disk.newest()}
	} else {
		w.m = &machine{job: w.job}
	}
	if attempt := w.m.attempt; w.disk.told() >= attempt && w.disk.told() > 0 {
		touch(w.disk.path("down"), time.Now()) // the attempt had already ended, with its whole log, and another one may begin soon
		return nil
	}
	w.markDown("")
	if _, err := fmt.Sscan(w.disk.recall("me"), &w.me.Slice, &w.me.Worker); err != nil {
		return nil // this worker does not know its place yet
	}
	if err := os.MkdirAll(scratchDir(cfg.Root, w.job.Run), 0o700); err != nil {
		return err
	}
	if token, err := cfg.Metadata.Token(ctx); err == nil {
		w.client.Held = token
	}
	w.bucket = w.objects()
	w.lastWords(ctx)
	return nil
}

// markDown notes that the machine shuts down, and why, unless the attempt has ended before.
// From then on the machine counts as the cause of the command's end.
func (w goer) markDown(cause string) {
	attempt := strconv.Itoa(w.m.attempt)
	if w.disk.runs != "" && w.disk.record(w.m.attempt) != nil {
		return
	}
	_ = os.WriteFile(w.disk.path("down."+attempt), []byte(cause+"\n"), 0o644)
	touch(w.disk.path("down"), time.Now())
}

// lastWords sends the rest of the log. At the same time it reports why the machine shuts
// down.
func (w goer) lastWords(ctx context.Context) {
	var telling sync.WaitGroup
	defer telling.Wait()
	if w.disk.exists(w.disk.path("down")) {
		telling.Go(func() { w.tellDown(ctx) })
	}
	if w.m.attempt == 0 {
		return
	}
	path, name := w.disk.attempt(w.m.attempt, "output.log"), logName(w.me, w.m.attempt)
	for range goingTries {
		if w.bucket.sendLog(ctx, path, name, lastPieces) == nil || agent.Sleep(ctx, time.Second) != nil {
			return
		}
	}
}

// tellDown reports why the machine shuts down, if the metadata server gives the reason.
func (w goer) tellDown(ctx context.Context) {
	w.user.name, w.right = w.disk.recall("login"), w.disk.recall("right")
	cause := ""
	if value, _ := w.cfg.Metadata.Optional(ctx, "preempted"); value == "TRUE" {
		cause = "preempted"
	} else if value, _ := w.cfg.Metadata.Optional(ctx, "maintenance-event"); strings.HasPrefix(value, "TERMINATE") {
		cause = "maintenance of its host"
	}
	w.markDown(cause)
	if cause == "" {
		cause = "told to end"
	}
	for range goingTries {
		if w.report(ctx, "down", cause) == nil || agent.Sleep(ctx, time.Second) != nil {
			return
		}
	}
}
