package rebalancer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Refuse makes a refusal.
func Refuse(reason telemetry.RefusalReason, t telemetry.Target, format string, args ...any) telemetry.Refusal {
	return telemetry.Refusal{Reason: reason, Target: t, Text: fmt.Sprintf(format, args...)}
}

// RefuseNumbers makes a refusal that rests on two numbers.
func RefuseNumbers(reason telemetry.RefusalReason, t telemetry.Target, have, need float64, unit, format string, args ...any) telemetry.Refusal {
	r := Refuse(reason, t, format, args...)
	r.Have, r.Need, r.Unit = &have, &need, unit
	return r
}

func refuseUntil(reason telemetry.RefusalReason, t telemetry.Target, until time.Time, format string, args ...any) telemetry.Refusal {
	r := Refuse(reason, t, format, args...)
	r.Until = until
	return r
}

// refusalKey is a refusal without its numbers.
func refusalKey(r telemetry.Refusal) string {
	return string(r.Reason) + " " + string(r.Act) + " " + r.Target.String()
}

// passing says that a reason ends by itself within the filter or the settle
// time; decisions and samples tell its story, so it does not count as a change
// of the set.
func passing(reason telemetry.RefusalReason) bool {
	return reason == telemetry.RefusalUnconfirmed || reason == telemetry.RefusalInFlight || reason == telemetry.RefusalSettling
}

// lastingKeys is the set of refusals, sorted, without the passing ones.
func lastingKeys(set telemetry.RefusalSet) []string {
	counts := maps.Clone(set.Counts)
	maps.DeleteFunc(counts, func(r telemetry.RefusalReason, _ int) bool { return passing(r) })
	return refusalKeys(telemetry.RefusalSet{Counts: counts, Details: slices.DeleteFunc(slices.Clone(set.Details), func(r telemetry.Refusal) bool { return passing(r.Reason) })})
}

// refusalKeys tells one set of refusals from another. Of more than a record
// holds only the reasons count: which are the worst, and so have their details
// kept, changes with every sample.
func refusalKeys(set telemetry.RefusalSet) []string {
	var keys []string
	all := 0
	for reason, n := range set.Counts {
		keys, all = append(keys, string(reason)), all+n
	}
	if all <= len(set.Details) {
		keys = nil
		for _, r := range set.Details {
			keys = append(keys, refusalKey(r))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// refused collects the refusals of a pass: all are counted, details are kept
// up to the limit of a record, the lasting ones before the passing ones.
type refused struct {
	counts           map[telemetry.RefusalReason]int
	lasting, passing []telemetry.Refusal
}

func (c *refused) add(refusals ...telemetry.Refusal) {
	for _, r := range refusals {
		put(&c.counts, r.Reason, c.counts[r.Reason]+1)
		kept := &c.lasting
		if passing(r.Reason) {
			kept = &c.passing
		}
		if len(*kept) < telemetry.MaxDetailedRefusals {
			*kept = append(*kept, r)
		}
	}
}

func (c *refused) set() telemetry.RefusalSet {
	details := slices.Concat(c.lasting, c.passing)
	return telemetry.RefusalSet{Counts: c.counts, Details: details[:min(len(details), telemetry.MaxDetailedRefusals)]}
}

// reasons prints counts in a fixed order.
func reasons(counts map[telemetry.RefusalReason]int) string {
	var parts []string
	for _, r := range telemetry.RefusalReasons {
		if n := counts[r]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", r, n))
		}
	}
	return strings.Join(parts, ", ")
}
