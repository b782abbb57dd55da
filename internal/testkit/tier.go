package testkit

import (
	"os"
	"testing"
)

// All reports whether MULTIHOST_TESTS is "all", as in `make test-all` and CI. Every test then
// runs. If the variable is not set, tests that call OnlyInAll are skipped, and only a part of
// expensive tables runs. Any other value fails t.
func All(t testing.TB) bool {
	t.Helper()
	switch value := os.Getenv("MULTIHOST_TESTS"); value {
	case "":
		return false
	case "all":
		return true
	default:
		t.Fatalf("MULTIHOST_TESTS=%q: want all, or nothing for the tests of `make test`", value)
		return false
	}
}

// OnlyInAll skips an expensive test in `make test`. The text see names the tests of the
// same subject that `make test` runs.
func OnlyInAll(t testing.TB, see string) {
	t.Helper()
	if !All(t) {
		t.Skipf("only `make test-all` runs this test; see %s", see)
	}
}

// Some returns every nth row of an expensive table, from the first on. In `make test-all`
// it returns all rows.
func Some[Row any](t testing.TB, rows []Row, n int) (some []Row) {
	t.Helper()
	if All(t) {
		return rows
	}
	for i := 0; i < len(rows); i += n {
		some = append(some, rows[i])
	}
	return some
}
