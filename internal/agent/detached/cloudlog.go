//go:build unix

package detached

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/agent"
)

// A cloudLog sends the command's output to Cloud Logging.
type cloudLog struct{ *worker }

func (w cloudLog) logDir() string { return filepath.Join(w.cfg.Root, "/var/log/multihost", w.job.Run) }

// linkLog links the log of the attempt under a name that contains the worker.
func (w cloudLog) linkLog() {
	name := strings.ReplaceAll(logName(w.me, w.m.attempt), "/", "_")
	path := filepath.Join(w.logDir(), name)
	if os.MkdirAll(w.logDir(), 0o755) == nil {
		os.Remove(path)
		_ = os.Symlink(w.disk.attempt(w.m.attempt, "output.log"), path)
	}
}

// logEnd writes how the attempt ended to a file beside the logs. The logs themselves have
// the command's output only.
func (w cloudLog) logEnd(reason string) {
	if os.MkdirAll(w.logDir(), 0o755) != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(w.logDir(), fmt.Sprintf("ends_slice_%d_worker_%d", w.me.Slice, w.me.Worker)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	if reason != "" {
		reason = ": " + oneLine(reason)
	}
	fmt.Fprintf(f, "multihost: attempt %d ended on slice %d worker %d at %s with exit status %s%s\n",
		w.m.attempt, w.me.Slice, w.me.Worker, time.Now().UTC().Format("2006-01-02T15:04:05Z"), w.m.endCode, reason)
}

// Google's Ops Agent, which sends the command's log to Cloud Logging.
const (
	opsAgentService = "google-cloud-ops-agent"
	opsAgentScript  = "https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh"
	opsAgentLimit   = 15 * time.Minute // longest time to install it
	opsAgentTries   = 4
	dpkgLock        = "/var/lib/dpkg/lock-frontend"
	dpkgWait        = 10 * time.Second
	dpkgTries       = 60
)

// opsAgent makes Google's Ops Agent send the command's log to Cloud Logging. It replaces
// the whole configuration, because the agent refuses a configuration in which a section
// occurs twice.
func (w cloudLog) opsAgent(ctx context.Context) {
	if _, ok := w.root(ctx, time.Minute, "systemctl", "cat", opsAgentService); !ok && !w.installOpsAgent(ctx) {
		agent.Note(w.cfg.Out, "the Ops Agent could not be installed: Cloud Logging gets nothing; see %s", w.disk.path("ops-agent.log"))
		return
	}
	path := filepath.Join(w.cfg.Root, "/etc/google-cloud-ops-agent/config.yaml")
	text := []byte(fmt.Sprintf(opsAgentConfig, w.job.Run, w.job.Run, w.logDir()+"/*", w.job.Run, w.job.Run))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return
	}
	if os.MkdirAll(filepath.Dir(path), 0o755) == nil && agent.WriteFile(path, text, 0o644) == nil {
		if _, ok := w.root(ctx, 5*time.Minute, "systemctl", "restart", opsAgentService); ok {
			return
		}
	}
	agent.Note(w.cfg.Out, "the Ops Agent could not be restarted")
}

const opsAgentConfig = `# Written by multihost for run %s.
logging:
  receivers:
    %s_log:
      type: files
      include_paths: [%s]
      record_log_file_path: true
  service:
    pipelines:
      %s_pipeline:
        receivers: [%s_log]
`

// root runs a program as root.
func (w cloudLog) root(ctx context.Context, limit time.Duration, args ...string) (Output, bool) {
	out, err := w.cfg.System.Run(ctx, Program{Args: args, Limit: limit, Env: []string{"LC_ALL=C"}, Merge: true})
	return out, err == nil && out.Code == 0
}

func (w cloudLog) installOpsAgent(ctx context.Context) bool {
	for range dpkgTries {
		if _, held := w.root(ctx, time.Minute, "fuser", dpkgLock); !held || agent.Sleep(ctx, dpkgWait) != nil {
			break
		}
	}
	path := w.disk.path("ops-agent.sh")
	if w.fetchOpsAgent(ctx, path) != nil {
		return false
	}
	out, ok := w.root(ctx, opsAgentLimit, "bash", path, "--also-install")
	_ = os.WriteFile(w.disk.path("ops-agent.log"), out.Out, 0o644)
	return ok
}

// fetchOpsAgent gets Google's script that installs the agent, without a token.
func (w cloudLog) fetchOpsAgent(ctx context.Context, path string) error {
	var err error
	for i := range opsAgentTries {
		if err = w.fetchPublic(ctx, opsAgentScript, path); err == nil || agent.Sleep(ctx, time.Second<<i) != nil {
			return err
		}
	}
	return err
}

func (w cloudLog) fetchPublic(ctx context.Context, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := w.cfg.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
