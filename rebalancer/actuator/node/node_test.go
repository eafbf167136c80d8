package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/actuator/node"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// agents is the other end of the port: it opens orders as an agent does, does
// each once by a ledger, and can be away, slow or wrong.
type agents struct {
	mu      sync.Mutex
	trust   telemetry.Trust
	orders  []*telemetry.Order
	ledger  map[string]telemetry.Receipt
	effects int
	// fail is the error of the next calls, one each; pending answers so often
	// that the order is still being carried out.
	fail    []error
	pending int
	// spoil changes a receipt on its way back.
	spoil func(*telemetry.Receipt)
	raw   []byte
}

func (a *agents) RequestOrder(_ context.Context, node string, data []byte) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, err := a.trust.OpenOrder(data)
	if err != nil {
		return nil, err
	}
	if o.Target.Node != node {
		return nil, fmt.Errorf("order for %q sent to %q", o.Target.Node, node)
	}
	a.orders = append(a.orders, o)
	if len(a.fail) > 0 {
		err := a.fail[0]
		a.fail = a.fail[1:]
		if err != nil {
			return nil, err
		}
	}
	if a.raw != nil {
		return a.raw, nil
	}
	r, done := a.ledger[o.ID]
	if !done && !time.Now().Before(o.Expires) { // as an agent does: its ledger first, and what has expired is not taken in
		r = telemetry.Receipt{StepID: o.ID, Result: telemetry.Refused, Why: telemetry.RefuseExpired, Node: node}
		if a.pending > 0 {
			r.Result, r.Why = telemetry.Pending, ""
		}
	} else if !done {
		r = telemetry.Receipt{StepID: o.ID, Decision: o.Decision, Kind: o.Kind, Target: o.Target, Result: telemetry.Done, Node: node}
		if a.pending > 0 {
			a.pending--
			r.Result = telemetry.Pending
		} else {
			a.effects++
			a.ledger[o.ID] = r
		}
	}
	if a.spoil != nil {
		a.spoil(&r)
	}
	return json.Marshal(r)
}

func (a *agents) sent() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.orders)
}

func setup(t *testing.T) (*node.Actuator, *agents) {
	t.Helper()
	seed, err := telemetry.NewSeed()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := telemetry.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := telemetry.NewTrust(signer.KeyID())
	if err != nil {
		t.Fatal(err)
	}
	a := &agents{trust: trust, ledger: map[string]telemetry.Receipt{}}
	return node.New(a, signer, time.Now), a
}

func capStep() telemetry.Step {
	watts, found := 500.0, 700.0
	now := time.Now()
	return telemetry.Step{ID: "d-000001.1", Decision: "d-000001", Kind: telemetry.StepPowerCap, Backend: node.Name,
		Target: telemetry.Target{Node: "n1", UUID: "GPU-1", Generation: 3}, Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found},
		Epoch: telemetry.Epoch{Incarnation: "a", Revision: 7}, NotBefore: now, Deadline: now.Add(30 * time.Second), Lease: telemetry.Duration(10 * time.Minute)}
}

func bubble(t *testing.T, f func(*testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestOrderIsTheStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		s := capStep()
		r, err := act.Do(t.Context(), s)
		if err != nil || r.Result != telemetry.Done || r.StepID != s.ID {
			t.Fatalf("%+v, %v", r, err)
		}
		o := agents.orders[0]
		if o.ID != s.ID || o.Decision != s.Decision || o.Kind != s.Kind || o.Target != s.Target || o.Epoch != s.Epoch || o.Lease != s.Lease ||
			*o.Params.PowerLimitWatts != 500 || *o.Params.FoundWatts != 700 || !o.Expires.Equal(s.Deadline) || !o.NotBefore.IsZero() || !o.SentAt.Equal(time.Now()) || o.DryRun {
			t.Errorf("order %+v of step %+v", o, s)
		}
		s.ID, s.DryRun, s.NotBefore = "d-000002.1", true, time.Now().Add(time.Second)
		if _, err := act.Do(t.Context(), s); err != nil || !agents.orders[1].DryRun || !agents.orders[1].NotBefore.Equal(s.NotBefore) {
			t.Errorf("dry run, later: %v, order %+v", err, agents.orders[1])
		}
	})
}

