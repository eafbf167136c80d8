package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// defaultWatts is the limit of a GPU of the quick world that nobody caps.
const defaultWatts = 700

const limitKey = "power_limit_watts"

// sound is what holds at every moment, however often a process has died: the
// journal's order, and each limit written once.
func (r *crashRig) sound() error {
	return errors.Join(soundJournal(r.journal()), soundWrites(r.writes()))
}

// soundJournal: epochs only grow, a GPU has one act on its way at a time, and
// what a step came to is said once.
func soundJournal(records []telemetry.Record) error {
	var errs []error
	inFlight := map[string]string{} // decision by GPU
	said := map[string]*telemetry.Receipt{}
	var epoch telemetry.Epoch
	for _, rec := range records {
		if rec.Epoch.Revision < epoch.Revision {
			errs = append(errs, fmt.Errorf("record %s was written under epoch %d, after one of %d", rec.ID, rec.Epoch.Revision, epoch.Revision))
		}
		epoch = rec.Epoch
		d := rec.Decision
		if d == nil {
			continue
		}
		switch first := inFlight[d.Target.UUID]; d.Outcome {
		case telemetry.OutcomeIntended, telemetry.OutcomeActing, telemetry.OutcomeActed:
			if first != "" && first != d.ID {
				errs = append(errs, fmt.Errorf("%s begins on %s while %s is on its way", d.ID, d.Target.UUID, first))
			}
			inFlight[d.Target.UUID] = d.ID
		default:
			if first == d.ID {
				delete(inFlight, d.Target.UUID)
			}
		}
		for _, s := range d.Steps {
			before := said[s.Step.ID]
			if before != nil && (s.Receipt == nil || s.Receipt.Result != before.Result || s.Receipt.After[limitKey] != before.After[limitKey]) {
				errs = append(errs, fmt.Errorf("step %s was %s and is now %+v", s.Step.ID, before.Result, s.Receipt))
			}
			if s.Receipt != nil {
				said[s.Step.ID] = s.Receipt
			}
		}
	}
	return errors.Join(errs...)
}

// soundWrites: no limit is written that is there already.
func soundWrites(writes map[int][]write) error {
	var errs []error
	for gpu, ws := range writes {
		now := float64(defaultWatts)
		for _, w := range ws {
			if w.writes != 1 || w.watts == now {
				errs = append(errs, fmt.Errorf("GPU %d was set to %g W by %d writes, from %g W", gpu, w.watts, w.writes, now))
			}
			now = w.watts
		}
	}
	return errors.Join(errs...)
}

// over says that nothing is held or on its way any more.
func (r *crashRig) over() error {
	if wait := time.Until(r.calm); wait > 0 {
		return fmt.Errorf("the world is calm in %s", wait.Round(time.Second))
	}
	ds := r.decisions()
	if len(ds) == 0 {
		return errors.New("nothing was decided")
	}
	for _, d := range ds {
		if d.Ended.IsZero() {
			return fmt.Errorf("%s is %s", d.ID, d.Outcome)
		}
	}
	if n, err := r.caps(); err != nil {
		return err
	} else if n != 0 {
		return fmt.Errorf("the agent holds %g caps", n)
	}
	for gpu, ws := range r.writes() {
		if last := ws[len(ws)-1]; last.watts != defaultWatts {
			return fmt.Errorf("GPU %d is at %g W", gpu, last.watts)
		}
	}
	return nil
}

// caps is evenkeel_caps_active at the agent.
func (r *crashRig) caps() (float64, error) { return r.metric("agent", "evenkeel_caps_active") }

// endsRight waits until all is over and then wants journal, receipts, world and
// explanation to tell the same story.
func (r *crashRig) endsRight(t *testing.T) {
	t.Helper()
	eventually(t, 150*time.Second, "nothing is held or on its way", r.over)
	if err := r.sound(); err != nil {
		t.Errorf("the run was not sound: %v", err)
	}
	soon(t, "journal and receipts disagree", r.receiptsAgree)
	soon(t, "the world saw something else", r.worldAgrees)
	soon(t, "an explanation is not true", r.explained)
	soon(t, "the driver's limit is not back", r.limitsBack)
	soon(t, "the collector lists other things", r.listed)
	if t.Failed() {
		r.tell(t)
	}
}

