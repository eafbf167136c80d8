//go:build cgo && linux

package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// told is the last that frames said of each series of each GPU, by index.
type told struct {
	GPUs    []map[string]float64
	Success map[string]float64 // of readers
}

// merge keeps what a frame says.
func (x *told) merge(f *telemetry.Frame) {
	for len(x.GPUs) < len(f.GetGpus()) {
		x.GPUs = append(x.GPUs, map[string]float64{})
	}
	for i, g := range f.GetGpus() {
		for _, row := range telemetry.Catalog {
			for _, s := range row.Series {
				if v, ok := g.Value(s.ID); ok {
					x.GPUs[i][s.Field] = v
				}
				for link := range telemetry.MaxLinks {
					if v, ok := g.LinkValue(s.ID, link); ok && f.GetHasLinkPart() {
						x.GPUs[i][fmt.Sprint(s.Field, " ", link)] = v
					}
				}
			}
		}
	}
	for _, s := range f.GetSamples() {
		if telemetry.ID(s.GetId()) == telemetry.NodeReaderSuccess {
			x.Success[s.GetLabels()[0]] = s.GetValue()
		}
	}
}

type merging struct {
	told
	left int
	end  func()
	err  error
}

func (s *merging) Frame(data []byte) error {
	var f telemetry.Frame
	if s.err = telemetry.DecodeFrame(data, &f); s.err == nil {
		s.merge(&f)
	}
	if s.left--; s.left == 0 || s.err != nil {
		s.end()
	}
	return s.err
}

// helpTold runs the exporter for some ticks.
func helpTold(out *json.Encoder) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sink := &merging{told: told{Success: map[string]float64{}}, left: 8, end: cancel}
	e, err := exporter.New(exporter.Options{Node: "n", Source: New(), Sink: sink, Period: exporter.MinPeriod})
	if err != nil {
		return err
	}
	if err := errors.Join(e.Run(ctx), sink.err); err != nil {
		return err
	}
	return out.Encode(sink.told)
}

// Errors, links, PCIe and health come through the library by whichever source
// the product and its driver have.
func TestErrorsAndLinksOverTheLibrary(t *testing.T) {
	t.Parallel()
	noFields := []string{"nvmlDeviceGetFieldValues"}
	errorsOf := func(names ...string) (list []string) {
		for _, n := range names {
			list = append(list, "nvlink_errors_"+n)
		}
		return list
	}
	for _, c := range []struct {
		model       string
		omit        []string
		links       int
		linkErrors  []string // told of each link
		total       bool
		ecc, remaps bool
		fabric      bool
	}{
		{h100, nil, 18, errorsOf("crc_flit", "crc_data", "replay", "recovery"), true, true, true, true},
		{"A100-SXM4-80GB", nil, 12, errorsOf("crc_flit", "crc_data", "replay", "recovery"), true, true, true, false},
		{"B200-SXM6-180GB", nil, 18, errorsOf("crc_flit", "crc_data", "replay", "recovery"), true, true, true, true},
		{"T4-16GB", nil, 0, nil, false, true, false, false},
		// Without the call for batches the number of links is not known either.
		{h100, noFields, 0, nil, false, false, false, true},
		{h100, []string{"nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetNvLinkState"}, 18, errorsOf("crc_flit", "replay", "recovery"), true, true, true, true},
	} {
		path, stop := serve(t, c.model, "")
		for _, p := range [][2]any{
			{"ecc_corrected_volatile", 11}, {"ecc_uncorrected_volatile", 12}, {"ecc_corrected_aggregate", 1 << 33}, {"ecc_uncorrected_aggregate", 14},
			{"remapped_correctable", 3}, {"remapped_uncorrectable", 4}, {"remap_pending", 1}, {"remap_failed", 1}, {"recovery_action", 2},
			{"nvlink_down", 1 << 2}, {"pcie_replays", 77}, {"pcie_generation", 1}, {"pcie_width", 8},
		} {
			poke(t, path, "set", 1, p[0], p[1])
		}
		for kind := range 4 {
			poke(t, path, "link", 1, kind, 5, 100+kind)
		}
		x := help[told](t, "told", standin(t, c.omit...), path)[0]
		stop()
		name := c.model + " without " + strings.Join(c.omit, ",")
		g := x.GPUs[1]
		want := map[string]float64{"pcie_link_width": 8, "pcie_link_width_max": 16, "pcie_link_generation": 1}
		if c.ecc {
			maps.Copy(want, map[string]float64{
				"ecc_errors_corrected_volatile": 11, "ecc_errors_uncorrected_volatile": 12,
				"ecc_errors_corrected_aggregate": 1 << 33, "ecc_errors_uncorrected_aggregate": 14, "pcie_replays": 77,
			})
		}
		if c.remaps {
			maps.Copy(want, map[string]float64{"row_remap_correctable": 3, "row_remap_uncorrectable": 4, "row_remap_pending": 1, "row_remap_failed": 1, "recovery_action": 2})
		}
		if c.fabric {
			want["fabric_state"] = 3
		}
		if c.links > 0 {
			want["nvlink_links_expected"] = float64(c.links)
			for link := range c.links {
				want[fmt.Sprint("nvlink_up ", link)] = map[bool]float64{true: 0, false: 1}[link == 2]
			}
			kinds := []string{"crc_flit", "crc_data", "replay", "recovery"}
			for kind, n := range kinds {
				if slices.Contains(c.linkErrors, "nvlink_errors_"+n) {
					want["nvlink_errors_"+n+" 5"], want["nvlink_errors_"+n+" 4"] = float64(100+kind), 0
				}
			}
		}
		for field, v := range want {
			if got, ok := g[field]; !ok || got != v {
				t.Errorf("%s: %s = %g (%v), want %g", name, field, got, ok, v)
			}
		}
		for field, v := range g {
			series, link, ofLink := strings.Cut(field, " ")
			switch {
			case ofLink && link == "2" && series != "nvlink_up":
				t.Errorf("%s: a link that is down has %s = %g", name, series, v)
			case ofLink && c.links == 0, strings.HasPrefix(field, "nvlink_total") && !c.total,
				strings.HasPrefix(field, "ecc") && !c.ecc, strings.HasPrefix(field, "row_remap") && !c.remaps, field == "fabric_state" && !c.fabric:
				t.Errorf("%s: %s = %g", name, field, v)
			case strings.HasPrefix(series, "nvlink_errors") && !slices.Contains(c.linkErrors, series):
				t.Errorf("%s: %s = %g", name, field, v)
			}
		}
		if c.total {
			sum := 0.0
			for link := range c.links {
				sum += g[fmt.Sprint("nvlink_bytes_tx ", link)]
			}
			// It was read later, and the world moves on.
			if v := g["nvlink_total_bytes_tx"]; v < sum || sum == 0 {
				t.Errorf("%s: %g bytes in all, %g over the links", name, v, sum)
			}
		}
		for reader, ok := range x.Success {
			if ok != 1 {
				t.Errorf("%s: reader %s failed", name, reader)
			}
		}
	}
}

