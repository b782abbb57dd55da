package launch

import (
	"context"
	"fmt"
	"time"
)

// verdictLimit is how long a worker may take to keep a verdict.
const verdictLimit = 10 * time.Second

// KeepVerdict keeps on the worker, in one line, how an ended attempt ended as a whole:
// List tells it as Info.Verdict. A worker that is not reached within 10 s is given up.
func KeepVerdict(ctx context.Context, r Runner, ref Ref, text string) error {
	if err := ref.check(); err != nil {
		return err
	}
	records, err := callWithin(ctx, verdictLimit, verdictLimit, r, "verdict", verdictScript, append(ref.args(), text)...)
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
