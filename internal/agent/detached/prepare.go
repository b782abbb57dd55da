//go:build unix

package detached

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

const (
	preflightLimit = 10 * time.Minute
	unpackLimit    = time.Hour
)

// A starter prepares the worker for the command, and starts it.
type starter struct {
	*worker
	ready ready
}

// ready has the results of prepare that the command needs.
type ready struct {
	numaNodes int
	numactl   bool
	venv      string // directory of the virtual environment
	path      string // PATH with the virtual environment
	secrets   []byte // NAME=VALUE, each followed by a NUL, until the command is started
}

// Exit codes for a command that could not be started.
const (
	codeUnavailable = 69
	codeIO          = 74
	codePreflight   = 76
	codePermission  = 77
	codeConfig      = 78
)

// prepare readies the worker for the command. If it fails, it returns the exit code of the
// attempt.
func (w *starter) prepare(ctx context.Context) (code int, err error) {
	w.ready = ready{}
	if w.job.Preflight != "off" {
		if err := w.preflight(ctx); err != nil {
			return codePreflight, err
		}
	}
	if code, err := w.unpackCode(ctx); err != nil {
		return code, err
	}
	if w.job.Venv {
		if err := w.makeVenv(ctx); err != nil {
			return codePreflight, err
		}
	}
	if a, err := w.op(ctx, opLimit, nil, "free", w.job.KillStale, strconv.FormatInt(w.job.Grace.Milliseconds(), 10)); err == nil {
		if holder, ok := a.get("holder"); ok {
			words := append(strings.SplitN(holder, " ", 10), make([]string, 10)...)
			return codeUnavailable, fmt.Errorf("the TPU is in use by pid %s of %s: %s; --kill-stale=all would end it", words[0], words[3], words[9])
		}
	}
	if err := w.fetchSecrets(ctx); err != nil {
		return codePermission, err
	}
	return 0, nil
}

// preflight applies the settings of the worker.
func (w *starter) preflight(ctx context.Context) error {
	path := filepath.Join(w.scratch, "preflight")
	if err := os.WriteFile(path, w.kit["preflight"], 0o600); err != nil {
		return fmt.Errorf("write the preflight: %w", plain(err))
	}
	out, err := w.cfg.System.Run(ctx, Program{Args: []string{"bash", path}, Limit: preflightLimit, Env: []string{"LC_ALL=C"}, Merge: true})
	if err != nil {
		return fmt.Errorf("preflight did not start: %w", plain(err))
	}
	answer := agent.ReadPreflight(out.Out)
	w.ready.numaNodes, w.ready.numactl = answer.NUMANodes, answer.Numactl
	for _, failed := range answer.Failed {
		agent.Note(w.cfg.Out, "%s", failed)
	}
	return answer.Refusal(w.job.Preflight)
}

// noCode is the digest of a job without code.
const noCode = "none"

// unpackCode unpacks the code into the run's directory. It does so only once, because files
// that a command changed there must survive a reboot.
func (w *starter) unpackCode(ctx context.Context) (code int, err error) {
	if w.job.CodeSum == noCode || w.disk.recall("unpacked") == w.job.CodeSum {
		return 0, nil
	}
	name, path := "script_dir_zip_"+w.job.Run+".tar.gz", w.disk.path("code.tar.gz")
	if err := w.patiently(ctx, w.job.Patience, func() error { return w.download(ctx, name, path) }); err != nil {
		return codeIO, err
	}
	if !hasSum(path, w.job.CodeSum) {
		return codeIO, fmt.Errorf("%s is not what the job was started with", name)
	}
	packed, err := os.Open(path)
	if err != nil {
		return codeIO, err
	}
	defer packed.Close()
	adopt := "no"
	if w.job.Adopt {
		adopt = "yes"
	}
	out, err := w.user.run(ctx, w.cfg.System, Program{Args: []string{"bash", "--norc", "-c", string(w.kit["unpack"]), "unpack", w.job.Run, adopt}, Stdin: packed, Limit: unpackLimit, Merge: true})
	text := strings.TrimRight(string(out.Out), "\n")
	switch {
	case err != nil:
		return codeIO, fmt.Errorf("unpack the code: %w", plain(err))
	case out.Code == 3:
		return codeConfig, fmt.Errorf("%s; another --run-name=NAME has a directory of its own, --adopt puts the files into this one", text)
	case out.Code != 0:
		return codeIO, fmt.Errorf("unpack the code: %s", text)
	}
	os.Remove(path)
	w.disk.remember("unpacked", w.job.CodeSum)
	return 0, nil
}

