package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// The sick GPUs of testdata/sick.yaml.
const hungGPU, lostGPU = 2, 5

// TestSickGPUs: with one GPU hung and one lost in the same run the other six
// have no gap over one tick, both are named everywhere, which, what and for how
// long, and both come back without a restart.
func TestSickGPUs(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const node = "gpu-1"
	s.startNATS(node)
	cfg := s.configs(node)
	collector := s.start("collector", "evenkeel", "collector", "-c", cfg["collector"])
	sim := s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/sick.yaml", "--node", node, "--shm", s.shm)
	seen := watchFrames(s)
	exporter := s.start("exporter", "evenkeel-node", "export", "-c", cfg["exporter"])
	s.eventually(14*time.Second, "eight GPUs are fresh", func() error { return s.fresh(node, 8) })
	gpus, err := list[gpuItem](s, "gpus")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(gpus, func(a, b gpuItem) int { return a.Index - b.Index })
	hung, lost := gpus[hungGPU].UUID, gpus[lostGPU].UUID

	var began time.Time
	s.eventually(30*time.Second, "the world tells of the lost GPU", func() (err error) {
		began, err = xid79(sim)
		return err
	})
	s.eventually(20*time.Second, "both are named in a frame", func() error { return seen.named(hung, lost) })
	toHung := seen.until(hung, began, func(g gpuState) bool { return !g.up && g.hung != "" && g.hungFor > 0 })
	toLost := seen.until(lost, began, func(g gpuState) bool { return !g.up && g.lost })
	t.Logf("named in frame %d (hung) and %d (lost) after it", toHung, toLost)
	if max(toHung, toLost) > namedWithin {
		t.Errorf("want both named by frame %d", namedWithin)
	}

	// Served while they are sick.
	doctor := s.doctor()
	s.eventually(20*time.Second, "the exporter names both", func() error { return s.namesSick("exporter", hung, lost) })
	s.eventually(20*time.Second, "the collector names both", func() error { return s.namesSick("collector", hung, lost) })
	first, err := s.hungFor("collector", hung)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		time.Sleep(time.Second)
		if err := s.soundSeries(hung, lost); err != nil {
			t.Error(err)
		}
	}
	if later, err := s.hungFor("collector", hung); err != nil || later < first+5 {
		t.Errorf("the call hangs for %g s, eight seconds ago for %g s; %v", later, first, err)
	}
	said := <-doctor
	for _, want := range []string{`failure gpu 2 no answer for \d+\.\d s: nvml\w+: hung `, `failure gpu 5 nvml\w+: lost `} {
		if !regexp.MustCompile(want).MatchString(oneLine(said)) {
			t.Errorf("doctor does not say %q:\n%s", want, said)
		}
	}

	s.eventually(60*time.Second, "all eight are fresh again", func() error { return s.fresh(node, 8) })
	time.Sleep(3 * time.Second)
	seen.steady(t, hung, lost)
	for _, p := range []*proc{collector, exporter} {
		select {
		case <-p.done:
			t.Errorf("%s has ended", p.name)
		default:
		}
	}
	if drops, err := s.drops(); err != nil || drops[telemetry.DropLost] > 0 || drops[telemetry.DropReordered] > 0 {
		t.Errorf("frames were lost: %v, %v", drops, err)
	}
}

// namedWithin is the frame that names a sick GPU: of two ticks it has not
// answered, and one more was under way as it fell sick.
const namedWithin = 3

// gpuState is what one frame says of one GPU.
type gpuState struct {
	up, lost bool
	age      time.Duration // of its fast values
	hung     string
	hungFor  time.Duration
}

// frameSeen is one frame as it came from the bus.
type frameSeen struct {
	at       time.Time
	sequence uint64
	period   time.Duration
	gpus     map[string]gpuState
}

type framesSeen struct {
	mu  sync.Mutex
	all []frameSeen
	bad error
}

