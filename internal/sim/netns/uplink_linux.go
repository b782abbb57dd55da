package netns

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"multihost/internal/sim/worker"
)

// uplink is the link from the fabric's router to the machine on which it runs. The kernel
// removes its outer end, with the routes through it, together with the fabric's namespace.
type uplink struct {
	name            string // name of the outer end; the inner end is up0
	inside, outside netip.Addr
}

// uplinkTries limits the search for free addresses.
const uplinkTries = 20

func (u *uplink) routeFrom(table int) string {
	return fmt.Sprintf("route add %s/32 dev up0 table %d", u.outside, table)
}

// makeUplink creates the link with two link-local addresses. It must run on the fabric's
// thread.
func (f *fabric) makeUplink() (*uplink, error) {
	for range uplinkTries {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails, as its documentation says
		n := binary.BigEndian.Uint16(b[:])
		// The first and the last 256 addresses are reserved (RFC 3927). The metadata
		// server's is one of the last.
		first := netip.AddrFrom4([4]byte{169, 254, byte(1 + int(n)>>8%253), byte(n) &^ 3})
		u := &uplink{name: fmt.Sprintf("mhs%x", b[2:7]), inside: first.Next(), outside: first.Next().Next()}
		if covered, err := f.covered(u.outside.String()); err != nil || covered {
			if err != nil {
				return nil, err
			}
			continue
		}
		err := f.batch(
			fmt.Sprintf("link add up0 mtu 8896 type veth peer name %s mtu 8896 netns %d", u.name, os.Getpid()),
			fmt.Sprintf("addr add %s/30 dev up0", u.inside),
			"link set up0 up",
		)
		if err != nil {
			return nil, err
		}
		var lines []string
		for _, n := range f.networks {
			lines = append(lines, u.routeFrom(n.table))
		}
		if len(lines) > 0 {
			err = f.batch(lines...)
		}
		if err == nil {
			err = f.outside(
				fmt.Sprintf("addr add %s/30 dev %s", u.outside, u.name),
				fmt.Sprintf("link set %s up", u.name),
			)
		}
		if err != nil {
			_ = f.batch("link del up0") // the caller gets the first error
			return nil, err
		}
		return u, nil
	}
	return nil, errors.New("no pair of link-local addresses is free")
}

// outside runs commands of ip in the network of the real machine.
func (f *fabric) outside(lines ...string) error {
	return worker.InNetwork(f.home, func() error { return runIP(f.ip, lines...) })
}

// covered reports whether the real machine has a route, other than the default one, to an
// address.
func (f *fabric) covered(addr string) (bool, error) {
	var out []byte
	err := worker.InNetwork(f.home, func() (err error) {
		out, err = exec.Command(f.ip, "-4", "-o", "route", "show", "match", addr).Output()
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for a route to %s: %w", addr, err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "default") {
			return true, nil
		}
	}
	return false, nil
}

// expose lets the real machine reach a worker at the worker's own address, unless that
// would hide an address that the machine already reaches. It must run on the fabric's
// thread, after connect.
func (f *fabric) expose(spec worker.Spec) error {
	covered, err := f.covered(spec.IP)
	if err != nil || covered {
		return err
	}
	if f.uplink == nil {
		if f.uplink, err = f.makeUplink(); err != nil {
			return fmt.Errorf("connect to the workers' network: %w", err)
		}
	}
	err = f.outside(fmt.Sprintf("route add %s/32 via %s dev %s", spec.IP, f.uplink.inside, f.uplink.name))
	if err != nil {
		// Another simulator may have added the route.
		if covered, _ := f.covered(spec.IP); covered {
			return nil
		}
	}
	return err
}

// hide undoes expose.
func (f *fabric) hide(spec worker.Spec) {
	if f.uplink != nil {
		_ = f.outside(fmt.Sprintf("route del %s/32 via %s dev %s", spec.IP, f.uplink.inside, f.uplink.name)) // there may be none
	}
}
