package rebalancer_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
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
	breaker   rebalancer.BreakerLimits
	processes []*process
	leader    int
	revision  uint64
	newest    *cluster.View
	planned   map[string]truth                     // of the View that is planned on
	work      map[telemetry.WorkloadRef]*shownWork // likewise
	follower  rebalancer.Memory
	inbox     []telemetry.Receipt
	heard     map[string]bool // steps whose receipts a leader has had from the bus
	wrote     bool
	crashes   int
	// found is the first violation of each invariant.
	found map[string]string
	// forget plants a defect: it is let at the Memory before each pass.
	forget func(*rebalancer.Memory)
	// unfenced plants another: an old leader goes on. patient asks for ever.
	unfenced, patient bool
}

// expiry is how long a step waits for its agent to begin it.
const expiry = 30 * time.Second

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
		if rng.IntN(4) > 0 {
			p.Ladder = append(slices.Clone(p.Ladder), telemetry.ActPreempt)
		}
		p.Grace = telemetry.Duration(1+rng.IntN(40)) * telemetry.Duration(time.Second)
	}
}

func newSimulated(seed uint64, wrap func(rebalancer.Policy) rebalancer.Policy) *simulated {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := &simulated{seed: seed, rng: rng, world: newHostile(rng), revision: 1, found: map[string]string{}, heard: map[string]bool{}}
	s.audit = newAudit(s)
	s.log = &log{audit: s.audit.record, failing: s.failing}
	policies := enforcing(drawSpec(rng))
	s.spec = policies[0].Spec()
	if wrap != nil {
		policies[0] = wrap(policies[0])
	}
	s.breaker = rebalancer.DefaultBreaker
	if rng.IntN(3) > 0 { // or nothing that disturbs would be done in most histories
		s.breaker.Coverage, s.breaker.Disrupted = 0.3, 0.6
	}
	for _, name := range []string{"a", "b"} {
		p := &process{s: s, name: name, known: map[string]telemetry.Receipt{}}
		p.planner = rebalancer.Planner{Policies: policies, Actuators: []rebalancer.Actuator{newWorld(1, 1)}, Breaker: s.breaker, Expiry: expiry}
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
	case p.dead() || !p.leads || !p.sync():
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
	if p.dead() || !p.synced || s.forget != nil || p.mem.Seq != s.follower.Seq {
		return
	}
	if replayed, live := foldedPart(s.follower, whole), foldedPart(p.mem, whole); replayed != live {
		s.fail("memory", "replayed and live differ (whole: %v):\n%s\n%s", whole, replayed, live)
	}
}

// run is five bad minutes and then time for every lease to end.
func (s *simulated) run() {
	for range 180 {
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

// seeds are how many histories are tried: go test -run TestSimulation -seeds 5000
var seeds = flag.Int("seeds", 60, "histories that TestSimulation tries")

// overSeeds runs histories on all cores, until fn says that it has seen enough.
func overSeeds(n int, wrap func(rebalancer.Policy) rebalancer.Policy, arm func(*simulated), fn func(*simulated) (enough bool)) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var next atomic.Uint64
	var mu sync.Mutex
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1); seed <= uint64(n); seed = next.Add(1) {
				s := newSimulated(seed, wrap)
				if arm != nil {
					arm(s)
				}
				s.run()
				mu.Lock()
				if fn(s) {
					next.Store(uint64(n))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

func TestSimulation(t *testing.T) {
	var acts, endings, crashes, changes, records int
	feverish := func(s *simulated) {
		if s.seed%3 == 0 {
			fever(s)
		}
	}
	overSeeds(*seeds, nil, feverish, func(s *simulated) bool {
		for invariant, what := range s.found {
			t.Errorf("%s: %s", invariant, what)
		}
		acts, crashes, changes, records = acts+s.audit.acts, crashes+s.crashes, changes+int(s.revision-1), records+len(s.log.records)
		endings += s.audit.endings
		return t.Failed()
	})
	if !t.Failed() && (acts < 2**seeds || endings < *seeds/3 || crashes < *seeds || changes < *seeds) {
		t.Errorf("%d acts, %d endings, %d crashes, %d new leaders in %d seeds: too tame to prove anything", acts, endings, crashes, changes, *seeds)
	}
	t.Logf("%d seeds, %d acts, %d endings, %d crashes, %d new leaders, %d records", *seeds, acts, endings, crashes, changes, records)
}

// wrapped is a policy with a defect.
type wrapped struct {
	rebalancer.Policy
	propose func(rebalancer.Proposal) rebalancer.Proposal
	review  func(rebalancer.Review) rebalancer.Review
}

func (w wrapped) Propose(s *rebalancer.Scene, g rebalancer.Sighting, rung telemetry.ActKind) (rebalancer.Proposal, []telemetry.Refusal) {
	p, refusals := w.Policy.Propose(s, g, rung)
	if w.propose != nil && len(p.Steps) > 0 {
		p = w.propose(p)
	}
	return p, refusals
}

func (w wrapped) Review(s *rebalancer.Scene, h rebalancer.Held) rebalancer.Review {
	r := w.Policy.Review(s, h)
	if w.review != nil {
		r = w.review(r)
	}
	return r
}

// proposing plants a change of the parameters of every cap.
func proposing(change func(*telemetry.Params)) func(rebalancer.Policy) rebalancer.Policy {
	return func(p rebalancer.Policy) rebalancer.Policy {
		return wrapped{Policy: p, propose: func(pr rebalancer.Proposal) rebalancer.Proposal {
			pr.Steps = slices.Clone(pr.Steps)
			if pr.Steps[0].Kind == telemetry.StepPowerCap {
				change(&pr.Steps[0].Params)
			}
			return pr
		}}
	}
}

// defect is planted alone.
type defect struct {
	name, breaks string
	guards       []string // switched off
	wrap         func(rebalancer.Policy) rebalancer.Policy
	arm          func(*simulated)
}

// The simulation is worth what it finds: each of these defects, planted alone,
// must be found by the invariant that it breaks.
var defects = []defect{
	{name: "values of another run", breaks: "value", guards: []string{"notRestarted"}},
	{name: "stale values", breaks: "value", guards: []string{"notStale"}},
	{name: "doubtful values", breaks: "value", guards: []string{"notSuspect", "known"}},
	{name: "no budget", breaks: "budget", guards: []string{"affordable"}},
	{name: "acts on acts", breaks: "in flight", guards: []string{"free"}},
	{name: "no time to settle", breaks: "settle", guards: []string{"settled"}},
	{name: "deaf to people", breaks: "people", guards: []string{"accepted"}},
	{name: "acts while paused", breaks: "pause", guards: []string{"notPaused"}},
	{name: "no opting out", breaks: "opt-out", guards: []string{"optedIn"}},
	{name: "settle times forgotten", breaks: "settle", arm: func(s *simulated) { s.forget = func(m *rebalancer.Memory) { m.GPUs = nil } }},
	{name: "undos forgotten", breaks: "undo spacing", arm: func(s *simulated) { s.forget = func(m *rebalancer.Memory) { m.Undos = nil } }},
	{name: "decisions forgotten", breaks: "budget", arm: func(s *simulated) {
		s.forget = func(m *rebalancer.Memory) {
			if len(m.Decisions) > 2 {
				m.Decisions = nil
			}
		}
	}},
	{name: "caps below the floor", breaks: "range", wrap: proposing(func(p *telemetry.Params) { *p.PowerLimitWatts = agentFloorW - 1 })},
	{name: "undo above what was found", breaks: "range", wrap: proposing(func(p *telemetry.Params) { *p.FoundWatts = *p.PowerLimitWatts - 10 })},
	{name: "never undone", breaks: "ends", wrap: func(p rebalancer.Policy) rebalancer.Policy {
		return wrapped{Policy: p, review: func(r rebalancer.Review) rebalancer.Review { r.Enough = false; return r }}
	}},
	{name: "verified when it suits", breaks: "deadline", arm: func(s *simulated) {
		s.log.encode = func(r *telemetry.Record) {
			if r.Decision != nil && r.Decision.Outcome == telemetry.OutcomeActed {
				r.Decision.VerifyBy = r.Decision.VerifyBy.Add(time.Hour)
			}
		}
	}},
	{name: "what is written is not what is known", breaks: "memory", arm: func(s *simulated) {
		s.log.encode = func(r *telemetry.Record) {
			if r.Decision != nil {
				d := *r.Decision
				d.Approval, d.Mode = nil, telemetry.Observe
				r.Decision = &d
			}
		}
	}},
	{name: "leaders that do not heed the fence", breaks: "one leader", arm: func(s *simulated) { s.unfenced = true }},
	{name: "append without compare", breaks: "one leader", arm: func(s *simulated) { s.log.lax = true }},
	{name: "agents without a ledger", breaks: "at most once", arm: func(s *simulated) { s.world.ledgers = false }},
	{name: "a plan that depends on its history", breaks: "pure", wrap: func(p rebalancer.Policy) rebalancer.Policy {
		calls := 0
		return wrapped{Policy: p, propose: func(pr rebalancer.Proposal) rebalancer.Proposal {
			calls++
			pr.Gain += float64(calls)
			return pr
		}}
	}},
}

// endingDefects are those of acts on workloads.
var endingDefects = []defect{
	{name: "ends what is nobody's", breaks: "protected", guards: []string{"ours", "seen"}},
	{name: "ends who has opted out", breaks: "protected", guards: []string{"consenting"}},
	{name: "ends what is young", breaks: "protected", guards: []string{"grown"}, arm: fever},
	{name: "ends what an inventory protects", breaks: "protected", guards: []string{"expendable"}, arm: fever},
	{name: "ends high for low", breaks: "protected", guards: []string{"lowest"}, arm: fever},
	{name: "ends a part of a gang", breaks: "whole", guards: []string{"entire"}, arm: fever},
	{name: "ends again what was told", breaks: "twice", guards: []string{"rarelyMoved"}, arm: fever},
	{name: "ends again after a restart", breaks: "twice", arm: func(s *simulated) {
		fever(s)
		s.forget = func(m *rebalancer.Memory) { m.Moves = nil }
	}},
	{name: "two acts on one workload", breaks: "in flight", guards: []string{"whole", "free"}},
	{name: "ends over a cap on its other GPU", breaks: "in flight", guards: []string{"whole"}},
	{name: "a wave of endings", breaks: "wave", guards: []string{"unhurried"}, arm: fever},
	{name: "ends while the breaker is open", breaks: "breaker", guards: []string{"closed", "unhurried"}},
	{name: "ends while a cap would do", breaks: "cap first", wrap: func(p rebalancer.Policy) rebalancer.Policy { return capless{p} }},
	{name: "ends on a forecast", breaks: "value", guards: []string{"sustained"}, wrap: func(p rebalancer.Policy) rebalancer.Policy {
		return wrapped{Policy: capless{p}, propose: func(pr rebalancer.Proposal) rebalancer.Proposal { pr.Safety = true; return pr }}
	}},
	{name: "an ending that has no end", breaks: "deadline", arm: func(s *simulated) {
		fever(s)
		s.world.endless, s.patient = true, true
	}},
}

// fever makes every GPU too hot for caps, and every process deaf to KILL.
func fever(s *simulated) {
	for _, g := range s.world.gpus {
		g.load, g.limit, g.original, g.limitShown = 100, agentFloorW, agentFloorW, agentFloorW
		g.r, g.clogged = 3*g.r, start.Add(5*time.Minute)
	}
	s.world.stubborn = true
}

// capless says of every cap that it can go no lower.
type capless struct{ rebalancer.Policy }

func (c capless) Propose(s *rebalancer.Scene, g rebalancer.Sighting, rung telemetry.ActKind) (rebalancer.Proposal, []telemetry.Refusal) {
	if rung == telemetry.ActCap {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalAtLimit, g.Violation.Target, "so it says")}
	}
	return c.Policy.Propose(s, g, rung)
}

func TestPlantedDefectsAreFound(t *testing.T) {
	for _, d := range slices.Concat(defects, endingDefects) {
		t.Run(d.name, func(t *testing.T) {
			for _, guard := range d.guards {
				defer rebalancer.SwitchOff(guard)()
			}
			found, tried := "", 0
			others := map[string]int{}
			overSeeds(200, d.wrap, d.arm, func(s *simulated) bool {
				tried++
				for invariant, what := range s.found {
					others[invariant]++
					if invariant == d.breaks {
						found = what
					}
				}
				return found != ""
			})
			if found == "" {
				t.Errorf("not found in %d seeds, which broke %v", tried, others)
			}
			t.Logf("after %d seeds: %s", tried, found[:min(len(found), 200)])
		})
	}
}
