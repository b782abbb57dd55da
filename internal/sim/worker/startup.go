//go:build linux

package worker

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// serveMetadata starts the metadata server of a machine of the process backend, on a port
// of the machine's address.
func (m *machine) serveMetadata() error {
	if m.Spec.Metadata == nil {
		return nil
	}
	ln, err := ListenTCP(m.addr, 0)
	if err != nil {
		return err
	}
	m.metaAddr = metadataAt(ln.Addr().String())
	m.metadata = &http.Server{Handler: m.Spec.Metadata, ReadHeaderTimeout: 10 * time.Second}
	m.Wg.Go(func() { _ = m.metadata.Serve(ln) }) // ends with ErrServerClosed
	return nil
}

// startup does what the guest agent does at boot: it creates the users for which the
// metadata has keys, and runs the startup script as root. It returns when the script has
// ended, by itself or with the machine.
func (m *machine) startup() {
	if m.metaAddr == "" {
		return
	}
	if m.Spec.AuthorizedKeys != nil {
		for _, line := range m.Spec.AuthorizedKeys() {
			if login, _, ok := strings.Cut(line, ":"); ok && LoginName.MatchString(login) {
				_ = os.MkdirAll(m.path("home", login), 0o755) // the next login tries again
			}
		}
	}
	m.runScript(StartupScript)
}

// shutdown does what the guest agent does when a machine ends: it runs the shutdown script
// for at most limit. If the script runs longer, the caller must kill it and wait for ended.
func (m *machine) shutdown(ctx context.Context, limit time.Duration) (ended <-chan struct{}) {
	done := make(chan struct{})
	if m.metaAddr == "" {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		m.runScript(ShutdownScript)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	case <-m.Ctx.Done():
	}
	return done
}

// runScript runs the script of that name as root, if the metadata has it. It returns when
// the script has ended, by itself or with the machine.
func (m *machine) runScript(name string) {
	script := m.metaAddr.attribute(m.Ctx, name)
	if script == "" {
		return
	}
	file := m.path("tmp", name)
	if WriteProgram(file, []byte(script)) != nil || os.MkdirAll(m.path("var/log"), 0o755) != nil {
		return
	}
	out, err := os.OpenFile(m.path("var/log", name+".log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return
	}
	defer null.Close()
	// With SUDO_UID, the stand-in of id reports root.
	env := append(environment(m, "root", m.path("root")), "SUDO_UID=0")
	proc, err := m.start("/bin/bash", []string{"/bin/bash", "-c", file}, &os.ProcAttr{
		Dir: m.root, Env: append(env, m.Spec.Env...), Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err == nil {
		_, _ = proc.Wait() // the log of the script stays on the machine
	}
}

// A metadataAt is the address of a machine's metadata server, or "".
type metadataAt string

// attribute returns a value of the metadata, or "" if there is none.
func (a metadataAt) attribute(ctx context.Context, name string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(a)+"/computeMetadata/v1/instance/attributes/"+name, nil)
	if err != nil {
		return ""
	}
	req.Header.Set("Metadata-Flavor", "Google")
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}
