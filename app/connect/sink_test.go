package connect

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

const oneNode = `
name: one
rows: [{name: a, inlet_celsius: 25}]
nodes: [{name: n, row: a, model: H100-SXM5-80GB, gpus: 2}]
`

// What happens to a GPU is stored on the bus: by the driver's word and by the
// exporter's, each once, and as a sample of the frames.
func TestNodeSink(t *testing.T) {
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	open := func(user string) *bus.Conn {
		c, err := bus.Connect(bus.Options{InProcess: server, User: user})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		return c
	}
	watch := open(bus.UserCollector)
	defer watch.Close()
	if err := watch.EnsureStreams(ctx, bus.DefaultStreams()); err != nil {
		t.Fatal(err)
	}
	stored := make(chan telemetry.Event, 100)
	if _, err := watch.Events(func(_ string, e telemetry.Event) { stored <- e }); err != nil {
		t.Fatal(err)
	}
	xids := make(chan float64, 1000)
	if _, err := watch.Frames(func(_ string, data []byte) {
		var f telemetry.Frame
		if telemetry.DecodeFrame(data, &f) != nil {
			return
		}
		for _, s := range f.GetSamples() {
			if telemetry.ID(s.GetId()) == telemetry.GPUXidErrors && s.GetLabels()[0] == "79" {
				xids <- s.GetValue()
			}
		}
	}); err != nil {
		t.Fatal(err)
	}

	scenario, err := sim.ParseScenario([]byte(oneNode))
	if err != nil {
		t.Fatal(err)
	}
	world, err := sim.New(scenario, 0)
	if err != nil {
		t.Fatal(err)
	}
	source, err := world.Source("n")
	if err != nil {
		t.Fatal(err)
	}
	conn := open(telemetry.ExporterUser("n"))
	sink := NodeSink(conn, "n")
	e, err := exporter.New(exporter.Options{Node: "n", Source: source, Sink: sink, Period: exporter.MinPeriod})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(running) }()
	time.Sleep(3 * time.Second) // until it listens
	if err := world.SetFault("n", 1, sim.FaultLost, true); err != nil {
		t.Fatal(err)
	}
	seen := map[telemetry.EventKind]int{}
	for seen[telemetry.EventXid] == 0 || seen[telemetry.EventGPULost] == 0 {
		select {
		case v := <-stored:
			seen[v.Kind]++
			if v.Node != "n" || v.ID == "" || v.Kind == telemetry.EventXid && (v.Code != 79 || v.Action != exporter.ActionRestartNode) {
				t.Errorf("%+v", v)
			}
		case <-ctx.Done():
			t.Fatalf("stored: %v", seen)
		}
	}
	select {
	case n := <-xids:
		if n != 1 {
			t.Errorf("%g Xids in a frame", n)
		}
	case <-ctx.Done():
		t.Error("no frame with the Xid")
	}
	// What is told at the very end is stored too.
	if err := sink.Event(telemetry.Event{ID: "last", Node: "n", Kind: telemetry.EventGPUBack}); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	sink.End(slog.New(slog.DiscardHandler))
	conn.Close()
	for seen[telemetry.EventGPUBack] == 0 {
		select {
		case v := <-stored:
			seen[v.Kind]++
		case <-ctx.Done():
			t.Fatalf("the last event is not stored: %v", seen)
		}
	}
	if seen[telemetry.EventXid] != 1 || seen[telemetry.EventGPULost] != 1 {
		t.Errorf("stored: %v", seen)
	}
}
