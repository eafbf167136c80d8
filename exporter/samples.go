package exporter

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// SampleSource tells values beside the devices' own: of the host, of what
// schedulers have given away. It answers from memory and at once; whatever is
// wrong with it, the devices' values go on.
type SampleSource interface {
	// Samples puts each value, labels in the order of the catalogue's row.
	Samples(put func(id telemetry.ID, uuid string, value float64, labels ...string))
}

// maxLabel bounds a label's bytes: names come from whoever runs something here.
const maxLabel = 128

// sourced passes on what sources tell, as far as the catalogue allows it. What
// is not valid in a frame would cost all of it.
func (e *Exporter) sourced(put func(row *telemetry.Row, id telemetry.ID, uuid string, v float64, labels []string)) {
	for _, s := range e.opt.Samples {
		s.Samples(func(id telemetry.ID, uuid string, v float64, labels ...string) {
			row := telemetry.RowOf(id)
			if row == nil || row.Origin != telemetry.FromNode || len(labels) != len(row.Labels) || !row.InRange(v) || (row.Per == telemetry.PerNode) != (uuid == "") {
				e.metrics.refused.Inc()
				return
			}
			if row.Wire.Kind != telemetry.NoWire && e.reads(uuid) {
				return // what the driver's library says goes before
			}
			for i, l := range labels {
				labels[i] = CleanLabel(l)
			}
			put(row, id, uuid, v, labels)
		})
	}
}

// reads says whether a device is one that the exporter itself reads.
func (e *Exporter) reads(uuid string) bool {
	return slices.ContainsFunc(e.gpus, func(g *gpu) bool { return g.uuid == uuid })
}

// CleanLabel makes a label of any text: valid UTF-8, bounded, and nothing in it
// that a terminal or a log would take for more than text.
func CleanLabel(text string) string {
	fine := len(text) <= maxLabel && utf8.ValidString(text)
	for _, r := range text {
		fine = fine && unicode.IsPrint(r)
	}
	if fine {
		return text
	}
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > maxLabel {
		cut := maxLabel
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}
