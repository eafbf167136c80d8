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
	ask    func(*reading) // adds to the batch what depends on the device; may be nil
}

// readers run in this order. The order matters where noted.
var readers = []reader{
	// First, because a lost device shows at the first call and this one is cheap.
	{name: "utilization", rate: telemetry.Fast, read: readUtilization},
	{name: "busy", rate: telemetry.Fast, read: readBusy}, // falls back on utilization
	{name: "memory", rate: telemetry.Fast, read: readMemory},
	{name: "power", rate: telemetry.Fast, fields: []FieldID{FieldEnergyMillijoules, fieldPowerLimit}, read: readPower},
	{name: "power_limits", rate: telemetry.Slow, read: readPowerLimits},
	{name: "thermal_limits", rate: telemetry.Slow, fields: []FieldID{FieldTLimitSlowdown}, read: readThermalLimits}, // before headroom
	{name: "temperature", rate: telemetry.Fast, fields: []FieldID{FieldMemoryTemperature}, read: readTemperature},
	{name: "headroom", rate: telemetry.Fast, read: readHeadroom}, // uses temperature
	{name: "clocks", rate: telemetry.Fast, read: readClocks},
	{name: "slow_clocks", rate: telemetry.Slow, read: readSlowClocks},
	{name: "throttle", rate: telemetry.Fast, fields: throttleFields, read: readThrottle},
	{name: "nvlink_totals", rate: telemetry.Fast, read: readNVLinkTotals, ask: askNVLinkTotals},
	{name: "nvlink", rate: telemetry.Link, read: readNVLinks},
	{name: "pcie_link", rate: telemetry.Slow, fields: []FieldID{FieldPCIeReplays}, read: readPCIeLink}, // before pcie
	{name: "pcie", rate: telemetry.Link, fields: []FieldID{FieldPCIeTxBytes, FieldPCIeRxBytes}, read: readPCIe},
	{name: "ecc", rate: telemetry.Slow, fields: eccFields, read: readECC},
	{name: "row_remap", rate: telemetry.Slow, fields: remapFields, read: readRemap},
	{name: "health", rate: telemetry.Slow, fields: []FieldID{FieldRecoveryAction}, read: readHealth},
	{name: "processes", rate: telemetry.Link, read: readProcesses},
}

// due says which of the slower parts a round reads.
type due struct{ link, slow bool }

func (d due) has(r telemetry.Rate) bool {
	switch r {
	case telemetry.Slow:
		return d.slow
	case telemetry.Link:
		return d.link
	}
	return true
}

// everything is all parts. Whoever asks for the slow part gets the link part
// too: some of what is slow follows from the links.
var everything = due{true, true}

func (d due) or(o due) due { return due{d.link || o.link, d.slow || o.slow} }

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
	link, slow part
	invalid    [maxSlots][whys]uint32
	links      links
	processes  []Process
	listed     bool // processes is what the driver said in the last link round
	counters   [maxSlots]counter
	results    []result
	// What this device does not have is asked for again only in slow rounds: a
	// refused call costs as much as another.
	noCall  [callCount]bool
	noField [maxFields]FieldID
	nNo     int

	limits thermalLimits
	busy   busyState
	limit  float64 // power limit last seen in the batch, 0 if never
	pcie   PCIeLink
}

