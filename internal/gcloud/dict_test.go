package gcloud

import (
	"maps"
	"strings"
	"testing"
)

func TestDictsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dict map[string]string
		text string
	}{
		{map[string]string{}, ""},
		{map[string]string{"b": "2", "a": "1=1"}, "a=1=1,b=2"},
		{map[string]string{"a": "1,2", "b": "3"}, "^;^a=1,2;b=3"},
		{map[string]string{"a": "1,2;3"}, "^|^a=1,2;3"},
		{map[string]string{"^a": "1"}, "^,^^a=1"},
		{map[string]string{"a": ",;|:~@@##"}, "^::::^a=,;|:~@@##"},
	} {
		text := FormatDict(tt.dict)
		if text != tt.text {
			t.Errorf("%v: %q, want %q", tt.dict, text, tt.text)
		}
		if back, err := ParseDict(text); err != nil || !maps.Equal(back, tt.dict) {
			t.Errorf("%q: %v, %v", text, back, err)
		}
	}
	for text, want := range map[string]string{"a": "is not KEY=VALUE", "=1": "is not KEY=VALUE", "a=1,a=2": "is given twice"} {
		if _, err := ParseDict(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if d, err := ParseDict("a=1,a=1"); err != nil || d["a"] != "1" {
		t.Errorf("the same value twice: %v, %v", d, err)
	}
}
