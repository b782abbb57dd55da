package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Size of the directory to sync. Two thirds of it are text, which compresses to a third of its
// size. The rest does not compress.
const (
	codeFiles   = 5000
	codeBytes   = 200_000_000
	codeWorkers = 2
	changedFile = 20_000 // bytes that do not compress
)

// measureCode measures the cost of syncing a large directory to the workers, and of
// syncing it again.
func measureCode(ctx context.Context, l *lab, r *report) error {
	r.section("Code", fmt.Sprintf(`
`+"`multihost run --command=true`"+` ships a directory of %d files and %d MB to %d workers of the simulator. Each run has a new name
and so a new directory. "Sent" is all that the runner sends to one worker in the whole run, counted by a proxy: it includes
the SSH handshake and every operation. The changed file has %d bytes that do not compress.`,
		codeFiles, codeBytes/1_000_000, codeWorkers, changedFile))
	s, err := l.simulate(ctx, fmt.Sprintf("%dxv5litepod-8", codeWorkers)) // slices of one worker each
	if err != nil {
		return err
	}
	defer s.close()
	// The first run registers our key through the API. Later runs reach the workers through
	// --hosts.
	if _, err := s.run(ctx, "warm", "--tpu-prefix=b", "--command=true"); err != nil {
		return err
	}
	hosts, err := s.hosts(ctx, codeWorkers)
	if err != nil {
		return err
	}
	if err := makeCode(s.project); err != nil {
		return err
	}
	rows := [][]string{{"run", "wall s", "runner's CPU s", "sent to a worker, kB"}}
	sent := map[string]float64{}
	cpu := map[string]time.Duration{}
	for _, run := range []string{"first", "unchanged", "changed"} {
		if run == "changed" {
			if err := noise(filepath.Join(s.project, "pkg7", "module7.py"), changedFile, 99); err != nil {
				return err
			}
		}
		before := s.sent()
		c, err := s.run(ctx, run, "--hosts="+hosts, "--command=true", "--relay=off")
		if err != nil {
			return err
		}
		sent[run] = float64(s.sent()-before) / codeWorkers
		cpu[run] = c.cpu
		rows = append(rows, []string{run, seconds(c.wall), seconds(c.cpu), fmt.Sprintf("%.1f", sent[run]/1000)})
	}
	r.table(rows)
	r.most("sent to a worker in a run with nothing new", sent["unchanged"]/1000, 24, "kB")
	r.most("sent to a worker for one changed file, minus that file and what a run with nothing new sends", (sent["changed"]-sent["unchanged"]-changedFile)/1000, 4, "kB")
	r.most("runner's CPU of the run after one changed file, × the first run", cpu["changed"].Seconds()/cpu["first"].Seconds(), 0.25, "")
	return nil
}

// fewRounds is how often a run of half a second is measured. One run in three takes a tenth of
// a second longer than the others.
const fewRounds = 5

// Number and size of the files of measureManyFiles. Files of a Python virtual environment are
// as small.
const (
	manyFiles = 20_000
	manySize  = 2000 // bytes
)

// measureManyFiles measures two syncs to a worker that has many files: of one changed file, and
// of another directory.
func measureManyFiles(ctx context.Context, l *lab, r *report) error {
	r.section("Many small files", fmt.Sprintf(`
`+"`multihost run --command=true`"+` brings a directory of %d files of %d bytes to one worker of the simulator. The runs "small"
bring a directory with one new file to another run directory of the same login. The two whose quotient has a bar are medians of %d.`,
		manyFiles, manySize, fewRounds))
	s, err := l.simulate(ctx, "1xv5litepod-8")
	if err != nil {
		return err
	}
	defer s.close()
	small := filepath.Join(s.dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		return err
	}
	for i := range manyFiles {
		pkg := filepath.Join(s.project, fmt.Sprint("pkg", i%200))
		if err := os.MkdirAll(pkg, 0o755); err != nil {
			return err
		}
		if err := noise(filepath.Join(pkg, fmt.Sprint(i)), manySize, uint64(i)); err != nil {
			return err
		}
	}
	rows := [][]string{{"run", "wall s"}}
	wall := map[string]float64{}
	seed := uint64(manyFiles)
	for _, run := range []struct {
		what, name, changed string
		times               int
	}{
		{"small, empty store", "small", filepath.Join(small, "file"), 1},
		{"small, one changed file", "small", filepath.Join(small, "file"), fewRounds},
		{"first", "many", "", 1},
		{"unchanged", "many", "", 1},
		{"one changed file", "many", filepath.Join(s.project, "pkg7", "7"), 1},
		{"small, one changed file, all stored", "small", filepath.Join(small, "file"), fewRounds},
	} {
		dir := s.project
		if run.name == "small" {
			dir = small
		}
		var all []cost
		for range run.times {
			seed++
			if run.changed != "" {
				if err := noise(run.changed, manySize, seed); err != nil {
					return err
				}
			}
			c, err := s.run(ctx, run.name, "--tpu-prefix=b", "--script-dir="+dir, "--command=true")
			if err != nil {
				return err
			}
			all = append(all, c.cost)
		}
		took := median(all, func(c cost) time.Duration { return c.wall })
		wall[run.what] = took.Seconds()
		rows = append(rows, []string{run.what, seconds(took)})
	}
	r.table(rows)
	r.most("one changed file among 20,000, beyond a run with nothing new", wall["one changed file"]-wall["unchanged"], 1, "s")
	r.most("one changed file by itself, × the time before 20,000 others were stored", wall["small, one changed file, all stored"]/wall["small, one changed file"], 1.2, "")
	return nil
}

