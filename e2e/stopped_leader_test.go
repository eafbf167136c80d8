package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestStoppedLeader stops a leader with SIGSTOP past its lease, in the very
// moment between its right to act and the act, and continues it once another
// leads: what it sends then is refused where it arrives, nothing is done twice,
// and it waits for the lease like any other.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	t.Run("an order that is no longer wanted", stoppedBeforeAnOldOrder)
	t.Run("an order that the other has given too", stoppedBeforeTheSameOrder)
	t.Run("a record", stoppedBeforeARecord)
}

// stopped is a leader that has stopped itself at a point, and the other one,
// which leads by now.
type stopped struct {
	*crashRig
	first, second *proc
}

func stopAt(t *testing.T, point string, events ...event) *stopped {
	t.Helper()
	r := newCrashRig(t, quick(events...))
	s := &stopped{crashRig: r, first: r.run("rebalancer", "EVENKEEL_STOP_AT="+point)}
	r.eventually(30*time.Second, "the first leads", func() error { return r.leads("rebalancer-1") })
	s.second = r.run("standby")
	r.run("agent")
	r.eventually(60*time.Second, "the first has stopped", func() error {
		return s.first.says("crash point "+point+"#1: stopped", s.first.state("T"))
	})
	r.eventually(40*time.Second, "the second leads", func() error { return r.leads("standby-1") })
	return s
}

// stoppedBeforeAnOldOrder: while the leader is stopped the heat is over, so the
// other does not give its order again, and acts elsewhere. The agent then knows
// the later epoch, and the old order comes, within its time.
func stoppedBeforeAnOldOrder(t *testing.T) {
	t.Parallel()
	s := stopAt(t, "order.before",
		event{gpu: 0, at: 6 * time.Second, lasts: 16 * time.Second, factor: hot},
		event{gpu: 1, at: 18 * time.Second, lasts: 60 * time.Second, factor: hot})
	s.eventually(60*time.Second, "the other caps the other GPU", func() error {
		ds := s.decisions()
		if len(ds) != 2 || ds[0].Outcome != telemetry.OutcomeIntended || ds[1].Outcome != telemetry.OutcomeActed {
			return fmt.Errorf("%d decisions: %v", len(ds), outcomes(ds))
		}
		return nil
	})
	old := s.decisions()[0].Steps[0].Step
	if left := time.Until(old.Deadline); left < time.Second {
		t.Fatalf("this machine is too slow: the order expires in %s", left)
	}
	s.signal(t, s.first, syscall.SIGCONT)
	s.eventually(20*time.Second, "the agent refuses the order of the earlier leader", func() error {
		if n := s.orders("power_cap", "refused"); n < 1 {
			return fmt.Errorf("%g refused", n)
		}
		return s.agentSays(`id=` + old.ID + ` kind=power_cap .*result=refused why=epoch`)
	})
	s.follows(t)
	if ws := s.writes()[0]; len(ws) > 0 {
		t.Errorf("GPU 0 was written: %+v", ws)
	}

	// It takes its turn again when the other dies.
	s.second.kill()
	s.eventually(40*time.Second, "the first leads again", func() error {
		return s.first.says("leading=true", nil, "leading=false", "leading=true")
	})
	s.endsRight(t)
}

// stoppedBeforeTheSameOrder: the heat goes on, so the other gives the order of
// the same step. The earlier one, of an earlier epoch, comes later and is
// answered with what was done. Then the roles change, by a stop that comes from
// outside at no point in particular.
func stoppedBeforeTheSameOrder(t *testing.T) {
	t.Parallel()
	s := stopAt(t, "order.before", event{gpu: 0, at: 6 * time.Second, lasts: 60 * time.Second, factor: hot})
	s.eventually(60*time.Second, "the other acts", func() error { return s.holds(1) })
	step := s.decisions()[0].Steps[0].Step
	s.signal(t, s.first, syscall.SIGCONT)
	s.eventually(20*time.Second, "the order of the earlier leader is answered", func() error {
		if n := s.orders("power_cap", "done"); n != 2 {
			return fmt.Errorf("%g orders answered done", n)
		}
		return s.agentSays(`id=` + step.ID + ` kind=power_cap .*result=done`)
	})
	s.follows(t)
	if ws := s.writes()[0]; len(ws) != 1 {
		t.Errorf("GPU 0 was written: %+v", ws)
	}

	s.signal(t, s.second, syscall.SIGSTOP)
	s.eventually(40*time.Second, "the first leads again", func() error {
		return s.first.says("leading=true", nil, "leading=false", "leading=true")
	})
	s.signal(t, s.second, syscall.SIGCONT)
	s.eventually(20*time.Second, "the second follows", func() error { return s.second.says("leading=true", nil, "leading=false") })
	s.endsRight(t)
}

