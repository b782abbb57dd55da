package launch

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"multihost/internal/remote"
)

// digestLimit is long enough to read the largest log from a slow disk.
const digestLimit = time.Hour

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Digest returns the SHA-256, in hexadecimal, of the first n bytes of the log on the
// worker. The result n is size. If the log is shorter or size is negative, n is the length
// of the log. For a large log the worker needs time to read these bytes.
func Digest(ctx context.Context, r remote.Runner, ref Ref, size int64) (sum string, n int64, err error) {
	if err := ref.check(); err != nil {
		return "", 0, err
	}
	records, err := callWithin(ctx, digestLimit, 0, r, "digest", digestScript, append(ref.args(), strconv.FormatInt(max(size, -1), 10))...)
	if err != nil {
		return "", 0, err
	}
	for _, rec := range records {
		switch rec.Word {
		case "unknown":
			return "", 0, fmt.Errorf("digest %q on %s: %w", ref.Label(), r.Name(), ErrUnknownRun)
		case "digest":
			if f := rec.Fields(2); hexDigest.MatchString(f[1]) {
				return f[1], number(f[0]), nil
			}
		}
	}
	return "", 0, &RemoteError{Worker: r.Name(), Op: "digest", Text: "no digest in the answer"}
}
