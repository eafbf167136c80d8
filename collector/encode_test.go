package collector

import (
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
	for name, o := range map[string]*telemetry.Observation{"full": full, "empty": {}, "judged": judged} {
		before := proto.Clone(o)
		for range 2 {
			data, err := e.encode(o)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(o, before) {
				t.Fatalf("%s: encoding changed the observation", name)
			}
			var back telemetry.Observation
			if err := proto.Unmarshal(data, &back); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !proto.Equal(&back, o) {
				t.Errorf("%s: decodes to\n%v\nwant\n%v", name, &back, o)
			}
			want, err := proto.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) != len(want) {
				t.Errorf("%s: %d bytes, the library writes %d", name, len(data), len(want))
			}
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
