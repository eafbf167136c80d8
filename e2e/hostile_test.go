package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// TestHostile sends bad input to a running fleet: what is wrong is refused and
// counted by reason, and nothing else is disturbed.
func TestHostile(t *testing.T) {
	s := newStack(t)
	const node, other = "gpu-1", "gpu-2"
	s.startNATS(node, other)
	cfg := s.configs(node)
	procs := []*proc{
		s.start("collector", "evenkeel", "collector", "-c", cfg["collector"]),
		s.start("rebalancer", "evenkeel", "rebalancer", "-c", cfg["rebalancer"]),
		s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/inlet-fault.yaml", "--node", node, "--shm", s.shm),
		s.start("agent", "evenkeel-node", "agent", "-c", cfg["agent"]),
		s.start("exporter", "evenkeel-node", "export", "-c", cfg["exporter"]),
	}
	s.eventually(30*time.Second, "eight GPUs are fresh", func() error { return s.fresh(node, 8) })
	s.eventually(30*time.Second, "somebody leads", func() error { _, err := s.evenkeel("plan"); return err })

	h := &hostile{t: t, s: s, nc: s.dial(telemetry.ExporterUser(other)), node: other}
	h.frames()
	h.onOthersSubjects(node)
	h.flood()
	s.agentForges(other)
	s.forgedOrders(node)

	s.eventually(15*time.Second, "the rest of the fleet is fresh", func() error { return s.fresh(node, 8) })
	for _, p := range procs {
		select {
		case <-p.done:
			t.Errorf("%s ended", p.name)
		default:
		}
		if kib := p.residentKiB(); kib > 300<<10 {
			t.Errorf("%s holds %d KiB", p.name, kib)
		}
	}
}

// hostile is one node's exporter gone bad.
type hostile struct {
	t    *testing.T
	s    *stack
	nc   *nats.Conn
	node string
}

func (h *hostile) publish(data []byte) {
	h.t.Helper()
	if err := h.nc.Publish(telemetry.PartitionSubject(telemetry.FamilyFrame, h.node), data); err != nil {
		h.t.Fatal(err)
	}
}

// frame is a sound frame of the node unless changed.
func (h *hostile) frame(seq uint64, change ...func(*telemetry.Frame)) []byte {
	h.t.Helper()
	f, now := &telemetry.Frame{}, time.Now().UnixNano()
	f.SetSchema(telemetry.Schema)
	f.SetNode(h.node)
	f.SetBootId("boot")
	f.SetIncarnation(5)
	f.SetSequence(seq)
	f.SetSampleTimeUnixNano(now)
	f.SetSendTimeUnixNano(now)
	f.SetPeriodNano(uint64(time.Second))
	g := &telemetry.GPU{}
	g.SetUuid("GPU-hostile")
	g.SetTemperatureCelsiusCore(60)
	f.SetGpus([]*telemetry.GPU{g})
	for _, c := range change {
		c(f)
	}
	data, err := telemetry.AppendFrame(nil, f)
	if err != nil {
		h.t.Fatal(err)
	}
	return data
}

