package bus_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// authority issues certificates; another one has another key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.pem, _ = issue(t, nil, &x509.Certificate{Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func issue(t *testing.T, by *authority, c *x509.Certificate) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}

// serve is a server that takes clients of one authority only, and is one of it.
func (a *authority) serve(t *testing.T, port int) *server.Server {
	t.Helper()
	_, _, certPEM, keyPEM := issue(t, a, &x509.Certificate{Subject: pkix.Name{CommonName: "bus"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.pem)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, TLS: true, TLSTimeout: 5, TLSVerify: true,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(within) {
		t.Fatal("the server does not start")
	}
	return s
}

// Certificates of server and client are turned under a connection that stands:
// it reads its files again and is back, without a restart of the process. With
// files of the old authority it is not, and is as soon as they are there.
func TestCertificatesAreTurned(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	client := func(a *authority) {
		_, _, certPEM, keyPEM := issue(t, a, &x509.Certificate{Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		for name, data := range map[string][]byte{"ca.pem": a.pem, "cert.pem": certPEM, "key.pem": keyPEM} {
			if err := os.WriteFile(file(name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	before, after := newAuthority(t), newAuthority(t)
	s := before.serve(t, port)
	client(before)
	o := quick(s.ClientURL())
	o.CAFile, o.CertFile, o.KeyFile = file("ca.pem"), file("cert.pem"), file("key.pem")
	c := connect(t, o)
	s.Shutdown()
	s.WaitForShutdown()
	after.serve(t, port)
	time.Sleep(200 * time.Millisecond)
	if c.Connected() {
		t.Fatal("it trusts a server of an authority that it does not know")
	}
	client(after)
	eventually(t, "the connection stands again", c.Connected)
	if _, err := bus.Connect(bus.Options{URLs: o.URLs, CAFile: file("none.pem")}); err == nil {
		t.Error("a file of authorities that is not there is no error")
	}
}
