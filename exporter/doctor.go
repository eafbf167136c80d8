package exporter

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Facts are what a source's package knows beyond the Source: of the binary and
// of the library it would load.
type Facts struct {
	DriverAccess bool   // the binary can call a driver at all
	LazyBinding  bool   // it looks functions up when they are first called
	Library      string // the library it loads, as configured
	// Members tells whose the processes are that hold the GPUs; nil: their pids
	// are all that is said.
	Members Members
}

// Severity of a finding; also the exit status of doctor.
type Severity int

// Severities.
const (
	Fine Severity = iota
	Warning
	Failure
)

func (s Severity) String() string { return [...]string{"ok", "warning", "failure"}[s] }

const (
	doctorRounds = 5
	doctorWait   = 20 * time.Second // for all calls on one GPU, and for the driver
)

// advice says what each fault of a driver means and what to do about it.
var advice = map[Fault]string{
	NoLibrary:      "libnvidia-ml.so.1 was not found or cannot be loaded: install the NVIDIA driver on this node; in a container, start it with the NVIDIA runtime or mount the library and name it by `library` in the file or EVENKEEL_NVML_LIBRARY",
	NotLoaded:      "the library is there and the kernel driver is not: load it (modprobe nvidia) and look at dmesg for why it is not loaded",
	Mismatch:       "the library and the kernel driver are of different versions, as after an upgrade without a reboot: reboot, or unload and load the kernel driver",
	NoPermission:   "the driver refuses this user: allow it to open /dev/nvidiactl and /dev/nvidia*; in a container, request the GPUs",
	NoGPU:          "the driver is loaded and finds no GPU: look at lspci and dmesg; in a container, request the GPUs",
	MissingSymbol:  "the driver is too old for this program: install a newer one",
	Hung:           "the driver does not answer: look at dmesg for Xid errors; a GPU may need a reset or the node a reboot",
	Lost:           "the GPU fell off the bus: look at dmesg for Xid 79; reset it or reboot the node",
	ResetRequired:  "the GPU needs a reset: drain the node, then nvidia-smi --gpu-reset",
	NotInitialized: "the library was shut down; start this program again",
	OtherFault:     "look at dmesg, and try nvidia-smi",
}

// lostBy says which metrics a driver without the function cannot give.
var lostBy = []struct {
	function string
	metrics  string
}{
	{"nvmlDeviceGetMarginTemperature", "gpu_thermal_headroom_celsius on devices that state no slowdown temperature"},
	{"nvmlDeviceGetTemperatureThreshold", "gpu_slowdown_threshold_celsius, and gpu_thermal_headroom_celsius on the absolute thermal model"},
	{"nvmlDeviceGetFieldValues", "gpu_energy_joules_total, memory temperature, bytes and most else of NVLink and PCIe, ECC, row remapping, gpu_recovery_action, the driver's own throttle times (integrated from reason bits instead)"},
	{"nvmlDeviceGetSamples", "the driver's samples for gpu_busy_seconds_total (integrated from utilisation instead)"},
	{"nvmlDeviceGetCurrentClocksEventReasons", "gpu_throttle_active and gpu_throttle_seconds_total, unless the older function is there"},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", "gpu_throttle_active and gpu_throttle_seconds_total, unless the newer function is there"},
	{"nvmlDeviceGetComputeRunningProcesses", "which processes compute on a GPU, unless a newer version is there"},
	{"nvmlDeviceGetComputeRunningProcesses_v2", "nothing, if another version is there"},
	{"nvmlDeviceGetComputeRunningProcesses_v3", "nothing: an older version does as well"},
	{"nvmlDeviceGetMPSComputeRunningProcesses", "which processes share a GPU through MPS, unless a newer version is there"},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v2", "nothing, if another version is there"},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nothing: an older version does as well"},
	{"nvmlDeviceGetGraphicsRunningProcesses", "which processes draw on a GPU, unless a newer version is there"},
	{"nvmlDeviceGetGraphicsRunningProcesses_v2", "nothing, if another version is there"},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nothing: an older version does as well"},
	{"nvmlDeviceGetCurrPcieLinkGeneration", "gpu_pcie_link_generation"},
	{"nvmlDeviceGetCurrPcieLinkWidth", "gpu_pcie_link_width"},
	{"nvmlDeviceGetMaxPcieLinkGeneration", "gpu_pcie_link_generation_max"},
	{"nvmlDeviceGetMaxPcieLinkWidth", "gpu_pcie_link_width_max"},
	{"nvmlDeviceGetGpuFabricInfoV", "gpu_fabric_state, unless the older function is there"},
	{"nvmlDeviceGetGpuFabricInfo", "nothing, if the newer function is there"},
	{"nvmlDeviceGetNvLinkState", "gpu_nvlink_up, where the driver has no field for it"},
	{"nvmlDeviceGetNvLinkErrorCounter", "gpu_nvlink_errors_total, where the driver has no field for it"},
	{"nvmlEventSetCreate", "gpu_xid_errors_total and the events of the driver"},
	{"nvmlEventSetFree", "nothing that is read"},
	{"nvmlDeviceGetSupportedEventTypes", "gpu_xid_errors_total and the events of the driver"},
	{"nvmlDeviceRegisterEvents", "gpu_xid_errors_total and the events of the driver"},
	{"nvmlEventSetWait", "nothing, if the newer version is there"},
	{"nvmlEventSetWait_v2", "which MIG instance an event is of, and all events where the older version is missing too"},
	{"nvmlDeviceGetMemoryInfo_v2", "nothing: the older function counts reserved memory as used"},
	{"nvmlDeviceGetArchitecture", "the arch label of gpu_info"},
	{"nvmlDeviceGetSerial", "the serial number in the description"},
}

