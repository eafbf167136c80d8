package lifecycle

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secretHash is bcrypt of "secret".
const secretHash = "$2a$04$WYp9sBTtwZ64I5YWuVSu5.5VMXDo0fHXeUNbyRZeNDxO9HLNqkCZy"

// certificate writes a certificate for 127.0.0.1 that is its own CA.
func certificate(t *testing.T, dir string, serial int64) (pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "evenkeel test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return pool
}

const tlsPart = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"

// TestServeWeb: TLS and users hold for every path, change without a restart, and
// a stream still ends with the process.
func TestServeWeb(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir, 1)
	file := filepath.Join(dir, "web.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tlsPart + "basic_auth_users: {ops: " + secretHash + "}\n")
	web, err := OpenWeb(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p := New(ctx)
	ln, err := Listen("test", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.ServeWeb("test", ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("open\n"))
		if r.URL.Path == "/stream" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}), web)
	ended := make(chan error, 1)
	go func() { ended <- p.Run() }()
	if !strings.HasPrefix(web.URL(ln), "https://127.0.0.1:") {
		t.Errorf("it is at %s", web.URL(ln))
	}
	get := func(pool *x509.CertPool, path, user, password string) (*http.Response, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
		r, err := http.NewRequest(http.MethodGet, web.URL(ln)+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			r.SetBasicAuth(user, password)
		}
		return client.Do(r)
	}
	for _, c := range []struct {
		user, password string
		code           int
	}{{"ops", "secret", 200}, {"", "", 401}, {"ops", "wrong", 401}, {"root", "secret", 401}} {
		resp, err := get(pool, "/x", c.user, c.password)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.code {
			t.Errorf("%s:%s: %s, want %d", c.user, c.password, resp.Status, c.code)
		}
	}
	if resp, err := get(x509.NewCertPool(), "/x", "ops", "secret"); err == nil {
		resp.Body.Close()
		t.Error("a client takes a certificate of nobody")
	}

	fresh := certificate(t, dir, 2)
	write(tlsPart + "basic_auth_users: {night: " + secretHash + "}\n")
	resp, err := get(fresh, "/stream", "night", "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "open\n" {
		t.Errorf("with another certificate and user: %s, %q, %v", resp.Status, line, err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the process waits for its stream")
	}
}

// TestOpenWeb: a file that cannot be served with is an error at the start that
// names file and fault.
func TestOpenWeb(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, 1)
	log := slog.New(slog.DiscardHandler)
	for text, want := range map[string]string{
		"tls_server_cfg: {}\n":                                          "tls_server_cfg",
		"basic_auth_users: {ops: plain}\n":                              "hashedSecret too short",
		"tls_server_config: {cert_file: none.pem, key_file: key.pem}\n": "none.pem",
		"tls_server_config: {cert_file: cert.pem}\n":                    "missing one of key",
		"- a\n": "cannot unmarshal",
	} {
		file := filepath.Join(dir, "web.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenWeb(file, log); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "web_config_file "+file) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := OpenWeb(filepath.Join(dir, "none.yaml"), log); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("no such file: %v", err)
	}
	for text, scheme := range map[string]string{"": "http", "basic_auth_users: {ops: " + secretHash + "}\n": "http", tlsPart: "https"} {
		file := filepath.Join(dir, "good.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if w, err := OpenWeb(file, log); err != nil || w.scheme != scheme {
			t.Errorf("%q: %+v, %v", text, w, err)
		}
	}
}
