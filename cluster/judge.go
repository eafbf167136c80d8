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
	doubt   string
	now     tick
	first   int64     // first frame of the present process, like tick.ms
	readAt  int64     // when the node's reader of processes last was known to work
	heard   time.Time // arrival of the last frame taken
	// published is the sample time of the last regular observation, in seconds.
	published float64
	began     bool
	tracks    []*track
	samples   sampleTable
	host      host
	refused   refusals
	names     names
	links     bool
	decays    decays
	bases     []float64 // room for observeAir
	judged    Judged    // room for FrameInto
}

// Verdict says what became of a frame that was taken.
type Verdict struct {
	// Publish is set if the observation is due: the first of its second, or
	// Changed.
	Publish bool
	// Changed is set if a verdict changed: a new process, a driver fault, a doubt
	// of the node, a verdict on the host, a device's health, the onset of thermal
	// throttling.
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

// judge takes a frame and makes the verdicts; the observation is left to be
// written if it is due.
func (j *Judge) judge(now time.Time, f *telemetry.Frame) (Verdict, error) {
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
	age, k := j.tick(now, f, sample), &j.now
	fault, doubt := clip(f.GetDriverFault()), j.source.doubt(now)
	v := Verdict{Lost: lost, Age: age, Changed: fresh || j.fault != fault || j.doubt != doubt}
	j.fault, j.doubt, j.synced = fault, doubt, f.GetClockSynchronized()
	j.names.refill(now)
	j.names.word(&j.cluster, f.GetCluster(), &j.refused)
	k.suspect, k.doubt = k.suspect || doubt != "", doubt
	j.fold(f, k)
	if j.host.judge(&j.samples, k) {
		v.Changed = true
	}
	regular := fresh || j.due(k)
	if regular {
		j.published = k.seconds
		j.watch(k)
	}
	for _, t := range j.tracks {
		if t.changed(k) {
			v.Changed = true
		}
	}
	v.Publish = regular || v.Changed
	return v, nil
}

// watch is what is judged once a second. The order matters: later verdicts rest
// on earlier ones.
func (j *Judge) watch(k *tick) {
	crowd := j.crowd()
	for _, t := range j.tracks {
		t.count(k)
		t.learn(k, &j.decays)
		t.watchSensor(k)
		t.watchFabric(k)
		t.watchHealth(k)
		t.watchUse(k, &j.host)
		t.watchContention(k, &j.host, crowd)
	}
}

// maxUnixNano bounds times so that differences of two cannot overflow.
const maxUnixNano = 4e18

// due says whether a sample is the first of its second. Counting from the last
// one instead of from the whole second keeps a node whose tick falls on the
// boundary from being heard twice in one second and not at all in the next.
func (j *Judge) due(k *tick) bool {
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
		t.fit.shift(step.Seconds())
	}
}

func (j *Judge) restart(now time.Time, sameBoot bool) {
	if !j.began {
		j.epoch, j.began = now.UnixNano(), true
	}
	j.clock, j.host, j.first, j.readAt = clock{}, host{}, 0, 0
	j.samples.clear()
	for _, t := range j.tracks {
		t.restart(sameBoot)
	}
}

// restart forgets every value, since values from before a restart do not
// count. What was learned of the hardware and found on it stays for as long as
// the machine did not go down.
func (t *track) restart(sameBoot bool) {
	t.slots, t.told, t.known = [maxSlots]slot{}, [2]uint64{}, false
	t.trend.reset()
	t.state = telemetry.GPUState_GPU_STATE_UNKNOWN
	t.members, t.migs, t.idle, t.contention, t.sensor = holders{past: t.members.past}, nil, idleness{}, contention{}, sensor{}
	t.busy, t.replays, t.corrected, t.uncorrected = meter{}, meter{}, meter{}, meter{}
	t.nvlink, t.pcie = [2]meter{}, [2]meter{}
	t.fabric = fabric{seenUp: sameBoot && t.fabric.seenUp, state: t.fabric.state, since: t.fabric.since}
	t.health.uncorrected = 0
	if !sameBoot {
		t.fit = thermal{}
		t.rebooted()
	}
	t.fit.n = 0
}

