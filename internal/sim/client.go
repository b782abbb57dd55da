package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"multihost/internal/fault"
	"multihost/internal/sim/cloud"
	"multihost/internal/sim/netns"
)

// stateFile is the file in a simulator's directory by which clients find the simulator.
const stateFile = "sim.json"

type stateRecord struct {
	URL     string            `json:"url"`
	PID     int               `json:"pid"`
	Started time.Time         `json:"started"`
	Env     map[string]string `json:"env"`
}

func (s *Server) writeStateFile() error {
	record := stateRecord{URL: s.BaseURL, PID: os.Getpid(), Started: s.Clock.Now(), Env: s.Env()}
	b, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(s.Config.Dir, stateFile+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(b, '\n'))
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.Config.Dir, stateFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// removeStateFile removes the file unless another simulator has replaced it.
func (s *Server) removeStateFile() error {
	record, err := readState(s.Config.Dir)
	if err != nil || record.URL != s.BaseURL || record.PID != os.Getpid() {
		return nil
	}
	return os.Remove(filepath.Join(s.Config.Dir, stateFile))
}

func readState(dir string) (stateRecord, error) {
	var record stateRecord
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return record, err
	}
	return record, json.Unmarshal(b, &record)
}

// ErrNotRunning says that no running simulator has the directory, ErrRunning that one has
// it already.
var (
	ErrNotRunning = fault.New(fault.Unavailable, "no simulator is running")
	ErrRunning    = fault.New(fault.Unavailable, "a simulator is running already")
)

// A RefusedError says that a simulator refused a request, such as a fault for a node that
// does not exist.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

// Fault returns fault.Usage.
func (e *RefusedError) Fault() fault.Kind { return fault.Usage }

// A Client controls a running simulator in this or another process.
type Client struct {
	dir    string
	record stateRecord
	http   *http.Client
}

// Open finds the running simulator with the state directory dir. If there is none, the
// error matches ErrNotRunning, and Open removes what a dead simulator left.
func Open(dir string) (*Client, error) {
	record, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open simulator in %q: %w", dir, ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("open simulator in %q: %w", dir, err)
	}
	if !alive(record.PID) {
		err := fmt.Errorf("open simulator in %q: %w: the one of process %d, started %s, is dead", dir, ErrNotRunning,
			record.PID, record.Started.Format(time.DateTime))
		return nil, errors.Join(err, cleanUp(context.Background(), dir))
	}
	return &Client{dir: dir, record: record, http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}, nil
}

// cleanUp removes what a dead simulator left in dir.
func cleanUp(ctx context.Context, dir string) error {
	err := netns.Sweep(ctx, cloud.WorkersDir(dir))
	if gone := os.Remove(filepath.Join(dir, stateFile)); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

func alive(pid int) bool {
	if pid <= 0 || zombie(pid) {
		return false
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.Signal(0))
	}
	return err == nil || errors.Is(err, os.ErrPermission)
}

// zombie reports whether a process has ended and its parent has not waited for it. Without
// /proc it returns false.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name before the state may contain parentheses.
	rest := string(stat[bytes.LastIndexByte(stat, ')')+1:])
	return strings.HasPrefix(rest, " Z")
}

// Env returns the environment variables that make programs use the simulator.
func (c *Client) Env() map[string]string { return c.record.Env }

// URL returns the address of the simulator.
func (c *Client) URL() string { return c.record.URL }

// PID returns the process that the simulator runs in.
func (c *Client) PID() int { return c.record.PID }

// Status returns the state of the simulator.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	return st, c.call(ctx, http.MethodGet, "status", nil, &st)
}

// Fault sets a fault. text has the form for ParseFault. id is for Clear. It is 0 for a
// fault that happens once and is over.
func (c *Client) Fault(ctx context.Context, text string) (id int, err error) {
	if _, err := cloud.ParseFault(text); err != nil {
		return 0, err
	}
	var reply faultReply
	err = c.call(ctx, http.MethodPost, "faults", faultRequest{Fault: text}, &reply)
	return reply.ID, err
}

// Clear ends faults and returns their number. which is an id, a name, or "all".
func (c *Client) Clear(ctx context.Context, which string) (int, error) {
	var reply clearReply
	err := c.call(ctx, http.MethodDelete, "faults/"+url.PathEscape(which), nil, &reply)
	return reply.Cleared, err
}

// Login logs the user in again, if the simulator has Config.Login.
func (c *Client) Login(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "login", nil, nil)
}

// Down asks the simulator to end. It waits until the simulator has removed everything, or
// until ctx is done. If the simulator died after Open, Down removes what it left.
func (c *Client) Down(ctx context.Context) error {
	err := c.call(ctx, http.MethodPost, "down", nil, nil)
	if errors.Is(err, ErrNotRunning) {
		return cleanUp(ctx, c.dir)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err // otherwise the simulator has ended, as asked, before it answered
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// A simulator removes its state file last.
		if record, err := readState(c.dir); err != nil || record.URL != c.record.URL || !alive(record.PID) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("end simulator: %w", context.Cause(ctx))
		}
	}
}

func (c *Client) call(ctx context.Context, method, what string, body, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.record.URL+"/sim/v1/"+what, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		// The simulator died, and another process has its number now.
		return fmt.Errorf("ask simulator of process %d: %w", c.record.PID, ErrNotRunning)
	}
	if err != nil {
		return fmt.Errorf("ask simulator of process %d: %w", c.record.PID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var reply struct{ Error struct{ Message string } }
		if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || reply.Error.Message == "" {
			return fmt.Errorf("ask simulator of process %d: %s", c.record.PID, resp.Status)
		}
		if resp.StatusCode < http.StatusInternalServerError {
			return &RefusedError{reply.Error.Message}
		}
		return errors.New(reply.Error.Message)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
