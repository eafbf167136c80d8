package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// event tells of an Xid as an exporter does: stored in a stream, under an id of
// its own. The answer that it is stored comes to the connection's inbox.
func (s *sender) event(n *node, k int, now time.Time) error {
	s.events++
	e := telemetry.Event{
		ID: fmt.Sprintf("%s.%d.%d", bootID(n.number), n.incarnation, k), Cluster: s.o.Cluster, Node: n.name, BootID: bootID(n.number),
		Incarnation: n.incarnation, Time: now.UTC(), Kind: telemetry.EventXid, Code: 31, Class: "application", Action: "restart_application", Count: 1,
		UUID: deviceUUID(n.number, int(n.incarnation)%s.o.GPUs, s.o.Seed),
	}
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	head := "NATS/1.0\r\nNats-Msg-Id: " + n.name + "/" + e.ID + "\r\n\r\n"
	b := append(s.buf[:0], "HPUB "...)
	b = append(b, telemetry.EventSubject(n.name)+" "+telemetry.InboxPrefix(n.client.user)+".stored "...)
	b = strconv.AppendInt(b, int64(len(head)), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(head)+len(body)), 10)
	b = append(b, "\r\n"+head...)
	b = append(b, body...)
	s.buf = append(b, "\r\n"...)
	return n.client.write(s.buf)
}

// stored says whether a line that a client heard is the answer of a stream that
// has an event now.
func stored(line []byte) bool {
	return bytes.HasPrefix(line, []byte(`{"stream":`)) && !bytes.Contains(line, []byte(`"error"`))
}
