package rebalancer_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// log is a journal that keeps records as the bus would: as bytes.
type log struct {
	records [][]byte
	back    []telemetry.Record // as they read back
	// lax forgets the compare of compare-and-append; encode stands between a
	// record and its bytes. Both plant defects.
	lax    bool
	encode func(*telemetry.Record)
	// failing is asked before and after a record is kept.
	failing func(kept bool) error
	audit   func(r telemetry.Record)
}

func (l *log) append(expect uint64, r telemetry.Record) (uint64, error) {
	if expect != uint64(len(l.records)) && !l.lax {
		return 0, rebalancer.ErrConflict
	}
	if err := l.failing(false); err != nil {
		return 0, err
	}
	if l.encode != nil {
		l.encode(&r)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	l.records = append(l.records, data)
	var back telemetry.Record
	if err := json.Unmarshal(data, &back); err != nil {
		return 0, err
	}
	l.back = append(l.back, back)
	l.audit(back)
	return uint64(len(l.records)), l.failing(true)
}

// fold brings a Memory up to the end of the journal.
func (l *log) fold(m *rebalancer.Memory) error {
	for i := int(m.Seq); i < len(l.records); i++ {
		if err := m.Fold(uint64(i+1), l.back[i]); err != nil {
			return err
		}
	}
	return nil
}

var errCrash = errors.New("the process is gone")

// errand is a step on its way.
type errand struct {
	step    telemetry.Step
	ask     bool
	noticed bool // it has waited for the end of its notice
}

// process is a rebalancer as the Engine runs it, but one thing after another,
// so that a seed is a history and a crash can be put anywhere.
type process struct {
	s       *simulated
	name    string
	planner rebalancer.Planner
	mem     rebalancer.Memory
	errands map[string]*errand
	known   map[string]telemetry.Receipt
	synced  bool
	under   uint64
	leads   bool
	epoch   telemetry.Epoch
	back    time.Time // when it starts again
}

// crash loses all that is in neither the journal nor the stream of receipts.
func (p *process) crash() {
	p.mem, p.errands = rebalancer.Memory{}, map[string]*errand{}
	p.synced, p.back = false, p.s.world.soon(45)
	p.s.crashes++
}

func (p *process) dead() bool { return p.s.world.now.Before(p.back) }

func (p *process) sync() bool {
	if p.synced && p.under == p.epoch.Revision {
		return true
	}
	m := rebalancer.Reread(p.mem)
	m.Leading, m.Epoch = true, p.epoch
	if err := p.s.log.fold(&m); err != nil {
		p.s.fail("memory", "replay: %v", err)
		return false
	}
	if m.Fenced(p.epoch) && !p.s.unfenced {
		return false
	}
	p.mem, p.synced, p.under = m, true, p.epoch.Revision
	return true
}

// pass is one look at a View and all that follows from it.
func (p *process) pass() {
	v := p.s.newest
	if p.dead() || p.leads && !p.sync() {
		return
	}
	p.mem.Leading, p.mem.Epoch = p.leads, p.epoch
	if p.s.forget != nil {
		p.s.forget(&p.mem)
	}
	p.s.planned, p.s.work = maps.Clone(p.s.world.shown), p.s.world.shownWork
	again := p.mem.Clone()
	plan, next := p.planner.Step(p.s.world.now, v, p.mem)
	if len(plan.Entries) > 0 || p.s.rng.IntN(4) == 0 { // what is planned is what a dry run says
		if dry, _ := p.planner.Step(p.s.world.now, v, again); !reflect.DeepEqual(dry, plan) {
			p.s.fail("pure", "two plans for one View and Memory:\n%+v\n%+v", dry, plan)
		}
	}
	p.mem = next
	if !p.leads && len(plan.Entries) > 0 {
		p.s.fail("one leader", "%s does not lead and would write %d entries", p.name, len(plan.Entries))
	}
	p.s.meanwhile()
	p.carryOut(v, plan)
	if !p.leads {
		clear(p.errands) // abandoned; the next leader asks
	}
	if !p.leads || p.dead() {
		return
	}
	for _, d := range p.open() {
		if s := pending(d); s != nil && d.Outcome != telemetry.OutcomeRecommended && d.Outcome != telemetry.OutcomeAwaiting {
			p.start(*s, true)
		}
	}
	p.runErrands()
}

func (p *process) open() []*telemetry.Decision {
	return slices.SortedFunc(maps.Values(p.mem.Decisions), func(a, b *telemetry.Decision) int { return cmp.Compare(a.ID, b.ID) })
}

func pending(d *telemetry.Decision) *telemetry.Step {
	for i := range d.Steps {
		if d.Steps[i].Receipt == nil {
			return &d.Steps[i].Step
		}
	}
	return nil
}

func (p *process) carryOut(v *cluster.View, plan rebalancer.Plan) {
	for _, e := range plan.Entries {
		if !p.write(telemetry.Record{Topic: e.Topic, Decision: e.Decision, Breaker: e.Breaker, Refused: e.Refused}) {
			return
		}
		if e.Do == nil {
			continue
		}
		if newest := p.s.newest; newest != v {
			if why := p.planner.ChangedSince(p.s.world.now, newest, &p.mem, e.Decision, *e.Do); why != nil {
				p.giveUp(*e.Do, *why)
				continue
			}
		}
		p.start(*e.Do, false)
	}
}

func (p *process) giveUp(s telemetry.Step, why telemetry.Refusal) {
	p.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: rebalancer.WithoutStep(p.mem.Decisions[s.Decision], s, why, p.s.world.now)})
}

