package cli

import (
	"bytes"
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
	ref, isWorkload := strings.CutPrefix(what, "workload/")
	structured := output == "json" || output == "yaml"
	switch {
	case structured && (what == "nothing" || isWorkload):
		return command.Usagef("output %q is there for decisions only; this is text", output)
	case what == "nothing":
		return c.copy(ctx, w, "explain/nothing")
	case isWorkload:
		if err := telemetry.WorkloadRef(ref).Check(); err != nil {
			return command.Usagef("%w", err)
		}
		return c.copy(ctx, w, "explain/workload/"+ref)
	case !strings.HasPrefix(what, "d-"):
		return command.Usagef("%q is no decision's id; want one as `get decisions` lists them, workload/REF as `get workloads` does, or nothing", what)
	case structured:
		body, err := c.Get(ctx, path, nil)
		if err != nil {
			return err
		}
		return printStructured(w, body, output)
	}
	return c.copy(ctx, w, path+"/explain")
}

// Plan prints what the rebalancer would do now.
func (c *Client) Plan(ctx context.Context, w io.Writer, output string) error {
	if !slices.Contains([]string{"", "text", "json", "yaml"}, output) {
		return command.Usagef("output %q; want text, json or yaml", output)
	}
	body, err := c.Get(ctx, "plan", nil)
	if err != nil {
		return err
	}
	if output == "json" || output == "yaml" {
		return printStructured(w, body, output)
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

// printStructured prints an answer of the collector as indented JSON or as YAML.
func printStructured(w io.Writer, body []byte, output string) error {
	var v any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("the collector's answer is not JSON: %w", err)
	}
	if output == "yaml" {
		return printYAML(w, v)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (c *Client) copy(ctx context.Context, w io.Writer, path string) error {
	body, err := c.Get(ctx, path, nil)
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}
