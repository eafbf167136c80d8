package exporter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func xidNotice(d *device, code int) Notice {
	return Notice{UUID: d.id.UUID, Kind: telemetry.EventXid, Code: code, Instance: NoInstance}
}

// One Xid is one event at once, one series and one sample, all under the same
// name.
func TestXid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		e, sink := start(t, w)
		ticks(5)
		if n := sink.count(); n != 0 {
			t.Fatalf("%d events of a sound node: %v", n, sink.list())
		}
		at := time.Now()
		n := xidNotice(w.gpus[1], 79)
		n.Instance = 3
		w.notices <- n
		synctest.Wait()
		list := sink.told(telemetry.EventXid)
		if len(list) != 1 || !sink.eventAt[0].Equal(at) {
			t.Fatalf("events %v at %v, want one at %v", list, sink.eventAt, at)
		}
		v := list[0]
		if v.Node != "node-1" || v.Cluster != "lab" || v.BootID == "" || v.Incarnation == 0 || !strings.HasPrefix(v.ID, v.BootID+"-") ||
			v.UUID != w.gpus[1].id.UUID || v.PCI != w.gpus[1].id.PCI || *v.GI != 3 || v.Code != 79 || v.Class != ClassHardware ||
			v.Action != "RESTART_BM" || v.Count != 1 || !v.Time.Equal(at) || v.Detail == "" {
			t.Errorf("event %+v", v)
		}
		ticks(1)
		f := sink.last()
		found := 0
		for _, s := range f.GetSamples() {
			if telemetry.ID(s.GetId()) == telemetry.GPUXidErrors {
				found++
				if s.GetUuid() != v.UUID || s.GetValue() != 1 || fmt.Sprint(s.GetLabels()) != "[79 RESTART_BM]" {
					t.Errorf("sample %v", s)
				}
			}
		}
		if found != 1 {
			t.Errorf("%d samples of Xids in the next frame, want 1", found)
		}
		if got, ok := series(t, e, `gpu_xid_errors_total{action="RESTART_BM",node="node-1",uuid="`+v.UUID+`",xid="79"}`); !ok || got != 1 {
			t.Errorf("series %g, %v", got, ok)
		}
		if got, ok := series(t, e, `evenkeel_events_total{kind="xid"}`); !ok || got != 1 {
			t.Errorf("events counted %g, %v", got, ok)
		}
	})
}

// A storm is one event a second that says how many, and hides nothing else.
func TestXidStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		e, sink := start(t, w)
		ticks(2)
		const seconds, rate = 5, 2000
		for range seconds {
			for range rate {
				w.notices <- xidNotice(w.gpus[0], 31)
			}
			w.notices <- xidNotice(w.gpus[0], 94)
			w.notices <- xidNotice(w.gpus[1], 31)
			ticks(1)
		}
		ticks(3)
		sum, events := map[string]uint64{}, map[string]int{}
		for _, v := range sink.told(telemetry.EventXid) {
			key := fmt.Sprint(v.UUID[len(v.UUID)-1:], " ", v.Code)
			sum[key] += v.Count
			events[key]++
		}
		for key, want := range map[string]uint64{"0 31": seconds * rate, "0 94": seconds, "1 31": seconds} {
			if sum[key] != want || events[key] > seconds+2 {
				t.Errorf("%s: %d in %d events, want %d in at most %d", key, sum[key], events[key], want, seconds+2)
			}
		}
		if got, _ := series(t, e, `gpu_xid_errors_total{action="RESTART_APP",node="node-1",uuid="`+w.gpus[0].id.UUID+`",xid="31"}`); got != seconds*rate {
			t.Errorf("%g Xids counted, want %d", got, seconds*rate)
		}
		if len(e.events.bursts) != 0 {
			t.Errorf("%d kinds remembered after the storm", len(e.events.bursts))
		}
	})
}

// A driver that makes codes up does not fill the memory or the exposition.
func TestXidsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		e, sink := start(t, w)
		ticks(2)
		for code := range 3000 {
			w.notices <- xidNotice(w.gpus[0], 1000+code)
		}
		ticks(5)
		known, other := 0, 0.0
		e.events.xidCounts(func(_ string, n float64, xid, action string) {
			if action != ActionSupport {
				t.Errorf("Xid %s: %s", xid, action)
			}
			if known++; xid == "other" {
				other = n
			}
		})
		if known != maxXids+1 || other != 3000-maxXids {
			t.Errorf("%d series, %g of other codes", known, other)
		}
		told := len(sink.told(telemetry.EventXid))
		dropped, _ := series(t, e, `evenkeel_events_dropped_total{why="too_many"}`)
		full, _ := series(t, e, `evenkeel_events_dropped_total{why="queue_full"}`)
		if told == 0 || told > maxBursts || float64(told)+dropped+full != 3000 {
			t.Errorf("%d events, %g and %g dropped, want 3000 in all", told, dropped, full)
		}
	})
}

