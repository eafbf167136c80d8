//go:build cgo && linux

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

var (
	_ exporter.PCIeLinker   = (*device)(nil)
	_ exporter.FabricTeller = (*device)(nil)
	_ exporter.LinkTeller   = (*device)(nil)
)

// PCIeLink is a call for each value. What the device does not state is NaN; it
// fails if the device states nothing, or cannot answer at all.
func (d *device) PCIeLink() (exporter.PCIeLink, error) {
	var l exporter.PCIeLink
	known := false
	for _, x := range [...]struct {
		to   *float64
		call symbol
		read func() (int, nvml.Return)
	}{
		{&l.Generation, symPCIeGeneration, d.handle.GetCurrPcieLinkGeneration},
		{&l.Width, symPCIeWidth, d.handle.GetCurrPcieLinkWidth},
		{&l.MaxGeneration, symPCIeMaxGeneration, d.handle.GetMaxPcieLinkGeneration},
		{&l.MaxWidth, symPCIeMaxWidth, d.handle.GetMaxPcieLinkWidth},
	} {
		*x.to = math.NaN()
		if d.l.need(x.call) != nil {
			continue
		}
		n, code := x.read()
		v, err := unsigned(names[x.call], code, uint32(n), 1)
		switch {
		case err == nil:
			*x.to, known = v, true
		case exporter.FaultOf(err) != exporter.Unsupported:
			return l, err
		}
	}
	if !known {
		return l, blank(names[symPCIeGeneration])
	}
	return l, nil
}

// FabricState asks by the newest version of the call that every driver with it
// knows, else by the first.
func (d *device) FabricState() (int, error) {
	var state uint8
	var code nvml.Return
	call := symFabricV
	if err := d.l.need(symFabricV); err == nil {
		info, ret := d.handle.GetGpuFabricInfoV().V2()
		state, code = info.State, ret
	} else if d.l.need(symFabric) == nil {
		call = symFabric
		info, ret := d.handle.GetGpuFabricInfo()
		state, code = info.State, ret
	} else {
		return 0, err
	}
	if err := check(names[call], code); err != nil {
		return 0, err
	}
	if state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return 0, blank(names[call])
	}
	return int(state), nil
}

// LinkUp says whether a link is active.
func (d *device) LinkUp(link int) (bool, error) {
	if err := d.l.need(symLinkState); err != nil {
		return false, err
	}
	state, code := d.handle.GetNvLinkState(link)
	return state == nvml.FEATURE_ENABLED, ofLink(symLinkState, code)
}

// LinkErrors is one of a link's error counters.
func (d *device) LinkErrors(link int, kind exporter.LinkError) (float64, error) {
	if err := d.l.need(symLinkErrors); err != nil {
		return 0, err
	}
	n, code := d.handle.GetNvLinkErrorCounter(link, linkErrors[kind])
	if err := ofLink(symLinkErrors, code); err != nil {
		return 0, err
	}
	if n == blank64 {
		return 0, blank(names[symLinkErrors])
	}
	return float64(n), nil
}

var linkErrors = [...]nvml.NvLinkErrorCounter{
	exporter.LinkCRCFlit:  nvml.NVLINK_ERROR_DL_CRC_FLIT,
	exporter.LinkCRCData:  nvml.NVLINK_ERROR_DL_CRC_DATA,
	exporter.LinkReplay:   nvml.NVLINK_ERROR_DL_REPLAY,
	exporter.LinkRecovery: nvml.NVLINK_ERROR_DL_RECOVERY,
}

// ofLink takes a link that the library does not accept for one that the device
// does not have.
func ofLink(call symbol, code nvml.Return) error {
	if code == nvml.ERROR_INVALID_ARGUMENT {
		return blank(names[call])
	}
	return check(names[call], code)
}