func TestOrderIsRepeatedUntilThereIsAReceipt(t *testing.T) {
	cases := []struct {
		name string
		arm  func(*agents)
		sent int
	}{
		{"no agent at first", func(a *agents) { a.fail = []error{errors.New("no responders"), errors.New("no responders")} }, 3},
		{"answer lost", func(a *agents) { a.fail = []error{errors.New("timeout")} }, 2},
		{"still at it", func(a *agents) { a.pending = 3 }, 4},
		{"at once", func(*agents) {}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				act, agents := setup(t)
				c.arm(agents)
				r, err := act.Do(t.Context(), capStep())
				if err != nil || r.Result != telemetry.Done || agents.sent() != c.sent || agents.effects != 1 {
					t.Errorf("%s, %v; sent %d times, done %d times; want %d, 1", r.Result, err, agents.sent(), agents.effects, c.sent)
				}
				for i, o := range agents.orders {
					if o.ID != agents.orders[0].ID || i > 0 && !o.SentAt.After(agents.orders[i-1].SentAt) {
						t.Errorf("repetition %d: id %s, sent at %v", i, o.ID, o.SentAt)
					}
				}
			})
		})
	}
}

func TestDoIsIdempotent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		for range 3 {
			if r, err := act.Do(t.Context(), capStep()); err != nil || r.Result != telemetry.Done {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if agents.sent() != 1 || agents.effects != 1 {
			t.Errorf("sent %d times, done %d times", agents.sent(), agents.effects)
		}
	})
}

func TestDoEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		for range 100 {
			agents.fail = append(agents.fail, errors.New("no responders"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := act.Do(ctx, capStep())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no responders") || time.Since(begun) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// A receipt on the bus ends the wait, also when the answers are lost.
func TestReceiptFromTheBusEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		for range 100 {
			agents.fail = append(agents.fail, errors.New("timeout"))
		}
		go func() {
			time.Sleep(1200 * time.Millisecond)
			act.Receipt(telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Pending})
			act.Receipt(telemetry.Receipt{StepID: "d-000001.1", Kind: telemetry.StepUndo, Result: telemetry.Done, Spontaneous: true, Detail: "an earlier lease"})
			act.Receipt(telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Done, Detail: "first"})
			act.Receipt(telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Failed, Detail: "its lease"})
		}()
		r, err := act.Do(t.Context(), capStep())
		if err != nil || r.Detail != "first" {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err = act.Observe(t.Context(), capStep()); err != nil || r.Detail != "first" {
			t.Errorf("observed %+v, %v", r, err)
		}
	})
}

// A leader that is fenced has learned nothing of the step: when it leads again,
// it asks what became of it under another.
func TestFencedOrderSaysNothingOfTheStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		s := capStep()
		agents.raw = []byte(`{"step_id":"d-000001.1","target":{},"result":"refused","why":"epoch","detail":"replaced","node":"n1"}`)
		if r, err := act.Do(t.Context(), s); err != nil || r.Why != telemetry.RefuseEpoch {
			t.Fatalf("%+v, %v", r, err)
		}
		agents.raw = nil
		agents.ledger[s.ID] = telemetry.Receipt{StepID: s.ID, Kind: s.Kind, Target: s.Target, Result: telemetry.Done, Node: "n1"}
		if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Done {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// To ask is never to order: an agent that has not seen the step says so, and
// does not begin it, whatever its clock says.
func TestObserve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		s := capStep()
		if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Unknown || r.StepID != s.ID || agents.sent() != 1 || agents.effects != 0 {
			t.Fatalf("a step never heard of: %+v, %v, sent %d, done %d times", r, err, agents.sent(), agents.effects)
		}
		if o := agents.orders[0]; time.Since(o.Expires) < 24*time.Hour || o.ID != s.ID || o.Target != s.Target || o.Epoch != s.Epoch || !o.NotBefore.IsZero() {
			t.Errorf("asked by %+v", o)
		}
		agents.fail = []error{nil, errors.New("timeout")}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := act.Do(ctx, s); err != nil {
			t.Fatal(err)
		}
		agents.fail = []error{errors.New("no responders")}
		other, agents2 := setup(t) // the next leader's
		agents2.ledger, agents2.fail = agents.ledger, agents.fail
		if _, err := other.Observe(t.Context(), s); err == nil {
			t.Error("no agent, no error")
		}
		if r, err := other.Observe(t.Context(), s); err != nil || r.Result != telemetry.Done || agents2.effects != 0 {
			t.Errorf("%+v, %v, done %d times", r, err, agents2.effects)
		}
		sent := agents2.sent()
		if r, err := other.Observe(t.Context(), s); err != nil || r.Result != telemetry.Done || agents2.sent() != sent {
			t.Errorf("%+v, %v; what is known was asked again", r, err)
		}
	})
}

