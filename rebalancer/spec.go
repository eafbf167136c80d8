package rebalancer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// APIVersion and PolicyKind head a policy file.
const (
	APIVersion = "evenkeel/v1"
	PolicyKind = "Policy"
)

// PolicyFile is a policy as it stands in a file.
type PolicyFile struct {
	APIVersion string     `yaml:"apiVersion"`
	Kind       string     `yaml:"kind"`
	Spec       PolicySpec `yaml:"spec"`
}

// Validate checks the head and the spec.
func (f PolicyFile) Validate() error {
	if f.APIVersion != APIVersion || f.Kind != PolicyKind {
		return fmt.Errorf("apiVersion %q, kind %q: want %s, %s", f.APIVersion, f.Kind, APIVersion, PolicyKind)
	}
	return f.Spec.Validate()
}

// PolicySpec is what a person sets on a policy. Marks are in the unit of the
// signal.
type PolicySpec struct {
	Type     string         `yaml:"type" json:"type"`
	Mode     telemetry.Mode `yaml:"mode" json:"mode"`
	Priority int            `yaml:"priority" json:"priority"`
	Signal   string         `yaml:"signal" json:"signal"`
	// Act and Aim are the two marks: act beyond the one, aim for the other.
	Act    float64 `yaml:"act" json:"act"`
	Aim    float64 `yaml:"aim" json:"aim"`
	Filter Filter  `yaml:"filter" json:"filter"`
	// Ladder lists the acts that the policy may take, cheapest first.
	Ladder []telemetry.ActKind `yaml:"ladder" json:"ladder"`
	Budget Budget              `yaml:"budget" json:"budget"`
	// Settle is how long a GPU is left alone after an act on it.
	Settle telemetry.Duration `yaml:"settle" json:"settle"`
	// Notice is the time between the journalled intent and the act.
	Notice telemetry.Duration `yaml:"notice" json:"notice"`
	// Grace is how long a process that is preempted has to end by itself, where
	// its checkpoint does not say.
	Grace telemetry.Duration `yaml:"grace" json:"grace"`
	// Lease is how long an effect lasts unless it is renewed.
	Lease telemetry.Duration `yaml:"lease" json:"lease"`
	// Margin is how far beyond the aim the signal must be predicted before an
	// act is undone.
	Margin float64 `yaml:"margin" json:"margin"`
	// Predict counts a sample as beyond the mark if the present slope reaches
	// the limit within this time. Zero switches prediction off.
	Predict telemetry.Duration `yaml:"predict" json:"predict"`
	// MaxCut is the largest cut of one power cap, as a share of the device's
	// default limit.
	MaxCut float64 `yaml:"max_cut" json:"max_cut"`
	// Floor is the least power limit that a cap sets, as a share of the device's
	// default limit. Agents have a limit of their own, half unless their file
	// says otherwise, and refuse what is below it.
	Floor float64 `yaml:"floor" json:"floor"`
}

// Filter asks for N samples beyond the mark among the last M.
type Filter struct {
	N int `yaml:"n" json:"n"`
	M int `yaml:"m" json:"m"`
}

// Scope is what a budget counts in.
type Scope string

// Budget scopes.
const (
	PerNode  Scope = "node"
	PerRack  Scope = "rack"
	PerRow   Scope = "row"
	PerFleet Scope = "fleet"
)

// Budget bounds how many GPUs may be under acts of a policy at one time: a
// share of the GPUs of each scope, rounded up so that a small scope has room
// for one, and a number. The lower binds. A zero Max sets no number.
type Budget struct {
	Percent float64 `yaml:"percent" json:"percent"`
	Max     int     `yaml:"max" json:"max"`
	Per     Scope   `yaml:"per" json:"per"`
}

// maxFilter is what a filter's bits hold.
const maxFilter = 64

// maxTime bounds the times that a person sets: a longer one is a slip, and 64
// times as long must still be a time.
const maxTime = 7 * 24 * time.Hour

// Validate says everything that is wrong with a spec.
func (s PolicySpec) Validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(s.Type != "", "type: missing")
	want(s.Signal != "", "signal: missing")
	want(slices.Contains([]telemetry.Mode{telemetry.Observe, telemetry.Recommend, telemetry.Approve, telemetry.Enforce}, s.Mode), "mode %q: want observe, recommend, approve or enforce", s.Mode)
	for _, v := range []struct {
		name  string
		value float64
	}{{"act", s.Act}, {"aim", s.Aim}, {"margin", s.Margin}} {
		want(!math.IsNaN(v.value) && !math.IsInf(v.value, 0), "%s %v: want a finite number", v.name, v.value)
	}
	want(time.Duration(s.Settle) <= maxTime && time.Duration(s.Notice) <= maxTime && time.Duration(s.Lease) <= maxTime && time.Duration(s.Predict) <= maxTime,
		"settle, notice, lease, predict: want at most %s", maxTime)
	want(s.Act != s.Aim, "act and aim are both %v: two marks are needed, or acts and undos chase each other", s.Act)
	want(s.Filter.N >= 1 && s.Filter.N <= s.Filter.M && s.Filter.M <= maxFilter, "filter {n: %d, m: %d}: want 1 <= n <= m <= %d", s.Filter.N, s.Filter.M, maxFilter)
	want(len(s.Ladder) > 0, "ladder: empty; the policy could never act (use mode: observe for that)")
	for i, a := range s.Ladder {
		want(slices.Contains(telemetry.Ladder, a), "ladder: %q is not an act", a)
		want(i == 0 || slices.Index(telemetry.Ladder, s.Ladder[i-1]) < slices.Index(telemetry.Ladder, a), "ladder: %q must come before %q, cheapest first", a, s.Ladder[max(i-1, 0)])
	}
	want(s.Budget.Percent > 0 && s.Budget.Percent <= 100, "budget.percent %v: want more than 0, at most 100", s.Budget.Percent)
	want(s.Budget.Max >= 0, "budget.max %d: want 0 (no number) or more", s.Budget.Max)
	want(slices.Contains([]Scope{PerNode, PerRack, PerRow, PerFleet}, s.Budget.Per), "budget.per %q: want node, rack, row or fleet", s.Budget.Per)
	want(s.Settle > 0, "settle: want more than 0s")
	want(s.Notice >= 0, "notice: want 0s or more")
	want(s.Grace >= 0 && time.Duration(s.Grace) <= MaxGrace, "grace %s: want at most %s", time.Duration(s.Grace), MaxGrace)
	want(time.Duration(s.Grace) >= time.Second || !slices.Contains(s.Ladder, telemetry.ActPreempt), "grace %s: want 1s or more, since the ladder has preempt", time.Duration(s.Grace))
	want(time.Duration(s.Lease) >= time.Minute, "lease %s: want 1m or more", time.Duration(s.Lease))
	want(s.Margin > 0, "margin %v: want more than 0, or an undo brings the violation straight back", s.Margin)
	want(s.Predict >= 0, "predict: want 0s (off) or more")
	want(s.MaxCut > 0 && s.MaxCut <= 1, "max_cut %v: want a share above 0, at most 1", s.MaxCut)
	want(s.Floor >= 0 && s.Floor < 1, "floor %v: want a share from 0 to below 1", s.Floor)
	if len(errs) > 0 {
		return fmt.Errorf("policy %q: %w", s.Type, errors.Join(errs...))
	}
	return nil
}

// Revision identifies the content of a spec in the records made under it.
func (s PolicySpec) Revision() string {
	data, err := json.Marshal(s)
	if err != nil { // only a NaN or infinite mark, which Validate's callers never hold
		return "unknown"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:4])
}
