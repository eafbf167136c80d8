package cluster

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	okQ      = telemetry.Quality_QUALITY_OK
	suspectQ = telemetry.Quality_QUALITY_SUSPECT
	staleQ   = telemetry.Quality_QUALITY_STALE
	errorQ   = telemetry.Quality_QUALITY_ERROR
)

func TestCatalogueFitsSlots(t *testing.T) {
	if len(wiredSeries) > maxSlots {
		t.Fatalf("%d series travel in the GPU message, room for %d: raise maxSlots", len(wiredSeries), maxSlots)
	}
	if len(linkIDs) == 0 {
		t.Fatal("no per-link series")
	}
}

func TestSequence(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 3)
	again := r.n.frame(at)
	v, err := r.j.FrameInto(at, again, new(telemetry.Observation))
	if err != nil || v.Lost != 0 {
		t.Fatalf("next frame: %+v, %v", v, err)
	}
	_, err = r.j.Frame(at, again)
	wantDrop(t, err, telemetry.DropDuplicate)

	r.n.seq += 4 // four frames are lost
	late := r.n.seq
	v, err = r.j.FrameInto(at.Add(5*time.Second), r.n.frame(at.Add(5*time.Second)), new(telemetry.Observation))
	if err != nil || v.Lost != 4 {
		t.Errorf("after a gap of four: lost %d, %v", v.Lost, err)
	}
	r.n.seq = late - 1
	old := r.n.frame(at.Add(4 * time.Second))
	_, err = r.j.Frame(at.Add(6*time.Second), old)
	wantDrop(t, err, telemetry.DropReordered)
	_, err = r.j.Frame(at.Add(6*time.Second), old)
	wantDrop(t, err, telemetry.DropDuplicate)
	r.n.seq = 0
	_, err = r.j.Frame(at.Add(7*time.Second), r.n.frame(at))
	wantDrop(t, err, telemetry.DropDuplicate)
}

func TestRefusedFrameChangesNothing(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 3)
	r.n.seq--
	set(r.n.devices[0], map[telemetry.ID]float64{telemetry.GPUTemperatureCelsiusCore: 99})
	if _, err := r.j.Frame(at, r.n.frame(at)); err == nil {
		t.Fatal("a frame seen before was taken")
	}
	set(r.n.devices[0], map[telemetry.ID]float64{telemetry.GPUTemperatureCelsiusCore: 61})
	g := gpuOf(t, r.hear(at), "GPU-a-0")
	if v := valueOf(g, telemetry.GPUTemperatureCelsiusCore); v.GetV() != 61 || v.GetQuality() != okQ {
		t.Errorf("temperature %v", v)
	}
}

func TestRestartIsANewSource(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 20)
	r.n.devices[0].ClearValue(telemetry.GPUPowerLimitWatts)
	oldStart := r.n.start
	r.n.restart(at)
	o := r.hear(at)
	if o == nil {
		t.Fatal("a new process is no observation")
	}
	g := gpuOf(t, o, "GPU-a-0")
	if v := valueOf(g, telemetry.GPUPowerLimitWatts); v != nil {
		t.Errorf("value from before the restart: %v", v)
	}
	if g.HasSlopeCPerS() {
		t.Error("slope over a restart")
	}
	// The old process's frames come late.
	r.n.start = oldStart
	_, err := r.j.Frame(at.Add(time.Second), r.n.frame(at))
	wantDrop(t, err, telemetry.DropReordered)
	// A lower incarnation is believed when the other one is silent.
	later := at.Add(11 * time.Second)
	r.n.boot = "boot-2"
	if o := r.hear(later); o == nil || o.GetBootId() != "boot-2" {
		t.Errorf("after the silence of the newer process: %v", o)
	}
}

