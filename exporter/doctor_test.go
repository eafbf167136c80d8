package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var sound = Facts{DriverAccess: true, LazyBinding: true, Library: "libnvidia-ml.so.1"}

func TestDoctor(t *testing.T) {
	for _, c := range []struct {
		name  string
		facts Facts
		world func() *world
		want  Severity
		says  []string
	}{
		{"all well", sound, func() *world { return newWorld(2) }, Fine,
			[]string{"580.95.05", "2 GPUs", "NVIDIA H100 80GB HBM3", "readers that work: utilization, busy", "11 driver calls a fast tick", "nvmlDeviceGetFieldValues"}},
		{"no cgo", Facts{}, func() *world { return newWorld(1) }, Failure, []string{"without cgo", "CGO_ENABLED=1"}},
		{"bound at start", Facts{DriverAccess: true}, func() *world { return newWorld(1) }, Warning, []string{"-z,lazy"}},
		{"no library", sound, broken(NoLibrary), Failure, []string{"install the NVIDIA driver"}},
		{"no driver", sound, broken(NotLoaded), Failure, []string{"modprobe nvidia"}},
		{"no permission", sound, broken(NoPermission), Failure, []string{"/dev/nvidiactl"}},
		{"mismatch", sound, broken(Mismatch), Failure, []string{"different versions", "reboot"}},
		{"too old", sound, broken(MissingSymbol), Failure, []string{"too old"}},
		{"no GPU", sound, func() *world { return newWorld(0) }, Failure, []string{"finds no GPU"}},
		{"old driver", sound, func() *world {
			w := newWorld(1)
			w.missing = []string{"nvmlDeviceGetMarginTemperature", "nvmlDeviceGetSamples"}
			return w
		}, Warning, []string{"has no nvmlDeviceGetMarginTemperature; lost: gpu_thermal_headroom_celsius", "gpu_busy_seconds_total", "a newer driver"}},
		{"unsupported", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].err["Power"] = gone(Unsupported)
			return w
		}, Fine, []string{"not on this device: gpu_power_watts"}},
		{"a reader fails", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].err["Power"] = gone(NoPermission)
			return w
		}, Warning, []string{"reader power failed", "-> the driver refuses this user"}},
		{"nonsense", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].util = 42
			return w
		}, Warning, []string{"out of range and dropped: gpu_utilization_ratio"}},
		{"a lookup that hangs", sound, func() *world {
			w := newWorld(2)
			w.gpus[1].findErr = fmt.Errorf("no answer for 5.0 s: %w", gone(Hung))
			return w
		}, Failure, []string{"gpu 0", "failure gpu 1 00000000:19:00.0 GPU-00000000-0000-4000-8000-000000000001: no answer for 5.0 s: test: hung"}},
		{"links, lanes, fabric", sound, func() *world {
			w := newWorld(2)
			w.gpus[1].links.state[3], w.gpus[1].links.state[17] = 0, 0
			w.gpus[1].pcie.Width, w.gpus[1].fabric = 8, 2
			return w
		}, Warning, []string{"18 of 18 NVLinks up, PCIe 5 x16, fabric registered", "gpu 1 NVLinks that are down: 3, 17",
			"gpu 1 PCIe runs at 8 lanes of 16", "gpu 1 NVLink fabric registration: in progress"}},
		{"ECC", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].plain[FieldECCUncorrectedVolatile], w.gpus[0].plain[FieldRemapPending] = 3, 1
			return w
		}, Warning, []string{"3 uncorrected ECC errors", "waits for a reset", "nvidia-smi --gpu-reset"}},
		{"worn out", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].plain[FieldRemapFailed], w.gpus[0].plain[FieldRecoveryAction] = 1, 2
			return w
		}, Failure, []string{"could not be remapped", "have the GPU replaced", "the driver asks to reboot the node"}},
		{"no events", sound, func() *world {
			w := newWorld(1)
			w.deaf = gone(MissingSymbol)
			return w
		}, Warning, []string{"events not heard: test: missing_symbol"}},
		{"a lost GPU", sound, func() *world {
			w := newWorld(2)
			w.gpus[1].findErr = gone(Lost)
			return w
		}, Failure, []string{"gpu 0", "gpu 1", "Xid 79"}},
		{"a GPU lost on the way", sound, func() *world {
			w := newWorld(1)
			w.gpus[0].err["*"] = gone(ResetRequired)
			return w
		}, Failure, []string{"needs a reset"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				got, err := Doctor(context.Background(), c.world(), c.facts, &out)
				if err != nil || got != c.want {
					t.Errorf("severity %v, %v; want %v", got, err, c.want)
				}
				for _, s := range c.says {
					if !strings.Contains(unbroken(out.String()), s) {
						t.Errorf("does not say %q", s)
					}
				}
				if t.Failed() {
					t.Log(out.String())
				}
			})
		})
	}
}