// frames sends every kind of bad frame and wants each counted under its reason.
func (h *hostile) frames() {
	sample := func(at time.Time) func(*telemetry.Frame) {
		return func(f *telemetry.Frame) { f.SetSampleTimeUnixNano(at.UnixNano()) }
	}
	good := h.frame(10)
	want := map[telemetry.DropReason]float64{}
	for _, c := range []struct {
		why  telemetry.DropReason // empty: taken
		data []byte
	}{
		{telemetry.DropMalformed, []byte("garbage")},
		{telemetry.DropMalformed, good[:len(good)/2]},
		{telemetry.DropSchema, nil},
		{telemetry.DropOversized, bytes.Repeat([]byte{0}, telemetry.MaxFrameBytes+1)},
		{telemetry.DropForeign, h.frame(11, func(f *telemetry.Frame) { f.SetNode("gpu-1"); f.SetIncarnation(math.MaxUint64) })},
		{"", good},
		{telemetry.DropDuplicate, good},
		{telemetry.DropReordered, h.frame(9)},
		{telemetry.DropReordered, h.frame(12, func(f *telemetry.Frame) { f.SetIncarnation(4) })},
		{telemetry.DropClock, h.frame(13, sample(time.Unix(0, -5)))},
		{telemetry.DropClock, h.frame(14, func(f *telemetry.Frame) { f.SetSampleTimeUnixNano(math.MaxInt64) })},
		{"", h.frame(11, sample(time.Now().Add(20*365*24*time.Hour)))},
		{"", h.frame(12, sample(time.Unix(1, 0)))},
		{"", h.frame(13, absurd)},
		{"", h.frame(math.MaxUint64)},
	} {
		h.publish(c.data)
		if c.why != "" {
			want[c.why]++
		}
	}
	h.s.eventually(15*time.Second, "each bad frame is counted by its reason", func() error {
		got, err := h.s.drops()
		if err != nil {
			return err
		}
		for why, n := range want {
			if got[why] != n {
				return fmt.Errorf("%s: %g, want %g of %v", why, got[why], n, got)
			}
		}
		if got[telemetry.DropLost] > 1000 {
			return fmt.Errorf("a leaping sequence counts as %g lost frames", got[telemetry.DropLost])
		}
		return nil
	})
}

// absurd is every field at its end.
func absurd(f *telemetry.Frame) {
	g := f.GetGpus()[0]
	g.SetTemperatureCelsiusCore(math.MaxInt32)
	g.SetPowerWatts(math.MaxUint32)
	g.SetUtilizationRatio(math.MaxUint32)
	g.SetMemoryTotalBytes(math.MaxUint64)
	g.SetQualityIds([]uint32{1, 2, 3, math.MaxUint32})
	g.SetQualities([]telemetry.Quality{99})
	g.SetGeneration(math.MaxUint64)
	g.SetLinkMask(math.MaxUint64)
	g.SetNvlinkBytesTx([]uint64{1})
	g.SetFastAgeMs(math.MaxUint32)
	f.SetPeriodNano(math.MaxUint64)
	f.SetMonotonicNano(math.MinInt64)
	f.SetDriverFault(strings.Repeat("x", 100_000))
}

// onOthersSubjects tries every subject that is not the node's: the server
// refuses, so that nobody has to count.
func (h *hostile) onOthersSubjects(node string) {
	before, err := h.s.drops()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, subject := range []string{
		telemetry.PartitionSubject(telemetry.FamilyFrame, node), "ek.v1.frame.0." + h.node, telemetry.OrderSubject(node),
		telemetry.ReceiptSubject(node), telemetry.ReceiptSubject(h.node), telemetry.InventorySubject("file"),
		telemetry.JournalSubject(telemetry.TopicIntent), telemetry.ControlSubject("pause"), telemetry.EventSubject(node),
	} {
		if err := h.nc.Publish(subject, h.frame(math.MaxUint64, func(f *telemetry.Frame) { f.SetNode(node) })); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.nc.Flush(); err != nil {
		h.t.Fatal(err)
	}
	if after, err := h.s.drops(); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		h.t.Errorf("refused by the server, yet counted: %v, before %v, %v", after, before, err)
	}
}

// flood sends as fast as it can; the others must be heard meanwhile.
func (h *hostile) flood() {
	data := h.frame(1, func(f *telemetry.Frame) { f.SetIncarnation(6) })
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		for range 1000 {
			h.publish(data)
		}
	}
	if err := h.s.fresh("gpu-1", 8); err != nil {
		h.t.Errorf("a flood by another node: %v", err)
	}
}

// agentForges is an agent that speaks for another node, and one that sends
// what is no receipt.
func (s *stack) agentForges(node string) {
	s.t.Helper()
	before, err := s.drops()
	if err != nil {
		s.t.Fatal(err)
	}
	nc := s.dial(telemetry.AgentUser(node))
	forged, err := json.Marshal(telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Done, Node: "gpu-1"})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, data := range [][]byte{forged, []byte("{"), nil, bytes.Repeat([]byte("["), 1<<20)} {
		if err := nc.Publish(telemetry.ReceiptSubject(node), data); err != nil {
			s.t.Fatal(err)
		}
	}
	s.eventually(15*time.Second, "the forged receipt is counted", func() error {
		after, err := s.drops()
		if err == nil && after[telemetry.DropForeign] != before[telemetry.DropForeign]+1 {
			err = fmt.Errorf("foreign: %g, before %g", after[telemetry.DropForeign], before[telemetry.DropForeign])
		}
		return err
	})
}

