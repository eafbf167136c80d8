package exporter

import (
	"cmp"
	"math/bits"
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
	columns     [linkKinds][]uint64
	up          []uint32
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
func (f *frame) encode(e *Exporter, now time.Time, d due) ([]byte, error) {
	m := f.msg
	m.SetSequence(e.seq)
	m.SetSampleTimeUnixNano(now.UnixNano())
	m.SetMonotonicNano(int64(now.Sub(e.start)))
	m.SetHasLinkPart(d.link)
	m.SetHasSlowPart(d.slow)
	m.SetDriverFault(string(e.state.fault))
	f.list, f.used = f.list[:0], 0
	for i, g := range e.gpus {
		if i == len(f.gpus) {
			f.gpus = append(f.gpus, &gpuMessage{msg: &telemetry.GPU{}, description: &telemetry.Description{}, hung: &telemetry.HungCall{}})
		}
		f.gpus[i].fill(g, e.state.info.Version, now, d)
		f.list = append(f.list, f.gpus[i].msg)
	}
	if d.slow {
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

func (x *gpuMessage) fill(g *gpu, driver string, now time.Time, d due) {
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
	if d.slow && g.known {
		describe(x.description, g.id, driver)
		m.SetDescription(x.description)
	}
	if g.got {
		m.SetFastAgeMs(ageMs(now, s.at))
		m.SetLinkAgeMs(ageMs(now, s.link.at))
		m.SetSlowAgeMs(ageMs(now, s.slow.at))
	}
	if d.link {
		// All of them, or nobody. Of a device that is down, those who held it when
		// it was last asked and run still.
		m.SetMembers(g.holders.Members)
	}
	if !g.up {
		return // what was read before is no news, and must not look like it
	}
	if d.link {
		x.fillLinks(&s.links)
	}
	for i := range slots {
		part := &s.fast
		if part.mark[i] == absent && d.link {
			part = &s.link.values
		}
		if part.mark[i] == absent && d.slow {
			part = &s.slow.values
		}
		if v, ok := part.get(i); ok {
			m.SetValue(slots[i].id, v)
		}
		if mark := part.mark[i]; mark > present && (mark != unsupported || d.slow) {
			m.SetQuality(slots[i].id, mark.quality())
		}
	}
}

// setColumn stores the column of a count of links.
var setColumn = [linkKinds]func(*telemetry.GPU, []uint64){
	linkTx:       (*telemetry.GPU).SetNvlinkBytesTx,
	linkRx:       (*telemetry.GPU).SetNvlinkBytesRx,
	linkCRCFlit:  (*telemetry.GPU).SetNvlinkErrorsCrcFlit,
	linkCRCData:  (*telemetry.GPU).SetNvlinkErrorsCrcData,
	linkReplay:   (*telemetry.GPU).SetNvlinkErrorsReplay,
	linkRecovery: (*telemetry.GPU).SetNvlinkErrorsRecovery,
}

// fillLinks adds the columns of the links that are up. One mask is for all of
// them, so a count that not every such link has is left out: a zero in its place
// would be a lie.
func (x *gpuMessage) fillLinks(l *linkValues) {
	m := x.msg
	m.SetLinkMask(l.up)
	m.SetLinkDownMask(l.down)
	n := bits.Len64(l.up)
	if l.stated && n > 0 {
		x.up = x.up[:0]
		for link := range n {
			x.up = append(x.up, uint32(l.up>>link&1))
		}
		m.SetNvlinkUp(x.up)
	}
	for k := range l.has {
		if l.has[k] == 0 || l.has[k] != l.up {
			continue
		}
		c := x.columns[k][:0]
		for link := range n {
			v := uint64(0)
			if isIn(l.up, link) {
				v = uint64(l.v[k][link])
			}
			c = append(c, v)
		}
		x.columns[k] = c
		setColumn[k](m, c)
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
	if m := e.opt.Members; m != nil {
		f.sample(telemetry.NodeReaderSuccess, "", boolean(m.Err() == nil), readerMembers)
	}
	e.events.xidCounts(func(uuid string, n float64, xid, action string) {
		f.sample(telemetry.GPUXidErrors, uuid, n, xid, action)
	})
	for _, g := range e.gpus {
		for i := range readers {
			if err := g.readerErr(i); err != nil {
				f.sample(telemetry.GPUReaderFailing, g.uuid, 1, readers[i].name, string(FaultOf(err)))
			}
		}
		g.front.dropped(func(metric string, w why, n float64) {
			f.sample(telemetry.GPUSampleInvalid, g.uuid, n, metric, whyNames[w])
		})
	}
	e.sourced(func(row *telemetry.Row, id telemetry.ID, uuid string, v float64, labels []string) {
		// The rest is for who scrapes the node: values of processes, and of devices
		// that have no message of their own.
		if row.Per != telemetry.PerProcess && row.Wire.Kind == telemetry.NoWire {
			f.sample(id, uuid, v, labels...)
		}
	})
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

// readerErr is why a reader has nothing of a GPU. One that hangs or is lost fails
// for all of them.
func (g *gpu) readerErr(reader int) error {
	switch {
	case g.hung != callNone:
		return &DriverError{Call: callNames[g.hung], Fault: Hung}
	case g.device == nil && g.findErr != nil:
		return g.findErr
	}
	return g.front.results[reader].err
}

// readerResult is how a reader's last run went over all GPUs: the worst success
// and the longest run. Which GPU it was, gpu_reader_failing says.
func readerResult(gpus []*gpu, reader int) result {
	var all result
	for _, g := range gpus {
		if r := g.front.results[reader]; r.ran {
			all.ran = true
			all.err = cmp.Or(all.err, g.readerErr(reader))
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
