package exporter

import (
	"errors"
	"math"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// readPCIeLink reads the link itself; it changes with the clocks of an idle
// device, and for the worse with a bad contact.
func readPCIeLink(r *reading) error {
	err := r.count(telemetry.GPUPCIeReplays, FieldPCIeReplays, 1)
	dev, ok := r.dev.(PCIeLinker)
	if !ok {
		return err
	}
	r.mem.pcie = PCIeLink{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	l := r.mem.pcie
	linkErr := r.do(callPCIe, func() (err error) {
		l, err = dev.PCIeLink()
		return err
	})
	if linkErr != nil {
		return errors.Join(err, r.absent(linkErr, telemetry.GPUPCIeLinkGeneration, telemetry.GPUPCIeLinkWidth,
			telemetry.GPUPCIeLinkGenerationMax, telemetry.GPUPCIeLinkWidthMax))
	}
	r.mem.pcie = l
	r.stated(telemetry.GPUPCIeLinkGeneration, l.Generation)
	r.stated(telemetry.GPUPCIeLinkWidth, l.Width)
	r.stated(telemetry.GPUPCIeLinkGenerationMax, l.MaxGeneration)
	r.stated(telemetry.GPUPCIeLinkWidthMax, l.MaxWidth)
	return err
}

func readPCIe(r *reading) error {
	return errors.Join(
		readPCIeBytes(r, telemetry.GPUPCIeBytesTx, FieldPCIeTxBytes),
		readPCIeBytes(r, telemetry.GPUPCIeBytesRx, FieldPCIeRxBytes))
}

// readPCIeBytes takes the driver's count. Some drivers count in 32 bits; where
// more may pass between two rounds than that holds, laps can be missed and the
// count is not to be acted on.
func readPCIeBytes(r *reading, id telemetry.ID, field FieldID) error {
	err := r.count(id, field, 1)
	if f, e := r.element(field); e == nil && f.Word && !(r.mem.pcie.bytes((LinkPeriod + r.period).Seconds()) < f.wrap()) {
		r.doubt(id)
	}
	return err
}

// lane is bytes a second over one lane, by generation.
var lane = [...]float64{1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}

// bytes is the most that the link can carry in a time, not a number if that is
// not known.
func (l PCIeLink) bytes(seconds float64) float64 {
	g := int(max(l.Generation, l.MaxGeneration)) // it may have been in use meanwhile
	if g < 1 || g >= len(lane) {
		return math.NaN()
	}
	return lane[g] * max(l.Width, l.MaxWidth) * seconds
}
