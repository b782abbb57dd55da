package sshfan

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
func FuzzPins(f *testing.F) {
	key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1o5NLBzK3yZzTfhcU+JSjJc7XmZm5rGfKzJ9CGFoxk"
	f.Add("1234/0 " + key)
	f.Add("# comment")
	f.Add("host/10.0.0.1:22 ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIJ1o5NLBzK3yZzTfhcU+JSjJc7XmZm5rGfKzJ9CGFoxk")
	f.Add("x y AAAA////")
	f.Add("x ssh-ed25519 AAAA\x00")
	f.Fuzz(func(t *testing.T, line string) {
		pin, parsed, err := parsePin(line)
		if err != nil || parsed == nil {
			return
		}
		again, key, err := parsePin(formatPin(pin, parsed))
		if err != nil || again != pin || !sameKey(key, parsed) {
			t.Fatalf("%q: %q, %v", line, again, err)
		}
	})
}
