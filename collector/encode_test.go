package collector

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What the encoder writes decodes to what the library would have written, with
// every field of every message set, none, and as a judge leaves it.
func TestEncoderAgreesWithTheLibrary(t *testing.T) {
	full := new(telemetry.Observation)
	fillAll(full.ProtoReflect(), 3)
	for _, g := range full.GetGpus() {
		for i, v := range g.GetValues() {
			v.SetId(uint32(60000 + i))
			v.SetAgeMs(math.MaxUint32)
			v.SetQuality(telemetry.Quality(127 - i))
		}
		g.SetValues(append(g.GetValues(), new(telemetry.Value)))
	}
	judged := new(telemetry.Observation)
	s := fullSender("a")
	j := cluster.NewJudge("a", false)
	for i := range 3 {
		at := t0.Add(time.Duration(i) * time.Second)
		if _, err := j.FrameInto(at, s.frame(at), judged); err != nil {
			t.Fatal(err)
		}
	}
	var e encoder
	for name, want := range map[string]*telemetry.Observation{"full": full, "empty": {}, "judged": judged} {
		x := withoutMessages(want)
		before := proto.Clone(x.Message)
		for range 2 {
			data, err := e.encode(x)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(x.Message, before) {
				t.Fatalf("%s: encoding changed the observation", name)
			}
			var back telemetry.Observation
			if err := proto.Unmarshal(data, &back); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !proto.Equal(&back, want) {
				t.Errorf("%s: decodes to\n%v\nwant\n%v", name, &back, want)
			}
			library, err := proto.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) != len(library) {
				t.Errorf("%s: %d bytes, the library writes %d", name, len(data), len(library))
			}
		}
	}
}

// withoutMessages is an observation with its values as the encoder takes them.
func withoutMessages(o *telemetry.Observation) *cluster.Judged {
	o = proto.CloneOf(o)
	var values [][]cluster.Value
	for _, g := range o.GetGpus() {
		var list []cluster.Value
		for _, v := range g.GetValues() {
			list = append(list, cluster.Value{V: v.GetV(), AgeMs: v.GetAgeMs(), ID: uint16(v.GetId()), Quality: uint8(v.GetQuality())})
		}
		values = append(values, list)
		g.SetValues(nil)
	}
	return cluster.NewJudged(o, values...)
}

// What is published of a node is what a judge says of its frames, and what is
// folded is what one folds who hears that.
func TestPublishedIsJudged(t *testing.T) {
	w := newWorld(t, nil)
	x := newRhythmic(t, 2)
	judges, heard := map[string]*cluster.Judge{}, cluster.NewState()
	for x.n < 60 {
		a := x.next()
		w.clock.set(a.at)
		w.bus.send(a.subject, a.data)
		w.settle()
		var f telemetry.Frame
		if err := telemetry.DecodeFrame(a.data, &f); err != nil {
			t.Fatal(err)
		}
		name := f.GetNode()
		if judges[name] == nil {
			judges[name] = cluster.NewJudge(name, false)
		}
		want, err := judges[name].Frame(a.at, &f)
		if err != nil {
			t.Fatal(err)
		}
		list := w.bus.observations(t, name)
		got := list[len(list)-1]
		if !proto.Equal(got, want) {
			t.Fatalf("frame %d: published\n%v\nwant\n%v", x.n, got, want)
		}
		if err := heard.Observe(a.at, got); err != nil {
			t.Fatal(err)
		}
		if here, there := w.state.View(a.at), heard.View(a.at); !reflect.DeepEqual(slices.Collect(here.Nodes()), slices.Collect(there.Nodes())) {
			t.Fatalf("frame %d: the collector's view is another than that of one who hears it", x.n)
		}
	}
}

// fillAll sets every field, messages within messages to a depth.
func fillAll(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList():
			list := m.Mutable(f).List()
			for k := range 3 {
				if f.Message() == nil {
					list.Append(scalar(f, k+1))
				} else if depth > 0 {
					fillAll(list.AppendMutable().Message(), depth-1)
				}
			}
		case f.Message() != nil:
			if depth > 0 {
				fillAll(m.Mutable(f).Message(), depth-1)
			}
		default:
			m.Set(f, scalar(f, i+1))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, n int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.TextName())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n) + 0.25)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n) << 20)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n) << 40)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(-n) << 20)
	}
	panic("a kind of field that this test does not know: " + f.Kind().String())
}
