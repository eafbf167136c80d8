//go:build !cgo || !linux

package nvml

import (
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

var _ exporter.Source = (*Source)(nil)

func TestWithoutCgo(t *testing.T) {
	s, w := New(), NewWriter(WithLibraryPath("x"))
	_, devices := s.Devices()
	_, driver := s.Driver()
	_, limits := w.PowerLimits("GPU-1")
	_, headroom := w.Headroom("GPU-1")
	_, holders := w.Holders("GPU-1")
	_, found := w.Devices()
	for name, err := range map[string]error{
		"Open": s.Open(), "Devices": devices, "Driver": driver,
		"Writer.Open": w.Open(), "PowerLimits": limits, "Headroom": headroom, "Holders": holders, "Writer.Devices": found, "SetPowerLimit": w.SetPowerLimit("GPU-1", 300),
	} {
		if exporter.FaultOf(err) != exporter.NoLibrary || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f := Facts(); f.DriverAccess || f.LazyBinding {
		t.Errorf("facts %+v", f)
	}
	if s.Close() != nil || w.Close() != nil || s.Calls() != 0 {
		t.Error("a source that was never open has something to close")
	}
}