// What a process tells of a time before it was there, another read.
func TestValuesOlderThanTheirProcess(t *testing.T) {
	n := newNode("a", 1)
	n.start = t0.Add(-10 * time.Second)
	r := newRig(t, n)
	for _, tc := range []struct {
		age  uint32
		want telemetry.Quality
	}{{9000, okQ}, {11_500, suspectQ}} {
		n.devices[0].SetSlowAgeMs(tc.age)
		g := gpuOf(t, r.hear(t0.Add(time.Duration(n.seq)*time.Second)), "GPU-a-0")
		if v := valueOf(g, telemetry.GPUPowerLimitWatts); v.GetQuality() != tc.want {
			t.Errorf("limit that is %d ms old: %s, want %s", tc.age, v.GetQuality(), tc.want)
		}
	}
}

func TestClipKeepsCharactersWhole(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("x", 200), strings.Repeat("é", 200), "x" + strings.Repeat("é", 200), strings.Repeat("漢", 200)} {
		got := clip(s)
		if len(got) > maxText || !utf8.ValidString(got) || !strings.HasPrefix(s, got) || len(s) > maxText && len(got) < maxText-3 {
			t.Errorf("%q is cut to %q", s, got)
		}
	}
}

func TestLearnedResistanceOutlivesTheProcessNotTheBoot(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 3)
	r.j.tracks[0].fit.r, r.j.tracks[0].fit.hasR = 0.06, true
	r.n.restart(at)
	if g := gpuOf(t, r.hear(at), "GPU-a-0"); g.GetRCPerW() != 0.06 {
		t.Error("a restart of the process lost what was learned")
	}
	r.n.restart(at.Add(time.Minute))
	r.n.boot = "boot-2"
	if g := gpuOf(t, r.hear(at.Add(time.Minute)), "GPU-a-0"); g.HasRCPerW() {
		t.Error("what was learned outlived a boot, in which hardware may change")
	}
}

func TestPublishing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		period time.Duration
		frames int
		want   int
	}{
		{"1 Hz", time.Second, 30, 30},
		{"10 Hz", 100 * time.Millisecond, 300, 30},
		{"4 Hz", 250 * time.Millisecond, 120, 30},
		{"every 5 s", 5 * time.Second, 6, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode("a", 1)
			n.period = tc.period
			r := newRig(t, n)
			got := 0
			for i := range tc.frames {
				if r.hear(t0.Add(time.Duration(i)*tc.period)) != nil {
					got++
				}
			}
			if got != tc.want {
				t.Errorf("%d observations of %d frames, want %d", got, tc.frames, tc.want)
			}
		})
	}
	t.Run("1 Hz on the boundary of the second", func(t *testing.T) {
		r := newRig(t, newNode("a", 1))
		base := t0.Truncate(time.Second)
		for i := range 20 {
			jitter := time.Duration(i%2*20-10) * time.Millisecond
			if r.hear(base.Add(time.Duration(i)*time.Second+jitter)) == nil {
				t.Fatalf("frame %d gave no observation", i)
			}
		}
	})
	t.Run("at once when a verdict changes", func(t *testing.T) {
		n := newNode("a", 2)
		n.period = 100 * time.Millisecond
		r := newRig(t, n)
		at := t0
		quiet := func() {
			t.Helper()
			for r.hear(at) == nil { // to just after a regular one
				at = at.Add(n.period)
			}
			at = at.Add(n.period)
			if r.hear(at) != nil {
				t.Fatal("observation without a change")
			}
			at = at.Add(n.period)
		}
		for _, change := range []struct {
			name string
			make func()
		}{
			{"throttle onset", func() { n.devices[0].SetValue(telemetry.GPUThrottleActiveHWThermal, 1) }},
			{"lost", func() { n.devices[0].SetLost(true) }},
			{"hung", func() {
				n.devices[1].SetHung(telemetry.HungCall_builder{Call: "nvmlDeviceGetPowerUsage", ForMs: 1500}.Build())
			}},
			{"absent", func() { n.devices = n.devices[:1] }},
			{"driver fault", func() { n.fault = "not_loaded" }},
			{"new process", func() { n.restart(at) }},
		} {
			quiet()
			change.make()
			if r.hear(at) == nil {
				t.Errorf("%s: no observation at once", change.name)
			}
			at = at.Add(n.period)
			if r.hear(at) != nil {
				t.Errorf("%s: told twice", change.name)
			}
			at = at.Add(n.period)
		}
	})
}

