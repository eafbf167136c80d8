package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Two machines that go by one name: whichever is believed, its values are
// suspect, until one of them is silent.
func TestTwoMachinesByOneName(t *testing.T) {
	a, b := newNode("a", 1), newNode("a", 1)
	b.boot, b.start = "boot-of-another", a.start.Add(time.Minute)
	j := NewJudge("a", false)
	at := t0
	hear := func(n *node) *telemetry.Observation {
		o, err := j.Frame(at, n.frame(at))
		if err != nil {
			wantDrop(t, err, telemetry.DropReordered)
		}
		return o
	}
	var o *telemetry.Observation
	both := func(seconds int) {
		for range seconds {
			at = at.Add(time.Second)
			hear(a)
			if x := hear(b); x != nil {
				o = x
			}
		}
	}
	both(5)
	if o.GetDoubt() != "" {
		t.Errorf("doubt %q while the older one may be on its way down", o.GetDoubt())
	}
	both(15)
	g := gpuOf(t, o, "GPU-a-0")
	if !strings.Contains(o.GetDoubt(), "boot boot-1") || g.GetHealth().GetClass() != HealthDoubtful || tempQuality(t, o) != suspectQ {
		t.Errorf("doubt %q, health %v, temperature %s", o.GetDoubt(), g.GetHealth(), tempQuality(t, o))
	}
	s := NewState()
	if err := s.Observe(at, o); err != nil {
		t.Fatal(err)
	}
	n, vg, _ := s.View(at).GPU("GPU-a-0")
	if r, _ := vg.Reading(telemetry.GPUTemperatureCelsiusCore); n.Doubt == "" || !vg.DoubtfulIdentity || n.Fresh(r, at) {
		t.Errorf("in the View: doubt %q, doubtful %v", n.Doubt, vg.DoubtfulIdentity)
	}
	for range 70 { // the other one is switched off
		at = at.Add(time.Second)
		o = hear(b)
	}
	if o.GetDoubt() != "" || tempQuality(t, o) != okQ || gpuOf(t, o, "GPU-a-0").GetHealth().GetClass() != HealthOK {
		t.Errorf("a minute after the other one fell silent: doubt %q, %s", o.GetDoubt(), tempQuality(t, o))
	}
}

// Two processes on one machine read the same devices: no doubt of whose they are.
func TestTwoProcessesOfOneMachine(t *testing.T) {
	a, b := newNode("a", 1), newNode("a", 1)
	b.start = a.start.Add(time.Minute)
	j := NewJudge("a", false)
	for i := range 40 {
		at := t0.Add(time.Duration(i) * time.Second)
		_, _ = j.Frame(at, a.frame(at))
		o, err := j.Frame(at, b.frame(at))
		if err != nil || o.GetDoubt() != "" {
			t.Fatalf("second %d: doubt %q, %v", i, o.GetDoubt(), err)
		}
	}
}

// What an earlier process left on its way is no second machine.
func TestLateFramesAreNoRival(t *testing.T) {
	for _, tc := range []struct {
		name string
		boot string
	}{{"of the same machine", "boot-1"}, {"of its last boot", "boot-0"}} {
		t.Run(tc.name, func(t *testing.T) {
			old := newNode("a", 1)
			old.boot = tc.boot
			var late []*telemetry.Frame
			for i := range 40 {
				late = append(late, old.frame(t0.Add(time.Duration(i)*time.Second)))
			}
			n := newNode("a", 1)
			n.start = t0.Add(time.Minute)
			r := newRig(t, n)
			r.seconds(t0.Add(time.Minute), 20)
			at := t0.Add(80 * time.Second)
			for range 3 { // told again and again, in reverse
				for i := len(late) - 1; i >= 0; i-- {
					_, err := r.j.Frame(at, late[i])
					wantDrop(t, err, telemetry.DropReordered)
				}
			}
			if o := r.hear(at); o.GetDoubt() != "" || tempQuality(t, o) != okQ {
				t.Errorf("doubt %q, %s", o.GetDoubt(), tempQuality(t, o))
			}
		})
	}
}

