package exporter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// wires are the NVLinks of a GPU of the world, and how its driver tells of them.
type wires struct {
	five    bool // the fields from NVLink 5 on
	sums    bool // of these, too
	noState bool // no field for it
	noErr   bool // no fields for them
	byCall  bool // what fields do not tell, calls do
	state   [18]int
	bytes   [2][18]float64 // tx, rx
	errors  [4][18]float64 // by LinkError
	refuse  map[int]error  // links whose fields all fail
}

func newWires(gpu int) wires {
	w := wires{byCall: true, refuse: map[int]error{}}
	for link := range w.state {
		w.state[link] = 1
		for d := range w.bytes {
			w.bytes[d][link] = float64(1+gpu)*1e9*1024 + float64(100*d+link)*1024
		}
		for kind := range w.errors {
			w.errors[kind][link] = float64(10*kind + link)
		}
	}
	return w
}

// field answers for the fields of links.
func (w *wires) field(f *Field) bool {
	var list *[18]float64
	unit := 1.0
	var have bool
	switch f.ID {
	case FieldNVLinkTxKiB, FieldNVLinkRxKiB:
		list, unit, have = &w.bytes[f.ID-FieldNVLinkTxKiB], 1024, !w.five
	case FieldNVLink5TxBytes, FieldNVLink5RxBytes:
		list, have = &w.bytes[(f.ID-FieldNVLink5TxBytes)/2], w.five && (w.sums || f.Scope != AllLinks)
	case FieldNVLinkReplays:
		list, have = &w.errors[LinkReplay], !w.five && !w.noErr
	case FieldNVLinkRecoveries:
		list, have = &w.errors[LinkRecovery], !w.five && !w.noErr
	case FieldNVLinkCRCErrors:
		list, have = &w.errors[LinkCRCFlit], !w.five && !w.noErr
	case FieldNVLink5RxErrors:
		list, have = &w.errors[LinkCRCFlit], w.five && !w.noErr
	case FieldNVLink5Recoveries:
		list, have = &w.errors[LinkRecovery], w.five && !w.noErr
	case FieldNVLinkState:
		if f.Err = gone(Unsupported); !w.noState {
			f.Err, f.Value = nil, float64(w.state[f.Scope])
		}
		return true
	default:
		return false
	}
	switch {
	case !have:
		f.Err = gone(Unsupported)
	case f.Scope == AllLinks:
		f.Value = 0
		for _, v := range list {
			f.Value += v / unit
		}
	case w.refuse[int(f.Scope)] != nil:
		f.Err = w.refuse[int(f.Scope)]
	default:
		f.Value = list[f.Scope] / unit
	}
	return true
}

func (d *device) LinkUp(link int) (bool, error) {
	up, err := read(d, "LinkUp", func() bool { return d.links.state[link] == 1 })
	if err == nil && !d.links.byCall {
		err = gone(Unsupported)
	}
	return up, err
}

func (d *device) LinkErrors(link int, kind LinkError) (float64, error) {
	v, err := read(d, fmt.Sprint("LinkErrors", kind), func() float64 { return d.links.errors[kind][link] })
	if err == nil && !d.links.byCall {
		err = gone(Unsupported)
	}
	return v, err
}

// shown is what a frame says of the links of a GPU: of each the bytes and
// errors that are there, and its state.
func shown(g *telemetry.GPU, links int) string {
	var b strings.Builder
	for link := range links {
		for _, c := range []struct {
			id   telemetry.ID
			sign string
		}{
			{telemetry.LinkNVLinkUp, "u"}, {telemetry.LinkNVLinkBytesTx, "t"}, {telemetry.LinkNVLinkBytesRx, "r"},
			{telemetry.LinkNVLinkErrorsCRCFlit, "f"}, {telemetry.LinkNVLinkErrorsCRCData, "d"},
			{telemetry.LinkNVLinkErrorsReplay, "p"}, {telemetry.LinkNVLinkErrorsRecovery, "v"},
		} {
			if v, ok := g.LinkValue(c.id, link); ok {
				if c.sign == "u" && v == 0 {
					c.sign = "D"
				}
				b.WriteString(c.sign)
			}
		}
		b.WriteByte(' ')
	}
	return strings.TrimRight(b.String(), " ")
}

