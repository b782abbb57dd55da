package job

import (
	"strings"
	"testing"

	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// A living command is taken over only as what it is: the same words in a virtual
// environment and without one are two commands.
func TestSameCommand(t *testing.T) {
	for _, tt := range []struct {
		story             string
		command           string
		has, asked, lives bool
		want              string
	}{
		{"the same", "true", false, false, true, ""},
		{"the same, both in one", "true", true, true, true, ""},
		{"other words", "false", false, false, true, "asked is another command: true"},
		{"asked in one", "true", false, true, true, "asked is another command: true in a virtual environment (--venv)"},
		{"asked without", "true", true, false, true, "asked is another command: true without a virtual environment (--venv=false)"},
		{"it has ended", "true", false, true, false, "has ended on s0w0 while nobody saw it: true; asked is another command: true in a virtual environment (--venv)"},
	} {
		found := foundRun{info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Command: tt.command, Venv: tt.has, Phase: launch.Exited}, workers: []tpu.WorkerID{{}}}
		if tt.lives {
			found.info.Phase = launch.Running
		}
		r := &run{o: RunOptions{Run: "r", Argv: []string{"true"}, Venv: tt.asked}}
		err := r.sameCommand(found)
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.story, err, tt.want)
		}
	}
}
