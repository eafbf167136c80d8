package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// watch prints what there is and then, whenever the collector's stream tells of
// a change, what is new or different. A stream that breaks is taken up again
// where it broke.
func (c *Client) watch(ctx context.Context, w io.Writer, a asked) error {
	p := &printer{client: c, asked: a, out: w, before: map[string]string{}}
	lastID, broke := "", false
	for ctx.Err() == nil { // its end is what a person makes
		err := c.follow(ctx, &lastID, func() error {
			if broke {
				c.note("the stream goes on")
				broke = false
			}
			return p.refresh(ctx)
		})
		var gone *lost
		switch {
		case ctx.Err() != nil:
			continue
		case !errors.As(err, &gone) || !p.begun:
			return err
		case !broke:
			c.note("the stream broke: %v; trying again", gone)
			broke = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(gone.retry):
		}
	}
	return nil
}

// lost is a stream that can be taken up again.
type lost struct {
	error
	retry time.Duration
}

// streamRetry is the wait before a stream is taken up again.
const streamRetry = time.Second

// follow reads the stream and calls changed for what it tells of.
func (c *Client) follow(ctx context.Context, lastID *string, changed func() error) error {
	header := http.Header{}
	if *lastID != "" {
		header.Set("Last-Event-ID", *lastID)
	}
	resp, err := c.open(ctx, "stream", nil, header)
	if err != nil {
		return again(err)
	}
	defer resp.Body.Close()
	if *lastID != "" { // a new reader is told of everything, one that comes back perhaps of nothing
		if err := changed(); err != nil {
			return again(err)
		}
	}
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	retry, name := streamRetry, ""
	for {
		line, err := wholeLine(lines)
		if err != nil {
			return &lost{fmt.Errorf("the collector closed it (%w)", err), retry}
		}
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "id":
			*lastID = value
		case "event":
			name = value
		case "retry":
			if d, err := time.ParseDuration(value + "ms"); err == nil {
				retry = d
			}
		case "":
			if name == "change" || name == "snapshot" {
				if err := changed(); err != nil {
					return again(err)
				}
			}
			name = ""
		}
	}
}

// again marks what may go well when it is tried again: a collector that is not
// there, or says that it cannot.
func again(err error) error {
	var away unreachable
	var no *refused
	if errors.As(err, &away) || errors.As(err, &no) && no.status >= http.StatusInternalServerError {
		return &lost{err, streamRetry}
	}
	return err
}

// wholeLine reads a line and keeps its beginning: data is not looked at, the
// list itself is asked for.
func wholeLine(r *bufio.Reader) (string, error) {
	var kept string
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			return "", err
		}
		if kept == "" {
			kept = string(part[:min(len(part), 200)])
		}
		if !more {
			return kept, nil
		}
	}
}

// printer prints items as they change.
type printer struct {
	client *Client
	asked  asked
	out    io.Writer
	begun  bool
	before map[string]string // by id, what tells a change
	widths []int
}

func (p *printer) refresh(ctx context.Context) error {
	items, err := p.client.items(ctx, p.asked)
	if err != nil {
		return err
	}
	now := map[string]string{}
	var changed []item
	for _, it := range items {
		id := p.asked.kind.id(it)
		now[id] = p.look(it)
		if before, known := p.before[id]; !known || before != now[id] {
			changed = append(changed, it)
		}
	}
	for id := range p.before {
		if _, still := now[id]; !still {
			p.client.note("%s no longer lists %s", p.asked.kind.names[0], id)
		}
	}
	p.before = now
	if !p.begun && len(items) == 0 {
		p.client.note("no %s found; waiting", p.asked.kind.names[0])
	}
	p.begun = true
	return p.print(changed)
}

// passing are fields that change by themselves.
var passing = []string{"age_seconds", "sampled_at", "seen", "heard"}

// look is what tells whether an item has changed.
func (p *printer) look(it item) string {
	if p.asked.Output == "json" || p.asked.Output == "yaml" {
		same := item{}
		for key, v := range it {
			same[key] = v
		}
		for _, key := range passing {
			delete(same, key)
		}
		data, err := json.Marshal(same)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	var out []string
	for _, c := range p.asked.kind.shown(p.asked.Output == "wide") {
		if c.head != "AGE" {
			out = append(out, cell(at(it, c.path), c.unit))
		}
	}
	return strings.Join(out, "\x00")
}

// print prints items: one line of JSON or one document of YAML each, or rows
// whose columns are as wide as those before them.
func (p *printer) print(items []item) error {
	switch p.asked.Output {
	case "json":
		enc := json.NewEncoder(p.out)
		for _, it := range items {
			if err := enc.Encode(it); err != nil {
				return err
			}
		}
		return nil
	case "yaml":
		for _, it := range items {
			if _, err := io.WriteString(p.out, "---\n"); err != nil {
				return err
			}
			if err := printYAML(p.out, it); err != nil {
				return err
			}
		}
		return nil
	}
	columns := p.asked.kind.shown(p.asked.Output == "wide")
	var rows [][]string
	if p.widths == nil && len(items) > 0 {
		p.widths = make([]int, len(columns))
		rows = append(rows, heads(columns))
	}
	for _, it := range items {
		rows = append(rows, cells(columns, it))
	}
	for _, r := range rows {
		for i, text := range r {
			p.widths[i] = max(p.widths[i], len([]rune(text)))
		}
	}
	for _, r := range rows {
		var line strings.Builder
		for i, text := range r {
			fmt.Fprintf(&line, "%-*s  ", p.widths[i], text)
		}
		if _, err := io.WriteString(p.out, strings.TrimRight(line.String(), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}
