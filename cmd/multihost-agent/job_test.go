//go:build linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_AGENT") != "" {
		main()
	}
	os.Exit(m.Run())
}

// The guest agent reads the program's output and may end before the program. Then the
// program must not die of SIGPIPE, because nobody else would end the run. The programs that
// it starts handle SIGPIPE in the default way.
func TestTheGuestAgentMayEndBeforeTheProgram(t *testing.T) {
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/token"):
			fmt.Fprint(w, `{"access_token": "t"}`)
		case r.Method == http.MethodPut:
			body, _ := io.ReadAll(r.Body)
			asked <- string(body)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	description := filepath.Join(dir, "job")
	text := fmt.Sprintf("run=r\nbucket=b\nstorage=%[1]s\nupload=%[1]s\nkit_sum=0\npatience=0\nlook=1\n", server.URL)
	if err := os.WriteFile(description, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "job", description)
	cmd.Env = append(os.Environ(), "BE_THE_AGENT=yes", "HOME="+dir, "MULTIHOST_ROOT_TMP="+dir, "GCE_METADATA_HOST="+strings.TrimPrefix(server.URL, "http://"))
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	for _, phase := range []string{"boot", "failed"} {
		select {
		case told := <-asked:
			if !strings.HasPrefix(told, "run=r\nphase="+phase+"\n") {
				t.Errorf("told %q, want %s", told, phase)
			}
		case <-time.After(time.Minute):
			t.Fatalf("never told of %s", phase)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var ignored uint64
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			if _, err := fmt.Sscanf(mask, "%x", &ignored); err != nil {
				t.Error(err)
			}
		}
	}
	if ignored&(1<<(syscall.SIGPIPE-1)) != 0 {
		t.Error("it ignores SIGPIPE, and so would the command")
	}
}
