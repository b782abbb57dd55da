package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// The load server answers exec requests without a process or a shell, so that its cost does
// not hide the client's.
//
//	true            ends with 0
//	burst BYTES     prints that many bytes of 100-byte lines
//	hold            runs until the session ends
//	multihost-follow
//	                does what internal/launch/follow.sh does for a command that has
//	                ended. The number at the end of the run's name is the size of
//	                its output in bytes. The run "paced10-2000" is still printing
//	                ten lines a second

// A worker prints lines of 99 characters and a newline, like those of a training log. One
// line in period reports a step.
const (
	lineLength = 100
	period     = 100
)

// pattern is the repeated log of one period. It is long enough to send a piece of 1 MiB from
// any offset within a period.
var pattern = func() []byte {
	var lines strings.Builder
	for i := range period {
		line := "completed step: 1234, seconds: 3.210, TFLOP/s/device: 210.123, Tokens/s/device: 4096.5, loss: 2.345"
		switch {
		case i > 0 && i%2 == 0:
			line = fmt.Sprintf("I1128 03:41:07.%06d    4242 checkpoint_manager.py:%d] saving shard %d of the optimizer state", i, i, i)
		case i > 0:
			line = fmt.Sprintf("INFO:absl:batch %d of the shuffle buffer is ready, %d records were read from the file", i, i*i)
		}
		lines.WriteString(line + strings.Repeat(" ", lineLength-1-len(line)) + "\n")
	}
	return []byte(strings.Repeat(lines.String(), 2+(1<<20)/(lineLength*period)))
}()

// address returns the address on which the load server listens as worker i.
func address(i int) string { return fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250) }

// serve runs the load server. It prints its port, the port whose workers are farAway, and its
// host key in authorized_keys form. It ends when ctx is done or its standard input ends.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	workers := flags.Int("n", 64, "workers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	s := &server{config: &ssh.ServerConfig{
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil },
		MaxAuthTries:      -1,
	}}
	s.config.AddHostKey(signer)

	var listeners []net.Listener
	var ports [2]int
	for p, delay := range []time.Duration{0, farAway} {
		for i := range *workers {
			l, err := net.Listen("tcp", net.JoinHostPort(address(i), strconv.Itoa(ports[p])))
			if err != nil {
				return err
			}
			ports[p] = l.Addr().(*net.TCPAddr).Port
			listeners = append(listeners, l)
			s.wg.Go(func() { s.accept(l, delay) })
		}
	}
	fmt.Printf("%d %d %s", ports[0], ports[1], ssh.MarshalAuthorizedKey(signer.PublicKey()))
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // only its end matters
		close(ended)
	}()
	select {
	case <-ctx.Done():
	case <-ended:
	}
	for _, l := range listeners {
		l.Close()
	}
	return nil // connections end with the process
}

type server struct {
	config *ssh.ServerConfig
	wg     sync.WaitGroup
}

// farAway is the round-trip time to workers in another part of the world.
const farAway = 50 * time.Millisecond

func (s *server) accept(l net.Listener, delay time.Duration) {
	for {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		if delay > 0 {
			d := distant(raw)
			s.wg.Go(func() { d.carry(delay) })
			raw = d
		}
		s.wg.Go(func() { s.connection(raw) })
	}
}

// distant returns a connection that seems to have a long round trip. The method carry delays
// incoming data by the whole round trip. Outgoing data and TCP's own handshake are not delayed.
func distant(raw net.Conn) *distantConn {
	// 64 pieces may be in flight, as many as a window holds.
	return &distantConn{Conn: raw, arrivals: make(chan arrival, 64), closed: make(chan struct{})}
}

type distantConn struct {
	net.Conn
	arrivals chan arrival
	left     []byte
	once     sync.Once
	closed   chan struct{}
}

type arrival struct {
	at   time.Time
	data []byte
	err  error
}

// carry delays all incoming data by delay. It returns when the connection ends.
func (d *distantConn) carry(delay time.Duration) {
	for {
		data := make([]byte, 4<<10)
		n, err := d.Conn.Read(data)
		select {
		case d.arrivals <- arrival{time.Now().Add(delay), data[:n], err}:
		case <-d.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *distantConn) Read(p []byte) (int, error) {
	for len(d.left) == 0 {
		select {
		case a := <-d.arrivals:
			select {
			case <-time.After(time.Until(a.at)):
			case <-d.closed:
				return 0, net.ErrClosed
			}
			if d.left = a.data; len(d.left) == 0 && a.err != nil {
				return 0, a.err
			}
		case <-d.closed:
			return 0, net.ErrClosed
		}
	}
	n := copy(p, d.left)
	d.left = d.left[n:]
	return n, nil
}

func (d *distantConn) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

func (s *server) connection(raw net.Conn) {
	defer raw.Close()
	conn, channels, requests, err := ssh.NewServerConn(raw, s.config)
	if err != nil {
		return
	}
	defer conn.Close()
	s.wg.Go(func() {
		for r := range requests {
			if r.WantReply {
				// OpenSSH answers keepalives with a failure, too.
				_ = r.Reply(false, nil)
			}
		}
	})
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.session(channel, requests) })
	}
}

