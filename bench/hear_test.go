package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// listener is an ear with what it is told, by short names.
type listener struct {
	*ear
	incarnation uint64
}

func newListener(period time.Duration, nodes int) *listener {
	o := testOptions(nodes)
	o.Period = period
	return &listener{newEar(o, time.Now()), 1000}
}

func (l *listener) send(sequences ...uint64) {
	for _, s := range sequences {
		l.await(0, l.incarnation, s)
	}
}

func (l *listener) hear(t *testing.T, sequences ...uint64) {
	t.Helper()
	for _, s := range sequences {
		o := new(telemetry.Observation)
		o.SetSchema(telemetry.Schema)
		o.SetNode("bench-00000")
		o.SetIncarnation(l.incarnation)
		o.SetSequence(s)
		data, err := telemetry.AppendObservation(nil, o)
		if err != nil {
			t.Fatal(err)
		}
		l.observation(telemetry.PartitionSubject(telemetry.FamilyObservation, "bench-00000"), data)
	}
}

func (l *listener) counts() string {
	l.end()
	return fmt.Sprintf("sent %d heard %d lost %d twice %d unknown %d restarts %d", l.sent.Load(), l.heard.Load(), l.lost.Load(), l.twice.Load(), l.others.Load(), l.restarts.Load())
}

