package sim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A source hears what happens to the GPUs of its node after it began to listen,
// at once, and nothing else.
func TestSourceHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := loadWorld(t, "hot-row")
		set := func(node string, slot int, f Fault, on bool) {
			t.Helper()
			if err := w.SetFault(node, slot, f, on); err != nil {
				t.Fatal(err)
			}
		}
		s, found := openNode(t, w, "a-1")
		ears := s.(exporter.Notifier)
		if _, _, err := ears.Wait(time.Second); exporter.FaultOf(err) != exporter.NotInitialized {
			t.Errorf("wait before it listens: %v", err)
		}
		set("a-1", 0, FaultLost, true) // before it listens
		set("a-1", 1, FaultHung, true)
		err := ears.Listen()
		if err == nil || !strings.Contains(err.Error(), found[0].UUID) || !strings.Contains(err.Error(), found[1].UUID) || strings.Contains(err.Error(), found[2].UUID) {
			t.Errorf("listen: %v", err)
		}
		began := time.Now()
		if n, ok, err := ears.Wait(time.Second); ok || err != nil || time.Since(began) != time.Second {
			t.Errorf("%+v, %v, %v after %v", n, ok, err, time.Since(began))
		}
		began = time.Now()
		time.AfterFunc(300*time.Millisecond, func() {
			set("a-2", 3, FaultLost, true) // another node's
			set("a-1", 1, FaultLost, true) // not listened to
			set("a-1", 3, FaultLost, true)
		})
		n, ok, err := ears.Wait(time.Second)
		if want := (exporter.Notice{UUID: found[3].UUID, Kind: telemetry.EventXid, Code: 79, Instance: exporter.NoInstance}); n != want || !ok || err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("%+v, %v, %v after %v, want %+v", n, ok, err, time.Since(began), want)
		}
		set("a-1", 0, FaultLost, false)
		if err := ears.Listen(found[0].UUID); err == nil || strings.Contains(err.Error(), found[0].UUID) {
			t.Errorf("listen to one that is back: %v", err)
		}
		set("a-1", 0, FaultLost, true)
		if n, ok, _ := ears.Wait(0); !ok || n.UUID != found[0].UUID {
			t.Errorf("%+v, %v", n, ok)
		}
		ended := make(chan error, 1)
		go func() {
			_, _, err := ears.Wait(time.Hour)
			ended <- err
		}()
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; exporter.FaultOf(err) != exporter.NotInitialized {
			t.Errorf("wait after the end: %v", err)
		}
	})
}
