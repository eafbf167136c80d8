//go:build crashpoints

package node

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/app/crashpoint"
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Names of the places at which an agent can end.
var (
	crashOrders = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepRenew, telemetry.StepUndo, telemetry.StepPreempt}
	// crashReceipts are what a receipt can say: how an order ended, that the
	// agent has ended a lease by itself, what became of an order that a former
	// run left unfinished, or once more what a former run may not have sent. That
	// of a preemption goes the way of a cap's.
	crashReceipts = []string{"power_cap", "renew", "undo", "lease_end", "unfinished", "again"}
	// crashCalls are what is done to a device: a limit is lowered for a cap and
	// raised to undo one; and to processes: they are asked to end, and killed.
	crashCalls = []string{"read", "lower", "raise", "term", "kill"}
)

// crashPoints decorates the ports of an agent with places at which a test can
// end the process.
type crashPoints struct{ *crashpoint.Points }

func newCrashPoints() (crashPoints, error) {
	var names []string
	for _, call := range crashCalls {
		names = append(names, call+".before", call+".after")
	}
	for _, kind := range crashOrders {
		names = append(names, "order."+string(kind)+".before", "order."+string(kind)+".after")
	}
	for _, what := range crashReceipts {
		names = append(names, "receipt."+what+".before", "receipt."+what+".after", "receipt."+what+".stored")
	}
	p, err := crashpoint.New(names)
	return crashPoints{p}, err
}

func (c crashPoints) bus(b agent.Bus) agent.Bus {
	return crashBus{b, c, uint64(time.Now().UnixNano())}
}

func (c crashPoints) processes(p process.Proc) agent.Processes { return crashProcesses{p, c} }

func (c crashPoints) writer(w agent.Writer) agent.Writer {
	return &crashWriter{Writer: w, crash: c, limits: map[string]float64{}}
}

// crashBus ends as an order has come and as its answer is about to be sent;
// before a receipt is handed to the bus, after it, and once it is stored there.
type crashBus struct {
	agent.Bus
	crash crashPoints
	since uint64 // a receipt of an earlier incarnation is sent again
}

// HandleOrders implements agent.Bus.
func (b crashBus) HandleOrders(node string, fn func(data []byte) []byte) (stop func(), err error) {
	return b.Bus.HandleOrders(node, func(data []byte) []byte {
		kind := kindOf(data)
		if !slices.Contains(crashOrders, kind) {
			return fn(data)
		}
		b.crash.Pass("order." + string(kind) + ".before")
		answer := fn(data)
		b.crash.Pass("order." + string(kind) + ".after")
		return answer
	})
}

// kindOf reads an order's kind, whoever signed it.
func kindOf(data []byte) telemetry.StepKind {
	var e telemetry.Envelope
	var o telemetry.Order
	if json.Unmarshal(data, &e) != nil || json.Unmarshal(e.Payload, &o) != nil {
		return ""
	}
	return o.Kind
}

// PublishReceipt implements agent.Bus.
func (b crashBus) PublishReceipt(node string, r telemetry.Receipt, stored func()) error {
	what := string(r.Kind)
	switch {
	case r.Incarnation < b.since:
		what = "again"
	case r.Spontaneous && strings.HasPrefix(r.Detail, "lease ended"):
		what = "lease_end"
	case r.Spontaneous:
		what = "unfinished"
	}
	if !slices.Contains(crashReceipts, what) {
		return b.Bus.PublishReceipt(node, r, stored)
	}
	what = "receipt." + what
	b.crash.Pass(what + ".before")
	err := b.Bus.PublishReceipt(node, r, func() {
		b.crash.Pass(what + ".stored")
		stored()
	})
	b.crash.Pass(what + ".after")
	return err
}

// crashWriter ends before and after each call on a device.
type crashWriter struct {
	agent.Writer
	crash crashPoints

	mu     sync.Mutex
	limits map[string]float64 // last read, by uuid
}

// PowerLimits implements agent.Writer.
func (w *crashWriter) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	w.crash.Pass("read.before")
	l, err := w.Writer.PowerLimits(uuid)
	w.crash.Pass("read.after")
	if err == nil {
		w.mu.Lock()
		w.limits[uuid] = l.Current
		w.mu.Unlock()
	}
	return l, err
}

// SetPowerLimit implements agent.Writer.
func (w *crashWriter) SetPowerLimit(uuid string, watts float64) error {
	call := "lower"
	w.mu.Lock()
	if watts > w.limits[uuid] {
		call = "raise"
	}
	w.mu.Unlock()
	w.crash.Pass(call + ".before")
	err := w.Writer.SetPowerLimit(uuid, watts)
	w.crash.Pass(call + ".after")
	return err
}

// crashProcesses ends before and after a process gets a signal.
type crashProcesses struct {
	agent.Processes
	crash crashPoints
}

// Signal implements agent.Processes.
func (p crashProcesses) Signal(h *process.Handle, s syscall.Signal) error {
	call := map[syscall.Signal]string{syscall.SIGTERM: "term", syscall.SIGKILL: "kill"}[s]
	if call == "" {
		return p.Processes.Signal(h, s)
	}
	p.crash.Pass(call + ".before")
	err := p.Processes.Signal(h, s)
	p.crash.Pass(call + ".after")
	return err
}
