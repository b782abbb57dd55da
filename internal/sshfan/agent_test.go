package sshfan_test

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// borrowed runs a command that may log in to its own worker.
func (b bench) borrowed(t *testing.T, script string, args ...string) (string, string) {
	t.Helper()
	host, port, err := net.SplitHostPort(b.addr)
	testkit.Must(t, err)
	const prelude = `
host=$1 port=$2 user=$3 key=$4
login() { # KEY USER COMMAND…
	local known
	known=$(mktemp) && printf 'peer %s\n' "$1" >"$known"
	ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$known" -o GlobalKnownHostsFile=/dev/null \
		-o HostKeyAlias=peer -o HostKeyAlgorithms="${1%% *}" -o IdentityFile=none -o LogLevel=ERROR -p "$port" -l "$2" "${@:4}" "$host" "$3" </dev/null
	local code=$?
	rm -f "$known"
	return $code
}
`
	var out, errs bytes.Buffer
	args = append([]string{"bash", "-c", prelude + script, "bash", host, port, b.login, b.conn.HostKey()}, args...)
	_, err = b.conn.Run(t.Context(), remote.Cmd{
		Line: remote.Quote(args...), Stdout: &out, Stderr: &errs, LoginTo: b.conn,
	})
	testkit.Must(t, err)
	return out.String(), errs.String()
}

// loans are the rows of the contract about Cmd.LoginTo.
func loans(t *testing.T, b bench) {
	testkit.Need(t, "ssh")
	t.Run("one login", func(t *testing.T) {
		out, errs := b.borrowed(t, `login "$key" "$user" 'echo in as $USER'; login "$key" "$user" 'echo twice' 2>/dev/null || echo refused`)
		if out != "in as "+b.login+"\nrefused\n" {
			t.Errorf("got %q, %q", out, errs)
		}
	})
	t.Run("as nobody else", func(t *testing.T) {
		out, errs := b.borrowed(t, `login "$key" root true || echo refused`)
		if out != "refused\n" || !strings.Contains(errs, "Permission denied") {
			t.Errorf("got %q, %q", out, errs)
		}
	})
	t.Run("not passed on", func(t *testing.T) {
		out, errs := b.borrowed(t, `login "$key" "$user" 'ssh-add -l 2>&1; ssh-add -L 2>&1' -A; ssh-add -L 2>&1; ssh-add -D 2>&1`)
		if strings.Contains(out, "ssh-ed25519") || !strings.Contains(out, "no identities") || strings.Contains(out, "removed") {
			t.Errorf("got %q, %q", out, errs)
		}
	})
	t.Run("over when the command is", func(t *testing.T) {
		out, errs := b.borrowed(t, `echo "$SSH_AUTH_SOCK"`)
		socket := strings.TrimSpace(out)
		if socket == "" {
			t.Fatalf("no socket: %q", errs)
		}
		testkit.Eventually(t, "the socket to go", func() bool {
			_, _, status := run(t, b.conn, "test -e "+remote.Quote(socket))
			return status.Code != 0
		})
		if out, _, _ := run(t, b.conn, "echo $SSH_AUTH_SOCK"); out != "\n" {
			t.Errorf("a command without LoginTo has an agent: %q", out)
		}
	})
	t.Run("another worker is not logged in to", func(t *testing.T) {
		// The command takes its agent to a host that is not in LoginTo.
		other := processTarget(t, b.id)
		host, port, err := net.SplitHostPort(other.addr)
		testkit.Must(t, err)
		out, errs := b.borrowed(t, `host=$5 port=$6; login "$7" "$user" true || echo refused`, host, port, ed25519Of(other.keys()))
		if out != "refused\n" || !strings.Contains(errs, "Permission denied") {
			t.Errorf("got %q, %q", out, errs)
		}
	})
	t.Run("sshd forwards an agent once a connection", func(t *testing.T) {
		c := b.client(t)
		testkit.Must(t, agent.ForwardToAgent(c, agent.NewKeyring()))
		for n, want := range []bool{true, false} {
			s, err := c.NewSession()
			testkit.Must(t, err)
			if err := agent.RequestAgentForwarding(s); (err == nil) != want {
				t.Errorf("request %d: %v", n+1, err)
			}
			out, err := s.Output("echo $SSH_AUTH_SOCK")
			if err != nil || len(out) < 2 {
				t.Errorf("session %d has no agent: %q, %v", n+1, out, err)
			}
		}
	})
}

func ed25519Of(keys []string) string {
	for _, k := range keys {
		if strings.HasPrefix(k, ssh.KeyAlgoED25519+" ") {
			return k
		}
	}
	return ""
}