func want(each string, odd map[int]string) string {
	list := slices.Repeat([]string{each}, 18)
	for link, s := range odd {
		list[link] = s
	}
	return strings.TrimRight(strings.Join(list, " "), " ")
}

// Whatever fields and calls a driver has, in the first round the links are told
// by those that it supports, and what is down or cannot be read is a hole.
func TestNVLinks(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*device)
		want   string
		lost   bool // no totals
	}{
		{"up to NVLink 4", func(*device) {}, want("utrfdpv", nil), false},
		{"no calls", func(d *device) { d.links.byCall = false }, want("utrfpv", nil), false},
		{"NVLink 5", func(d *device) { d.links.five, d.links.byCall = true, false }, want("utrfv", nil), false},
		{"NVLink 5 with sums", func(d *device) { d.links.five, d.links.byCall, d.links.sums = true, false, true }, want("utrfv", nil), false},
		{"fields for bytes alone", func(d *device) { d.links.noState, d.links.noErr = true, true }, want("utrfdpv", nil), false},
		{"nothing but bytes", func(d *device) { d.links.noState, d.links.noErr, d.links.byCall = true, true, false }, want("tr", nil), false},
		{"one down", func(d *device) { d.links.state[3] = 0 }, want("utrfdpv", map[int]string{3: "D"}), false},
		{"the last down, told by calls", func(d *device) { d.links.noState = true; d.links.state[17] = 0 }, want("utrfdpv", map[int]string{17: "D"}), false},
		{"asleep", func(d *device) { d.links.state[0] = 2 }, want("utrfdpv", nil), false},
		{"without traffic", func(d *device) { d.links.state[0] = 3 }, want("utrfdpv", map[int]string{0: "D"}), false},
		{"down, and its fields fail", func(d *device) {
			d.links.state[5] = 0
			d.links.refuse[5] = gone(OtherFault)
		}, want("utrfdpv", map[int]string{5: "D"}), false},
		{"NVLink 5, down, and its fields fail", func(d *device) {
			d.links.five, d.links.byCall, d.links.state[5] = true, false, 0
			d.links.refuse[5] = gone(OtherFault)
		}, want("utrfv", map[int]string{5: "D"}), false},
		{"no links", func(d *device) { d.id.Links = 0 }, want("", nil), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				d := w.gpus[0]
				c.change(d)
				e, sink := start(t, w)
				ticks(7) // a second link part, and time to find the totals
				frames := sink.all()
				for _, i := range []int{0, 5} {
					g := gpuOf(t, frames[i], d)
					if got := shown(g, 18); got != c.want {
						t.Errorf("frame %d: links\n%s, want\n%s", i, got, c.want)
					}
					for link := range 18 {
						if v, ok := g.LinkValue(telemetry.LinkNVLinkBytesRx, link); ok && v != d.links.bytes[1][link] {
							t.Errorf("link %d: %g bytes, want %g", link, v, d.links.bytes[1][link])
						}
						if v, ok := g.LinkValue(telemetry.LinkNVLinkErrorsRecovery, link); ok && v != d.links.errors[LinkRecovery][link] {
							t.Errorf("link %d: %g recoveries", link, v)
						}
					}
				}
				g := gpuOf(t, frames[6], d)
				if g.GetLinkMask()|g.GetLinkDownMask() != 0 {
					t.Error("a frame without link part has links")
				}
				sum := 0.0
				for link, v := range d.links.bytes[0] {
					if !d.links.five || d.links.sums || d.links.state[link] == 1 {
						sum += v
					}
				}
				if v, ok := g.Value(telemetry.GPUNVLinkTotalBytesTx); ok == c.lost || ok && v != sum {
					t.Errorf("total %g (%v), want %g", v, ok, sum)
				}
				if _, ok := gpuOf(t, frames[0], d).Value(telemetry.GPUNVLinkLinksExpected); ok == c.lost {
					t.Errorf("links expected: %v", ok)
				}
				if r := readerResult(e.gpus, slices.IndexFunc(readers, func(r reader) bool { return r.name == "nvlink" })); r.err != nil {
					t.Errorf("the reader fails: %v", r.err)
				}
			})
		})
	}
}

