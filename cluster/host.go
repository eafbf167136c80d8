package cluster

import (
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Names of verdicts on a host.
const (
	HostStorageStalled   = "storage_stalled"
	HostCPUStarved       = "cpu_starved"
	HostNetworkSaturated = "network_saturated"
	HostNetworkErrors    = "network_errors"
	HostNetworkDown      = "network_down"
)

// HostVerdicts are all of them, in the order in which they are told.
var HostVerdicts = [...]string{HostStorageStalled, HostCPUStarved, HostNetworkSaturated, HostNetworkErrors, HostNetworkDown}

const (
	verdictStorage = iota
	verdictCPU
	verdictNetwork
	verdictNetworkErrors
	verdictNetworkDown
	verdicts
)

// Marks of the host. Pressure is the share of time in which some task waited;
// iowait counts only processors that had nothing else to do, so that on a large
// host a little of it is much.
const (
	ioPressureHigh, ioPressureLow   = 0.6, 0.3
	iowaitHigh, iowaitLow           = 0.2, 0.1
	diskBusy                        = 0.95
	diskPressure, diskIowait        = 0.3, 0.05 // a busy disk counts if somebody waits for it
	cpuPressureHigh, cpuPressureLow = 0.6, 0.3
	cpuHigh, cpuLow                 = 0.97, 0.9
	portHigh, portLow               = 0.9, 0.8 // of a port's speed
	waitHigh, waitLow               = 0.2, 0.1 // of the time, waiting for credit
	portErrorsHigh, portErrorsLow   = 1.0, 0.1 // per second
	hostTimes                       = 2        // slow parts in a row
)

// hostVerdict is one judged statement on the host.
type hostVerdict struct {
	sustained
	counted  uint32 // newest sample of the last look that counted, like slot.at
	known    bool
	told     bool // that it holds: at once where once is enough, else when sustained
	at       int64
	since    int64
	value    float64
	hasValue bool
	evidence string
	edition  int32 // grows with the evidence
}

// host judges the node from its samples.
type host struct {
	verdicts [verdicts]hostVerdict
	// fresh is set while there are samples that were not looked at; judged is
	// when that was last done.
	fresh  bool
	judged int64
	// inlet is the sensor of the air that enters, when it was read.
	inlet   float64
	inletAt int64
}

func (h *host) holds(v int, k *tick) bool { return h.known(v, k) && h.verdicts[v].told }

// known is false for a verdict whose samples have ceased.
func (h *host) known(v int, k *tick) bool {
	x := &h.verdicts[v]
	return x.known && k.ms-x.at <= k.keep[classSlow]
}

// excuse is the evidence of the verdict behind a cause of idleness.
func (h *host) excuse(cause string, k *tick) (string, int32) {
	var of []int
	switch cause {
	case IdleWaitingData:
		of = dataVerdicts[:]
	case IdleWaitingNetwork:
		of = networkVerdicts[:]
	case IdleCPUStarved:
		of = cpuVerdicts[:]
	}
	for _, v := range of {
		if h.holds(v, k) {
			return h.verdicts[v].evidence, h.verdicts[v].edition
		}
	}
	return "", 0
}

var (
	dataVerdicts    = [...]int{verdictStorage}
	networkVerdicts = [...]int{verdictNetwork, verdictNetworkDown, verdictNetworkErrors}
	cpuVerdicts     = [...]int{verdictCPU}
)

// most keeps the largest of several values, with what it is of, and how new the
// newest of them is.
type most struct {
	v    float64
	of   *Sample
	with *Sample
	at   uint32
	ok   bool
}

func (m *most) see(v float64, of, with *Sample) {
	at := max(m.at, of.at)
	if !m.ok || v > m.v {
		*m = most{v: v, of: of, with: with, ok: true}
	}
	m.at = at
}

// look counts a look at signals that are newer than those of the last one.
func (v *hostVerdict) look(beyond, clear bool, signals ...most) bool {
	newest := uint32(0)
	for _, s := range signals {
		newest = max(newest, s.at)
	}
	if v.counted != 0 && newest-v.counted < roundAfter {
		return v.on
	}
	v.counted = newest
	return v.see(beyond, clear, hostTimes)
}

// hostSigns is what the samples of a node say, gathered in one pass.
type hostSigns struct {
	iowait, cpu, cpuPressure, ioPressure most
	mounts                               bool
	stalled                              *Sample
	disk                                 most
	port, wait, errors                   most
	ports                                bool
	down                                 *Sample
}

// hostEvery is how often the samples are looked at, and roundAfter how much newer
// one must be to count as another look: readers of one round come in several
// frames.
const (
	hostEvery  = 5000 // ms
	roundAfter = 5000
)

// judge looks at the node's samples when new ones have come, and says whether a
// verdict changed.
func (h *host) judge(table *sampleTable, k *tick) (changed bool) {
	if !h.fresh || h.judged != 0 && k.ms-h.judged < hostEvery {
		return false
	}
	h.fresh, h.judged = false, k.ms
	s := h.gather(table, k)
	before := h.verdicts
	h.storage(&s, k)
	h.cpu(&s, k)
	h.network(&s, k)
	for i := range h.verdicts {
		a, b := &before[i], &h.verdicts[i]
		if a.told != b.told {
			b.since, changed = k.ms, true
		} else if b.since == 0 && b.known {
			b.since = k.ms
		}
		if a.evidence != b.evidence {
			b.edition++
		}
	}
	return changed
}

func (h *host) gather(table *sampleTable, k *tick) (s hostSigns) {
	keep := k.keep[classSlow]
	for i := range table.list {
		x := &table.list[i]
		if x.Row.Per != telemetry.PerNode || x.stale(k) {
			continue
		}
		rate, hasRate := x.meter.rate(k.ms, keep)
		switch x.ID {
		case telemetry.NodeHostCPUIOWaitRatio:
			s.iowait.see(x.V, x, nil)
		case telemetry.NodeHostCPUUtilizationRatio:
			s.cpu.see(x.V, x, nil)
		case telemetry.NodeHostPressureRatio:
			switch x.Labels[0] {
			case "cpu":
				s.cpuPressure.see(x.V, x, nil)
			case "io":
				s.ioPressure.see(x.V, x, nil)
			}
		case telemetry.NodeHostMountStalled:
			s.mounts = true
			if x.V != 0 && s.stalled == nil {
				s.stalled = x
			}
		case telemetry.NodeHostDiskBusySeconds:
			if hasRate {
				s.disk.see(rate, x, nil)
			}
		case telemetry.NodeHostInletCelsius:
			h.inlet, h.inletAt = x.V, k.ms-int64(k.at-x.at)
		case telemetry.NodeFabricUp:
			s.portUp(x)
		case telemetry.NodeFabricBytes:
			if speed := table.speedOf(x); hasRate && speed != nil && speed.V > 0 && !speed.stale(k) {
				s.port.see(rate/speed.V, x, speed)
			}
		case telemetry.NodeFabricCongestionWait:
			if hasRate {
				s.wait.see(rate, x, nil)
			}
		case telemetry.NodeFabricErrors:
			if hasRate {
				s.errors.see(rate, x, nil)
			}
		}
	}
	return s
}

// portUp follows a port. One that never was up is not in use.
func (s *hostSigns) portUp(x *Sample) {
	s.ports = true
	switch {
	case x.V != 0:
		x.wasUp = true
	case s.down == nil && x.wasUp:
		s.down = x
	}
}

func (h *host) storage(s *hostSigns, k *tick) {
	v := &h.verdicts[verdictStorage]
	known := s.iowait.ok || s.ioPressure.ok || s.stalled != nil
	if !v.tell(known, k) {
		return
	}
	waits := s.ioPressure.v >= diskPressure || s.iowait.v >= diskIowait
	beyond := s.ioPressure.v >= ioPressureHigh || s.iowait.v >= iowaitHigh || s.disk.ok && s.disk.v >= diskBusy && waits
	clear := s.ioPressure.v < ioPressureLow && s.iowait.v < iowaitLow
	v.told = v.look(beyond, clear, s.ioPressure, s.iowait, s.disk)
	if s.stalled != nil {
		l := s.stalled.Labels
		v.told = true
		v.say(1, fmt.Sprintf("%s (%s) does not answer", l[0], l[1]))
		return
	}
	text := ""
	if s.ioPressure.ok {
		text = "some task waited for storage " + percent(s.ioPressure.v) + " of the time"
	}
	if s.iowait.ok {
		text = join(text, "processors waited for it "+percent(s.iowait.v))
	}
	if s.disk.ok {
		text = join(text, s.disk.of.Labels[0]+" busy "+percent(s.disk.v))
	}
	v.say(max(s.ioPressure.v, s.iowait.v), text)
}

func (h *host) cpu(s *hostSigns, k *tick) {
	v := &h.verdicts[verdictCPU]
	if !v.tell(s.cpu.ok || s.cpuPressure.ok, k) {
		return
	}
	v.told = v.look(s.cpuPressure.v >= cpuPressureHigh || s.cpu.v >= cpuHigh, s.cpuPressure.v < cpuPressureLow && s.cpu.v < cpuLow, s.cpu, s.cpuPressure)
	text := ""
	if s.cpu.ok {
		text = "processors in use " + percent(s.cpu.v)
	}
	if s.cpuPressure.ok {
		text = join(text, "some task waited for one "+percent(s.cpuPressure.v)+" of the time")
	}
	v.say(max(s.cpu.v, s.cpuPressure.v), text)
}

// network tells use, errors and loss of ports apart: each has another remedy.
func (h *host) network(s *hostSigns, k *tick) {
	if v := &h.verdicts[verdictNetwork]; v.tell(s.port.ok || s.wait.ok, k) {
		v.told = v.look(s.port.v >= portHigh || s.wait.v >= waitHigh, s.port.v < portLow && s.wait.v < waitLow, s.port, s.wait)
		text := ""
		if p := s.port; p.ok {
			l := p.of.Labels
			text = fmt.Sprintf("%s port %s %s %s of %s", l[0], l[1], l[2], perSecond(p.v*p.with.V), perSecond(p.with.V))
		}
		if w := s.wait; w.ok && w.v > 0 {
			text = join(text, fmt.Sprintf("%s port %s waited for credit %s of the time", w.of.Labels[0], w.of.Labels[1], percent(w.v)))
		}
		v.say(max(s.port.v, s.wait.v), text)
	}
	if v := &h.verdicts[verdictNetworkErrors]; v.tell(s.errors.ok, k) {
		v.told = v.look(s.errors.v >= portErrorsHigh, s.errors.v < portErrorsLow, s.errors)
		l := s.errors.of.Labels
		v.say(s.errors.v, fmt.Sprintf("%s port %s: %s %s errors/s", l[0], l[1], figure(s.errors.v), l[2]))
	}
	if v := &h.verdicts[verdictNetworkDown]; v.tell(s.ports, k) {
		v.told = s.down != nil
		if v.told {
			v.say(1, fmt.Sprintf("%s port %s is down and was up", s.down.Labels[0], s.down.Labels[1]))
		} else {
			v.say(0, "every port that was up is up")
		}
	}
}

// tell says whether a verdict can be judged now. What was known is kept until
// it is too old.
func (v *hostVerdict) tell(known bool, k *tick) bool {
	if known {
		v.known, v.at = true, k.ms
	}
	return known
}

func (v *hostVerdict) say(value float64, evidence string) {
	v.value, v.hasValue, v.evidence = value, true, clip(evidence)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

// observeHost tells the verdicts that are known.
func (j *Judge) observeHost(o *telemetry.Observation) {
	n := 0
	for i := range j.host.verdicts {
		if j.host.known(i, &j.now) {
			n++
		}
	}
	list := o.GetHost()
	if len(list) != n {
		list = make([]*telemetry.HostVerdict, n)
		for i := range list {
			list[i] = new(telemetry.HostVerdict)
		}
		o.SetHost(list)
	}
	n = 0
	for i := range j.host.verdicts {
		if !j.host.known(i, &j.now) {
			continue
		}
		v, x := &j.host.verdicts[i], list[n]
		n++
		x.SetName(HostVerdicts[i])
		x.SetHolds(v.told)
		x.SetValue(v.value)
		x.SetEvidence(v.evidence)
		x.SetSinceUnixNano(j.unix(v.since))
	}
}

// unix is a time of the judge on the viewer's clock.
func (j *Judge) unix(ms int64) int64 {
	return j.epoch + (ms-int64(maxAge))*int64(time.Millisecond)
}