func (p *process) start(s telemetry.Step, ask bool) {
	if p.errands[s.ID] == nil {
		p.errands[s.ID] = &errand{step: s, ask: ask}
	}
}

func (p *process) write(r telemetry.Record) bool {
	if p.dead() || !p.synced || p.under != p.epoch.Revision {
		return false
	}
	r.ID, r.Time, r.Epoch = fmt.Sprintf("%s-%d", p.name, p.mem.Seq+1), p.s.world.now, p.epoch
	seq, err := p.s.log.append(p.mem.Seq, r)
	if errors.Is(err, errCrash) {
		p.crash()
	}
	if err != nil {
		p.synced = false
		return false
	}
	if err := p.mem.Fold(seq, r); err != nil {
		p.s.fail("memory", "fold: %v", err)
	}
	p.s.wrote = true
	if r.Topic != telemetry.TopicSnapshot && p.mem.Seq-p.mem.SnapshotSeq >= 40 {
		data, err := p.mem.Snapshot()
		if err != nil {
			p.s.fail("memory", "snapshot: %v", err)
		}
		p.write(telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data})
	}
	return true
}

// runErrands makes one attempt at every step on its way.
func (p *process) runErrands() {
	for _, id := range slices.Sorted(maps.Keys(p.errands)) {
		x := p.errands[id]
		switch {
		case x == nil || p.dead():
		case p.s.world.now.Before(x.step.NotBefore):
			x.noticed = true
		case x.noticed && !x.ask:
			p.unseen(x.step, false)
		default:
			p.errand(x)
		}
	}
}

func (p *process) errand(x *errand) {
	r, err := p.attempt(x)
	last := x.step.Deadline
	if x.step.Kind == telemetry.StepPowerCap {
		last = last.Add(time.Duration(x.step.Lease))
	}
	if p.s.patient {
		last = last.Add(time.Hour)
	}
	switch {
	case err == nil && r.Result == telemetry.Unknown && x.ask:
		p.unseen(x.step, true)
	case err == nil && r.Result != telemetry.Pending && r.Result != telemetry.Unknown:
		delete(p.errands, x.step.ID)
		p.received(r)
	case p.s.world.now.After(last):
		delete(p.errands, x.step.ID)
		p.received(p.nothingKnown(x.step))
	}
	x.ask = true
}

