package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// reference is the minimum that a program on x/crypto/ssh does to run a command on many hosts.
// It verifies one known host key. It does not retry, send keepalives, stop commands or report.
// With -logs it writes one file per host. With -view it also writes whole lines with a prefix
// to standard output.
func reference(_ context.Context, args []string) error {
	var c clientFlags
	flags := c.set("reference")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := c.config()
	if err != nil {
		return err
	}
	out := &lockedWriter{w: os.Stdout}
	errs := make([]error, c.workers)
	var wg sync.WaitGroup
	for i := range c.workers {
		wg.Go(func() { errs[i] = c.one(i, config, out) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// one runs the command on one host.
func (c *clientFlags) one(i int, config *ssh.ClientConfig, out io.Writer) (err error) {
	conn, err := ssh.Dial("tcp", net.JoinHostPort(address(i), strconv.Itoa(c.port)), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	session, err := conn.NewSession()
	if err != nil {
		return err
	}
	defer session.Close()
	if c.logs == "" {
		return session.Run(c.command)
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(c.logs, strconv.Itoa(i)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := session.Start(c.command); err != nil {
		return err
	}
	if c.view {
		err = prefixLines(stdout, file, out, fmt.Sprintf("s%dw%d| ", i/64, i%64))
	} else {
		// A large buffer needs few writes.
		_, err = io.CopyBuffer(struct{ io.Writer }{file}, stdout, make([]byte, 64<<10))
	}
	return errors.Join(err, session.Wait())
}

// prefixLines copies r to file, and its whole lines with a prefix to out. It writes all
// lines of one read at once.
func prefixLines(r io.Reader, file, out io.Writer, prefix string) error {
	in := bufio.NewReaderSize(io.TeeReader(r, file), 64<<10)
	var batch []byte
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			batch = append(append(batch, prefix...), line...)
		}
		if in.Buffered() < lineLength || err != nil {
			if _, err := out.Write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// clientFlags are the flags that reference and engine share.
type clientFlags struct {
	workers, port         int
	key, hostKey, command string
	logs                  string
	view, hybrid          bool

	flags *flag.FlagSet
}

func (c *clientFlags) set(name string) *flag.FlagSet {
	c.flags = flag.NewFlagSet(name, flag.ExitOnError)
	c.flags.IntVar(&c.workers, "n", 64, "workers")
	c.flags.IntVar(&c.port, "port", 0, "port of the load server")
	c.flags.StringVar(&c.key, "key", "", "file of the private key")
	c.flags.StringVar(&c.hostKey, "host-key", "", "host key in authorized_keys form")
	c.flags.StringVar(&c.command, "command", "true", "command to run")
	c.flags.StringVar(&c.logs, "logs", "", "directory for a file of output of each worker")
	c.flags.BoolVar(&c.view, "view", false, "show the output on standard output")
	c.flags.BoolVar(&c.hybrid, "hybrid", false, "agree on keys as x/crypto/ssh does by default, with ML-KEM")
	return c.flags
}

// config returns the configuration of a minimal client. Like the engine, it prefers plain
// curve25519, because the default of x/crypto costs more.
func (c *clientFlags) config() (*ssh.ClientConfig, error) {
	data, err := os.ReadFile(c.key)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, err
	}
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(c.hostKey))
	if err != nil {
		return nil, err
	}
	config := &ssh.ClientConfig{
		User:              "tester",
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   ssh.FixedHostKey(hostKey),
		HostKeyAlgorithms: []string{hostKey.Type()},
	}
	config.Ciphers = []string{ssh.CipherAES128GCM}
	if !c.hybrid {
		config.KeyExchanges = []string{ssh.KeyExchangeCurve25519}
	}
	return config, nil
}
