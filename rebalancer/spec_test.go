package rebalancer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestSpecValidate(t *testing.T) {
	good := func() rebalancer.PolicySpec { return policy.Defaults()[0] }
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		want   string
		change func(*rebalancer.PolicySpec)
	}{
		{"type: missing", func(s *rebalancer.PolicySpec) { s.Type = "" }},
		{"signal: missing", func(s *rebalancer.PolicySpec) { s.Signal = "" }},
		{`mode "": want observe`, func(s *rebalancer.PolicySpec) { s.Mode = "" }},
		{`mode "force"`, func(s *rebalancer.PolicySpec) { s.Mode = "force" }},
		{"act and aim are both 5", func(s *rebalancer.PolicySpec) { s.Aim = 5 }},
		{"filter {n: 0, m: 5}", func(s *rebalancer.PolicySpec) { s.Filter.N = 0 }},
		{"filter {n: 6, m: 5}", func(s *rebalancer.PolicySpec) { s.Filter.N = 6 }},
		{"filter {n: 3, m: 65}", func(s *rebalancer.PolicySpec) { s.Filter.M = 65 }},
		{"ladder: empty", func(s *rebalancer.PolicySpec) { s.Ladder = nil }},
		{`ladder: "kill" is not an act`, func(s *rebalancer.PolicySpec) { s.Ladder = []telemetry.ActKind{"kill"} }},
		{`ladder: "steer" must come before "cap"`, func(s *rebalancer.PolicySpec) {
			s.Ladder = []telemetry.ActKind{telemetry.ActCap, telemetry.ActSteer}
		}},
		{`ladder: "cap" must come before "cap"`, func(s *rebalancer.PolicySpec) {
			s.Ladder = []telemetry.ActKind{telemetry.ActCap, telemetry.ActCap}
		}},
		{"budget.percent 0", func(s *rebalancer.PolicySpec) { s.Budget.Percent = 0 }},
		{"budget.percent 101", func(s *rebalancer.PolicySpec) { s.Budget.Percent = 101 }},
		{"budget.max -1", func(s *rebalancer.PolicySpec) { s.Budget.Max = -1 }},
		{`budget.per "cluster"`, func(s *rebalancer.PolicySpec) { s.Budget.Per = "cluster" }},
		{"settle: want more", func(s *rebalancer.PolicySpec) { s.Settle = 0 }},
		{"notice: want", func(s *rebalancer.PolicySpec) { s.Notice = -1 }},
		{"lease 30s", func(s *rebalancer.PolicySpec) { s.Lease = telemetry.Duration(30 * time.Second) }},
		{"margin 0", func(s *rebalancer.PolicySpec) { s.Margin = 0 }},
		{"predict: want", func(s *rebalancer.PolicySpec) { s.Predict = -1 }},
		{"max_cut 0", func(s *rebalancer.PolicySpec) { s.MaxCut = 0 }},
		{"max_cut 1.5", func(s *rebalancer.PolicySpec) { s.MaxCut = 1.5 }},
	}
	for _, c := range cases {
		s := good()
		c.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	all := rebalancer.PolicySpec{}
	if err := all.Validate(); err == nil || strings.Count(err.Error(), "\n") < 8 {
		t.Errorf("an empty spec is not told all that it lacks: %v", err)
	}
}

func TestPolicyFile(t *testing.T) {
	good := rebalancer.PolicyFile{APIVersion: "evenkeel/v1", Kind: "Policy", Spec: policy.Defaults()[0]}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*rebalancer.PolicyFile){
		func(f *rebalancer.PolicyFile) { f.APIVersion = "v2" },
		func(f *rebalancer.PolicyFile) { f.Kind = "policy" },
		func(f *rebalancer.PolicyFile) { f.Spec.Mode = "" },
	} {
		f := good
		change(&f)
		if f.Validate() == nil {
			t.Errorf("accepted: %+v", f)
		}
	}
}

func TestRevisionFollowsTheContent(t *testing.T) {
	a, b := policy.Defaults()[0], policy.Defaults()[0]
	if a.Revision() != b.Revision() || len(a.Revision()) != 8 {
		t.Errorf("revisions %q and %q of the same spec", a.Revision(), b.Revision())
	}
	b.Aim = 9
	if a.Revision() == b.Revision() {
		t.Error("another aim, the same revision")
	}
}
