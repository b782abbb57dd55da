package doctor

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

//go:embed pair.sh
var pairScript string

// probePorts are the ports of the probes: of the coordinator between slices, and of JAX's
// coordinator before and since version 0.8.1.
var probePorts = []string{"8080", "8081", "8476", "8482"}

// connectLimit limits one connection or packet between workers. pairLimit limits the whole
// check: the listener on a worker ends by itself after this time. holdLimit limits how long
// the listener keeps the ports open, because a run that starts meanwhile needs them.
const (
	connectLimit = 5 * time.Second
	holdLimit    = 10 * time.Second
	pairLimit    = 60 * time.Second
)

// pairChecks are the checks of the paths between workers.
type pairChecks struct{ *examination }

// checkPairs tests the paths that workers need: from every worker to the coordinator
// s0w0, and from each slice to the next.
func (e pairChecks) checkPairs(ctx context.Context, all []*seen) {
	if len(all) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pairLimit)
	defer cancel()
	first := all[0]
	heard, letGo, stop := e.listen(ctx, first)
	defer stop()
	ports, sizes := make([]probed, len(all)), make([]probed, len(all))
	var connecting, sending sync.WaitGroup
	for i, s := range all {
		if i > 0 && len(heard.ports) > 0 {
			connecting.Go(func() { ports[i] = e.probe(ctx, s, 0, e.targets(all, i, heard)) })
		}
		if n := s.mtu(); n > 0 {
			sending.Go(func() { sizes[i] = e.probe(ctx, s, n, e.targets(all, i, heard)) })
		}
	}
	connecting.Wait()
	early := letGo()
	sending.Wait()
	heard.early = early
	if ctx.Err() != nil {
		e.unknown(CheckPorts, "no answer within %s", event.Duration(pairLimit))
		return
	}
	e.judgePorts(first, all, heard, ports)
	e.judgePackets(all, sizes)
}

// address returns the worker's address for other workers.
func (e pairChecks) address(s *seen) string {
	return e.sel.Slices[s.id.Slice].Workers[s.id.Worker].Internal
}

// A heard says on which ports the coordinator listens, and why not on others.
type heard struct {
	ports []string // ports with a listener, ours or another process
	why   string   // why nothing can listen
	early string   // why the listener closed the ports before all had connected, or ""
}

// listen starts the listener on the coordinator. The function letGo makes the listener
// close the ports. If it had already closed them, letGo returns why, otherwise "". The
// function stop ends the listener with everything that listen started, and leaves nothing
// behind.
func (e pairChecks) listen(ctx context.Context, s *seen) (h heard, letGo func() (early string), stop func()) {
	out, in := io.Pipe()
	nonce := remote.NewNonce()
	args := append([]string{nonce, "listen", e.address(s), seconds(holdLimit), seconds(pairLimit)}, probePorts...)
	session, err := s.conn.Start(ctx, remote.Cmd{Line: remote.Bash(remote.Prelude()+pairScript, args...), Stdout: in, ReadOnly: true})
	if err != nil {
		return heard{why: fmt.Sprintf("%s: %s", s.id, cause(err))}, func() string { return "" }, func() {}
	}
	ready, closed := make(chan heard, 1), make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := lines{bufio.NewReaderSize(out, mostLine), nonce}
		ready <- readHeard(lines, s.id)
		closed <- readClosed(lines, s.id)
		_, _ = io.Copy(io.Discard, out)
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := session.Wait()
		in.CloseWithError(err)
	}()
	letGo = func() (early string) {
		if _, err := io.WriteString(session.Stdin(), "let go\n"); err != nil {
			return fmt.Sprintf("%s: %s", s.id, cause(err))
		}
		select {
		case early = <-closed:
		case <-ctx.Done():
		}
		return early
	}
	stop = func() {
		_ = session.Stdin().Close() // the listener ends with its input
		<-ended
		reading.Wait()
	}
	select {
	case h = <-ready:
	case <-ctx.Done():
		h = heard{why: fmt.Sprintf("%s: no answer in time", s.id)}
	}
	return h, letGo, stop
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// busy returns the reason not to start the listener: a run on the worker needs the ports,
// or may soon need them.
func busy(id tpu.WorkerID) string { return fmt.Sprintf("a run lives or starts on %s", id) }

// mostLine is far above the length of any line of the listener, or of the login's start-up
// files before it.
const mostLine = 1 << 20