// doctor writes findings and keeps the worst.
type doctor struct {
	w     io.Writer
	worst Severity
	err   error
	kinds []*kind
	held  []heldGPU
}

// width is how wide a terminal is at the least.
const width = 80

// indent is where the text of a finding begins.
const indent = 20

func (d *doctor) say(s Severity, topic, format string, args ...any) {
	d.worst = max(d.worst, s)
	d.wrap(fmt.Sprintf("%-8s %-10s ", s, topic), fmt.Sprintf(format, args...), "")
}

// advise says what to do about the finding above it.
func (d *doctor) advise(text string) { d.wrap(strings.Repeat(" ", indent), "-> "+text, "   ") }

// more goes on with the finding above it.
func (d *doctor) more(format string, args ...any) {
	d.wrap(strings.Repeat(" ", indent), fmt.Sprintf(format, args...), "  ")
}

// wrap breaks a text between words; its later lines hang under the first.
func (d *doctor) wrap(start, text, hang string) {
	line := start
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			d.line("%s", line)
			line = strings.Repeat(" ", indent) + hang + word
		default:
			line += " " + word
		}
	}
	d.line("%s", line)
}

func (d *doctor) line(format string, args ...any) {
	if _, err := fmt.Fprintf(d.w, format+"\n", args...); err != nil && d.err == nil {
		d.err = err
	}
}

// fault reports a failed driver call with what to do about it.
func (d *doctor) fault(topic string, err error) {
	d.say(Failure, topic, "%v", err)
	if a := advice[FaultOf(err)]; a != "" {
		d.advise(a)
	}
}

// Doctor looks at everything between this process and the GPUs, says what is
// wrong and what to do, and what a driver call costs here. It returns the
// severity of the worst finding, and an error only if w fails.
func Doctor(ctx context.Context, src Source, facts Facts, w io.Writer) (Severity, error) {
	d := &doctor{w: w}
	switch {
	case !facts.DriverAccess:
		d.say(Failure, "binary", "built without cgo, it cannot call a GPU driver")
		d.advise("use a binary built with CGO_ENABLED=1")
		return d.worst, d.err
	case !facts.LazyBinding:
		d.say(Warning, "binary", "driver functions are bound at start: it will not run beside an older driver")
		d.advise("build it with -ldflags '-extldflags=-Wl,-z,lazy' and unset LD_BIND_NOW")
	default:
		d.say(Fine, "binary", "binds driver functions lazily; library %s", facts.Library)
	}
	var found []Found
	var info Driver
	err := bounded(ctx, func() (err error) {
		if err = src.Open(); err != nil {
			return err
		}
		if info, err = src.Driver(); err != nil {
			return err
		}
		found, err = src.Devices()
		return err
	})
	if err == nil && len(found) == 0 {
		err = &DriverError{Call: callNames[callDevices], Fault: NoGPU}
	}
	if err != nil {
		d.fault("driver", err)
		return d.worst, d.err
	}
	d.say(Fine, "driver", "%s, NVML %s, CUDA %s, %d GPUs", info.Version, info.NVML, info.CUDA, len(found))
	d.missing(info.Missing)
	stuck := false
	for i := range found {
		stuck = d.gpu(ctx, src, &found[i]) || stuck
	}
	d.events(ctx, src)
	d.summary()
	d.holders(ctx, facts.Members)
	if !stuck {
		_ = src.Close()
	}
	return d.worst, d.err
}