func TestEar(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, l *listener)
		want string
	}{
		"all":                {func(t *testing.T, l *listener) { l.send(1, 2, 3); l.hear(t, 1, 2, 3) }, "sent 3 heard 3 lost 0 twice 0 unknown 0 restarts 0"},
		"one missing":        {func(t *testing.T, l *listener) { l.send(1, 2, 3); l.hear(t, 1, 3) }, "sent 3 heard 2 lost 1 twice 0 unknown 0 restarts 0"},
		"the last missing":   {func(t *testing.T, l *listener) { l.send(1, 2); l.hear(t, 1) }, "sent 2 heard 1 lost 1 twice 0 unknown 0 restarts 0"},
		"out of order":       {func(t *testing.T, l *listener) { l.send(1, 2); l.hear(t, 2, 1) }, "sent 2 heard 2 lost 0 twice 0 unknown 0 restarts 0"},
		"twice":              {func(t *testing.T, l *listener) { l.send(1); l.hear(t, 1, 1, 1) }, "sent 1 heard 1 lost 0 twice 2 unknown 0 restarts 0"},
		"of nothing sent":    {func(t *testing.T, l *listener) { l.send(1); l.hear(t, 1, 9) }, "sent 1 heard 1 lost 0 twice 0 unknown 1 restarts 0"},
		"not sent after all": {func(t *testing.T, l *listener) { l.send(1, 2); l.forget(0, 2); l.hear(t, 1) }, "sent 1 heard 1 lost 0 twice 0 unknown 0 restarts 0"},
		"a new process": {func(t *testing.T, l *listener) {
			l.send(1, 2)
			l.hear(t, 1, 2)
			l.incarnation++
			l.send(1)
			l.hear(t, 1)
		}, "sent 3 heard 3 lost 0 twice 0 unknown 0 restarts 1"},
		"an old process": {func(t *testing.T, l *listener) {
			l.incarnation++
			l.send(1)
			l.incarnation--
			l.hear(t, 1)
		}, "sent 1 heard 0 lost 1 twice 0 unknown 1 restarts 0"},
		"longer than the window": {func(t *testing.T, l *listener) {
			for s := uint64(1); s <= 3*window; s++ {
				l.send(s)
				if s%2 == 0 {
					l.hear(t, s)
				}
			}
		}, fmt.Sprintf("sent %d heard %d lost %d twice 0 unknown 0 restarts 0", 3*window, 3*window/2, 3*window/2)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListener(time.Second, 1)
			c.do(t, l)
			if got := l.counts(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestEarBelowASecond: one observation for ten frames is all that is due; two
// seconds without one are a loss.
func TestEarBelowASecond(t *testing.T) {
	l := newListener(100*time.Millisecond, 1)
	for s := uint64(1); s <= 60; s++ {
		l.send(s)
		switch s {
		case 1, 11, 14, 24, 34, 54: // 14: a verdict changed; about 44 nothing came
			l.hear(t, s)
		}
	}
	if got, want := l.counts(), "sent 60 heard 6 lost 1 twice 0 unknown 0 restarts 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestEarKnowsItsNodes(t *testing.T) {
	e := newEar(testOptions(100), time.Now())
	for subject, want := range map[string]int{
		"ek.v1.obs.3.bench-00042": 42, "ek.v1.obs.3.bench-00099": 99, "ek.v1.obs.3.bench-00100": -1, "ek.v1.obs.3.bench-0004x": -1,
		"ek.v1.obs.3.other-00042": -1, "ek.v1.obs.3.bench-": -1, "bench-00001": 1, "": -1, "ek.v1.obs.3.bench-000420": -1,
	} {
		got, ok := e.node(subject)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: node %d, want %d", subject, got, want)
		}
	}
}

func TestLatency(t *testing.T) {
	l := newListener(time.Second, 1)
	l.send(1)
	l.hear(t, 1)
	if l.latency.total() != 0 {
		t.Error("a latency from before the measurement")
	}
	l.measuring.Store(true)
	l.base = l.base.Add(-3 * time.Second) // as if it had been sent three seconds ago
	l.ring(2, 1)
	l.hear(t, 2)
	if n, most := l.latency.total(), l.latency.max(); n != 1 || most < 3*time.Second || most > time.Minute {
		t.Errorf("%d latencies, the longest %s", n, most)
	}
	if l.late.Load() != 1 {
		t.Errorf("%d late, want 1", l.late.Load())
	}
}

// ring puts a frame in that was sent at a time since the run began.
func (l *listener) ring(sequence uint64, sent int64) {
	l.tracks[0].ring[sequence%window] = awaited{incarnation: l.incarnation, sequence: sequence, sent: sent}
}

func TestReadObservation(t *testing.T) {
	o := new(telemetry.Observation)
	o.SetSchema(1)
	o.SetNode("n")
	o.SetBootId("boot")
	o.SetIncarnation(77)
	o.SetSequence(12)
	o.SetSkewMs(-3_600_000)
	g := new(telemetry.GPUObservation)
	g.SetUuid("GPU-1")
	o.SetGpus([]*telemetry.GPUObservation{g})
	data, err := telemetry.AppendObservation(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	want := observed{77, 12, -3_600_000}
	if got, ok := readObservation(data); !ok || got != want {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
	for n := range len(data) {
		got, ok := readObservation(data[:n]) // does not panic, and does not make anything up
		if ok && (got.incarnation != want.incarnation || got.sequence != want.sequence) {
			t.Errorf("cut to %d bytes: %+v", n, got)
		}
	}
	only := new(telemetry.Observation)
	only.SetGpus(o.GetGpus())
	devices, _ := telemetry.AppendObservation(nil, only)
	o.SetGpus(nil)
	head, _ := telemetry.AppendObservation(nil, o)
	if got, ok := readObservation(append(devices, head...)); !ok || got != want {
		t.Errorf("devices first: %+v, %v, want %+v", got, ok, want)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if h.quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{0, time.Millisecond}, {0.5, 500 * time.Millisecond}, {0.9, 900 * time.Millisecond}, {0.99, 990 * time.Millisecond}, {1, time.Second}} {
		if got := h.quantile(c.q); got < c.want || float64(got) > 1.05*float64(c.want) {
			t.Errorf("quantile %g is %s, want %s or a twentieth more", c.q, got, c.want)
		}
	}
	h.add(time.Hour)
	h.add(-time.Second)
	if h.max() != time.Hour || h.total() != 1002 || h.quantile(1) > time.Hour {
		t.Errorf("max %s, total %d, last quantile %s", h.max(), h.total(), h.quantile(1))
	}
}