func (p *process) nothingKnown(s telemetry.Step) telemetry.Receipt {
	return telemetry.Receipt{StepID: s.ID, Decision: s.Decision, Kind: s.Kind, Target: s.Target, Result: telemetry.Unknown, Detail: "no answer", Ended: p.s.world.now}
}

// attempt orders a step or asks for it, as the actuator for agents does.
func (p *process) attempt(x *errand) (telemetry.Receipt, error) {
	if r, ok := p.known[x.step.ID]; ok {
		return r, nil
	}
	s := x.step
	if x.ask {
		if s.Kind != telemetry.StepPreempt && !p.s.world.now.Before(s.Deadline) {
			return telemetry.Receipt{StepID: s.ID, Result: telemetry.Unknown}, nil
		}
		return p.s.world.ask(s)
	}
	s.Epoch = p.epoch
	p.s.audit.ordered(p, s)
	r, err := p.s.world.order(s)
	if err == nil {
		p.keep(r)
	}
	return r, err
}

func (p *process) keep(r telemetry.Receipt) {
	if _, twice := p.known[r.StepID]; !twice && !r.Spontaneous {
		p.known[r.StepID] = r
	}
}

func (p *process) received(r telemetry.Receipt) {
	d := p.mem.Decisions[r.Decision]
	if d == nil {
		return
	}
	if next := rebalancer.WithReceipt(d, r, p.s.world.now); next != nil {
		p.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: next})
	}
}

// unseen is what follows when the backend knows nothing of a step, or its
// notice is over.
func (p *process) unseen(s telemetry.Step, asked bool) {
	delete(p.errands, s.ID)
	d := p.mem.Decisions[s.Decision]
	if d == nil || pending(d) == nil || pending(d).ID != s.ID {
		return
	}
	act, over := s.Kind != telemetry.StepRenew && s.Kind != telemetry.StepUndo, p.s.world.now.After(rebalancer.BeginBy(s))
	switch why := p.planner.ChangedSince(p.s.world.now, p.s.newest, &p.mem, d, s); {
	case over && (why == nil || !act):
		p.received(rebalancer.NeverBegun(s, p.s.world.now))
	case why != nil && !over && asked && act: // it may be on its way
	case why != nil:
		p.giveUp(s, *why)
	default:
		p.start(s, false)
		p.errand(p.errands[s.ID])
	}
}

// news takes in a receipt from the bus.
func (p *process) news(r telemetry.Receipt) {
	p.keep(r)
	if p.dead() || !p.leads || !p.sync() {
		return
	}
	p.s.heard[r.StepID] = true
	for _, d := range append(p.open(), p.mem.Closed...) {
		if next := rebalancer.WithNews(d, r, p.s.world.now); next != nil {
			p.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: next})
			return
		}
	}
}

// The Engine adds nothing to what Step plans: the same world, stepped by hand,
// comes to the same records.
func TestEngineIsStep(t *testing.T) {
	var engine, stepped []string
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 2)
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.inlet["n00"] = 50
		l.run(3 * time.Minute)
		w.inlet["n00"] = 25
		l.run(5 * time.Minute)
		engine = kindsOf(l.journal.all())
	})
	w := newWorld(1, 2)
	b := newBench(t, w)
	b.run(5 * time.Second)
	w.inlet["n00"] = 50
	b.run(3 * time.Minute)
	w.inlet["n00"] = 25
	b.run(5 * time.Minute)
	stepped = kindsOf(b.journal.all())
	if len(engine) < 8 || !slices.Equal(engine, stepped) {
		t.Errorf("the engine wrote\n%q\nstep by step it is\n%q", engine, stepped)
	}
}

// kindsOf is what records say, apart from their order between GPUs.
func kindsOf(records []telemetry.Record) []string {
	var out []string
	for _, r := range records {
		if r.Decision != nil {
			out = append(out, fmt.Sprintf("%s %s %s %d steps", r.Topic, r.Decision.Target.UUID, r.Decision.Outcome, len(r.Decision.Steps)))
		}
	}
	slices.Sort(out)
	return out
}