// reading is one round of one GPU, as its readers see it.
type reading struct {
	dev      Device
	at       time.Time     // start of the round
	elapsed  time.Duration // measured since the last complete round, 0 if there is none
	period   time.Duration
	due      due            // which parts are read, besides the fast one
	rate     telemetry.Rate // of the reader that runs
	out      *sample
	mem      *memory
	call     *callMark
	costs    *[callCount][]time.Duration // for doctor; nil else
	fields   []Field
	totals   int // where in fields those of askNVLinkTotals begin
	perLink  []Field
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
	switch row := slots[s].row.Rate; {
	case r.rate == telemetry.Slow || row == telemetry.Slow:
		return &r.mem.slow.values
	case r.rate == telemetry.Link || row == telemetry.Link:
		return &r.mem.link.values
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

// count stores the driver's own counter from a field, times its unit.
func (r *reading) count(id telemetry.ID, field FieldID, unit float64) error {
	f, err := r.element(field)
	if err != nil {
		return r.absent(err, id)
	}
	s := int(slotOf[id])
	raw := f.Value * unit
	if !slots[s].row.InRange(raw) || math.IsInf(raw, 0) {
		r.drop(s, whyRange)
		return nil
	}
	c := &r.mem.counters[s]
	if !c.observe(raw, f.wrap()*unit, r.mem.generation) {
		r.drop(s, whyDecreased)
		return nil
	}
	r.set(id, c.value())
	return nil
}

// gauge stores a field as it is.
func (r *reading) gauge(id telemetry.ID, field FieldID) error {
	v, err := r.field(field)
	if err != nil {
		return r.absent(err, id)
	}
	r.set(id, v)
	return nil
}

// stated stores a value of a call that gives several, NaN where the device does
// not state it.
func (r *reading) stated(id telemetry.ID, v float64) {
	if math.IsNaN(v) {
		_ = r.absent(errUnsupported, id)
		return
	}
	r.set(id, v)
}

// doubt marks a value that was stored as one not to act on.
func (r *reading) doubt(id telemetry.ID) {
	if m := &r.place(int(slotOf[id])).mark[slotOf[id]]; *m == present {
		*m = suspect
	}
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

// maxFields bounds what all readers together name for the batch.
const maxFields = 32

// batch reads the fields of all readers that are due, in one call.
func (r *reading) batch() {
	r.fields = r.fields[:0]
	for i := range readers {
		if !r.due.has(readers[i].rate) {
			continue
		}
		for _, id := range readers[i].fields {
			if !r.mem.lacks(id) {
				r.fields = append(r.fields, Field{ID: id})
			}
		}
	}
	named := len(r.fields)
	for i := range readers {
		if readers[i].ask != nil && r.due.has(readers[i].rate) {
			readers[i].ask(r)
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
	for i := range r.fields[:named] {
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

// field returns the value of one field that a reader names.
func (r *reading) field(id FieldID) (float64, error) {
	f, err := r.element(id)
	if err != nil {
		return 0, err
	}
	return f.Value, nil
}

// element returns one field that a reader names.
func (r *reading) element(id FieldID) (*Field, error) {
	if r.mem.lacks(id) {
		return nil, errUnsupported
	}
	if r.batchErr != nil {
		return nil, r.batchErr
	}
	for i := range r.fields {
		if f := &r.fields[i]; f.ID == id {
			return f, f.Err
		}
	}
	return nil, errUnsupported
}

// round runs the readers that are due.
func (r *reading) round(list []reader) {
	if r.due.slow || r.mem.at.IsZero() {
		r.mem.noCall = [callCount]bool{}
		r.mem.nNo = 0
		r.mem.links.retry()
	}
	if r.due.slow {
		r.mem.slow.mark = [maxSlots]mark{}
	}
	if r.due.link {
		r.mem.link.mark = [maxSlots]mark{}
	}
	r.core, r.memTemp, r.util = math.NaN(), math.NaN(), math.NaN()
	r.batch()
	for i := range list {
		rd := &list[i]
		if !r.due.has(rd.rate) {
			continue
		}
		r.rate = rd.rate
		if r.fatal != nil {
			r.mem.results[i] = result{ran: true, err: r.fatal}
			continue
		}
		start := time.Now()
		err := rd.read(r)
		r.mem.results[i] = result{ran: true, err: err, duration: time.Since(start)}
	}
	r.rate = telemetry.Fast
	if r.fatal != nil {
		return
	}
	if r.due.link {
		r.mem.link.done(r.at)
	}
	if r.due.slow {
		r.mem.slow.done(r.at)
	}
}
