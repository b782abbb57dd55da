package sshfan_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// If a name has no address, or the name server does not answer, the error says so, for a
// host and for a bastion. The error guesses nothing about the machine, because nothing has
// reached it.
func TestANameWithoutAnAddressIsToldAsThat(t *testing.T) {
	testkit.NoLeaks(t)
	lookup := func(name, why string, found bool) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: why, Name: name, Server: "192.0.2.53:53", IsNotFound: !found, IsTimeout: why == "i/o timeout", IsTemporary: found}}
	}
	asks := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	slow := func(ctx context.Context) error {
		<-ctx.Done()
		return lookup("slow.example", "i/o timeout", true)
	}
	for name, tt := range map[string]struct {
		dial        func(context.Context) error
		jump        []sshfan.JumpHost
		says, cause string
		hint        string
	}{
		"a host": {asks(lookup("nosuch.invalid", "no such host", false)), nil,
			`connect to s0w1 (nosuch.invalid:22): the name "nosuch.invalid" has no address here: no such host`,
			"connect: its name has no address here: no such host", "HostName in ssh's configuration; ask for it with: getent hosts nosuch.invalid"},
		"a bastion": {asks(lookup("gate.invalid", "no such host", false)), []sshfan.JumpHost{{Addr: "gate.invalid:22", User: "ann"}},
			`connect to s0w1 (nosuch.invalid:22): connect to bastion gate.invalid:22: the name "gate.invalid" has no address here: no such host`,
			"", "getent hosts gate.invalid"},
		"a name server that fails": {asks(lookup("nosuch.invalid", "server misbehaving", true)), nil, `the name "nosuch.invalid" has no address here: server misbehaving`,
			"connect: its name has no address here: server misbehaving", "the name server of this machine gives no answer"},
		"a name server that times out": {asks(lookup("nosuch.invalid", "i/o timeout", true)), nil, `the name "nosuch.invalid" has no address here: i/o timeout`,
			"connect: its name has no address here: i/o timeout", "the name server of this machine gives no answer"},
		"a name server that is silent": {slow, nil, `the name "slow.example" has no address here: no answer within 50ms from the name server`,
			"connect: its name has no address here: no answer within 50ms from the name server", "the name server of this machine gives no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, func(c *sshfan.Config) {
				c.RetryFor, c.ConnectTimeout, c.Jump = time.Millisecond, 50*time.Millisecond, tt.jump
				c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return nil, tt.dial(ctx)
				}
			})
			h := hostAt("s0w1", "nosuch.invalid:22")
			h.Cloud, h.Slice = true, "t-0"
			_, errs := f.Connect(t.Context(), []sshfan.Host{h})
			var e *remote.ConnectError
			if !errors.As(errs[0], &e) || !strings.Contains(e.Error(), tt.says) || tt.cause != "" && e.Cause() != tt.cause {
				t.Fatalf("got %v (%s)\nwant %s (%s)", errs[0], e.Cause(), tt.says, tt.cause)
			}
			if hint := hintIn(e); !strings.Contains(hint, tt.hint) || strings.Contains(hint, "firewall") {
				t.Errorf("hint %q, want %q", hint, tt.hint)
			}
		})
	}
}
