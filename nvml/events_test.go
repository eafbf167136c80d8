//go:build cgo && linux

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// notices is what came of listening and of each event that was raised.
type notices struct {
	Listen exporter.Fault
	Heard  []exporter.Notice
	Early  bool // a wait for nothing was over too soon
	Wait   exporter.Fault
}

// helpHear listens, has events raised and says what it heard.
func helpHear(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	if _, _, err := s.Wait(time.Second); exporter.FaultOf(err) != exporter.NotInitialized && exporter.FaultOf(err) != exporter.MissingSymbol {
		return fmt.Errorf("wait before listening: %w", err)
	}
	var x notices
	if err := s.Listen(); err != nil {
		x.Listen = exporter.FaultOf(err)
		return errors.Join(out.Encode(x), s.Close())
	}
	began := time.Now()
	if n, ok, err := s.Wait(700 * time.Millisecond); ok || err != nil {
		return fmt.Errorf("heard %+v, %w before anything was raised", n, err)
	}
	x.Early = time.Since(began) < 690*time.Millisecond
	for _, event := range strings.Split(os.Getenv("EVENKEEL_TEST_EVENTS"), ";") {
		args := append([]string{os.Getenv("EVENKEEL_STANDIN_SHM"), "event"}, strings.Fields(event)...)
		if text, err := exec.Command(os.Getenv("EVENKEEL_TEST_POKE"), args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		n, ok, err := s.Wait(5 * time.Second)
		if x.Wait = exporter.FaultOf(err); !ok {
			n = exporter.Notice{}
		}
		for _, f := range found {
			n.UUID = strings.ReplaceAll(n.UUID, f.UUID, fmt.Sprint("GPU ", f.Index))
		}
		x.Heard = append(x.Heard, n)
	}
	// What is registered is not registered again, unless it was gone.
	calls := []uint64{s.Calls()}
	for _, anew := range [][]string{nil, {found[0].UUID}} {
		if err := s.Listen(anew...); err != nil {
			return err
		}
		calls = append(calls, s.Calls())
	}
	if again, one := calls[1]-calls[0], calls[2]-calls[1]; one <= again {
		return fmt.Errorf("%d calls to listen again, %d with a GPU that was gone", again, one)
	}
	// It is listened to anew after the library was closed and opened.
	if err := s.Close(); err != nil {
		return err
	}
	if _, _, err := s.Wait(time.Second); exporter.FaultOf(err) != exporter.NotInitialized {
		return fmt.Errorf("wait after the end: %w", err)
	}
	if err := s.Open(); err != nil {
		return err
	}
	if _, err := s.Devices(); err != nil {
		return err
	}
	return errors.Join(s.Listen(), s.Close(), out.Encode(x))
}

// Each kind of event is told with what the driver knows of it, by whichever
// functions it has; without them the process lives and says so.
func TestEvents(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	raised := fmt.Sprintf("2 8 79 %d; 1 8 94 5; 0 2 0 %d; 3 32768 0 %d; 3 16384 0 %d", exporter.NoInstance, exporter.NoInstance, exporter.NoInstance, exporter.NoInstance)
	none := exporter.NoInstance
	told := []exporter.Notice{
		{UUID: "GPU 2", Kind: telemetry.EventXid, Code: 79, Instance: none}, {UUID: "GPU 1", Kind: telemetry.EventXid, Code: 94, Instance: 5},
		{UUID: "GPU 0", Kind: telemetry.EventECC, Instance: none, Detail: "double-bit ECC error"},
		{UUID: "GPU 3", Kind: telemetry.EventRecoveryAction, Instance: none, Detail: "the driver asks for another action"},
		{UUID: "GPU 3", Kind: telemetry.EventGPULost, Instance: none, Detail: "the driver says that the GPU is unavailable"},
	}
	for _, c := range []struct {
		omit   []string
		listen exporter.Fault
		whole  bool // instances are not told
	}{
		{nil, "", false},
		{[]string{"nvmlEventSetFree"}, "", false},
		{[]string{"nvmlEventSetWait_v2"}, "", true},
		{[]string{"nvmlEventSetWait_v2", "nvmlEventSetWait"}, exporter.MissingSymbol, false},
		{[]string{"nvmlEventSetCreate"}, exporter.MissingSymbol, false},
		{[]string{"nvmlDeviceRegisterEvents"}, exporter.MissingSymbol, false},
		{[]string{"nvmlDeviceGetSupportedEventTypes"}, exporter.MissingSymbol, false},
	} {
		x := help[notices](t, "hear", standin(t, c.omit...), path, "EVENKEEL_TEST_POKE="+pokeTool(t), "EVENKEEL_TEST_EVENTS="+raised)[0]
		if x.Listen != c.listen || x.Early || x.Wait != "" {
			t.Errorf("without %v: %+v", c.omit, x)
		}
		if c.listen != "" {
			continue
		}
		if len(x.Heard) != len(told) {
			t.Fatalf("without %v: heard %+v", c.omit, x.Heard)
		}
		for i, n := range x.Heard {
			want := told[i]
			if c.whole {
				want.Instance = none
			}
			if n != want {
				t.Errorf("without %v: heard %+v, want %+v", c.omit, n, want)
			}
		}
	}
}

// The exporter survives a driver without functions for events.
func TestExporterWithoutEvents(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	r := runExporter(t, standin(t, "nvmlEventSetWait_v2", "nvmlEventSetWait"), path)
	r.until("it cannot listen", func(l line) bool { return l.What == "listen" && strings.Contains(l.Error, "missing_symbol") })
	r.allUp(4)
}

// A GPU that is lost is told by its Xid and by the exporter; the others go on to
// be heard, and it too when it is back.
func TestEventsOfALostGPU(t *testing.T) {
	t.Parallel()
	library, uuids := standin(t), uuidsOf(t, h100) // before the world's clock runs
	path, _ := serve(t, h100, "events: [{at: 5s, for: 5s, gpu: n/3, fault: lost}]\n")
	r := runExporter(t, library, path)
	r.heard()
	if e := r.event(telemetry.EventXid, 79); e.UUID != uuids[3] || e.Action != "RESTART_BM" {
		t.Errorf("%+v", e)
	}
	if e := r.event(telemetry.EventGPULost, 0); e.UUID != uuids[3] || !strings.Contains(e.Detail, "lost (code 15)") {
		t.Errorf("%+v", e)
	}
	r.until("the others are listened to without it", func(l line) bool {
		return l.What == "listen" && strings.Contains(l.Error, uuids[3]) && !strings.Contains(l.Error, uuids[0])
	})
	poke(t, path, "event", 0, 8, 13, whole)
	if e := r.event(telemetry.EventXid, 13); e.UUID != uuids[0] {
		t.Errorf("%+v", e)
	}
	if e := r.event(telemetry.EventGPUBack, 0); e.UUID != uuids[3] {
		t.Errorf("%+v", e)
	}
	r.heard()
	poke(t, path, "event", 3, 8, 94, whole)
	if e := r.event(telemetry.EventXid, 94); e.UUID != uuids[3] {
		t.Errorf("%+v", e)
	}
	for _, kind := range []telemetry.EventKind{telemetry.EventGPULost, telemetry.EventGPUBack} {
		if n := r.count(kind); n != 1 {
			t.Errorf("%s told %d times", kind, n)
		}
	}
}

// A GPU that hangs does not keep the others from being heard.
func TestEventsWhileAGPUHangs(t *testing.T) {
	t.Parallel()
	library, uuids := standin(t), uuidsOf(t, h100) // before the world's clock runs
	path, _ := serve(t, h100, "events: [{at: 5s, for: 6s, gpu: n/1, fault: hung}]\n")
	r := runExporter(t, library, path)
	r.heard()
	if e := r.event(telemetry.EventGPUHung, 0); e.UUID != uuids[1] || !strings.HasPrefix(e.Detail, "nvml") {
		t.Errorf("%+v", e)
	}
	poke(t, path, "event", 2, 8, 31, whole)
	if e := r.event(telemetry.EventXid, 31); e.UUID != uuids[2] {
		t.Errorf("%+v", e)
	}
	if r.count(telemetry.EventGPUBack) != 0 {
		t.Error("the GPU was back before the others were heard")
	}
	if e := r.event(telemetry.EventGPUBack, 0); e.UUID != uuids[1] {
		t.Errorf("%+v", e)
	}
}

// helpRegister listens while a GPU hangs.
func helpRegister(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	hangs := func() bool {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = found[1].Device.Power()
		}()
		select {
		case <-done:
			return false
		case <-time.After(300 * time.Millisecond):
			return true
		}
	}
	for deadline := time.Now().Add(20 * time.Second); !hangs(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("the GPU does not hang")
		}
	}
	for n := range 2 { // the second attempt joins the first; both return though the call does not
		err = s.Listen()
		if exporter.FaultOf(err) != exporter.Hung || !strings.Contains(err.Error(), found[1].UUID) || strings.Contains(err.Error(), found[2].UUID) {
			return fmt.Errorf("listen %d: %w", n, err)
		}
	}
	if exporter.FaultOf(s.Close()) != exporter.Hung {
		return errors.New("closed under a registration")
	}
	// It is let go of, and all can be heard.
	if err := s.Open(); err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if found, err = s.Devices(); err != nil {
			return err
		}
		err := s.Listen()
		if err == nil && found[1].Err == nil {
			return errors.Join(out.Encode("heard"), s.Close())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after the hang: %w", err)
		}
	}
}

