package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/app/command"
)

// Client asks one collector.
type Client struct {
	// Server is the collector's address, such as http://127.0.0.1:9837.
	Server string
	HTTP   *http.Client
	err    error // of what the environment says of the way to ask
	// Notes takes what is not the answer; nil for nothing.
	Notes io.Writer
	// Now is the clock that times are told against.
	Now func() time.Time
}

// NewClient takes an address with or without a scheme.
func NewClient(server string) *Client {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	how, err := newAccess(os.Getenv)
	return &Client{Server: strings.TrimRight(server, "/"), HTTP: &http.Client{Transport: how}, Now: time.Now, err: err}
}

// note tells a person something that is not the answer.
func (c *Client) note(format string, args ...any) {
	if c.Notes != nil {
		fmt.Fprintf(c.Notes, format+"\n", args...)
	}
}

const (
	// maxAnswer bounds what is read of one answer: a fleet of 100,000 GPUs fits.
	maxAnswer = 256 << 20
	// patience is how long one answer may take.
	patience = 30 * time.Second
)

// Get fetches a path below /api/evenkeel/v1/.
func (c *Client) Get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := c.open(ctx, path, query, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, unreachable{fmt.Errorf("read the collector's answer: %w", err)}
	}
	return body, nil
}

// open begins an answer; one that is not a success is an error in its words.
func (c *Client) open(ctx context.Context, path string, query url.Values, header http.Header) (*http.Response, error) {
	if c.err != nil {
		return nil, c.err
	}
	u := c.Server + "/api/evenkeel/v1/" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", c.Server, err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("no collector answers at %s; start one (`evenkeel up`) or name another with --server", c.Server)
		} else {
			err = fmt.Errorf("ask the collector: %w", hint(err))
		}
		return nil, unreachable{err}
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read the collector's answer: %w", err)
	}
	if err := denied(c.Server, resp.Status, resp.StatusCode, body); err != nil {
		return nil, err
	}
	return nil, apiError(resp, body)
}

// unreachable is a collector that does not answer, or not to the end.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// refused is an error in the collector's words.
type refused struct {
	status  int
	message string
}

func (r *refused) Error() string { return r.message }

// apiError words an answer that is not a success. What the collector calls a
// bad parameter came from the command line.
func apiError(resp *http.Response, body []byte) error {
	var e struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(body, &e) != nil || e.Error.Message == "" {
		return &refused{resp.StatusCode, fmt.Sprintf("the collector answers %s", resp.Status)}
	}
	if e.Error.Code == "bad_parameter" || e.Error.Code == "bad_reference" {
		return command.Usagef("%s", e.Error.Message)
	}
	return &refused{resp.StatusCode, e.Error.Message}
}