// watchFrames hears every frame from now on.
func watchFrames(s *stack) *framesSeen {
	s.t.Helper()
	seen := &framesSeen{}
	if _, err := s.dial(bus.UserReader).Subscribe(telemetry.AllFrames, func(m *nats.Msg) {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		var f telemetry.Frame
		if err := telemetry.DecodeFrame(m.Data, &f); err != nil {
			seen.bad = errors.Join(seen.bad, err)
			return
		}
		got := frameSeen{at: time.Unix(0, f.GetSampleTimeUnixNano()), sequence: f.GetSequence(), period: time.Duration(f.GetPeriodNano()), gpus: map[string]gpuState{}}
		for _, g := range f.GetGpus() {
			got.gpus[g.GetUuid()] = gpuState{
				up: g.GetUp() == 1, lost: g.GetLost(), age: time.Duration(g.GetFastAgeMs()) * time.Millisecond,
				hung: g.GetHung().GetCall(), hungFor: time.Duration(g.GetHung().GetForMs()) * time.Millisecond,
			}
		}
		seen.all = append(seen.all, got)
	}); err != nil {
		s.t.Fatal(err)
	}
	return seen
}

func (f *framesSeen) get() []frameSeen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// named wants the newest frame to name both.
func (f *framesSeen) named(hung, lost string) error {
	all := f.get()
	if len(all) == 0 {
		return errors.New("no frame")
	}
	last := all[len(all)-1].gpus
	if h, l := last[hung], last[lost]; h.up || h.hung == "" || l.up || !l.lost {
		return fmt.Errorf("hung %+v, lost %+v", h, l)
	}
	return nil
}

// until counts the frames after a moment up to the first that says so.
func (f *framesSeen) until(uuid string, since time.Time, so func(gpuState) bool) (n int) {
	for _, fr := range f.get() {
		if fr.at.Before(since) {
			continue
		}
		if n++; so(fr.gpus[uuid]) {
			return n
		}
	}
	return n + 1
}

// steady looks at every frame since the first that showed all eight: none is
// missing, and the sound GPUs are up in each, with values that are never older
// than one tick. The sick ones are up in the end.
func (f *framesSeen) steady(t *testing.T, sick ...string) {
	t.Helper()
	all := f.get()
	begin := slices.IndexFunc(all, func(fr frameSeen) bool {
		up := 0
		for _, g := range fr.gpus {
			if g.up {
				up++
			}
		}
		return up == 8
	})
	if f.bad != nil || begin < 0 || len(all)-begin < 35 {
		t.Fatalf("%d frames, %v", len(all), f.bad)
	}
	oldest := time.Duration(0)
	for i, fr := range all[begin:] {
		if i > 0 && fr.sequence != all[begin+i-1].sequence+1 {
			t.Errorf("frame %d follows frame %d", fr.sequence, all[begin+i-1].sequence)
		}
		for uuid, g := range fr.gpus {
			if slices.Contains(sick, uuid) {
				continue
			}
			oldest = max(oldest, g.age)
			if !g.up || g.age > fr.period {
				t.Errorf("frame %d: %s is up %t, its values are %s old", fr.sequence, uuid, g.up, g.age)
			}
		}
	}
	t.Logf("%d frames, values of sound GPUs at most %s old", len(all)-begin, oldest)
	for _, uuid := range sick {
		if g := all[len(all)-1].gpus[uuid]; !g.up || g.lost || g.hung != "" {
			t.Errorf("%s is not back: %+v", uuid, g)
		}
	}
}

var xid = regexp.MustCompile(`(?m)^time=(\S+) .*msg=event .*gpu=5 .*data=79`)

// xid79 is when the lost GPU fell off the bus, by the world's own word.
func xid79(sim *proc) (time.Time, error) {
	log, err := os.ReadFile(sim.log.Name())
	if err != nil {
		return time.Time{}, err
	}
	hit := xid.FindSubmatch(log)
	if hit == nil {
		return time.Time{}, errors.New("no Xid 79 yet")
	}
	return time.Parse(time.RFC3339Nano, string(hit[1]))
}

