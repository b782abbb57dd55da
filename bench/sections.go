package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Numbers of hosts and rounds. Other tools cost tens of milliseconds per host, so they run on
// peerHosts hosts and in peerRounds rounds.
const (
	peerHosts  = 64
	peerRounds = 3
	rounds     = 5
)

// measureConnect measures clients that connect to every worker, log in, run `true` and get its
// exit status.
func measureConnect(ctx context.Context, l *lab, r *report) error {
	r.section("`true` on every worker", `
Each client connects, verifies the host key, logs in, runs the command and reads its exit status. The reference is the
smallest program on x/crypto/ssh that does this: it does not try again, keep connections alive or report anything. The best
number of handshakes at once is measured twice: with workers on loopback, where only CPU counts, and with workers at a round
trip of 50 ms.`)
	own := func(name, program string, n int, more ...string) contestant {
		return contestant{name, func() (cost, error) { return l.client(ctx, nil, l.own(program, n, more...)...) }}
	}
	rows := [][]string{{"workers", "client", "wall s", "CPU s", "CPU ms/worker", "× reference", "server's CPU s", "peak MiB"}}
	row := func(n int, name string, c, floor cost) {
		rows = append(rows, []string{fmt.Sprint(n), name, seconds(c.wall), seconds(c.cpu), perWorker(c.cpu, n),
			fmt.Sprintf("%.2f", c.cpu.Seconds()/floor.cpu.Seconds()), seconds(c.server), mebibytes(c.resident)})
	}

	peers, err := l.peers(ctx, peerHosts, "true")
	if err != nil {
		return err
	}
	small, err := inTurn(ctx, peerRounds, append([]contestant{
		own("reference", "reference", peerHosts), own("multihost engine", "engine", peerHosts),
	}, peers...)...)
	if err != nil {
		return err
	}
	for _, name := range []string{"reference", "multihost engine", "ssh loop", "parallel-ssh", "pdsh", "clush"} {
		if c, ok := small[name]; ok {
			row(peerHosts, name, c, small["reference"])
		}
	}
	for _, n := range []int{256, 1024, 2048} {
		if n > l.most {
			continue
		}
		all := []contestant{own("reference", "reference", n), own("multihost engine", "engine", n)}
		far := []string{"-port", fmt.Sprint(l.far)}
		switch n {
		case 256: // the cost per worker is the same for every number of workers
			all = append(all,
				own("reference, ML-KEM", "reference", n, "-hybrid"),
				own("multihost engine, RSA-3072 key", "engine", n, "-key", l.rsa))
		case 1024:
			all = append(all,
				own("multihost engine, 64 handshakes at once", "engine", n, "-max-dials", "64"),
				own("multihost engine, 512 handshakes at once", "engine", n, "-max-dials", "512"),
				own("multihost engine, 50 ms away", "engine", n, far...),
				own("multihost engine, 50 ms away, 512 handshakes at once", "engine", n, append(far, "-max-dials", "512")...))
		}
		medians, err := inTurn(ctx, rounds, all...)
		if err != nil {
			return err
		}
		for _, c := range all {
			row(n, c.name, medians[c.name], medians["reference"])
		}
		if n >= 1024 {
			r.most(fmt.Sprintf("CPU of the engine for `true` on %d workers, × reference", n),
				medians["multihost engine"].cpu.Seconds()/medians["reference"].cpu.Seconds(), 1.25, "")
		}
		if n == 1024 {
			// The differences are as small as the noise of the machine. Noise only adds time,
			// so compare the quickest rounds.
			paced := medians["multihost engine"].least
			best := min(paced, medians["multihost engine, 64 handshakes at once"].least, medians["multihost engine, 512 handshakes at once"].least)
			r.most("wall time with the default number of handshakes at once, ÷ the best with 64, 512 or 1024", paced.Seconds()/best.Seconds(), 1.15, "")
			paced = medians["multihost engine, 50 ms away"].least
			best = min(paced, medians["multihost engine, 50 ms away, 512 handshakes at once"].least)
			r.most("the same 50 ms away, ÷ the better with 512 or 1024", paced.Seconds()/best.Seconds(), 1.15, "")
		}
	}
	r.table(rows)
	return nil
}

