package rebalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Verbs that the leader answers.
const (
	VerbPlan    = "plan"
	VerbExplain = "explain"
	VerbApprove = VerdictApprove
	VerbReject  = VerdictReject
	VerbUndo    = VerdictUndo
	VerbPause   = "pause"
	VerbResume  = "resume"
	VerbMode    = "mode"
	VerbClose   = "close" // the breaker
)

// Verbs is every verb, in the order in which they are listed to people.
var Verbs = []string{VerbPlan, VerbExplain, VerbApprove, VerbReject, VerbUndo, VerbPause, VerbResume, VerbMode, VerbClose}

// Request is the body of any verb; each reads what it needs.
type Request struct {
	// Decision is for explain, approve, reject and undo; Workload and Nothing
	// for explain.
	Decision string                `json:"decision,omitempty"`
	Workload telemetry.WorkloadRef `json:"workload,omitempty"`
	Nothing  bool                  `json:"nothing,omitempty"`
	// By is the person; every verb that changes something needs it.
	By string `json:"by,omitempty"`
	// All makes a pause stop gentle acts too.
	All    bool            `json:"all,omitempty"`
	Policy string          `json:"policy,omitempty"`
	Class  telemetry.Class `json:"class,omitempty"`
	Mode   telemetry.Mode  `json:"mode,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

type ask struct {
	verb  string
	body  []byte
	reply chan answer
}

type answer struct {
	body []byte
	err  error
}

// controlTimeout bounds how long a person waits for a pass to end.
const controlTimeout = 5 * time.Second

// Control answers a verb with JSON. It may be called from any goroutine.
func (e *Engine) Control(verb string, body []byte) ([]byte, error) {
	q := ask{verb, body, make(chan answer, 1)}
	t := time.NewTimer(controlTimeout)
	defer t.Stop()
	select {
	case e.asks <- q:
	case <-t.C:
		return nil, errors.New("the rebalancer does not answer; is it running?")
	}
	select {
	case a := <-q.reply:
		var l longAgo
		if errors.As(a.err, &l) {
			return e.search(l)
		}
		return a.body, a.err
	case <-t.C:
		return nil, errors.New("the rebalancer does not answer in time")
	}
}

// search explains from the journal. It reads all of it, and so runs
// in the goroutine of whoever asks: the leader has to act meanwhile.
func (e *Engine) search(l longAgo) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), controlTimeout)
	defer cancel()
	d, err := e.lookUp(ctx, l)
	if err != nil {
		return nil, err
	}
	return encode(explained(d))
}

func (e *Engine) answer(ctx context.Context, verb string, body []byte) ([]byte, error) {
	var q Request
	if len(body) > 0 {
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, fmt.Errorf("%s: %w", verb, err)
		}
	}
	switch verb {
	case VerbPlan:
		return encode(e.Plan(e.now()))
	case VerbExplain:
		return e.explain(q)
	}
	if !slices.Contains(Verbs, verb) {
		return nil, fmt.Errorf("verb %q: want one of %v", verb, Verbs)
	}
	r, err := e.change(verb, q)
	if err != nil {
		return nil, err
	}
	if _, leads := e.mayAct(e.now()); !leads {
		return nil, errors.New("this rebalancer does not lead; ask again, the leader answers")
	}
	if !e.sync(ctx) || !e.write(ctx, r) {
		return nil, errors.New("it could not be written to the journal; nothing has changed, ask again")
	}
	e.nudge()
	return encode(struct {
		Done string `json:"done"`
		Seq  uint64 `json:"seq"`
	}{verb, e.mem.Seq})
}

func encode(v any) ([]byte, error) { return json.Marshal(v) }

// change is the record that a person's word becomes.
func (e *Engine) change(verb string, q Request) (telemetry.Record, error) {
	if q.By == "" {
		return telemetry.Record{}, fmt.Errorf("%s: who asks for it? (by)", verb)
	}
	now := e.now()
	switch verb {
	case VerbPause, VerbResume:
		paused := verb == VerbPause
		return telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &paused, All: q.All && paused, By: q.By}}, nil
	case VerbMode:
		return e.modeRecord(q)
	case VerbClose:
		if !e.mem.Breaker.Open {
			return telemetry.Record{}, errors.New("the breaker is closed")
		}
		return telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{By: q.By, Reason: q.Reason}}, nil
	}
	d := e.mem.Decisions[q.Decision]
	switch {
	case d == nil:
		return telemetry.Record{}, fmt.Errorf("%s: no decision %q is open", verb, q.Decision)
	case verb == VerbApprove && d.Outcome != telemetry.OutcomeAwaiting:
		return telemetry.Record{}, fmt.Errorf("approve: %s is %s, it waits for no approval", d.ID, d.Outcome)
	case verb == VerbReject && !standing(d):
		return telemetry.Record{}, fmt.Errorf("reject: %s is %s; undo it instead", d.ID, d.Outcome)
	}
	if _, held := e.mem.held(d); verb == VerbUndo && !held {
		return telemetry.Record{}, fmt.Errorf("undo: %s is %s, nothing of it is in force", d.ID, d.Outcome)
	}
	a := telemetry.Approval{Decision: d.ID, By: q.By, At: now, Verdict: verb}
	if verb == VerbApprove {
		a.Expires = now.Add(approvedFor)
	}
	return telemetry.Record{Topic: telemetry.TopicApproval, Approval: &a}, nil
}

func (e *Engine) modeRecord(q Request) (telemetry.Record, error) {
	var names []string
	for _, p := range e.config.Policies {
		names = append(names, p.Spec().Type)
	}
	if q.Policy != "" && !slices.Contains(names, q.Policy) {
		return telemetry.Record{}, fmt.Errorf("policy %q: there is none of this name; want one of %v, or none for all", q.Policy, names)
	}
	if !slices.Contains([]telemetry.Mode{telemetry.Observe, telemetry.Recommend, telemetry.Approve, telemetry.Enforce}, q.Mode) {
		return telemetry.Record{}, fmt.Errorf("mode %q: want observe, recommend, approve or enforce", q.Mode)
	}
	if q.Class != "" && q.Class != telemetry.Gentle && q.Class != telemetry.Disruptive {
		return telemetry.Record{}, fmt.Errorf("class %q: want gentle, disruptive or none for both", q.Class)
	}
	return telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Policy: q.Policy, Class: q.Class, Mode: q.Mode, By: q.By}}, nil
}
