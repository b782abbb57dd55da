package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1][0] != '-' {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every client writes the whole output of each worker into a file.
func TestClientsGetWhatTheLoadServerSends(t *testing.T) {
	testkit.Need(t, "ssh-keygen")
	l, err := openLab(t.Context(), options{binary: os.Args[0], most: 3})
	testkit.Must(t, err)
	t.Cleanup(l.close)

	const size = 3<<20 + 7
	var want bytes.Buffer
	testkit.Must(t, send(&want, 0, size))
	for name, argv := range map[string][]string{
		"reference":   l.own("reference", 3, "-command", fmt.Sprintf("burst %d", size), "-view"),
		"files alone": l.own("reference", 3, "-command", fmt.Sprintf("burst %d", size)),
		"engine":      l.own("engine", 3, "-log-bytes", fmt.Sprint(size), "-view", "-rounds", "1"),
	} {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), argv[0], append(argv[1:], "-logs", dir)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%.2000s", name, err, out)
		}
		for i := range 3 {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			testkit.Must(t, err)
			if !bytes.Equal(got, want.Bytes()) {
				t.Errorf("%s: file of worker %d has %d bytes, or others, want %d", name, i, len(got), size)
			}
		}
	}
}

// If a client fails, the measurement is an error and has no figures.
func TestWhoFailsIsNotMeasured(t *testing.T) {
	testkit.Need(t, "ssh-keygen")
	l, err := openLab(t.Context(), options{binary: os.Args[0], most: 2})
	testkit.Must(t, err)
	t.Cleanup(l.close)
	for command, good := range map[string]bool{"true": true, "no-such-command": false} {
		peers, err := l.peers(t.Context(), 2, command)
		testkit.Must(t, err)
		for _, program := range []string{"reference", "engine"} {
			peers = append(peers, contestant{program, func() (cost, error) {
				return l.client(t.Context(), nil, l.own(program, 2, "-command", command)...)
			}})
		}
		for _, p := range peers {
			c, err := p.run()
			if (err == nil) != good {
				t.Errorf("%s, %s: %v", p.name, command, err)
			}
			if c.cpu == 0 || c.resident == 0 {
				t.Errorf("%s, %s: cost %+v", p.name, command, c)
			}
		}
	}
	if l.served() == 0 {
		t.Error("the load server has cost nothing")
	}
}

// The far port delays every round trip. A login takes at least four: for the versions, the key
// exchange, the authentication and the command.
func TestWorkersFarAwayAreThatFar(t *testing.T) {
	testkit.Need(t, "ssh-keygen")
	l, err := openLab(t.Context(), options{binary: os.Args[0], most: 2})
	testkit.Must(t, err)
	t.Cleanup(l.close)
	for _, program := range []string{"reference", "engine"} {
		c, err := l.client(t.Context(), nil, l.own(program, 2, "-port", fmt.Sprint(l.far))...)
		testkit.Must(t, err)
		if c.wall < 4*farAway {
			t.Errorf("%s: %v", program, c.wall)
		}
	}
}

func TestBareProcessesTellWhenTheyWereReleased(t *testing.T) {
	begin := time.Now()
	spread, err := (&lab{}).releaseBare(t.Context(), 4)
	testkit.Must(t, err)
	if spread <= 0 || spread > time.Since(begin) {
		t.Errorf("spread %v", spread)
	}
}

func TestBarThatIsMissedIsSaid(t *testing.T) {
	r := &report{}
	r.most("cost", 2, 1.25, "ms")
	r.least("speed", 1, 0.6, "")
	r.least("ratio", 9, 10, "")
	missed := r.missed()
	if len(missed) != 2 || missed[0] != "cost: 2 ms (bar: ≤ 1.25)" || missed[1] != "ratio: 9 (bar: ≥ 10)" {
		t.Errorf("missed %q", missed)
	}
}

func TestASectionThatFailsIsAMissedBar(t *testing.T) {
	r := &report{}
	r.most("cost", 1, 2, "ms")
	r.broken("code", errors.New("disk full"))
	r.took("code", 90*time.Second)
	if missed := r.missed(); len(missed) != 1 || missed[0] != "section code: disk full" {
		t.Errorf("missed %q", missed)
	}
	path := filepath.Join(t.TempDir(), "report.md")
	testkit.Must(t, r.write(path, time.Minute))
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	for _, want := range []string{"**Not measured to the end**: disk full", "It took: code 90 s.", "| cost | 1 ms | ≤ 2 | kept |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// The watch of a lease keeps its limits for memory and CPU. It runs beside the command on every
// worker.
func TestTheWatchOfALeaseIsSmall(t *testing.T) {
	t.Parallel()
	built, err := builtagent.Folder("..")
	testkit.Must(t, err)
	w, err := watchCost(t.Context(), program.In(os.DirFS(built)), 5)
	testkit.Must(t, err)
	t.Logf("%.1f MiB resident, %s a look", w.resident, w.look)
	if w.resident > mostResident || w.share() > mostShare {
		t.Errorf("the watch has %.1f MiB and takes %.3f %% of a core, want at most %v MiB and %v %%", w.resident, w.share(), mostResident, mostShare)
	}
}
