//go:build unix

package access

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// gcloudToken returns soon after its context ends, even if a process that gcloud started keeps
// the output open.
func TestAGcloudThatHangsIsLeft(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "pid")
	script := "#!/bin/sh\nsleep 1000 &\necho $! >" + said + ".new\nmv " + said + ".new " + said + "\nwait\n"
	testkit.WriteProgram(t, filepath.Join(dir, "gcloud"), script)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := gcloudToken(ctx)
		ended <- err
	}()
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	pid := 0
	for pid == 0 {
		select {
		case <-tick.C:
			text, _ := os.ReadFile(said)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		case err := <-ended:
			t.Fatal("gcloud did not hang:", err)
		case <-limit:
			t.Fatal("gcloud was not started")
		}
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it gave a token")
		}
	case <-limit:
		t.Error("it is waited for")
		testkit.Must(t, syscall.Kill(pid, syscall.SIGKILL))
		<-ended
	}
}