func TestAgeAndStale(t *testing.T) {
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 5)
	g := n.devices[0]
	g.ClearValue(telemetry.GPUPowerWatts)      // fast
	g.ClearValue(telemetry.GPUPowerLimitWatts) // slow
	check := func(after time.Duration, id telemetry.ID, want telemetry.Quality, there bool) {
		t.Helper()
		v := valueOf(gpuOf(t, r.hear(at.Add(after-time.Second)), "GPU-a-0"), id)
		switch {
		case !there && v != nil:
			t.Errorf("id %d after %s: %v, want none", id, after, v)
		case there && v == nil:
			t.Errorf("id %d after %s: none", id, after)
		case there && (v.GetQuality() != want || time.Duration(v.GetAgeMs())*time.Millisecond != after):
			t.Errorf("id %d after %s: %s, age %d ms; want %s", id, after, v.GetQuality(), v.GetAgeMs(), want)
		}
	}
	check(2*time.Second, telemetry.GPUPowerWatts, okQ, true)
	check(3*time.Second, telemetry.GPUPowerWatts, okQ, true)
	check(4*time.Second, telemetry.GPUPowerWatts, staleQ, true)
	check(13*time.Second, telemetry.GPUPowerWatts, okQ, false)
	check(44*time.Second, telemetry.GPUPowerLimitWatts, okQ, true)
	check(45*time.Second, telemetry.GPUPowerLimitWatts, okQ, true)
	check(46*time.Second, telemetry.GPUPowerLimitWatts, staleQ, true)
	if o := gpuOf(t, r.hear(at.Add(47*time.Second)), "GPU-a-0"); o.GetPower().HasLimitW() || !o.GetPower().HasMinW() {
		t.Errorf("limits %v: the stale one must go, the confirmed ones stay", o.GetPower())
	}
	check(12*15*time.Second+2*time.Second, telemetry.GPUPowerLimitWatts, okQ, false)
}

func TestSlowValueIsConfirmed(t *testing.T) {
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 3)
	g := n.devices[0]
	for i := range 60 {
		if i%15 == 0 {
			g.SetValue(telemetry.GPUPowerLimitWatts, 700)
			g.SetSlowAgeMs(20)
		} else {
			g.ClearValue(telemetry.GPUPowerLimitWatts)
		}
		o := gpuOf(t, r.hear(at), "GPU-a-0")
		v := valueOf(o, telemetry.GPUPowerLimitWatts)
		if want := uint32(i%15*1000 + 20); v.GetQuality() != okQ || v.GetAgeMs() != want {
			t.Fatalf("second %d: %s, age %d ms, want %d", i, v.GetQuality(), v.GetAgeMs(), want)
		}
		at = at.Add(time.Second)
	}
}

func TestQualityOfTheNode(t *testing.T) {
	const id = telemetry.GPUPowerWatts
	for _, tc := range []struct {
		name string
		make func(g *telemetry.GPU)
		want telemetry.Quality
		gone bool
	}{
		{"suspect", func(g *telemetry.GPU) { g.SetQuality(id, suspectQ) }, suspectQ, false},
		{"error, no value", func(g *telemetry.GPU) { g.SetQuality(id, errorQ); g.ClearValue(id) }, errorQ, false},
		{"unsupported", func(g *telemetry.GPU) {
			g.SetQuality(id, telemetry.Quality_QUALITY_UNSUPPORTED)
			g.ClearValue(id)
		}, okQ, true},
		{"unknown mark", func(g *telemetry.GPU) { g.SetQuality(id, 77) }, suspectQ, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, newNode("a", 1))
			_, at := r.seconds(t0, 3)
			tc.make(r.n.devices[0])
			v := valueOf(gpuOf(t, r.hear(at), "GPU-a-0"), id)
			if tc.gone != (v == nil) || v != nil && v.GetQuality() != tc.want {
				t.Errorf("power: %v, want %s (none: %v)", v, tc.want, tc.gone)
			}
		})
	}
}

