package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
)

// referenceFrame holds every closed GPU value and four link columns of 18
// links: 8 × (60 + 72) = 1,056 values of a busy node.
func referenceFrame(tb testing.TB) (*Frame, int) {
	rng := rand.New(rand.NewPCG(1, 2))
	f := new(Frame)
	f.SetSchema(Schema)
	f.SetCluster("prod")
	f.SetNode("node-0001")
	f.SetBootId("0d7f4f0a-8a3c-4c1e-9d0e-1b2c3d4e5f60")
	f.SetIncarnation(1_790_000_000_000_000_000)
	f.SetSequence(86_400)
	values := 0
	for i := range 8 {
		g := new(GPU)
		g.SetUuid(fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", i))
		for _, r := range Catalog {
			for _, s := range r.Series {
				switch {
				case r.Wire.Kind == NoWire:
				case r.Per == PerLink && s.ID <= LinkNVLinkErrorsCRCData:
					for link := range 18 {
						v := float64(rng.Uint64N(1 << 50))
						if s.ID >= LinkNVLinkErrorsCRCFlit {
							v = float64(rng.Uint64N(4))
						}
						g.SetLinkValue(s.ID, link, v)
						values++
					}
				case r.Per == PerGPU:
					if !g.SetValue(s.ID, busyValue(rng, r)) {
						tb.Fatalf("%s does not take its value", s.Field)
					}
					values++
				}
			}
		}
		f.SetGpus(append(f.GetGpus(), g))
	}
	return f, values
}

func busyValue(rng *rand.Rand, r Row) float64 {
	switch {
	case r.Type == Counter && r.Unit == "seconds":
		return 1e6 * rng.Float64()
	case r.Type == Counter && r.Unit == "bytes":
		return float64(rng.Uint64N(1 << 50))
	case r.Type == Counter:
		return float64(rng.Uint64N(1000))
	case r.Max > 1<<40:
		return float64(rng.Uint64N(80 << 30))
	}
	return r.Min + rng.Float64()*(min(r.Max, 2e9)-r.Min)
}

func TestReferenceFrameFitsItsSize(t *testing.T) {
	f, values := referenceFrame(t)
	if values != 1064 {
		t.Fatalf("the reference fixture holds %d values, want 1064", values)
	}
	data, err := AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d values in %d bytes", values, len(data))
	if len(data) > 5600 {
		t.Errorf("frame of %d bytes, at most 5600", len(data))
	}
	var back Frame
	if err := DecodeFrame(data, &back); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(f, &back) {
		t.Error("frame changed on the wire")
	}
	buf := make([]byte, 0, 8192)
	if n := testing.AllocsPerRun(100, func() { buf, _ = AppendFrame(buf[:0], f) }); n > 1 {
		t.Errorf("%v allocations to encode, at most 1", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = DecodeFrame(data, &back) }); n > 80 {
		t.Errorf("%v allocations to decode 8 GPUs, at most 10 each", n)
	}
}

func TestDecodeRefusesByReason(t *testing.T) {
	good, _ := referenceFrame(t)
	data, _ := AppendFrame(nil, good)
	change := func(fn func(*Frame)) []byte {
		f := proto.Clone(good).(*Frame)
		fn(f)
		out, err := proto.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, c := range map[string]struct {
		data []byte
		why  DropReason
	}{
		"truncated":      {data[:len(data)/2], DropMalformed},
		"empty":          {nil, DropSchema},
		"noise":          {[]byte("not a frame at all"), DropMalformed},
		"oversized":      {make([]byte, MaxFrameBytes+1), DropOversized},
		"later schema":   {change(func(f *Frame) { f.SetSchema(Schema + 1) }), DropSchema},
		"no node":        {change(func(f *Frame) { f.SetNode("") }), DropMalformed},
		"no incarnation": {change(func(f *Frame) { f.SetIncarnation(0) }), DropMalformed},
		"no uuid":        {change(func(f *Frame) { f.GetGpus()[3].SetUuid("") }), DropMalformed},
		"uuid twice":     {change(func(f *Frame) { f.GetGpus()[3].SetUuid(f.GetGpus()[4].GetUuid()) }), DropMalformed},
		"too many GPUs": {change(func(f *Frame) {
			for i := range MaxGPUs {
				g := new(GPU)
				g.SetUuid(fmt.Sprint(i))
				f.SetGpus(append(f.GetGpus(), g))
			}
		}), DropTooMany},
	} {
		var f Frame
		err := DecodeFrame(c.data, &f)
		if err == nil || WhyDropped(err) != c.why {
			t.Errorf("%s: %v, want reason %s", name, err, c.why)
		}
	}
	if err := CheckNode("node-0002", good.GetNode()); WhyDropped(err) != DropForeign || err == nil {
		t.Errorf("foreign: %v", err)
	}
	f := proto.Clone(good).(*Frame)
	s := new(Sample)
	s.SetLabels([]string{string(bytes.Repeat([]byte{'x'}, MaxFrameBytes))})
	f.SetSamples([]*Sample{s})
	if _, err := AppendFrame(nil, f); WhyDropped(err) != DropOversized || err == nil {
		t.Errorf("a writer must refuse what every reader would: %v", err)
	}
}

func FuzzDecodeFrame(f *testing.F) {
	ref, _ := referenceFrame(f)
	data, _ := AppendFrame(nil, ref)
	f.Add(data)
	f.Add(data[:100])
	f.Add([]byte{})
	var used FrameDecoder
	f.Fuzz(func(t *testing.T, data []byte) {
		var fr Frame
		err := DecodeFrame(data, &fr)
		other, err2 := used.Decode(data)
		if (err == nil) != (err2 == nil) || err != nil && len(fr.GetGpus()) <= MaxGPUs && WhyDropped(err) != WhyDropped(err2) {
			t.Fatalf("%v, and from a decoder that was used before %v", err, err2)
		}
		if err != nil {
			var d *DropError
			if !errors.As(err, &d) || !errors.As(err2, &d) {
				t.Fatalf("untyped refusal: %v, %v", err, err2)
			}
			return
		}
		if !bytes.Equal(canonical(t, &fr), canonical(t, other)) {
			t.Fatalf("a decoder that was used before made\n%v\nof\n%v", other, &fr)
		}
		for _, g := range fr.GetGpus() {
			for _, r := range Catalog {
				for _, s := range r.Series {
					g.Value(s.ID)
					g.QualityOf(s.ID)
					for link := -1; link <= MaxLinks; link++ {
						g.LinkValue(s.ID, link)
					}
				}
			}
		}
		out, err := AppendFrame(nil, &fr)
		if err != nil {
			return
		}
		var again Frame
		if err := DecodeFrame(out, &again); err != nil || !proto.Equal(&fr, &again) {
			t.Fatalf("a frame that was taken once is not taken again: %v", err)
		}
	})
}

// canonical is the encoded form, which is the same for equal messages; NaN is
// equal to itself.
func canonical(t *testing.T, f *Frame) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A decoder leaves nothing of one frame in the next, and makes few allocations.
func TestFrameDecoder(t *testing.T) {
	if n := (&Frame{}).ProtoReflect().Descriptor().Fields().ByName("gpus").Number(); n != numGPUs {
		t.Fatalf("gpus are field %d", n)
	}
	full, _ := referenceFrame(t)
	bare := &Frame{}
	bare.SetSchema(Schema)
	bare.SetNode("b")
	bare.SetIncarnation(1)
	for i := range 3 {
		g := &GPU{}
		g.SetUuid(fmt.Sprint("GPU-", i))
		bare.SetGpus(append(bare.GetGpus(), g))
	}
	var d FrameDecoder
	for i, f := range []*Frame{full, bare, full, bare, full} {
		data, err := AppendFrame(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Decode(data)
		if err != nil || !proto.Equal(got, f) {
			t.Fatalf("frame %d: %v, decoded to %v", i, err, got)
		}
	}
	data, _ := AppendFrame(nil, full)
	var f Frame
	all := testing.AllocsPerRun(100, func() { _ = DecodeFrame(data, &f) })
	got := testing.AllocsPerRun(100, func() { _, _ = d.Decode(data) })
	gpus := float64(len(full.GetGpus()))
	if got > all-gpus || got > 10*gpus {
		t.Errorf("%g allocations, %g without using messages again, %g GPUs", got, all, gpus)
	}
}

func FuzzDecodeObservation(f *testing.F) {
	o := new(Observation)
	o.SetSchema(Schema)
	o.SetNode("n")
	data, _ := AppendObservation(nil, o)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var o Observation
		var d *DropError
		if err := DecodeObservation(data, &o); err != nil && !errors.As(err, &d) {
			t.Fatalf("untyped refusal: %v", err)
		}
	})
}

func FuzzOpenOrder(f *testing.F) {
	seed, _ := NewSeed()
	signer, _ := NewSigner(seed)
	trust, _ := NewTrust(signer.KeyID())
	data, _ := signer.SignOrder(sampleOrder())
	f.Add(data)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := trust.OpenOrder(in)
		var d *DropError
		switch {
		case err != nil && !errors.As(err, &d):
			t.Fatalf("untyped refusal: %v", err)
		case err == nil && o.Check() != nil:
			t.Fatal("took an order that does not check")
		}
	})
}

