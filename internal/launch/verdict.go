package launch

import (
	"context"
	"fmt"
	"time"

	"multihost/internal/remote"
)

// verdictLimit limits the time to reach a worker, and then the time of its answer.
const verdictLimit = 10 * time.Second

// KeepVerdict stores on the worker, in one line, how an ended attempt ended on all workers.
// List returns it as Info.Verdict. KeepVerdict gives up a worker that it cannot reach
// within 10 s.
func KeepVerdict(ctx context.Context, r remote.Runner, ref Ref, text string) error {
	return keep(ctx, r, ref, text)
}

// KeepSeen records on the worker that a user knows how the attempt ended, and that the logs
// on the worker are no longer needed. List returns this as Info.Seen. KeepSeen gives up a
// worker that it cannot reach within 10 s.
func KeepSeen(ctx context.Context, r remote.Runner, ref Ref, by string) error {
	return keep(ctx, r, ref, by, "seen")
}

func keep(ctx context.Context, r remote.Runner, ref Ref, text string, file ...string) error {
	if err := ref.check(); err != nil {
		return err
	}
	records, err := callWithin(ctx, verdictLimit, verdictLimit, r, "verdict", verdictScript, append(append(ref.args(), text), file...)...)
	if err != nil {
		return err
	}
	for _, rec := range records {
		switch rec.Word {
		case "unknown":
			return fmt.Errorf("keep the verdict of %q on %s: %w", ref.Label(), r.Name(), ErrUnknownRun)
		case "kept":
			return nil
		}
	}
	return &RemoteError{Worker: r.Name(), Op: "verdict", Text: "no word of it in the answer"}
}
