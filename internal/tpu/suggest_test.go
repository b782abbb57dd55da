package tpu_test

import (
	"errors"
	"testing"

	"multihost/internal/tpu"
)

func TestSuggestKnowsTheNamesOfGenerations(t *testing.T) {
	types := []string{"v4-16", "v5litepod-16", "v5litepod-64", "v5p-16", "v6e-16"}
	for word, want := range map[string]string{
		"v5e-16": "v5litepod-16", "v5e16": "v5litepod-16", "v5lite-16": "v5litepod-16", "tpu-v5e-64": "v5litepod-64",
		"trillium-16": "v6e-16", "V6E-16": "v6e-16", "v5p16": "v5p-16", "v4-61": "v4-16", "a100": "",
	} {
		if got := tpu.Suggest(word, types); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := tpu.Suggest("v5litepod", []string{"v5e", "v5p"}); got != "v5e" {
		t.Errorf("Suggest(v5litepod) = %q, want v5e", got)
	}
	for word, want := range map[string]string{"v5e16": "v5litepod-16", "trillium-256": "v6e-256", "v5litepod16": "v5litepod-16",
		"v7x-16": "tpu7x-16", "v7-16": "tpu7x-16", "tpu7-8": "tpu7x-8", "tpu-v7x-64": "tpu7x-64", "ironwood-16": "tpu7x-16"} {
		_, err := tpu.ParseType(word)
		var e *tpu.TypeError
		if !errors.As(err, &e) || len(e.Suggest) == 0 || e.Suggest[len(e.Suggest)-1] != want {
			t.Errorf("ParseType(%q): %v, %+v, want %s suggested", word, err, e, want)
		}
	}
	if got := tpu.Suggest("tpu-prefx", []string{"prefix", "tpu-prefix"}); got != "tpu-prefix" {
		t.Errorf("Suggest(tpu-prefx) = %q, want tpu-prefix", got)
	}
}
