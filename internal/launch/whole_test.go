package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"multihost/internal/remote"
)

// The connection breaks in the middle of the words of a command.
func TestAPartOfACommandIsNotRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.env = append(l.env, "LC_ALL=C.UTF-8") // in this locale a character may have several bytes
	made := filepath.Join(l.root, "made")
	exec := ExecSpec{Argv: []string{"touch", made + "é", made + "\xff", made}}
	if _, errs, end, err := execute(t, t.Context(), l, exec); err != nil || end != (ExecEnd{}) {
		t.Fatalf("whole: %+v, %v, %q", end, err, errs)
	}
	for _, name := range []string{"é", "\xff", ""} {
		if err := os.Remove(made + name); err != nil {
			t.Fatal(err)
		}
	}
	words, err := exec.words()
	if err != nil {
		t.Fatal(err)
	}
	s := spec("r", "true")
	arm, payload := []string{"r", "1"}, []byte(nil)
	for _, f := range s.files() {
		arm, payload = append(arm, strconv.Itoa(len(f))), append(payload, f...)
	}
	run := func(op string, script *remote.Program, part []byte, args ...string) {
		var out bytes.Buffer
		cmd := script.Cmd(bytes.NewReader(part), append([]string{"N"}, args...)...)
		cmd.Stdout = &out
		status, err := l.Run(t.Context(), cmd)
		if err != nil || status.Code == 0 || !strings.Contains(out.String(), "did not arrive whole") {
			t.Errorf("%s of %d bytes: %+v, %v, %q", op, len(part), status, err, out.String())
		}
	}
	for _, n := range []int{0, len("touch "), len(words) / 2, len(words) - 2} {
		run("exec", execScript, []byte(words[:n]), "0", "0", strconv.Itoa(len(words)))
	}
	for _, n := range []int{0, len(payload) / 2, len(payload) - 1} {
		run("arm", armScript, payload[:n], arm...)
	}
	if left, _ := filepath.Glob(made + "*"); len(left) > 0 {
		t.Errorf("a part of the command was run: it made %q", left)
	}
	if _, err := os.Stat(l.dir(s.Ref())); err == nil {
		t.Error("the files of the attempt were left behind")
	}
}