// stoppedBeforeARecord: the intent is written by neither an earlier leader nor
// twice. What it sends when it goes on finds that the journal has moved on.
func stoppedBeforeARecord(t *testing.T) {
	t.Parallel()
	s := stopAt(t, "journal.intent.power_cap.before", event{gpu: 0, at: 6 * time.Second, lasts: 60 * time.Second, factor: hot})
	s.eventually(60*time.Second, "the other acts", func() error { return s.holds(1) })
	s.signal(t, s.first, syscall.SIGCONT)
	s.eventually(20*time.Second, "the first finds the journal moved on", func() error {
		return s.first.says("journal has moved on", nil)
	})
	s.follows(t)
	s.endsRight(t)
	epochs := map[uint64]bool{}
	for _, rec := range s.journal() {
		epochs[rec.Epoch.Revision] = true
	}
	if ds := s.decisions(); len(ds) != 1 || len(epochs) != 1 {
		t.Errorf("%d decisions, records of %d epochs; want 1 of 1", len(ds), len(epochs))
	}
}

// follows wants the first to know that it does not lead.
func (s *stopped) follows(t *testing.T) {
	t.Helper()
	s.eventually(20*time.Second, "the first follows", func() error {
		if v, err := s.metric("rebalancer", "evenkeel_leader"); err != nil {
			return err
		} else if v != 0 {
			return fmt.Errorf("evenkeel_leader is %g", v)
		}
		return s.first.says("leading=true", nil, "leading=false")
	})
	if v, err := s.metric("standby", "evenkeel_leader"); err != nil || v != 1 {
		t.Errorf("the other's evenkeel_leader is %g, %v", v, err)
	}
	if err := s.sound(); err != nil {
		t.Error(err)
	}
}

func (s *stopped) signal(t *testing.T, p *proc, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGSTOP {
		eventually(t, 5*time.Second, p.name+" is stopped", func() error { return p.state("T") })
	}
}

// state wants a process in a state of /proc/PID/stat, T for stopped.
func (p *proc) state(want string) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if _, rest, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(rest, want) {
		err = fmt.Errorf("%s is in state %.1s, want %s", p.name, rest, want)
	}
	return err
}

// says wants texts in the log of a process, in this order, unless something
// else is wrong already.
func (p *proc) says(text string, err error, then ...string) error {
	if err != nil {
		return err
	}
	log, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err
	}
	rest := string(log)
	for _, want := range append([]string{text}, then...) {
		i := strings.Index(rest, want)
		if i < 0 {
			return fmt.Errorf("%s does not say %q (after what came before it)", p.name, want)
		}
		rest = rest[i+len(want):]
	}
	return nil
}

// agentSays wants a line in the log of the agent.
func (r *crashRig) agentSays(pattern string) error {
	log, err := os.ReadFile(r.dir + "/agent-1.log")
	if err == nil && !regexp.MustCompile(pattern).Match(log) {
		err = fmt.Errorf("the agent does not say %s", pattern)
	}
	return err
}

// orders is evenkeel_orders_total at the agent; -1 if it is not to be had.
func (r *crashRig) orders(kind, result string) float64 {
	v, err := r.metric("agent", fmt.Sprintf("evenkeel_orders_total{kind=%q,result=%q}", kind, result))
	if err != nil {
		return -1
	}
	return v
}

func outcomes(ds []*telemetry.Decision) (out []telemetry.Outcome) {
	for _, d := range ds {
		out = append(out, d.Outcome)
	}
	return out
}
