package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

func TestConsolesOfVMsThatDidNotAnswerAreKept(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	state := t.TempDir()
	dir := filepath.Join(state, "runs", "r")
	d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said}}, Keeper: &record.Keeper{StateDir: state}}
	keepConsoles(d, "r", errors.New("another reason"))
	if len(said.Notes()) > 0 {
		t.Errorf("said %v", said.Notes())
	}
	late := &provision.DeadlineError{Consoles: []provision.Console{{VM: "m-0-a", Meaning: "its kernel has stopped", Line: "panic", Hint: "try another", Text: "boot\npanic\n"}}}
	keepConsoles(d, "r", fmt.Errorf("more: %w", late))
	path := filepath.Join(dir, "console_m-0-a.txt")
	if text, err := os.ReadFile(path); err != nil || string(text) != "boot\npanic\n" {
		t.Errorf("kept %q, %v", text, err)
	}
	if !said.Said(event.Warn, "VM m-0-a: its kernel has stopped, its serial console says: panic; the console is kept in "+path) {
		t.Errorf("said %v", said.Notes())
	}
	testkit.Must(t, os.RemoveAll(dir))
	testkit.Must(t, os.WriteFile(dir, nil, 0o600)) // no directory can be made in place of a file
	keepConsoles(d, "r", late)
	if !said.Said(event.Warn, "the console could not be kept: ") {
		t.Errorf("said %v", said.Notes())
	}
}
