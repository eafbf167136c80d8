package rebalancer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A name that no policy has must not be taken for one that has been switched.
func TestModeOfAPolicyThatIsNotThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		l.run(2 * time.Second)
		err := l.ask(rebalancer.VerbMode, rebalancer.Request{By: "ann", Policy: "termal", Mode: telemetry.Observe}, nil)
		if err == nil || !strings.Contains(err.Error(), "termal") || !strings.Contains(err.Error(), "thermal") {
			t.Errorf("%v, want an error that names it and those there are", err)
		}
		for _, policy := range []string{"", "thermal"} {
			if err := l.ask(rebalancer.VerbMode, rebalancer.Request{By: "ann", Policy: policy, Mode: telemetry.Observe}, nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// Steps whose notice runs keep nobody else from acting.
func TestNoticeKeepsNoOtherStepWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(20, 4)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Notice = telemetry.Duration(5 * time.Minute) })
		})
		l.run(2 * time.Second)
		early := w.device("GPU-00-0")
		early.r = 0.1
		l.until(6*time.Minute, "acted", func() bool { return early.sets == 1 })
		for _, d := range w.devices[1:] {
			d.r = 0.1
		}
		renewed := early.leaseEnds
		l.until(4*time.Minute, "renewed while 79 others wait", func() bool { return early.leaseEnds.After(renewed) })
	})
}

// An undo that is planned and given up again and again does not make the record
// grow without end.
func TestARecordKeepsSoManyRefusals(t *testing.T) {
	d := &telemetry.Decision{ID: "d-000001", Outcome: telemetry.OutcomeVerified}
	s := telemetry.Step{ID: "d-000001.2", Kind: telemetry.StepUndo}
	for range 3 * telemetry.MaxDetailedRefusals {
		d.Steps = []telemetry.StepRecord{{Step: s}}
		d = rebalancer.WithoutStep(d, s, rebalancer.Refuse(telemetry.RefusalChangedSince, telemetry.Target{}, "hot again"), start)
	}
	if n := len(d.Refusals); n > telemetry.MaxDetailedRefusals {
		t.Errorf("%d refusals in one record", n)
	}
}
