package launch

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

func execute(t *testing.T, ctx context.Context, l *local, spec ExecSpec) (stdout, stderr string, end ExecEnd, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	end, err = Exec(ctx, l, spec, &out, &errs)
	return out.String(), errs.String(), end, err
}

func TestExecPassesEveryByteAndTheStatus(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.sh = filepath.Join(l.root, "bin", "login")
	l.write("bin/login", "#!/bin/sh\necho noise; printf noise >&2\nexec bash \"$@\"\n", 0o755)
	for _, test := range []struct {
		argv        []string
		out, errs   string
		code        int
		cannotBegin bool
	}{
		{argv: []string{"printf", `%s|`, "a b", "", "'\"$x\n", "-n"}, out: "a b||'\"$x\n|-n|"},
		{argv: []string{"bash", "-c", `printf 'o\0\377no newline'; printf 'err' >&2; exit 7`}, out: "o\x00\xffno newline", errs: "err", code: 7},
		{argv: []string{"bash", "-c", "cat; pwd; kill -s KILL $$"}, out: l.home() + "\n", code: 137},
		{argv: []string{"bash", "-c", "trap 'echo caught' INT; kill -s INT $$"}, out: "caught\n"},
		{argv: []string{"no-such-program"}, code: 127, cannotBegin: true},
		{argv: []string{"/etc"}, code: 126, cannotBegin: true},
	} {
		out, errs, end, err := execute(t, t.Context(), l, ExecSpec{Argv: test.argv})
		if err != nil || out != test.out || end != (ExecEnd{Code: test.code}) || !test.cannotBegin && errs != test.errs || test.cannotBegin && !strings.Contains(errs, test.argv[0]) {
			t.Errorf("%q: %q, %q, %+v, %v", test.argv, out, errs, end, err)
		}
	}
	if _, _, _, err := execute(t, t.Context(), l, ExecSpec{Argv: []string{"a\x00b"}}); err == nil {
		t.Error("a NUL byte is taken")
	}
}

// stubborn is a command that ignores TERM. Some of its descendants have left its session.
const stubborn = `trap '' TERM; echo $$; setsid bash -c 'trap "" TERM; echo $$; exec -a stray sleep 600' & sleep 600; wait`

func pidsOf(t *testing.T, file string) (pids []string) {
	t.Helper()
	testkit.Eventually(t, "the command has begun", func() bool {
		text, _ := os.ReadFile(file)
		pids = strings.Fields(string(text))
		return len(pids) == 2
	})
	return pids
}

func gone(t *testing.T, pids []string) {
	t.Helper()
	testkit.Eventually(t, "the processes have ended", func() bool {
		return !slices.ContainsFunc(pids, func(pid string) bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err == nil && !bytes.Contains(stat, []byte(") Z "))
		})
	})
}

func TestExecLeavesNothingWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	file := filepath.Join(l.root, "pids")
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, end, err := execute(t, ctx, l, ExecSpec{Argv: []string{"bash", "-c", "{ " + stubborn + "; } >" + file}, Grace: 300 * time.Millisecond})
		if !errors.Is(err, cause) || !end.Stopped {
			t.Errorf("%+v, %v", end, err)
		}
	}()
	pids := pidsOf(t, file)
	cancel(cause)
	<-ended
	gone(t, pids)
}

func TestExecLeavesNothingWhenTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	file := filepath.Join(l.root, "pids")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _, err := execute(t, t.Context(), l, ExecSpec{Argv: []string{"bash", "-c", "{ " + stubborn + "; } >" + file}})
		if !errors.Is(err, remote.ErrConnectionLost) {
			t.Errorf("%v", err)
		}
	}()
	pids := pidsOf(t, file)
	l.cutNow()
	<-ended
	gone(t, pids)
}

func TestExecIsNotHeldByWhatTheCommandLeftBehind(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	file := filepath.Join(l.root, "pids")
	out, _, end, err := execute(t, t.Context(), l, ExecSpec{Argv: []string{"bash", "-c", "echo before; sleep 600 & echo $$ $! >" + file + "; exit 3"}})
	if err != nil || out != "before\n" || end != (ExecEnd{Code: 3, Held: true}) {
		t.Errorf("%q, %+v, %v", out, end, err)
	}
	sleeper := pidsOf(t, file)[1]
	if _, err := os.Stat("/proc/" + sleeper); err != nil {
		t.Errorf("what was left behind was ended: %v", err)
	}
}

func TestExecWritesOfAnyLengthAndMarksAnywhere(t *testing.T) {
	t.Parallel()
	mark := []byte("mh0123")
	for _, text := range []string{"", "m", "mh", "mmh", "mh012mh012", strings.Repeat("mh012", 50), "x"} {
		for size := 1; size < 9; size++ {
			var raw bytes.Buffer
			var told []string
			w := &trailer{mark: mark, raw: &raw, tell: func(line string) { told = append(told, line) }}
			whole := []byte(text + string(mark) + " exit 1\nrest\n")
			for len(whole) > 0 {
				n := min(size, len(whole))
				if _, err := w.Write(whole[:n]); err != nil {
					t.Fatal(err)
				}
				whole = whole[n:]
			}
			if raw.String() != text || len(told) != 1 || told[0] != "mh0123 exit 1" {
				t.Fatalf("%q in pieces of %d: %q, %q", text, size, raw.String(), told)
			}
		}
	}
}
