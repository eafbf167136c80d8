package telemetry

import (
	"math"
	"regexp"
	"strings"
	"testing"
)

// rangeOf is the id range of what a row describes.
func rangeOf(r Row) (lo, hi ID) {
	switch {
	case r.Per == PerGPU:
		return 1, 199
	case r.Per == PerLink:
		return 200, 299
	case r.Per == PerInstance || r.Per == PerProcess:
		return 300, 399
	case strings.HasPrefix(r.Name, "node_"):
		return 400, 599
	}
	return 600, 999
}

func TestCatalogIsConsistent(t *testing.T) {
	ids, fields, names := map[ID]string{}, map[string]string{}, map[string]bool{}
	snake := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, r := range Catalog {
		if names[r.Name] {
			t.Errorf("%s: two rows", r.Name)
		}
		names[r.Name] = true
		if !snake.MatchString(r.Name) || r.Help == "" || !strings.HasSuffix(r.Help, ".") {
			t.Errorf("%s: want a snake case name and a help text that ends in a full stop, got %q", r.Name, r.Help)
		}
		if (r.Type == Counter) != strings.HasSuffix(r.Name, "_total") {
			t.Errorf("%s is a %s; counters and only counters end in _total", r.Name, r.Type)
		}
		if (r.Type == Info) != strings.HasSuffix(r.Name, "_info") {
			t.Errorf("%s is a %s; info metrics and only they end in _info", r.Name, r.Type)
		}
		if r.Min > r.Max || math.IsNaN(r.Min) || r.Type == Counter && r.Min != 0 {
			t.Errorf("%s: range %g … %g", r.Name, r.Min, r.Max)
		}
		if r.Archs == 0 || len(r.Series) == 0 {
			t.Errorf("%s: no architecture or no series", r.Name)
		}
		lo, hi := rangeOf(r)
		for _, s := range r.Series {
			if other, taken := ids[s.ID]; taken {
				t.Errorf("%s and %s share id %d", r.Name, other, s.ID)
			}
			ids[s.ID] = r.Name
			if s.ID < lo || s.ID > hi {
				t.Errorf("%s: id %d outside %d–%d", r.Name, s.ID, lo, hi)
			}
			if other, taken := fields[s.Field]; taken {
				t.Errorf("%s and %s share field %s", r.Name, other, s.Field)
			}
			fields[s.Field] = r.Name
			if s.Values != nil && len(s.Values) != len(r.Labels) {
				t.Errorf("%s: %d label values for %d labels", r.Name, len(s.Values), len(r.Labels))
			}
		}
		if r.Wire.Kind != NoWire && r.Origin != FromNode {
			t.Errorf("%s travels in frames but is made by %s", r.Name, r.Origin)
		}
	}
}

// TestFixedNames pins what dashboards and alerts of others rely on.
func TestFixedNames(t *testing.T) {
	for name, labels := range map[string]string{
		"gpu_info": "index,pci,model,driver,arch", "gpu_up": "", "gpu_health": "class", "gpu_utilization_ratio": "",
		"gpu_temperature_celsius": "sensor", "gpu_thermal_headroom_celsius": "", "gpu_power_watts": "", "gpu_power_limit_watts": "",
		"gpu_clock_hertz": "domain", "gpu_throttle_active": "reason", "gpu_throttle_seconds_total": "reason",
		"gpu_nvlink_total_bytes_total": "direction", "gpu_nvlink_bytes_total": "link,direction", "gpu_nvlink_errors_total": "link,kind",
		"gpu_ecc_errors_total": "kind,scope", "gpu_xid_errors_total": "xid,action", "gpu_workload_info": "workload,kind,owner",
		"gpu_idle_seconds": "cause", "evenkeel_node_info": "cluster,rack,row,feed", "evenkeel_decisions_total": "policy,act,outcome",
		"evenkeel_refusals_total": "reason", "evenkeel_effect": "signal,kind", "evenkeel_frames_dropped_total": "why",
		"evenkeel_reader_success": "reader", "gpu_mig_instance_info": "gi,profile", "gpu_sample_invalid_total": "metric,why",
	} {
		found := false
		for _, r := range Catalog {
			if r.Name == name {
				found = true
				if got := strings.Join(r.Labels, ","); got != labels {
					t.Errorf("%s has labels %q, want %q", name, got, labels)
				}
			}
		}
		if !found {
			t.Errorf("%s is not in the catalogue", name)
		}
	}
}

