package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Limits of a list of decisions.
const (
	usualDecisions = 100
	mostDecisions  = 1000
)

func (s *server) decisions(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "policy", "act", "outcome", "target", "open", "since", "limit", "cursor")
	if err != nil {
		return err
	}
	var outcomes []string
	for _, o := range telemetry.Outcomes {
		outcomes = append(outcomes, string(o))
	}
	var acts []string
	for _, a := range telemetry.Ladder {
		acts = append(acts, string(a))
	}
	if err := errors.Join(oneOf("outcome", q.Get("outcome"), outcomes), oneOf("act", q.Get("act"), acts), oneOf("open", q.Get("open"), []string{"true", "false"})); err != nil {
		return err
	}
	since, err := sinceOf(q.Get("since"), s.Now())
	if err != nil {
		return err
	}
	limit, err := limitOr(q, usualDecisions, mostDecisions)
	if err != nil {
		return err
	}
	list := List[*telemetry.Decision]{APIVersion: APIVersion, Items: []*telemetry.Decision{}}
	all, from := s.Decisions.Decisions(), 0
	if cursor := q.Get("cursor"); cursor != "" {
		if from = 1 + slices.IndexFunc(all, func(d *telemetry.Decision) bool { return d.ID == cursor }); from == 0 {
			return problem(http.StatusGone, "cursor_gone", "decision %q, which the cursor names, is no longer kept; ask again without cursor", cursor)
		}
	}
	for i, d := range all {
		if !wanted(q.Get("policy"), d.Policy) || !wanted(q.Get("act"), string(d.Kind)) || !wanted(q.Get("outcome"), string(d.Outcome)) ||
			!wanted(q.Get("open"), strconv.FormatBool(d.Open())) || !concerns(d, q.Get("target")) || d.Time.Before(since) && d.LastSeen.Before(since) {
			continue
		}
		list.Total++
		switch {
		case i < from:
		case len(list.Items) < limit:
			list.Items = append(list.Items, d)
		case list.Next == "":
			list.Next = list.Items[limit-1].ID
		}
	}
	return respond(w, r, http.StatusOK, list)
}

// concerns says whether a decision is about a node, a device or a workload, as
// its target or as a candidate that was weighed.
func concerns(d *telemetry.Decision, target string) bool {
	if target == "" || target == d.Target.Node || d.Holds(target) || target == string(d.Target.Workload) {
		return true
	}
	for _, c := range d.Candidates {
		if target == string(c.Workload) {
			return true
		}
	}
	return false
}

func (s *server) findDecision(r *http.Request) (*telemetry.Decision, error) {
	if _, err := query(r); err != nil {
		return nil, err
	}
	d, ok := s.Decisions.Decision(r.PathValue("id"))
	if !ok {
		return nil, problem(http.StatusNotFound, "not_found", "decision %q is not known or no longer kept (ids have gaps); `evenkeel get decisions` or %s/decisions lists those that are", r.PathValue("id"), Prefix)
	}
	return d, nil
}

func (s *server) decision(w http.ResponseWriter, r *http.Request) error {
	d, err := s.findDecision(r)
	if err != nil {
		return err
	}
	return respond(w, r, http.StatusOK, d)
}

func (s *server) explainDecision(w http.ResponseWriter, r *http.Request) error {
	d, err := s.findDecision(r)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	d.Explain(&text)
	respondText(w, text.Bytes())
	return nil
}

func (s *server) explainWorkload(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	ref := telemetry.WorkloadRef(r.PathValue("ref"))
	if err := ref.Check(); err != nil {
		return noWorkload(ref)
	}
	return s.explain(w, r, ExplainRequest{Workload: ref})
}

func (s *server) explainNothing(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	return s.explain(w, r, ExplainRequest{Nothing: true})
}

func (s *server) explain(w http.ResponseWriter, r *http.Request, ask ExplainRequest) error {
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	data, err := s.ask(r.Context(), "explain", body)
	if err != nil {
		return err
	}
	var answer ExplainAnswer
	if err := json.Unmarshal(data, &answer); err != nil || answer.Text == "" {
		return badAnswer()
	}
	respondText(w, []byte(answer.Text))
	return nil
}

// mostPlanBytes bounds what a client may ask of the leader.
const mostPlanBytes = 64 << 10

func (s *server) plan(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostPlanBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problem(http.StatusRequestEntityTooLarge, "too_large", "the body is above %d bytes; ask for less at once", mostPlanBytes)
	case err != nil:
		return problem(http.StatusBadRequest, "bad_body", "the body cannot be read: %v", err)
	case len(body) > 0 && !json.Valid(body):
		return problem(http.StatusBadRequest, "bad_body", "the body is not JSON; send an object, or nothing for the plan of now")
	}
	answer, err := s.ask(r.Context(), "plan", body)
	if err != nil {
		return err
	}
	if !json.Valid(answer) {
		return badAnswer()
	}
	return respond(w, r, http.StatusOK, json.RawMessage(answer))
}

func badAnswer() error {
	return problem(http.StatusBadGateway, "bad_answer", "the leader's answer cannot be read; is it of the same version as this collector?")
}

// askFor is how long the leader may take.
const askFor = 5 * time.Second

// ask puts a question to the leader and words its silence for a person.
func (s *server) ask(ctx context.Context, verb string, body []byte) ([]byte, error) {
	const help = "see that `evenkeel rebalancer` runs and reaches the bus; a standby takes over within 9 s"
	if s.Control == nil {
		return nil, problem(http.StatusServiceUnavailable, "no_leader", "this process has no way to the rebalancer; %s", help)
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	answer, err := s.Control.Control(ctx, verb, body)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, problem(http.StatusGatewayTimeout, "leader_slow", "the leader did not answer within %s; %s", askFor, help)
	case err != nil:
		return nil, problem(http.StatusServiceUnavailable, "no_leader", "the leader did not answer: %v; %s", err, help)
	}
	return answer, nil
}
