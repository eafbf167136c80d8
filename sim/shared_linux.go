package sim

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// The structs below mirror nvml/standin/world.h. The tags name the C fields; a
// test compares every offset and size with what a C compiler says.

const (
	shmMagic     = 0x31304c4d564e4b45
	shmLayout    = 1
	shmDevices   = 16
	shmLinks     = 18
	shmSamples   = 128
	shmProcesses = 64
	shmEvents    = 256
	shmAbsent    = math.MinInt32
)

// Sample buffers, in the order of the file.
const (
	samplePower = iota
	sampleGPU
	sampleMemory
	sampleKinds
)

// Slots of throttleNS, in the order of the file.
const (
	shmThrottlePower       = 0
	shmThrottleSoftThermal = 1
	shmThrottleHardThermal = 2
	shmThrottleKinds       = 8
)

type shmSample struct {
	TimeUS uint64 `c:"time_us"`
	Value  uint64 `c:"value"`
}

type shmSampleRing struct {
	Head uint64                `c:"head"`
	Ring [shmSamples]shmSample `c:"ring"`
}

type shmProcess struct {
	UsedBytes       uint64 `c:"used_bytes"`
	StartTicks      uint64 `c:"start_ticks"`
	PID             uint32 `c:"pid"`
	Kind            uint32 `c:"kind"`
	SharePermille   uint32 `c:"share_permille"`
	GPUInstance     uint32 `c:"gpu_instance"`
	ComputeInstance uint32 `c:"compute_instance"`
	Generation      uint32 `c:"generation"`
}

type shmEvent struct {
	Type            uint64 `c:"type"`
	Data            uint64 `c:"data"`
	TimeUS          uint64 `c:"time_us"`
	Device          uint32 `c:"device"`
	GPUInstance     uint32 `c:"gpu_instance"`
	ComputeInstance uint32 `c:"compute_instance"`
	Reserved        uint32 `c:"reserved"`
}