func TestRegistrationThatHangs(t *testing.T) {
	t.Parallel()
	library := standin(t) // before the world's clock runs
	path, _ := serve(t, h100, "events: [{at: 4s, for: 12s, gpu: n/1, fault: hung}]\n")
	if got := help[string](t, "register", library, path); len(got) != 1 || got[0] != "heard" {
		t.Errorf("%q", got)
	}
}

// The driver goes and comes; both are told once, and what happens then is heard.
func TestEventsWhenTheDriverGoesAndComes(t *testing.T) {
	t.Parallel()
	scenario, err := sim.ParseScenario(fmt.Appendf(nil, quick, h100))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "world")
	stop := serveAt(t, scenario, path)
	r := runExporter(t, standin(t), path)
	r.heard()
	poke(t, path, "event", 0, 8, 31, whole)
	r.event(telemetry.EventXid, 31)
	stop()
	if e := r.event(telemetry.EventDriverDown, 0); !strings.Contains(e.Detail, "not_loaded") && !strings.Contains(e.Detail, "not_initialized") {
		t.Errorf("%+v", e)
	}
	serveAt(t, scenario, path)
	r.event(telemetry.EventDriverUp, 0)
	r.heard()
	poke(t, path, "event", 2, 8, 48, whole)
	r.event(telemetry.EventXid, 48)
	if down, up := r.count(telemetry.EventDriverDown), r.count(telemetry.EventDriverUp); down != 1 || up != 1 {
		t.Errorf("driver down %d times and up %d times", down, up)
	}
	if n := r.count(telemetry.EventGPULost) + r.count(telemetry.EventGPUHung); n != 0 {
		t.Errorf("%d events of GPUs for a driver that was gone", n)
	}
}

// Every call of the library hangs: each GPU is named, and all is well when it
// lets go.
func TestLibraryThatHangs(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	r := runExporter(t, standin(t), path)
	r.heard()
	r.allUp(4)
	poke(t, path, "world", "library_hang", 1)
	r.until("every GPU hangs", func(l line) bool {
		n := 0
		for i, call := range l.Hung {
			if call != "" && !l.Up[i] {
				n++
			}
		}
		return n == 4
	})
	poke(t, path, "world", "library_hang", 0)
	r.allUp(4)
	poke(t, path, "event", 1, 8, 45, whole)
	r.event(telemetry.EventXid, 45)
}

// A driver that takes its time, and one of another version than the library: the
// exporter says so meanwhile, and needs no restart.
func TestInitThatIsSlowOrRefused(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	poke(t, path, "world", "init_code", 18)
	r := runExporter(t, standin(t), path)
	r.until("the versions differ", func(l line) bool { return l.Fault == string(exporter.Mismatch) })
	poke(t, path, "world", "init_delay_ms", 7000)
	poke(t, path, "world", "init_code", 0)
	r.until("the start hangs", func(l line) bool { return l.Fault == string(exporter.Hung) })
	r.allUp(4)
	r.heard()
}
