package cli

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAccess: a collector with TLS and users is asked by the environment, and
// each way of asking wrongly says what to do.
func TestAccess(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ops" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	secure, plain := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	defer secure.Close()
	defer plain.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	password := file("password", "secret\n")
	for _, c := range []struct {
		name, server, want string
		env                map[string]string
	}{
		{"with all", secure.URL, "", map[string]string{envCAFile: ca, envUser: "ops", envPassword: "secret"}},
		{"with a password file", secure.URL, "", map[string]string{envCAFile: ca, envUser: "ops", envPasswordFile: password}},
		{"plain with a user", plain.URL, "", map[string]string{envUser: "ops", envPassword: "secret"}},
		{"no CA", secure.URL, "set EVENKEEL_CA_FILE", map[string]string{envUser: "ops", envPassword: "secret"}},
		{"no user", secure.URL, "set EVENKEEL_USER and EVENKEEL_PASSWORD", map[string]string{envCAFile: ca}},
		{"wrong password", secure.URL, "none of them", map[string]string{envCAFile: ca, envUser: "ops", envPassword: "x"}},
		{"http to https", strings.Replace(secure.URL, "https", "http", 1), "name it with https://", map[string]string{envUser: "ops", envPassword: "secret"}},
		{"https to http", strings.Replace(plain.URL, "http", "https", 1), "serves plain http://", nil},
		{"no such CA", secure.URL, "none.pem", map[string]string{envCAFile: filepath.Join(dir, "none.pem")}},
		{"a CA that is none", secure.URL, "holds no certificate", map[string]string{envCAFile: password}},
		{"a password for nobody", plain.URL, "set EVENKEEL_USER", map[string]string{envPassword: "secret"}},
		{"two passwords", plain.URL, "keep one", map[string]string{envUser: "ops", envPassword: "secret", envPasswordFile: password}},
	} {
		for _, name := range []string{envCAFile, envUser, envPassword, envPasswordFile} {
			t.Setenv(name, c.env[name])
		}
		_, err := NewClient(c.server).Get(context.Background(), "nodes", nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
