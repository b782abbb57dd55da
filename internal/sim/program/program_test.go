package program

import (
	"slices"
	"testing"
)

func TestOverlay(t *testing.T) {
	got := Overlay([]string{"A=1", "B=2", "A=3"}, []string{"B=4", "C="})
	if want := []string{"A=3", "B=4", "C="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if v := Value(got, "B"); v != "4" {
		t.Errorf("B is %q", v)
	}
}

func TestFind(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		file string
		err  string
	}{
		{[]string{"sh"}, "/bin/sh", ""},
		{[]string{"/bin/sh"}, "/bin/sh", ""},
		{[]string{"none"}, "", `exec: "none": executable file not found in $PATH: file does not exist`},
		{[]string{"/none"}, "", `exec: "/none": stat /none: no such file or directory: file does not exist`},
		{nil, "", "no command specified"},
	} {
		file, err := Find("/nowhere:/bin", tt.argv)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if file != tt.file || text != tt.err {
			t.Errorf("%q: %q and %q, want %q and %q", tt.argv, file, text, tt.file, tt.err)
		}
	}
}
