package exporter

import (
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// reader reads one topic of one GPU.
type reader struct {
	name   string
	rate   telemetry.Rate
	fields []FieldID // read for it, in the one batch of the round
	read   func(*reading) error
}

// readers run in this order. The order matters where noted.
var readers = []reader{
	// First, because a lost device shows at the first call and this one is cheap.
	{"utilization", telemetry.Fast, nil, readUtilization},
	{"busy", telemetry.Fast, nil, readBusy}, // falls back on utilization
	{"memory", telemetry.Fast, nil, readMemory},
	{"power", telemetry.Fast, []FieldID{FieldEnergyMillijoules, fieldPowerLimit}, readPower},
	{"power_limits", telemetry.Slow, nil, readPowerLimits},
	{"thermal_limits", telemetry.Slow, []FieldID{FieldTLimitSlowdown}, readThermalLimits}, // before headroom
	{"temperature", telemetry.Fast, []FieldID{FieldMemoryTemperature}, readTemperature},
	{"headroom", telemetry.Fast, nil, readHeadroom}, // uses temperature
	{"clocks", telemetry.Fast, nil, readClocks},
	{"slow_clocks", telemetry.Slow, nil, readSlowClocks},
	{"throttle", telemetry.Fast, throttleFields, readThrottle},
}

// result is how a reader's last run went.
type result struct {
	ran      bool
	err      error
	duration time.Duration
}

func (r result) ok() bool { return r.err == nil }

// memory is what a GPU's worker knows from one round to the next.
type memory struct {
	arch       telemetry.Arch
	generation uint64
	at         time.Time // start of the last complete round
	slow       values
	slowAt     time.Time
	slowRounds uint64
	counters   [maxSlots]counter
	invalid    [maxSlots][whys]uint32
	results    []result
	// What this device does not have is asked for again only in slow rounds: a
	// refused call costs as much as another.
	noCall  [callCount]bool
	noField [maxFields]FieldID
	nNo     int

	limits thermalLimits
	busy   busyState
	limit  float64 // power limit last seen in the batch, 0 if never
}

// reading is one round of one GPU, as its readers see it.
type reading struct {
	dev      Device
	at       time.Time     // start of the round
	elapsed  time.Duration // measured since the last complete round, 0 if there is none
	period   time.Duration
	slow     bool // a slow round
	inSlow   bool // the reader that runs is a slow one
	out      *sample
	mem      *memory
	call     *callMark
	costs    *[callCount][]time.Duration // for doctor; nil else
	fields   []Field
	fatal    error // ends the round: the device itself is gone
	util     float64
	core     float64 // NaN if it is not known
	memTemp  float64
	samples  []Sample
	batchErr error
}

// do makes one driver call under the watchdog's eyes.
func (r *reading) do(id callID, f func() error) error {
	if r.mem.noCall[id] {
		return errUnsupported
	}
	if r.fatal != nil {
		return r.fatal
	}
	start := r.call.enter(id)
	err := f()
	r.call.leave()
	if r.costs != nil {
		r.costs[id] = append(r.costs[id], time.Since(start))
	}
	switch FaultOf(err) {
	case "":
	case Unsupported, MissingSymbol:
		r.mem.noCall[id] = true
	case Lost, ResetRequired, NotInitialized, NotLoaded, Mismatch, NoGPU:
		r.fatal = err
	}
	return err
}

// errUnsupported stands for a call that the device is known not to have.
var errUnsupported error = &DriverError{Call: "remembered", Fault: Unsupported}

// isUnsupported tells what a device does not have from what went wrong.
func isUnsupported(err error) bool {
	f := FaultOf(err)
	return f == Unsupported || f == MissingSymbol
}

// place is where a value goes: by its own rate class, or its reader's.
func (r *reading) place(s int) *values {
	if r.inSlow || slots[s].row.Rate == telemetry.Slow {
		return &r.mem.slow
	}
	return &r.out.fast
}

// set stores a value and says whether it was taken.
func (r *reading) set(id telemetry.ID, v float64) bool { return r.store(id, v, present) }

func (r *reading) store(id telemetry.ID, v float64, m mark) bool {
	s := int(slotOf[id])
	row := slots[s].row
	if row.Archs&r.mem.arch == 0 {
		return false
	}
	to := r.place(s)
	if !row.InRange(v) || math.IsInf(v, 0) {
		r.drop(s, whyRange)
		return false
	}
	to.v[s], to.mark[s] = v, m
	return true
}

func (r *reading) drop(s int, w why) {
	r.place(s).mark[s] = outOfRange
	r.mem.invalid[s][w]++
}

// count stores the driver's own counter.
func (r *reading) count(id telemetry.ID, raw float64) {
	s := int(slotOf[id])
	if !slots[s].row.InRange(raw) || math.IsInf(raw, 0) {
		r.drop(s, whyRange)
		return
	}
	c := &r.mem.counters[s]
	if !c.observe(raw, r.mem.generation) {
		r.drop(s, whyDecreased)
		return
	}
	r.set(id, c.value())
}

// add stores a counter that is integrated here.
func (r *reading) add(id telemetry.ID, delta float64) {
	c := &r.mem.counters[slotOf[id]]
	c.add(delta)
	r.set(id, c.value())
}

// absent marks series that could not be read. What the device does not have is
// no failure of the reader.
func (r *reading) absent(err error, ids ...telemetry.ID) error {
	m := failed
	if isUnsupported(err) {
		m, err = unsupported, nil
	}
	for _, id := range ids {
		if s := int(slotOf[id]); slots[s].row.Archs&r.mem.arch != 0 {
			r.place(s).mark[s] = m
		}
	}
	return err
}

// interval is the measured time since the last round for what is integrated
// here. A gap is not claimed beyond three periods: what happened in it is not
// known.
func (r *reading) interval() float64 {
	return min(r.elapsed, 3*r.period).Seconds()
}

// maxFields bounds the batch of a round.
const maxFields = 32

// batch reads the fields of all readers that are due, in one call.
func (r *reading) batch() {
	r.fields = r.fields[:0]
	for i := range readers {
		if readers[i].rate == telemetry.Slow && !r.slow {
			continue
		}
		for _, id := range readers[i].fields {
			if !r.mem.lacks(id) {
				r.fields = append(r.fields, Field{ID: id})
			}
		}
	}
	r.batchErr = nil
	if len(r.fields) == 0 {
		return
	}
	r.batchErr = r.do(callFields, func() error { return r.dev.Fields(r.fields) })
	if r.batchErr != nil {
		return
	}
	for i := range r.fields {
		if isUnsupported(r.fields[i].Err) && r.mem.nNo < maxFields {
			r.mem.noField[r.mem.nNo] = r.fields[i].ID
			r.mem.nNo++
		}
	}
}

func (m *memory) lacks(id FieldID) bool {
	for _, no := range m.noField[:m.nNo] {
		if no == id {
			return true
		}
	}
	return false
}

// field returns one element of the batch.
func (r *reading) field(id FieldID) (float64, error) {
	if r.mem.lacks(id) {
		return 0, errUnsupported
	}
	if r.batchErr != nil {
		return 0, r.batchErr
	}
	for i := range r.fields {
		if r.fields[i].ID == id {
			return r.fields[i].Value, r.fields[i].Err
		}
	}
	return 0, errUnsupported
}

// round runs the readers that are due.
func (r *reading) round(list []reader) {
	if r.slow || r.mem.at.IsZero() {
		r.mem.noCall = [callCount]bool{}
		r.mem.nNo = 0
	}
	if r.slow {
		r.mem.slow.mark = [maxSlots]mark{}
	}
	r.core, r.memTemp, r.util = math.NaN(), math.NaN(), math.NaN()
	r.batch()
	for i := range list {
		rd := &list[i]
		r.inSlow = rd.rate == telemetry.Slow
		if r.inSlow && !r.slow {
			continue
		}
		if r.fatal != nil {
			r.mem.results[i] = result{ran: true, err: r.fatal}
			continue
		}
		start := time.Now()
		err := rd.read(r)
		r.mem.results[i] = result{ran: true, err: err, duration: time.Since(start)}
	}
	r.inSlow = false
	if r.slow && r.fatal == nil {
		r.mem.slowAt = r.at
		r.mem.slowRounds++
	}
}
