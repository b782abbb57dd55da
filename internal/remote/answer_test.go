package remote

import (
	"bufio"
	"strings"
	"testing"
)

// FuzzClock checks that no answer to the question for the time gives an impossible time.
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

// The user reads the cause, and not the message of a program that failed because of it.
func TestTroubleIsTheCause(t *testing.T) {
	t.Parallel()
	const cause = "head: write error: No space left on device"
	for text, want := range map[string]string{
		"":                       "",
		"first\n" + cause + "\n": cause,
		cause + "\n\ngzip: stdout: Broken pipe\n":                                                     cause,
		"gzip: stdout: Broken pipe\n" + cause + "\n":                                                  cause,
		cause + "\nbase64: write error: Broken pipe":                                                  cause,
		cause + "\ntar: Child returned status 1\ntar: Error is not recoverable: exiting now\n":        cause,
		cause + "\ntar: Exiting with failure status due to previous errors\n":                         cause,
		"gzip: stdout: Broken pipe\n":                                                                 "gzip: stdout: Broken pipe",
		"tar: Child returned status 2\n/usr/bin/tar: Error is not recoverable: exiting now\nlogout\n": "logout",
	} {
		a := &Answer{Nonce: "N"}
		if _, err := a.Write([]byte(text + "\nN word\n")); err != nil {
			t.Fatal(err)
		}
		if got := a.Trouble(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
