package cli

import (
	"context"
	"fmt"
	"time"
)

// namesWithin bounds what completion waits for: a shell stands still meanwhile.
const namesWithin = 2 * time.Second

// Names lists what there is of a kind, as `describe` takes it; nothing where no
// collector answers, since a completion has nobody to tell it to.
func (c *Client) Names(ctx context.Context, kindName string) []string {
	ctx, cancel := context.WithTimeout(ctx, namesWithin)
	defer cancel()
	a, err := Query{Kind: kindName, Limit: 100}.understand()
	if err != nil {
		return nil
	}
	quiet := *c
	quiet.Notes = nil
	items, err := quiet.items(ctx, a)
	if err != nil {
		return nil
	}
	var out []string
	for _, it := range items {
		name := a.kind.id(it)
		if a.kind.names[0] == "gpus" {
			name = fmt.Sprintf("%s/%s", cell(at(it, "node"), ""), cell(at(it, "index"), ""))
		}
		out = append(out, name)
	}
	return out
}
