package sshfan_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// A target is a kind of machine that the contract of SSH behaviours is checked
// on. A row that differs between two targets is a fault of the simulated one.
type target struct {
	host  sshfan.Host
	fault func(words ...string)
}

// processTarget starts a worker of the simulator's process backend, with host
// keys known to the API and key as the only one it lets in.
func processTarget(t *testing.T, key *sshfan.Identity) target {
	t.Helper()
	backend, err := worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	machine, err := backend.Start(t.Context(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1234", Hostname: "t1v-n-0123abcd-w-0",
		AuthorizedKeys: func() []string { return []string{"tester:" + key.PublicKey() + " tester"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	h := hostAt("s0w0", net.JoinHostPort(machine.Addr(), strconv.Itoa(backend.Port())))
	h.Keys = func(context.Context) ([]string, error) {
		var lines []string
		for algo, blob := range machine.HostKeys() {
			lines = append(lines, algo+" "+blob)
		}
		return lines, nil
	}
	return target{host: h, fault: func(words ...string) {
		t.Helper()
		fault, err := worker.ParseFault(words...)
		if err == nil {
			err = machine.SetFault(fault)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}
}

func TestContract(t *testing.T) {
	testkit.NoLeaks(t)
	id := newIdentity(t)
	target := processTarget(t, id)
	settings := func(c *sshfan.Config) {
		c.Identity = id
		c.KeepAlive = 500 * time.Millisecond
		c.RetryFor = 30 * time.Second
	}
	c := connect(t, newFleet(t, settings), target.host)

	for _, row := range []struct {
		name, line     string
		stdin          string
		stdout, stderr string
		status         sshfan.Status
	}{
		{name: "success", line: "true"},
		{name: "exit status", line: "exit 7", status: sshfan.Status{Code: 7}},
		{name: "exit by signal", line: "kill -KILL $$", status: sshfan.Status{Code: 137, Signal: "KILL"}},
		{name: "exit 137 is no signal", line: "exit 137", status: sshfan.Status{Code: 137}},
		{name: "streams are apart", line: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "input to the end", line: "cat", stdin: "a\x00\xff\n", stdout: "a\x00\xff\n"},
		{name: "no input", line: "cat; echo end", stdout: "end\n"},
		{name: "input is never read", line: "exit 3", stdin: strings.Repeat("x", 4<<20), status: sshfan.Status{Code: 3}},
		{name: "1 MiB without newline", line: "head -c 1048576 /dev/zero | tr '\\000' x", stdout: strings.Repeat("x", 1<<20)},
		{name: "words", line: sshfan.Quote("printf", "%s|", "a b", "it's $HOME", "a\nb"), stdout: "a b|it's $HOME|a\nb|"},
		{name: "script", line: sshfan.Script("bash", `echo "$#:$1"`, "a b", ""), stdout: "2:a b\n"},
		{name: "login", line: "id -un >/dev/null; cd && test \"$PWD\" = \"$HOME\" && echo $USER", stdout: "tester\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			cmd := sshfan.Cmd{Line: row.line, Stdout: &out, Stderr: &errs}
			if row.stdin != "" {
				cmd.Stdin = strings.NewReader(row.stdin)
			}
			status, err := c.Run(t.Context(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			if status != row.status || out.String() != row.stdout || errs.String() != row.stderr {
				t.Errorf("got %+v, %.60q, %.60q; want %+v, %.60q, %.60q",
					status, out.String(), errs.String(), row.status, row.stdout, row.stderr)
			}
		})
	}

	t.Run("closing the session leaves the process", func(t *testing.T) {
		var pid lockedBuffer
		s, err := c.Start(t.Context(), sshfan.Cmd{Line: "echo $$; exec sleep 60 </dev/null >/dev/null 2>&1", Stdout: &pid})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the process id", func() bool { return strings.HasSuffix(pid.String(), "\n") })
		s.Close()
		line := fmt.Sprintf("kill -0 %[1]s && kill -KILL %[1]s", strings.TrimSpace(pid.String()))
		if _, _, status := run(t, c, line); status.Code != 0 {
			t.Errorf("the process ended with its session: %+v", status)
		}
	})
	t.Run("frozen peer", func(t *testing.T) {
		s, err := c.Start(t.Context(), sshfan.Cmd{Line: "sleep 60"})
		if err != nil {
			t.Fatal(err)
		}
		target.fault("freeze")
		if _, err := s.Wait(); !errors.Is(err, sshfan.ErrConnectionLost) {
			t.Errorf("got %v, want ErrConnectionLost", err)
		}
		target.fault("clear")
		run(t, c, "true")
	})
	t.Run("cut in the middle of output", func(t *testing.T) {
		target.fault("cut", "out", "200000", "1")
		var out bytes.Buffer
		_, err := c.Run(t.Context(), sshfan.Cmd{Line: "head -c 1000000 /dev/zero", Stdout: &out})
		if !errors.Is(err, sshfan.ErrConnectionLost) || out.Len() == 0 || out.Len() >= 200000 {
			t.Errorf("got %v after %d bytes, want ErrConnectionLost before 200000", err, out.Len())
		}
		run(t, c, "true")
	})
	t.Run("key refused, then accepted", func(t *testing.T) {
		target.fault("refuse-auth", "2")
		run(t, connect(t, newFleet(t, settings), target.host), "true")
	})
	t.Run("host key changed", func(t *testing.T) {
		before, err := target.host.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		target.fault("rotate-host-keys")
		h := target.host
		h.Keys = func(context.Context) ([]string, error) { return before, nil }
		refused(t, newFleet(t, settings), h, sshfan.StageHostKey)
		run(t, connect(t, newFleet(t, settings), target.host), "true")
	})
	t.Run("reboot", func(t *testing.T) {
		c := connect(t, newFleet(t, settings), target.host)
		target.fault("reboot", "300ms")
		run(t, c, "true")
	})
	t.Run("clock", func(t *testing.T) {
		if offset, err := c.MeasureClock(t.Context()); err != nil || offset.Abs() > time.Second {
			t.Errorf("got %s, %v", offset, err)
		}
	})
}