// forgedOrders come over the bus from the right user without the right key.
func (s *stack) forgedOrders(node string) {
	s.t.Helper()
	seed, err := telemetry.NewSeed()
	if err != nil {
		s.t.Fatal(err)
	}
	signer, err := telemetry.NewSigner(seed)
	if err != nil {
		s.t.Fatal(err)
	}
	gpus, err := list[gpuItem](s, "gpus")
	if err != nil {
		s.t.Fatal(err)
	}
	watts, now := 400.0, time.Now()
	order, err := signer.SignOrder(&telemetry.Order{
		ID: "forged.1", Decision: "forged", Kind: telemetry.StepPowerCap, Target: telemetry.Target{Node: node, UUID: gpus[0].UUID},
		Params: telemetry.Params{PowerLimitWatts: &watts}, Epoch: telemetry.Epoch{Incarnation: "x", Revision: 1},
		SentAt: now, Expires: now.Add(time.Minute), Lease: telemetry.Duration(time.Minute),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	nc := s.dial(bus.UserRebalancer)
	for _, c := range []struct {
		data []byte
		why  telemetry.RefuseReason
	}{
		{order, telemetry.RefuseSignature},
		{order[:len(order)/2], telemetry.RefuseMalformed},
		{nil, telemetry.RefuseMalformed},
		{[]byte("null"), telemetry.RefuseSignature},
		{bytes.Repeat([]byte("["), telemetry.MaxOrderBytes+1), telemetry.RefuseMalformed},
	} {
		m, err := nc.Request(telemetry.OrderSubject(node), c.data, 5*time.Second)
		if err != nil {
			s.t.Fatal(err)
		}
		var r telemetry.Receipt
		if err := json.Unmarshal(m.Data, &r); err != nil || r.Result != telemetry.Refused || r.Why != c.why {
			s.t.Errorf("%.20q: %s, %v; want refused (%s)", c.data, m.Data, err, c.why)
		}
	}
}

// dial connects as a user of the bus, past all of our code.
func (s *stack) dial(user string) *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect("nats://"+s.addr["nats"], nats.UserInfo(user, "pw"), nats.CustomInboxPrefix(telemetry.InboxPrefix(user)),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // refusals are expected
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// fresh wants n GPUs of a node that answer and were heard within seconds.
func (s *stack) fresh(node string, n int) error {
	gpus, err := list[struct {
		Node, State string
		Age         *float64 `json:"age_seconds"`
	}](s, "gpus")
	if err != nil {
		return err
	}
	got := 0
	for _, g := range gpus {
		if g.Node == node && g.State == "ok" && g.Age != nil && *g.Age < 3 {
			got++
		}
	}
	if got != n {
		return fmt.Errorf("%d GPUs of %s are fresh, want %d", got, node, n)
	}
	return nil
}

var dropped = regexp.MustCompile(`evenkeel_frames_dropped_total\{why="(\w+)"\} (\S+)`)

func (s *stack) drops() (map[telemetry.DropReason]float64, error) {
	m, err := s.metrics("collector")
	if err != nil {
		return nil, err
	}
	out := map[telemetry.DropReason]float64{}
	for _, hit := range dropped.FindAllStringSubmatch(m, -1) {
		var v float64
		if _, err := fmt.Sscan(hit[2], &v); err != nil {
			return nil, err
		}
		out[telemetry.DropReason(hit[1])] = v
	}
	return out, nil
}

var resident = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

func (p *proc) residentKiB() (kib int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if hit := resident.FindSubmatch(data); err == nil && hit != nil {
		_, _ = fmt.Sscan(string(hit[1]), &kib)
	}
	return kib
}
