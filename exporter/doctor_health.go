package exporter

import (
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// value is what a slow or link reader found.
func (x *examination) value(id telemetry.ID) (float64, bool) {
	s := int(slotOf[id])
	if v, ok := x.slow.get(s); ok {
		return v, true
	}
	return x.link.get(s)
}

// fitted is how a GPU is connected, in a few words; GPUs of a kind most often
// are alike in it.
func (x *examination) fitted() string {
	var parts []string
	if n, ok := x.value(telemetry.GPUNVLinkLinksExpected); ok {
		parts = append(parts, fmt.Sprintf("%d of %.0f NVLinks up", bits.OnesCount64(x.links.up), n))
	}
	g, ok := x.value(telemetry.GPUPCIeLinkGenerationMax)
	w, ok2 := x.value(telemetry.GPUPCIeLinkWidth)
	if ok && ok2 {
		parts = append(parts, fmt.Sprintf("PCIe %.0f x%.0f", g, w))
	}
	if state, ok := x.value(telemetry.GPUFabricState); ok {
		parts = append(parts, "fabric "+fabricStates[int(state)])
	}
	return strings.Join(parts, ", ")
}

var fabricStates = map[int]string{1: "not started", 2: "in progress", 3: "registered"}

// health says what the slow readers found that somebody should know of.
func (d *doctor) health(topic string, x *examination) {
	d.connections(topic, x)
	if n, ok := x.value(telemetry.GPUECCErrorsUncorrectedVolatile); ok && n > 0 {
		d.say(Warning, topic, "%.0f uncorrected ECC errors since the driver was loaded", n)
		d.advise("drain it and reset it; if they come again, run a field diagnostic")
	}
	if v, ok := x.value(telemetry.GPURowRemapPending); ok && v > 0 {
		d.say(Warning, topic, "a memory row waits for a reset to be remapped")
		d.advise("drain the node when it suits, then nvidia-smi --gpu-reset")
	}
	if v, ok := x.value(telemetry.GPURowRemapFailed); ok && v > 0 {
		d.say(Failure, topic, "a memory row could not be remapped")
		d.advise("the memory is worn out: have the GPU replaced")
	}
	if v, ok := x.value(telemetry.GPURecoveryAction); ok && v > 0 {
		what := "action " + strconv.Itoa(int(v))
		if int(v) < len(recoveryActions) {
			what = recoveryActions[int(v)].what
		}
		d.say(Failure, topic, "the driver asks to %s", what)
		d.advise("do so when it is drained; dmesg says which Xid came before")
	}
}

func (d *doctor) connections(topic string, x *examination) {
	if down := x.links.down; down != 0 && x.links.up != 0 {
		var names []string
		for link := range bits.Len64(down) {
			if isIn(down, link) {
				names = append(names, strconv.Itoa(link))
			}
		}
		d.say(Warning, topic, "NVLinks that are down: %s", strings.Join(names, ", "))
		d.advise("look at dmesg for Xid 74 and 144 to 150, and at nvidia-smi nvlink; a reset trains them anew")
	}
	now, ok := x.value(telemetry.GPUPCIeLinkWidth)
	most, ok2 := x.value(telemetry.GPUPCIeLinkWidthMax)
	if ok && ok2 && now < most {
		d.say(Warning, topic, "PCIe runs at %.0f lanes of %.0f", now, most)
		d.advise("reseat the card and look at the slot; dmesg may tell of AER errors")
	}
	if state, ok := x.value(telemetry.GPUFabricState); ok && state < 3 {
		d.say(Warning, topic, "NVLink fabric registration: %s", fabricStates[int(state)])
		d.advise("look at nvidia-fabricmanager, or at the IMEX service, on this node")
	}
}

// events says whether the driver can be heard between readings.
func (d *doctor) events(ctx context.Context, src Source) {
	ears, ok := src.(Notifier)
	if !ok {
		return
	}
	err := bounded(ctx, func() error { return ears.Listen() })
	switch {
	case err == nil:
		d.say(Fine, "events", "heard of all GPUs that answer: Xid, ECC, recovery action")
	case isUnsupported(err):
		d.say(Warning, "events", "not heard: %v", err)
		d.advise("a newer driver has it; gpu_xid_errors_total stays empty without")
	default:
		d.say(Warning, "events", "not heard of all GPUs: %s", strings.Join(strings.Split(err.Error(), "\n"), "; "))
	}
}

// hangs is how long a single call may take before doctor gives up on its GPU.
// Without persistence the first one brings the device up, which takes seconds.
const hangs = 10 * time.Second

// patient waits for an examination while its calls return.
func patient(ctx context.Context, call *callMark, done chan *examination) (*examination, callID, time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	look := time.NewTicker(hangs / 20)
	defer look.Stop()
	for {
		select {
		case x := <-done:
			return x, callNone, 0
		case <-ctx.Done():
			id, since := call.outstanding(time.Now())
			return nil, id, since
		case now := <-look.C:
			if id, since := call.outstanding(now); id != callNone && since >= hangs {
				return nil, id, since
			}
		}
	}
}