// Counts of a link survive a wrong reading, a failed one and a time in which the
// link is down; the state follows within a link part.
func TestNVLinkOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		_, sink := start(t, w)
		ticks(1)
		value := func(id telemetry.ID) (float64, bool) {
			t.Helper()
			f := sink.last()
			if !f.GetHasLinkPart() {
				t.Fatal("no link part")
			}
			return gpuOf(t, f, d).LinkValue(id, 2)
		}
		first, _ := value(telemetry.LinkNVLinkErrorsReplay)
		for _, s := range []struct {
			name   string
			change func(*device)
			bytes  float64 // -1: a hole
			up     float64
		}{
			{"grows", func(d *device) { d.links.bytes[0][2] = 9e12 * 1024 }, 9e12 * 1024, 1},
			{"one wrong reading", func(d *device) { d.links.bytes[0][2] = 1024 }, 9e12 * 1024, 1},
			{"and a good one", func(d *device) { d.links.bytes[0][2] = 9e12*1024 + 2048 }, 9e12*1024 + 2048, 1},
			{"cannot be read", func(d *device) { d.links.refuse[2] = gone(OtherFault) }, 9e12*1024 + 2048, 1},
			{"down", func(d *device) { d.links.state[2] = 0 }, -1, 0},
			{"up, and counts anew", func(d *device) {
				d.links.state[2], d.links.bytes[0][2] = 1, 4096
				delete(d.links.refuse, 2)
			}, 9e12*1024 + 2048, 1},
			{"which is believed", func(d *device) { d.links.bytes[0][2] = 8192 }, 9e12*1024 + 2048 + 8192, 1},
		} {
			d.set(s.change)
			ticks(5)
			if v, ok := value(telemetry.LinkNVLinkBytesTx); ok != (s.bytes >= 0) || ok && v != s.bytes {
				t.Errorf("%s: %g bytes (%v), want %g", s.name, v, ok, s.bytes)
			}
			if v, ok := value(telemetry.LinkNVLinkUp); !ok || v != s.up {
				t.Errorf("%s: up %g (%v)", s.name, v, ok)
			}
		}
		if v, _ := value(telemetry.LinkNVLinkErrorsReplay); v != first {
			t.Errorf("%g replays, want %g", v, first)
		}
		dropped := 0.0
		ticks(15)
		for _, f := range sink.all() {
			for _, s := range f.GetSamples() {
				if telemetry.ID(s.GetId()) == telemetry.GPUSampleInvalid && s.GetLabels()[0] == "gpu_nvlink_bytes_total" && s.GetLabels()[1] == "decreased" {
					dropped = s.GetValue()
				}
			}
		}
		if dropped != 2 {
			t.Errorf("%g values counted as dropped, want 2", dropped)
		}
	})
}

// Where totals are added up here, they never fall when a link goes, and do not
// leap when one comes that had counted before.
func TestNVLinkTotalsOfLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		d.links.five, d.links.state[4] = true, 0
		_, sink := start(t, w)
		ticks(6)
		total := func() float64 {
			t.Helper()
			return number(t, gpuOf(t, sink.last(), d), telemetry.GPUNVLinkTotalBytesTx)
		}
		before := total()
		if before < 17e12 {
			t.Fatalf("%g bytes over 17 links", before)
		}
		d.set(func(d *device) { d.links.state[4], d.links.state[9] = 1, 0 })
		ticks(6)
		if got := total(); got != before {
			t.Errorf("%g bytes when one link went and another came, want %g", got, before)
		}
		d.set(func(d *device) {
			d.links.bytes[0][4] += 100
			d.links.bytes[0][5] += 1000
		})
		ticks(6)
		if got := total(); got != before+1100 {
			t.Errorf("%g bytes more, want 1100", got-before)
		}
	})
}

// A device none of whose links was ever up has no fabric to miss.
func TestNVLinksThatNobodyPluggedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		d.links.state = [18]int{}
		_, sink := start(t, w)
		ticks(1)
		g := gpuOf(t, sink.last(), d)
		if v, ok := g.Value(telemetry.GPUNVLinkLinksExpected); ok {
			t.Errorf("%g links expected", v)
		}
		if got := shown(g, 18); got != want("D", nil) {
			t.Errorf("links %s", got)
		}
		d.set(func(d *device) { d.links.state[7] = 1 })
		ticks(15)
		if v := number(t, gpuOf(t, sink.last(), d), telemetry.GPUNVLinkLinksExpected); v != 18 {
			t.Errorf("%g links expected after one came up", v)
		}
	})
}
