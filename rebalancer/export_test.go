package rebalancer

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// What a test that drives Step without an Engine needs of what the Engine does.
var (
	WithoutStep = withoutStep
	NeverBegun  = neverBegun
)

// Reread is a Memory before it is read anew from the journal: what samples
// left is kept, as the Engine keeps it.
func Reread(m Memory) Memory { return Memory{filters: m.filters, seen: m.seen, covered: m.covered} }

// SwitchOff takes a guard out of its list, for tests that want to see it
// missed. It is not for parallel tests.
func SwitchOff(guard string) (restore func()) {
	values, targets, acts, works := valueGuards, targetGuards, actGuards, workGuards
	valueGuards, targetGuards, actGuards, workGuards = without(values, guard), without(targets, guard), without(acts, guard), without(works, guard)
	if len(valueGuards)+len(targetGuards)+len(actGuards)+len(workGuards) != len(values)+len(targets)+len(acts)+len(works)-1 {
		panic(fmt.Sprintf("no guard %q", guard))
	}
	return func() { valueGuards, targetGuards, actGuards, workGuards = values, targets, acts, works }
}

func without[F any](guards []F, name string) []F {
	return slices.DeleteFunc(slices.Clone(guards), func(f F) bool {
		return strings.HasSuffix(runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name(), "."+name)
	})
}