// bounded runs f, and leaves it to itself when it takes too long.
func bounded(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &DriverError{Call: "driver", Fault: Hung}
	}
}

func (d *doctor) missing(functions []string) {
	for _, f := range functions {
		what := "nothing that is read"
		for _, l := range lostBy {
			if l.function == f {
				what = l.metrics
			}
		}
		d.say(Warning, "driver", "has no %s; lost: %s", f, what)
		d.advise("a newer driver has it")
	}
}

// examination is what was learned of one GPU.
type examination struct {
	results []result
	slow    values
	link    values
	fast    values
	costs   [callCount][]time.Duration
	calls   uint64 // of one fast round
	fatal   error
	links   linkValues
	// Who holds it, if the driver could list them.
	processes []Process
	listed    bool
}

// gpu reports on one GPU, and whether a call on it is still outstanding.
func (d *doctor) gpu(ctx context.Context, src Source, f *Found) (stuck bool) {
	topic := fmt.Sprintf("gpu %d", f.Index)
	if f.Err != nil || f.Device == nil {
		err := f.Err
		if name := strings.TrimSpace(f.PCI + " " + f.UUID); name != "" {
			err = fmt.Errorf("%s: %w", name, err)
		}
		d.fault(topic, err)
		return false
	}
	id := f.Device.Identity()
	var call callMark
	call.epoch = time.Now()
	done := make(chan *examination, 1)
	go func() { done <- examine(src, f.Device, &call) }()
	x, name, since := patient(ctx, &call, done)
	if x == nil {
		d.fault(topic, fmt.Errorf("%s %s: no answer for %.1f s: %w", id.PCI, id.UUID, since.Seconds(), &DriverError{Call: callNames[name], Fault: Hung}))
		return true
	}
	d.examined(topic, id, x)
	return false
}

// examine runs a slow round and a few fast ones, timing each call.
func examine(src Source, dev Device, call *callMark) *examination {
	x := &examination{}
	mem := &memory{results: make([]result, len(readers)), arch: archOf(dev.Identity().Arch)}
	out := newSample()
	for i := range doctorRounds {
		r := reading{dev: dev, at: time.Now(), period: DefaultPeriod, due: due{link: i == 0, slow: i == 0}, out: out, mem: mem, call: call, costs: &x.costs}
		out.fast.mark = [maxSlots]mark{}
		before := src.Calls()
		r.round(readers)
		x.calls = src.Calls() - before
		if x.fatal = r.fatal; r.fatal != nil {
			break
		}
		mem.at = r.at
	}
	x.results, x.slow, x.link, x.fast = mem.results, mem.slow.values, mem.link.values, out.fast
	x.links, x.processes, x.listed = mem.links.linkValues, mem.processes, mem.listed
	return x
}

func (d *doctor) examined(topic string, id Identity, x *examination) {
	if x.fatal != nil {
		d.fault(topic, fmt.Errorf("%s %s: %w", id.PCI, id.UUID, x.fatal))
		return
	}
	d.say(Fine, topic, "%s %s", id.PCI, id.UUID)
	for i, r := range x.results {
		if r.err == nil {
			continue
		}
		d.say(Warning, topic, "reader %s failed: %v", readers[i].name, r.err)
		if a := advice[FaultOf(r.err)]; a != "" {
			d.advise(a)
		}
	}
	if bad := x.outOfRange(); len(bad) > 0 {
		d.say(Warning, topic, "out of range and dropped: %s", strings.Join(bad, ", "))
		d.advise("wrong readings of a driver; if they persist, look for a newer driver")
	}
	if x.listed {
		d.held = append(d.held, heldGPU{topic, id.UUID, x.processes})
	}
	d.health(topic, x)
	d.classify(id, x)
}

func (x *examination) unsupported() []string { return x.marked(unsupported) }
func (x *examination) outOfRange() []string  { return x.marked(outOfRange) }

// marked lists series by mark, in the notation of Prometheus.
func (x *examination) marked(m mark) []string {
	var list []string
	for i, s := range slots {
		if x.fast.mark[i] != m && x.link.mark[i] != m && x.slow.mark[i] != m {
			continue
		}
		name := s.row.Name
		if _, series, ok := telemetry.Lookup(s.id); ok && len(series.Values) > 0 {
			name += "{" + strings.Join(series.Values, ",") + "}"
		}
		list = append(list, name)
	}
	return list
}
