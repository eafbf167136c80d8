package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A node that names new things with each frame is held to its share, whatever
// it names and however often its process is another; what it named before goes
// on, and once it is quiet it may name again.
func TestNodeThatNamesWithoutEnd(t *testing.T) {
	const frames, each = 200, 500
	for name, flood := range map[string]func(n *node, i int, f *telemetry.Frame){
		"samples": func(_ *node, i int, f *telemetry.Frame) {
			var list []*telemetry.Sample
			for k := range each {
				list = append(list, sampleOf(telemetry.NodeHostTemperatureCelsius, "", 40, fmt.Sprintf("sensor-%d-%d", i, k)))
			}
			f.SetSamples(append(list, f.GetSamples()...))
		},
		"samples of new processes": func(_ *node, i int, f *telemetry.Frame) {
			f.SetIncarnation(f.GetIncarnation() + uint64(i))
			var list []*telemetry.Sample
			for k := range each {
				list = append(list, sampleOf(telemetry.NodeHostTemperatureCelsius, "", 40, fmt.Sprintf("sensor-%d-%d", i, k)))
			}
			f.SetSamples(append(f.GetSamples(), list...))
		},
		"devices": func(_ *node, i int, f *telemetry.Frame) {
			list := f.GetGpus()
			for k := range 200 {
				list = append(list, newGPU(fmt.Sprintf("GPU-%d-%d", i, k), 10+k))
			}
			f.SetGpus(list)
		},
		"descriptions": func(n *node, i int, f *telemetry.Frame) {
			d := telemetry.Description_builder{Index: uint32(i % 7), Pci: "0000:00:00.0", Model: fmt.Sprint("model ", i), Driver: fmt.Sprint("driver ", i), Arch: "hopper"}.Build()
			f.GetGpus()[1].SetDescription(d)
		},
		"calls": func(n *node, i int, f *telemetry.Frame) {
			f.GetGpus()[1].SetHung(telemetry.HungCall_builder{Call: fmt.Sprint("call ", i), ForMs: 1}.Build())
		},
		"clusters": func(n *node, i int, f *telemetry.Frame) { f.SetCluster(fmt.Sprint("cluster ", i)) },
		"members": func(n *node, i int, f *telemetry.Frame) {
			var list []*telemetry.Member
			for k := range maxMembers {
				list = append(list, telemetry.Member_builder{Id: fmt.Sprintf("%d+%d", i, k), Kind: KindProcess, Uuid: "GPU-a-1", Workload: fmt.Sprintf("proc:a/%d@%d", i, k)}.Build())
			}
			f.GetGpus()[1].SetMembers(list)
		},
		"owners": func(n *node, i int, f *telemetry.Frame) {
			var list []*telemetry.Member
			for k := range maxMembers {
				list = append(list, telemetry.Member_builder{Id: fmt.Sprintf("1+%d", k), Kind: KindProcess, Uuid: "GPU-a-1", Workload: fmt.Sprintf("proc:a/1@%d", k), Owner: fmt.Sprint("owner ", i)}.Build())
			}
			f.GetGpus()[1].SetMembers(list)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode("a", 2)
			j, s := NewJudge("a", false), NewState()
			said := map[string]bool{}
			told := func(at time.Time, i int, flooding bool) *telemetry.Observation {
				f := n.frame(at)
				f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeHostTemperatureCelsius, "", 50, "cpu")})
				f.SetGpus([]*telemetry.GPU{newGPU("GPU-a-0", 0), newGPU("GPU-a-1", 1)})
				if flooding {
					flood(n, i, f)
				}
				o, err := j.Frame(at, f)
				if err != nil {
					t.Fatal(err)
				}
				if o != nil {
					if err := s.Observe(at, o); err != nil {
						t.Fatal(err)
					}
				}
				for x := range j.Samples() {
					said[fmt.Sprint("sample ", x.ID, x.UUID, x.Labels)] = true
				}
				said["cluster "+o.GetCluster()] = true
				for _, g := range o.GetGpus() {
					said[fmt.Sprint("gpu ", g.GetUuid())] = true
					said[fmt.Sprint("info ", g.GetUuid(), g.GetIndex(), g.GetPci(), g.GetModel(), g.GetDriver())] = true
					said[fmt.Sprint("hung ", g.GetUuid(), g.GetHung().GetCall())] = true
					for _, m := range g.GetMembers() {
						said[fmt.Sprint("member ", m.GetWorkload(), m.GetOwner())] = true
					}
				}
				return o
			}
			told(t0, 0, false)
			var refused uint64
			var last *telemetry.Observation
			for i := 1; i <= frames; i++ {
				last = told(t0.Add(time.Duration(i)*time.Second), i, true)
				for _, r := range last.GetRefused() {
					refused += uint64(r.GetCount())
				}
			}
			// A device's name makes three texts here.
			if most := 3*maxNames/2 + 3*frames; len(said) > most {
				t.Errorf("%d names went on, want at most %d", len(said), most)
			}
			if name != "calls" && name != "clusters" && name != "descriptions" && refused == 0 {
				t.Error("nothing was counted as refused")
			}
			if v := valueOf(gpuOf(t, last, "GPU-a-0"), telemetry.GPUPowerWatts); v.GetAgeMs() != 0 || v.GetV() != 500 {
				t.Errorf("the device beside: %v", v)
			}
			if r := s.records["a"]; len(r.spans) > maxNames+frames {
				t.Errorf("%d workloads remembered", len(r.spans))
			}
			if len(j.samples.list) > telemetry.MaxSamples || len(j.tracks) > telemetry.MaxGPUs {
				t.Errorf("%d samples and %d devices kept", len(j.samples.list), len(j.tracks))
			}
			quiet := t0.Add(2 * time.Hour)
			told(quiet, 0, false)
			before := len(said)
			f := n.frame(quiet.Add(time.Second))
			f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeHostTemperatureCelsius, "", 50, "new")})
			if _, err := j.Frame(quiet.Add(time.Second), f); err != nil {
				t.Fatal(err)
			}
			found := false
			for x := range j.Samples() {
				found = found || x.Labels[0] == "new"
			}
			if !found {
				t.Errorf("a node that has been quiet may not name anything; it has named %d", before)
			}
		})
	}
}

