package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Name is the backend that steps for agents name.
const Name = "node"

const (
	// repeatEvery is the pause between two sends of an order.
	repeatEvery = 500 * time.Millisecond
	// kept bounds the receipts and orders that are remembered.
	kept = 4096
)

// kinds are the steps that an agent takes.
var kinds = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepRenew, telemetry.StepUndo, telemetry.StepPreempt}

// Orders sends a signed order to the agent of a node and returns its answer. An
// error says that there was none: no agent, no connection, no time.
type Orders interface {
	RequestOrder(ctx context.Context, node string, data []byte) (reply []byte, err error)
}

// Actuator implements rebalancer.Actuator for the agents.
type Actuator struct {
	orders Orders
	signer *telemetry.Signer
	now    func() time.Time

	mu       sync.Mutex
	receipts remembered[telemetry.Receipt]
	sent     remembered[telemetry.Step]
	waiting  map[string]chan struct{} // closed when the receipt has come
}

// New makes the actuator.
func New(orders Orders, signer *telemetry.Signer, now func() time.Time) *Actuator {
	return &Actuator{orders: orders, signer: signer, now: now, waiting: map[string]chan struct{}{}}
}

var _ rebalancer.Actuator = (*Actuator)(nil)

// Name is the backend's name in a step.
func (a *Actuator) Name() string { return Name }

// Can says what the View shows to stand against a step. The agent's own file
// may still refuse it.
func (a *Actuator) Can(v *cluster.View, s telemetry.Step) []telemetry.Refusal {
	no := func(reason telemetry.RefusalReason, format string, args ...any) []telemetry.Refusal {
		return []telemetry.Refusal{rebalancer.Refuse(reason, s.Target, format, args...)}
	}
	if !slices.Contains(kinds, s.Kind) {
		return no(telemetry.RefusalUnsupported, "agents take no %s", s.Kind)
	}
	n, ok := v.Node(s.Target.Node)
	switch {
	case !ok:
		return no(telemetry.RefusalUnknown, "node %q is not in view", s.Target.Node)
	case n.State != cluster.NodeUp:
		return no(telemetry.RefusalStale, "node %s is %s", n.Name, n.State)
	case s.Kind == telemetry.StepPreempt:
		return canPreempt(v, n, s)
	case s.Target.UUID == "" || s.Target.GI != nil:
		return no(telemetry.RefusalUnsupported, "power limits belong to whole devices")
	}
	if w := s.Params.PowerLimitWatts; s.Kind == telemetry.StepPowerCap && (w == nil || *w <= 0) {
		return no(telemetry.RefusalUnknown, "a power cap without watts")
	}
	return nil
}

// canPreempt wants the very process that is meant: its node in the same life,
// and still told of as a holder of a device.
func canPreempt(v *cluster.View, n *cluster.Node, s telemetry.Step) []telemetry.Refusal {
	no := func(reason telemetry.RefusalReason, format string, args ...any) []telemetry.Refusal {
		return []telemetry.Refusal{rebalancer.Refuse(reason, s.Target, format, args...)}
	}
	t := s.Target
	switch {
	case t.PID <= 0 || t.PIDStart == 0 || t.BootID == "":
		return no(telemetry.RefusalUnsupported, "a process is named by its pid, its start and the boot of its node; one is missing")
	case n.BootID != t.BootID:
		return no(telemetry.RefusalUnknown, "node %s was started anew since", n.Name)
	case s.Params.Grace <= 0:
		return no(telemetry.RefusalUnsupported, "a process is given some time to end by itself")
	}
	w, ok := v.Workload(t.Workload)
	if !ok || !slices.ContainsFunc(w.Members, func(m telemetry.WorkloadMember) bool { return m.Node == n.Name }) {
		return no(telemetry.RefusalUnknown, "%s has no process on %s any more", t.Workload, n.Name)
	}
	return nil
}

// Do sends the order until there is a receipt, ctx ends or the step expires.
func (a *Actuator) Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	a.forgetOther(s)
	if r, ok := a.receipt(s.ID); ok && about(r, s) {
		return r, nil
	}
	come := a.expect(s)
	for {
		now := a.now()
		r, _, err := a.send(ctx, s, now, rebalancer.BeginBy(s))
		if err == nil && r.Result != telemetry.Pending {
			a.Receipt(r)
			return r, nil
		}
		if errors.Is(err, errNotSendable) {
			return telemetry.Receipt{}, err
		}
		t := time.NewTimer(repeatEvery)
		select {
		case <-come:
			t.Stop()
			if r, ok := a.receipt(s.ID); ok && about(r, s) {
				return r, nil
			}
		case <-ctx.Done():
			t.Stop()
			return telemetry.Receipt{}, fmt.Errorf("order %s to %s: %w", s.ID, s.Target.Node, errors.Join(ctx.Err(), err))
		case <-t.C:
		}
	}
}