// soon wants what everybody can know by now to be so once the last message has
// come to where it is looked for.
func soon(t *testing.T, otherwise string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Errorf("%s: %v", otherwise, err)
}

// receiptsAgree: what the journal says of a step is what its agent reported,
// and every cap that was reported done is one of a decision.
func (r *crashRig) receiptsAgree() error {
	var errs []error
	type key struct {
		step string
		kind telemetry.StepKind
	}
	reported := map[key]telemetry.Receipt{}
	for _, got := range r.reported() {
		reported[key{got.StepID, got.Kind}] = got
	}
	known := map[string]bool{}
	for _, d := range r.decisions() {
		for _, s := range d.Steps {
			if s.Receipt == nil {
				// A renewal or an undo may be cut off by the end that the agent made.
				if s.Step.Kind == telemetry.StepPowerCap || !strings.HasPrefix(d.Ending, "undone by its owner") {
					errs = append(errs, fmt.Errorf("%s has ended (%s) and step %s has no receipt", d.ID, d.Ending, s.Step.ID))
				}
				continue
			}
			known[s.Step.ID] = s.Receipt.Result == telemetry.Done
			got, ok := reported[key{s.Step.ID, s.Step.Kind}]
			switch {
			case s.Receipt.Result == telemetry.Unknown:
			case !ok:
				errs = append(errs, fmt.Errorf("step %s is %s and no agent said so", s.Step.ID, s.Receipt.Result))
			case got.Result != s.Receipt.Result || got.After[limitKey] != s.Receipt.After[limitKey]:
				errs = append(errs, fmt.Errorf("step %s: journal %s at %g W, agent %s at %g W", s.Step.ID, s.Receipt.Result, s.Receipt.After[limitKey], got.Result, got.After[limitKey]))
			}
		}
	}
	for k, got := range reported {
		if k.kind == telemetry.StepPowerCap && got.Result == telemetry.Done && !known[k.step] {
			errs = append(errs, fmt.Errorf("cap %s was done and no decision knows", k.step))
		}
	}
	return errors.Join(errs...)
}

// doneCaps are the caps that were reported done on a GPU, in the order of
// their orders.
func (r *crashRig) doneCaps(uuid string) []telemetry.Receipt {
	var out []telemetry.Receipt
	for _, got := range r.reported() {
		twice := slices.ContainsFunc(out, func(o telemetry.Receipt) bool { return o.StepID == got.StepID })
		if got.Kind == telemetry.StepPowerCap && got.Result == telemetry.Done && got.Target.UUID == uuid && !twice {
			out = append(out, got)
		}
	}
	slices.SortFunc(out, func(a, b telemetry.Receipt) int { return cmp.Compare(a.StepID, b.StepID) })
	return out
}

// worldAgrees: the limits that were lowered in the world are the caps that were
// done, one each and in that order.
func (r *crashRig) worldAgrees() error {
	gpus, err := list[gpuItem](r.stack, "gpus")
	if err != nil {
		return err
	}
	var errs []error
	writes := r.writes()
	for _, g := range gpus {
		var lowered, done []float64
		for _, w := range writes[g.Index] {
			if w.watts != defaultWatts {
				lowered = append(lowered, w.watts)
			}
		}
		for _, c := range r.doneCaps(g.UUID) {
			done = append(done, c.After[limitKey])
		}
		if !slices.EqualFunc(lowered, done, func(a, b float64) bool { return math.Abs(a-b) < 0.5 }) {
			errs = append(errs, fmt.Errorf("GPU %d was set to %v W, the receipts say %v", g.Index, lowered, done))
		}
	}
	return errors.Join(errs...)
}

