package mask

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
)

func TestMaskedWordsAreTheLongLinesOfSecrets(t *testing.T) {
	got := MaskedWords([]config.EnvVar{
		{Name: "A", Value: "hunter2-hunter2\n", Secret: true},
		{Name: "B", Value: "not a secret"},
		{Name: "C", Value: "short", Secret: true},
		{Name: "KEY", Value: "-----BEGIN-----\r\n  base64base64\n\n-----BEGIN-----", Secret: true},
	})
	want := [][]byte{[]byte("-----BEGIN-----"), []byte("hunter2-hunter2"), []byte("base64base64")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}

// The shown text is the same for all divisions into chunks. It lacks every secret word and has
// all other bytes.
func FuzzMask(f *testing.F) {
	f.Add([]byte("token=hunter2-hunter2 ok\n"), "hunter2-hunter2", "hunter2-", uint8(0))
	f.Add([]byte("abcdefghij abcdefgh bcdefghijk"), "abcdefgh", "bcdefghijk", uint8(2))
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaab"), "aaaaaaaa", "aaaaaaaab", uint8(6))
	f.Add([]byte("\xff\x00 binary \xe2\x82\xe2\x82\xac"), "\xe2\x82\xac345678", "\x00\x00\x00\x00\x00\x00\x00\x00", uint8(1))
	f.Add([]byte("***********"), "********", "*-*-*-*-*", uint8(0))
	f.Fuzz(func(t *testing.T, text []byte, first, second string, step uint8) {
		words := MaskedWords([]config.EnvVar{{Value: first, Secret: true}, {Value: second, Secret: true}})
		whole := Masker{Words: words}
		want := string(whole.Mask(text, false))
		var got []byte
		m := Masker{Words: words}
		for rest := text; len(rest) > 0; {
			n := min(int(step)+1, len(rest))
			chunk := bytes.Clone(rest[:n])
			got = append(got, m.Next(chunk)...)
			clear(chunk) // Next must not keep the chunk
			rest = rest[n:]
		}
		got = append(got, m.Rest()...)
		if string(got) != want {
			t.Fatalf("chunks of %d: %q, at once: %q", int(step)+1, got, want)
		}
		if len(words) == 0 {
			if want != string(text) {
				t.Fatalf("altered without a secret: %q", want)
			}
			return
		}
		// Each part between masks has no words, and all parts are there in order.
		at := 0
		for part := range strings.SplitSeq(want, "***") {
			for _, w := range words {
				if !bytes.Contains(w, []byte("***")) && strings.Contains(part, string(w)) {
					t.Fatalf("%q is shown in %q", w, want)
				}
			}
			i := bytes.Index(text[at:], []byte(part))
			if i < 0 {
				t.Fatalf("part %q of %q is not in the text", part, want)
			}
			at += i + len(part)
		}
	})
}
