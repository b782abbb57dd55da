package sshfan

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
	"multihost/internal/sshkey"
)

// With Cmd.LoginTo, a worker can log in to another worker in our name. sshd gives the
// command an SSH_AUTH_SOCK that leads to an agent in this process. The agent answers three
// messages and signs one login. No key leaves this process.
//
// Two checks bind the signature (session-bind@openssh.com, OpenSSH 8.9 and later). First,
// the client must prove to which host it is connected. The proof is the host key's signature
// over the session id. The host key must be the key that we have verified ourselves for the
// worker in LoginTo. Second, the data to sign must be a login in that session, as that
// worker's user. So a process that gets hold of the socket can do only what the command was
// meant to do, and only until the command ends. A command with LoginTo has its own
// connection, which ends with the command.

// HostKey implements remote.Conn. It returns the host key that the worker has proven to
// have, or "" before the first connection.
func (c *Conn) HostKey() string {
	if key := c.verified(); key != nil {
		return sshkey.Authorized(key)
	}
	return ""
}

func (c *Conn) verified() ssh.PublicKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trusted
}

// startApart starts cmd over a connection of its own. The worker may ask for signatures on
// this connection, which ends with the command.
func (c *Conn) startApart(ctx context.Context, cmd remote.Cmd) (remote.Session, error) {
	to, ok := cmd.LoginTo.(*Conn)
	if !ok {
		return nil, c.fail(remote.StageExec, "", fmt.Errorf("lend the login to %s: it is not reached over SSH", cmd.LoginTo.Name()))
	}
	hostKey := to.verified()
	if hostKey == nil {
		return nil, c.fail(remote.StageExec, "", fmt.Errorf("lend the login to %s: its host key is not known", to.Name()))
	}
	l, err := c.connect(ctx, func(*remote.ConnectError) {})
	if err != nil {
		return nil, err
	}
	o := &loan{keys: c.fleet.cfg.Identity.Signers(), user: to.User(), hostKey: hostKey}
	l.lend(func(rw io.ReadWriteCloser) { o.serve(rw) })
	if cmd.Stdin == nil {
		cmd.Stdin = remote.NoInput
	}
	s := newSession(c, l, cmd)
	s.apart = true
	return c.begin(ctx, s)
}

// passToAgent copies data between one client of a forwarded agent and the agent at
// socket.
func passToAgent(rw io.ReadWriteCloser, socket string) {
	agent, err := net.Dial("unix", socket)
	if err != nil {
		return // the agent has ended; the caller closes the client's connection
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = io.Copy(agent, rw)
		_ = agent.Close() // the client has hung up
	}()
	_, _ = io.Copy(rw, agent)
	_ = rw.Close()
	<-asked
}

// A loan permits one login.
type loan struct {
	keys    []ssh.Signer
	user    string
	hostKey ssh.PublicKey

	mu    sync.Mutex
	taken bool // bound to a session
}

// take binds the loan to a session. It fails if the loan is bound already.
func (o *loan) take() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.taken {
		return errors.New("the login was used")
	}
	o.taken = true
	return nil
}

// Messages of the agent protocol (draft-ietf-sshm-ssh-agent), and ssh-agent's limit on
// their length.
const (
	agentFailure    = 5
	agentSuccess    = 6
	agentIdentities = 11
	agentSign       = 13
	agentExtension  = 27

	agentMessage = 256 << 10
)

// serve answers the requests of one client on the worker until the client hangs up.
func (o *loan) serve(rw io.ReadWriter) {
	v := visit{loan: o}
	for {
		var size uint32
		if binary.Read(rw, binary.BigEndian, &size) != nil || size == 0 || size > agentMessage {
			return
		}
		msg := make([]byte, size)
		if _, err := io.ReadFull(rw, msg); err != nil {
			return
		}
		answer, err := v.answer(msg)
		if err != nil {
			answer = []byte{agentFailure} // the protocol cannot transport a reason
		}
		packet := append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)
		if _, err := rw.Write(packet); err != nil {
			return
		}
	}
}

// A visit is one client of the agent. It can be bound to one session.
type visit struct {
	loan    *loan
	session []byte // nil until bound
}

func (v *visit) answer(msg []byte) ([]byte, error) {
	switch msg[0] {
	case agentExtension:
		return []byte{agentSuccess}, v.bind(msg)
	case agentIdentities:
		return v.identities(), nil
	case agentSign:
		return v.sign(msg)
	}
	return nil, fmt.Errorf("message %d is not served", msg[0])
}

