package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Fault is something wrong with a frame, or with a node.
type Fault string

// The faults. Those of a frame befall a tick with their probability; the tick
// behind one is always plain, so that what each must lead to is certain.
const (
	FaultLost     Fault  = "lost"     // the frame is not sent
	FaultDup      Fault  = "dup"      // it is sent twice
	FaultLate     Fault  = "late"     // it is sent most of a period after its sample
	FaultReorder  Fault  = "reorder"  // it is sent behind the next one
	FaultLieNode  Fault  = "lie-node" // another one is sent beside it, that names another node
	FaultGarbage  Fault  = "garbage"  // bytes are sent beside it that are no frame
	FaultRestart  Fault  = "restart"  // the exporter starts anew
	FaultLieTime  Fault  = "lie-time" // of a node: its clock is an hour ahead
	lieTimeAhead         = 3600_000   // milliseconds
	lateShare            = 0.6        // of a period
	garbageKinds         = 5
	garbageBigOne        = 64 // one of so many is larger than any frame may be
	garbageNoise         = "this is no frame, and was never meant to be one"
	foreignSuffix        = "-other"
	futureSchemas uint64 = 1000
)

// faultRows lists the faults in the order in which they are drawn, with what
// the collector must count for each; garbage depends on its kind.
var faultRows = []struct {
	fault Fault
	help  string
	drops []telemetry.DropReason
}{
	{FaultLost, "frames not sent", []telemetry.DropReason{telemetry.DropLost}},
	{FaultDup, "frames sent twice", []telemetry.DropReason{telemetry.DropDuplicate}},
	{FaultLate, "frames held back for most of a period", nil},
	{FaultReorder, "frames sent behind the next one", []telemetry.DropReason{telemetry.DropLost, telemetry.DropReordered}},
	{FaultLieNode, "frames that name another node", []telemetry.DropReason{telemetry.DropForeign}},
	{FaultGarbage, "messages that are no frame", nil},
	{FaultRestart, "exporters started anew", nil},
	{FaultLieTime, "nodes whose clock is an hour ahead", nil},
}

// Faults are probabilities: of a frame, and of a node for lie-time.
type Faults map[Fault]float64

// ParseFaults reads "lost=0.01,dup=0.001".
func ParseFaults(text string) (Faults, error) {
	out := Faults{}
	sum := 0.0
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		p, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(p) || p < 0 || p > 1 {
			return nil, fmt.Errorf("fault %q: want NAME=SHARE with a share from 0 to 1, such as lost=0.01", item)
		}
		fault := Fault(name)
		if !slices.Contains(FaultNames(), name) {
			return nil, fmt.Errorf("fault %q is not known; there are %s", name, strings.Join(FaultNames(), ", "))
		}
		if _, twice := out[fault]; twice {
			return nil, fmt.Errorf("fault %s is given twice", name)
		}
		out[fault] = p
		if fault != FaultLieTime {
			sum += p
		}
	}
	if sum > 1 {
		return nil, fmt.Errorf("the shares of faults of a frame add up to %g, more than 1", sum)
	}
	return out, nil
}

// FaultNames lists the faults.
func FaultNames() []string {
	names := make([]string, len(faultRows))
	for i, r := range faultRows {
		names[i] = string(r.fault)
	}
	return names
}

// draw picks the fault of a tick from a number between 0 and 1; none in most.
func (f Faults) draw(x float64) Fault {
	for _, r := range faultRows {
		if r.fault == FaultLieTime {
			continue
		}
		if x -= f[r.fault]; x < 0 {
			return r.fault
		}
	}
	return ""
}

// injected counts the faults that were made, and what they must lead to.
type injected struct {
	made  map[Fault]uint64
	drops map[telemetry.DropReason]uint64
}

func newInjected() injected {
	return injected{made: map[Fault]uint64{}, drops: map[telemetry.DropReason]uint64{}}
}

func (i *injected) count(f Fault, drops ...telemetry.DropReason) {
	i.made[f]++
	for _, why := range drops {
		i.drops[why]++
	}
}

func (i *injected) add(o injected) {
	for f, n := range o.made {
		i.made[f] += n
	}
	for why, n := range o.drops {
		i.drops[why] += n
	}
}

// garbage appends the nth message that is no frame to buf, and says why it is
// refused.
func garbage(buf, frame []byte, n uint64) ([]byte, telemetry.DropReason) {
	if n%garbageBigOne == garbageBigOne-1 {
		return append(buf, make([]byte, telemetry.MaxFrameBytes+1)...), telemetry.DropOversized
	}
	switch n % garbageKinds {
	case 0:
		return append(buf, frame[:len(frame)/2]...), telemetry.DropMalformed
	case 1:
		return append(buf, garbageNoise...), telemetry.DropMalformed
	case 2:
		return appendDevices(append(buf, frame...), telemetry.MaxGPUs+1), telemetry.DropTooMany
	case 3:
		return appendUint(append(buf, frame...), fieldSchema, telemetry.Schema+futureSchemas), telemetry.DropSchema
	}
	return appendUint(append(buf, frame...), fieldIncarnation, 0), telemetry.DropMalformed
}
