package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// stacksAtOnce is how many tests run beside each other. A stack waits, it does
// not compute: a few hundredths of a core each.
const stacksAtOnce = "8"

// TestMain sets how many stacks there are at once, unless the command line does.
func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", stacksAtOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