// explained: an explanation names what was done and how it ended.
func (r *crashRig) explained() error {
	var errs []error
	for _, d := range r.decisions() {
		text, err := r.evenkeel("explain", d.ID)
		if err != nil {
			return err
		}
		want := []string{string(d.Outcome), "ended "}
		for _, s := range d.Steps {
			want = append(want, "step "+s.Step.ID+" "+string(s.Step.Kind))
			if s.Receipt != nil && s.Receipt.Result == telemetry.Done && s.Step.Kind == telemetry.StepPowerCap {
				want = append(want, "→ "+telemetry.Number(s.Receipt.After[limitKey], "watts"))
			}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				errs = append(errs, fmt.Errorf("%s does not say %q:\n%s", d.ID, w, text))
			}
		}
		if d.Outcome == telemetry.OutcomeUndone && strings.Contains(text, "somebody else changed it") {
			errs = append(errs, fmt.Errorf("%s says what is not so:\n%s", d.ID, text))
		}
	}
	return errors.Join(errs...)
}

// limitsBack asks the driver, past everything that is served from memory.
func (r *crashRig) limitsBack() error {
	limits, err := r.driverLimits()
	for uuid, w := range limits {
		if w != defaultWatts {
			err = errors.Join(err, fmt.Errorf("%s is at %g W", uuid, w))
		}
	}
	return err
}

// driverLimits reads every GPU's limit from the driver now.
func (r *crashRig) driverLimits() (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.bin, "evenkeel-node"), "export", "--once")
	cmd.Env = slices.Concat(os.Environ(), r.env)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("export --once: %w", err)
	}
	limits := map[string]float64{}
	for _, hit := range limitSeries.FindAllStringSubmatch(string(out), -1) {
		var w float64
		if _, err := fmt.Sscan(hit[2], &w); err != nil {
			return nil, err
		}
		limits[hit[1]] = w
	}
	if len(limits) == 0 {
		return nil, errors.New("export --once prints no limits")
	}
	return limits, nil
}

var limitSeries = regexp.MustCompile(`(?m)^gpu_power_limit_watts\{.*uuid="([^"]+)".*\} (\S+)$`)

// listed: the command line lists the same decisions, none of them open.
func (r *crashRig) listed() error {
	items, err := list[telemetry.Decision](r.stack, "decisions")
	if err != nil {
		return err
	}
	ds := r.decisions()
	for _, d := range ds {
		i := slices.IndexFunc(items, func(it telemetry.Decision) bool { return it.ID == d.ID })
		if i < 0 || items[i].Outcome != d.Outcome {
			err = errors.Join(err, fmt.Errorf("%s is %s in the journal, and not so in the list", d.ID, d.Outcome))
		}
	}
	if len(items) != len(ds) {
		err = errors.Join(err, fmt.Errorf("%d decisions are listed, %d in the journal", len(items), len(ds)))
	}
	return err
}

// tell logs the story of a run that went wrong.
func (r *crashRig) tell(t *testing.T) {
	t.Helper()
	for _, rec := range r.journal() {
		if d := rec.Decision; d != nil {
			line := fmt.Sprintf("%s %s epoch %d %s %s on %s: %s", rec.Time.Format("15:04:05.000"), rec.Topic, rec.Epoch.Revision, d.ID, d.Outcome, d.Target.UUID, d.Ending)
			for _, s := range d.Steps {
				result := "-"
				if s.Receipt != nil {
					result = string(s.Receipt.Result) + " " + s.Receipt.Detail
				}
				line += fmt.Sprintf("\n    %s %s: %s", s.Step.ID, s.Step.Kind, result)
			}
			t.Log(line)
		}
	}
	for gpu, ws := range r.writes() {
		for _, w := range ws {
			t.Logf("%s GPU %d: %g W, %d writes", w.at.Format("15:04:05.000"), gpu, w.watts, w.writes)
		}
	}
}