func (s *server) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		if r.Type != "exec" {
			if r.WantReply {
				_ = r.Reply(r.Type == "env", nil)
			}
			continue
		}
		var exec struct{ Command string }
		if err := ssh.Unmarshal(r.Payload, &exec); err != nil {
			return
		}
		_ = r.Reply(true, nil) // a client that has gone is noticed below
		over := make(chan struct{})
		s.wg.Go(func() {
			for range requests {
			}
			close(over)
		})
		code := s.exec(exec.Command, channel, over)
		_, _ = channel.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
		return
	}
}

// exec runs a command and returns its exit status.
func (s *server) exec(command string, channel ssh.Channel, over <-chan struct{}) int {
	if _, args, ok := strings.Cut(command, " multihost-follow "); ok {
		if err := answerFollow(strings.Fields(args), channel); err != nil {
			return 1
		}
		return 0
	}
	switch words := strings.Fields(command); {
	case len(words) == 1 && words[0] == "true":
		return 0
	case len(words) == 1 && words[0] == "hold":
		<-over
		return 0
	case len(words) == 2 && words[0] == "burst":
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || send(channel, 0, n) != nil {
			return 1
		}
		return 0
	}
	return 127
}

// send writes n bytes of a worker's log, from offset on.
func send(w io.Writer, offset, n int64) error {
	for n > 0 {
		from := offset % (lineLength * period)
		piece := pattern[from:min(from+n, int64(len(pattern)))]
		if _, err := w.Write(piece); err != nil {
			return err
		}
		offset, n = offset+int64(len(piece)), n-int64(len(piece))
	}
	return nil
}

// drip is like send, but writes one line every pace.
func drip(w io.Writer, offset, n int64, pace time.Duration) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n > 0 {
		<-tick.C
		piece := min(n, lineLength-offset%lineLength)
		if err := send(w, offset, piece); err != nil {
			return err
		}
		offset, n = offset+piece, n-piece
	}
	return nil
}

// answerFollow answers like internal/launch/follow.sh. args are LENGTH DIGEST NONCE RUN ATTEMPT
// OFFSET MODE.
func answerFollow(args []string, channel ssh.Channel) error {
	if len(args) < 7 {
		return fmt.Errorf("arguments %q", args)
	}
	length, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	nonce, run, attempt := args[2], args[3], args[4]
	size, err := strconv.ParseInt(run[strings.LastIndexByte(run, '-')+1:], 10, 64)
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(args[5], 10, 64)
	if err != nil {
		return err
	}
	var pace time.Duration
	if rate, ok := strings.CutPrefix(run[:strings.LastIndexByte(run, '-')], "paced"); ok {
		n, err := strconv.Atoi(rate)
		if err != nil || n <= 0 {
			return fmt.Errorf("pace of %q", run)
		}
		pace = time.Second / time.Duration(n)
	}
	in := bufio.NewReader(channel)
	if _, err := io.CopyN(io.Discard, in, length); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(channel, "%s stream %d\n", nonce, size); err != nil {
		return err
	}
	for {
		order, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		want, err := strconv.ParseInt(strings.TrimSpace(order), 10, 64)
		if err != nil {
			return err
		}
		room := min(want, size-offset)
		if pace > 0 {
			err = drip(channel, offset, room, pace)
		} else {
			err = send(channel, offset, room)
		}
		if err != nil {
			return err
		}
		offset += room
		said := fmt.Sprintf("%s size %d\n", nonce, size)
		if room < want {
			said = ""
			for _, line := range []string{
				"run " + run + " " + attempt, "dir /home/u/.multihost/runs/" + run + "/" + attempt, "phase exited",
				"supervisor 100 0 1700000000000000000", "started 101 1700000000000000000",
				"exit code 0", "exit signal ", "exit end 1700000001000000000", fmt.Sprintf("exit size %d", size), "end",
			} {
				said += nonce + " " + line + "\n"
			}
		}
		if _, err := io.WriteString(channel.Stderr(), said); err != nil || room < want {
			return err
		}
	}
}
