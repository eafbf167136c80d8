package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sound makes a device that has every health signal and nothing wrong.
func sound(g *telemetry.GPU) {
	set(g, map[telemetry.ID]float64{
		telemetry.GPURowRemapPending: 0, telemetry.GPURowRemapFailed: 0, telemetry.GPURecoveryAction: 0, telemetry.GPUFabricState: 3,
		telemetry.GPUECCErrorsCorrectedVolatile: 0, telemetry.GPUECCErrorsUncorrectedVolatile: 0, telemetry.GPUPCIeReplays: 0,
		telemetry.GPUPCIeLinkWidth: 16, telemetry.GPUPCIeLinkWidthMax: 16,
	})
	links(g, 18, 18)
}

// links tells of links, so many of which are up.
func links(g *telemetry.GPU, of, up int) {
	for link := range of {
		v := 0.0
		if link < up {
			v = 1
		}
		g.SetLinkValue(telemetry.LinkNVLinkUp, link, v)
		for _, id := range []telemetry.ID{telemetry.LinkNVLinkErrorsCRCFlit, telemetry.LinkNVLinkErrorsCRCData, telemetry.LinkNVLinkErrorsReplay, telemetry.LinkNVLinkErrorsRecovery} {
			if _, ok := g.LinkValue(id, link); !ok {
				g.SetLinkValue(id, link, 0)
			}
		}
	}
}

func newSound(t *testing.T) *stage {
	s := newStage(t, 1)
	sound(s.n.devices[0])
	return s
}

