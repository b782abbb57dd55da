package codesync

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// heard returns the answer to a step whose script prints these outputs. A worker may list
// three hashes.
func heard(step, out, stderr string, status remote.Status) (answer, error) {
	h := newHearing(3, nil)
	text := "welcome\n"
	for line := range strings.Lines(out) {
		text += h.Nonce + " " + line
	}
	_, _ = io.WriteString(h, text) // if the text is too long, its beginning decides
	errs := &remote.Answer{Nonce: h.Nonce}
	_, _ = io.WriteString(errs, stderr)
	return h.answer(step, errs, status)
}

func TestAnswer(t *testing.T) {
	a, b := strings.Repeat("0123456789abcdef", 4), strings.Repeat("f", 64)
	for _, tt := range []struct {
		step, out string
		want      answer // the zero answer: no answer
		err       string // part of the error's text
	}{
		{"check", "same\n", answer{word: "same"}, ""},
		{"check", "differs\n", answer{word: "differs"}, ""},
		{"check", "differs run1 " + a + "\n", answer{word: "differs", base: "run1", baseDigest: a}, ""},
		{"check", "differs ../x " + a + "\n", answer{word: "differs"}, ""},
		{"check", "differs run1 short\n", answer{word: "differs"}, ""},
		{"check", "filled 1\n", answer{}, "no answer, exit status 0"},
		{"plan", "same\n", answer{}, "no answer"},
		{"plan", "filled 3\n", answer{word: "filled", removed: 3}, ""},
		{"plan", "filled -1\n", answer{}, "no answer"},
		{"plan", "filled\n", answer{}, "no answer"},
		{"plan", "hash " + b + " " + a + "\nmissing 2\n", answer{word: "missing", missing: []string{a, b}}, ""},
		{"plan", "hash " + b + "\nhash " + a + "\nmissing 2\n", answer{word: "missing", missing: []string{a, b}}, ""},
		{"plan", "hash " + a + " " + a + "\nmissing 2 relays\n", answer{word: "missing", missing: []string{a}, relays: true}, ""},
		{"plan", "hash " + a + "\nmissing 2\n", answer{}, "no answer"},
		{"plan", "missing 0\n", answer{}, "no answer"},
		{"plan", "hash ../x\nmissing 1\n", answer{}, `plan): answer not understood: "../x"`},
		{"plan", "hash " + a + " " + a + " " + a + " " + a + "\nmissing 4\n", answer{}, `plan): answer not understood: "0123`},
		{"look", "hash " + a + "\nlacks 1 2\n", answer{word: "lacks", missing: []string{a}, removed: 2}, ""},
		{"look", "lacks 0 0\n", answer{word: "lacks"}, ""},
		{"look", "lacks 1 2\n", answer{}, "no answer"},
		{"look", "hash " + a + "\nmissing 1\n", answer{}, "no answer"},
		{"receive", "hash " + a + "\nmissing 1\nfilled 0\n", answer{word: "filled", missing: []string{a}}, ""},
		{"receive", "filled 0\nelse\n", answer{}, "no answer"},
		{"receive", "error no space\n", answer{}, "receive): no space: tar: short read"},
		{"receive", "broken pipe\n", answer{}, "transfer broke off: sync to worker (receive): pipe: tar: short read"},
		{"receive", "busy ann@laptop\n", answer{}, "a run of that name, of ann@laptop, lives there"},
		{"receive", "foreign link /data/x\n", answer{}, `is a link to "/data/x"`},
		{"receive", "foreign file\n", answer{}, "is a file of yours"},
	} {
		got, err := heard(tt.step, tt.out, "a\ntar: short read\n", remote.Status{})
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(answer{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, %q: %s", tt.step, tt.out, diff)
		}
		if tt.want.word == "" && (err == nil || !strings.Contains(err.Error(), tt.err)) || tt.want.word != "" && err != nil {
			t.Errorf("%s, %q: error %v, want %q", tt.step, tt.out, err, tt.err)
		}
	}
	for want, status := range map[string]remote.Status{
		`exit status 2: "tar: short read"`:     {Code: 2},
		`killed by SIGKILL: "tar: short read"`: {Signal: "KILL"},
	} {
		if _, err := heard("check", "same\n", "tar: short read\n", status); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", status, err, want)
		}
	}
}

// FuzzAnswer lets a worker give any answer to a step of the sync.
func FuzzAnswer(f *testing.F) {
	hash := strings.Repeat("0123456789abcdef", 4)
	for _, out := range []string{
		"same\n", "differs\n", "filled 3\n", "hash " + hash + "\nmissing 1\n", "hash ../../../etc/passwd\nmissing 1\n",
		"hash " + hash + "\nmissing 4294967296\n", "error \x1b[2J no space\n", "broken pipe\n", "hash " + hash + "\nlacks 1 2\n",
		"filled -9223372036854775808\n", "\n",
	} {
		f.Add(out, "tar: short read\n", uint8(0))
		f.Add(out, "\xff\x1b", uint8(137))
	}
	f.Fuzz(func(t *testing.T, out, stderr string, code uint8) {
		for _, step := range []string{"check", "look", "plan", "receive"} {
			ans, err := heard(step, out, stderr, remote.Status{Code: int(code)})
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

// A worker that prints without end makes progress, so it never stalls. Push must notice it
// in another way. A worker that asks for contents outside of the tree gets nothing.
func TestPushEndsWithAWorkerThatLies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	tree, err := Scan(t.Context(), Options{Dir: dir, Stall: time.Minute})
	testkit.Must(t, err)
	defer tree.Close()
	endless := func(w func(remote.Cmd) io.Writer) runnerFunc {
		return func(ctx context.Context, c remote.Cmd) (remote.Status, error) {
			for ctx.Err() == nil {
				if _, err := w(c).Write(make([]byte, 32<<10)); err != nil {
					return remote.Status{}, err
				}
			}
			return remote.Status{}, context.Cause(ctx)
		}
	}
	for name, w := range map[string]runnerFunc{
		"stdout": endless(func(c remote.Cmd) io.Writer { return c.Stdout }),
		"stderr": endless(func(c remote.Cmd) io.Writer { return c.Stderr }),
	} {
		if _, err := tree.Push(t.Context(), w, "r"); !errors.Is(err, remote.ErrFlood) {
			t.Errorf("endless %s: %v", name, err)
		}
	}
	received := 0
	liar := runnerFunc(func(_ context.Context, c remote.Cmd) (remote.Status, error) {
		c = c.Whole()
		_, call, _ := strings.Cut(c.Line, " multihost-sync ")
		nonce, step := strings.Fields(call)[2], strings.Fields(call)[3]
		answer := nonce + " hash " + strings.Repeat("ab", 32) + "\n" + nonce + " missing 1\n"
		if step == "check" {
			answer = nonce + " differs\n"
		}
		if step == "receive" {
			received++
		}
		_, err := io.WriteString(c.Stdout, answer)
		return remote.Status{}, err
	})
	if _, err := tree.Push(t.Context(), liar, "r"); err == nil || received > 0 {
		t.Errorf("a content that is not in the tree: %v, %d sent", err, received)
	}
}
