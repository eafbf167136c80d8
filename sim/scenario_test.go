package sim

import (
	"strings"
	"testing"
	"time"
)

const goodScenario = `name: good
rows:
  - {name: a, inlet_celsius: 20}
nodes:
  - {name: n, row: a, model: T4-16GB, gpus: 2}
jobs:
  - {name: j, kind: proc, owner: o, shape: batch, gpus: [n/0], memory_gib: 4}
events:
  - {at: 1s, for: 2s, row: a, inlet_celsius: 30}
`

func TestScenarioErrorsNameTheLine(t *testing.T) {
	cases := []struct{ name, old, new, want string }{
		{"unknown key", "owner: o", "ownr: o", "line 7: field ownr not found"},
		{"unknown top key", "events:", "event:", "line 8: field event not found"},
		{"bad duration", "at: 1s", "at: 1", `line 9: "1" is not a duration`},
		{"negative duration", "for: 2s", "for: -2s", "line 9: a duration must not be negative"},
		{"unknown model", "T4-16GB", "T5", `line 5: model "T5" is not known`},
		{"too many GPUs", "gpus: 2", "gpus: 17", "line 5: gpus must be between 1 and 16"},
		{"unknown row", "row: a, model", "row: b, model", `line 5: row "b" is not among the rows`},
		{"unknown shape", "shape: batch", "shape: cube", `line 7: shape "cube" is not known`},
		{"unknown kind", "kind: proc", "kind: lsf", "line 7: kind must be k8s, slurm or proc"},
		{"place without index", "n/0", "n", `line 7: "n" is not a place`},
		{"place of another node", "n/0", "m/0", `line 7: node "m" is not among the nodes`},
		{"place beyond the node", "n/0", "n/0-2", `line 7: node "n" has 2 GPUs`},
		{"place taken twice", "[n/0]", "[n/0, n/0-1]", `line 7: n/0 runs job "j" already`},
		{"too much memory", "memory_gib: 4", "memory_gib: 40", `line 7: job "j" does not fit the memory`},
		{"two changes", "inlet_celsius: 30", "inlet_celsius: 30, fault: lost", "line 9: an event changes one thing"},
		{"event on no row", "row: a, inlet_celsius: 30", "row: c, inlet_celsius: 30", "line 9: inlet_celsius needs row:"},
		{"unknown fault", "row: a, inlet_celsius: 30", "gpu: n/1, fault: tired", "line 9: fault must be one of [lost hung stuck blank denied]"},
		{"over and for", "inlet_celsius: 30", "inlet_celsius: 30, over: true", "line 9: an event that is over has no duration"},
		{"no name", "name: good\n", "", "line 1: a scenario needs a name"},
		{"second document", "events:", "---\nevents:", "one YAML document"},
	}
	if _, err := ParseScenario([]byte(goodScenario)); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(goodScenario, c.old, c.new, 1)
			if text == goodScenario {
				t.Fatal("the case changes nothing")
			}
			_, err := ParseScenario([]byte(text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	if _, err := ParseScenario(nil); err == nil {
		t.Error("an empty scenario was taken")
	}
}

func TestTimelineAppliesAndReverses(t *testing.T) {
	w := parseWorld(t, goodScenario+`  - {at: 4s, for: 1s, gpu: n/1, fault: lost}
  - {at: 4s, for: 3s, gpu: n/0, fault: stuck}
  - {at: 4s, for: 2s, gpu: n/0, cooling: 3}
`)
	inlet := func() float64 { return w.rows[0].inletC }
	at := func(d time.Duration) {
		for w.Elapsed() < d {
			w.Step(tick)
		}
	}
	at(900 * time.Millisecond)
	if inlet() != 20 {
		t.Errorf("inlet is %.0f before the event", inlet())
	}
	at(1100 * time.Millisecond)
	if inlet() != 30 {
		t.Errorf("inlet is %.0f during the event", inlet())
	}
	at(3100 * time.Millisecond)
	if inlet() != 20 {
		t.Errorf("inlet is %.0f after the event", inlet())
	}
	at(4500 * time.Millisecond)
	if r := readOne(t, w, "n", 1); !r.Lost {
		t.Error("n/1 is not lost")
	}
	frozen := readOne(t, w, "n", 0).CoreC
	at(6900 * time.Millisecond)
	r := readOne(t, w, "n", 0)
	if r.CoreC != frozen || round(w.gpus[0].coreC) == frozen {
		t.Errorf("the stuck sensor shows %d °C, %d °C when it froze, the core is at %.1f °C", r.CoreC, frozen, w.gpus[0].coreC)
	}
	at(8 * time.Second)
	if r := readOne(t, w, "n", 0); r.CoreC != round(w.gpus[0].coreC) || w.gpus[0].cooling != 1 {
		t.Error("sensor or cooling of n/0 did not come back")
	}
	if readOne(t, w, "n", 1).Lost {
		t.Error("n/1 did not come back")
	}
	var xids []uint64
	w.raised.since(0, func(e raisedEvent) { xids = append(xids, e.data) })
	if len(xids) != 1 || xids[0] != xidFallenOff {
		t.Errorf("Xids raised: %v, want one 79", xids)
	}
}

func TestPhasesAndLifetime(t *testing.T) {
	w := parseWorld(t, `
name: phases
rows: [{name: a, inlet_celsius: 20}]
nodes: [{name: n, row: a, model: T4-16GB, gpus: 1}]
jobs:
  - name: j
    kind: proc
    owner: o
    shape: batch
    memory_gib: 2
    gpus: [n/0]
    start: 2s
    end: 8s
    phases: [{for: 2s, activity: 0.9}, {for: 1s, activity: 0}]
`)
	var active, held []bool
	for second := range 10 {
		for w.Elapsed() < time.Duration(second)*time.Second+500*time.Millisecond {
			w.Step(tick)
		}
		r := readOne(t, w, "n", 0)
		active = append(active, r.Activity > 0)
		held = append(held, r.MemoryUsedBytes > 0 && r.Job == "j")
		if idle := r.Reasons == reasonIdle; idle == (r.Activity > 0) {
			t.Errorf("second %d: reasons %#x at activity %.2f", second, r.Reasons, r.Activity)
		}
	}
	want := func(name string, got []bool, want string) {
		text := ""
		for _, b := range got {
			text += map[bool]string{true: "1", false: "0"}[b]
		}
		if text != want {
			t.Errorf("%s by second: %s, want %s", name, text, want)
		}
	}
	want("active", active, "0011011000")
	want("held", held, "0011111100")
}

func minHeadroom(w *World, row string) float64 {
	room := 1e9
	for i := range w.gpus {
		n := &w.nodes[w.gpus[i].node]
		if n.Row == row {
			room = min(room, w.gpus[i].headroomC())
		}
	}
	return room
}

// The scenario is a promise to those who tune on it: near the mark at first,
// at the edge without action, and worth acting on.
func TestHotRowScenario(t *testing.T) {
	s, err := LoadScenario("hot-row")
	if err != nil {
		t.Fatal(err)
	}
	build := func() *World {
		w, err := New(s, 0)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := build()
	if room := minHeadroom(w, "a"); room < 5.5 || room > 6.5 {
		t.Errorf("row a starts with %.1f °C of headroom, want about 6", room)
	}
	lowest := 1e9
	for w.Elapsed() < 5*time.Minute {
		w.Step(tick)
		lowest = min(lowest, minHeadroom(w, "a"))
		if room := minHeadroom(w, "b"); room < 20 {
			t.Fatalf("row b has %.1f °C of headroom only", room)
		}
	}
	if lowest < 0 || lowest > 1.6 {
		t.Errorf("left alone, row a comes to %.1f °C of headroom", lowest)
	}
	none := w.Scores()[0]
	if none.ThrottledGPUSeconds < 100 {
		t.Errorf("left alone, %s is throttled for %.0f GPU-seconds only", none.Name, none.ThrottledGPUSeconds)
	}

	w = build()
	run(w, 8*time.Second)
	for _, n := range []string{"a-1", "a-2"} {
		for slot := range 8 {
			if err := w.SetPowerLimit(n, slot, 525); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(w, 5*time.Minute-8*time.Second)
	capped := w.Scores()[0]
	if capped.ThrottledGPUSeconds > 0.05*none.ThrottledGPUSeconds || capped.UsefulGPUSeconds < none.UsefulGPUSeconds {
		t.Errorf("capped: %+v; left alone: %+v: a cap should pay", capped, none)
	}
	if room := minHeadroom(w, "a"); room < 5 {
		t.Errorf("the cap leaves %.1f °C of headroom", room)
	}
}

func TestInletFaultScenario(t *testing.T) {
	s, err := LoadScenario("inlet-fault")
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	if room := minHeadroom(w, "a"); room < 9 {
		t.Errorf("starts with %.1f °C of headroom", room)
	}
	run(w, 40*time.Second)
	if room := minHeadroom(w, "a"); room > 3.5 {
		t.Errorf("the fault leaves %.1f °C of headroom", room)
	}
	run(w, 80*time.Second)
	if room := minHeadroom(w, "a"); room < 9 {
		t.Errorf("%.1f °C of headroom long after the fault", room)
	}
}

// TestBlockedAirScenario: a process heats a GPU beyond what a fresh install
// allows, at full power and at half, and only its end helps.
func TestBlockedAirScenario(t *testing.T) {
	const act = 5 // °C of headroom, the thermal policy's mark
	w := loadWorld(t, "blocked-air")
	run(w, time.Minute)
	headroom := func(slot int) float64 { return readOne(t, w, "gpu-1", slot).HeadroomC }
	for slot := range 4 {
		if room := headroom(slot); room < 40 {
			t.Errorf("idle, GPU %d has %.1f °C of headroom", slot, room)
		}
	}
	for _, slot := range []int{0, 2} {
		if err := w.Claim("gpu-1", slot, Claim{PID: 7, Share: 0.8, MemoryBytes: 20 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	run(w, time.Minute)
	if room := headroom(0); room > 3 {
		t.Errorf("claimed, it has %.1f °C of headroom", room)
	}
	if room := headroom(2); room < 3*act {
		t.Errorf("with free air, it has %.1f °C of headroom", room)
	}
	if err := w.SetPowerLimit("gpu-1", 0, w.gpus[0].model.DefaultLimit/2); err != nil {
		t.Fatal(err)
	}
	run(w, time.Minute)
	if r := readOne(t, w, "gpu-1", 0); r.HeadroomC > act-1 || r.HeadroomC < 1 || r.PowerW < 340 {
		t.Errorf("under the deepest cap it draws %.0f W and has %.1f °C of headroom", r.PowerW, r.HeadroomC)
	}
	if err := w.Release("gpu-1", 0, 7, 0); err != nil {
		t.Fatal(err)
	}
	run(w, 30*time.Second)
	if room := headroom(0); room < 40 {
		t.Errorf("%.1f °C of headroom long after the process", room)
	}
}

func TestScenariosThatComeWithTheProgramParse(t *testing.T) {
	names := ScenarioNames()
	if len(names) < 2 {
		t.Fatalf("scenarios: %v", names)
	}
	for _, name := range names {
		s, err := LoadScenario(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if s.Name != name {
			t.Errorf("%s calls itself %s", name, s.Name)
		}
	}
	if _, err := LoadScenario("nowhere"); err == nil || !strings.Contains(err.Error(), "hot-row") {
		t.Errorf("an unknown scenario: %v", err)
	}
}