// Names of the process before cost nothing: an exporter that starts again and
// again loses none of its series.
func TestRestartsCostNoNames(t *testing.T) {
	n := newNode("a", 8)
	j := NewJudge("a", false)
	for i := range 100 {
		at := t0.Add(time.Duration(i) * time.Second)
		n.restart(at)
		f := n.frame(at)
		var list []*telemetry.Sample
		for k := range 300 {
			list = append(list, sampleOf(telemetry.NodeHostTemperatureCelsius, "", 40, fmt.Sprint("sensor-", k)))
		}
		f.SetSamples(list)
		for _, g := range f.GetGpus() {
			var members []*telemetry.Member
			for k := range 48 {
				members = append(members, telemetry.Member_builder{Id: fmt.Sprintf("1+%d", k), Kind: KindProcess, Uuid: g.GetUuid()}.Build())
			}
			g.SetMembers(members)
		}
		o, err := j.Frame(at, f)
		if err != nil || len(o.GetRefused()) > 0 {
			t.Fatalf("start %d: %v, refused %v", i, err, o.GetRefused())
		}
	}
}

// Members that were left out do not make a device look free.
func TestMembersLeftOutAreNotNobody(t *testing.T) {
	n := newNode("a", 1)
	j := NewJudge("a", false)
	j.names.spent, j.names.at = maxNames, t0
	f := n.frame(t0)
	f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeReaderSuccess, "", 1, membersReader)})
	f.GetGpus()[0].SetMembers([]*telemetry.Member{telemetry.Member_builder{Id: "1+1", Kind: KindProcess}.Build()})
	j.tracks = append(j.tracks, &track{uuid: "GPU-a-0"})
	if _, err := j.Frame(t0, f); err != nil {
		t.Fatal(err)
	}
	if h := &j.tracks[0].members; len(h.list) != 0 || h.known(&j.now) {
		t.Errorf("%d members, known %t", len(h.list), h.known(&j.now))
	}
}