func FuzzNodeToken(f *testing.F) {
	for _, s := range []string{"node-1", "Node.A", "", "a b>c*", "=41", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		token := EncodeNode(name)
		if name == "" {
			return
		}
		back, err := DecodeNode(token)
		if err != nil || back != name {
			t.Fatalf("%q → %q → %q, %v", name, token, back, err)
		}
		if p := Partition(name); p < 0 || p >= Partitions {
			t.Fatalf("partition %d", p)
		}
	})
}

func BenchmarkEncodeFrame(b *testing.B) {
	f, _ := referenceFrame(b)
	buf, err := AppendFrame(nil, f)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = AppendFrame(buf[:0], f)
	}
	b.ReportMetric(float64(len(buf)), "bytes/frame") // a loop forgets what was reported before it
}

func BenchmarkDecodeFrame(b *testing.B) {
	f, _ := referenceFrame(b)
	data, _ := AppendFrame(nil, f)
	var back Frame
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeFrame(data, &back); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCheckReceipt(t *testing.T) {
	for _, c := range []struct {
		name, subject string
		receipt       Receipt
		why           DropReason
	}{
		{"its own", ReceiptSubject("a"), Receipt{Node: "a", Target: Target{Node: "a"}}, ""},
		{"no names", ReceiptSubject("a"), Receipt{}, ""},
		{"another node", ReceiptSubject("a"), Receipt{Node: "b"}, DropForeign},
		{"another target", ReceiptSubject("a"), Receipt{Node: "a", Target: Target{Node: "b"}}, DropForeign},
		{"no subject of a node", "ek.v1.receipt.Bad", Receipt{}, DropForeign},
	} {
		err := CheckReceipt(c.subject, &c.receipt)
		if c.why == "" && (err != nil || c.receipt.Node != "a") || c.why != "" && (err == nil || WhyDropped(err) != c.why) {
			t.Errorf("%s: %v, node %q", c.name, err, c.receipt.Node)
		}
	}
}
