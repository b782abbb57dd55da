package testkit

import "testing"

// Must ends the test with err unless err is nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
