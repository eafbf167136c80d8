package connect

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

type counts bus.Stats

func (c counts) Stats() bus.Stats { return bus.Stats(c) }

// TestMetrics: each count has its series, and so has a count of zero.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if err := Metrics(reg, counts{
		Connected: true, Reconnects: 1, PublishErrors: 2, Dropped: 3, Malformed: 4, OutboxQueued: 5, OutboxDropped: 6,
		AsyncErrors: map[bus.ErrorKind]uint64{bus.ErrorPermission: 7, bus.ErrorSlowConsumer: 8},
	}); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, f := range []struct {
		id     telemetry.ID
		series string
	}{
		{telemetry.SelfBusConnected, "evenkeel_bus_connected 1"},
		{telemetry.SelfBusErrors, `evenkeel_bus_errors_total{kind="auth"} 0
evenkeel_bus_errors_total{kind="other"} 0
evenkeel_bus_errors_total{kind="permission"} 7
evenkeel_bus_errors_total{kind="slow_consumer"} 8`},
		{telemetry.SelfBusMessagesLost, `evenkeel_bus_messages_lost_total{why="malformed"} 4
evenkeel_bus_messages_lost_total{why="not_sent"} 2
evenkeel_bus_messages_lost_total{why="outbox_full"} 6
evenkeel_bus_messages_lost_total{why="slow"} 3`},
		{telemetry.SelfBusPending, "evenkeel_bus_pending 5"},
		{telemetry.SelfBusReconnects, "evenkeel_bus_reconnects_total 1"},
	} {
		row := telemetry.RowOf(f.id)
		want.WriteString("# HELP " + row.Name + " " + row.Help + "\n# TYPE " + row.Name + " " + string(row.Type) + "\n" + f.series + "\n")
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want.String())); err != nil {
		t.Error(err)
	}
	if err := Metrics(reg, counts{}); err == nil {
		t.Error("registered twice")
	}
}

// TestMetricsFollowTheConnection: a lost server shows.
func TestMetricsFollowTheConnection(t *testing.T) {
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			server.Shutdown()
		}
	})
	conn, err := bus.Connect(bus.Options{InProcess: server, User: telemetry.ExporterUser("n")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	if err := Metrics(reg, conn); err != nil {
		t.Fatal(err)
	}
	value := func(name, label string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				if f.GetName() == name && (label == "" || m.Label[0].GetValue() == label) {
					return m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 10 s: %s", what)
			}
		}
	}
	if value("evenkeel_bus_connected", "") != 1 {
		t.Error("not connected")
	}
	server.Shutdown()
	stopped = true
	eventually("the loss shows", func() bool { return value("evenkeel_bus_connected", "") == 0 })
}