// makeCode fills dir with files of equal size.
func makeCode(dir string) error {
	const size = codeBytes / codeFiles
	words := strings.Fields("def return self import jax numpy array config train step loss for in range if else None True print layer")
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range codeFiles {
		pkg := filepath.Join(dir, fmt.Sprint("pkg", i%50))
		if err := os.MkdirAll(pkg, 0o755); err != nil {
			return err
		}
		path := filepath.Join(pkg, fmt.Sprintf("module%d.py", i))
		if i%3 == 0 {
			if err := noise(path, size, uint64(i)); err != nil {
				return err
			}
			continue
		}
		var text strings.Builder
		for text.Len() < size {
			text.WriteString(words[rng.IntN(len(words))])
			text.WriteByte(" \n"[rng.IntN(8)/7])
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// noise writes a file of bytes that do not compress.
func noise(path string, size int, seed uint64) error {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data) // never fails
	return os.WriteFile(path, data, 0o644)
}

var relayed = regexp.MustCompile(`relayed: (\d+) bytes \(([\d.]+) of one copy\) in (\S+); direct (\S+): ([\d.]+) times as long`)

// measureRelay measures how workers behind a narrow link pass files on to each other. It runs
// TestRelayOnANarrowLink at full size.
func measureRelay(ctx context.Context, l *lab, r *report) error {
	r.section("Passing files on", `
64 MB that do not compress go to 16 workers in 2 slices, behind a link of 100 Mbit/s (tc tbf). The workers are namespaces with
OpenSSH on the same two cores, which do all logins, ciphers and hashes of the 16 machines. TestRelayOnANarrowLink of
internal/codesync measures this.`)
	if l.relay == "" {
		r.note("Not measured: no test program was given (-relay).")
		return nil
	}
	if os.Getuid() != 0 {
		r.note("Not measured: workers of namespaces need root.")
		return nil
	}
	test := exec.CommandContext(ctx, l.relay, "-test.run=^TestRelayOnANarrowLink$", "-test.v", "-test.timeout=8m")
	test.Env = append(os.Environ(), "MULTIHOST_TESTS=all", "RELAY_FULL=1")
	test.Dir = l.dir
	out, err := test.CombinedOutput()
	said := relayed.FindSubmatch(out)
	if said == nil {
		return fmt.Errorf("the test of the relay told nothing: %w", errors.Join(err, errors.New(lastOf(out))))
	}
	fmt.Fprintf(os.Stderr, "bench: %s\n", said[0])
	copies, _ := strconv.ParseFloat(string(said[2]), 64) // the pattern matches only numbers
	times, _ := strconv.ParseFloat(string(said[5]), 64)
	r.table([][]string{
		{"way", "wall s", "bytes over the runner's link, × 64 MB"},
		{"passed on", strings.TrimSuffix(string(said[3]), "s"), string(said[2])},
		{"direct", string(said[4]), "16"},
	})
	r.most("64 MB to 16 workers in 2 slices: bytes over the runner's link, × 64 MB", copies, 2.2, "")
	r.least("64 MB to 16 workers in 2 slices: time of direct uploads, × passing on", times, 5, "")
	return nil
}
