package rebalancer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
)

// snapshotEvery is the number of records after which Memory is written into
// the journal, so that a start need not fold everything.
const snapshotEvery = 1000

// maxSnapshotBytes keeps a snapshot under the size a bus takes by default.
const maxSnapshotBytes = 900 << 10

// maxMemoryBytes bounds what a snapshot may unpack to.
const maxMemoryBytes = 256 << 20

// Snapshot encodes the part of Memory that is a fold of the journal. If it
// would be too large, decisions that have ended are left out: their records
// are still in the journal.
func (m *Memory) Snapshot() ([]byte, error) {
	data, err := pack(m)
	if err == nil && len(data) > maxSnapshotBytes {
		small := *m
		small.Closed = nil
		data, err = pack(&small)
	}
	if err == nil && len(data) > maxSnapshotBytes {
		err = fmt.Errorf("%d bytes, at most %d", len(data), maxSnapshotBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot of memory: %w", err)
	}
	return data, nil
}

func pack(m *Memory) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(m); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// restore replaces the folded part by a snapshot. A snapshot is folded like
// any record, so whoever has followed the journal is at the same state.
func (m *Memory) restore(seq uint64, data []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("journal record %d: snapshot: %w", seq, err)
	}
	next := Memory{Leading: m.Leading, Epoch: m.Epoch, filters: m.filters, seen: m.seen, covered: m.covered}
	if err := json.NewDecoder(io.LimitReader(z, maxMemoryBytes)).Decode(&next); err != nil {
		return fmt.Errorf("journal record %d: snapshot: %w", seq, err)
	}
	next.Seq, next.SnapshotSeq = seq, seq
	*m = next
	return nil
}
