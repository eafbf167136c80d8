//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var errNoDriverAccess = fmt.Errorf(
	"this binary was built without cgo and cannot reach a GPU driver, use one built on Linux with CGO_ENABLED=1: %w",
	&exporter.DriverError{Call: "dlopen", Fault: exporter.NoLibrary})

// Source cannot be opened in this build.
type Source struct{}

// New returns a Source that cannot be opened in this build.
func New(...Option) *Source { return &Source{} }

// Open says why there is no driver.
func (*Source) Open() error { return errNoDriverAccess }

// Close does nothing.
func (*Source) Close() error { return nil }

// Driver says why there is no driver.
func (*Source) Driver() (exporter.Driver, error) { return exporter.Driver{}, errNoDriverAccess }

// Devices says why there are none.
func (*Source) Devices() ([]exporter.Found, error) { return nil, errNoDriverAccess }

// Calls is always 0.
func (*Source) Calls() uint64 { return 0 }

// Writer cannot be opened in this build.
type Writer struct{}

// NewWriter returns a Writer that cannot be opened in this build.
func NewWriter(...Option) *Writer { return &Writer{} }

// Open says why there is no driver.
func (*Writer) Open() error { return errNoDriverAccess }

// Close does nothing.
func (*Writer) Close() error { return nil }

// PowerLimits says why there is no driver.
func (*Writer) PowerLimits(string) (telemetry.PowerLimits, error) {
	return telemetry.PowerLimits{}, errNoDriverAccess
}

// SetPowerLimit says why there is no driver.
func (*Writer) SetPowerLimit(string, float64) error { return errNoDriverAccess }

// Headroom says why there is no driver.
func (*Writer) Headroom(string) (float64, error) { return 0, errNoDriverAccess }

// Devices says why there are none.
func (*Writer) Devices() ([]exporter.Found, error) { return nil, errNoDriverAccess }

// Holders says why they are not known.
func (*Writer) Holders(string) ([]exporter.Process, error) { return nil, errNoDriverAccess }

// Facts says that this build reaches no driver.
func Facts(opts ...Option) exporter.Facts { return exporter.Facts{Library: apply(opts).path} }
