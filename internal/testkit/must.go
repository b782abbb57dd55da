package testkit

import "testing"

// If err is not nil, Must ends the test with it.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
