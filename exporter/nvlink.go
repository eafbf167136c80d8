package exporter

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// linkKind is a count of one NVLink.
type linkKind int

const (
	linkTx linkKind = iota
	linkRx
	linkCRCFlit
	linkCRCData
	linkReplay
	linkRecovery
	linkKinds
)

// linkField is a field that tells a count of one link, in its unit.
type linkField struct {
	id   FieldID
	unit float64
}

// linkCounts are the series of one link. Which field tells one depends on
// device and driver: they are tried in their order, and the first that is
// supported on any link is kept. What no field tells, a call for each link may.
var linkCounts = [linkKinds]struct {
	id     telemetry.ID
	fields []linkField
	call   callID // callNone: there is none
	kind   LinkError
}{
	linkTx:       {telemetry.LinkNVLinkBytesTx, []linkField{{FieldNVLinkTxKiB, 1024}, {FieldNVLink5TxBytes, 1}}, callNone, 0},
	linkRx:       {telemetry.LinkNVLinkBytesRx, []linkField{{FieldNVLinkRxKiB, 1024}, {FieldNVLink5RxBytes, 1}}, callNone, 0},
	linkCRCFlit:  {telemetry.LinkNVLinkErrorsCRCFlit, []linkField{{FieldNVLinkCRCErrors, 1}, {FieldNVLink5RxErrors, 1}}, callLinkCRCFlit, LinkCRCFlit},
	linkCRCData:  {telemetry.LinkNVLinkErrorsCRCData, nil, callLinkCRCData, LinkCRCData},
	linkReplay:   {telemetry.LinkNVLinkErrorsReplay, []linkField{{FieldNVLinkReplays, 1}}, callLinkReplay, LinkReplay},
	linkRecovery: {telemetry.LinkNVLinkErrorsRecovery, []linkField{{FieldNVLinkRecoveries, 1}, {FieldNVLink5Recoveries, 1}}, callLinkRecovery, LinkRecovery},
}

// totalSources tell the bytes over all links, tried in their order: the
// driver's own sum, or one made here.
var totalSources = [...]struct {
	fields [2]FieldID // tx, rx
	unit   float64
	each   bool // a field for each link
}{
	{[2]FieldID{FieldNVLinkTxKiB, FieldNVLinkRxKiB}, 1024, false},
	{[2]FieldID{FieldNVLink5TxBytes, FieldNVLink5RxBytes}, 1, false},
	{[2]FieldID{FieldNVLink5TxBytes, FieldNVLink5RxBytes}, 1, true},
}

var totalIDs = [2]telemetry.ID{telemetry.GPUNVLinkTotalBytesTx, telemetry.GPUNVLinkTotalBytesRx}

// linkValues is what was read of the links of a GPU. A link that is not up is a
// hole in every count.
type linkValues struct {
	up, down uint64
	stated   bool // the driver says which are up
	has      [linkKinds]uint64
	v        [linkKinds][]float64 // by link
}

// copyTo copies into memory that the other has.
func (l *linkValues) copyTo(to *linkValues) {
	to.up, to.down, to.stated, to.has = l.up, l.down, l.stated, l.has
	for k := range l.v {
		to.v[k] = append(to.v[k][:0], l.v[k]...)
	}
}

// How the driver tells which links are up.
const (
	stateByField = iota
	stateByCall
	stateUnknown
)

// links is what a worker knows of the links of its GPU.
type links struct {
	linkValues
	stateBy  int
	ever     uint64         // links that were up at some time
	source   [linkKinds]int // in the fields of linkCounts; their end for a call
	counters [linkKinds][]counter
	invalid  [linkKinds][whys]uint32
	total    int // in totalSources
	summing  bool
	sums     [2][]counter // by link, or one
}

// retry asks again for what nothing has told so far.
func (l *links) retry() {
	for k := range l.source {
		if l.has[k] == 0 {
			l.source[k] = 0
		}
	}
	if l.total == len(totalSources) {
		l.total = 0
	}
	if l.stateBy == stateUnknown {
		l.stateBy = stateByField
	}
}

// restart forgets what another start of the driver could tell.
func (l *links) restart() {
	l.source, l.total, l.stateBy = [linkKinds]int{}, 0, stateByField
	l.clear()
}

func (l *links) clear() { l.up, l.down, l.has = 0, 0, [linkKinds]uint64{} }

// size makes room for n links.
func (l *links) size(n int) {
	if len(l.v[0]) == n {
		return
	}
	for k := range l.v {
		l.v[k], l.counters[k] = make([]float64, n), make([]counter, n)
	}
	for d := range l.sums {
		l.sums[d] = make([]counter, n)
	}
}

// byCall says that no field tells a count.
func (l *links) byCall(k linkKind) bool { return l.source[k] == len(linkCounts[k].fields) }

