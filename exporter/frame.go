package exporter

import (
	"cmp"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// frame is the node's message, reused from tick to tick.
type frame struct {
	msg     *telemetry.Frame
	gpus    []*gpuMessage
	list    []*telemetry.GPU
	samples []*telemetry.Sample // those in use are a prefix
	used    int
	buf     []byte
	node    string
}

type gpuMessage struct {
	msg         *telemetry.GPU
	description *telemetry.Description
	hung        *telemetry.HungCall
}

func (f *frame) init(opt Options, boot string, start time.Time) {
	f.node = opt.Node
	f.msg = &telemetry.Frame{}
	f.msg.SetSchema(telemetry.Schema)
	f.msg.SetCluster(opt.Cluster)
	f.msg.SetNode(opt.Node)
	f.msg.SetBootId(boot)
	f.msg.SetIncarnation(uint64(start.UnixNano()))
	f.msg.SetPeriodNano(uint64(opt.Period))
	f.msg.SetClockSynchronized(clockSynchronized())
}

// encode fills the message and returns it encoded, in a buffer that the next
// call reuses.
func (f *frame) encode(e *Exporter, now time.Time, slow bool) ([]byte, error) {
	m := f.msg
	m.SetSequence(e.seq)
	m.SetSampleTimeUnixNano(now.UnixNano())
	m.SetMonotonicNano(int64(now.Sub(e.start)))
	m.SetHasSlowPart(slow)
	m.SetDriverFault(string(e.state.fault))
	f.list, f.used = f.list[:0], 0
	for i, g := range e.gpus {
		if i == len(f.gpus) {
			f.gpus = append(f.gpus, &gpuMessage{&telemetry.GPU{}, &telemetry.Description{}, &telemetry.HungCall{}})
		}
		f.gpus[i].fill(g, e.state.info.Version, now, slow)
		f.list = append(f.list, f.gpus[i].msg)
	}
	if slow {
		m.SetClockSynchronized(clockSynchronized())
		f.addSamples(e)
	}
	m.SetGpus(f.list)
	m.SetSamples(f.samples[:f.used])
	m.SetSendTimeUnixNano(time.Now().UnixNano())
	data, err := telemetry.AppendFrame(f.buf[:0], m)
	if err == nil {
		f.buf = data
	}
	return data, err
}

func (x *gpuMessage) fill(g *gpu, driver string, now time.Time, slow bool) {
	m, s := x.msg, g.front
	m.Reset()
	m.SetUuid(g.uuid)
	m.SetGeneration(g.generation())
	m.SetLost(g.lost)
	up := uint32(0)
	if g.up {
		up = 1
	}
	m.SetUp(up)
	if g.hung != callNone {
		x.hung.SetCall(callNames[g.hung])
		x.hung.SetForMs(uint64(g.hungFor.Milliseconds()))
		m.SetHung(x.hung)
	}
	if slow && g.known {
		describe(x.description, g.id, driver)
		m.SetDescription(x.description)
	}
	if g.got {
		m.SetFastAgeMs(ageMs(now, s.at))
		m.SetSlowAgeMs(ageMs(now, s.slowAt))
	}
	if !g.up {
		return // what was read before is no news, and must not look like it
	}
	for i := range slots {
		part := &s.fast
		if part.mark[i] == absent {
			if part = &s.slow; !slow {
				continue
			}
		}
		if v, ok := part.get(i); ok {
			m.SetValue(slots[i].id, v)
		}
		if mark := part.mark[i]; mark > present && (mark != unsupported || slow) {
			m.SetQuality(slots[i].id, mark.quality())
		}
	}
}

func ageMs(now, at time.Time) uint32 {
	if at.IsZero() || !now.After(at) {
		return 0
	}
	return uint32(min(now.Sub(at).Milliseconds(), 1<<32-1))
}

// addSamples adds what has labels of its own.
func (f *frame) addSamples(e *Exporter) {
	up := 0.0
	if e.state.up {
		up = 1
	}
	f.sample(telemetry.NodeDriverUp, "", up, string(e.state.fault))
	for i := range readers {
		if r := readerResult(e.gpus, i); r.ran {
			f.sample(telemetry.NodeReaderSuccess, "", boolean(r.ok()), readers[i].name)
			f.sample(telemetry.NodeReaderDuration, "", r.duration.Seconds(), readers[i].name)
		}
	}
	for _, g := range e.gpus {
		g.front.dropped(func(metric string, w why, n float64) {
			f.sample(telemetry.GPUSampleInvalid, g.uuid, n, metric, whyNames[w])
		})
	}
}

func (f *frame) sample(id telemetry.ID, uuid string, v float64, labels ...string) {
	if f.used == telemetry.MaxSamples {
		return
	}
	if f.used == len(f.samples) {
		f.samples = append(f.samples, &telemetry.Sample{})
	}
	s := f.samples[f.used]
	f.used++
	s.SetId(uint32(id))
	s.SetUuid(uuid)
	s.SetValue(v)
	s.SetLabels(labels)
}

// readerResult is how a reader's last run went over all GPUs: the worst success
// and the longest run. Which GPU it was, gpu_up and the log say.
func readerResult(gpus []*gpu, reader int) result {
	var all result
	for _, g := range gpus {
		if r := g.front.results[reader]; r.ran {
			all.ran = true
			all.err = cmp.Or(all.err, r.err)
			all.duration = max(all.duration, r.duration)
		}
	}
	return all
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