// measureScale measures how the costs grow with the number of workers, for docs/scale.md.
// It has no bars.
func measureScale(ctx context.Context, l *lab, r *report) error {
	const quiet, lines, lasts = 10 * time.Second, 10, 20
	r.section("How costs grow", fmt.Sprintf(`
The engine does three things against the load server: it runs `+"`true`"+` on every worker; it stays connected for %s without a
command; it writes %d lines a second of each worker into a file of that worker, with the default view, for %d s.`, quiet, lines, lasts))
	rows := [][]string{{"workers", "`true`: CPU ms/worker", "wall s", "peak MiB", "idle: share of a core", "KiB/worker", "lines/s", "share of a core", "peak MiB"}}
	for n := 64; n <= l.most; n *= 2 {
		medians, err := inTurn(ctx, peerRounds, contestant{"engine", func() (cost, error) { return l.client(ctx, nil, l.own("engine", n)...) }})
		if err != nil {
			return err
		}
		one := medians["engine"]
		idle, err := l.idle(ctx, n, quiet)
		if err != nil {
			return err
		}
		dir, err := l.logs()
		if err != nil {
			return err
		}
		paced, err := l.client(ctx, nil, l.own("engine", n, "-rate", fmt.Sprint(lines), "-log-bytes", fmt.Sprint(lines*lasts*lineLength), "-logs", dir, "-view")...)
		os.RemoveAll(dir)
		if err != nil {
			return err
		}
		rows = append(rows, []string{
			fmt.Sprint(n), perWorker(one.cpu, n), seconds(one.wall), mebibytes(one.resident),
			fmt.Sprintf("%.2f %%", idle.IdleShare*100), fmt.Sprintf("%.0f", float64(idle.ResidentBytes)/1024),
			fmt.Sprint(n * lines), fmt.Sprintf("%.0f %%", (paced.cpu-one.cpu).Seconds()/lasts*100), mebibytes(paced.resident),
		})
	}
	r.table(rows)
	return nil
}

// idle keeps the engine connected to n workers for quiet and returns its cost.
func (l *lab) idle(ctx context.Context, n int, quiet time.Duration) (e engineCost, err error) {
	c, err := l.client(ctx, nil, l.own("engine", n, "-rounds", "3", "-idle", quiet.String())...)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal([]byte(lastOf(c.stderr)), &e); err != nil {
		return e, fmt.Errorf("engine said %q: %w", c.stderr, err)
	}
	return e, nil
}

// measureIdle measures what staying connected costs.
func measureIdle(ctx context.Context, l *lab, r *report) error {
	n := l.most
	const quiet = 20 * time.Second
	r.section("Staying connected", fmt.Sprintf(`
%d workers are connected for %s without a command; keepalives every 10 s are included. Before that, `+"`true`"+` ran a second, third
and fourth time on the open connections. The documentation of internal/sshfan counts and names the goroutines.`, n, quiet))
	e, err := l.idle(ctx, n, quiet)
	if err != nil {
		return err
	}
	r.table([][]string{
		{"workers", "CPU of a further command, ms", "idle: share of a core", "KiB resident/worker", "goroutines/worker"},
		{fmt.Sprint(n), fmt.Sprintf("%.2f", e.Exec.Seconds()*1000), fmt.Sprintf("%.2f %%", e.IdleShare*100),
			fmt.Sprintf("%.0f", float64(e.ResidentBytes)/1024), fmt.Sprintf("%.1f", e.Goroutines)},
	})
	r.most("CPU of a further command on an open connection", e.Exec.Seconds()*1000, 0.3, "ms")
	r.most(fmt.Sprintf("CPU of %d idle workers, share of a core", n), e.IdleShare*100, 2, "%")
	r.most("resident memory per idle worker", float64(e.ResidentBytes)/1024, 100, "KiB")
	return nil
}

// Bytes of output of each worker. logBytes is for few workers with much output, manyLog for
// many workers. peerLog is for other tools: with so much output, logging in takes little of
// their time.
const (
	logBytes = 64 << 20
	manyLog  = 1 << 20
	peerLog  = 4 << 20
)

