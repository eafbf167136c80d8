package ui

import (
	"bytes"
	"compress/flate"
	"fmt"
	"sync"
)

// event is one message of the stream. It is encoded once and compressed at most
// once, whoever and however many take it.
type event struct {
	seq  uint64
	name string
	data []byte // JSON
	text []byte // as it goes out

	once   sync.Once
	zipped []byte
}

func newEvent(id string, seq uint64, name string, data []byte) *event {
	e := &event{seq: seq, name: name}
	e.text = fmt.Appendf(nil, "id: %s\nevent: %s\ndata: ", id, name)
	from := len(e.text)
	e.text = append(append(e.text, data...), "\n\n"...)
	e.data = e.text[from : from+len(data)]
	return e
}

// zip is the event as a part of a gzip stream that may follow any other part.
func (e *event) zip() []byte {
	e.once.Do(func() { e.zipped = zipPart(e.text) })
	return e.zipped
}

// gzipHead begins a gzip stream whose length nobody knows; it has no end.
var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}

var zippers = sync.Pool{New: func() any {
	z, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // only for a level that does not exist
	}
	return z
}}

// zipPart deflates text into whole blocks that refer to nothing before them, so
// that parts of different making can follow each other in one stream.
func zipPart(text []byte) []byte {
	z, _ := zippers.Get().(*flate.Writer)
	defer zippers.Put(z)
	var out bytes.Buffer
	z.Reset(&out)
	_, _ = z.Write(text) // a buffer takes everything
	_ = z.Flush()
	z.Reset(nil)
	return out.Bytes()
}
