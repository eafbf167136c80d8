package rebalancer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// simulated is one seed: a hostile world, two rebalancers on one journal, and
// an audit of what they do.
type simulated struct {
	seed      uint64
	rng       *rand.Rand
	world     *hostile
	log       *log
	audit     *audit
	spec      rebalancer.PolicySpec
	processes []*process
	leader    int
	revision  uint64
	newest    *cluster.View
	planned   map[string]truth // of the View that is planned on
	follower  rebalancer.Memory
	inbox     []telemetry.Receipt
	wrote     bool
	crashes   int
	// found is the first violation of each invariant.
	found map[string]string
	// forget plants a defect: it is let at the Memory before each pass.
	forget func(*rebalancer.Memory)
}

// fail notes a violation.
func (s *simulated) fail(invariant, format string, args ...any) {
	if s.found[invariant] == "" {
		s.found[invariant] = fmt.Sprintf("seed %d, %s in: ", s.seed, s.world.now.Sub(start)) + fmt.Sprintf(format, args...)
	}
}

// drawSpec is a policy as people set it.
func drawSpec(rng *rand.Rand) func(*rebalancer.PolicySpec) {
	return func(p *rebalancer.PolicySpec) {
		p.Budget = rebalancer.Budget{Percent: []float64{25, 50, 100}[rng.IntN(3)], Max: rng.IntN(6), Per: []rebalancer.Scope{rebalancer.PerNode, rebalancer.PerRow, rebalancer.PerFleet}[rng.IntN(3)]}
		p.Lease = telemetry.Duration(1+rng.IntN(3)) * telemetry.Duration(time.Minute)
		p.Settle = telemetry.Duration(10+rng.IntN(30)) * telemetry.Duration(time.Second)
		p.Notice = telemetry.Duration([]int{0, 0, 0, 8, 20}[rng.IntN(5)]) * telemetry.Duration(time.Second)
		p.Filter = rebalancer.Filter{N: 1 + rng.IntN(3), M: 3 + rng.IntN(3)}
		p.Floor = []float64{0.5, 0.6}[rng.IntN(2)]
		p.MaxCut = []float64{0.1, 0.4}[rng.IntN(2)]
	}
}

func newSimulated(seed uint64, wrap func(rebalancer.Policy) rebalancer.Policy) *simulated {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := &simulated{seed: seed, rng: rng, world: newHostile(rng), revision: 1, found: map[string]string{}}
	s.audit = newAudit(s)
	s.log = &log{audit: s.audit.record, failing: s.failing}
	policies := enforcing(drawSpec(rng))
	s.spec = policies[0].Spec()
	if wrap != nil {
		policies[0] = wrap(policies[0])
	}
	for _, name := range []string{"a", "b"} {
		p := &process{s: s, name: name}
		p.planner = rebalancer.Planner{Policies: policies, Actuators: []rebalancer.Actuator{newWorld(1, 1)}, Breaker: rebalancer.DefaultBreaker, Expiry: 30 * time.Second}
		p.crash()
		p.back = time.Time{}
		s.processes = append(s.processes, p)
	}
	s.crashes = 0
	s.world.onEffect = s.audit.effect
	s.world.heard = func(r telemetry.Receipt) {
		s.inbox = append(s.inbox, r)
	}
	s.lead(0)
	return s
}

// failing makes the journal fail before or after it keeps a record, or the
// process die there.
func (s *simulated) failing(bool) error {
	switch {
	case s.world.chance(120):
		return errCrash
	case s.world.chance(120):
		return fmt.Errorf("append: %w", errLost)
	}
	return nil
}

func (s *simulated) lead(i int) {
	s.leader, s.audit.led = i, s.world.now
	s.processes[i].leads, s.processes[i].epoch = true, telemetry.Epoch{Incarnation: "sim", Revision: s.revision}
}

// change gives the lease to the other process. The old one may not notice for
// a while, which its own clock should prevent and the journal must.
func (s *simulated) change() {
	s.revision++
	old := s.processes[s.leader]
	if s.rng.IntN(2) == 0 {
		old.leads = false
	}
	s.lead(1 - s.leader)
}

// step is one second, more or less, and what happens in it.
func (s *simulated) step(dt time.Duration) {
	w := s.world
	w.advance(dt)
	for i, p := range s.processes {
		if w.chance(250) && !p.dead() {
			p.crash()
		}
		if i != s.leader && (w.calm || s.rng.IntN(3) == 0) {
			p.leads = false
		}
	}
	if s.processes[s.leader].dead() {
		s.audit.led = w.now
		if !s.processes[1-s.leader].dead() && s.rng.IntN(5) == 0 {
			s.change()
		}
	}
	if w.chance(80) {
		s.change()
	}
	for _, r := range s.inbox {
		for _, p := range s.processes {
			p.news(r)
		}
	}
	s.inbox = nil
	s.person()
	s.passes()
	s.audit.look(w.now)
	s.replay()
}

