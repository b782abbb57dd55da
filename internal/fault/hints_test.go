package fault_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"multihost/internal/fault"
)

type hinted struct {
	hint string
	err  error
}

func (e hinted) Error() string { return "wrong" }
func (e hinted) Unwrap() error { return e.err }
func (e hinted) Hint() string  { return e.hint }

func TestHints(t *testing.T) {
	plain := errors.New("plain")
	a, b := hinted{hint: " type a\n"}, hinted{hint: "type b"}
	for _, tt := range []struct {
		name string
		err  error
		want []string
	}{
		{"no error", nil, nil},
		{"no hint", plain, nil},
		{"a hint", a, []string{"type a"}},
		{"a wrapped hint", fmt.Errorf("do it: %w", a), []string{"type a"}},
		{"the outer hint covers the inner one", hinted{"type b", a}, []string{"type b"}},
		{"so does an empty one", hinted{"", a}, nil},
		{"one a part", errors.Join(a, plain, b), []string{"type a", "type b"}},
		{"each once", errors.Join(a, fmt.Errorf("again: %w", a)), []string{"type a"}},
	} {
		if got := fault.Hints(tt.err); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
