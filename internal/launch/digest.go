package launch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"multihost/internal/remote"
)

// digestLimit is long enough for a slow disk to read the largest log.
const digestLimit = time.Hour

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Digest returns the SHA-256, in hexadecimal, of the first n bytes of the log on the
// worker. n is size, or the length of the log when that is shorter or size is
// negative. The worker reads the log for it, which takes time for a large one.
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

// ReadTail returns the last n bytes that the command wrote, at most 64 KiB. It also
// finds bytes that Spec.MaxLog has kept out of the log.
func ReadTail(ctx context.Context, r remote.Runner, ref Ref, n int) ([]byte, error) {
	if err := ref.check(); err != nil {
		return nil, err
	}
	n = min(max(n, 0), 64<<10)
	nonce := remote.NewNonce()
	var raw bytes.Buffer
	out := &remote.Stream{Answer: remote.Answer{Nonce: nonce}, Raw: &bounded{w: &raw, room: n}}
	errs := &remote.Answer{Nonce: nonce}
	cmd := tailScript.Cmd(nil, append(append([]string{nonce}, ref.args()...), strconv.Itoa(n))...)
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("read the last output of %q on %s: %w", ref.Label(), r.Name(), err)
	}
	records, err := checkAnswer(r.Name(), "tail", &out.Answer, errs, status)
	if err != nil {
		return nil, err
	}
	if records[0].Word == "unknown" {
		return nil, fmt.Errorf("read the last output of %q on %s: %w", ref.Label(), r.Name(), ErrUnknownRun)
	}
	return raw.Bytes(), nil
}

// A bounded writer fails when it gets more than room bytes.
type bounded struct {
	w    io.Writer
	room int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.room -= len(p); b.room < 0 {
		return 0, remote.ErrFlood
	}
	return b.w.Write(p)
}
