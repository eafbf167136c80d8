package exporter

import (
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// archs are the catalogue's architectures by the names that sources use.
var archs = [...]struct {
	name string
	arch telemetry.Arch
}{
	{"turing", telemetry.Turing},
	{"ampere", telemetry.Ampere},
	{"ada", telemetry.Ada},
	{"hopper", telemetry.Hopper},
	{"blackwell", telemetry.Blackwell},
}

// archOf turns a name into the catalogue's set. A name that is not known, most
// likely a newer device, may have everything.
func archOf(name string) telemetry.Arch {
	for _, a := range archs {
		if strings.EqualFold(a.name, name) {
			return a.arch
		}
	}
	return telemetry.AllArchs
}

// describe fills the description of a frame.
func describe(to *telemetry.Description, id Identity, driver string) {
	to.SetIndex(uint32(id.Index))
	to.SetPci(id.PCI)
	to.SetModel(id.Model)
	to.SetDriver(driver)
	to.SetArch(id.Arch)
	to.SetSerial(id.Serial)
}
