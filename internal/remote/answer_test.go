package remote

import (
	"bufio"
	"strings"
	"testing"
)

// FuzzClock lets a worker answer anything when it is asked for the time.
func FuzzClock(f *testing.F) {
	f.Add("multihost-clock:1700000000123456789\n")
	f.Add("Welcome!\nmotd without newline multihost-clock:1\nmultihost-clock:2\n")
	f.Add("multihost-clock:-9223372036854775808\n")
	f.Add("multihost-clock:99999999999999999999\n")
	f.Add("multihost-clock:" + strings.Repeat("\x1b", 5000))
	f.Fuzz(func(t *testing.T, text string) {
		r := bufio.NewReader(strings.NewReader(text))
		for {
			at, err := (&measurement{}).read(r)
			if err != nil {
				if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x1b\n") {
					t.Fatalf("error of %d bytes: %q", len(err.Error()), err)
				}
				return
			}
			// JSON has no years of five digits.
			if y := at.Year(); y < 1 || y > 9999 {
				t.Fatalf("year %d", y)
			}
		}
	})
}

// FuzzPins reads known hosts files that anybody may have edited: what is taken
// is written again as it was read.