// series reads a metric with its labels.
func (s *stack) series(role, name string) (map[string]float64, error) {
	m, err := s.metrics(role)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(m) {
		labels, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if labels, ours := strings.CutPrefix(labels, name+"{"); ok && ours {
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				return nil, err
			}
			out[labels] = v
		}
	}
	return out, nil
}

// of is the value of the one series that names a GPU.
func of(series map[string]float64, uuid string) (labels string, v float64, ok bool) {
	for l, value := range series {
		if strings.Contains(l, `uuid="`+uuid+`"`) {
			return l, value, true
		}
	}
	return "", 0, false
}

// hungFor is how long a call on a GPU hangs, by whoever is asked.
func (s *stack) hungFor(role, uuid string) (float64, error) {
	hung, err := s.series(role, "evenkeel_driver_call_hung_seconds")
	if err != nil {
		return 0, err
	}
	labels, v, ok := of(hung, uuid)
	if !ok || !regexp.MustCompile(`call="\w+"`).MatchString(labels) || len(hung) != 1 {
		return 0, fmt.Errorf("%s: hung calls %v", role, hung)
	}
	return v, nil
}

// namesSick wants gpu_up 0 for both and 1 for the rest, the call that hangs and
// for how long and, at the exporter, readers that did not succeed.
func (s *stack) namesSick(role, hung, lost string) error {
	up, err := s.series(role, "gpu_up")
	if err != nil {
		return err
	}
	down := 0
	for _, v := range up {
		if v == 0 {
			down++
		}
	}
	_, h, ok := of(up, hung)
	_, l, also := of(up, lost)
	if len(up) != 8 || down != 2 || !ok || !also || h != 0 || l != 0 {
		return fmt.Errorf("%s: gpu_up %v", role, up)
	}
	if v, err := s.hungFor(role, hung); err != nil || v <= 0 {
		return fmt.Errorf("%s: the call hangs for %g s, %w", role, v, err)
	}
	if role != "exporter" {
		return nil
	}
	readers, err := s.series(role, "evenkeel_reader_success")
	if err != nil {
		return err
	}
	for _, v := range readers {
		if v == 0 {
			return nil
		}
	}
	return fmt.Errorf("every reader succeeds: %v", readers)
}

// soundSeries wants the collector to show the six as they are now, and no
// values of the sick.
func (s *stack) soundSeries(hung, lost string) error {
	ages, err := s.series("collector", "gpu_sample_age_seconds")
	if err != nil {
		return err
	}
	power, err := s.series("collector", "gpu_power_watts")
	if err != nil {
		return err
	}
	fresh := 0
	for labels, age := range ages {
		if strings.Contains(labels, hung) || strings.Contains(labels, lost) {
			continue
		}
		// A tick, its way and the scrape: two seconds are one tick missed.
		if fresh++; age > 2 {
			err = errors.Join(err, fmt.Errorf("%s is %g s old", labels, age))
		}
	}
	_, _, h := of(power, hung)
	_, _, l := of(power, lost)
	if fresh != 6 || len(power) != 6 || h || l {
		err = errors.Join(err, fmt.Errorf("ages of %d sound GPUs, power of %d GPUs", fresh, len(power)))
	}
	return err
}

// doctor begins `evenkeel-node doctor` and gives what it says when it ends.
func (s *stack) doctor() <-chan string {
	said := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "evenkeel-node"), "doctor")
		cmd.Env = slices.Concat(os.Environ(), s.env)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			out = fmt.Appendf(out, "\n(ended with %v, want exit code 1)", err)
		}
		said <- string(out)
	}()
	return said
}

// oneLine undoes the line breaks of a text that is wrapped for a terminal.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