// makeVenv makes the virtual environment as a runner does.
func (w *starter) makeVenv(ctx context.Context) error {
	const what = "make a virtual environment (--venv): "
	a, err := w.op(ctx, venvLimit, nil, "venv", w.job.Run)
	if err != nil {
		return errors.New(what + err.Error())
	}
	if refused, ok := a.get("refused"); ok {
		missing, why, _ := strings.Cut(refused, " ")
		if strings.HasPrefix(missing, "python3-venv") {
			why = "the package python3-venv is not installed: " + why
		}
		return errors.New(what + why)
	}
	path, hasPath := a.get("path")
	dir, hasDir := a.get("venv")
	if hasPath && hasDir {
		w.ready.path, w.ready.venv = path, dir
		return nil
	}
	if text, ok := a.get("error"); ok && text != "" {
		return errors.New(what + text)
	}
	return errors.New(what + "no answer: " + a.err)
}

// fetchSecrets reads the secrets. Until the command is started, the secrets are only in
// memory.
func (w *starter) fetchSecrets(ctx context.Context) error {
	for _, secret := range w.job.Secrets {
		value, err := w.secret(ctx, secret)
		if err != nil {
			w.ready.secrets = nil
			return fmt.Errorf("read secret %s: %w", secret, err)
		}
		w.ready.secrets = append(append(append(w.ready.secrets, secret.Name+"="...), value...), 0)
	}
	return nil
}

// secret reads one secret. If the secret does not exist, secret returns at once. After any
// other error, it tries again.
func (w *starter) secret(ctx context.Context, s Secret) (value []byte, err error) {
	var answer agent.Answer
	var missing error
	url := fmt.Sprintf("%s/projects/%s/secrets/%s/versions/%s:access", w.job.SecretManager, s.Project, s.ID, s.Version)
	err = w.patiently(ctx, w.job.Patience, func() (err error) {
		answer, err = w.client.Do(ctx, agent.Call{Method: http.MethodGet, URL: url})
		if agent.StatusOf(err) == http.StatusNotFound {
			missing, err = err, nil
		}
		return err
	})
	if err == nil {
		err = missing
	}
	if err != nil {
		return nil, err
	}
	var version struct {
		Payload struct {
			Data string `json:"data"`
		} `json:"payload"`
	}
	if json.Unmarshal(answer.Body, &version) == nil {
		value, err = base64.StdEncoding.DecodeString(version.Payload.Data)
	}
	if err != nil || len(value) == 0 || bytes.IndexByte(value, 0) >= 0 {
		return nil, errors.New("the answer has no value that fits into a variable")
	}
	return value, nil
}

// attemptFiles are the files of an attempt that the operation arm reads, in this order.
// Package launch has the same list.
var attemptFiles = []string{"meta", "argv", "env", "script", "limit"}

// arm gives the command to a supervisor of the login, as a runner does over SSH. After the
// script, stdin has the files of the attempt and then the word go. The life is running if
// the command was started, and unknown if this worker has begun the attempt before.
func (w *starter) arm(ctx context.Context) (life, error) {
	if w.job.CloudLogging {
		cloudLog{w.worker}.linkLog()
	}
	files := map[string][]byte{
		"argv": wrapped(w.kit["argv"], w.ready.wrap(w.job.NUMA)),
		"env":  bytes.Join([][]byte{zeroed(w.variables()), w.kit["env"], w.ready.secrets}, nil),
	}
	w.ready.secrets = nil
	args, stdin := []string{w.job.Run, strconv.Itoa(w.m.attempt)}, []byte(nil)
	for _, name := range attemptFiles {
		data, ok := files[name]
		if !ok {
			data = w.kit[name]
		}
		args, stdin = append(args, strconv.Itoa(len(data))), append(stdin, data...)
	}
	a, err := w.op(ctx, opLimit, append(stdin, "go\n"...), "arm", args...)
	if err != nil {
		return unknown, err
	}
	return a.armed()
}

