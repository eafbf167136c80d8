package bench

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// marker stands where the number of a node goes. It is no part of any name, and
// as values of a frame its bytes make no sense.
const (
	marker   = "~|^`}"
	maxNodes = 99999 // has as many digits
)

// Field numbers of frame.proto; a test decodes what is written here.
const (
	fieldSchema      = 1
	fieldNode        = 3
	fieldIncarnation = 5
	fieldSequence    = 6
	fieldSampleTime  = 7
	fieldSendTime    = 8
	fieldMonotonic   = 9
	fieldGPUs        = 12
	fieldUUID        = 1000 // of a GPU
)

// body is an encoded frame with markers in it.
type body struct {
	data  []byte
	marks []int // where they are
}

// newBody encodes a frame and finds its markers; nil if bytes of values look
// like one.
func newBody(f *telemetry.Frame) (*body, error) {
	data, err := telemetry.AppendFrame(nil, f)
	if err != nil {
		return nil, err
	}
	b := &body{data: data}
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte(marker))
		if i < 0 {
			break
		}
		b.marks = append(b.marks, at+i)
		at += i + len(marker)
	}
	if len(b.marks) != countMarkers(f) {
		return nil, nil
	}
	return b, nil
}

// countMarkers counts the markers in a frame's texts.
func countMarkers(f *telemetry.Frame) int {
	texts := []string{f.GetNode(), f.GetBootId()}
	for _, g := range f.GetGpus() {
		texts = append(texts, g.GetUuid())
		for _, m := range g.GetMembers() {
			texts = append(texts, m.GetId(), m.GetUuid(), m.GetWorkload())
		}
	}
	for _, s := range f.GetSamples() {
		texts = append(texts, s.GetUuid())
	}
	n := 0
	for _, text := range texts {
		n += strings.Count(text, marker)
	}
	return n
}

// header is what is the frame's own in a borrowed body.
type header struct {
	incarnation, sequence uint64
	sample, send          int64 // nanoseconds since 1970
	monotonic             int64
}

// appendTo appends the frame of a node: the body with its number, then its
// header, as a later field replaces an earlier one.
func (b *body) appendTo(to []byte, number string, h header) []byte {
	start := len(to)
	to = append(to, b.data...)
	for _, at := range b.marks {
		copy(to[start+at:], number)
	}
	for _, f := range [...]struct {
		field protowire.Number
		v     uint64
	}{
		{fieldIncarnation, h.incarnation}, {fieldSequence, h.sequence}, {fieldSampleTime, uint64(h.sample)},
		{fieldSendTime, uint64(h.send)}, {fieldMonotonic, uint64(h.monotonic)},
	} {
		to = appendUint(to, f.field, f.v)
	}
	return to
}

// number is what takes the marker's place.
func number(node int) string { return fmt.Sprintf("%0*d", len(marker), node) }

func appendUint(to []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), v)
}

// appendDevices appends devices that have nothing but a name.
func appendDevices(to []byte, n int) []byte {
	for i := range n {
		g := protowire.AppendString(protowire.AppendTag(nil, fieldUUID, protowire.BytesType), fmt.Sprintf("GPU-%d", i))
		to = protowire.AppendBytes(protowire.AppendTag(to, fieldGPUs, protowire.BytesType), g)
	}
	return to
}

// foreign appends to a frame the name of another node.
func foreign(frame []byte, name string) []byte {
	return protowire.AppendString(protowire.AppendTag(frame, fieldNode, protowire.BytesType), name)
}

// deviceUUID is the UUID of a device of the node with a number.
func deviceUUID(number string, device int, seed uint64) string {
	return fmt.Sprintf("GPU-b%s%02x-be7c-4000-8000-%012x", number, device, seed&0xffffffffffff)
}

// DeviceUUID is the UUID of a device of a node of the fleet.
func DeviceUUID(node, device int, seed uint64) string { return deviceUUID(number(node), device, seed) }

// bootID is the boot id of the node with a number.
func bootID(number string) string { return "b" + number + "00-0000-4000-8000-00000000be7c" }

// NodeName is the name of a node of the fleet.
func NodeName(prefix string, node int) string { return prefix + number(node) }
