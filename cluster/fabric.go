package cluster

import (
	"math/bits"
	"strconv"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// States of a device's part in the NVLink fabric.
const (
	FabricOK       = "ok"
	FabricDegraded = "degraded" // links are down that should be up
	FabricErrors   = "errors"
	FabricNotReady = "not_ready" // the driver has not joined it yet
	// FabricUnconnected: no link has been up since the machine started, as on a
	// card without its bridge.
	FabricUnconnected = "unconnected"
	FabricUnknown     = "unknown"
)

// linkSpeed is what one NVLink carries in one direction, in bytes per second.
// It is the same for all products of a generation; they differ in how many
// links they have.
func linkSpeed(arch string) float64 {
	switch arch {
	case "turing", "ampere":
		return 25e9
	case "hopper":
		return 26.5625e9
	case "blackwell":
		return 50e9
	}
	return 0
}

const (
	// A link spends a part of its speed on headers, and counters count payload,
	// so it is full well before the speed is reached.
	saturationHigh, saturationLow = 0.8, 0.7
	saturationTimes               = 10 // seconds in excess
	// Errors per second over all links. Bit errors that the link corrects itself
	// are normal in small numbers; a recovery never is.
	crcHigh, crcNoticed = 100.0, 1.0
	replaysNoticed      = 1.0
	// troubleHold is for how long errors are told after the last of them.
	troubleHold = 60_000 // ms
)

// fabric follows the links of a device.
type fabric struct {
	at       int64 // of the last link part, ms
	up       uint8
	told     uint8 // links that it spoke of
	seenUp   bool  // some link was up since the machine started
	errors   [3]meter
	trouble  int64   // when errors were last too many, ms; 0 for never
	smooth   float64 // saturation
	full     sustained
	fullFrom int64
	state    string
	since    int64
	words
}

// Kinds of link errors, as the meters have them.
const (
	errorsCRC = iota
	errorsReplay
	errorsRecovery
)

// takeFabric folds the link part of a device, whatever is kept of single links.
func (t *track) takeFabric(g *telemetry.GPU, k *tick) {
	mask, down := g.GetLinkMask(), g.GetLinkDownMask()
	if mask|down == 0 {
		return
	}
	b := &t.fabric
	at := k.ms - int64(min(g.GetLinkAgeMs(), maxAge))
	if column := g.GetNvlinkUp(); len(column) > 0 || down != 0 {
		up := 0
		for link, v := range column {
			if mask&^down>>link&1 == 1 && v == 1 {
				up++
			}
		}
		b.at, b.up, b.told = at, uint8(up), uint8(up+bits.OnesCount64(down))
		b.seenUp = b.seenUp || up > 0
	}
	keep := 2 * k.keep[classLink]
	sum := func(m *meter, columns ...[]uint64) {
		total, any := 0.0, false
		for _, c := range columns {
			for link, v := range c {
				if mask>>link&1 == 1 {
					total, any = total+float64(v), true
				}
			}
		}
		if any {
			m.take(total, at, keep)
		}
	}
	sum(&b.errors[errorsCRC], g.GetNvlinkErrorsCrcFlit(), g.GetNvlinkErrorsCrcData())
	sum(&b.errors[errorsReplay], g.GetNvlinkErrorsReplay())
	sum(&b.errors[errorsRecovery], g.GetNvlinkErrorsRecovery())
}

// linksUp is how many links are up, if that was told lately.
func (t *track) linksUp(k *tick) (int, bool) {
	b := &t.fabric
	return int(b.up), b.told > 0 && k.ms-b.at <= k.keep[classLink]
}

func (t *track) linkErrors(kind int, k *tick) (float64, bool) {
	return t.fabric.errors[kind].rate(k.ms, 2*k.keep[classLink])
}

// linkErrorsAll is the sum over all kinds that are known.
func (t *track) linkErrorsAll(k *tick) (sum float64, known bool) {
	for kind := range t.fabric.errors {
		if v, ok := t.linkErrors(kind, k); ok {
			sum, known = sum+v, true
		}
	}
	return sum, known
}

// saturation is the share of the links' speed in use, in the busier direction.
func (t *track) saturation(k *tick) (float64, bool) {
	links, ok := t.linksUp(k)
	if !ok {
		expected, s := t.signal(telemetry.GPUNVLinkLinksExpected, k)
		if s != senseOK {
			return 0, false
		}
		links = int(expected)
	}
	speed := linkSpeed(t.arch) * float64(links)
	if speed == 0 {
		return 0, false
	}
	keep := k.keep[classFast]
	tx, okTx := t.nvlink[0].rate(k.ms, keep)
	rx, okRx := t.nvlink[1].rate(k.ms, keep)
	return max(tx, rx) / speed, okTx && okRx
}

// watchFabric judges the fabric, once a second.
func (t *track) watchFabric(k *tick) {
	b := &t.fabric
	ratio, known := t.saturation(k)
	if known {
		b.smooth += (ratio - b.smooth) / 5
		was := b.full.on
		if b.full.see(ratio >= saturationHigh, ratio < saturationLow, saturationTimes); b.full.on != was {
			b.fullFrom = k.ms
		}
	} else {
		b.smooth, b.full = 0, sustained{}
	}
	if t.linkTrouble(k) {
		b.trouble = k.ms
	}
	state := t.fabricState(k)
	if changed := state != b.state; changed {
		b.state, b.since = state, k.ms
		b.list = nil
	}
	if state == "" || state == FabricOK || !b.ripe(b.list == nil, k.ms) {
		return
	}
	errs, _ := t.linkErrorsAll(k)
	up, _ := t.linksUp(k)
	expected, _ := t.signal(telemetry.GPUNVLinkLinksExpected, k)
	if b.due(b.list == nil, k.ms, int32(up), int32(expected), int32(bits.Len64(uint64(errs*16)))) {
		b.say(t.fabricWords(state, k)...)
	}
}

// fabricState is empty for a device without links.
func (t *track) fabricState(k *tick) string {
	expected, s := t.signal(telemetry.GPUNVLinkLinksExpected, k)
	up, told := t.linksUp(k)
	joining, sj := t.signal(telemetry.GPUFabricState, k)
	switch {
	case t.fabric.told == 0 && (s != senseOK && s != senseMissing || s == senseOK && expected == 0):
		return ""
	case sj == senseOK && (joining == 1 || joining == 2):
		return FabricNotReady
	case !told || s == senseMissing:
		return FabricUnknown
	case up == 0 && !t.fabric.seenUp:
		return FabricUnconnected
	case up < t.linksWanted(expected, s):
		return FabricDegraded
	case t.fabric.trouble != 0 && k.ms-t.fabric.trouble < troubleHold:
		return FabricErrors
	}
	return FabricOK
}

// linksWanted is how many links should be up: as the device says, else as many
// as it tells of.
func (t *track) linksWanted(expected float64, s sense) int {
	if s == senseOK {
		return int(expected)
	}
	return int(t.fabric.told)
}

// linkTrouble says that errors are more than the link corrects as a matter of
// course.
func (t *track) linkTrouble(k *tick) bool {
	crc, _ := t.linkErrors(errorsCRC, k)
	recovery, _ := t.linkErrors(errorsRecovery, k)
	return crc >= crcHigh || recovery > 0
}

func (t *track) fabricWords(state string, k *tick) []string {
	up, _ := t.linksUp(k)
	expected, s := t.signal(telemetry.GPUNVLinkLinksExpected, k)
	switch state {
	case FabricNotReady:
		return []string{"the driver has not joined the fabric; is the fabric manager running?"}
	case FabricUnknown:
		return []string{"the state of its links is not told"}
	case FabricUnconnected:
		return []string{"no link has been up since the machine started"}
	case FabricDegraded:
		return []string{strconv.Itoa(up) + " of " + strconv.Itoa(t.linksWanted(expected, s)) + " NVLinks are up"}
	}
	if out := t.linkErrorWords(k); out != "" {
		return []string{out}
	}
	return []string{"errors within the last minute"}
}

func (t *track) linkErrorWords(k *tick) string {
	out := ""
	for kind, name := range [...]string{"CRC errors", "replays", "recoveries"} {
		if v, ok := t.linkErrors(kind, k); ok && v > 0 {
			out = join(out, figure(v)+" "+name+"/s")
		}
	}
	return out
}

// observeFabric writes the verdict.
func (j *Judge) observeFabric(t *track, g *telemetry.GPUObservation) {
	b := &t.fabric
	if b.state == "" || t.state == telemetry.GPUState_GPU_STATE_ABSENT {
		if g.HasFabric() {
			g.ClearFabric()
		}
		return
	}
	f := g.GetFabric()
	if f == nil {
		f = new(telemetry.Fabric)
		g.SetFabric(f)
	}
	f.SetState(b.state)
	f.SetSinceUnixNano(j.unix(b.since))
	f.SetEvidence(b.list)
	up, _ := t.linksUp(&j.now)
	f.SetLinksUp(uint32(up))
	f.SetLinksExpected(0)
	if v, s := t.signal(telemetry.GPUNVLinkLinksExpected, &j.now); s == senseOK {
		f.SetLinksExpected(uint32(v))
	}
	f.ClearSaturationRatio()
	if _, ok := t.saturation(&j.now); ok {
		f.SetSaturationRatio(b.smooth)
	}
	f.ClearErrorsPerSecond()
	if v, ok := t.linkErrorsAll(&j.now); ok {
		f.SetErrorsPerSecond(v)
	}
}
