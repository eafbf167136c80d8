package cluster

import (
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Judge turns the frames of one node into its observations. It is the only
// place where values are judged. It is not safe for concurrent use and has no
// clock: the same frames with the same arrival times give the same
// observations.
type Judge struct {
	node    string
	cluster string
	source  source
	clock   clock
	epoch   int64 // viewer's clock at the first frame, nanoseconds
	synced  bool
	fault   string
	now     tick
	heard   time.Time // arrival of the last frame taken
	// published is the sample time of the last regular observation, in seconds.
	published float64
	began     bool
	tracks    []*track
	samples   sampleTable
	refused   refusals
	links     bool
	decays    decays
}

// Verdict says what became of a frame that was taken.
type Verdict struct {
	// Publish is set if the observation is due: the first of its second, or
	// Changed.
	Publish bool
	// Changed is set if a verdict changed: a new process, a driver fault, a
	// device's state or health, the onset of thermal throttling.
	Changed bool
	// Lost is the number of frames missing since the last one.
	Lost uint64
	// Age is the time from sample to judgement.
	Age time.Duration
}

// NewJudge returns the judge of a node. With links it also keeps the values of
// single NVLinks, for Links.
func NewJudge(node string, links bool) *Judge { return &Judge{node: node, links: links} }

// Frame judges a frame that arrived at now and returns a new observation, or
// nil if none is due. A refused frame is a *telemetry.DropError and changes
// nothing.
func (j *Judge) Frame(now time.Time, f *telemetry.Frame) (*telemetry.Observation, error) {
	o := new(telemetry.Observation)
	v, err := j.FrameInto(now, f, o)
	if err != nil || !v.Publish {
		return nil, err
	}
	return o, nil
}

// FrameInto is Frame for callers that bring the observation: its messages are
// used again, so nothing of it may be held over the next call.
func (j *Judge) FrameInto(now time.Time, f *telemetry.Frame, o *telemetry.Observation) (Verdict, error) {
	sample := f.GetSampleTimeUnixNano()
	if sample <= 0 || sample > maxUnixNano {
		return Verdict{}, refuse(telemetry.DropClock, "sample time is none")
	}
	oldBoot := j.source.boot
	fresh, lost, err := j.source.admit(now, f)
	if err != nil {
		return Verdict{}, err
	}
	j.follow(now)
	if fresh {
		j.restart(now, oldBoot == f.GetBootId())
	}
	k, age := j.tick(now, f, sample)
	fault := clip(f.GetDriverFault())
	v := Verdict{Lost: lost, Age: age, Changed: fresh || j.fault != fault}
	j.fault, j.synced, j.cluster = fault, f.GetClockSynchronized(), clip(f.GetCluster())
	if j.devices(f, k) {
		v.Changed = true
	}
	j.samples.take(f, j, k)
	j.now = k
	regular := fresh || j.due(k)
	if regular {
		j.published = k.seconds
		for _, t := range j.tracks {
			t.learn(k, &j.decays)
		}
	}
	if v.Publish = regular || v.Changed; v.Publish {
		j.observe(o, f.GetSequence(), sample, age)
	}
	return v, nil
}

// maxUnixNano bounds times so that differences of two cannot overflow.
const maxUnixNano = 4e18

// due says whether a sample is the first of its second. Counting from the last
// one instead of from the whole second keeps a node whose tick falls on the
// boundary from being heard twice in one second and not at all in the next.
func (j *Judge) due(k tick) bool {
	return k.seconds-j.published >= 1-min(k.period, time.Second).Seconds()/2
}

// follow moves all that is kept by the viewer's wall clock when that clock was
// stepped. Frames do not tell: a step forward looks like a delay that never
// ends. The viewer's own monotonic clock does.
func (j *Judge) follow(now time.Time) {
	last := j.heard
	j.heard = now
	if last.IsZero() {
		return
	}
	step := time.Duration(now.UnixNano()-last.UnixNano()) - now.Sub(last)
	if step <= MaxStep && step >= -MaxStep {
		return
	}
	j.epoch += int64(step)
	j.published += step.Seconds()
	j.clock.shift(step)
	for _, t := range j.tracks {
		t.trend.shift(step.Seconds())
		t.fit.shift(step.Seconds())
	}
}

func (j *Judge) restart(now time.Time, sameBoot bool) {
	if !j.began {
		j.epoch, j.began = now.UnixNano(), true
	}
	j.clock = clock{}
	j.samples.clear()
	for _, t := range j.tracks {
		t.restart(sameBoot)
	}
}

// restart forgets every value, since values from before a restart do not
// count. What was learned of the hardware stays for as long as the machine did
// not go down.
func (t *track) restart(sameBoot bool) {
	t.slots = [maxSlots]slot{}
	t.trend.reset()
	if !sameBoot {
		t.fit = thermal{}
	}
	t.fit.n = 0
	t.state = telemetry.GPUState_GPU_STATE_UNKNOWN
}

func (j *Judge) tick(now time.Time, f *telemetry.Frame, sample int64) (tick, time.Duration) {
	mono := f.GetMonotonicNano()
	if mono < 0 || mono > maxUnixNano {
		mono = 0
	}
	at, fault := j.clock.take(now.UnixNano(), sample, mono)
	return tick{
		at:       uint32((at-j.epoch)/int64(time.Millisecond)) + maxAge,
		seconds:  float64(at) / 1e9,
		period:   j.source.period,
		suspect:  fault,
		slowPart: f.GetHasSlowPart(),
	}, max(time.Duration(now.UnixNano()-at), 0)
}

// devices folds the devices of a frame and says whether a verdict changed.
func (j *Judge) devices(f *telemetry.Frame, k tick) bool {
	for _, t := range j.tracks {
		t.inFrame = false
	}
	changed := false
	for i, g := range f.GetGpus() {
		t := j.track(g.GetUuid(), i)
		if t == nil {
			continue
		}
		t.take(g, k, &j.refused)
		t.takeLinks(g, k, j.links)
	}
	for _, t := range j.tracks {
		if !t.inFrame {
			t.missing(j.fault == "")
		}
		if t.changed(k) {
			changed = true
		}
	}
	if len(j.tracks) > len(f.GetGpus()) {
		j.tracks = slices.DeleteFunc(j.tracks, func(t *track) bool { return !t.inFrame && k.at-t.lastFrame > maxAge })
	}
	return changed
}

// missing is a device that a live frame does not list. While the driver does
// not answer nothing is known of any.
func (t *track) missing(driver bool) {
	t.state = telemetry.GPUState_GPU_STATE_UNKNOWN
	if driver {
		t.state = telemetry.GPUState_GPU_STATE_ABSENT
	}
	t.hungCall, t.hungMS, t.members = "", 0, nil
}

// changed compares the verdicts with the last ones.
func (t *track) changed(k tick) bool {
	class, _, _ := t.health(k)
	hot := t.hot(k)
	changed := class != t.class || hot && !t.throttled
	t.class, t.throttled = class, hot
	return changed
}

// track finds a device by its UUID, first where it was last time; nil if it
// cannot be taken.
func (j *Judge) track(uuid string, hint int) *track {
	if hint < len(j.tracks) && j.tracks[hint].uuid == uuid {
		return j.tracks[hint]
	}
	for _, t := range j.tracks {
		if t.uuid == uuid {
			return t
		}
	}
	if len(uuid) > maxText || len(j.tracks) >= telemetry.MaxGPUs {
		j.refused.count(RefusedDevice)
		return nil
	}
	t := &track{uuid: uuid}
	j.tracks = append(j.tracks, t)
	return t
}

// Why values within a frame are refused.
const (
	RefusedOutOfRange = "out_of_range"
	RefusedDevice     = "device"
	RefusedSample     = "sample"
)

var refusedWhys = [...]string{RefusedOutOfRange, RefusedDevice, RefusedSample}

// refusals counts refused values since the last observation.
type refusals [len(refusedWhys)]uint32

func (r *refusals) count(why string) {
	for i, w := range refusedWhys {
		if w == why {
			r[i]++
		}
	}
}