// bind checks the client's proof of the host to which it is connected. Then it binds the
// visit to that session.
func (v *visit) bind(msg []byte) error {
	var ext struct {
		Name       string `sshtype:"27"`
		HostKey    []byte
		Session    []byte
		Signature  []byte
		Forwarding bool
	}
	if err := ssh.Unmarshal(msg, &ext); err != nil {
		return err
	}
	var sig ssh.Signature
	switch {
	case ext.Name != "session-bind@openssh.com":
		return fmt.Errorf("extension %q is not served", ext.Name)
	case v.session != nil || len(ext.Session) == 0:
		return errors.New("bound already, or to nothing")
	case ext.Forwarding:
		return errors.New("the login may not be passed on")
	case !bytes.Equal(ext.HostKey, v.loan.hostKey.Marshal()):
		return errors.New("not the worker that the login is for")
	}
	if err := ssh.Unmarshal(ext.Signature, &sig); err != nil {
		return err
	}
	if err := v.loan.hostKey.Verify(ext.Session, &sig); err != nil {
		return err
	}
	if err := v.loan.take(); err != nil {
		return err
	}
	v.session = ext.Session
	return nil
}

// identities lists our public keys for a bound client, and none for others.
func (v *visit) identities() []byte {
	answer := struct {
		Keys uint32 `sshtype:"12"`
		List []byte `ssh:"rest"`
	}{}
	if v.session != nil {
		for _, k := range v.loan.keys {
			answer.Keys++
			answer.List = append(answer.List, ssh.Marshal(struct {
				Key     []byte
				Comment string
			}{k.PublicKey().Marshal(), ""})...)
		}
	}
	return ssh.Marshal(answer)
}

// sign signs the login of the bound session, and nothing else.
func (v *visit) sign(msg []byte) ([]byte, error) {
	var req struct {
		Key   []byte `sshtype:"13"`
		Data  []byte
		Flags uint32
	}
	if err := ssh.Unmarshal(msg, &req); err != nil {
		return nil, err
	}
	if err := v.isLogin(req.Key, req.Data); err != nil {
		return nil, err
	}
	for _, k := range v.loan.keys {
		if !bytes.Equal(k.PublicKey().Marshal(), req.Key) {
			continue
		}
		sig, err := signAs(k, req.Data, req.Flags)
		if err != nil {
			return nil, err
		}
		return ssh.Marshal(struct {
			Signature []byte `sshtype:"14"`
		}{ssh.Marshal(sig)}), nil
	}
	return nil, errors.New("no such key")
}

// isLogin checks that data is a login request as RFC 4252 §7 lets a client sign it. It must
// be for the bound session, user and key.
func (v *visit) isLogin(key, data []byte) error {
	var login struct {
		Session   []byte
		Message   byte
		User      string
		Service   string
		Method    string
		Signed    bool
		Algorithm string
		Key       []byte
		Rest      []byte `ssh:"rest"`
	}
	if err := ssh.Unmarshal(data, &login); err != nil {
		return err
	}
	const userAuthRequest = 50
	switch {
	case v.session == nil, !bytes.Equal(login.Session, v.session):
		return errors.New("not the session that was bound")
	case login.Message != userAuthRequest, login.Service != "ssh-connection", !login.Signed, !bytes.Equal(login.Key, key):
		return errors.New("not a login")
	case login.User != v.loan.user:
		return errors.New("another user")
	}
	switch login.Method {
	case "publickey":
		if len(login.Rest) > 0 {
			return errors.New("not a login")
		}
	case "publickey-hostbound-v00@openssh.com":
		if !bytes.Equal(login.Rest, ssh.Marshal(struct{ HostKey []byte }{v.loan.hostKey.Marshal()})) {
			return errors.New("another host key")
		}
	default:
		return errors.New("another method")
	}
	return nil
}

// signAs signs with the algorithm that the flags of the request select. It refuses RSA
// with SHA-1.
func signAs(key ssh.Signer, data []byte, flags uint32) (*ssh.Signature, error) {
	const sha256, sha512 = 2, 4
	algorithm := ""
	switch {
	case flags&sha512 != 0:
		algorithm = ssh.KeyAlgoRSASHA512
	case flags&sha256 != 0:
		algorithm = ssh.KeyAlgoRSASHA256
	}
	kind := key.PublicKey().Type()
	if kind != ssh.KeyAlgoRSA && kind != ssh.CertAlgoRSAv01 {
		return key.Sign(rand.Reader, data)
	}
	signer, ok := key.(ssh.AlgorithmSigner)
	if !ok || algorithm == "" {
		return nil, errors.New("RSA with SHA-1 is not served")
	}
	return signer.SignWithAlgorithm(rand.Reader, data, algorithm)
}