type shmDevice struct {
	UUID                  [48]byte `c:"uuid"`
	Name                  [64]byte `c:"name"`
	Serial                [32]byte `c:"serial"`
	PartNumber            [32]byte `c:"part_number"`
	VBIOS                 [32]byte `c:"vbios"`
	MemoryTotalBytes      uint64   `c:"memory_total_bytes"`
	MemoryReservedBytes   uint64   `c:"memory_reserved_bytes"`
	ReasonsSupported      uint64   `c:"reasons_supported"`
	Minor                 uint32   `c:"minor"`
	ModuleID              uint32   `c:"module_id"`
	PCIDomain             uint32   `c:"pci_domain"`
	PCIBus                uint32   `c:"pci_bus"`
	PCIDevice             uint32   `c:"pci_device"`
	PCIDeviceID           uint32   `c:"pci_device_id"`
	PCISubsystemID        uint32   `c:"pci_subsystem_id"`
	Architecture          uint32   `c:"architecture"`
	Brand                 uint32   `c:"brand"`
	CUDAMajor             uint32   `c:"cuda_major"`
	CUDAMinor             uint32   `c:"cuda_minor"`
	Fans                  uint32   `c:"fans"`
	PCIeGenerationMax     uint32   `c:"pcie_generation_max"`
	PCIeWidthMax          uint32   `c:"pcie_width_max"`
	NVLinks               uint32   `c:"nvlinks"`
	NVLinkVersion         uint32   `c:"nvlink_version"`
	NVLinkMBps            uint32   `c:"nvlink_mbps"`
	ClockSMMaxMHz         uint32   `c:"clock_sm_max_mhz"`
	ClockMemoryMaxMHz     uint32   `c:"clock_memory_max_mhz"`
	ClockVideoMaxMHz      uint32   `c:"clock_video_max_mhz"`
	PowerMinMW            uint32   `c:"power_min_mw"`
	PowerMaxMW            uint32   `c:"power_max_mw"`
	PowerDefaultMW        uint32   `c:"power_default_mw"`
	PowerAverageSupported uint32   `c:"power_average_supported"`
	ShutdownC             int32    `c:"shutdown_c"`
	SlowdownC             int32    `c:"slowdown_c"`
	GPUMaxC               int32    `c:"gpu_max_c"`
	MemoryMaxC            int32    `c:"memory_max_c"`
	ShutdownTLimitC       int32    `c:"shutdown_tlimit_c"`
	SlowdownTLimitC       int32    `c:"slowdown_tlimit_c"`
	GPUMaxTLimitC         int32    `c:"gpu_max_tlimit_c"`
	MemoryMaxTLimitC      int32    `c:"memory_max_tlimit_c"`

	MemoryUsedBytes          uint64                   `c:"memory_used_bytes"`
	EnergyMJ                 uint64                   `c:"energy_mj"`
	Reasons                  uint64                   `c:"reasons"`
	ThrottleNS               [shmThrottleKinds]uint64 `c:"throttle_ns"`
	PCIeTxBytes              uint64                   `c:"pcie_tx_bytes"`
	PCIeRxBytes              uint64                   `c:"pcie_rx_bytes"`
	PCIeReplays              uint64                   `c:"pcie_replays"`
	NVLinkTxBytes            [shmLinks]uint64         `c:"nvlink_tx_bytes"`
	NVLinkRxBytes            [shmLinks]uint64         `c:"nvlink_rx_bytes"`
	NVLinkErrors             [4][shmLinks]uint64      `c:"nvlink_errors"`
	ECCCorrectedVolatile     uint64                   `c:"ecc_corrected_volatile"`
	ECCCorrectedAggregate    uint64                   `c:"ecc_corrected_aggregate"`
	ECCUncorrectedVolatile   uint64                   `c:"ecc_uncorrected_volatile"`
	ECCUncorrectedAggregate  uint64                   `c:"ecc_uncorrected_aggregate"`
	RemappedCorrectable      uint32                   `c:"remapped_correctable"`
	RemappedUncorrectable    uint32                   `c:"remapped_uncorrectable"`
	RemapPending             uint32                   `c:"remap_pending"`
	RemapFailed              uint32                   `c:"remap_failed"`
	RecoveryAction           uint32                   `c:"recovery_action"`
	FabricState              uint32                   `c:"fabric_state"`
	NVLinkDown               uint32                   `c:"nvlink_down"`
	UtilizationGPUPercent    uint32                   `c:"utilization_gpu_percent"`
	UtilizationMemoryPercent uint32                   `c:"utilization_memory_percent"`
	PowerMW                  uint32                   `c:"power_mw"`
	PowerAverageMW           uint32                   `c:"power_average_mw"`
	ClockSMMHz               uint32                   `c:"clock_sm_mhz"`
	ClockMemoryMHz           uint32                   `c:"clock_memory_mhz"`
	ClockVideoMHz            uint32                   `c:"clock_video_mhz"`
	PState                   uint32                   `c:"pstate"`
	PCIeGeneration           uint32                   `c:"pcie_generation"`
	PCIeWidth                uint32                   `c:"pcie_width"`
	FanPercent               uint32                   `c:"fan_percent"`
	CoreC                    int32                    `c:"core_c"`
	MemoryC                  int32                    `c:"memory_c"`
	MarginC                  int32                    `c:"margin_c"`

	PowerLimitMW  uint32 `c:"power_limit_mw"`
	PowerRequests uint32 `c:"power_requests"`

	ForcedCode   int32  `c:"forced_code"`
	Hang         uint32 `c:"hang"`
	NoPermission uint32 `c:"no_permission"`
	Blank        uint32 `c:"blank"`
	Reserved     uint32 `c:"reserved"`

	Calls uint64 `c:"calls"`

	Samples   [sampleKinds]shmSampleRing `c:"samples"`
	Processes [shmProcesses]shmProcess   `c:"processes"`
}

