package telemetry

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Schema is the version of frames and observations that this code writes. A
// reader takes its own and older versions.
const Schema = 1

// Limits of what a reader takes. MaxFrameBytes is far above any node (64 GPUs
// with all links are 40 kB) and below the bus's own limit.
const (
	MaxFrameBytes = 256 << 10
	MaxGPUs       = 256
	MaxSamples    = 8192
)

// DropReason is why a message was refused; it is a label value, so the list
// is closed.
type DropReason string

// Reasons for which a message is refused.
const (
	DropOversized DropReason = "oversized"
	DropMalformed DropReason = "malformed"
	DropSchema    DropReason = "schema"
	DropForeign   DropReason = "foreign"
	DropForged    DropReason = "forged"
	DropTooMany   DropReason = "too_many"
	DropDuplicate DropReason = "duplicate"
	DropReordered DropReason = "reordered"
	DropQueueFull DropReason = "queue_full"
	DropClock     DropReason = "clock"
	// DropLost counts what never arrived, as seen from gaps in a sequence.
	DropLost DropReason = "lost"
)

// DropReasons is every reason, for pre-created series.
var DropReasons = []DropReason{DropOversized, DropMalformed, DropSchema, DropForeign, DropForged, DropTooMany, DropDuplicate, DropReordered, DropQueueFull, DropClock, DropLost}

// DropError is a refused message.
type DropError struct {
	Why    DropReason
	Detail string
}

func (e *DropError) Error() string { return fmt.Sprintf("refused (%s): %s", e.Why, e.Detail) }

func drop(why DropReason, format string, args ...any) error {
	return &DropError{Why: why, Detail: fmt.Sprintf(format, args...)}
}

// WhyDropped returns the reason within err, or malformed.
func WhyDropped(err error) DropReason {
	var d *DropError
	if errors.As(err, &d) {
		return d.Why
	}
	return DropMalformed
}

var marshal = proto.MarshalOptions{}

// AppendFrame appends the encoded frame to buf.
func AppendFrame(buf []byte, f *Frame) ([]byte, error) {
	start := len(buf)
	out, err := marshal.MarshalAppend(buf, f)
	if err != nil {
		return buf, fmt.Errorf("encode frame: %w", err)
	}
	if n := len(out) - start; n > MaxFrameBytes {
		return buf, drop(DropOversized, "frame of %d bytes, at most %d", n, MaxFrameBytes)
	}
	return out, nil
}

// DecodeFrame decodes data into f, which is reset first, and checks all that
// can be checked without knowing the node: size, shape, schema, counts.
func DecodeFrame(data []byte, f *Frame) error {
	if len(data) > MaxFrameBytes {
		return drop(DropOversized, "frame of %d bytes, at most %d", len(data), MaxFrameBytes)
	}
	if err := proto.Unmarshal(data, f); err != nil {
		return drop(DropMalformed, "frame: %v", err)
	}
	return checkFrame(f)
}

func checkFrame(f *Frame) error {
	switch {
	case f.GetSchema() == 0 || f.GetSchema() > Schema:
		return drop(DropSchema, "frame schema %d, this reader knows 1 to %d", f.GetSchema(), Schema)
	case f.GetNode() == "" || f.GetIncarnation() == 0:
		return drop(DropMalformed, "frame without node or incarnation")
	case len(f.GetGpus()) > MaxGPUs:
		return drop(DropTooMany, "%d GPUs, at most %d", len(f.GetGpus()), MaxGPUs)
	case len(f.GetSamples()) > MaxSamples:
		return drop(DropTooMany, "%d samples, at most %d", len(f.GetSamples()), MaxSamples)
	}
	return checkGPUs(f.GetGpus())
}

// FrameDecoder decodes one frame after another. It uses the messages of devices,
// which are most of a frame's memory, again.
type FrameDecoder struct {
	frame Frame
	gpus  []*GPU
	rest  []byte
}

// numGPUs is the field number of Frame.gpus; a test compares it.
const numGPUs = 12