func TestXidTable(t *testing.T) {
	last := -1
	classes := map[string]bool{ClassApplication: true, ClassHardware: true, ClassFabric: true, ClassSoftware: true, ClassInformational: true, ClassUnknown: true}
	for _, x := range xids {
		if x.first <= last || x.last < x.first || !classes[x.class] || x.action == "" || x.what == "" {
			t.Errorf("row %+v after %d", x, last)
		}
		last = x.last
	}
	for code, want := range map[int]string{
		13: "application RESTART_APP", 31: "application RESTART_APP", 43: "informational IGNORE", 48: "hardware WORKFLOW_XID_48",
		63: "informational IGNORE", 64: "hardware RESET_GPU", 74: "fabric WORKFLOW_NVLINK_ERR", 79: "hardware RESTART_BM",
		94: "application RESTART_APP", 95: "hardware RESET_GPU", 119: "hardware RESET_GPU", 147: "fabric WORKFLOW_NVLINK5_ERR",
		154: "informational XID_154", 61: "unknown CONTACT_SUPPORT", 999: "unknown CONTACT_SUPPORT", 0: "unknown CONTACT_SUPPORT", -1: "unknown CONTACT_SUPPORT",
	} {
		if x := xidOf(code); x.class+" "+x.action != want {
			t.Errorf("Xid %d: %s %s, want %s", code, x.class, x.action, want)
		}
	}
}

// What the exporter finds out itself is told once each way.
func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		_, sink := start(t, w)
		ticks(5)
		release := make(chan struct{})
		hung, lost := w.gpus[1], w.gpus[2]
		hung.set(func(d *device) { d.hang["Power"] = release })
		lost.set(func(d *device) { d.err["*"], d.findErr = gone(Lost), gone(Lost) })
		ticks(40)
		close(release)
		lost.set(func(d *device) { d.err, d.findErr = map[string]error{}, nil })
		ticks(20)
		for _, c := range []struct {
			kind   telemetry.EventKind
			d      *device
			class  string
			detail string
		}{
			{telemetry.EventGPUHung, hung, ClassHardware, "nvmlDeviceGetPowerUsage has not returned for 1s"},
			{telemetry.EventGPULost, lost, ClassHardware, "test: lost"},
		} {
			list := sink.told(c.kind)
			if len(list) != 1 {
				t.Fatalf("%s: told %d times: %v", c.kind, len(list), list)
			}
			if v := list[0]; v.UUID != c.d.id.UUID || v.PCI != c.d.id.PCI || v.Class != c.class || v.Detail != c.detail {
				t.Errorf("%s: %+v", c.kind, v)
			}
		}
		back := map[string]string{}
		for _, v := range sink.told(telemetry.EventGPUBack) {
			if back[v.UUID] != "" {
				t.Errorf("back twice: %+v", v)
			}
			back[v.UUID] = v.Detail
		}
		if len(back) != 2 || !strings.Contains(back[hung.id.UUID], "hung for 4") || !strings.Contains(back[lost.id.UUID], "lost for 4") {
			t.Errorf("back: %v", back)
		}
		if n := sink.count(); n != 4 {
			t.Errorf("%d events: %v", n, sink.list())
		}
		named := 0
		w.ears(func(w *world) {
			for _, anew := range w.listened {
				named += len(anew)
			}
		})
		if named != 2 {
			t.Errorf("%d GPUs listened to anew, want those that came back", named)
		}
	})
}

// A GPU that answers slowly now and then is not told of each time.
func TestFlappingGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		_, sink := start(t, w)
		ticks(3)
		for range 20 {
			w.gpus[0].set(func(d *device) { d.slow = 800 * time.Millisecond })
			ticks(12)
			w.gpus[0].set(func(d *device) { d.slow = 0 })
			ticks(3)
		}
		if n := sink.count(); n > 2 {
			t.Errorf("%d events: %v", n, sink.list())
		}
		if len(sink.told(telemetry.EventGPUHung)) == 0 {
			t.Error("calls that take the whole tick are not told")
		}
	})
}

func TestDriverEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		_, sink := start(t, w)
		ticks(5)
		all := func(err error) {
			w.fail(err)
			for _, d := range w.gpus {
				d.set(func(d *device) { d.err["*"] = err })
			}
		}
		for range 2 {
			all(gone(NotLoaded))
			ticks(60)
			all(nil)
			ticks(40)
		}
		down, up := sink.told(telemetry.EventDriverDown), sink.told(telemetry.EventDriverUp)
		if len(down) != 2 || len(up) != 2 || sink.count() != 4 {
			t.Fatalf("events %v", sink.list())
		}
		if down[0].Class != ClassSoftware || !strings.Contains(down[0].Detail, "not_loaded") || !strings.Contains(up[0].Detail, "down for") || down[0].UUID != "" {
			t.Errorf("down %+v, up %+v", down[0], up[0])
		}
	})
}

// A driver that is there from the start is no event; one that is not, after a
// grace.
func TestNoDriverAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.openErr = gone(NoLibrary)
		_, sink := start(t, w)
		ticks(9)
		if sink.count() != 0 {
			t.Errorf("events within the grace: %v", sink.list())
		}
		ticks(30)
		if list := sink.told(telemetry.EventDriverDown); len(list) != 1 || sink.count() != 1 {
			t.Errorf("events %v", sink.list())
		}
		w.fail(nil)
		ticks(40)
		if list := sink.told(telemetry.EventDriverUp); len(list) != 1 || sink.count() != 2 {
			t.Errorf("events %v", sink.list())
		}
	})
}

func TestRecoveryAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		d, bare := w.gpus[0], w.gpus[1]
		d.plain[FieldRecoveryAction] = 1 // since before this process
		delete(bare.plain, FieldRecoveryAction)
		_, sink := start(t, w)
		ticks(20)
		if sink.count() != 0 {
			t.Fatalf("what was so from the start is told as new: %v", sink.list())
		}
		d.set(func(d *device) { d.plain[FieldRecoveryAction] = 2 })
		w.notices <- Notice{UUID: d.id.UUID, Kind: telemetry.EventRecoveryAction, Instance: NoInstance}
		w.notices <- Notice{UUID: bare.id.UUID, Kind: telemetry.EventRecoveryAction, Instance: NoInstance}
		ticks(1)
		f := sink.last()
		if v := number(t, gpuOf(t, f, d), telemetry.GPURecoveryAction); v != 2 {
			t.Errorf("recovery action %g a tick after the driver spoke of it", v)
		}
		ticks(40)
		list := sink.told(telemetry.EventRecoveryAction)
		if len(list) != 2 {
			t.Fatalf("events %v", list)
		}
		for _, v := range list {
			if v.UUID == d.id.UUID && (v.Code != 2 || v.Action != ActionRestartNode || v.Class != ClassHardware || !strings.Contains(v.Detail, "reboot the node, was 1")) {
				t.Errorf("event %+v", v)
			}
		}
	})
}

// Ids are of one process and boot: no two of the same boot are alike.
func TestEventIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]bool{}
		for range 3 {
			w := newWorld(1)
			sink := &recorder{t: t}
			e, err := New(Options{Node: "n", Source: w, Sink: sink})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- e.Run(ctx) }()
			time.Sleep(3 * time.Second)
			for code := range 5 {
				w.notices <- xidNotice(w.gpus[0], 1+code)
			}
			time.Sleep(time.Second)
			cancel()
			<-ended
			if sink.count() != 5 {
				t.Fatalf("%d events", sink.count())
			}
			for _, v := range sink.list() {
				if seen[v.ID] {
					t.Errorf("id %s twice", v.ID)
				}
				seen[v.ID] = true
			}
			time.Sleep(time.Millisecond) // to start again takes longer
		}
	})
}

// A sink that does not take events costs events, counted, and no tick.
func TestSinkWithoutRoomForEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		e, sink := start(t, w)
		ticks(2)
		sink.mu.Lock()
		sink.block = make(chan struct{})
		sink.mu.Unlock()
		before := len(sink.all())
		for code := range maxQueued + 50 {
			w.notices <- xidNotice(w.gpus[0], 1+code)
		}
		ticks(10)
		if n := len(sink.all()) - before; n != 10 {
			t.Errorf("%d frames in 10 ticks", n)
		}
		full, _ := series(t, e, `evenkeel_events_dropped_total{why="queue_full"}`)
		if full != 49 { // one is with the sink
			t.Errorf("%g events dropped, want 49", full)
		}
		sink.mu.Lock()
		close(sink.block)
		sink.block, sink.eventErr = nil, fmt.Errorf("no")
		sink.mu.Unlock()
		ticks(1)
		refused, _ := series(t, e, `evenkeel_events_dropped_total{why="not_taken"}`)
		if refused != maxQueued+1 {
			t.Errorf("%g events refused, want %d", refused, maxQueued+1)
		}
	})
}

