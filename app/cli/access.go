package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// Names of the environment by which a collector with TLS and users is asked; a
// password in an argument would be everybody's to read.
const (
	envCAFile       = "EVENKEEL_CA_FILE"
	envUser         = "EVENKEEL_USER"
	envPassword     = "EVENKEEL_PASSWORD"
	envPasswordFile = "EVENKEEL_PASSWORD_FILE"
)

// access is a transport that proves who asks.
type access struct {
	http.RoundTripper
	user, password string
}

// newAccess reads the environment.
func newAccess(env func(string) string) (http.RoundTripper, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	if path := env(envCAFile); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", envCAFile, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s: %s holds no certificate in PEM", envCAFile, path)
		}
		base.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	a := access{RoundTripper: base, user: env(envUser), password: env(envPassword)}
	if path := env(envPasswordFile); path != "" {
		if a.password != "" {
			return nil, fmt.Errorf("%s and %s are both set; keep one", envPassword, envPasswordFile)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", envPasswordFile, err)
		}
		a.password = strings.TrimSpace(string(data))
	}
	if a.user == "" && a.password != "" {
		return nil, fmt.Errorf("a password is set without a user; set %s", envUser)
	}
	return a, nil
}

// RoundTrip implements http.RoundTripper.
func (a access) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.user != "" {
		r = r.Clone(r.Context())
		r.SetBasicAuth(a.user, a.password)
	}
	return a.RoundTripper.RoundTrip(r)
}

// hint says what to do about a refusal that lies in how the collector is asked.
func hint(err error) error {
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; set %s to the certificate of the CA that signed the collector's", err, envCAFile)
	case errors.As(err, &record), err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w; the collector serves plain http://", err)
	}
	return err
}

// denied is the error of an answer that stands for the way of asking, nil for
// any other.
func denied(server, status string, code int, body []byte) error {
	switch {
	case code == http.StatusUnauthorized:
		return fmt.Errorf("the collector at %s knows users, and this is none of them; set %s and %s", server, envUser, envPassword)
	case code == http.StatusBadRequest && strings.Contains(string(body), "HTTP request to an HTTPS server"):
		return fmt.Errorf("the collector at %s serves TLS (%s); name it with https://", server, status)
	}
	return nil
}