// Observe says what became of a step: from the receipts that came, else by the
// same order with its time long over. An agent looks an id up in its ledger
// before it looks at the time, and begins nothing that has expired.
func (a *Actuator) Observe(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	a.forgetOther(s)
	if r, ok := a.receipt(s.ID); ok && about(r, s) {
		return r, nil
	}
	unknown := telemetry.Receipt{StepID: s.ID, Result: telemetry.Unknown}
	if !a.now().Before(s.Deadline) && s.Kind != telemetry.StepPreempt {
		return unknown, nil // what is in force ends with its lease; what was ended has no other end
	}
	r, believed, err := a.send(ctx, s, telemetry.AskedAt, telemetry.AskedAt.Add(time.Second))
	switch {
	case err != nil:
		return telemetry.Receipt{}, err
	case !believed:
		return telemetry.Receipt{}, fmt.Errorf("step %s: its agent does not believe who asks: %s", s.ID, r.Detail)
	case r.Result == telemetry.Refused && r.Why == telemetry.RefuseExpired:
		return unknown, nil
	case r.Result != telemetry.Pending:
		a.Receipt(r)
	}
	return r, nil
}

// Receipt takes in a receipt from the bus.
func (a *Actuator) Receipt(r telemetry.Receipt) {
	final := r.Result == telemetry.Done || r.Result == telemetry.Refused || r.Result == telemetry.Failed
	if !final || r.Spontaneous && r.Kind == telemetry.StepUndo {
		return // the end of a lease is not what became of the order
	}
	if r.Result == telemetry.Refused && r.Why == telemetry.RefuseEpoch {
		return // it is about who asked: the next leader's order of the step is another matter
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, sent := a.sent.get(r.StepID)
	if sent && !about(r, s) {
		return // another node cannot know
	}
	if old, twice := a.receipts.get(r.StepID); twice && (!sent || about(old, s)) {
		return // the first one is final
	}
	a.receipts.put(r.StepID, r)
	if come, ok := a.waiting[r.StepID]; ok {
		close(come)
		delete(a.waiting, r.StepID)
	}
}

func (a *Actuator) receipt(id string) (telemetry.Receipt, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.receipts.get(id)
}

// about says whether a receipt can be one of the step: from its node, on its
// device.
func about(r telemetry.Receipt, s telemetry.Step) bool {
	return (r.Node == "" || r.Node == s.Target.Node) && (r.Target.UUID == "" || r.Target.UUID == s.Target.UUID)
}

// forgetOther drops what is remembered of another step with this one's id: a
// journal that was lost and made anew gives the same ids again, under another
// life of the lease bucket.
func (a *Actuator) forgetOther(s telemetry.Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, ok := a.sent.get(s.ID); ok && old.Epoch.Incarnation != s.Epoch.Incarnation {
		a.receipts.drop(s.ID)
		a.sent.drop(s.ID)
		delete(a.waiting, s.ID)
	}
}

// expect remembers an order and returns what closes when its receipt comes.
func (a *Actuator) expect(s telemetry.Step) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, dropped := a.sent.put(s.ID, s); dropped {
		delete(a.waiting, old)
	}
	if a.waiting[s.ID] == nil {
		a.waiting[s.ID] = make(chan struct{})
	}
	return a.waiting[s.ID]
}

// errNotSendable marks what no repetition mends.
var errNotSendable = errors.New("order cannot be sent")

// send makes one request. An answer that is not believed is one of an agent
// that does not believe the order.
func (a *Actuator) send(ctx context.Context, s telemetry.Step, at, expires time.Time) (r telemetry.Receipt, believed bool, err error) {
	o := telemetry.Order{
		ID: s.ID, Decision: s.Decision, Kind: s.Kind, Target: s.Target, Params: s.Params, Epoch: s.Epoch, DryRun: s.DryRun,
		SentAt: at, Expires: expires, Lease: s.Lease,
	}
	if s.NotBefore.After(at) && at != telemetry.AskedAt { // a time that has come must not wait for a slow node's clock
		o.NotBefore = s.NotBefore
	}
	data, err := a.signer.SignOrder(&o)
	if err != nil {
		return r, false, fmt.Errorf("%w: %w", errNotSendable, err)
	}
	reply, err := a.orders.RequestOrder(ctx, s.Target.Node, data)
	if err != nil {
		return r, false, fmt.Errorf("order %s to %s: %w", s.ID, s.Target.Node, err)
	}
	if err := json.Unmarshal(reply, &r); err != nil {
		return r, false, fmt.Errorf("receipt of order %s: %w", s.ID, err)
	}
	if believed = r.StepID != ""; !believed && r.Result == telemetry.Refused {
		// An agent that cannot believe an order believes nothing in it, its id
		// included; the answer is still one to this request.
		r.StepID, r.Decision, r.Kind, r.Target = s.ID, s.Decision, s.Kind, s.Target
	}
	if r.StepID != s.ID || r.Node != "" && r.Node != s.Target.Node {
		return r, false, fmt.Errorf("receipt of order %s is for %q on %q", s.ID, r.StepID, r.Node)
	}
	return r, believed, nil
}

// remembered holds the last values put, at most kept.
type remembered[V any] struct {
	values map[string]V
	order  []string
}

func (m *remembered[V]) get(id string) (V, bool) {
	v, ok := m.values[id]
	return v, ok
}

func (m *remembered[V]) drop(id string) {
	delete(m.values, id)
	m.order = slices.DeleteFunc(m.order, func(x string) bool { return x == id })
}

// put adds a value and names the one that had to go.
func (m *remembered[V]) put(id string, v V) (gone string, dropped bool) {
	if m.values == nil {
		m.values = map[string]V{}
	}
	if _, ok := m.values[id]; !ok {
		m.order = append(m.order, id)
	}
	m.values[id] = v
	if len(m.order) > kept {
		gone, m.order = m.order[0], m.order[1:]
		delete(m.values, gone)
		return gone, true
	}
	return "", false
}
