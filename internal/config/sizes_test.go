package config

import "testing"

func TestASizeHasOneUnit(t *testing.T) {
	t.Parallel()
	for range 50 {
		if n, err := ParseSize("1KBMB"); err == nil {
			t.Fatalf("1KBMB is %d bytes", n)
		}
	}
	if n, err := ParseSize("2 MB"); n != 2e6 || err != nil {
		t.Errorf("2 MB: %d, %v", n, err)
	}
}

func TestALimitIsANumberOrNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"unlimited": -1, "0": 0, "12": 12} {
		if n, err := ParseLimit(text); n != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "-1", "x", "1.5"} {
		if n, err := ParseLimit(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