func TestValuesSurviveTheWire(t *testing.T) {
	for _, r := range Catalog {
		if r.Wire.Kind == NoWire {
			continue
		}
		for _, s := range r.Series {
			for _, v := range sampleValues(r) {
				g := new(GPU)
				set, get := g.SetValue, g.Value
				if r.Per == PerLink {
					set = func(id ID, v float64) bool { return g.SetLinkValue(id, 3, v) }
					get = func(id ID) (float64, bool) { return g.LinkValue(id, 3) }
				}
				if _, there := get(s.ID); there {
					t.Fatalf("%s is there before it was set", s.Field)
				}
				if !set(s.ID, v) {
					t.Fatalf("%s refuses %g", s.Field, v)
				}
				got, there := get(s.ID)
				if there == false || math.Abs(got-v) > r.Wire.Scale/2+1e-9*math.Abs(v) {
					t.Errorf("%s: %g came back as %g, there=%v", s.Field, v, got, there)
				}
				for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e30} {
					if r.Wire.Kind != Bits && set(s.ID, bad) {
						t.Errorf("%s takes %g", s.Field, bad)
					}
				}
			}
		}
	}
}

func sampleValues(r Row) []float64 {
	hi := r.Max
	if math.IsInf(hi, 1) {
		hi = 1 << 52 * r.Wire.Scale
	}
	if r.Wire.Kind == Bits || hi == 1 && r.Wire.Scale == 1 {
		return []float64{0, 1}
	}
	return []float64{r.Min, (r.Min + hi) / 2, hi}
}

func TestLinkHolesAreNotZeros(t *testing.T) {
	g := new(GPU)
	g.SetLinkValue(LinkNVLinkBytesTx, 2, 7)
	for link, want := range []bool{false, false, true, false} {
		if _, there := g.LinkValue(LinkNVLinkBytesTx, link); there != want {
			t.Errorf("link %d there=%v, want %v", link, there, want)
		}
	}
	if g.SetLinkValue(LinkNVLinkBytesTx, MaxLinks, 1) || g.SetLinkValue(LinkNVLinkBytesTx, -1, 1) {
		t.Error("took a link outside the frame")
	}
}

// A link that is down says so and is a hole in every other column.
func TestLinkThatIsDown(t *testing.T) {
	g := new(GPU)
	g.SetLinkValue(LinkNVLinkUp, 1, 0)
	g.SetLinkValue(LinkNVLinkBytesTx, 2, 7) // does not say
	g.SetLinkValue(LinkNVLinkBytesTx, 4, 9)
	g.SetLinkValue(LinkNVLinkUp, 4, 1)
	for link, want := range []float64{-1, 0, -1, -1, 1} {
		v, there := g.LinkValue(LinkNVLinkUp, link)
		if there != (want >= 0) || there && v != want {
			t.Errorf("link %d: %g, there=%v, want %g", link, v, there, want)
		}
	}
	if _, there := g.LinkValue(LinkNVLinkBytesTx, 1); there {
		t.Error("a link that is down has bytes")
	}
	g.SetLinkValue(LinkNVLinkUp, 1, 1)
	if v, there := g.LinkValue(LinkNVLinkUp, 1); v != 1 || !there {
		t.Errorf("a link that came up: %g, %v", v, there)
	}
	if g.SetLinkValue(LinkNVLinkUp, 1, 0.5) || g.SetLinkValue(LinkNVLinkUp, MaxLinks, 0) {
		t.Error("took what is no state of a link")
	}
}

func TestQualityMarks(t *testing.T) {
	g := new(GPU)
	g.SetQuality(GPUPowerWatts, Quality_QUALITY_SUSPECT)
	g.SetQuality(GPUBusySeconds, Quality_QUALITY_ERROR)
	g.SetQuality(GPUPowerWatts, Quality_QUALITY_OK)
	if g.QualityOf(GPUPowerWatts) != Quality_QUALITY_OK || g.QualityOf(GPUBusySeconds) != Quality_QUALITY_ERROR || len(g.GetQualityIds()) != 1 {
		t.Errorf("marks: %v %v", g.GetQualityIds(), g.GetQualities())
	}
}

func TestRateOf(t *testing.T) {
	for id, want := range map[ID]Rate{
		GPUPowerWatts: Fast, GPUPowerLimitWatts: Slow, GPUClockHertzSM: Fast, GPUClockHertzMemory: Fast,
		GPUClockHertzGraphics: Slow, GPUClockHertzVideo: Slow, LinkNVLinkUp: Link, GPUXidErrors: OnDemand, 999: OnDemand, 1 << 20: OnDemand,
	} {
		if got := RateOf(id); got != want {
			t.Errorf("rate of %d is %q, want %q", id, got, want)
		}
	}
}