// unbroken is a text with its lines joined.
func unbroken(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestDoctorIsReadable: at eight GPUs what they have in common is said once,
// what some lack is said of them, and it fits a terminal.
func TestDoctorIsReadable(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(gpus []*device)
		lines  int // at most
		says   []string
		not    []string
	}{
		{"all alike", func([]*device) {}, 18,
			[]string{"ok gpus 0-7 NVIDIA H100 80GB HBM3, hopper 18 of 18 NVLinks up, PCIe 5 x16, fabric registered readers that work:"}, []string{"unlike", "not on this device"}},
		{"two lack power", func(gpus []*device) {
			gpus[3].err["Power"], gpus[6].err["Power"] = gone(Unsupported), gone(Unsupported)
		}, 24, []string{"ok gpus 0-2,4-5,7 NVIDIA", "warning gpus 3,6 NVIDIA", "-> others of this product have it", "unlike gpus 0-2,4-5,7, not on this device: gpu_power_watts"}, nil},
		{"most lack power", func(gpus []*device) {
			for _, g := range gpus[1:] {
				g.err["Power"] = gone(Unsupported)
			}
		}, 24, []string{"ok gpus 1-7 NVIDIA", "not on this device: gpu_power_watts", "ok gpu 0 NVIDIA", "unlike gpus 1-7, this device has: gpu_power_watts"}, nil},
		{"a reader fails on one", func(gpus []*device) { gpus[7].err["Temperature"] = gone(NoPermission) }, 29,
			[]string{"warning gpu 7 reader temperature failed", "unlike gpus 0-6, these readers fail: temperature"}, nil},
		{"one is blank", func(gpus []*device) {
			for _, call := range []string{"Temperature", "Clock", "ThrottleReasons"} {
				gpus[1].err[call] = gone(Unsupported)
			}
			gpus[1].fields[FieldMemoryTemperature] = gone(Unsupported)
			gpus[2].fields[FieldMemoryTemperature] = gone(Unsupported)
		}, 37, []string{"gpu_temperature_celsius, gpu_thermal_headroom_celsius, gpu_clock_hertz,", "not on this device: gpu_temperature_celsius{memory} ->"}, nil},
		{"another product", func(gpus []*device) {
			gpus[0].id.Model, gpus[0].id.Arch = "NVIDIA A100-SXM4-80GB", "ampere"
		}, 24, []string{"ok gpus 1-7 NVIDIA H100", "ok gpu 0 NVIDIA A100-SXM4-80GB, ampere"}, nil},
		{"one is slow", func(gpus []*device) { gpus[5].slow = time.Millisecond }, 18, []string{"gpu 5: 1000.0"}, []string{"unlike"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(8)
				c.change(w.gpus)
				var out bytes.Buffer
				if _, err := Doctor(context.Background(), w, sound, &out); err != nil {
					t.Fatal(err)
				}
				text := unbroken(out.String())
				for _, s := range c.says {
					if !strings.Contains(text, s) {
						t.Errorf("does not say %q", s)
					}
				}
				for _, s := range c.not {
					if strings.Contains(text, s) {
						t.Errorf("says %q", s)
					}
				}
				if n := strings.Count(text, "nvmlDeviceGetPowerManagementLimit"); n != 1 {
					t.Errorf("the cost of a call is given %d times", n)
				}
				// Below it is the table of costs, a line for each call.
				report, _, _ := strings.Cut(out.String(), "\n\ndriver call, cost")
				if n := strings.Count(report, "\n") + 1; n > c.lines {
					t.Errorf("%d lines, at most %d", n, c.lines)
				}
				for line := range strings.Lines(out.String()) {
					if len([]rune(line)) > width+1 {
						t.Errorf("wider than a terminal: %s", line)
					}
				}
				if t.Failed() {
					t.Log(out.String())
				}
			})
		})
	}
}

func broken(f Fault) func() *world {
	return func() *world {
		w := newWorld(1)
		w.openErr = gone(f)
		return w
	}
}

// A GPU that hangs is named, the next one is examined all the same, and the
// driver is not closed under the call.
func TestDoctorHungGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		release := make(chan struct{})
		w.gpus[0].hang["Temperature"] = release
		var out bytes.Buffer
		got, err := Doctor(context.Background(), w, sound, &out)
		if got != Failure || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		for _, s := range []string{"nvmlDeviceGetTemperature: hung", "gpu 1", "11 driver calls"} {
			if !strings.Contains(out.String(), s) {
				t.Errorf("does not say %q:\n%s", s, out.String())
			}
		}
		if w.ends.Load() != 0 {
			t.Error("closed under a call")
		}
		close(release)
		synctest.Wait()
	})
}

func TestDoctorSaysEachFault(t *testing.T) {
	for _, f := range Faults {
		if f != Unsupported && f != OutOfRange && advice[f] == "" {
			t.Errorf("no advice for %s", f)
		}
	}
}

type full struct{}

var errFull = errors.New("no space")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestDoctorCannotWrite(t *testing.T) {
	if _, err := Doctor(context.Background(), newWorld(1), sound, full{}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}
