package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func testOptions(nodes int) *Options {
	o := Defaults()
	o.Nodes = nodes
	return &o
}

// frameKept is a sink that keeps frames as they were sent.
type frameKept struct{ frames [][]byte }

func (k *frameKept) Frame(data []byte) error {
	k.frames = append(k.frames, slices.Clone(data))
	return nil
}

// exported is what a real exporter sends of a node like the templates, one
// frame of each kind of parts.
func exported(t *testing.T) (kinds [parts]*telemetry.Frame) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.New(scenario(1, 8, Defaults().Model, false), 1)
		if err != nil {
			t.Fatal(err)
		}
		source, err := w.Source("t00")
		if err != nil {
			t.Fatal(err)
		}
		sink := &frameKept{}
		x, err := exporter.New(exporter.Options{Node: "bench-00000", Cluster: "bench", Source: source, Sink: sink})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 22*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
				w.Step(100 * time.Millisecond)
			}
		})
		if err := x.Run(ctx); err != nil {
			t.Fatal(err)
		}
		for _, data := range sink.frames {
			f := new(telemetry.Frame)
			if err := telemetry.DecodeFrame(data, f); err != nil {
				t.Fatal(err)
			}
			part := partFast
			if f.GetHasSlowPart() {
				part = partSlow
			} else if f.GetHasLinkPart() {
				part = partLink
			}
			kinds[part] = f
		}
	})
	return kinds
}

