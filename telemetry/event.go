package telemetry

import "time"

// EventKind is what happened on a node.
type EventKind string

// Event kinds.
const (
	EventXid            EventKind = "xid"
	EventSXid           EventKind = "sxid"
	EventECC            EventKind = "ecc"
	EventGPULost        EventKind = "gpu_lost"
	EventGPUBack        EventKind = "gpu_back"
	EventGPUHung        EventKind = "gpu_hung"
	EventMIGChange      EventKind = "mig_change"
	EventRecoveryAction EventKind = "recovery_action"
	EventDriverDown     EventKind = "driver_down"
	EventDriverUp       EventKind = "driver_up"
)

// EventKinds is every kind, for pre-created series.
var EventKinds = []EventKind{
	EventXid, EventSXid, EventECC, EventGPULost, EventGPUBack, EventGPUHung,
	EventMIGChange, EventRecoveryAction, EventDriverDown, EventDriverUp,
}

// Event is something that happened once. ID is boot id and counter, so the
// same event sent again is known as such.
type Event struct {
	ID          string    `json:"id"`
	Cluster     string    `json:"cluster"`
	Node        string    `json:"node"`
	BootID      string    `json:"boot_id"`
	Incarnation uint64    `json:"incarnation"`
	Time        time.Time `json:"time"`
	Kind        EventKind `json:"kind"`
	UUID        string    `json:"uuid,omitempty"`
	PCI         string    `json:"pci,omitempty"`
	GI          *uint32   `json:"gi,omitempty"`
	Code        int       `json:"code,omitempty"`
	Class       string    `json:"class,omitempty"`
	Action      string    `json:"action,omitempty"`
	Count       uint64    `json:"count,omitempty"`
	Source      string    `json:"source,omitempty"`
	Detail      string    `json:"detail,omitempty"`
}