// Devices are known by their UUIDs: when one drops out and the others move up in
// number and order, each keeps its values, its slope and what was learned of it.
func TestIndexesShift(t *testing.T) {
	n := newNode("a", 3)
	r, s := newRig(t, n), NewState()
	heat := func(second int) {
		for i, g := range n.devices {
			set(g, map[telemetry.ID]float64{telemetry.GPUTemperatureCelsiusCore: 50 + 10*float64(i), telemetry.GPUThermalHeadroomCelsius: 60 - float64(second)*float64(i)/4, telemetry.GPUBusySeconds: 1e6 * float64(i+1)})
		}
	}
	at := t0
	run := func(seconds int) (o *telemetry.Observation) {
		for range seconds {
			heat(int(at.Sub(t0) / time.Second))
			if o = r.hear(at); o != nil {
				if err := s.Observe(at, o); err != nil {
					t.Fatal(err)
				}
			}
			at = at.Add(time.Second)
		}
		return o
	}
	run(40)
	r.j.tracks[2].fit.r, r.j.tracks[2].fit.hasR = 0.09, true
	all := n.devices
	heatAll := heat
	heat = func(second int) { n.devices = all; heatAll(second); n.devices = []*telemetry.GPU{all[2], all[1]} }
	n.devices = []*telemetry.GPU{all[2], all[1]} // the first is gone, the others come in another order
	for i, g := range n.devices {
		g.GetDescription().SetIndex(uint32(i))
	}
	o := run(1)
	for i, uuid := range []string{"GPU-a-1", "GPU-a-2"} {
		g := gpuOf(t, o, uuid)
		temp := valueOf(g, telemetry.GPUTemperatureCelsiusCore)
		if want := 60 + 10*float64(i); temp.GetV() != want || temp.GetQuality() != okQ {
			t.Errorf("%s: temperature %v, want %g", uuid, temp, want)
		}
		if want := -float64(i+1) / 4; g.GetSlopeCPerS() > want+0.02 || g.GetSlopeCPerS() < want-0.02 {
			t.Errorf("%s: slope %g, want %g", uuid, g.GetSlopeCPerS(), want)
		}
		if busy := valueOf(g, telemetry.GPUBusySeconds); busy.GetQuality() != okQ {
			t.Errorf("%s: another device's counter was taken for its own: %v", uuid, busy)
		}
	}
	if g := gpuOf(t, o, "GPU-a-2"); g.GetRCPerW() != 0.09 || g.GetIndex() != 0 {
		t.Errorf("what was learned of GPU-a-2: %g, index %d", g.GetRCPerW(), g.GetIndex())
	}
	if g := gpuOf(t, o, "GPU-a-0"); g.GetState() != telemetry.GPUState_GPU_STATE_ABSENT {
		t.Errorf("the one that dropped out: %v", g.GetState())
	}
	v := s.View(at)
	for _, uuid := range []string{"GPU-a-0", "GPU-a-1", "GPU-a-2"} {
		if _, g, ok := v.GPU(uuid); !ok || g.UUID != uuid {
			t.Errorf("%s in the View: %+v", uuid, g)
		}
	}
}

// A device that was moved within its machine has other air around it.
func TestDeviceMovesWithinTheMachine(t *testing.T) {
	n := newNode("a", 2)
	r := newRig(t, n)
	_, at := r.seconds(t0, 5)
	for _, x := range r.j.tracks {
		x.fit.r, x.fit.hasR = 0.06, true
	}
	n.devices[0].GetDescription().SetPci("0000:99:00.0")
	o := r.hear(at)
	if gpuOf(t, o, "GPU-a-0").HasRCPerW() {
		t.Error("what was learned in another place is told of this one")
	}
	if !gpuOf(t, o, "GPU-a-1").HasRCPerW() {
		t.Error("a device that stayed was forgotten")
	}
}