type shmWorld struct {
	Magic         uint64   `c:"magic"`
	HeartbeatUS   uint64   `c:"heartbeat_us"`
	Layout        uint32   `c:"layout"`
	Devices       uint32   `c:"devices"`
	InitCode      int32    `c:"init_code"`
	InitDelayMS   uint32   `c:"init_delay_ms"`
	LibraryHang   uint32   `c:"library_hang"`
	CUDAVersion   int32    `c:"cuda_version"`
	DriverVersion [80]byte `c:"driver_version"`
	NVMLVersion   [80]byte `c:"nvml_version"`

	EventHead uint32              `c:"event_head"`
	Reserved  uint32              `c:"reserved"`
	Events    [shmEvents]shmEvent `c:"events"`

	Device [shmDevices]shmDevice `c:"device"`
}

// sharedFile is a world file that this process owns.
type sharedFile struct {
	path  string
	inode uint64
	bytes []byte
	world *shmWorld
}

// createShared makes a world file, lets fill write it and moves it into place.
// Clients of an older file keep that one until they initialise again.
func createShared(path string, fill func(*shmWorld)) (*sharedFile, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("create the world file: %w", err)
	}
	defer file.Close() // the mapping keeps the file
	s, err := layOut(file)
	if err != nil {
		_ = os.Remove(file.Name())
		return nil, fmt.Errorf("create the world file: %w", err)
	}
	s.world.Layout = shmLayout
	fill(s.world)
	atomic.StoreUint64(&s.world.Magic, shmMagic)
	if err := os.Rename(file.Name(), path); err != nil {
		_ = os.Remove(file.Name())
		return nil, fmt.Errorf("put the world file in place: %w", err)
	}
	s.path = path
	return s, nil
}

// layOut gives a new file its size, and to everybody, as a driver's device
// files are.
func layOut(file *os.File) (*sharedFile, error) {
	if err := file.Truncate(int64(shmSize)); err != nil {
		return nil, err
	}
	if err := file.Chmod(0o666); err != nil {
		return nil, err
	}
	return mapShared(file)
}

const shmSize = int(unsafe.Sizeof(shmWorld{}))

func mapShared(file *os.File) (*sharedFile, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	bytes, err := syscall.Mmap(int(file.Fd()), 0, shmSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map it: %w", err)
	}
	s := &sharedFile{bytes: bytes, world: (*shmWorld)(unsafe.Pointer(&bytes[0]))}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = stat.Ino
	}
	return s, nil
}

// beat says that the world is alive.
func (s *sharedFile) beat(now time.Time) {
	atomic.StoreUint64(&s.world.HeartbeatUS, uint64(now.UnixMicro()))
}

// close ends the world for its clients at once and removes the file, unless
// another world has taken its place by now.
func (s *sharedFile) close() error {
	atomic.StoreUint64(&s.world.HeartbeatUS, 0)
	s.wake()
	if info, err := os.Stat(s.path); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino == s.inode {
			_ = os.Remove(s.path)
		}
	}
	s.world = nil
	return syscall.Munmap(s.bytes)
}

// raise puts an event into the ring and wakes whoever waits for one.
func (s *sharedFile) raise(e shmEvent) {
	head := atomic.LoadUint32(&s.world.EventHead)
	s.world.Events[head%shmEvents] = e
	atomic.StoreUint32(&s.world.EventHead, head+1)
	s.wake()
}

// wake ends the sleep of every event waiter. It is the shared kind of futex:
// the waiters are other processes.
func (s *sharedFile) wake() {
	const futexWake = 1
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&s.world.EventHead)), futexWake, math.MaxInt32, 0, 0, 0)
}

// put adds a sample to a driver buffer.
func (r *shmSampleRing) put(now time.Time, value uint64) {
	head := atomic.LoadUint64(&r.Head)
	slot := &r.Ring[head%shmSamples]
	atomic.StoreUint64(&slot.Value, value)
	atomic.StoreUint64(&slot.TimeUS, uint64(now.UnixMicro()))
	atomic.StoreUint64(&r.Head, head+1)
}