func (s *simulated) passes() {
	s.newest = s.world.view()
	for _, i := range s.rng.Perm(len(s.processes)) {
		s.processes[i].pass()
		if s.world.chance(10) {
			s.processes[i].pass() // twice on one View
		}
	}
}

// meanwhile lets the world go on between plan and act now and then.
func (s *simulated) meanwhile() {
	if s.world.chance(10) {
		s.world.advance(time.Duration(s.rng.IntN(2500)) * time.Millisecond)
		s.newest = s.world.view()
	}
}

// person pauses, resumes, undoes, and closes the breaker.
func (s *simulated) person() {
	p, yes, no := s.processes[s.leader], true, false
	write := func(topic telemetry.Topic, r telemetry.Record) {
		r.Topic = topic
		p.write(r)
	}
	switch {
	case p.dead() || !p.leads:
	case s.audit.paused && (s.rng.IntN(30) == 0 || s.world.calm):
		write(telemetry.TopicMode, telemetry.Record{Mode: &telemetry.ModeChange{Paused: &no, By: "ada"}})
	case s.world.chance(150):
		write(telemetry.TopicMode, telemetry.Record{Mode: &telemetry.ModeChange{Paused: &yes, All: true, By: "ada"}})
	case s.audit.breaker && s.rng.IntN(60) == 0:
		write(telemetry.TopicBreaker, telemetry.Record{Breaker: &telemetry.BreakerTrip{By: "ada"}})
	case s.world.chance(100):
		for _, d := range p.open() {
			if d.Outcome == telemetry.OutcomeVerified {
				write(telemetry.TopicApproval, telemetry.Record{Approval: &telemetry.Approval{Decision: d.ID, By: "ada", At: s.world.now, Verdict: rebalancer.VerdictUndo}})
				return
			}
		}
	}
}

// foldedPart is the part of a Memory that is a fold of the journal; without the
// decisions that ended long ago unless the whole is wanted.
func foldedPart(m rebalancer.Memory, whole bool) string {
	if !whole {
		m.Closed = m.Closed[max(len(m.Closed)-2, 0):]
	}
	data, err := json.Marshal(&m)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// replay holds the memory of the leader to the journal's bytes: followed record
// by record, and now and then read from the start.
func (s *simulated) replay() {
	p := s.processes[s.leader]
	if !s.wrote {
		return
	}
	s.wrote = false
	whole := s.rng.IntN(25) == 0
	if whole {
		s.follower = rebalancer.Memory{}
	}
	if err := s.log.fold(&s.follower); err != nil {
		s.fail("memory", "replay: %v", err)
	}
	if p.dead() || !p.synced || p.mem.Seq != s.follower.Seq {
		return
	}
	if replayed, live := foldedPart(s.follower, whole), foldedPart(p.mem, whole); replayed != live {
		s.fail("memory", "replayed and live differ (whole: %v):\n%s\n%s", whole, replayed, live)
	}
}

// run is five bad minutes and then time for every lease to end.
func (s *simulated) run() {
	for range 240 {
		s.step([]time.Duration{time.Second, time.Second, time.Second, 300 * time.Millisecond, 2 * time.Second}[s.rng.IntN(5)])
		if len(s.found) > 0 {
			return
		}
	}
	s.world.recover()
	for range 330 {
		s.step(2 * time.Second)
		if len(s.found) > 0 {
			return
		}
		if s.audit.over() {
			break
		}
	}
	s.audit.end()
}

// seeds are how many histories are tried.
const seeds = 200

func TestSimulation(t *testing.T) {
	var acts, crashes, records int
	for seed := range uint64(seeds) {
		s := newSimulated(seed, nil)
		s.run()
		for invariant, what := range s.found {
			t.Errorf("%s: %s", invariant, what)
		}
		acts, crashes, records = acts+s.audit.acts, crashes+s.crashes, records+len(s.log.records)
		if t.Failed() {
			break
		}
	}
	if acts < seeds || crashes < seeds {
		t.Errorf("%d acts, %d crashes in %d seeds: too tame to prove anything", acts, crashes, seeds)
	}
	t.Logf("%d seeds, %d acts, %d crashes, %d records", seeds, acts, crashes, records)
}