// Two devices that claim one place cannot both be believed; one that has taken
// the place of an absent one can.
func TestTwoDevicesInOnePlace(t *testing.T) {
	n := newNode("a", 2)
	r := newRig(t, n)
	n.devices[1].GetDescription().SetPci("0000:00:00.0")
	r.seconds(t0, 2)
	o := r.hear(t0.Add(2 * time.Second))
	for i := range 2 {
		g := gpuOf(t, o, fmt.Sprintf("GPU-a-%d", i))
		temp := valueOf(g, telemetry.GPUTemperatureCelsiusCore)
		if g.GetHealth().GetClass() != HealthDoubtful || !strings.Contains(g.GetHealth().GetReason(), "claims the same place") || temp.GetQuality() != suspectQ {
			t.Errorf("health %v, temperature %v", g.GetHealth(), temp)
		}
	}
	st := NewState()
	if err := st.Observe(t0, o); err != nil {
		t.Fatal(err)
	}
	for _, g := range st.View(t0).GPUs() {
		if !g.DoubtfulIdentity {
			t.Errorf("%s is not doubtful in the View", g.UUID)
		}
	}
	n.devices[0].SetLost(true) // the one that was taken out is still listed
	r.hear(t0.Add(3 * time.Second))
	if g := gpuOf(t, r.hear(t0.Add(4*time.Second)), "GPU-a-1"); g.GetHealth().GetClass() != HealthOK {
		t.Errorf("the one that answers: %v", g.GetHealth())
	}
	// After a start of the machine only the new one is there.
	n.devices = n.devices[1:]
	n.boot = "boot-2"
	n.restart(t0.Add(5 * time.Second))
	o = r.hear(t0.Add(5 * time.Second))
	if h := gpuOf(t, o, "GPU-a-0").GetHealth(); h.GetClass() != HealthAbsent || !strings.Contains(h.GetReason(), "GPU-a-1 is in its place") {
		t.Errorf("the old one: %v", h)
	}
	if o.GetGpusExpected() != 1 || o.GetGpusFresh() != 1 {
		t.Errorf("%d of %d devices, want one of one", o.GetGpusFresh(), o.GetGpusExpected())
	}
}

// One machine that reports under two names is said to be that; two machines that
// claim one device are not.
func TestOneMachineUnderTwoNames(t *testing.T) {
	for _, tc := range []struct {
		boot string
		same bool
	}{{"boot-1", true}, {"boot-2", false}} {
		a, b := newNode("a", 1), newNode("b", 1)
		b.devices[0].SetUuid("GPU-a-0")
		b.boot = tc.boot
		f := newFleet(t, a, b)
		f.tick(t0, "a", "b")
		f.s.View(t0)
		f.tick(t0.Add(time.Second), "a", "b")
		v := f.s.View(t0.Add(time.Second))
		claims := 0
		for n, g := range v.GPUs() {
			claims++
			if !g.DoubtfulIdentity || !strings.HasPrefix(g.HealthReason, "also claimed by ") || strings.HasSuffix(g.HealthReason, "the same machine by its boot id") != tc.same {
				t.Errorf("on %s with boot %s: %q", n.Name, tc.boot, g.HealthReason)
			}
		}
		if claims != 2 {
			t.Errorf("%d claims", claims)
		}
	}
}

// A device that was moved to another machine while the first one was off.
func TestDeviceMovesWithItsMachineOff(t *testing.T) {
	a, b := newNode("a", 1), newNode("b", 1)
	f := newFleet(t, a, b)
	f.tick(t0, "a", "b")
	moved := newGPU("GPU-a-0", 1)
	b.devices = append(b.devices, moved)
	at := t0.Add(time.Hour)
	f.tick(at, "b")
	v := f.s.View(at)
	n, g, ok := v.GPU("GPU-a-0")
	if !ok || n.Name != "b" || g.DoubtfulIdentity || f.s.Conflicts() != 0 {
		t.Errorf("on %v, doubtful %v, %d conflicts", n, g.DoubtfulIdentity, f.s.Conflicts())
	}
}
