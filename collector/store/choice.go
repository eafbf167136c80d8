package store

import (
	"log/slog"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// choice says which families are kept.
type choice struct {
	series Series
	gpus   func() int
	read   map[string]bool // by rules
	log    *slog.Logger

	judged bool // only those, now
	said   bool // that the fleet is beyond what is made for
}

func newChoice(o Options, reads []string) *choice {
	c := &choice{series: o.Series, gpus: o.GPUs, read: map[string]bool{}, judged: o.Series == Judged, log: o.Log}
	for _, name := range reads {
		c.read[name] = true
	}
	return c
}

// look goes by the size of the fleet. It does not go back and forth about a
// node that comes and goes: all are kept again below four fifths of the mark.
func (c *choice) look() {
	if c.gpus == nil {
		return
	}
	n := c.gpus()
	if !c.said && n > JudgedGPUs {
		c.said = true
		c.log.Warn("the fleet is larger than one machine's store is made for; let remote_write take the series to a larger one, or several Prometheus share /metrics by shards", "gpus", n, "made_for", JudgedGPUs)
	}
	if c.series != Auto {
		return
	}
	switch {
	case !c.judged && n > AllGPUs:
		c.judged = true
		c.log.Warn("the store keeps the judged series and those that rules read from now on; store.series: all keeps every one", "gpus", n, "all_up_to", AllGPUs)
	case c.judged && n <= AllGPUs*4/5:
		c.judged = false
		c.log.Info("the store keeps all series again", "gpus", n)
	}
}

// keeps says whether a family is kept.
func (c *choice) keeps(name string) bool {
	if !c.judged || c.read[name] {
		return true
	}
	row := rowOf(name)
	return row == nil || row.Origin != telemetry.FromNode || row.Per == telemetry.PerNode
}

var rows = func() map[string]*telemetry.Row {
	m := make(map[string]*telemetry.Row, len(telemetry.Catalog))
	for i := range telemetry.Catalog {
		m[telemetry.Catalog[i].Name] = &telemetry.Catalog[i]
	}
	return m
}()

// rowOf is the catalogue's row of a family; nil for what is none of the fleet's.
func rowOf(name string) *telemetry.Row { return rows[name] }