// measureLogs measures the output of all workers into one file each, with the default
// view.
func measureLogs(ctx context.Context, l *lab, r *report) error {
	r.section("Logs", `
Every worker prints lines of 100 bytes as fast as the client reads them. The client writes one file for each worker, in
memory, and shows whole lines on standard output, where a reader keeps up. The reference shows every line with a prefix. The
default view of multihost shows worker 0 and looks for errors in the lines of the others. The run of 64 workers into files
alone is compared with a reference that shows nothing either. The figures are medians of three runs for 64 workers and of five
for more. The smallest size was measured once, because the slow tools need half a minute for it and no bar uses it.
"× reference" compares throughput.`)
	rows := [][]string{{"output", "client", "wall s", "MB/s", "CPU s/GB", "× reference", "server's CPU s", "peak MiB"}}
	fresh := func(argv func(dir string) []string) func() (cost, error) {
		return func() (cost, error) {
			dir, err := l.logs()
			if err != nil {
				return cost{}, err
			}
			defer os.RemoveAll(dir)
			return l.client(ctx, nil, argv(dir)...)
		}
	}
	for _, load := range []struct {
		workers int
		bytes   int64
		peers   []string
		rounds  int
	}{
		{peerHosts, manyLog, []string{"pdsh", "parallel-ssh", "clush"}, 1},
		{peerHosts, peerLog, []string{"pdsh"}, peerRounds}, // the other tools take minutes
		{l.most, manyLog, nil, rounds},
		{64, logBytes, nil, peerRounds},
	} {
		total := int64(load.workers) * load.bytes
		what := fmt.Sprintf("%d × %d MiB", load.workers, load.bytes>>20)
		all := []contestant{
			{"reference", fresh(func(dir string) []string {
				return l.own("reference", load.workers, "-command", fmt.Sprintf("burst %d", load.bytes), "-logs", dir, "-view")
			})},
			{"multihost", fresh(func(dir string) []string {
				return l.own("engine", load.workers, "-log-bytes", fmt.Sprint(load.bytes), "-logs", dir, "-view")
			})},
			{"multihost, files alone", fresh(func(dir string) []string {
				return l.own("engine", load.workers, "-log-bytes", fmt.Sprint(load.bytes), "-logs", dir)
			})},
		}
		names := []string{"reference", "multihost", "multihost, files alone"}
		if load.workers == peerHosts { // thousands of workers would take a minute and show nothing new
			all = append(all, contestant{"reference, files alone", fresh(func(dir string) []string {
				return l.own("reference", load.workers, "-command", fmt.Sprintf("burst %d", load.bytes), "-logs", dir)
			})})
			names = append(names, "reference, files alone")
		}
		peers, err := l.peers(ctx, load.workers, fmt.Sprintf("burst %d", load.bytes))
		if err != nil {
			return err
		}
		for _, p := range peers {
			if slices.Contains(load.peers, p.name) { // an ssh loop shows no worker names
				all, names = append(all, p), append(names, p.name)
			}
		}
		medians, err := inTurn(ctx, load.rounds, all...)
		if err != nil {
			return err
		}
		for _, name := range names {
			c, floor := medians[name], medians["reference"]
			if alone, ok := medians["reference, files alone"]; ok && strings.HasSuffix(name, ", files alone") {
				floor = alone
			}
			rows = append(rows, []string{what, name, seconds(c.wall), fmt.Sprintf("%.0f", rate(total, c.wall)),
				fmt.Sprintf("%.1f", c.cpu.Seconds()/(float64(total)/1e9)), fmt.Sprintf("%.2f", floor.wall.Seconds()/c.wall.Seconds()),
				seconds(c.server), mebibytes(c.resident)})
		}
		ours := medians["multihost"]
		if load.peers != nil {
			if pdsh, ok := medians["pdsh"]; ok && load.bytes == peerLog {
				r.least("throughput of "+what+", × pdsh", pdsh.wall.Seconds()/ours.wall.Seconds(), 10, "")
			}
			continue
		}
		r.least("throughput of "+what+", × reference", medians["reference"].wall.Seconds()/ours.wall.Seconds(), 0.6, "")
		if alone, ok := medians["reference, files alone"]; ok {
			r.least("throughput of "+what+" into files alone, × the reference into files alone", alone.wall.Seconds()/medians["multihost, files alone"].wall.Seconds(), 0.6, "")
		}
		if load.workers == l.most {
			r.most("CPU of "+what+" with the default view, × files alone", ours.cpu.Seconds()/medians["multihost, files alone"].cpu.Seconds(), 2, "")
		}
		// The limit is 512 MiB for the data in all channels, 100 KiB for each connection and 64
		// KiB for each worker.
		r.most("peak memory of "+what, float64(ours.resident)/(1<<20), 512+float64(load.workers)*(100+64)/1024, "MiB")
	}
	r.table(rows)
	return nil
}
