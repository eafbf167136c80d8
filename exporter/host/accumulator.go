package host

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/influxdata/telegraf"
)

// point is one measurement of a plugin.
type point struct {
	name   string
	fields map[string]any
	tags   map[string]string
}

// number returns a field as a number, whatever type the plugin gave it.
func (p *point) number(field string) (float64, bool) {
	switch v := p.fields[field].(type) {
	case float64:
		return v, true
	case float32:
		return float64(v), true
	case int:
		return float64(v), true
	case int32:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint:
		return float64(v), true
	case uint32:
		return float64(v), true
	case uint64:
		return float64(v), true
	case bool:
		return boolean(v), true
	}
	return 0, false
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// maxPoints bounds one run of a plugin.
const maxPoints = 4096

// accumulator implements telegraf.Accumulator and keeps what it is given.
type accumulator struct {
	mu     sync.Mutex
	points []point
	errs   []error
}

var _ telegraf.Accumulator = (*accumulator)(nil)

// AddFields implements telegraf.Accumulator.
func (a *accumulator) AddFields(name string, fields map[string]interface{}, tags map[string]string, _ ...time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.points) < maxPoints {
		a.points = append(a.points, point{name, fields, tags})
	}
}

// AddGauge implements telegraf.Accumulator; what a value is, the catalogue says.
func (a *accumulator) AddGauge(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.AddFields(name, fields, tags, t...)
}

// AddCounter implements telegraf.Accumulator.
func (a *accumulator) AddCounter(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.AddFields(name, fields, tags, t...)
}

// AddSummary implements telegraf.Accumulator.
func (a *accumulator) AddSummary(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.AddFields(name, fields, tags, t...)
}

// AddHistogram implements telegraf.Accumulator.
func (a *accumulator) AddHistogram(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.AddFields(name, fields, tags, t...)
}

// AddMetric implements telegraf.Accumulator.
func (a *accumulator) AddMetric(m telegraf.Metric) { a.AddFields(m.Name(), m.Fields(), m.Tags()) }

// SetPrecision implements telegraf.Accumulator; times are the batch's.
func (a *accumulator) SetPrecision(time.Duration) {}

// AddError implements telegraf.Accumulator.
func (a *accumulator) AddError(err error) {
	if err == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.errs) < 8 {
		a.errs = append(a.errs, err)
	}
}

// WithTracking implements telegraf.Accumulator. None of our plugins waits for
// delivery.
func (a *accumulator) WithTracking(int) telegraf.TrackingAccumulator { return nil }

func (a *accumulator) take() ([]point, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.points, errors.Join(a.errs...)
}

// logger is what a plugin logs to.
type logger struct{ to *slog.Logger }

var _ telegraf.Logger = logger{}

// giveLogger sets a plugin's field Log, as Telegraf does.
func giveLogger(in telegraf.Input, to *slog.Logger) {
	v := reflect.Indirect(reflect.ValueOf(in))
	if v.Kind() != reflect.Struct {
		return
	}
	if f := v.FieldByName("Log"); f.IsValid() && f.CanSet() && f.Type() == reflect.TypeFor[telegraf.Logger]() {
		f.Set(reflect.ValueOf(logger{to}))
	}
}

func (l logger) Level() telegraf.LogLevel     { return telegraf.Info }
func (l logger) AddAttribute(string, any)     {}
func (l logger) Errorf(f string, args ...any) { l.to.Error(fmt.Sprintf(f, args...)) }
func (l logger) Error(args ...any)            { l.to.Error(fmt.Sprint(args...)) }
func (l logger) Warnf(f string, args ...any)  { l.to.Warn(fmt.Sprintf(f, args...)) }
func (l logger) Warn(args ...any)             { l.to.Warn(fmt.Sprint(args...)) }
func (l logger) Infof(f string, args ...any)  { l.to.Info(fmt.Sprintf(f, args...)) }
func (l logger) Info(args ...any)             { l.to.Info(fmt.Sprint(args...)) }
func (l logger) Debugf(f string, args ...any) { l.to.Debug(fmt.Sprintf(f, args...)) }
func (l logger) Debug(args ...any)            { l.to.Debug(fmt.Sprint(args...)) }
func (l logger) Tracef(string, ...any)        {}
func (l logger) Trace(...any)                 {}
