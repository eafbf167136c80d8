package telemetry

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite golden files")

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func sampleOrder() *Order {
	return &Order{
		ID: "d-000001.1", Decision: "d-000001", Kind: StepPowerCap,
		Target: Target{Node: "node-1", UUID: "GPU-1"}, Params: Params{PowerLimitWatts: ptr(500.0)},
		Epoch: Epoch{Incarnation: "b1", Revision: 7}, SentAt: t0, Expires: t0.Add(20 * time.Second), Lease: Duration(10 * time.Minute),
	}
}

func TestOrderSignature(t *testing.T) {
	seed, err := NewSeed()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(signer.KeyID())
	if err != nil {
		t.Fatal(err)
	}
	data, err := signer.SignOrder(sampleOrder())
	if err != nil {
		t.Fatal(err)
	}
	o, err := trust.OpenOrder(data)
	if err != nil || o.ID != "d-000001.1" || *o.Params.PowerLimitWatts != 500 || o.Lease != Duration(10*time.Minute) {
		t.Fatalf("%+v, %v", o, err)
	}

	otherSeed, _ := NewSeed()
	other, _ := NewSigner(otherSeed)
	forged, _ := other.SignOrder(sampleOrder())
	var e Envelope
	_ = json.Unmarshal(forged, &e)
	e.KeyID = signer.KeyID() // right name, wrong key
	impostor, _ := json.Marshal(e)
	_ = json.Unmarshal(data, &e)
	e.Payload = bytes.Replace(e.Payload, []byte("500"), []byte("900"), 1)
	changed, _ := json.Marshal(e)
	for name, c := range map[string]struct {
		data []byte
		why  DropReason
	}{
		"unknown key": {forged, DropForged}, "impostor": {impostor, DropForged}, "changed payload": {changed, DropForged},
		"truncated": {data[:len(data)-9], DropMalformed}, "empty": {nil, DropMalformed}, "oversized": {make([]byte, MaxOrderBytes+1), DropOversized},
	} {
		if _, err := trust.OpenOrder(c.data); err == nil || WhyDropped(err) != c.why {
			t.Errorf("%s: %v, want %s", name, err, c.why)
		}
	}
	for name, fn := range map[string]func(*Order){
		"no id": func(o *Order) { o.ID = "" }, "no node": func(o *Order) { o.Target.Node = "" }, "no epoch": func(o *Order) { o.Epoch = Epoch{} },
		"no expiry": func(o *Order) { o.Expires = time.Time{} }, "expired at once": func(o *Order) { o.Expires = o.SentAt },
		"renews nothing": func(o *Order) { o.Kind = StepRenew },
	} {
		o := sampleOrder()
		fn(o)
		if _, err := signer.SignOrder(o); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	for _, bad := range []string{"", "UABC", "SUAM", string(seed)} {
		if _, err := NewTrust(bad); err == nil {
			t.Errorf("trusts %q", bad)
		}
	}
}

func TestSubjects(t *testing.T) {
	for node, want := range map[string]string{
		"node-1": "ek.v1.frame.3.node-1", "Rack.A": "ek.v1.frame.18.=52ack=2E=41",
	} {
		got := PartitionSubject(FamilyFrame, node)
		if got != want {
			t.Errorf("subject of %s is %s, want %s: the partition is fixed for ever", node, got, want)
		}
		back, err := SubjectNode(got)
		if err != nil || back != node {
			t.Errorf("%s → %q, %v", got, back, err)
		}
	}
	for _, bad := range []string{"ek.v1.frame.1", "ek.v2.frame.1.node-1", "ek.v1.frame.61.node-1", "ek.v1.event.Node", "ek.v1.event.=4", "ek.v1.event.=61", ""} {
		if node, err := SubjectNode(bad); err == nil {
			t.Errorf("%q taken as node %q", bad, node)
		}
	}
	if s := OrderSubject("a.b"); s != "ek.v1.order.a=2Eb" {
		t.Error(s)
	}
	if InboxPrefix(AgentUser("n1")) == InboxPrefix(ExporterUser("n1")) {
		t.Error("two users share an inbox")
	}
}

func TestWorkloadRefs(t *testing.T) {
	for ref, ok := range map[WorkloadRef]bool{
		"k8s:team/Job/train": true, "slurm:123_4": true, "proc:node-1/42@1700": true,
		"": false, "k8s:team": false, "proc:42": false, "proc:node-1/42": false, "vm:1": false,
	} {
		if err := ref.Check(); (err == nil) != ok {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func sampleDecision() *Decision {
	target := Target{Node: "node-2", UUID: "GPU-3f"}
	return &Decision{
		ID: "d-000042", Policy: "thermal", Mode: Enforce, Kind: ActCap, Class: Gentle, Target: target, Outcome: OutcomeVerified,
		Why:  "headroom 3.2 °C is below 5 °C; capped from 690 W to 560 W",
		Time: t0, ViewTime: t0, Coverage: Coverage{Expected: 32, Fresh: 31, Ratio: 31. / 32},
		Violations: []Violation{{Target: target, Signal: "gpu_thermal_headroom_celsius", Value: 3.2, Unit: "celsius", Mark: 5, Aim: 8, Seen: 3, Of: 5, Needed: 3, Agrees: "sw_thermal", Where: "H100, row b", Slope: -0.21, Reaches: 15,
			Evidence: []Evidence{{Signal: "gpu_power_watts", Value: 690, Unit: "watts", AgeMS: 40, Quality: "ok"}}}},
		Candidates:   []Candidate{{Workload: "k8s:team-a/Job/train-7", Owner: "team-a", Priority: 10, Share: 1}},
		Alternatives: []Alternative{{Act: ActSteer, Summary: "no queue to steer", Refusals: []Refusal{{Reason: RefusalNoActuator, Text: "no scheduler is attached"}}}, {Act: ActCap, Summary: "cap to 560 W", Net: 120, Chosen: true}},
		Refusals:     []Refusal{{Reason: RefusalSettling, Text: "GPU-4a was capped 20 s ago", Until: t0.Add(time.Minute)}},
		Act:          &Act{ID: "d-000042.a", Kind: ActCap, Class: Gentle, Target: target, Summary: "cap power of GPU-3f at 560 W", Lease: Duration(10 * time.Minute)},
		Predicted:    &Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Before: 3.2, After: 8, Within: Duration(time.Minute), Note: "R 0.061 °C/W learned"},
		Steps: []StepRecord{{Step: Step{ID: "d-000042.1", Kind: StepPowerCap, Target: target}, Receipt: &Receipt{Result: Done, Ended: t0.Add(200 * time.Millisecond),
			Before: map[string]float64{"power_limit_watts": 700}, After: map[string]float64{"power_limit_watts": 560}}}},
		Observed: &Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Before: 3.2, After: 7.6, At: t0.Add(time.Minute)},
		VerifyBy: t0.Add(time.Minute),
	}
}

func TestExplain(t *testing.T) {
	var b bytes.Buffer
	sampleDecision().Explain(&b)
	recommended := &Decision{ID: "d-000043", Policy: "thermal", Mode: Recommend, Kind: ActCap, Class: Gentle, Outcome: OutcomeRecommended, Target: Target{Node: "n"}, Why: "would cap", Time: t0, Act: &Act{Summary: "cap"}}
	b.WriteString("\n---\n\n")
	recommended.Explain(&b)
	golden(t, "explain.txt", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update if the change is meant\n%s", path, got)
	}
}

func TestDecisionSurvivesJSON(t *testing.T) {
	data, err := json.Marshal(sampleDecision())
	if err != nil {
		t.Fatal(err)
	}
	var back Decision
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(&back)
	if !bytes.Equal(data, again) {
		t.Errorf("decision changed:\n%s\n%s", data, again)
	}
	for _, key := range []string{`"id"`, `"time"`, `"policy"`, `"act"`, `"target"`, `"outcome"`} {
		if !strings.Contains(string(data), key) {
			t.Errorf("scripts rely on the key %s", key)
		}
	}
}

func TestDuration(t *testing.T) {
	var d Duration
	if err := d.UnmarshalText([]byte("10")); err == nil {
		t.Error("took a number without a unit")
	}
	if err := d.UnmarshalText([]byte("90s")); err != nil || d != Duration(90*time.Second) {
		t.Error(d, err)
	}
	if text, _ := d.MarshalText(); string(text) != "1m30s" {
		t.Error(string(text))
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{3.25: "3.2 °C", 560.4: "560 °C", 5: "5 °C", -0.01: "0 °C"} {
		if got := Number(v, "celsius"); got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
	}
}