func TestRangeIsCheckedAgain(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 3)
	r.n.devices[0].SetPowerWatts(4_000_000_000) // 4 MW
	o := r.hear(at)
	if v := valueOf(gpuOf(t, o, "GPU-a-0"), telemetry.GPUPowerWatts); v.GetV() != 500 || v.GetAgeMs() != 1000 {
		t.Errorf("power %v, want the last one with its age", v)
	}
	if len(o.GetRefused()) != 1 || o.GetRefused()[0].GetWhy() != RefusedOutOfRange || o.GetRefused()[0].GetCount() != 1 {
		t.Errorf("refused %v", o.GetRefused())
	}
	if o = r.hear(at.Add(time.Second)); o.GetRefused()[0].GetCount() != 1 {
		t.Errorf("refused since the last observation: %v", o.GetRefused())
	}
}

func TestImplausibleIsSuspect(t *testing.T) {
	r := newRig(t, newNode("a", 1))
	_, at := r.seconds(t0, 3)
	temp := func(c float64) telemetry.Quality {
		r.n.devices[0].SetValue(telemetry.GPUTemperatureCelsiusCore, c)
		o := r.hear(at)
		at = at.Add(time.Second)
		return valueOf(gpuOf(t, o, "GPU-a-0"), telemetry.GPUTemperatureCelsiusCore).GetQuality()
	}
	for i, step := range []struct {
		c    float64
		want telemetry.Quality
	}{{62, okQ}, {110, suspectQ}, {62, suspectQ}, {63, okQ}, {105, suspectQ}, {106, okQ}} {
		if q := temp(step.c); q != step.want {
			t.Errorf("step %d, %g °C: %s, want %s", i, step.c, q, step.want)
		}
	}
	g := r.n.devices[0]
	g.SetValue(telemetry.GPUEnergyJoules, 5)
	if v := valueOf(gpuOf(t, r.hear(at), "GPU-a-0"), telemetry.GPUEnergyJoules); v.GetQuality() != suspectQ {
		t.Errorf("a counter that fell: %s", v.GetQuality())
	}
	g.SetValue(telemetry.GPUEnergyJoules, 1)
	g.SetGeneration(7)
	if v := valueOf(gpuOf(t, r.hear(at.Add(time.Second)), "GPU-a-0"), telemetry.GPUEnergyJoules); v.GetQuality() != okQ {
		t.Errorf("a counter of new parts: %s", v.GetQuality())
	}
}