// nvlinks is how many links the device has, as far as a frame can hold them.
func (r *reading) nvlinks() int { return max(0, min(r.dev.Identity().Links, telemetry.MaxLinks)) }

func isIn(mask uint64, link int) bool { return mask>>link&1 == 1 }

// readNVLinks reads every link in one batch and, in a slow round, in calls what
// no field tells.
func readNVLinks(r *reading) error {
	l := &r.mem.links
	n := r.nvlinks()
	l.size(n)
	if n == 0 {
		return r.absent(errUnsupported, telemetry.GPUNVLinkLinksExpected)
	}
	err := l.read(r, n)
	if r.fatal != nil {
		l.clear()
		return err
	}
	if l.ever |= l.up; l.ever == 0 { // nothing is plugged in
		return errors.Join(err, r.absent(errUnsupported, telemetry.GPUNVLinkLinksExpected))
	}
	r.set(telemetry.GPUNVLinkLinksExpected, float64(n))
	return err
}

func (l *links) read(r *reading, n int) error {
	if l.stateBy == stateByField {
		l.up, l.down = 0, 0
	}
	var todo [linkKinds]bool
	for k := range linkKinds {
		if todo[k] = !l.byCall(k); todo[k] || r.due.slow {
			l.has[k] = 0
		}
	}
	var failed error
	for state := l.stateBy == stateByField; state || slices.Contains(todo[:], true); state = false {
		at := l.ask(r, n, state, &todo)
		switch err := r.do(callLinkFields, func() error { return r.dev.Fields(r.perLink) }); {
		case isUnsupported(err):
			for i := range r.perLink {
				r.perLink[i].Err = err
			}
		case err != nil:
			l.clear()
			return err
		}
		if state {
			failed = l.takeState(r.perLink[:n])
		}
		for k, from := range at {
			if todo[k] {
				var err error
				todo[k], err = l.take(r, linkKind(k), r.perLink[from:from+n])
				failed = cmp.Or(failed, err)
			}
		}
	}
	if r.due.slow {
		failed = cmp.Or(failed, l.call(r, n))
	}
	l.settle()
	return failed
}

// ask fills the batch and returns where in it the counts begin.
func (l *links) ask(r *reading, n int, state bool, todo *[linkKinds]bool) (at [linkKinds]int) {
	r.perLink = r.perLink[:0]
	add := func(id FieldID) {
		for link := range n {
			r.perLink = append(r.perLink, Field{ID: id, Scope: uint32(link)})
		}
	}
	if state {
		add(FieldNVLinkState)
	}
	for k := range linkKinds {
		if at[k] = len(r.perLink); todo[k] {
			add(linkCounts[k].fields[l.source[k]].id)
		}
	}
	return at
}

// takeState takes which links are up. One of which the driver knows nothing is
// neither up nor down.
func (l *links) takeState(fields []Field) (failed error) {
	unsupported := 0
	for link := range fields {
		f := &fields[link]
		switch {
		case isUnsupported(f.Err):
			unsupported++
		case f.Err != nil:
			failed = cmp.Or(failed, f.Err)
		case f.Value == 1 || f.Value == 2: // active, or asleep until there is traffic
			l.up |= 1 << link
		default:
			l.down |= 1 << link
		}
	}
	if unsupported == len(fields) {
		l.stateBy = stateByCall
	}
	return failed
}

// take takes a count. If no link that may be up has it, the next source is
// tried: again says that this is another field.
func (l *links) take(r *reading, k linkKind, fields []Field) (again bool, failed error) {
	asked, unsupported := 0, 0
	for link := range fields {
		if !l.mayBeUp(link) {
			continue
		}
		asked++
		f := &fields[link]
		switch unit := linkCounts[k].fields[l.source[k]].unit; {
		case isUnsupported(f.Err):
			unsupported++
		case f.Err != nil:
			failed = cmp.Or(failed, f.Err)
		default:
			l.count(k, link, f.Value*unit, f.wrap()*unit, r.mem.generation)
		}
	}
	if asked > 0 && unsupported == asked {
		l.source[k]++
		return !l.byCall(k), nil
	}
	return false, failed
}

// mayBeUp is false of a link that is known not to be up.
func (l *links) mayBeUp(link int) bool {
	return isIn(l.up, link) || l.stateBy != stateByField && l.up|l.down == 0
}

func (l *links) count(k linkKind, link int, raw, wrap float64, generation uint64) {
	c := &l.counters[k][link]
	switch {
	case !(raw >= 0) || math.IsInf(raw, 0):
		l.invalid[k][whyRange]++
	case !c.observe(raw, wrap, generation):
		l.invalid[k][whyDecreased]++
	default:
		l.v[k][link] = c.value()
		l.has[k] |= 1 << link
	}
}