// Decode is DecodeFrame into a frame that the next call uses again.
func (d *FrameDecoder) Decode(data []byte) (*Frame, error) {
	if len(data) > MaxFrameBytes {
		return nil, drop(DropOversized, "frame of %d bytes, at most %d", len(data), MaxFrameBytes)
	}
	n, err := d.split(data)
	if err == nil {
		err = proto.Unmarshal(d.rest, &d.frame)
	}
	if err != nil {
		return nil, drop(DropMalformed, "frame: %v", err)
	}
	d.frame.SetGpus(d.gpus[:n])
	return &d.frame, checkFrame(&d.frame)
}

// split decodes the devices and leaves all else in rest. More than a reader
// takes are counted and not decoded.
func (d *FrameDecoder) split(data []byte) (gpus int, err error) {
	d.rest = d.rest[:0]
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeField(data)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		field := data[:n]
		data = data[n:]
		if num != numGPUs || typ != protowire.BytesType {
			d.rest = append(d.rest, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		body, _ := protowire.ConsumeBytes(field[tag:])
		if gpus == len(d.gpus) {
			d.gpus = append(d.gpus, new(GPU))
		}
		if gpus <= MaxGPUs {
			if err := proto.Unmarshal(body, d.gpus[gpus]); err != nil {
				return 0, err
			}
			gpus++
		}
	}
	return gpus, nil
}

// fewGPUs is up to where comparing each with each beats a map.
const fewGPUs = 16

func checkGPUs(gpus []*GPU) error {
	var seen map[string]struct{}
	if len(gpus) > fewGPUs {
		seen = make(map[string]struct{}, len(gpus))
	}
	for i, g := range gpus {
		uuid := g.GetUuid()
		if uuid == "" {
			return drop(DropMalformed, "GPU without uuid")
		}
		var twice bool
		if seen != nil {
			_, twice = seen[uuid]
			seen[uuid] = struct{}{}
		} else {
			twice = slices.ContainsFunc(gpus[:i], func(x *GPU) bool { return x.GetUuid() == uuid })
		}
		if twice {
			return drop(DropMalformed, "GPU %s twice in one frame", uuid)
		}
	}
	return nil
}

// CheckNode refuses a payload that names another node than the subject it
// came on: the subject is what the server enforced.
func CheckNode(subjectNode, payloadNode string) error {
	if subjectNode != payloadNode {
		return drop(DropForeign, "payload names node %q on the subject of %q", payloadNode, subjectNode)
	}
	return nil
}

// CheckReceipt refuses a receipt that speaks of another node than that of the
// subject it came on, and puts the node in where it was left out.
func CheckReceipt(subject string, r *Receipt) error {
	node, err := SubjectNode(subject)
	if err != nil {
		return err
	}
	for _, named := range []string{r.Node, r.Target.Node} {
		if named == "" {
			continue
		}
		if err := CheckNode(node, named); err != nil {
			return err
		}
	}
	r.Node = node
	return nil
}

// AppendObservation appends the encoded observation to buf.
func AppendObservation(buf []byte, o *Observation) ([]byte, error) {
	out, err := marshal.MarshalAppend(buf, o)
	if err != nil {
		return buf, fmt.Errorf("encode observation: %w", err)
	}
	return out, nil
}

// AppendGPUObservation appends the encoded fields of a device's part.
func AppendGPUObservation(buf []byte, g *GPUObservation) ([]byte, error) {
	out, err := marshal.MarshalAppend(buf, g)
	if err != nil {
		return buf, fmt.Errorf("encode observation of a device: %w", err)
	}
	return out, nil
}

// DecodeObservation decodes and checks an observation.
func DecodeObservation(data []byte, o *Observation) error {
	if len(data) > MaxFrameBytes {
		return drop(DropOversized, "observation of %d bytes, at most %d", len(data), MaxFrameBytes)
	}
	if err := proto.Unmarshal(data, o); err != nil {
		return drop(DropMalformed, "observation: %v", err)
	}
	if o.GetSchema() == 0 || o.GetSchema() > Schema {
		return drop(DropSchema, "observation schema %d, this reader knows 1 to %d", o.GetSchema(), Schema)
	}
	if o.GetNode() == "" || len(o.GetGpus()) > MaxGPUs {
		return drop(DropMalformed, "observation without node or with %d GPUs", len(o.GetGpus()))
	}
	return nil
}
