package overssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/hosts"
	"multihost/internal/iap"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A cloud has fixed slices and records the requests.
type cloud struct {
	testkit.FixedSlices
	mu       sync.Mutex
	lists    int
	admitted []string // slices whose host keys were read
	user     string   // the login
	writes   bool     // the key was missing, so Admit wrote it
	refuses  error
	keys     []string
	noKeys   error
}

func (c *cloud) Slices(ctx context.Context) ([]tpu.Slice, error) {
	c.mu.Lock()
	c.lists++
	c.mu.Unlock()
	return c.FixedSlices.Slices(ctx)
}

func (c *cloud) Admit(_ context.Context, s tpu.Slice, l provision.Login) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed := ""
	if s.Metadata["ssh-keys"] != "" {
		listed = " listed"
	}
	c.admitted = append(c.admitted, s.Name+" "+l.Name+listed)
	slices.Sort(c.admitted)
	return c.user, c.writes, c.refuses
}

func (c *cloud) HostKeys(_ context.Context, s tpu.Slice, worker int) ([]string, string, error) {
	return c.keys, fmt.Sprintf("%s-vm-%d", s.Name, worker), c.noKeys
}

func slice(name, uid string, workers ...tpu.Worker) tpu.Slice {
	return tpu.Slice{Name: name, UID: uid, State: "READY", Condition: tpu.Usable, Workers: workers}
}

// banner listens as an SSH server that sends its version and nothing more.
func banner(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	var group sync.WaitGroup
	t.Cleanup(func() { l.Close(); group.Wait() })
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "SSH-2.0-test\r\n")
			c.Close()
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

func TestHowWorkersAreReached(t *testing.T) {
	port := banner(t)
	inside := slice("t", "1", tpu.Worker{Internal: "10.0.0.1"})
	outside := slice("t", "1", tpu.Worker{Internal: "10.0.0.1", External: "127.0.0.1"})
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	testkit.Must(t, err)
	defer mute.Close()
	silent := Access{Port: mute.Addr().(*net.TCPAddr).Port, ConnectTimeout: 20 * time.Millisecond}
	tunnel := &iap.Proxy{}
	silentWithTunnel := silent
	silentWithTunnel.IAP = tunnel
	for _, tt := range []struct {
		story  string
		access Access
		cloud  provision.Provider
		slices []tpu.Slice
		want   Way
		said   string
		stays  bool // the choice holds for the rest of the command
	}{
		{story: "asked for", access: Access{Way: IAP}, slices: []tpu.Slice{outside}, want: IAP},
		{story: "hosts that no cloud knows", access: Access{Way: External}, cloud: hosts.HostList{}, slices: []tpu.Slice{inside}, want: Internal},
		{story: "a bastion", access: Access{Jump: make([]sshfan.JumpHost, 1), IAP: tunnel}, slices: []tpu.Slice{outside}, want: Internal},
		{story: "no worker", slices: []tpu.Slice{slice("t", "1")}, want: Internal},
		{story: "the external address answers", access: Access{IAP: tunnel}, slices: []tpu.Slice{slice("gone", "2"), outside}, want: External, stays: true},
		{story: "no external address", access: Access{Way: Auto, IAP: tunnel}, slices: []tpu.Slice{inside}, want: IAP, said: "the workers have no external addresses", stays: true},
		{story: "no external address and no tunnel", slices: []tpu.Slice{inside}, want: Internal},
		{story: "the external address does not answer", access: silentWithTunnel, slices: []tpu.Slice{outside}, want: IAP, said: "t does not answer at its external address"},
		{story: "it does not answer, and there is no tunnel", access: silent, slices: []tpu.Slice{outside}, want: External},
	} {
		said := &testkit.Recorder{}
		if tt.access.Port == 0 {
			tt.access.Port, tt.access.ConnectTimeout = port, 10*time.Second
		}
		c := &SSH{Access: tt.access, Cloud: tt.cloud}
		if got := c.Way(t.Context(), tt.slices, said); got != string(tt.want) {
			t.Errorf("%s: %s, want %s", tt.story, got, tt.want)
		}
		if stays := c.route.chosen != ""; stays != tt.stays {
			t.Errorf("%s: the choice stays: %v", tt.story, stays)
		}
		if notes := len(said.Notes()); notes > 0 != (tt.said != "") || notes > 0 && !said.Said(event.Info, tt.said) {
			t.Errorf("%s: said %+v", tt.story, said.Notes())
		}
	}
}

