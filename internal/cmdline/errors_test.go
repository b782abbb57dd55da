package cmdline

import (
	"errors"
	"testing"

	"multihost/internal/fault"
)

type hinted struct{ error }

func (hinted) Hint() string { return "type: that" }

func TestHintsOfErrors(t *testing.T) {
	t.Parallel()
	plain, cause := errors.New("x"), hinted{errors.New("x")}
	for _, tt := range []struct {
		err  error
		want string
		kind fault.Kind
	}{
		{&UsageError{Err: plain}, "", fault.Usage},
		{&UsageError{Err: cause}, "type: that", fault.Usage},
		{&UsageError{Err: cause, Advice: "type: this"}, "type: this", fault.Usage},
		{&ConfigError{Err: cause}, "type: that", fault.Configuration},
		{&ConfigError{Err: plain, Advice: "type: this"}, "type: this", fault.Configuration},
	} {
		got := tt.err.(interface{ Hint() string }).Hint()
		if got != tt.want || fault.Of(tt.err) != tt.kind {
			t.Errorf("%#v: %q, %v", tt.err, got, fault.Of(tt.err))
		}
	}
}
