//go:build cgo && linux

package nvml

import (
	"debug/elf"
	"os"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Facts are what doctor cannot learn from the driver.
func Facts(opts ...Option) exporter.Facts {
	return exporter.Facts{DriverAccess: true, LazyBinding: lazy(), Library: apply(opts).path}
}

// lazy says whether this program looks functions up at their first call. A
// library that lacks one then harms nobody who does not call it.
func lazy() bool {
	if os.Getenv("LD_BIND_NOW") != "" {
		return false
	}
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return true // it runs, so it was bound somehow
	}
	defer func() { _ = f.Close() }()
	flags, _ := f.DynValue(elf.DT_FLAGS)
	flags1, _ := f.DynValue(elf.DT_FLAGS_1)
	for _, v := range flags {
		if elf.DynFlag(v)&elf.DF_BIND_NOW != 0 {
			return false
		}
	}
	for _, v := range flags1 {
		if elf.DynFlag1(v)&elf.DF_1_NOW != 0 {
			return false
		}
	}
	return true
}