// call asks by calls for what no field tells, one call for each link.
func (l *links) call(r *reading, n int) error {
	dev, ok := r.dev.(LinkTeller)
	if !ok {
		return nil
	}
	var failed error
	if l.stateBy == stateByCall {
		failed = l.callState(r, dev, n)
	}
	for k := range linkKinds {
		c := &linkCounts[k]
		for link := 0; link < n && c.call != callNone && l.byCall(k) && !r.mem.noCall[c.call]; link++ {
			if !l.mayBeUp(link) {
				continue
			}
			var v float64
			err := r.do(c.call, func() (err error) {
				v, err = dev.LinkErrors(link, c.kind)
				return err
			})
			if err == nil {
				l.count(k, link, v, 0, r.mem.generation)
			} else if !isUnsupported(err) {
				failed = cmp.Or(failed, err)
			}
		}
	}
	return failed
}

func (l *links) callState(r *reading, dev LinkTeller, n int) (failed error) {
	l.up, l.down = 0, 0
	for link := 0; link < n && !r.mem.noCall[callLinkState]; link++ {
		var up bool
		err := r.do(callLinkState, func() (err error) {
			up, err = dev.LinkUp(link)
			return err
		})
		switch {
		case err != nil && !isUnsupported(err):
			failed = cmp.Or(failed, err)
		case err == nil && up:
			l.up |= 1 << link
		case err == nil:
			l.down |= 1 << link
		}
	}
	if l.up|l.down == 0 && failed == nil {
		l.stateBy = stateUnknown
	}
	return failed
}

// settle makes holes of the links that are not up, and keeps the count of one
// that could not be read this once.
func (l *links) settle() {
	if l.stated = l.stateBy != stateUnknown && l.up|l.down != 0; !l.stated {
		l.up, l.down = 0, 0
		for _, has := range l.has {
			l.up |= has
		}
	}
	for k := range l.has {
		if l.has[k] &= l.up; l.has[k] == 0 {
			continue
		}
		for link := range l.counters[k] {
			if c := &l.counters[k][link]; isIn(l.up&^l.has[k], link) && c.known {
				l.v[k][link] = c.value()
				l.has[k] |= 1 << link
			}
		}
	}
}

// askNVLinkTotals asks for the bytes over all links with the batch of the tick.
func askNVLinkTotals(r *reading) {
	l := &r.mem.links
	n := r.nvlinks()
	r.totals = len(r.fields)
	if n == 0 || l.total == len(totalSources) {
		return
	}
	l.size(n)
	src := &totalSources[l.total]
	for _, id := range src.fields {
		if !src.each {
			r.fields = append(r.fields, Field{ID: id, Scope: AllLinks})
			continue
		}
		for link := range n {
			if !isIn(l.down, link) {
				r.fields = append(r.fields, Field{ID: id, Scope: uint32(link)})
			}
		}
	}
}

// readNVLinkTotals takes the driver's sums, or adds up the links. Where neither
// is supported by one source, the next is asked in the next tick.
func readNVLinkTotals(r *reading) error {
	l := &r.mem.links
	if r.nvlinks() == 0 || l.total == len(totalSources) {
		return r.absent(errUnsupported, totalIDs[:]...)
	}
	if r.batchErr != nil {
		return r.absent(r.batchErr, totalIDs[:]...)
	}
	some, failed := l.takeTotals(r)
	switch {
	case failed != nil:
		return r.absent(failed, totalIDs[:]...)
	case !some && !l.summing:
		// The next source at once, so that the first round has the value.
		l.total++
		r.fields = r.fields[:r.totals]
		if askNVLinkTotals(r); len(r.fields) > r.totals {
			if err := r.do(callFields, func() error { return r.dev.Fields(r.fields[r.totals:]) }); err != nil {
				return r.absent(err, totalIDs[:]...)
			}
		}
		return readNVLinkTotals(r)
	}
	l.summing = true
	for d, id := range totalIDs {
		sum := 0.0
		for i := range l.sums[d] {
			sum += l.sums[d][i].value()
		}
		r.set(id, sum)
	}
	return nil
}

func (l *links) takeTotals(r *reading) (some bool, failed error) {
	src, fields := &totalSources[l.total], r.fields[r.totals:]
	for i := range fields {
		f := &fields[i]
		d := 2 * i / len(fields)
		raw, at := f.Value*src.unit, 0
		if src.each {
			at = int(f.Scope)
		}
		switch c := &l.sums[d][at]; {
		case isUnsupported(f.Err):
		case f.Err != nil:
			failed = cmp.Or(failed, f.Err)
		case !(raw >= 0) || math.IsInf(raw, 0):
			r.mem.invalid[slotOf[totalIDs[d]]][whyRange]++
		default:
			some = true
			if !c.known && l.summing {
				c.base = -raw // a link that came later counts from here on
			}
			if !c.observe(raw, f.wrap()*src.unit, r.mem.generation) {
				r.mem.invalid[slotOf[totalIDs[d]]][whyDecreased]++
			}
		}
	}
	return some, failed
}
