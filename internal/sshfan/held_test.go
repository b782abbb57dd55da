package sshfan_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	if kind := os.Getenv("SSHFAN_TEST_HOLD"); kind != "" {
		if err := hold(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.HearSignals()
	os.Exit(m.Run())
}

// A held worker runs in another program.
type held struct {
	Addr string
	Keys []string // host keys
}

// hold runs a simulator with one worker until its input ends.
func hold(kind string) error {
	var backend worker.Backend
	var err error
	root := os.Getenv("SSHFAN_TEST_ROOT")
	if kind == "netns" {
		backend, err = netns.New(netns.Config{Root: root})
	} else {
		backend, err = worker.NewProcess(worker.ProcessConfig{Root: root})
	}
	if err != nil {
		return err
	}
	key := os.Getenv("SSHFAN_TEST_KEY")
	machine, err := backend.Start(context.Background(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1234", IP: "10.255.78.2",
		AuthorizedKeys: func() []string { return []string{"tester:" + key + " tester"} },
	})
	if err == nil {
		h := held{Addr: net.JoinHostPort(machine.Addr(), strconv.Itoa(backend.Port()))}
		for algo, blob := range machine.HostKeys() {
			h.Keys = append(h.Keys, algo+" "+blob)
		}
		err = json.NewEncoder(os.Stdout).Encode(h)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if closeErr := backend.Close(); err == nil {
		err = closeErr
	}
	return err
}

// unkind starts a simulator in a bad environment: as nohup does, in the background of a
// script, or from a program that blocks signals and keeps files open.
const unkind = `trap '' HUP INT QUIT PIPE TSTP TTIN TTOU USR1
umask 077
exec 7<"$0" 9>>/dev/null
exec env --block-signal=USR2 --block-signal=TERM --block-signal=CHLD "$0"`

func heldTarget(kind string) func(t *testing.T, key *sshkey.Identity) target {
	return func(t *testing.T, key *sshkey.Identity) target {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("bash", "-c", unkind, self)
		cmd.Env = append(os.Environ(), "SSHFAN_TEST_HOLD="+kind, "SSHFAN_TEST_ROOT="+filepath.Join(t.TempDir(), "workers"), "SSHFAN_TEST_KEY="+key.PublicKey())
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("the simulator: %v", err)
			}
		})
		var h held
		if err := json.NewDecoder(bufio.NewReader(out)).Decode(&h); err != nil {
			t.Fatalf("start of the simulator: %v", err)
		}
		return target{addr: h.Addr, login: "tester", keys: func() []string { return h.Keys }, asRoot: true, fewFiles: kind == "netns"}
	}
}

// However the simulator was started, its commands start in the same state as under a
// system's sshd.
func TestContractOfCommandsWhereTheSimulatorWasStartedUnkindly(t *testing.T) {
	testkit.NoLeaks(t)
	for _, kind := range []string{"process", "netns"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if kind == "netns" {
				simworker.NeedNetns(t)
			}
			benchOf(t, heldTarget(kind)).commands(t)
		})
	}
}
