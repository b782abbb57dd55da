package launch

import (
	"errors"
	"flag"
	"runtime"
	"strconv"
	"testing"
	"time"

	"multihost/internal/testkit"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testkit.HearSignals()
	m.Run()
}

// Not parallel: it counts goroutines.
func TestNothingOfOursRunsOn(t *testing.T) {
	testkit.NoLeaks(t)
	l := newLocal(t)
	complete(t, l, spec("whole", "echo x"))
	a, err := Arm(t.Context(), l, spec("aborted", "true"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin(t, l, spec("living", "exec sleep 1000"))
	var busy *BusyError
	if _, err := Arm(t.Context(), l, spec("refused", "true")); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	stopped(t, l, Ref{"living", 1}, time.Second)
}