// What a signal says is told at once; it is over only when the signal has said
// so for a while, and a signal that says nothing ends nothing.
func TestHealthFindings(t *testing.T) {
	value := func(id telemetry.ID, bad, good float64) [2]func(*stage) {
		return [2]func(*stage){
			func(s *stage) { s.n.devices[0].SetValue(id, bad) },
			func(s *stage) { s.n.devices[0].SetValue(id, good) },
		}
	}
	growing := func(id telemetry.ID, perSecond float64) [2]func(*stage) {
		return [2]func(*stage){
			func(s *stage) {
				start := s.second
				s.change = func(*telemetry.Frame) { s.n.devices[0].SetValue(id, 1000+float64(s.second-start)*perSecond) }
			},
			func(s *stage) { s.change = nil },
		}
	}
	linkErrors := func(id telemetry.ID, perSecond float64) [2]func(*stage) {
		return [2]func(*stage){
			func(s *stage) {
				start := s.second
				s.change = func(*telemetry.Frame) {
					s.n.devices[0].SetLinkValue(id, 4, float64(s.second-start)*perSecond)
				}
			},
			func(s *stage) { s.change = nil },
		}
	}
	for _, tc := range []struct {
		name   string
		do     [2]func(*stage) // break it, mend it
		class  string
		reason string
		silent telemetry.ID // the signal that may fall silent
		after  int          // seconds after which it is over; 0 for never by itself
	}{
		{"row remap failed", value(telemetry.GPURowRemapFailed, 1, 0), HealthDrainNeeded, "a memory row could not be remapped", telemetry.GPURowRemapFailed, 120},
		{"row remap pending", value(telemetry.GPURowRemapPending, 1, 0), HealthResetNeeded, "a row remap waits for a reset", telemetry.GPURowRemapPending, 90},
		{"the driver asks for a reset", value(telemetry.GPURecoveryAction, 1, 0), HealthResetNeeded, "the driver asks for a reset", telemetry.GPURecoveryAction, 90},
		{"… for a reboot", value(telemetry.GPURecoveryAction, 2, 0), HealthDrainNeeded, "the driver asks for a reboot of the node", telemetry.GPURecoveryAction, 90},
		{"… for peer traffic to be drained", value(telemetry.GPURecoveryAction, 3, 0), HealthDrainNeeded, "the driver asks for peer traffic to be drained", telemetry.GPURecoveryAction, 90},
		{"… for a drain and a reset", value(telemetry.GPURecoveryAction, 4, 0), HealthDrainNeeded, "the driver asks for a drain and a reset", telemetry.GPURecoveryAction, 90},
		{"… for the IMEX domain to be recovered", value(telemetry.GPURecoveryAction, 5, 0), HealthDrainNeeded, "the driver asks for recovery of its IMEX domain", telemetry.GPURecoveryAction, 90},
		{"… for a bus reset", value(telemetry.GPURecoveryAction, 6, 0), HealthResetNeeded, "the driver asks for a reset of its bus", telemetry.GPURecoveryAction, 90},
		{"… for something newer", value(telemetry.GPURecoveryAction, 9, 0), HealthDrainNeeded, "the driver asks for recovery action 9", telemetry.GPURecoveryAction, 90},
		{"links down", [2]func(*stage){func(s *stage) { links(s.n.devices[0], 18, 16) }, func(s *stage) { links(s.n.devices[0], 18, 18) }}, HealthDegraded, "NVLinks are down, 16 are up", 0, 90},
		{"a flood of corrected errors", growing(telemetry.GPUECCErrorsCorrectedVolatile, 17700), HealthDegraded, "17700 corrected ECC errors/s", 0, 400},
		{"some corrected errors", growing(telemetry.GPUECCErrorsCorrectedVolatile, 5), HealthWatch, "5 corrected ECC errors/s", 0, 400},
		{"CRC errors", linkErrors(telemetry.LinkNVLinkErrorsCRCFlit, 500), HealthDegraded, "500 NVLink errors/s", 0, 400},
		{"a few CRC errors", linkErrors(telemetry.LinkNVLinkErrorsCRCData, 5), HealthWatch, "5 NVLink errors/s", 0, 400},
		{"replays", linkErrors(telemetry.LinkNVLinkErrorsReplay, 5), HealthWatch, "5 NVLink errors/s", 0, 400},
		{"recoveries", linkErrors(telemetry.LinkNVLinkErrorsRecovery, 1), HealthDegraded, "1 NVLink errors/s", 0, 400},
		{"a narrow slot", value(telemetry.GPUPCIeLinkWidth, 8, 16), HealthWatch, "PCIe has 8 lanes, less than it could", telemetry.GPUPCIeLinkWidth, 120},
		{"PCIe sends again", growing(telemetry.GPUPCIeReplays, 10), HealthWatch, "10 PCIe packets/s are sent again", 0, 120},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSound(t)
			s.slow()
			s.slow()
			s.wantHealth(HealthOK, "")
			before := s.at
			tc.do[0](s)
			s.run(32)
			s.wantHealth(tc.class, tc.reason)
			if h := s.gpu(0).GetHealth(); h.GetScore() >= 1 || time.Unix(0, h.GetSinceUnixNano()).Before(before) {
				t.Errorf("health %v", h)
			}
			if tc.silent != 0 {
				s.n.devices[0].ClearValue(tc.silent)
				s.run(600)
				s.wantHealth(tc.class, tc.reason)
			}
			tc.do[1](s)
			s.run(20)
			if s.gpu(0).GetHealth().GetClass() == HealthOK {
				t.Error("over at once: a class that flaps")
			}
			s.run(tc.after)
			s.wantHealth(HealthOK, "")
		})
	}
}

func TestHealthThrottled(t *testing.T) {
	s := newSound(t)
	g := s.n.devices[0]
	s.run(20)
	g.SetValue(telemetry.GPUThrottleActiveHWSlowdown, 1)
	s.run(1)
	s.wantHealth(HealthDegraded, "throttled: hw_slowdown")
	for range 20 { // on and off again: one state
		g.SetValue(telemetry.GPUThrottleActiveHWSlowdown, float64(s.second%2))
		s.run(1)
		s.wantHealth(HealthDegraded, "throttled: hw_slowdown")
	}
	g.SetValue(telemetry.GPUThrottleActiveHWSlowdown, 0)
	s.run(28)
	s.wantHealth(HealthDegraded, "throttled: hw_slowdown")
	s.run(4)
	s.wantHealth(HealthOK, "")
	g.SetValue(telemetry.GPUThrottleActiveSWPower, 1)
	s.run(20)
	s.wantHealth(HealthOK, "") // a power limit at work is no fault
}

