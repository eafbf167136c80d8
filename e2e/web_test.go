package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secretHash is bcrypt of "secret".
const secretHash = "$2a$04$WYp9sBTtwZ64I5YWuVSu5.5VMXDo0fHXeUNbyRZeNDxO9HLNqkCZy"

// certificates writes a CA and, signed by it, a certificate for 127.0.0.1.
func (s *stack) certificates() (pool *x509.CertPool) {
	s.t.Helper()
	make509 := func(name string, ca bool, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			s.t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true,
		}
		if parent == nil {
			parent, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
		if err != nil {
			s.t.Fatal(err)
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.file(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
		s.file(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
		if c, err = x509.ParseCertificate(der); err != nil {
			s.t.Fatal(err)
		}
		return c, key
	}
	ca, key := make509("ca", true, nil, nil)
	make509("server", false, ca, key)
	pool = x509.NewCertPool()
	pool.AddCert(ca)
	return pool
}

// TestTLSAndUsers: every process serves over TLS to its users alone, on every
// path; the command line asks by the environment; a bad file ends the start.
func TestTLSAndUsers(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const node = "gpu-1"
	s.startNATS(node)
	pool := s.certificates()
	web := s.file("web.yaml", "tls_server_config: {cert_file: server.pem, key_file: server.key}\nbasic_auth_users: {ops: "+secretHash+"}\n")
	cfg := s.configs(node)
	for _, role := range []string{"collector", "rebalancer", "exporter", "agent"} {
		text, err := os.ReadFile(cfg[role])
		if err != nil {
			t.Fatal(err)
		}
		s.file(role+".yaml", string(text)+"web_config_file: "+web+"\n")
	}
	s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/quick-world.yaml", "--node", node, "--shm", s.shm)
	s.start("collector", "evenkeel", "collector", "-c", cfg["collector"])
	s.start("rebalancer", "evenkeel", "rebalancer", "-c", cfg["rebalancer"])
	s.start("exporter", "evenkeel-node", "export", "-c", cfg["exporter"])
	s.start("agent", "evenkeel-node", "agent", "-c", cfg["agent"])

	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	code := func(role, path, user, password string) (int, error) {
		r, err := http.NewRequest(http.MethodGet, "https://"+s.addr[role]+path, nil)
		if err != nil {
			return 0, err
		}
		if user != "" {
			r.SetBasicAuth(user, password)
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	for role, paths := range map[string][]string{
		"collector":  {"/", "/metrics", "/-/ready", "/-/healthy", "/api/evenkeel/v1/nodes", "/api/v1/query?query=up"},
		"rebalancer": {"/metrics", "/-/healthy"}, "exporter": {"/metrics"}, "agent": {"/metrics"},
	} {
		s.eventually(40*time.Second, role+" answers its user", func() error {
			got, err := code(role, paths[0], "ops", "secret")
			if err == nil && got != http.StatusOK {
				err = fmt.Errorf("%d", got)
			}
			return err
		})
		for _, path := range paths {
			for user, password := range map[string]string{"": "", "ops": "wrong", "root": "secret"} {
				if got, err := code(role, path, user, password); got != http.StatusUnauthorized {
					t.Errorf("%s %s for %q: %d, %v, want 401", role, path, user, got, err)
				}
			}
			if got, err := code(role, path, "ops", "secret"); got == http.StatusUnauthorized || err != nil {
				t.Errorf("%s %s for its user: %d, %v", role, path, got, err)
			}
		}
		if resp, err := http.Get("http://" + s.addr[role] + paths[0]); err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s serves plain HTTP: %s", role, resp.Status)
			}
		}
	}

	ask := func(env ...string) (string, error) {
		cmd := exec.Command(filepath.Join(s.bin, "evenkeel"), "get", "nodes", "--server", "https://"+s.addr["collector"])
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	ca := "EVENKEEL_CA_FILE=" + filepath.Join(s.dir, "ca.pem")
	s.eventually(30*time.Second, "the command line is answered", func() error {
		out, err := ask(ca, "EVENKEEL_USER=ops", "EVENKEEL_PASSWORD=secret")
		if err == nil && !strings.Contains(out, node) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if out, err := ask(ca); err == nil || !strings.Contains(out, "set EVENKEEL_USER") {
		t.Errorf("without a user: %v, %s", err, out)
	}
	if out, err := ask(); err == nil || !strings.Contains(out, "set EVENKEEL_CA_FILE") {
		t.Errorf("without the CA: %v, %s", err, out)
	}

	bad := s.file("bad-web.yaml", "tls_server_config: {cert_file: none.pem, key_file: server.key}\n")
	for _, c := range []struct{ role, binary, command string }{{"collector-2", "evenkeel", "collector"}, {"standby", "evenkeel", "rebalancer"}} {
		text, err := os.ReadFile(cfg[c.role])
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(s.bin, c.binary), c.command, "-c", s.file("bad-"+c.role+".yaml", string(text)+"web_config_file: "+bad+"\n"))
		cmd.Env = append(os.Environ(), s.env...)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "web_config_file "+bad) || !strings.Contains(string(out), "none.pem") {
			t.Errorf("%s with a bad file: %v, %s", c.command, err, out)
		}
	}
}
