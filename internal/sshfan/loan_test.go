package sshfan

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"net"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

func testSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// A request is what a client sends to get a signature. Each test changes one thing in it.
type request struct {
	host       ssh.Signer // the key that the server proves to have
	claim      ssh.Signer // the key that the binding names
	bound      string     // the session to bind
	proven     string     // the session id that the host has signed
	forwarding bool
	skip       bool // without a binding

	session, user, service, method string
	signed                         byte
	key                            ssh.Signer // the key that is to sign
	named                          ssh.Signer // host key in the login
	data                           []byte     // sent in place of a login
}

func (r request) login() []byte {
	if r.data != nil {
		return r.data
	}
	data := ssh.Marshal(struct {
		Session               []byte
		Message               byte
		User, Service, Method string
		Signed                byte
		Algorithm             string
		Key                   []byte
	}{[]byte(r.session), 50, r.user, r.service, r.method, r.signed, r.key.PublicKey().Type(), r.key.PublicKey().Marshal()})
	if r.named != nil {
		data = append(data, ssh.Marshal(struct{ Key []byte }{r.named.PublicKey().Marshal()})...)
	}
	return data
}

// ask plays the client of a loan.
func (r request) ask(t *testing.T, o *loan) (*ssh.Signature, []byte, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.serve(ours)
		ours.Close()
	}()
	defer func() {
		theirs.Close()
		<-done
	}()
	client := agent.NewClient(theirs)
	if !r.skip {
		sig, err := r.host.Sign(rand.Reader, []byte(r.proven))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Extension("session-bind@openssh.com", ssh.Marshal(struct {
			HostKey, Session, Signature []byte
			Forwarding                  bool
		}{r.claim.PublicKey().Marshal(), []byte(r.bound), ssh.Marshal(sig), r.forwarding})) // a wrong signature
	}
	data := r.login()
	sig, err := client.Sign(r.key.PublicKey(), data)
	return sig, data, err
}

func TestLoanSignsOneLoginAndNothingElse(t *testing.T) {
	key, worker, other := testSigner(t), testSigner(t), testSigner(t)
	good := func() request {
		return request{
			host: worker, claim: worker, bound: "id", proven: "id",
			session: "id", user: "ann", service: "ssh-connection", method: "publickey-hostbound-v00@openssh.com", signed: 1,
			key: key, named: worker,
		}
	}
	for name, change := range map[string]func(*request){
		"the login":                   func(*request) {},
		"the login, method of old":    func(r *request) { r.method, r.named = "publickey", nil },
		"no binding":                  func(r *request) { r.skip = true },
		"another worker":              func(r *request) { r.host, r.claim, r.named = other, other, other },
		"a worker that is only named": func(r *request) { r.host = other },
		"proof of another session":    func(r *request) { r.proven = "other" },
		"a session passed on":         func(r *request) { r.forwarding = true },
		"an empty session":            func(r *request) { r.bound, r.proven, r.session = "", "", "" },
		"another session":             func(r *request) { r.session = "other" },
		"another user":                func(r *request) { r.user = "root" },
		"another service":             func(r *request) { r.service = "ssh-userauth" },
		"another method":              func(r *request) { r.method = "hostbased" },
		"a question only":             func(r *request) { r.signed = 0 },
		"another host in the login":   func(r *request) { r.named = other },
		"no host in the login":        func(r *request) { r.named = nil },
		"more than a login":           func(r *request) { r.method = "publickey" },
		"a key that is not ours":      func(r *request) { r.key = other },
		"no login":                    func(r *request) { r.data = []byte("SSHSIG anything") },
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			change(&r)
			sig, data, err := r.ask(t, &loan{keys: []ssh.Signer{key}, user: "ann", hostKey: worker.PublicKey()})
			if name == "the login" || name == "the login, method of old" {
				if err != nil {
					t.Fatal(err)
				}
				if err := key.PublicKey().Verify(data, sig); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Error("signed")
			}
		})
	}

	o := &loan{keys: []ssh.Signer{key}, user: "ann", hostKey: worker.PublicKey()}
	if _, _, err := good().ask(t, o); err != nil {
		t.Fatal(err)
	}
	if _, _, err := good().ask(t, o); err == nil {
		t.Error("a second login is signed")
	}
}

func TestLoanOfAnRSAKeySignsNoSHA1(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[uint32]string{0: "", 2: ssh.KeyAlgoRSASHA256, 4: ssh.KeyAlgoRSASHA512, 6: ssh.KeyAlgoRSASHA512} {
		sig, err := signAs(key, []byte("data"), flags)
		switch {
		case want == "" && err == nil:
			t.Error("signed with SHA-1")
		case want != "" && (err != nil || sig.Format != want):
			t.Errorf("flags %d: %v, %v; want %s", flags, sig, err, want)
		}
	}
}