func TestAddressOfAWorker(t *testing.T) {
	s := slice("t", "1", tpu.Worker{Internal: "10.0.0.1", External: "34.0.0.1"}, tpu.Worker{Internal: "10.0.0.2", Port: 2222}, tpu.Worker{})
	for _, tt := range []struct {
		way    Way
		worker int
		noKeys error
		want   string
		kind   string // kind of the missing address
	}{
		{way: Internal, want: "10.0.0.1:22"},
		{way: External, want: "34.0.0.1:22"},
		{way: IAP, want: "t-vm-0:22"},
		{way: Internal, worker: 1, want: "10.0.0.2:2222"},
		{way: External, worker: 1, kind: "external"},
		{way: Internal, worker: 2, kind: "internal"},
		{way: IAP, noKeys: errors.New("away")},
	} {
		c := &SSH{Access: Access{Port: 22}, Cloud: &cloud{noKeys: tt.noKeys}}
		got, err := c.address(t.Context(), tt.way, s, tpu.WorkerID{Worker: tt.worker})
		var missing *sshfan.NoAddressError
		switch {
		case tt.kind != "":
			if !errors.As(err, &missing) || missing.Kind != tt.kind {
				t.Errorf("%+v: %v", tt, err)
			}
		case tt.noKeys != nil:
			if !errors.Is(err, tt.noKeys) {
				t.Errorf("%+v: %v", tt, err)
			}
		case err != nil || got != tt.want:
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// When several workers are dialled again, one call asks for all their addresses.
func TestAddressesAfterAReboot(t *testing.T) {
	old := slice("t", "1", tpu.Worker{Internal: "10.0.0.1"}, tpu.Worker{Internal: "10.0.0.2"})
	moved := slice("t", "1", tpu.Worker{Internal: "10.0.0.9"}, tpu.Worker{Internal: "10.0.0.8"})
	for _, tt := range []struct {
		story string
		now   []tpu.Slice
		err   error
		want  string // address of worker 1; "": an error
	}{
		{"it has another address", []tpu.Slice{moved}, nil, "10.0.0.8:22"},
		{"the API is away", nil, errors.New("away"), "10.0.0.2:22"},
		{"the slice is not listed", nil, nil, "10.0.0.2:22"},
		{"the slice was recreated", []tpu.Slice{slice("t", "2")}, nil, ""},
		{"its workers are not known", []tpu.Slice{slice("t", "1")}, nil, "10.0.0.2:22"},
	} {
		api, clock := &cloud{FixedSlices: testkit.FixedSlices{All: tt.now, Err: tt.err}}, testkit.NewJumpClock()
		c, r := &SSH{Access: Access{Port: 22}, Cloud: api, Clock: clock}, newRoster()
		for i := range old.Workers {
			next := c.addresses(Internal, old, tpu.WorkerID{Worker: i}, r)
			if first, err := next(t.Context()); err != nil || first != fmt.Sprintf("10.0.0.%d:22", i+1) || api.lists > i {
				t.Errorf("%s: at first %q, %v after %d calls", tt.story, first, err, api.lists)
			}
			got, err := next(t.Context())
			if (err != nil) != (tt.want == "") || i == 1 && got != tt.want {
				t.Errorf("%s: then %q, %v", tt.story, got, err)
			}
		}
		if api.lists != 1 {
			t.Errorf("%s: %d calls", tt.story, api.lists)
		}
		<-clock.After(rosterAge)
		r.lookUp(t.Context(), api, clock, "t")
		if api.lists != 2 {
			t.Errorf("%s: an old answer was used", tt.story)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r := newRoster()
	if _, known := r.lookUp(gone, &cloud{}, gcp.SystemClock, "t"); known || !r.at.IsZero() {
		t.Error("who was interrupted has an answer")
	}
}

func TestTheKeyIsSentToSlicesThatExist(t *testing.T) {
	id, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	testkit.Must(t, err)
	all := []tpu.Slice{slice("a", "1", tpu.Worker{}), slice("b", "2", tpu.Worker{}), slice("gone", "3")}
	said := &testkit.Recorder{}
	api := &cloud{user: "ann_example_com", writes: true}
	c := &SSH{Access: Access{Login: "ann", Identity: id}, Cloud: api}
	logins, changed, err := c.sendKeys(t.Context(), all, said)
	if err != nil || !changed || fmt.Sprint(logins) != "map[a:ann_example_com b:ann_example_com]" || fmt.Sprint(api.admitted) != "[a ann b ann]" {
		t.Errorf("%v, %v, %v; asked for %v", logins, changed, err, api.admitted)
	}
	if !said.Said(event.Info, "added the SSH key of ann_example_com to slice b") {
		t.Errorf("said %+v", said.Notes())
	}
	api.refuses = errors.New("denied")
	if _, _, err := c.sendKeys(t.Context(), all[:1], said); err == nil || err.Error() != `add the SSH key of "ann" to slice "a": denied` {
		t.Errorf("refused: %v", err)
	}
	c.Logins = map[string]string{"a": "bob"}
	if logins, changed, err := c.sendKeys(t.Context(), all, said); err != nil || changed || logins["a"] != "bob" {
		t.Errorf("logins that are given: %v, %v, %v", logins, changed, err)
	}
}

// Dial returns no error if workers do not answer.
func TestDialOfWorkersThatAreAway(t *testing.T) {
	testkit.NoLeaks(t)
	dir := t.TempDir()
	id, err := sshkey.Create(filepath.Join(dir, "key"))
	testkit.Must(t, err)
	s := slice("t", "1", tpu.Worker{Internal: "10.0.0.1"}, tpu.Worker{Internal: "10.0.0.2"})
	api := &cloud{user: "ann"}
	refused := errors.New("refused")
	c := &SSH{Access: Access{Login: "ann", Identity: id, KnownHosts: filepath.Join(dir, "known_hosts"), Port: 22, ConnectTimeout: time.Second, MaxDials: 2,
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}, Cloud: api, Clock: gcp.SystemClock}
	for _, admit := range []bool{false, true} {
		dialed, err := c.Dial(t.Context(), remote.Request{Slices: []tpu.Slice{s}, Workers: testkit.WorkerIDs(1, 2), Admit: admit, RetryFor: time.Millisecond, Sink: event.Discard})
		if err != nil {
			t.Fatal(err)
		}
		for i, err := range dialed.Errs {
			if !errors.Is(err, refused) || dialed.Conns[i].Name() != fmt.Sprintf("s0w%d", i) {
				t.Errorf("%s: %v", dialed.Conns[i].Name(), err)
			}
		}
		dialed.Close()
		if asked := len(api.admitted) > 0; asked != admit {
			t.Errorf("admit %v: keys of %v", admit, api.admitted)
		}
	}
}

func TestSettingsOfConnections(t *testing.T) {
	rules := &sshfan.SSHConfig{}
	c := &SSH{Access: Access{SSHConfig: rules}}
	r := remote.Request{Slices: []tpu.Slice{{Name: "a"}, {Name: "b"}}, Workers: testkit.WorkerIDs(2, 2), RetryFor: time.Hour}
	cfg := c.config(Internal, r)
	if cfg.AuthRetryFor != time.Millisecond || cfg.ShellTimeout != shellLimit || cfg.SSHConfig != rules || cfg.Dial != nil {
		t.Errorf("%+v", cfg)
	}
	if got := cfg.Fold([]int{1, 3}); got != "s[0-1]w1" {
		t.Errorf("folded: %s", got)
	}
	if got := cfg.AcceptCommand("s1w1"); got != "multihost hostkey forget s0w1 --tpu-prefix=b" {
		t.Errorf("command %q", got)
	}
	if got := cfg.AcceptCommand("bastion"); got != "" {
		t.Errorf("command for a bastion: %q", got)
	}
	r.Admit = true
	if cfg := c.config(IAP, r); cfg.AuthRetryFor != authRetry || cfg.SSHConfig != nil || cfg.Dial == nil {
		t.Errorf("through the tunnel: %+v", cfg)
	}
	if _, err := c.dialer(IAP)(t.Context(), "tcp", "no port"); err == nil {
		t.Error("an address without port was dialled")
	}
}

func TestAHostOfAWorker(t *testing.T) {
	api := &cloud{keys: []string{"ssh-ed25519 AAAA"}}
	c := &SSH{Access: Access{Login: "ann", Port: 22}, Cloud: api}
	s := slice("t", "77", tpu.Worker{Internal: "10.0.0.1"}, tpu.Worker{Internal: "10.0.0.2", Login: "root"})
	h := c.host(Internal, "", s, tpu.WorkerID{}, newRoster())
	if h.Name != "s0w0" || h.User != "ann" || h.Pin != "77/0" || h.Slice != "t" || !h.Cloud || h.Doubt() {
		t.Errorf("%+v", h)
	}
	if h := c.host(Internal, "bob", s, tpu.WorkerID{}, newRoster()); h.User != "bob" {
		t.Errorf("the cloud's login: %s", h.User)
	}
	if h := c.host(Internal, "bob", s, tpu.WorkerID{Worker: 1}, newRoster()); h.User != "root" {
		t.Errorf("a login of the worker's own: %s", h.User)
	}
	if keys, err := h.Keys(t.Context()); err != nil || !slices.Equal(keys, api.keys) {
		t.Errorf("keys %q, %v", keys, err)
	}
	api.noKeys = provision.ErrNoHostKeys
	if _, err := h.Keys(t.Context()); !errors.Is(err, sshfan.ErrNoHostKeys) {
		t.Errorf("without keys: %v", err)
	}
	c.Cloud = hosts.HostList{}
	own := slice("h", "", tpu.Worker{Internal: "10.0.0.1", Port: 22})
	if h := c.host(Internal, "", own, tpu.WorkerID{}, newRoster()); h.Cloud || h.Slice != "" || h.Pin != "host/10.0.0.1:22" {
		t.Errorf("a host that no cloud knows: %+v", h)
	}
}

func TestKeysAreReadAgainAfterARefusal(t *testing.T) {
	all := []tpu.Slice{{Name: "a", Metadata: map[string]string{"ssh-keys": "x", "other": "y"}}, {Name: "b"}}
	got := unlisted(all)
	if fmt.Sprint(got[0].Metadata) != "map[other:y]" || all[0].Metadata["ssh-keys"] != "x" {
		t.Errorf("%v, and the slice itself has %v", got[0].Metadata, all[0].Metadata)
	}
	if refusedKey([]error{nil, errors.New("away")}) || !refusedKey([]error{nil, fmt.Errorf("s0w1: %w", remote.ErrKeyRefused)}) {
		t.Error("a refused key is not told from other errors")
	}
}

func TestPinnedKeysAreForgotten(t *testing.T) {
	a := Access{KnownHosts: filepath.Join(t.TempDir(), "known_hosts")}
	s := slice("t", "77", tpu.Worker{})
	if removed, err := a.Forget(s, tpu.WorkerID{}); removed || err != nil {
		t.Errorf("without a file: %v, %v", removed, err)
	}
	if err := errors.Join(a.Check(), Access{}.Check()); err != nil {
		t.Errorf("check: %v", err)
	}
	testkit.Must(t, os.WriteFile(a.KnownHosts, []byte("no line of such a file\n"), 0o600))
	if err := a.Check(); err == nil || !strings.Contains(err.Error(), "known_hosts") {
		t.Errorf("check of a broken file: %v", err)
	}
}
