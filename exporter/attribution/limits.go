package attribution

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// limit is what a way of sharing lets a process use of a device.
type limit struct {
	source string  // mps, hami
	uuid   string  // of every device if empty
	memory uint64  // bytes, 0 for none
	sm     float64 // share of the multiprocessors, 0 for none
}

// Variables in which MPS and libraries that intercept the CUDA API are told
// their limits.
const (
	mpsShare, mpsMemory            = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	hamiSM, hamiMemory, hamiRegion = "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE"
)

// limitsOf reads the limits that a process was started with. The region that an
// intercepting library shares says more than the variables, where it may be read.
func (a *Attribution) limitsOf(pid int) (list []limit) {
	env, err := a.opt.Proc.Environment(pid, mpsShare, mpsMemory, hamiSM, hamiMemory, hamiMemory+"_0", hamiRegion)
	if err != nil {
		return nil // another user's, whose environment is not ours to read
	}
	if l := (limit{source: "mps", sm: percentage(env[mpsShare]), memory: size(afterEqual(env[mpsMemory]))}); l.sm > 0 || l.memory > 0 {
		list = append(list, l)
	}
	if path := env[hamiRegion]; path != "" {
		text, err := readBounded(filepath.Join(a.opt.Proc.Folder(), strconv.Itoa(pid), "root", path))
		if err == nil {
			if region, err := parseRegion([]byte(text)); err == nil && len(region) > 0 {
				return append(list, region...)
			}
		}
	}
	if l := (limit{source: "hami", sm: percentage(env[hamiSM]), memory: size(cmp.Or(env[hamiMemory+"_0"], env[hamiMemory]))}); l.sm > 0 || l.memory > 0 {
		list = append(list, l)
	}
	return list
}

func percentage(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 100) {
		return 0
	}
	return v / 100
}

// afterEqual: MPS has 0=2G,1=4G; the first counts, since the client sees its
// devices in an order of its own.
func afterEqual(text string) string {
	first, _, _ := strings.Cut(text, ",")
	_, value, _ := strings.Cut(first, "=")
	return value
}

// size reads 3000m, 2G, 1048576.
func size(text string) uint64 {
	text = strings.TrimSuffix(strings.ToLower(text), "b")
	shift := 0
	switch {
	case strings.HasSuffix(text, "k"):
		shift = 10
	case strings.HasSuffix(text, "m"):
		shift = 20
	case strings.HasSuffix(text, "g"):
		shift = 30
	}
	v, err := strconv.ParseUint(strings.TrimRight(text, "kmg"), 10, 64)
	if err != nil || v > 1<<42>>shift {
		return 0
	}
	return v << shift
}

// Layout of the region that HAMi-core shares, version 1: flag, major and minor
// version, …, the number of devices at 56, then 16 names of 96 bytes, 16 limits
// of memory, 16 of multiprocessors in per cent.
const (
	regionFlag                                          = 19920718
	regionCount, regionNames, regionMemory, regionSM    = 56, 64, 1600, 1728
	regionDevices, regionNameBytes, regionHead, regionV = 16, 96, 1856, 1
)

func parseRegion(data []byte) ([]limit, error) {
	if len(data) < regionHead {
		return nil, fmt.Errorf("shared region of %d bytes, want %d at least", len(data), regionHead)
	}
	le := binary.LittleEndian
	if flag, major := le.Uint32(data), le.Uint32(data[4:]); flag != regionFlag || major != regionV {
		return nil, fmt.Errorf("shared region of version %d, flag %d: not known", major, flag)
	}
	count := le.Uint64(data[regionCount:])
	if count > regionDevices {
		return nil, fmt.Errorf("shared region of %d devices", count)
	}
	var list []limit
	for i := range int(count) {
		name, _, _ := bytes.Cut(data[regionNames+i*regionNameBytes:][:regionNameBytes], []byte{0})
		uuid := gpuID.FindString(string(name))
		memory, sm := le.Uint64(data[regionMemory+8*i:]), le.Uint64(data[regionSM+8*i:])
		if uuid == "" || memory > 1<<42 || sm > 100 {
			continue
		}
		if memory > 0 || sm > 0 && sm < 100 {
			list = append(list, limit{"hami", uuid, memory, float64(sm) / 100})
		}
	}
	return list, nil
}

// of are those that hold on a device.
func of(list []limit, uuid string) []limit {
	return slices.DeleteFunc(slices.Clone(list), func(l limit) bool { return l.uuid != "" && l.uuid != uuid })
}

// passed is a GPU that a virtual machine has.
type passed struct{ pci, device, driver string }

// passthrough lists the GPUs of NVIDIA that a driver for virtual machines holds:
// in the kernel's list and not in the driver's, and not lost.
func passthrough(pci string) (list []passed) {
	for _, driver := range []string{"vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub"} {
		entries, err := os.ReadDir(filepath.Join(pci, "drivers", driver))
		if err != nil {
			continue
		}
		for _, e := range entries {
			dir := filepath.Join(pci, "drivers", driver, e.Name())
			if !pciID.MatchString(e.Name()) || e.Type()&fs.ModeSymlink == 0 && !e.IsDir() {
				continue
			}
			vendor, class := sysWord(dir, "vendor"), sysWord(dir, "class")
			if vendor == "0x10de" && strings.HasPrefix(class, "0x03") {
				list = append(list, passed{e.Name(), exporter.CleanLabel(sysWord(dir, "device")), driver})
			}
		}
	}
	return list
}

func sysWord(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