func TestUncorrectedErrors(t *testing.T) {
	s := newSound(t)
	g := s.n.devices[0]
	s.run(31)
	g.SetValue(telemetry.GPUECCErrorsUncorrectedVolatile, 3)
	s.run(30)
	s.wantHealth(HealthDegraded, "0.6 uncorrected ECC errors/s within the last 10 min")
	s.run(600)
	s.wantHealth(HealthWatch, "3 uncorrected ECC errors since the driver was loaded")
	g.SetGeneration(2) // reset; the node's counter does not fall
	s.run(120)
	s.wantHealth(HealthOK, "")
	g.SetValue(telemetry.GPUECCErrorsUncorrectedVolatile, 4)
	s.run(700)
	s.wantHealth(HealthWatch, "1 uncorrected ECC errors since the driver was loaded")
}

func TestFabricThatIsNotJoined(t *testing.T) {
	s := newSound(t)
	g := s.n.devices[0]
	g.SetValue(telemetry.GPUFabricState, 2)
	s.run(250)
	s.wantHealth(HealthOK, "") // joining takes a while after a start
	if f := s.gpu(0).GetFabric(); f.GetState() != FabricNotReady || len(f.GetEvidence()) == 0 {
		t.Errorf("fabric %v", f)
	}
	s.run(100)
	s.wantHealth(HealthDegraded, "the driver has not joined the NVLink fabric")
	g.SetValue(telemetry.GPUFabricState, 3)
	s.run(60)
	s.wantHealth(HealthOK, "")
}

// xidStage is a sound device whose Xid counts are told with each slow part.
type xidStage struct {
	*stage
	counts map[[2]string]float64
}

