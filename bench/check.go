package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// FaultCheck compares a fault, or a reason for which frames are refused, with
// what the collector made of it.
type FaultCheck struct {
	Fault string `json:"fault"`
	Made  uint64 `json:"made"`
	// Checked is set where there is something to compare with.
	Checked bool   `json:"checked"`
	What    string `json:"what,omitempty"`
	Want    uint64 `json:"want"`
	Got     uint64 `json:"got"`
}

func (c *FaultCheck) text() string {
	verdict := "as it must"
	if c.Want != c.Got {
		verdict = fmt.Sprintf("WRONG, want %d", c.Want)
	}
	switch {
	case !c.Checked && c.Made > 0:
		return fmt.Sprintf("%d made", c.Made)
	case c.Made > 0 || c.Fault != c.What:
		return fmt.Sprintf("%d made; %s: %d, %s", c.Made, c.What, c.Got, verdict)
	}
	return fmt.Sprintf("%d, %s", c.Got, verdict)
}

// checkFaults lists every fault that was asked for, and with a collector each
// reason for which it refuses frames: none may be counted that was not made.
func checkFaults(o *Options, made injected, r *run, out *Report) []FaultCheck {
	var list []FaultCheck
	for _, row := range faultRows {
		if o.Faults[row.fault] == 0 {
			continue
		}
		c := FaultCheck{Fault: string(row.fault), Made: made.made[row.fault]}
		switch {
		case out.Interrupted:
		case row.fault == FaultRestart:
			c.Checked, c.What, c.Want, c.Got = true, "new processes in observations", c.Made, r.ear.restarts.Load()
		case row.fault == FaultLieTime:
			for _, n := range r.nodes {
				if n.ahead != 0 {
					c.Made++
				}
			}
			c.Checked, c.What, c.Want, c.Got = true, "nodes whose observations tell the skew", c.Made, r.ear.skewed()
		}
		list = append(list, c)
	}
	if out.DroppedByCollector == nil || out.Interrupted || len(list) == 0 {
		return list
	}
	for _, why := range telemetry.DropReasons {
		want, got := made.drops[why], out.DroppedByCollector[why]
		if want > 0 || got > 0 {
			list = append(list, FaultCheck{Fault: "dropped: " + string(why), What: "dropped: " + string(why), Checked: true, Want: want, Got: got})
		}
	}
	return list
}

// Expectation is a bound that a run must keep.
type Expectation struct {
	name  string
	bound float64
	text  string
}

type expectableRow struct {
	name      string
	unit      byte // 0: a number, t: a time, m: MiB
	collector bool // it is the collector's own figure
	found     func(*Report) float64
}

// expectable lists what can be expected: the share of observations lost, those
// heard twice, the time from sent to heard, CPU-seconds a second and MiB of the
// collector.
var expectable = []expectableRow{
	{"max-loss", 0, false, func(r *Report) float64 { return share(r.Observations.Lost, r.Observations.Expected) }},
	{"max-doubled", 0, false, func(r *Report) float64 { return float64(r.Observations.Doubled) }},
	{"p50", 't', false, func(r *Report) float64 { return r.Latency.P50 }},
	{"p90", 't', false, func(r *Report) float64 { return r.Latency.P90 }},
	{"p99", 't', false, func(r *Report) float64 { return r.Latency.P99 }},
	{"max", 't', false, func(r *Report) float64 { return r.Latency.Max }},
	{"cpu", 0, true, func(r *Report) float64 { return r.use(collectorName).CPUPerSecond }},
	{"memory", 'm', true, func(r *Report) float64 { return mib(r.use(collectorName).ResidentBytes) }},
}

func (r *Report) use(name string) Use {
	for _, u := range r.Processes {
		if u.Name == name {
			return u
		}
	}
	return Use{}
}

func share(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// ParseExpectations reads "max-loss=0,p99=1s,cpu=0.5".
func ParseExpectations(text string) ([]Expectation, error) {
	var out []Expectation
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		i := slices.IndexFunc(expectable, func(e expectableRow) bool { return e.name == name })
		if i < 0 {
			return nil, fmt.Errorf("expectation %q is not known; there are %s", name, strings.Join(ExpectationNames(), ", "))
		}
		bound, err := strconv.ParseFloat(value, 64)
		if expectable[i].unit == 't' {
			var d time.Duration
			d, err = time.ParseDuration(value)
			bound = ms(d)
		}
		if err != nil || !(bound >= 0) {
			return nil, fmt.Errorf("expectation %q: want a bound, such as max-loss=0, p99=1s, cpu=0.5 or memory=1536", item)
		}
		out = append(out, Expectation{name, bound, item})
	}
	return out, nil
}

// ExpectationNames lists what can be expected.
func ExpectationNames() []string {
	names := make([]string, len(expectable))
	for i, e := range expectable {
		names[i] = e.name
	}
	return names
}

func (e Expectation) needsCollector() bool {
	for _, x := range expectable {
		if x.name == e.name {
			return x.collector
		}
	}
	return false
}

// Verdict is an expectation and what was found.
type Verdict struct {
	Expectation string `json:"expectation"`
	Met         bool   `json:"met"`
	Found       string `json:"found"`
}

func (e Expectation) judge(r *Report) Verdict {
	for _, x := range expectable {
		if x.name != e.name {
			continue
		}
		found := x.found(r)
		text := strconv.FormatFloat(found, 'g', 5, 64)
		switch x.unit {
		case 't':
			text += " ms"
		case 'm':
			text += " MiB"
		}
		// Nothing heard has no latency: that meets no bound.
		met := found <= e.bound && r.Observations.Heard > 0
		return Verdict{e.text, met, text}
	}
	return Verdict{Expectation: e.text}
}