// lines reads an answer line by line while it arrives.
type lines struct {
	in    *bufio.Reader
	nonce string
}

// next returns the fields of the next line, or nil for a line that is not the script's. At
// the end it returns io.EOF.
func (l lines) next() ([]string, error) {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	r, ok := remote.ParseRecord(strings.TrimRight(string(line), "\r\n"), l.nonce)
	if !ok {
		return nil, nil
	}
	return fields(r), nil
}

// readHeard reads the listener's output up to the report that it is ready.
func readHeard(lines lines, id tpu.WorkerID) (h heard) {
	f, err := lines.next()
	for ; err == nil; f, err = lines.next() {
		switch {
		case f == nil:
		case f[0] == "busy":
			return heard{why: busy(id)}
		case f[0] == "listening" && len(f) == 2:
			h.ports = append(h.ports, f[1])
		case f[0] == "taken" && len(f) == 3 && f[1] != "" && strings.Contains(f[2], "in use"):
			h.ports = append(h.ports, f[1]) // another process listens on this port
		case f[0] == "taken" && len(f) == 3:
			h.why = fmt.Sprintf("%s: %s", id, f[2])
		case f[0] == "ready":
			return h
		}
	}
	switch {
	case h.why != "":
	case !errors.Is(err, io.EOF):
		h.why = fmt.Sprintf("%s: %s", id, cause(err))
	case len(h.ports) == 0:
		h.why = fmt.Sprintf("%s: nothing can listen there", id)
	}
	return h
}

// readClosed reads the listener's output up to the report that it closed the ports. If it
// did so before the order, readClosed returns why, otherwise "".
func readClosed(lines lines, id tpu.WorkerID) (early string) {
	f, err := lines.next()
	for ; err == nil; f, err = lines.next() {
		if len(f) != 2 || f[0] != "closed" {
			continue
		}
		switch f[1] {
		case "run":
			return busy(id)
		case "limit":
			return fmt.Sprintf("%s listens for %s and no longer, since a run may need the ports", id, event.Duration(holdLimit))
		}
		return ""
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Sprintf("%s: %s", id, cause(err))
	}
	return fmt.Sprintf("%s: what listened there has ended", id)
}

// targets returns the targets of worker i, as arguments of the script.
func (e pairChecks) targets(all []*seen, i int, h heard) []string {
	var words []string
	if i > 0 {
		word := "first=" + e.address(all[0])
		if len(h.ports) > 0 {
			word += ":" + strings.Join(h.ports, ",")
		}
		words = append(words, word)
	}
	// A ring of slices, or of the workers of a single slice, tests paths without the
	// coordinator.
	if next := e.next(all, i); next > 0 {
		words = append(words, "next="+e.address(all[next]))
	}
	return words
}

// next returns the index of the worker with the same number in the next slice. With one
// slice, it returns the index of the next worker.
func (e pairChecks) next(all []*seen, i int) int {
	count := len(e.sel.Slices)
	if count == 1 {
		return (i + 1) % len(all)
	}
	for step := 1; step < count; step++ {
		for j, s := range all {
			if s.id.Slice == (all[i].id.Slice+step)%count && s.id.Worker == all[i].id.Worker {
				return j
			}
		}
	}
	return 0
}

// probed has the results of one worker's probes.
type probed struct {
	ports map[string]string   // by port: ok, refused, timeout, …
	sizes map[string][]string // by target: ok | small MTU | lost | silent | unknown WHY
	size  int
	err   error
}

// probe sends packets of size bytes from one worker to targets. With size 0 it connects to
// the targets' ports instead.
func (e pairChecks) probe(ctx context.Context, s *seen, size int, targets []string) (p probed) {
	if len(targets) == 0 {
		return p
	}
	p.size = size
	out := &remote.Answer{Nonce: remote.NewNonce()}
	args := append([]string{out.Nonce, "probe", seconds(connectLimit), strconv.Itoa(size)}, targets...)
	if _, p.err = s.conn.Run(ctx, remote.Cmd{Line: remote.Bash(remote.Prelude()+pairScript, args...), Stdout: out, ReadOnly: true}); p.err != nil {
		return p
	}
	lines, ok := whole(out)
	if !ok {
		p.err = errNoAnswer
		return p
	}
	p.ports, p.sizes = map[string]string{}, map[string][]string{}
	for _, f := range lines {
		switch {
		case f[0] == "tcp" && len(f) == 4:
			p.ports[f[2]] = f[3]
		case f[0] == "size" && len(f) >= 3:
			p.sizes[f[1]] = f[2:]
		}
	}
	return p
}