// What an agent says of who asks is nothing about the step.
func TestObserveIsNotBelieved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		agents.raw = []byte(`{"step_id":"","target":{},"result":"refused","why":"signature","detail":"not trusted here","node":"n1"}`)
		if r, err := act.Observe(t.Context(), capStep()); err == nil || !strings.Contains(err.Error(), "not trusted here") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// After its expiry a cap is not asked for again, its lease ends it. What has
// been ended has no lease: its agent knows.
func TestObserveAfterExpiry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		s := capStep()
		p := preemptStep()
		agents.fail = []error{errors.New("timeout"), errors.New("timeout")}
		for _, s := range []telemetry.Step{s, p} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, _ = act.Do(ctx, s)
			cancel()
		}
		agents.ledger[p.ID] = telemetry.Receipt{StepID: p.ID, Result: telemetry.Done, Node: "n1"}
		time.Sleep(time.Hour)
		sent := agents.sent()
		if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Unknown || agents.sent() != sent {
			t.Errorf("%+v, %v, sent %d more", r, err, agents.sent()-sent)
		}
		if r, err := act.Observe(t.Context(), p); err != nil || r.Result != telemetry.Done || agents.sent() != sent+1 {
			t.Errorf("%+v, %v, sent %d more", r, err, agents.sent()-sent)
		}
	})
}

func preemptStep() telemetry.Step {
	s := capStep()
	s.ID, s.Kind, s.Lease = "d-000009.1", telemetry.StepPreempt, 0
	s.Target = telemetry.Target{Node: "n1", UUID: "GPU-1", Generation: 3, Workload: "proc:n1/41@900", PID: 41, PIDStart: 900, BootID: "b1"}
	s.Params = telemetry.Params{Signal: "USR1", Grace: telemetry.Duration(2 * time.Minute), Message: "too hot"}
	s.Deadline = s.NotBefore.Add(30*time.Second + rebalancer.RunTime(s))
	return s
}

// A preemption may be begun for as long as any step, and takes minutes: its
// agent is asked until it has ended, and a receipt on the bus does as well.
func TestPreemptionTakesItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		s := preemptStep()
		agents.pending = 1 << 30
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if r, err := act.Do(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%+v, %v", r, err)
		}
		for i, o := range agents.orders {
			if !o.Expires.Equal(s.NotBefore.Add(30*time.Second)) || o.Lease != 0 || o.Params.Grace != s.Params.Grace || o.Params.Signal != "USR1" || o.Params.Message != "too hot" || o.Target != s.Target {
				t.Fatalf("order %d: %+v", i, o)
			}
		}
		time.Sleep(time.Minute) // no longer to be begun
		if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Pending {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := act.Do(t.Context(), s); err == nil {
			t.Error("ordered after its time")
		}
		agents.pending = 0
		act.Receipt(telemetry.Receipt{StepID: s.ID, Kind: telemetry.StepPreempt, Result: telemetry.Failed, Detail: "2 processes are left", Node: "n1", Spontaneous: true})
		if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Failed || agents.effects != 0 {
			t.Errorf("%+v, %v, done %d times", r, err, agents.effects)
		}
	})
}

func TestReceiptsThatAreNotOurs(t *testing.T) {
	for name, arm := range map[string]func(*agents){
		"another step": func(a *agents) { a.spoil = func(r *telemetry.Receipt) { r.StepID = "d-000009.1" } },
		"another node": func(a *agents) { a.spoil = func(r *telemetry.Receipt) { r.Node = "n2" } },
		"no receipt":   func(a *agents) { a.raw = []byte("what?") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				act, agents := setup(t)
				arm(agents)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if r, err := act.Do(ctx, capStep()); err == nil {
					t.Errorf("taken: %+v", r)
				}
			})
		})
	}
}

// What no agent could carry out is not sent, nor tried again and again.
func TestOrderThatCannotBeSigned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, change := range map[string]func(*telemetry.Step){
			"no epoch":        func(s *telemetry.Step) { s.Epoch = telemetry.Epoch{} },
			"expired":         func(s *telemetry.Step) { s.Deadline = time.Now().Add(-time.Second) },
			"no node":         func(s *telemetry.Step) { s.Target.Node = "" },
			"undo of nothing": func(s *telemetry.Step) { s.Kind = telemetry.StepUndo },
		} {
			act, agents := setup(t)
			s := capStep()
			change(&s)
			begun := time.Now()
			if _, err := act.Do(t.Context(), s); err == nil || agents.sent() != 0 || time.Since(begun) != 0 {
				t.Errorf("%s: %v, sent %d, after %s", name, err, agents.sent(), time.Since(begun))
			}
		}
	})
}

