package bench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestParseFaults(t *testing.T) {
	f, err := ParseFaults(" lost=0.01, dup=0.5,lie-time=1,,")
	if err != nil || f[FaultLost] != 0.01 || f[FaultDup] != 0.5 || f[FaultLieTime] != 1 || len(f) != 3 {
		t.Errorf("%v, %v", f, err)
	}
	for text, want := range map[string]string{
		"lost":              "want NAME=SHARE",
		"lost=":             "want NAME=SHARE",
		"lost=2":            "from 0 to 1",
		"lost=-0.1":         "from 0 to 1",
		"lost=NaN":          "from 0 to 1",
		"lots=0.1":          "there are lost, dup,",
		"lost=0.1,lost=0.1": "given twice",
		"lost=0.6,dup=0.6":  "more than 1",
	} {
		if _, err := ParseFaults(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestDraw: each fault comes as often as was asked for.
func TestDraw(t *testing.T) {
	f := Faults{FaultLost: 0.1, FaultGarbage: 0.2, FaultLieTime: 1}
	rng, got := rand.New(rand.NewPCG(1, 1)), map[Fault]float64{}
	const n = 100_000
	for range n {
		got[f.draw(rng.Float64())]++
	}
	for fault, want := range map[Fault]float64{FaultLost: 0.1, FaultGarbage: 0.2, "": 0.7, FaultLieTime: 0, FaultDup: 0} {
		if share := got[fault] / n; math.Abs(share-want) > 0.01 {
			t.Errorf("%q: share %g, want %g", fault, share, want)
		}
	}
}

// TestGarbageIsRefused for the reason that is counted for it, of every kind.
func TestGarbageIsRefused(t *testing.T) {
	w, err := newWorld(t.Context(), testOptions(1))
	if err != nil {
		t.Fatal(err)
	}
	k, err := w.step()
	if err != nil {
		t.Fatal(err)
	}
	frame := k.bodies[0][partFast].appendTo(nil, number(0), header{incarnation: 1, sequence: 1, sample: 1})
	seen := map[telemetry.DropReason]int{}
	for n := range uint64(2 * garbageBigOne) {
		data, want := garbage(nil, frame, n)
		var f telemetry.Frame
		err := telemetry.DecodeFrame(data, &f)
		if err == nil || telemetry.WhyDropped(err) != want {
			t.Errorf("garbage %d: %v, want %s", n, err, want)
		}
		seen[want]++
	}
	if len(seen) != 4 || seen[telemetry.DropOversized] != 2 {
		t.Errorf("reasons %v", seen)
	}
	var f telemetry.Frame
	if err := telemetry.DecodeFrame(foreign(frame, "bench-00000"+foreignSuffix), &f); err != nil || telemetry.CheckNode("bench-00000", f.GetNode()) == nil {
		t.Errorf("a lie about the node is not one: %v, %s", err, f.GetNode())
	}
}

func TestExpectations(t *testing.T) {
	list, err := ParseExpectations("max-loss=0.001, p99=1s,memory=100,cpu=0.5,max-doubled=0")
	if err != nil || len(list) != 5 {
		t.Fatal(list, err)
	}
	r := &Report{
		Observations: Observations{Expected: 1000, Heard: 998, Lost: 2}, Latency: Latency{P99: 1000},
		Processes: []Use{{Name: "generator", CPUPerSecond: 9}, {Name: "collector", CPUPerSecond: 0.4, ResidentBytes: 101 << 20}},
	}
	for i, met := range []bool{false, true, false, true, true} {
		if v := list[i].judge(r); v.Met != met {
			t.Errorf("%s: met %v (%s), want %v", v.Expectation, v.Met, v.Found, met)
		}
	}
	for _, x := range list {
		if v := x.judge(&Report{}); v.Met {
			t.Errorf("%s is met by a run that heard nothing", v.Expectation)
		}
	}
	for text, want := range map[string]string{"speed=1": "there are max-loss", "p99=1": "such as", "max-loss=x": "such as", "p50=-1s": "such as"} {
		if _, err := ParseExpectations(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
