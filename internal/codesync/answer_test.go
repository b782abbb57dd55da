package codesync

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// FuzzAnswer lets a worker answer anything to a step of the sync.
func FuzzAnswer(f *testing.F) {
	hash := strings.Repeat("0123456789abcdef", 4)
	for _, out := range []string{
		"multihost-sync 1 same\n", "multihost-sync 1 differs\n", "welcome\nmultihost-sync 1 filled 3\n",
		"multihost-sync 1 missing 1\n" + hash + "\n", "multihost-sync 1 missing 1\n../../../etc/passwd\n",
		"multihost-sync 1 missing 4294967296\n" + hash + "\n", "multihost-sync 1 error \x1b[2J no space\n",
		"multihost-sync 1 broken pipe\n", "multihost-sync 1 lacks 1 2\n" + hash + "\n", "multihost-sync 1 filled -9223372036854775808\n", "multihost-sync 1 \n",
	} {
		f.Add([]byte(out), []byte("tar: short read\n"), uint8(0))
		f.Add([]byte(out), []byte("\xff\x1b"), uint8(137))
	}
	f.Fuzz(func(t *testing.T, out, stderr []byte, code uint8) {
		for _, step := range []string{"check", "look", "plan", "receive"} {
			ans, err := parseAnswer(step, out, stderr, sshfan.Status{Code: int(code)})
			if err != nil {
				if len(err.Error()) > 2600 || !utf8.ValidString(err.Error()) {
					t.Errorf("%s: error of %d bytes: %q", step, len(err.Error()), err)
				}
				continue
			}
			if code != 0 || ans.removed < 0 {
				t.Errorf("%s: taken: %+v", step, ans)
			}
			for _, h := range ans.missing {
				if !hashName.MatchString(h) {
					t.Errorf("%s: asks for %q", step, h)
				}
			}
		}
	})
}

// A worker that prints without end moves, so that it never stalls: it has to be
// noticed all the same. One that asks for what is not in the tree gets nothing.
func TestPushEndsWithAWorkerThatLies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	tree, err := Scan(t.Context(), Options{Dir: dir, Stall: time.Minute})
	testkit.Must(t, err)
	defer tree.Close()
	endless := func(w func(sshfan.Cmd) io.Writer) runnerFunc {
		return func(ctx context.Context, c sshfan.Cmd) (sshfan.Status, error) {
			for ctx.Err() == nil {
				if _, err := w(c).Write(make([]byte, 32<<10)); err != nil {
					return sshfan.Status{}, err
				}
			}
			return sshfan.Status{}, context.Cause(ctx)
		}
	}
	for name, w := range map[string]runnerFunc{
		"stdout": endless(func(c sshfan.Cmd) io.Writer { return c.Stdout }),
		"stderr": endless(func(c sshfan.Cmd) io.Writer { return c.Stderr }),
	} {
		if _, err := tree.Push(t.Context(), w, "r"); !errors.Is(err, errFlood) {
			t.Errorf("endless %s: %v", name, err)
		}
	}
	received := 0
	liar := runnerFunc(func(_ context.Context, c sshfan.Cmd) (sshfan.Status, error) {
		c = c.Whole()
		answer := "missing 1\n" + strings.Repeat("ab", 32)
		if strings.Contains(c.Line, " check r ") {
			answer = "differs"
		}
		if strings.Contains(c.Line, " receive r ") {
			received++
		}
		_, err := io.WriteString(c.Stdout, marker+answer+"\n")
		return sshfan.Status{}, err
	})
	if _, err := tree.Push(t.Context(), liar, "r"); err == nil || received > 0 {
		t.Errorf("a content that is not in the tree: %v, %d sent", err, received)
	}
}
