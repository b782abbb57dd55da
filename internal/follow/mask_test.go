package follow

import (
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/tpu"
)

func TestSecretsAreMaskedInTheViewAndNotInTheFile(t *testing.T) {
	rec := &record.Record{Run: "r", LogDir: t.TempDir()}
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
	path := rec.LogPath(tpu.WorkerID{})
	if got := strings.Join(LastLines(path, 9, nil), "\n"); got != text {
		t.Errorf("file has %q", got)
	}
	if got := strings.Join(LastLines(path, 9, log.view.Words), "\n"); got != shown.String() {
		t.Errorf("last lines %q", got)
	}
}
