package attribution_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution"
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// frames is a Sink that keeps who holds GPU 0, frame by frame, where it is told.
type frames struct {
	mu   sync.Mutex
	said []string
	seen chan struct{}
}

func (f *frames) Frame(data []byte) error {
	var frame telemetry.Frame
	if err := telemetry.DecodeFrame(data, &frame); err != nil {
		return err
	}
	if !frame.GetHasLinkPart() || len(frame.GetGpus()) == 0 {
		return nil
	}
	var members []string
	for _, m := range frame.GetGpus()[0].GetMembers() {
		members = append(members, m.GetKind()+" "+m.GetWorkload()+" "+m.GetName())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := strings.Join(members, ", "); len(f.said) == 0 || f.said[len(f.said)-1] != now {
		f.said = append(f.said, now)
		f.seen <- struct{}{}
	}
	return nil
}

// TestExporterTellsWhoHoldsAGPU: a real process claims a GPU of a world; the
// exporter's frames name it and its workload, and nobody once it has ended.
func TestExporterTellsWhoHoldsAGPU(t *testing.T) {
	t.Parallel()
	scenario, err := sim.LoadScenario("blocked-air")
	if err != nil {
		t.Fatal(err)
	}
	world, err := sim.New(scenario, 0)
	if err != nil {
		t.Fatal(err)
	}
	source, err := world.Source("gpu-1")
	if err != nil {
		t.Fatal(err)
	}
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	if err := world.Claim("gpu-1", 0, sim.Claim{PID: run.PID, Start: run.Start, Share: 0.5, MemoryBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	sink := &frames{seen: make(chan struct{}, 100)}
	e, err := exporter.New(exporter.Options{
		Node: "gpu-1", Source: source, Sink: sink, Period: exporter.MinPeriod,
		Members: attribution.New(attribution.Options{Node: "gpu-1", Rules: func() (process.Rules, error) { return processtest.Rules(), nil }}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { world.Run(ctx, 0) })
	running.Go(func() { _ = e.Run(ctx) })
	defer running.Wait()
	defer cancel()
	held := fmt.Sprintf("proc %s sleep", process.Ref("gpu-1", run.ID))
	until := func(want string) {
		t.Helper()
		for {
			sink.mu.Lock()
			said := strings.Join(sink.said, " | ")
			last := len(sink.said) > 0 && sink.said[len(sink.said)-1] == want
			sink.mu.Unlock()
			if last {
				return
			}
			select {
			case <-sink.seen:
			case <-time.After(20 * time.Second):
				t.Fatalf("said %q, want %q at last", said, want)
			}
		}
	}
	until(held)
	if err := syscall.Kill(run.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until("")
	if list, err := world.Claims("gpu-1", 0); err != nil || len(list) != 0 {
		t.Errorf("the world has %v, %v", list, err)
	}
}