func newXids(t *testing.T) *xidStage {
	x := &xidStage{newSound(t), map[[2]string]float64{}}
	x.samples = func() []*telemetry.Sample {
		out := calmHost()
		var keys [][2]string
		for k := range x.counts {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
		for _, k := range keys {
			out = append(out, sampleOf(telemetry.GPUXidErrors, x.n.devices[0].GetUuid(), x.counts[k], k[0], k[1]))
		}
		return out
	}
	x.n.devices[0].ClearValue(telemetry.GPURecoveryAction)
	return x
}

func (x *xidStage) xid(code, action string) { x.counts[[2]string{code, action}]++ }

func TestXidClasses(t *testing.T) {
	for _, tc := range []struct {
		code, action  string
		class, reason string
		over          int // seconds after which the device is sound again; 0 for not within a day
	}{
		{"31", "RESTART_APP", HealthWatch, "Xid 31, of an application", 700},
		{"94", "restart_app", HealthWatch, "Xid 94, of an application", 700},
		{"43", "IGNORE", HealthOK, "", 1},
		{"63", "IGNORE", HealthWatch, "Xid 63", 3700},
		{"92", "ignore", HealthWatch, "Xid 92", 3700},
		{"119", "RESET_GPU", HealthResetNeeded, "Xid 119 calls for a reset", 0},
		{"95", "reset", HealthResetNeeded, "Xid 95 calls for a reset", 0},
		{"48", "WORKFLOW_XID_48", HealthResetNeeded, "Xid 48 calls for a reset", 0},
		{"145", "workflow", HealthResetNeeded, "Xid 145 calls for a reset", 0},
		{"13", "WORKFLOW_XID_13", HealthWatch, "Xid 13, of an application", 700},
		{"45", "workflow", HealthOK, "", 1},
		{"79", "RESTART_BM", HealthDrainNeeded, "Xid 79 calls for a reboot of the node", 0},
		{"151", "RESTART_VM", HealthDrainNeeded, "Xid 151 calls for a reboot of the node", 0},
		{"54", "CHECK_MECHANICALS", HealthDegraded, "Xid 54 calls for hands", 0},
		{"142", "CONTACT_SUPPORT", HealthWatch, "Xid 142: what to do a human must find out", 0},
		{"other", "CONTACT_SUPPORT", HealthWatch, "an Xid without a number: what to do a human must find out", 0},
		{"154", "XID_154", HealthOK, "", 1},
		{"74", "WORKFLOW_NVLINK_ERR", HealthResetNeeded, "Xid 74 calls for a reset", 0},
		{"171", "", HealthWatch, "Xid 171", 3700},
		{"171", "something new", HealthWatch, "Xid 171", 3700},
		{"a lot", "RESET_GPU", HealthResetNeeded, "an Xid without a number calls for a reset", 0},
	} {
		t.Run(tc.code+" "+tc.action, func(t *testing.T) {
			x := newXids(t)
			x.run(20)
			x.xid(tc.code, tc.action)
			x.slow()
			x.wantHealth(tc.class, tc.reason)
			if tc.over > 0 {
				x.run(tc.over)
				x.wantHealth(HealthOK, "")
			} else {
				x.run(7200)
				x.wantHealth(tc.class, tc.reason)
			}
		})
	}
}

// An error that was counted before this judge came is history: it is told, and
// does not look like one of now.
func TestOldXidIsNotNews(t *testing.T) {
	x := newXids(t)
	x.counts[[2]string{"79", "RESTART_BM"}] = 1
	x.counts[[2]string{"31", "RESTART_APP"}] = 9
	x.run(2)
	x.wantHealth(HealthWatch, "Xid 79 was counted before this process looked")
	x.run(600)
	x.wantHealth(HealthWatch, "Xid 79 was counted before this process looked")
	x.n.devices[0].SetValue(telemetry.GPURecoveryAction, 0)
	x.run(90)
	x.wantHealth(HealthOK, "") // the driver says that nothing is called for
	x.xid("79", "RESTART_BM")
	x.slow()
	x.wantHealth(HealthDrainNeeded, "Xid 79 calls for a reboot of the node")

	t.Run("told after a tick without its part", func(t *testing.T) {
		x := newXids(t)
		x.counts[[2]string{"79", "RESTART_BM"}] = 1
		x.second = 12
		x.run(10)
		x.wantHealth(HealthWatch, "Xid 79 was counted before this process looked")
	})
	t.Run("of a process that has just begun", func(t *testing.T) {
		x := newXids(t)
		x.n.start = t0.Add(-20 * time.Second)
		x.xid("79", "RESTART_BM")
		x.run(1)
		x.wantHealth(HealthDrainNeeded, "Xid 79 calls for a reboot of the node")
	})
}

// What mends a device ends the finding, and nothing else does.
func TestWhatClearsAnXid(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(x *xidStage)
		want string
	}{
		{"nothing", func(*xidStage) {}, HealthResetNeeded},
		{"a restart of the node's process", func(x *xidStage) { x.n.restart(x.at); clear(x.counts); x.second = 0 }, HealthResetNeeded},
		{"the device falls silent and is back", func(x *xidStage) { x.n.devices[0].SetLost(true); x.run(60); x.n.devices[0].SetLost(false) }, HealthResetNeeded},
		{"a reset", func(x *xidStage) { x.n.devices[0].SetGeneration(9) }, HealthOK},
		{"a start of the machine", func(x *xidStage) { x.n.restart(x.at); x.n.boot = "boot-2"; clear(x.counts); x.second = 0 }, HealthOK},
		{"the driver's word", func(x *xidStage) { x.n.devices[0].SetValue(telemetry.GPURecoveryAction, 0); x.run(3700) }, HealthOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newXids(t)
			x.run(20)
			x.xid("119", "RESET_GPU")
			x.slow()
			x.wantHealth(HealthResetNeeded, "Xid 119 calls for a reset")
			tc.do(x)
			x.run(100)
			if got := x.gpu(0).GetHealth().GetClass(); got != tc.want {
				t.Errorf("health %v, want %s", x.gpu(0).GetHealth(), tc.want)
			}
		})
	}
}

