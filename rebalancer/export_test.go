package rebalancer

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// What a test that drives Step without an Engine needs of what the Engine does.
var WithoutStep = withoutStep

// Reread is a Memory before it is read anew from the journal: what samples
// left is kept, as the Engine keeps it.
func Reread(m Memory) Memory { return Memory{filters: m.filters, seen: m.seen, covered: m.covered} }

// SwitchOff takes a guard out of its list, for tests that want to see it
// missed. It is not for parallel tests.
func SwitchOff(guard string) (restore func()) {
	values, targets, acts := valueGuards, targetGuards, actGuards
	valueGuards, targetGuards, actGuards = without(values, guard), without(targets, guard), without(acts, guard)
	if len(valueGuards)+len(targetGuards)+len(actGuards) != len(values)+len(targets)+len(acts)-1 {
		panic(fmt.Sprintf("no guard %q", guard))
	}
	return func() { valueGuards, targetGuards, actGuards = values, targets, acts }
}

func without[F any](guards []F, name string) []F {
	return slices.DeleteFunc(slices.Clone(guards), func(f F) bool {
		return strings.HasSuffix(runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name(), "."+name)
	})
}
