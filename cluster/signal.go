package cluster

import "github.com/evenkeel-gpu/evenkeel/telemetry"

// sense is how much a signal can be relied on.
type sense uint8

const (
	// senseNone is a signal that this process has never told.
	senseNone sense = iota
	// senseUnsupported is one that the device does not have.
	senseUnsupported
	// senseMissing is one that was told and cannot be used now: stale, suspect,
	// failed, out of range. It is not zero.
	senseMissing
	senseOK
)

// signal is a value that verdicts other than a plain display may rest on.
func (t *track) signal(id telemetry.ID, k *tick) (float64, sense) {
	i := slotOf[id] - 1
	s := &t.slots[i]
	switch {
	case s.trusted() && !k.isStale(wiredSeries[i].class, s.at):
		return s.v, senseOK
	case s.unsupported():
		return 0, senseUnsupported
	case t.told[i>>6]>>(i&63)&1 == 1:
		return 0, senseMissing
	}
	return 0, senseNone
}

// Signals of use, as bits of what is missing.
const (
	missingCompute = 1 << iota
	missingMemory
	missingNVLink
	missingProcesses
	missingMemoryUsed
	missingDevice
)

// What counts as no use. Drivers tell whole percents, and a display server or a
// monitor makes one of them now and then.
const (
	quietRatio  = 0.015
	quietBusy   = 0.015 // of the time, from the counter that misses no burst
	quietNVLink = 1e6   // bytes per second
	quietPCIe   = 20e6
)

// use is what the signals of a device say of its use.
type use struct {
	active  bool
	missing uint8
	// What was seen, for the evidence; negative where there is none.
	util, sm, memory, nvlink float64
}

// notSeen stands for a value that there is none of.
const notSeen = -1

// look asks the signals. One that shows use is enough to say that there is use;
// that there is none takes all of them.
func (t *track) look(k *tick) use {
	u := use{util: notSeen, sm: notSeen, memory: notSeen, nvlink: notSeen}
	if t.state != telemetry.GPUState_GPU_STATE_OK {
		u.missing = missingDevice
		return u
	}
	var least sense
	u.util, u.sm, least = t.pair(telemetry.GPUUtilizationRatio, telemetry.GPUSMActiveRatio, k)
	if m, ok := t.migActive(k); ok {
		u.sm, least = m, senseOK
	}
	u.need(least, missingCompute)
	a, b, least := t.pair(telemetry.GPUMemoryUtilizationRatio, telemetry.GPUDRAMActiveRatio, k)
	u.memory = max(a, b)
	u.need(least, missingMemory)
	u.nvlink, least = t.nvlinkBytes(k)
	u.need(least, missingNVLink)
	if !t.members.known(k) {
		u.missing |= missingProcesses
	}
	u.active = u.util > quietRatio || u.sm > quietRatio || u.memory > quietRatio || u.nvlink > quietNVLink
	if busy, ok := t.busy.rate(k.ms, k.keep[classFast]); ok && busy > quietBusy {
		u.active = true
	}
	for i := range t.pcie {
		if pcie, ok := t.pcie[i].rate(k.ms, k.keep[classLink]); ok && pcie > quietPCIe {
			u.active = true
		}
	}
	return u
}

func (u *use) need(s sense, bit uint8) {
	if s != senseOK {
		u.missing |= bit
	}
}

// pair reads two signals for the same thing. One of them will do if the device
// does not have the other; one that was told and fails counts against both.
func (t *track) pair(a, b telemetry.ID, k *tick) (va, vb float64, s sense) {
	va, sa := t.signal(a, k)
	vb, sb := t.signal(b, k)
	if sa != senseOK {
		va = notSeen
	}
	if sb != senseOK {
		vb = notSeen
	}
	switch {
	case sa == senseMissing || sb == senseMissing:
		s = senseMissing
	default:
		s = max(sa, sb)
	}
	return va, vb, s
}

// nvlinkBytes is the traffic of all links in both directions, zero for a device
// that has none.
func (t *track) nvlinkBytes(k *tick) (float64, sense) {
	_, tx := t.signal(telemetry.GPUNVLinkTotalBytesTx, k)
	_, rx := t.signal(telemetry.GPUNVLinkTotalBytesRx, k)
	if tx == senseOK && rx == senseOK {
		a, okA := t.nvlink[0].rate(k.ms, k.keep[classFast])
		b, okB := t.nvlink[1].rate(k.ms, k.keep[classFast])
		if okA && okB {
			return a + b, senseOK
		}
		return notSeen, senseMissing
	}
	if tx == senseMissing || rx == senseMissing {
		return notSeen, senseMissing
	}
	switch links, s := t.signal(telemetry.GPUNVLinkLinksExpected, k); s {
	case senseOK:
		if links == 0 {
			return 0, senseOK
		}
	case senseUnsupported:
		return 0, senseOK
	case senseNone:
		if tx == senseUnsupported && rx == senseUnsupported {
			return 0, senseOK
		}
	}
	return notSeen, senseMissing
}

// count feeds the counters of a device to their meters, once a second.
func (t *track) count(k *tick) {
	fast := k.keep[classFast]
	t.meter(&t.busy, telemetry.GPUBusySeconds, k, fast)
	t.meter(&t.nvlink[0], telemetry.GPUNVLinkTotalBytesTx, k, fast)
	t.meter(&t.nvlink[1], telemetry.GPUNVLinkTotalBytesRx, k, fast)
	if !k.slowPart && !k.linkPart {
		return
	}
	link, slow := k.keep[classLink], k.keep[classSlow]
	t.meter(&t.pcie[0], telemetry.GPUPCIeBytesTx, k, link)
	t.meter(&t.pcie[1], telemetry.GPUPCIeBytesRx, k, link)
	t.meter(&t.replays, telemetry.GPUPCIeReplays, k, slow)
	t.meter(&t.corrected, telemetry.GPUECCErrorsCorrectedVolatile, k, slow)
	t.meter(&t.uncorrected, telemetry.GPUECCErrorsUncorrectedVolatile, k, slow)
}

// meter feeds a value to be trusted, or one that is suspect because it fell: the
// meter knows what to make of that.
func (t *track) meter(m *meter, id telemetry.ID, k *tick, keep int64) {
	if v, s, ok := t.current(id, k); ok && (s.trusted() || v < m.v) {
		m.take(v, k.ms-int64(k.at-s.at), keep)
	}
}