// fields lists what a message has, samples by their ids.
func fields(f *telemetry.Frame) (out []string) {
	seen := map[string]bool{}
	var walk func(at string, m protoreflect.Message)
	walk = func(at string, m protoreflect.Message) {
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			name := at + "." + string(fd.Name())
			seen[name] = true
			switch {
			case fd.IsList() && fd.Message() != nil:
				for i := range v.List().Len() {
					walk(name, v.List().Get(i).Message())
				}
			case fd.Message() != nil && !fd.IsMap():
				walk(name, v.Message())
			}
			return true
		})
	}
	walk("", f.ProtoReflect())
	for _, s := range f.GetSamples() {
		seen[fmt.Sprintf("sample %d %v", s.GetId(), s.GetLabels())] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestFramesAreThoseOfAnExporter: a borrowed frame has the fields of a real
// one, in each of its parts, and its size. Beside the exporter of this test it
// has members, and no field may be there because it is zero in the one and not
// in the other.
func TestFramesAreThoseOfAnExporter(t *testing.T) {
	w, err := newWorld(t.Context(), testOptions(1))
	if err != nil {
		t.Fatal(err)
	}
	var k *tick
	for range 20 {
		if k, err = w.step(); err != nil {
			t.Fatal(err)
		}
	}
	real := exported(t)
	for part := range parts {
		if real[part] == nil {
			t.Fatalf("the exporter sent no frame of part %d", part)
		}
		data := k.bodies[0][part].appendTo(nil, number(0), header{incarnation: 1 << 60, sequence: 20, sample: 1 << 60, send: 1 << 60, monotonic: 1 << 40})
		f := new(telemetry.Frame)
		if err := telemetry.DecodeFrame(data, f); err != nil {
			t.Fatal(err)
		}
		want := fields(real[part])
		ignored := func(name string) bool {
			return strings.HasSuffix(name, "_age_ms") || strings.HasSuffix(name, ".clock_synchronized")
		}
		for _, name := range fields(f) {
			if !slices.Contains(want, name) && !strings.HasPrefix(name, ".gpus.members") && !ignored(name) {
				t.Errorf("part %d: %s is in the borrowed frame and not in an exporter's", part, name)
			}
		}
		got := fields(f)
		for _, name := range want {
			if !slices.Contains(got, name) && !ignored(name) {
				t.Errorf("part %d: %s is in an exporter's frame and not in the borrowed one", part, name)
			}
		}
		for _, g := range f.GetGpus() {
			g.SetMembers(nil)
		}
		got1, want1 := proto.Size(f), proto.Size(real[part])
		if ratio := float64(got1) / float64(want1); ratio < 0.9 || ratio > 1.1 {
			t.Errorf("part %d: %d bytes, an exporter's has %d", part, got1, want1)
		}
	}
}

// TestWorldMoves: what an exporter reads moves, and counters do not fall.
func TestWorldMoves(t *testing.T) {
	w, err := newWorld(t.Context(), testOptions(8))
	if err != nil {
		t.Fatal(err)
	}
	read := func() (fs []*telemetry.Frame) {
		k, err := w.step()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range k.bodies {
			f := new(telemetry.Frame)
			if err := telemetry.DecodeFrame(b[partSlow].appendTo(nil, number(3), header{incarnation: 1, sequence: 1, sample: 1}), f); err != nil {
				t.Fatal(err)
			}
			fs = append(fs, f)
		}
		return fs
	}
	first := read()
	for range 30 {
		read()
	}
	last := read()
	moved, members := map[telemetry.ID]bool{}, 0
	for i := range first {
		for g := range first[i].GetGpus() {
			a, b := first[i].GetGpus()[g], last[i].GetGpus()[g]
			members += len(b.GetMembers())
			for id := telemetry.ID(1); id < 300; id++ {
				row := telemetry.RowOf(id)
				if row == nil || row.Per != telemetry.PerGPU {
					continue
				}
				x, hasX := a.Value(id)
				y, hasY := b.Value(id)
				if hasX != hasY || row.Type == telemetry.Counter && y < x {
					t.Fatalf("%s went from %v (%v) to %v (%v)", row.Name, x, hasX, y, hasY)
				}
				moved[id] = moved[id] || x != y
			}
			x, _ := a.LinkValue(telemetry.LinkNVLinkBytesTx, 3)
			y, _ := b.LinkValue(telemetry.LinkNVLinkBytesTx, 3)
			moved[telemetry.LinkNVLinkBytesTx] = moved[telemetry.LinkNVLinkBytesTx] || y > x
		}
	}
	for _, id := range []telemetry.ID{
		telemetry.GPUUtilizationRatio, telemetry.GPUTemperatureCelsiusCore, telemetry.GPUThermalHeadroomCelsius, telemetry.GPUPowerWatts,
		telemetry.GPUEnergyJoules, telemetry.GPUBusySeconds, telemetry.GPUNVLinkTotalBytesTx, telemetry.GPUPCIeBytesTx, telemetry.LinkNVLinkBytesTx,
	} {
		if !moved[id] {
			t.Errorf("series %d stands still", id)
		}
	}
	if members == 0 {
		t.Error("nobody holds a device")
	}
}

// TestBodyIsTheNodesOwn: two nodes that borrow one frame have nothing in common
// by which they could be taken for one.
func TestBodyIsTheNodesOwn(t *testing.T) {
	w, err := newWorld(t.Context(), testOptions(1))
	if err != nil {
		t.Fatal(err)
	}
	k, err := w.step()
	if err != nil {
		t.Fatal(err)
	}
	var names [2]map[string]bool
	for i, node := range []int{7, 99998} {
		h := header{incarnation: 1_790_000_000_000_000_000, sequence: 12345, sample: 1_790_000_000_000_000_001, send: 1_790_000_000_000_000_002, monotonic: 77}
		data := k.bodies[0][partSlow].appendTo([]byte("before"), number(node), h)
		f := new(telemetry.Frame)
		if err := telemetry.DecodeFrame(data[len("before"):], f); err != nil {
			t.Fatal(err)
		}
		if got := (header{f.GetIncarnation(), f.GetSequence(), f.GetSampleTimeUnixNano(), f.GetSendTimeUnixNano(), f.GetMonotonicNano()}); got != h {
			t.Errorf("header %+v, want %+v", got, h)
		}
		if want := NodeName("bench-", node); f.GetNode() != want {
			t.Errorf("node %s, want %s", f.GetNode(), want)
		}
		if strings.Contains(string(data), marker) {
			t.Error("a marker is left")
		}
		names[i] = map[string]bool{f.GetNode(): true, f.GetBootId(): true}
		for slot, g := range f.GetGpus() {
			if want := deviceUUID(number(node), slot, 1); g.GetUuid() != want || len(want) != len("GPU-01234567-0123-0123-0123-0123456789ab") {
				t.Errorf("uuid %s, want %s", g.GetUuid(), want)
			}
			names[i][g.GetUuid()] = true
			for _, m := range g.GetMembers() {
				names[i][m.GetId()], names[i][m.GetWorkload()] = true, true
				if m.GetUuid() != g.GetUuid() {
					t.Errorf("a member of %s holds %s", g.GetUuid(), m.GetUuid())
				}
			}
		}
	}
	if len(names[0]) < 2+8+8+1 {
		t.Errorf("only %d names", len(names[0]))
	}
	for name := range names[0] {
		if names[1][name] {
			t.Errorf("both nodes have %s", name)
		}
	}
}

// TestMarkerInAValue: a frame whose values look like the marker is not lent.
func TestMarkerInAValue(t *testing.T) {
	f := new(telemetry.Frame)
	f.SetNode("n" + marker)
	if b, err := newBody(f); err != nil || b == nil || len(b.marks) != 1 {
		t.Fatalf("%v, %v", b, err)
	}
	f.SetDriverFault(marker) // no name of ours
	if b, err := newBody(f); err != nil || b != nil {
		t.Errorf("%v, %v: want no body", b, err)
	}
}
