package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Explain prints why: of a decision (its id), of a workload (workload/REF), or
// of the present quiet (nothing).
func (c *Client) Explain(ctx context.Context, w io.Writer, what, output string) error {
	if !slices.Contains([]string{"", "text", "json", "yaml"}, output) {
		return command.Usagef("output %q; want text, json or yaml", output)
	}
	path := "decisions/" + url.PathEscape(what)
	switch ref, isWorkload := strings.CutPrefix(what, "workload/"); {
	case what == "nothing":
		return c.copy(ctx, w, "explain/nothing")
	case isWorkload:
		if err := telemetry.WorkloadRef(ref).Check(); err != nil {
			return command.Usagef("%w", err)
		}
		return c.copy(ctx, w, "explain/workload/"+ref)
	case output == "json" || output == "yaml":
		body, err := c.Get(ctx, path, nil)
		if err != nil {
			return err
		}
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			return fmt.Errorf("the collector's answer is not JSON: %w", err)
		}
		if output == "yaml" {
			return printYAML(w, v)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	return c.copy(ctx, w, path+"/explain")
}

// Plan prints what the rebalancer would do now.
func (c *Client) Plan(ctx context.Context, w io.Writer, output string) error {
	if !slices.Contains([]string{"", "text", "json"}, output) {
		return command.Usagef("output %q; want text or json", output)
	}
	body, err := c.Get(ctx, "plan", nil)
	if err != nil {
		return err
	}
	if output == "json" {
		_, err = w.Write(append(body, '\n'))
		return err
	}
	var plan struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(body, &plan); err != nil || plan.Text == "" {
		return fmt.Errorf("the leader's answer holds no text; use -o json to see it")
	}
	_, err = io.WriteString(w, plan.Text)
	return err
}

func (c *Client) copy(ctx context.Context, w io.Writer, path string) error {
	body, err := c.Get(ctx, path, nil)
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}