// Of a preemption the View must show the process that is meant.
func TestCanPreempt(t *testing.T) {
	cases := []struct {
		name   string
		change func(*telemetry.Step, *cluster.Node)
		want   telemetry.RefusalReason
	}{
		{"the very process", func(*telemetry.Step, *cluster.Node) {}, ""},
		{"a child of it holds the device", func(_ *telemetry.Step, n *cluster.Node) { n.GPUs[0].Members[0].ID = "77@950+b1" }, ""},
		{"a node that is gone", func(_ *telemetry.Step, n *cluster.Node) { n.State = cluster.NodeGone }, telemetry.RefusalStale},
		{"a node of another boot", func(_ *telemetry.Step, n *cluster.Node) { n.BootID = "b2" }, telemetry.RefusalUnknown},
		{"no pid", func(s *telemetry.Step, _ *cluster.Node) { s.Target.PID = 0 }, telemetry.RefusalUnsupported},
		{"no start", func(s *telemetry.Step, _ *cluster.Node) { s.Target.PIDStart = 0 }, telemetry.RefusalUnsupported},
		{"no boot", func(s *telemetry.Step, n *cluster.Node) { s.Target.BootID, n.BootID = "", "" }, telemetry.RefusalUnsupported},
		{"no grace", func(s *telemetry.Step, _ *cluster.Node) { s.Params.Grace = 0 }, telemetry.RefusalUnsupported},
		{"it has ended", func(_ *telemetry.Step, n *cluster.Node) { n.GPUs[0].Members = nil }, telemetry.RefusalUnknown},
		{"its pid is another's now", func(_ *telemetry.Step, n *cluster.Node) {
			n.GPUs[0].Members[0].ID, n.GPUs[0].Members[0].Workload = "41@990+b1", "proc:n1/41@990"
		}, telemetry.RefusalUnknown},
		{"it is nobody's", func(_ *telemetry.Step, n *cluster.Node) { n.GPUs[0].Members[0].Kind = "unknown" }, telemetry.RefusalUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			act, _ := setup(t)
			g := &cluster.GPU{UUID: "GPU-1", Node: "n1", Members: []cluster.Member{{ID: "41@900+b1", Kind: cluster.KindProcess, Workload: "proc:n1/41@900"}}}
			n := &cluster.Node{Name: "n1", State: cluster.NodeUp, BootID: "b1", GPUs: []*cluster.GPU{g}}
			s := preemptStep()
			c.change(&s, n)
			got := act.Can(cluster.NewView(time.Now(), []*cluster.Node{n}, nil), s)
			if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || got[0].Reason != c.want || got[0].Text == "") {
				t.Errorf("%v, want %q", got, c.want)
			}
		})
	}
}

func TestCan(t *testing.T) {
	gi := uint32(1)
	cases := []struct {
		name   string
		change func(*telemetry.Step, *cluster.Node)
		want   telemetry.RefusalReason
	}{
		{"a cap", func(*telemetry.Step, *cluster.Node) {}, ""},
		{"a renewal", func(s *telemetry.Step, _ *cluster.Node) { s.Kind = telemetry.StepRenew }, ""},
		{"an undo", func(s *telemetry.Step, _ *cluster.Node) { s.Kind = telemetry.StepUndo }, ""},
		{"what a scheduler does", func(s *telemetry.Step, _ *cluster.Node) { s.Kind = telemetry.StepEvict }, telemetry.RefusalUnsupported},
		{"a node that is not in view", func(s *telemetry.Step, _ *cluster.Node) { s.Target.Node = "n9" }, telemetry.RefusalUnknown},
		{"a node that is gone", func(_ *telemetry.Step, n *cluster.Node) { n.State = cluster.NodeGone }, telemetry.RefusalStale},
		{"a part of a device", func(s *telemetry.Step, _ *cluster.Node) { s.Target.GI = &gi }, telemetry.RefusalUnsupported},
		{"no device", func(s *telemetry.Step, _ *cluster.Node) { s.Target.UUID = "" }, telemetry.RefusalUnsupported},
		{"no watts", func(s *telemetry.Step, _ *cluster.Node) { s.Params.PowerLimitWatts = nil }, telemetry.RefusalUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			act, agents := setup(t)
			n := &cluster.Node{Name: "n1", State: cluster.NodeUp}
			s := capStep()
			c.change(&s, n)
			got := act.Can(cluster.NewView(time.Now(), []*cluster.Node{n}, nil), s)
			if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || got[0].Reason != c.want || got[0].Text == "") {
				t.Errorf("%v, want %q", got, c.want)
			}
			if agents.sent() != 0 {
				t.Error("a question was sent as an order")
			}
		})
	}
}

