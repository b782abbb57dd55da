package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime limits how long a cluster can be used: nobody renews its certificates.
const lifetime = 30 * 24 * time.Hour

// An authority signs the certificates of one cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "multihost test cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-time.Hour), now.Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// issue returns a certificate and its key in PEM. With groups, the certificate is for a client
// that belongs to them. Without groups, it is for a server on 127.0.0.1.
func (a *authority) issue(name string, groups ...string) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(groups) == 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.IPAddresses, template.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	}
	c, err := sign(template, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// The files with keys of a cluster, below its directory.
const (
	fileCA       = "pki/ca.crt"
	fileServer   = "pki/server/tls" // .crt and .key; the webhooks want these names
	fileKubelet  = "pki/kubelet-client"
	fileAccounts = "pki/accounts.key"
	adminGroup   = "system:masters"
)

// writeKeys writes the files of the cluster's servers.
func (a *authority) writeKeys(dir string) error {
	if err := write(filepath.Join(dir, fileCA), a.pem); err != nil {
		return err
	}
	for file, groups := range map[string][]string{fileServer: nil, fileKubelet: {adminGroup}} {
		cert, key, err := a.issue("multihost-test", groups...)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, file+".crt"), cert); err != nil {
			return err
		}
		if err := write(filepath.Join(dir, file+".key"), key); err != nil {
			return err
		}
	}
	accounts, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, fileAccounts), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(accounts)}))
}

// serverTLS returns the TLS configuration for a server on 127.0.0.1. The server asks clients
// for a certificate of the authority, and accepts clients without one.
func (a *authority) serverTLS() (*tls.Config, error) {
	cert, key, err := a.issue("multihost-test")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven}, nil
}

// write writes a file that only its owner can read, and makes its directory.
func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// kubeconfig returns a file for kubectl with one context, whose user is authenticated by a
// certificate.
func (a *authority) kubeconfig(server, user string, groups ...string) ([]byte, error) {
	cert, key, err := a.issue(user, groups...)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: test, user: {client-certificate-data: %s, client-key-data: %s}}]
`, server, encode(a.pem), encode(cert), encode(key))
	return b.Bytes(), nil
}