// tick makes what all devices of a frame have in common, and tells its age.
func (j *Judge) tick(now time.Time, f *telemetry.Frame, sample int64) time.Duration {
	mono := f.GetMonotonicNano()
	if mono < 0 || mono > maxUnixNano {
		mono = 0
	}
	at, fault := j.clock.take(now.UnixNano(), sample, mono)
	ms := max((at-j.epoch)/int64(time.Millisecond)+int64(maxAge), 1)
	j.now = tick{
		at:       uint32(ms),
		ms:       ms,
		seconds:  float64(at) / 1e9,
		period:   j.source.period,
		suspect:  fault,
		lived:    j.lived(f, sample, ms),
		linkPart: f.GetHasLinkPart(),
		slowPart: f.GetHasSlowPart(),
	}
	j.now.ages()
	j.now.processes = j.readAt != 0 && ms-j.readAt <= j.now.keep[classSlow]
	return max(time.Duration(now.UnixNano()-at), 0)
}

// lived is how long the sending process has been there, in milliseconds: what
// claims to be older was read by another. It tells its start itself, and its
// monotonic clock bounds what a wall clock that was set makes of that. It has
// been there at least since it was first heard.
func (j *Judge) lived(f *telemetry.Frame, sample, ms int64) uint32 {
	if j.first == 0 {
		j.first = ms
	}
	own := time.Duration(ms-j.first) * time.Millisecond
	if start := f.GetIncarnation(); start <= uint64(sample) {
		claim := time.Duration(uint64(sample) - start)
		if mono := f.GetMonotonicNano(); mono > 0 {
			claim = min(claim, time.Duration(mono))
		}
		own = max(own, claim)
	}
	return millis(min(own, time.Duration(maxAge)*time.Millisecond))
}

// fold takes what a frame says of devices and host.
func (j *Judge) fold(f *telemetry.Frame, k *tick) {
	for _, t := range j.tracks {
		t.inFrame = false
		t.members.failing = t.members.failing && !k.slowPart
	}
	for i, g := range f.GetGpus() {
		t := j.track(g.GetUuid(), i)
		if t == nil {
			continue
		}
		t.take(g, k, &j.names, &j.refused)
		t.takeLinks(g, k, j.links)
	}
	for _, t := range j.tracks {
		if !t.inFrame {
			t.missing(j.fault == "")
		}
	}
	if len(j.tracks) > len(f.GetGpus()) {
		j.tracks = slices.DeleteFunc(j.tracks, func(t *track) bool { return !t.inFrame && k.at-t.lastFrame > maxAge })
	}
	if k.slowPart {
		j.checkPlaces()
	}
	j.samples.take(f, j, k)
}

// missing is a device that a live frame does not list. While the driver does
// not answer nothing is known of any.
func (t *track) missing(driver bool) {
	t.state = telemetry.GPUState_GPU_STATE_UNKNOWN
	if driver {
		t.state = telemetry.GPUState_GPU_STATE_ABSENT
	}
	t.hungCall, t.hungMS, t.members = "", 0, holders{past: t.members.past}
}

// changed compares the verdicts with the last ones.
func (t *track) changed(k *tick) bool {
	hot := t.hot(k)
	onset := hot && !t.throttled
	t.throttled = hot
	return t.judgeHealth(k) || onset
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
	if !j.names.take() {
		j.refused.count(RefusedName)
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
	RefusedMember     = "member"
	RefusedName       = "name" // more than a node may newly name
)

var refusedWhys = [...]string{RefusedOutOfRange, RefusedDevice, RefusedSample, RefusedMember, RefusedName}

// refusals counts refused values since the last observation.
type refusals [len(refusedWhys)]uint32

func (r *refusals) count(why string) {
	for i, w := range refusedWhys {
		if w == why {
			r[i]++
		}
	}
}
