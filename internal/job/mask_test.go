package job

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/tpu"
)

func TestMaskedWordsAreTheLongLinesOfSecrets(t *testing.T) {
	got := maskedWords([]config.EnvVar{
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

// What is shown does not depend on where the chunks end, holds no word, and is
// all that was written otherwise.
func FuzzMask(f *testing.F) {
	f.Add([]byte("token=hunter2-hunter2 ok\n"), "hunter2-hunter2", "hunter2-", uint8(0))
	f.Add([]byte("abcdefghij abcdefgh bcdefghijk"), "abcdefgh", "bcdefghijk", uint8(2))
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaab"), "aaaaaaaa", "aaaaaaaab", uint8(6))
	f.Add([]byte("\xff\x00 binary \xe2\x82\xe2\x82\xac"), "\xe2\x82\xac345678", "\x00\x00\x00\x00\x00\x00\x00\x00", uint8(1))
	f.Add([]byte("***********"), "********", "*-*-*-*-*", uint8(0))
	f.Fuzz(func(t *testing.T, text []byte, first, second string, step uint8) {
		words := maskedWords([]config.EnvVar{{Value: first, Secret: true}, {Value: second, Secret: true}})
		whole := masker{words: words}
		want := string(whole.mask(text, false))
		var got []byte
		m := masker{words: words}
		for rest := text; len(rest) > 0; {
			n := min(int(step)+1, len(rest))
			chunk := bytes.Clone(rest[:n])
			got = append(got, m.next(chunk)...)
			clear(chunk) // the caller's again
			rest = rest[n:]
		}
		got = append(got, m.rest()...)
		if string(got) != want {
			t.Fatalf("chunks of %d: %q, at once: %q", int(step)+1, got, want)
		}
		if len(words) == 0 {
			if want != string(text) {
				t.Fatalf("altered without a secret: %q", want)
			}
			return
		}
		// Each part between masks is free of words, and all parts are there in order.
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

func TestSecretsAreMaskedInTheViewAndNotInTheFile(t *testing.T) {
	rec := &Record{Run: "r", LogDir: t.TempDir()}
	var shown strings.Builder
	sink := event.SinkFunc(func(e event.Event) {
		if out, ok := e.(event.Output); ok {
			shown.Write(out.Data)
		}
	})
	log := openLog(rec, tpu.WorkerID{}, sink, [][]byte{[]byte("hunter2-hunter2")})
	text := "the token is hunter2-hunter2\nhunter2-hun"
	for i := range len(text) {
		if _, err := log.Write([]byte{text[i]}); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(text[:i+1], "\n") && !strings.HasSuffix(shown.String(), "***\n") {
			t.Errorf("a whole line was held back: %q", shown.String())
		}
	}
	log.close()
	if got, want := shown.String(), "the token is ***\nhunter2-hun"; got != want {
		t.Errorf("shown %q, want %q", got, want)
	}
	path := rec.logPath(tpu.WorkerID{})
	if got := strings.Join(lastLines(path, 9, nil), "\n"); got != text {
		t.Errorf("file has %q", got)
	}
	if got := strings.Join(lastLines(path, 9, log.view.words), "\n"); got != shown.String() {
		t.Errorf("last lines %q", got)
	}
}