// armed reads the answer of the operation arm.
func (a answer) armed() (life, error) {
	if _, ok := a.get("started"); ok {
		return running, nil
	}
	if _, ok := a.get("already"); ok {
		return unknown, nil
	}
	if _, ok := a.get("busy"); ok {
		return unknown, errors.New("another run lives on this worker")
	}
	text := a.err
	for _, word := range []string{"error", "failed"} {
		if said, ok := a.get(word); ok {
			text = said
		}
	}
	if text == "" {
		text = "no answer"
	}
	return unknown, errors.New(text)
}

// wrap returns the words that bind the command to a NUMA node. They go in front of the
// command.
func (r ready) wrap(numa string) []string {
	if r.numaNodes < 2 || !r.numactl {
		return nil
	}
	switch numa {
	case "bind":
		return []string{"numactl", "--membind=0", "--cpunodebind=0"}
	case "preferred":
		return []string{"numactl", "--preferred=0", "--cpunodebind=0"}
	}
	return nil
}

// wrapped inserts words into the file argv, after the directory and the kind of the
// command.
func wrapped(argv []byte, words []string) []byte {
	parts := bytes.SplitAfterN(argv, []byte{0}, 3)
	if len(parts) < 3 {
		return argv
	}
	return bytes.Join([][]byte{parts[0], parts[1], zeroed(words), parts[2]}, nil)
}

// zeroed returns the words, each followed by a NUL.
func zeroed(words []string) []byte {
	var b []byte
	for _, word := range words {
		b = append(append(b, word...), 0)
	}
	return b
}

// variables returns the variables that the command gets on this worker besides the user's
// own. A name without a value is unset. Only slices with Apart need MEGASCALE variables,
// because nothing else tells such a slice of the others. In other jobs of several slices
// the variables would override the metadata. A job of one slice must have none.
func (w *starter) variables() []string {
	j, p := w.job, w.me
	v := []string{"MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT"}
	if j.Apart && j.Slices > 1 {
		v = []string{"MEGASCALE_COORDINATOR_ADDRESS=" + p.Coordinator, fmt.Sprintf("MEGASCALE_NUM_SLICES=%d", j.Slices), fmt.Sprintf("MEGASCALE_SLICE_ID=%d", p.Slice), "MEGASCALE_PORT=8081"}
	}
	v = append(v,
		fmt.Sprintf("MULTIHOST_SLICE_ID=%d", p.Slice), fmt.Sprintf("MULTIHOST_NUM_SLICES=%d", j.Slices),
		fmt.Sprintf("MULTIHOST_WORKER_ID=%d", p.Worker), fmt.Sprintf("MULTIHOST_NUM_WORKERS=%d", j.Workers),
		fmt.Sprintf("MULTIHOST_PROCESS_ID=%d", p.index(j)), fmt.Sprintf("MULTIHOST_NUM_PROCESSES=%d", j.Slices*j.Workers),
		"MULTIHOST_LOCAL_ID=0", "MULTIHOST_COORDINATOR_IP="+p.Coordinator, "MULTIHOST_WORKER_IP="+p.Own,
	)
	if j.MaxText {
		v = append(v, fmt.Sprintf("SLICE_ID=%d", p.Slice), fmt.Sprintf("WORKER_ID=%d", p.Worker), "NODE_ID="+p.Node, "ZONE="+j.Zone, "PROJECT="+j.Project)
	}
	if j.Venv {
		v = append(v, "PYTHONHOME", "VIRTUAL_ENV="+w.ready.venv, "PATH="+w.ready.path)
	}
	return v
}
