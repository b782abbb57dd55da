package codesync

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"multihost/internal/testkit"
)

// The serving command, with perl or without, ends when everything has come, or when the
// worker script is gone.
func TestServingFollowsTheWriterToItsEnd(t *testing.T) {
	t.Parallel()
	bare := t.TempDir()
	for _, program := range []string{"cat", "sleep"} {
		path, err := exec.LookPath(program)
		testkit.Must(t, err)
		testkit.Must(t, os.Symlink(path, filepath.Join(bare, program)))
	}
	gone := exec.Command("true")
	testkit.Must(t, gone.Run())
	half := []byte(noise(3, 300_000))
	for name, path := range map[string]string{"with perl": "/usr/bin:/bin", "without perl": bare} {
		for end, pid := range map[string]int{"all has come": os.Getpid(), "the script is gone": gone.Process.Pid} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				home := t.TempDir()
				spool := filepath.Join(home, ".multihost/store/incoming/relay.TOKEN")
				testkit.Must(t, os.MkdirAll(spool, 0o700))
				testkit.Must(t, os.WriteFile(filepath.Join(spool, "pid"), fmt.Appendln(nil, pid), 0o600))
				data, err := os.Create(filepath.Join(spool, "data"))
				testkit.Must(t, err)
				defer data.Close()
				_, err = data.Write(half)
				testkit.Must(t, err)

				serve := exec.CommandContext(t.Context(), "bash", "-c", serveScript, "bash", "TOKEN")
				serve.Env = []string{"HOME=" + home, "PATH=" + path}
				out, err := serve.StdoutPipe()
				testkit.Must(t, err)
				testkit.Must(t, serve.Start())
				got := make([]byte, len(half))
				_, err = io.ReadFull(out, got)
				testkit.Must(t, err)
				same(t, "what was there at first", bytes.Equal(got, half), true)
				if pid == os.Getpid() {
					_, err = data.WriteString("the rest")
					testkit.Must(t, err)
					testkit.Must(t, os.WriteFile(filepath.Join(spool, "over"), nil, 0o600))
				}
				rest, err := io.ReadAll(out)
				testkit.Must(t, err)
				testkit.Must(t, serve.Wait())
				want := ""
				if pid == os.Getpid() {
					want = "the rest"
				}
				same(t, "what came after it", string(rest), want)
			})
		}
	}
}
