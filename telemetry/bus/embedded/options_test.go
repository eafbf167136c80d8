package embedded

import (
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Ours and the documented server sync what they acknowledge, let no slow reader
// hold up who speaks, and cut one that does not read.
func TestServersSyncAndDoNotStall(t *testing.T) {
	o, err := Options{StoreDir: t.TempDir()}.server()
	if err != nil {
		t.Fatal(err)
	}
	if !o.SyncAlways || !o.NoFastProducerStall || o.WriteDeadline <= 0 {
		t.Errorf("sync %t, no stall %t, write deadline %s", o.SyncAlways, o.NoFastProducerStall, o.WriteDeadline)
	}
	conf, err := bus.ServerConfig(bus.ServerOptions{Name: "x", Port: 4222, StoreDir: "/tmp/x", Users: []bus.User{{Name: bus.UserReader, Password: "p"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"sync_interval: always", "no_fast_producer_stall: true", "write_deadline: \"10s\""} {
		if !strings.Contains(conf, line) {
			t.Errorf("the documented server does not say %q", line)
		}
	}
}