// mtu returns the largest packet size of this worker: the MTU of its network, or else of
// its interface, or 0 if neither is known.
func (s *seen) mtu() int {
	r, _ := s.setting("mtu")
	for _, text := range []string{r.Want, r.Before} {
		if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 65535 {
			return n
		}
	}
	return 0
}

func (e pairChecks) judgePorts(first *seen, all []*seen, h heard, results []probed) {
	if h.why != "" && len(h.ports) == 0 {
		e.unknown(CheckPorts, "%s", h.why)
		return
	}
	closed, unknown := &finder{}, &finder{}
	var fine []tpu.WorkerID
	for i, s := range all[1:] {
		p := results[i+1]
		if p.err != nil {
			unknown.add("not checked: "+cause(p.err), s.id)
			continue
		}
		bad := map[string][]string{} // ports by failure
		for _, port := range h.ports {
			if how := p.ports[port]; how != "ok" {
				bad[how] = append(bad[how], port)
			}
		}
		if len(bad) > 0 && h.early != "" {
			unknown.add("not checked: "+h.early, s.id)
			continue
		}
		for how, ports := range bad {
			text := fmt.Sprintf("%s does not answer on tcp:%s (%s)", first.id, strings.Join(ports, ","), how)
			if how == "timeout" {
				text = fmt.Sprintf("packets to tcp:%s of %s are dropped", strings.Join(ports, ","), first.id)
			}
			closed.add(text, s.id)
		}
		if len(bad) == 0 {
			fine = append(fine, s.id)
		}
	}
	for _, text := range closed.texts {
		ids := closed.at[text]
		e.add(Finding{Check: CheckPorts, Level: Error, Workers: tpu.Fold(ids), count: len(ids), Text: text,
			Advice: "where the firewall rules above let it through, a filter on the worker drops it; to see it:",
			Cure:   e.exec([]tpu.WorkerID{first.id}, true, "bash", "-c", showFilters)})
	}
	e.emit(unknown, CheckPorts, Unknown, nil)
	if len(fine) > 0 {
		e.fine(CheckPorts, fine, "reach %s on tcp:%s", first.id, strings.Join(h.ports, ","))
	}
}

// showFilters lists everything on a worker that may drop packets, with the installed tools.
const showFilters = `for c in "nft list ruleset" "iptables -S" "ip rule" "tc -s filter show dev $(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q') ingress"; do type ${c%% *} >/dev/null 2>&1 && $c; done; true`

func (e pairChecks) judgePackets(all []*seen, results []probed) {
	bad, unknown := &finder{}, &finder{}
	names := map[string][]tpu.WorkerID{}
	var fine []tpu.WorkerID
	largest := 0
	for i, s := range all {
		p := results[i]
		if p.err != nil {
			unknown.add("not checked: "+cause(p.err), s.id)
			continue
		}
		good := len(p.sizes) > 0
		for target, how := range p.sizes {
			other := all[0]
			if target == "next" {
				other = all[e.next(all, i)]
			}
			to, text := other.id, ""
			switch how[0] {
			case "ok":
				largest = max(largest, p.size)
				continue
			case "small":
				text = fmt.Sprintf("a packet of %d bytes cannot pass to %s unfragmented: the path takes %s", p.size, to, strings.Join(how[1:], " "))
			case "lost":
				text = fmt.Sprintf("a packet of %d bytes to %s is lost, a small one arrives", p.size, to)
			case "silent":
				unknown.add(fmt.Sprintf("not checked: %s answers neither ping nor UDP", to), s.id)
			default:
				unknown.add("not checked: "+strings.Join(how[1:], " "), s.id)
			}
			good = false
			if text != "" && !s.wrongMTU && !other.wrongMTU {
				bad.add(text, s.id)
				names[text] = []tpu.WorkerID{s.id, to}
			}
		}
		if good {
			fine = append(fine, s.id)
		}
	}
	e.emit(bad, CheckPacket, Error, func(text string, _ []tpu.WorkerID) string {
		return e.exec(names[text], false, "ip", "-o", "link", "show")
	})
	e.emit(unknown, CheckPacket, Unknown, nil)
	if len(fine) > 0 {
		e.fine(CheckPacket, fine, "packets of %d bytes pass unfragmented", largest)
	}
}