func TestXidAgainAfterReset(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reset func(x *xidStage)
		hours int
		want  string
	}{
		{"reset", func(x *xidStage) { x.n.devices[0].SetGeneration(9) }, 2, HealthDrainNeeded},
		{"start of the machine", func(x *xidStage) { x.n.restart(x.at); x.n.boot = "boot-2"; clear(x.counts); x.second = 0 }, 2, HealthDrainNeeded},
		{"more than a day later", func(x *xidStage) { x.n.devices[0].SetGeneration(9) }, 25, HealthResetNeeded},
		{"without one", func(*xidStage) {}, 2, HealthResetNeeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newXids(t)
			x.n.period = 15 * time.Second // a day has fewer frames so
			step := func(n int) {
				for range n {
					x.second = 0
					x.run(1)
				}
			}
			step(3)
			x.xid("119", "RESET_GPU")
			step(2)
			tc.reset(x)
			step(tc.hours * 240)
			x.xid("119", "RESET_GPU")
			step(2)
			if got := x.gpu(0).GetHealth().GetClass(); got != tc.want {
				t.Errorf("health %v, want %s", x.gpu(0).GetHealth(), tc.want)
			}
		})
	}
}

// Application errors are the application's, until those of different work come
// on one device.
func TestXidsOfDifferentWork(t *testing.T) {
	for _, tc := range []struct {
		name string
		of   []string
		want string
	}{
		{"one", []string{"a", "a", "a", "a"}, HealthWatch},
		{"two", []string{"a", "b", "b"}, HealthWatch},
		{"three", []string{"a", "b", "c"}, HealthDegraded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newXids(t)
			x.run(20)
			for _, who := range tc.of {
				x.n.devices[0].SetMembers([]*telemetry.Member{member(who)})
				x.xid("31", "RESTART_APP")
				x.slow()
				x.run(900)
				x.xid("43", "IGNORE")
			}
			x.xid("31", "RESTART_APP")
			x.slow()
			if got := x.gpu(0).GetHealth().GetClass(); got != tc.want {
				t.Errorf("health %v, want %s", x.gpu(0).GetHealth(), tc.want)
			}
		})
	}
}

// The worst finding gives class and reason; the others are evidence.
func TestHealthTellsTheWorstFirst(t *testing.T) {
	s := newSound(t)
	g := s.n.devices[0]
	set(g, map[telemetry.ID]float64{telemetry.GPURowRemapPending: 1, telemetry.GPUPCIeLinkWidth: 4, telemetry.GPUThrottleActiveHWThermal: 1})
	s.slow()
	s.wantHealth(HealthResetNeeded, "a row remap waits for a reset")
	if e := s.gpu(0).GetHealth().GetEvidence(); !slices.Equal(e, []string{"throttled: hw_thermal", "PCIe has 4 lanes, less than it could"}) {
		t.Errorf("evidence %q", e)
	}
	g.SetHung(telemetry.HungCall_builder{Call: "nvmlDeviceGetTemperature", ForMs: 900}.Build())
	s.run(1)
	s.wantHealth(HealthHung, "driver call nvmlDeviceGetTemperature has not returned")
	if e := s.gpu(0).GetHealth().GetEvidence(); len(e) != 3 {
		t.Errorf("what is known of a device that hangs: %q", e)
	}
}
