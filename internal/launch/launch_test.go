package launch

import (
	"testing"
	"time"
)

func TestACommandRunsAndEnds(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	begin := time.Now()
	out, exit := complete(t, l, spec("hello", "echo hello; echo world >&2; printf tail"))
	if want := "hello\nworld\ntail"; out != want {
		t.Errorf("output: got %q, want %q", out, want)
	}
	if exit.Code != 0 || exit.Signal != "" || exit.LogSize != 16 || exit.Reason != "" || exit.Lost {
		t.Errorf("exit: got %+v", exit)
	}
	if exit.End.Before(begin) || exit.End.After(time.Now()) {
		t.Errorf("end: got %v", exit.End)
	}
	s, err := Status(t.Context(), l, Ref{"hello", 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
}