func TestDeviceStates(t *testing.T) {
	n := newNode("a", 4)
	r := newRig(t, n)
	_, at := r.seconds(t0, 3)
	n.devices[0].SetLost(true)
	n.devices[1].SetHung(telemetry.HungCall_builder{Call: "nvmlDeviceGetTemperature", ForMs: 2100}.Build())
	mute := newGPU("GPU-a-2", 2)
	for _, w := range wiredSeries {
		mute.ClearValue(w.id)
	}
	mute.SetUp(0)
	n.devices = []*telemetry.GPU{n.devices[0], n.devices[1], mute}
	o := r.hear(at)
	for _, tc := range []struct {
		uuid  string
		state telemetry.GPUState
		class string
	}{
		{"GPU-a-0", telemetry.GPUState_GPU_STATE_LOST, HealthLost},
		{"GPU-a-1", telemetry.GPUState_GPU_STATE_HUNG, HealthHung},
		{"GPU-a-2", telemetry.GPUState_GPU_STATE_UNKNOWN, HealthUnknown},
		{"GPU-a-3", telemetry.GPUState_GPU_STATE_ABSENT, HealthAbsent},
	} {
		g := gpuOf(t, o, tc.uuid)
		if g.GetState() != tc.state || g.GetHealth().GetClass() != tc.class {
			t.Errorf("%s: %s, %s; want %s, %s", tc.uuid, g.GetState(), g.GetHealth().GetClass(), tc.state, tc.class)
		}
	}
	if g := gpuOf(t, o, "GPU-a-1"); g.GetHung().GetCall() != "nvmlDeviceGetTemperature" || g.GetHung().GetForMs() != 2100 {
		t.Errorf("hung call %v", g.GetHung())
	}
	if g := gpuOf(t, o, "GPU-a-3"); len(g.GetValues()) != 0 || g.HasHeadroomC() {
		t.Errorf("an absent device has values: %v", g.GetValues())
	}
	// A driver that does not answer makes devices unknown, not absent.
	n.devices, n.fault = nil, "not_loaded"
	for _, g := range r.hear(at.Add(time.Second)).GetGpus() {
		if g.GetState() != telemetry.GPUState_GPU_STATE_UNKNOWN {
			t.Errorf("%s without a driver: %s", g.GetUuid(), g.GetState())
		}
	}
}

func TestHeadroom(t *testing.T) {
	for _, tc := range []struct {
		name   string
		make   func(g *telemetry.GPU)
		want   float64
		absent bool
	}{
		{"of the node", func(*telemetry.GPU) {}, 27, false},
		{"threshold minus temperature", func(g *telemetry.GPU) {
			g.ClearValue(telemetry.GPUThermalHeadroomCelsius)
			g.SetValue(telemetry.GPUSlowdownThresholdCelsius, 92)
		}, 32, false},
		{"no limit known", func(g *telemetry.GPU) { g.ClearValue(telemetry.GPUThermalHeadroomCelsius) }, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode("a", 1)
			tc.make(n.devices[0])
			r := newRig(t, n)
			o, _ := r.seconds(t0, 3)
			g := gpuOf(t, o, "GPU-a-0")
			if g.HasHeadroomC() == tc.absent || g.GetHeadroomC() != tc.want {
				t.Errorf("headroom %g (%v), want %g", g.GetHeadroomC(), g.HasHeadroomC(), tc.want)
			}
			v := valueOf(g, telemetry.GPUThermalHeadroomCelsius)
			if (v == nil) != tc.absent || v.GetV() != tc.want {
				t.Errorf("value of headroom %v", v)
			}
		})
	}
}

func TestSlope(t *testing.T) {
	for _, perSecond := range []float64{-0.5, -0.2, -0.05, 0, 0.1, 0.8} {
		n := newNode("a", 1)
		r := newRig(t, n)
		var o *telemetry.Observation
		exact := 40.0
		for i := range 40 {
			exact += perSecond
			n.devices[0].SetValue(telemetry.GPUThermalHeadroomCelsius, math.Round(exact))
			o = r.hear(t0.Add(time.Duration(i) * time.Second))
		}
		g := gpuOf(t, o, "GPU-a-0")
		if got := g.GetSlopeCPerS(); math.Abs(got-perSecond) > 0.03+0.12*math.Abs(perSecond) {
			t.Errorf("slope %.3f of whole degrees, want %.3f", got, perSecond)
		}
		if perSecond < -0.1 {
			want := exact / -perSecond
			if got := g.GetSecondsToSlowdown(); math.Abs(got-want) > 0.2*want {
				t.Errorf("%.0f s to slowdown, want %.0f", got, want)
			}
		} else if perSecond >= 0 && g.HasSecondsToSlowdown() {
			t.Errorf("slope %g: slowdown in %g s", perSecond, g.GetSecondsToSlowdown())
		}
	}
}