// What stands still can be compared to the byte.
func TestBytesOverTheLibrary(t *testing.T) {
	t.Parallel()
	x := help[told](t, "told", standin(t), "")[0]
	if len(x.GPUs) != 8 {
		t.Fatalf("%d GPUs", len(x.GPUs))
	}
	for i, g := range x.GPUs {
		n := float64(i)
		want := map[string]float64{
			"pcie_bytes_tx": (100 + n) * (1 << 30), "pcie_bytes_rx": (200 + n) * (1 << 30),
			"nvlink_total_bytes_tx": 18 * (300 + n) * (1 << 30), "nvlink_total_bytes_rx": 18 * (400 + n) * (1 << 30),
		}
		for link := range 18 {
			want[fmt.Sprint("nvlink_bytes_tx ", link)], want[fmt.Sprint("nvlink_bytes_rx ", link)] = (300+n)*(1<<30), (400+n)*(1<<30)
		}
		for field, v := range want {
			if got, ok := g[field]; !ok || got != v {
				t.Errorf("GPU %d: %s = %g (%v), want %g", i, field, got, ok, v)
			}
		}
	}
}

// A GPU whose driver blanks its values shows none, and one on which writing is
// denied shows all of them.
func TestBlankAndDeniedOverTheLibrary(t *testing.T) {
	t.Parallel()
	library := standin(t)
	for _, model := range []string{h100, "B200-SXM6-180GB"} {
		path, stop := serve(t, model, "events: [{at: 0s, gpu: n/1, fault: blank}, {at: 0s, gpu: n/2, fault: denied}]\n")
		time.Sleep(200 * time.Millisecond)
		x := help[told](t, "told", library, path)[0]
		stop()
		for field, v := range x.GPUs[1] {
			series, _, _ := strings.Cut(field, " ")
			// What is a state and not a number, what is counted here, and what the
			// library does not blank.
			if series != "up" && series != "busy_seconds" && series != "nvlink_up" && series != "fabric_state" && series != "nvlink_links_expected" &&
				series != "slowdown_threshold_celsius" && series != "slowdown_offset_celsius" && !strings.HasPrefix(series, "power_limit_") &&
				!strings.HasPrefix(series, "pcie_link_") {
				t.Errorf("%s: a blank GPU shows %s = %g", model, field, v)
			}
		}
		sound, denied := slices.Sorted(maps.Keys(x.GPUs[0])), slices.Sorted(maps.Keys(x.GPUs[2]))
		if !slices.Equal(sound, denied) || len(sound) < 100 {
			t.Errorf("%s: a GPU that may not be written shows %d series of %d", model, len(denied), len(sound))
		}
	}
}
