package host

import (
	"math"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/exporter/host/feed"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// translation turns one measurement of a plugin into samples.
type translation func(p *point, to *samples)

// samples collects what fits the catalogue.
type samples struct {
	list    []feed.Sample
	refused int
}

// put adds a value; what is out of range is counted and left out.
func (s *samples) put(id telemetry.ID, uuid string, v float64, labels ...string) {
	row := telemetry.RowOf(id)
	if row == nil || len(labels) != len(row.Labels) || math.IsNaN(v) || math.IsInf(v, 0) || !row.InRange(v) {
		s.refused++
		return
	}
	s.list = append(s.list, feed.Sample{ID: id, UUID: uuid, Value: v, Labels: labels})
}

// field puts a field of a point, scaled, if it is there.
func (s *samples) field(p *point, field string, scale float64, id telemetry.ID, uuid string, labels ...string) {
	if v, ok := p.number(field); ok {
		s.put(id, uuid, v*scale, labels...)
	}
}

func ofCPU(p *point, to *samples) {
	idle, ok := p.number("usage_idle")
	if !ok || p.tags["cpu"] != "cpu-total" {
		return // of the first run, which has nothing to compare with
	}
	wait, _ := p.number("usage_iowait")
	to.put(telemetry.NodeHostCPUUtilizationRatio, "", min(max(1-(idle+wait)/100, 0), 1))
	to.put(telemetry.NodeHostCPUIOWaitRatio, "", min(max(wait/100, 0), 1))
}

func ofMemory(p *point, to *samples) {
	to.field(p, "total", 1, telemetry.NodeHostMemoryTotalBytes, "")
	to.field(p, "available", 1, telemetry.NodeHostMemoryAvailableBytes, "")
}

func ofDisk(p *point, to *samples) {
	to.field(p, "used_percent", 0.01, telemetry.NodeHostFilesystemUsedRatio, "", p.tags["path"], p.tags["fstype"])
}

func ofDiskIO(p *point, to *samples) {
	name := p.tags["name"]
	to.field(p, "read_bytes", 1, telemetry.NodeHostDiskBytes, "", name, "read")
	to.field(p, "write_bytes", 1, telemetry.NodeHostDiskBytes, "", name, "write")
	to.field(p, "io_time", 1e-3, telemetry.NodeHostDiskBusySeconds, "", name)
}

func ofNetwork(p *point, to *samples) {
	name := p.tags["interface"]
	if name == "all" {
		return // counters of protocols, not of an interface
	}
	to.field(p, "bytes_sent", 1, telemetry.NodeHostNetworkBytes, "", name, "tx")
	to.field(p, "bytes_recv", 1, telemetry.NodeHostNetworkBytes, "", name, "rx")
	to.field(p, "err_out", 1, telemetry.NodeHostNetworkErrors, "", name, "tx")
	to.field(p, "err_in", 1, telemetry.NodeHostNetworkErrors, "", name, "rx")
}

func ofTemperature(p *point, to *samples) {
	sensor, isInput := strings.CutSuffix(p.tags["sensor"], "_input")
	for _, other := range []string{"_crit", "_max", "_min", "_alarm", "_hyst", "_lcrit", "_emergency"} {
		if !isInput && strings.HasSuffix(sensor, other) {
			return // a threshold
		}
	}
	to.field(p, "temp", 1, telemetry.NodeHostTemperatureCelsius, "", sensor)
}

// fabricErrors are the counters of a port that tell of trouble.
var fabricErrors = []string{
	"symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
	"local_link_integrity_errors", "excessive_buffer_overrun_errors", "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err",
}

func ofInfiniband(p *point, to *samples) {
	device, port := p.tags["device"], p.tags["port"]
	// The kernel counts words of four bytes.
	to.field(p, "port_xmit_data", 4, telemetry.NodeFabricBytes, "", device, port, "tx")
	to.field(p, "port_rcv_data", 4, telemetry.NodeFabricBytes, "", device, port, "rx")
	for _, kind := range fabricErrors {
		to.field(p, kind, 1, telemetry.NodeFabricErrors, "", device, port, kind)
	}
}

// inlets are how boards name the sensor of the air that enters.
var inlets = []string{"inlet", "ambient", "intake", "front_panel_temp", "amb_temp"}

// wholePower are how they name what the whole node draws.
var wholePower = []string{"pwr_consumption", "total_power", "sys_power", "system_power", "power_meter", "instantaneous_power_reading", "pw_consumption"}

func contains(name string, words []string) bool {
	for _, w := range words {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

func ofIPMI(p *point, to *samples) {
	name, unit := p.tags["name"], p.tags["unit"]
	good, told := p.number("status")
	if code := p.tags["status_code"]; code != "" {
		good, told = boolean(code == "ok"), true
	}
	value, ok := p.number("value")
	switch {
	case unit == "" && (strings.HasPrefix(name, "ps") || strings.Contains(name, "psu") || strings.Contains(name, "power_supply")) && strings.Contains(name, "status"):
		if desc := p.tags["status_desc"]; strings.Contains(desc, "fail") || strings.Contains(desc, "lost") {
			good = 0
		}
		if told {
			to.put(telemetry.NodeHostPsuUp, "", good, name)
		}
	case !ok || told && good == 0 && value == 0:
		// no reading
	case unit == "degrees_c":
		if contains(name, inlets) {
			to.put(telemetry.NodeHostInletCelsius, "", value)
			return
		}
		to.put(telemetry.NodeHostTemperatureCelsius, "", value, name)
	case unit == "rpm":
		to.put(telemetry.NodeHostFanRPM, "", value, name)
	case unit == "watts" && contains(name, wholePower):
		to.put(telemetry.NodeHostPowerWatts, "", value)
	case unit == "watts":
		to.put(telemetry.NodeHostFeedWatts, "", value, name)
	}
}

func ofSMART(p *point, to *samples) {
	if p.name != "smartctl" {
		return
	}
	device := p.tags["name"]
	to.field(p, "health_ok", 1, telemetry.NodeHostDiskHealthy, "", device)
	if t, ok := p.number("temperature"); ok && t > 0 {
		to.put(telemetry.NodeHostTemperatureCelsius, "", t, device)
	}
	to.field(p, "percentage_used", 0.01, telemetry.NodeHostDiskWearRatio, "", device)
}