// Whatever the driver answers, it is asked again a while later and not at once.
func TestListenerDoesNotSpin(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(*world)
		listens, waits [2]int // at least, at most in 100 s
	}{
		{"all well", func(*world) {}, [2]int{1, 3}, [2]int{18, 24}},
		{"a GPU that cannot be listened to", func(w *world) { w.deaf = gone(Lost) }, [2]int{5, 12}, [2]int{18, 26}},
		{"no function for it", func(w *world) { w.deaf = gone(MissingSymbol) }, [2]int{4, 12}, [2]int{0, 0}},
		{"waits fail", func(w *world) { w.waitErr = gone(Lost) }, [2]int{4, 12}, [2]int{4, 12}},
		{"waits return at once", func(w *world) { w.hasty = true }, [2]int{1, 3}, [2]int{500, 1010}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				c.change(w)
				_, sink := start(t, w)
				ticks(100)
				w.ears(func(w *world) {
					if n := len(w.listened); n < c.listens[0] || n > c.listens[1] {
						t.Errorf("registered %d times, want %v", n, c.listens)
					}
					if w.waits < c.waits[0] || w.waits > c.waits[1] {
						t.Errorf("waited %d times, want %v", w.waits, c.waits)
					}
				})
				if n := len(sink.all()); n != 100 {
					t.Errorf("%d frames in 100 s", n)
				}
				// And it recovers without a restart.
				w.ears(func(w *world) { w.deaf, w.waitErr, w.hasty = nil, nil, false })
				ticks(31)
				w.notices <- xidNotice(w.gpus[0], 31)
				ticks(1)
				if n := len(sink.told(telemetry.EventXid)); n != 1 {
					t.Errorf("%d events after it recovered", n)
				}
			})
		})
	}
}

// A wait that never returns is named, and holds up neither ticks nor the end.
func TestHungWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		e, sink := start(t, w)
		ticks(3)
		release := make(chan struct{})
		w.ears(func(w *world) { w.waitHang = release })
		before := len(sink.all())
		ticks(30)
		if n := len(sink.all()) - before; n != 30 {
			t.Errorf("%d frames in 30 s", n)
		}
		if v, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="nvmlEventSetWait_v2",node="node-1",uuid=""}`); !ok || v < 20 {
			t.Errorf("hung for %g s (%v)", v, ok)
		}
		w.ears(func(w *world) { w.waitHang = nil })
		close(release)
		ticks(6) // its wait begins now
		if _, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="nvmlEventSetWait_v2",node="node-1",uuid=""}`); ok {
			t.Error("still hung")
		}
		w.ears(func(w *world) { w.waitErr = gone(Hung) }) // a source that finds out itself
		ticks(30)
		if v, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="nvmlEventSetWait_v2",node="node-1",uuid=""}`); !ok || v < 20 {
			t.Errorf("by the source's word hung for %g s (%v)", v, ok)
		}
		w.ears(func(w *world) { w.waitErr = nil })
		ticks(40)
		if _, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="nvmlEventSetWait_v2",node="node-1",uuid=""}`); ok {
			t.Error("still hung")
		}
	})
}

// In compat mode the last Xid of each GPU shows by its code; a code that is
// counted among others does too.
func TestDCGMShowsTheLastXid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		e, err := New(Options{Node: "node-1", Cluster: "lab", Source: w, Compat: CompatDCGM})
		if err != nil {
			t.Fatal(err)
		}
		runs(t, e, &recorder{t: t})
		ticks(2)
		last := func() (list []string) {
			_, text := get(t, e.Handler(), "/metrics")
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "DCGM_FI_DEV_XID_ERRORS{") {
					list = append(list, line[strings.LastIndex(line, " ")+1:len(line)-1])
				}
			}
			return list
		}
		if got := last(); !slices.Equal(got, []string{"0", "0"}) {
			t.Errorf("%v before any", got)
		}
		for _, code := range []int{62, 45, 31, 45} {
			w.notices <- xidNotice(w.gpus[1], code)
		}
		ticks(1)
		if got := last(); !slices.Equal(got, []string{"0", "45"}) {
			t.Errorf("%v after a 45", got)
		}
		for code := range maxXids + 10 {
			w.notices <- xidNotice(w.gpus[0], 500+code)
		}
		ticks(1)
		if got := last(); !slices.Equal(got, []string{"637", "45"}) {
			t.Errorf("%v after many", got)
		}
	})
}

func TestUnknownCompat(t *testing.T) {
	if _, err := New(Options{Node: "n", Source: newWorld(1), Compat: "other"}); err == nil {
		t.Error("taken")
	}
}
