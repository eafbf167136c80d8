package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// Describe prints all that is known of one thing, with what was judged of it
// and on what that rests.
func (c *Client) Describe(ctx context.Context, w io.Writer, kindName, name string) error {
	k, err := kindOf(kindName)
	if err != nil {
		return err
	}
	d := &sheet{out: w}
	switch k.names[0] {
	case "nodes":
		err = c.describeNode(ctx, d, name)
	case "gpus":
		err = c.describeGPU(ctx, d, name)
	case "workloads":
		err = c.describeWorkload(ctx, d, name)
	case "decisions":
		err = c.describeDecision(ctx, d, name)
	default:
		return command.Usagef("%s are not described one by one; `get %s -o wide` tells all of them", k.names[0], k.names[0])
	}
	if err != nil {
		return err
	}
	return d.err
}

// Describable lists the kinds that are described.
func Describable() []string { return KindNames()[:4] }

// sheet is a description: names and values, lists below them.
type sheet struct {
	out io.Writer
	err error
}

func (s *sheet) print(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.out, text)
	}
}

const nameWidth = 14

// row prints a name and its value; more lines of it stand below the value.
func (s *sheet) row(name, format string, args ...any) {
	s.print(fmt.Sprintf("%-*s %s\n", nameWidth, name+":", fmt.Sprintf(format, args...)))
}

// more prints further lines of the value above.
func (s *sheet) more(lines ...string) {
	for _, l := range lines {
		s.print(strings.Repeat(" ", nameWidth+1) + l + "\n")
	}
}

// known prints a row if there is something to say.
func (s *sheet) known(name, text string) {
	if text != "" {
		s.row(name, "%s", text)
	}
}

// list prints a table below a name; none is said.
func (s *sheet) list(name string, rows [][]string) {
	if len(rows) < 2 {
		s.row(name, "none")
		return
	}
	s.print(name + ":\n")
	if s.err == nil {
		s.err = table(s.out, "  ", rows)
	}
}

// ask reads one answer of the API.
func (c *Client) ask(ctx context.Context, path string, query url.Values, into any) error {
	body, err := c.Get(ctx, path, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the collector's answer is not what it should be: %w", err)
	}
	return nil
}

// decisionsAbout prints the newest decisions about a node, GPU or workload.
func (c *Client) decisionsAbout(ctx context.Context, s *sheet, target string) error {
	var l ui.List[*telemetry.Decision]
	if err := c.ask(ctx, "decisions", url.Values{"target": {target}, "limit": {"5"}}, &l); err != nil {
		return err
	}
	rows := [][]string{{"ID", "TIME", "POLICY", "ACT", "OUTCOME", "WHY"}}
	for _, d := range l.Items {
		rows = append(rows, []string{d.ID, d.Time.UTC().Format("2006-01-02 15:04:05"), d.Policy, string(d.Kind), string(d.Outcome), d.Why})
	}
	s.list("Decisions", rows)
	if l.Total > len(l.Items) {
		s.print(fmt.Sprintf("  and %d older\n", l.Total-len(l.Items)))
	}
	return nil
}

// alertsAbout prints what the rules say of a node; nothing where none are
// evaluated.
func (c *Client) alertsAbout(ctx context.Context, s *sheet, node, uuid string) error {
	var l ui.List[ui.Alert]
	err := c.ask(ctx, "alerts", url.Values{"node": {node}}, &l)
	if no := (*refused)(nil); errors.As(err, &no) && no.status == http.StatusServiceUnavailable {
		s.row("Alerts", "not known: no rules are evaluated at this collector")
		return nil
	}
	if err != nil {
		return err
	}
	rows := [][]string{{"SEVERITY", "STATE", "SINCE", "NAME", "SUMMARY"}}
	for _, a := range l.Items {
		if of := a.Labels["uuid"]; uuid == "" || of == "" || of == uuid {
			rows = append(rows, []string{or(a.Severity), a.State, a.Since.UTC().Format("2006-01-02 15:04:05"), a.Name, or(a.Summary)})
		}
	}
	s.list("Alerts", rows)
	return nil
}

func (c *Client) describeDecision(ctx context.Context, s *sheet, id string) error {
	path := "decisions/" + url.PathEscape(id)
	var d telemetry.Decision
	if err := c.ask(ctx, path, nil, &d); err != nil {
		return err
	}
	s.row("Name", "%s", d.ID)
	s.row("Policy", "%s%s, mode %s", d.Policy, bracket(d.Revision), d.Mode)
	s.row("Act", "%s (%s)", d.Kind, d.Class)
	s.row("Target", "%s", d.Target)
	s.row("Outcome", "%s%s", d.Outcome, map[bool]string{true: ", holds something"}[d.Open()])
	s.row("Made", "%s", c.ago(d.Time))
	if d.LastSeen.After(d.FirstSeen) {
		s.row("Seen", "from %s to %s UTC", d.FirstSeen.UTC().Format("15:04:05"), d.LastSeen.UTC().Format("15:04:05"))
	}
	if !d.Ended.IsZero() {
		s.row("Ended", "%s%s", c.ago(d.Ended), map[bool]string{true: ": " + d.Ending}[d.Ending != ""])
	} else if !d.VerifyBy.IsZero() {
		s.row("Verified by", "%s UTC", d.VerifyBy.UTC().Format("2006-01-02 15:04:05"))
	}
	s.row("Leader", "incarnation %s, revision %d", d.Epoch.Incarnation, d.Epoch.Revision)
	if a := d.Approval; a != nil {
		s.row("Approval", "%s by %s, %s", a.Verdict, a.By, c.ago(a.At))
	}
	steps := [][]string{{"ID", "KIND", "BACKEND", "TARGET", "RESULT"}}
	for _, r := range d.Steps {
		result := "no receipt yet"
		if r.Receipt != nil {
			result = strings.TrimSpace(string(r.Receipt.Result) + " " + r.Receipt.Detail)
		}
		steps = append(steps, []string{r.Step.ID, string(r.Step.Kind), r.Step.Backend, r.Step.Target.String(), result})
	}
	s.list("Steps", steps)
	text, err := c.Get(ctx, path+"/explain", nil)
	if err != nil {
		return err
	}
	// Its first lines say what stands above.
	if _, why, ok := strings.Cut(string(text), "\nWhy\n"); ok {
		s.print("\nWhy\n" + why)
		return nil
	}
	s.print("\n" + string(text))
	return nil
}

func bracket(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// gpuNamed finds the uuid of a GPU that is named by node and index.
func (c *Client) gpuNamed(ctx context.Context, name string) (string, error) {
	node, index, ok := strings.Cut(name, "/")
	if !ok {
		return name, nil
	}
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 {
		return "", command.Usagef("GPU %q; want its uuid, or node/index such as a-1/0", name)
	}
	var l ui.List[ui.GPU]
	if err := c.ask(ctx, "gpus", url.Values{"node": {node}}, &l); err != nil {
		return "", err
	}
	for _, g := range l.Items {
		if g.Index == n {
			return g.UUID, nil
		}
	}
	return "", fmt.Errorf("node %q has no GPU %d among the %d known of it; `evenkeel get gpus` lists all", node, n, len(l.Items))
}