func TestSlopeIsAnsweredFast(t *testing.T) {
	// Steady for a minute, then heating at 1 °C/s: told within ten seconds.
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 60)
	var g *telemetry.GPUObservation
	for i := range 10 {
		n.devices[0].SetValue(telemetry.GPUThermalHeadroomCelsius, float64(27-i))
		g = gpuOf(t, r.hear(at), "GPU-a-0")
		at = at.Add(time.Second)
	}
	if g.GetSlopeCPerS() > -0.8 {
		t.Errorf("slope %.2f ten seconds into heating at 1 °C/s", g.GetSlopeCPerS())
	}
}

func TestSamples(t *testing.T) {
	n := newNode("a", 1)
	r := newRig(t, n)
	send := func(at time.Time, samples ...*telemetry.Sample) *telemetry.Observation {
		f := n.frame(at)
		f.SetSamples(samples)
		o, err := r.j.Frame(at, f)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	sample := func(id telemetry.ID, uuid string, v float64, labels ...string) *telemetry.Sample {
		return telemetry.Sample_builder{Id: uint32(id), Uuid: uuid, Value: v, Labels: labels}.Build()
	}
	o := send(t0,
		sample(telemetry.NodeHostLoad1, "", 3),
		sample(telemetry.NodeHostTemperatureCelsius, "", 44, "cpu0"),
		sample(telemetry.NodeHostTemperatureCelsius, "", 45, "cpu1"),
		sample(telemetry.GPUXidErrors, "GPU-a-0", 1, "79", "reset"),
		// refused:
		sample(telemetry.NodeHostLoad1, "", math.NaN()),
		sample(telemetry.NodeHostTemperatureCelsius, "", math.Inf(1), "cpu2"),
		sample(telemetry.NodeHostTemperatureCelsius, "", 44),
		sample(telemetry.GPUXidErrors, "GPU-of-another", 1, "79", "reset"),
		sample(telemetry.GPUPowerWatts, "GPU-a-0", 1),
		sample(telemetry.SelfFramesDropped, "", 1, "forged"),
		sample(telemetry.NodeUp, "", 1),
		sample(999, "", 1),
	)
	if len(o.GetRefused()) != 1 || o.GetRefused()[0].GetWhy() != RefusedSample || o.GetRefused()[0].GetCount() != 8 {
		t.Errorf("refused %v", o.GetRefused())
	}
	count := func() (n int) {
		for range r.j.Samples() {
			n++
		}
		return n
	}
	if got := count(); got != 4 {
		t.Errorf("%d samples kept, want 4", got)
	}
	send(t0.Add(time.Second), sample(telemetry.NodeHostTemperatureCelsius, "", 50, "cpu1"))
	if got := count(); got != 4 {
		t.Errorf("%d samples after one was told again, want 4", got)
	}
	send(t0.Add(50 * time.Second)) // the slow ones are stale, the Xid count stays
	if got := count(); got != 1 {
		t.Errorf("%d samples after 50 s, want the Xid count alone", got)
	}
	n.restart(t0.Add(51 * time.Second))
	send(t0.Add(51 * time.Second))
	if got := count(); got != 0 {
		t.Errorf("%d samples outlived their process", got)
	}
}

func TestLinks(t *testing.T) {
	n := newNode("a", 1)
	j := NewJudge("a", true)
	for link := range 4 {
		n.devices[0].SetLinkValue(telemetry.LinkNVLinkBytesTx, link, float64(100+link))
	}
	n.devices[0].SetLinkValue(telemetry.LinkNVLinkUp, 2, 1)
	if _, err := j.Frame(t0, n.frame(t0)); err != nil {
		t.Fatal(err)
	}
	got := map[telemetry.ID]int{}
	for l := range j.Links() {
		got[l.ID]++
		if l.ID == telemetry.LinkNVLinkBytesTx && l.V != float64(100+l.Link) {
			t.Errorf("link %d: %g", l.Link, l.V)
		}
	}
	if got[telemetry.LinkNVLinkBytesTx] != 4 {
		t.Errorf("links told: %v", got)
	}
}
