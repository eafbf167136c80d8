package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Client asks one collector.
type Client struct {
	// Server is the collector's address, such as http://127.0.0.1:9837.
	Server string
	HTTP   *http.Client
}

// NewClient takes an address with or without a scheme.
func NewClient(server string) *Client {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return &Client{Server: strings.TrimRight(server, "/"), HTTP: &http.Client{Timeout: 15 * time.Second}}
}

// maxAnswer bounds what is read of one answer: a fleet of 100,000 GPUs fits.
const maxAnswer = 256 << 20

// Get fetches a path below /api/evenkeel/v1/.
func (c *Client) Get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	u := c.Server + "/api/evenkeel/v1/" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", c.Server, err)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("no collector answers at %s; start one (`evenkeel up`) or name another with --server", c.Server)
		}
		return nil, fmt.Errorf("ask the collector: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the collector's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, apiError(resp.Status, body)
	}
	return body, nil
}

func apiError(status string, body []byte) error {
	var e struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return errors.New(e.Error.Message)
	}
	return fmt.Errorf("the collector answers %s", status)
}