// Memory is bounded: of very many steps the oldest are forgotten.
func TestMemoryIsBounded(t *testing.T) {
	act, agents := setup(t)
	for i := range 4100 {
		act.Receipt(telemetry.Receipt{StepID: fmt.Sprintf("d-%06d.1", i), Result: telemetry.Done})
	}
	s := capStep()
	s.ID = "d-004099.1"
	if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Done || agents.sent() != 0 {
		t.Errorf("the newest: %+v, %v", r, err)
	}
	s.ID = "d-000000.1"
	if r, err := act.Observe(t.Context(), s); err != nil || r.Result != telemetry.Unknown || agents.sent() != 1 {
		t.Errorf("the oldest: %+v, %v, asked %d times", r, err, agents.sent())
	}
}

// Steps run side by side; each gets its own receipt.
func TestManyAtOnce(t *testing.T) {
	act, agents := setup(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			s := capStep()
			s.ID = fmt.Sprintf("d-%06d.1", i)
			if r, err := act.Do(t.Context(), s); err != nil || r.StepID != s.ID {
				t.Errorf("%s: %+v, %v", s.ID, r, err)
			}
		})
	}
	wg.Wait()
	if agents.effects != 64 {
		t.Errorf("%d effects", agents.effects)
	}
}

// An agent that does not trust the key believes nothing in the order, its id
// included; its answer ends the step all the same.
func TestUntrustedKeyEndsTheStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		agents.raw = []byte(`{"step_id":"","target":{},"result":"refused","why":"signature","detail":"not trusted here","node":"n1"}`)
		r, err := act.Do(t.Context(), capStep())
		if err != nil || r.Result != telemetry.Refused || r.Why != telemetry.RefuseSignature || r.StepID != "d-000001.1" || agents.sent() != 1 {
			t.Errorf("%+v, %v, sent %d times", r, err, agents.sent())
		}
	})
}

// What another node's agent says of a step neither ends it nor stands in the
// way of the right answer, whether it comes before the order or after.
func TestForgedReceipt(t *testing.T) {
	for _, early := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			act, agents := setup(t)
			forged := telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Done, Node: "n2", Detail: "forged"}
			agents.fail = []error{errors.New("timeout"), errors.New("timeout")}
			if early {
				act.Receipt(forged)
			} else {
				go func() { time.Sleep(100 * time.Millisecond); act.Receipt(forged) }()
			}
			r, err := act.Do(t.Context(), capStep())
			if err != nil || r.Node != "n1" || agents.effects != 1 {
				t.Errorf("early %v: %+v, %v, done %d times", early, r, err, agents.effects)
			}
			if r, err = act.Observe(t.Context(), capStep()); err != nil || r.Node != "n1" {
				t.Errorf("early %v: observed %+v, %v", early, r, err)
			}
		})
	}
}

// After a lost store the journal gives old ids to new steps: what was said of
// the old ones does not count.
func TestIDsOfANewJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		act, agents := setup(t)
		if r, err := act.Do(t.Context(), capStep()); err != nil || r.Result != telemetry.Done {
			t.Fatalf("%+v, %v", r, err)
		}
		agents.ledger = map[string]telemetry.Receipt{}
		s := capStep()
		s.Epoch.Incarnation = "b"
		if r, err := act.Do(t.Context(), s); err != nil || r.Result != telemetry.Done || agents.effects != 2 {
			t.Errorf("%+v, %v, done %d times, want 2", r, err, agents.effects)
		}
		// A late receipt of the old life, for another device.
		act.Receipt(telemetry.Receipt{StepID: "d-000002.1", Node: "n1", Target: telemetry.Target{Node: "n1", UUID: "GPU-9"}, Result: telemetry.Done})
		s.ID = "d-000002.1"
		if r, err := act.Do(t.Context(), s); err != nil || r.Target.UUID != "GPU-1" || agents.effects != 3 {
			t.Errorf("%+v, %v, done %d times, want 3", r, err, agents.effects)
		}
	})
}
