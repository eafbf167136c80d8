package ui

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// lastWords are an event that tells of a decision's end of mention, and what a
// reader that is too slow is told; each is named by its schema.
func lastWords(t *testing.T, fleet *sample) []*event {
	t.Helper()
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Now: func() time.Time { return testTime }})
	s.hub.begin()
	slow, _ := join(t, s.hub, "")
	before := fleet.decisions
	fleet.decisions = before[1:]
	s.hub.step()
	fleet.decisions = before
	gone := drain(slow)[0]
	close(slow.queue)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.endSlow(newSender(w, r, time.Second)) }))
	defer web.Close()
	_, end, _ := strings.Cut(string(ask(t, "GET", web.URL, "", "Accept-Encoding", "identity").body), "\nevent: end\ndata: ")
	return []*event{{name: "Update", data: gone.data}, {name: "StreamEnd", data: []byte(strings.TrimSpace(end))}}
}

// streams counts.
type streams struct{ open, slow, hung, full atomic.Int64 }

func (s *streams) Open(n int) { s.open.Store(int64(n)) }

func (s *streams) Ended(why StreamEnded) {
	map[StreamEnded]*atomic.Int64{StreamSlow: &s.slow, StreamHung: &s.hung, StreamFull: &s.full}[why].Add(1)
}

// slowReader asks for the stream and reads nothing.
func slowReader(t *testing.T, web *httptest.Server) net.Conn {
	t.Helper()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+Prefix+"/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s: %s", what)
		}
	}
}

func (h *hub) listeners() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools give back what they kept at the second
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestSlowReadersCostOthersNothing: beside a hundred that read nothing, one
// that reads gets every event. The slow ones share what waits for them, are let
// go, and are told why if they read on.
func TestSlowReadersCostOthersNothing(t *testing.T) {
	const slow, steps = 100, 60
	fleet := newSample(4000, testTime, 30*time.Second)
	counted := &streams{}
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Streams: counted, Now: func() time.Time { return fleet.View().Time }})
	s.hub.begin()            // followed by hand
	s.patience = time.Minute // none is cut while it is still to be told
	web := httptest.NewServer(s.handler())
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })

	conns := make([]net.Conn, slow)
	for i := range conns {
		conns[i] = slowReader(t, web)
	}
	got := quickReader(t, web)
	eventually(t, "not all have joined", func() bool { return s.hub.listeners() == slow+1 })
	if name := <-got; name != "snapshot" {
		t.Fatalf("the first event is a %s", name)
	}
	before, most := heap(), 0
	for i := range steps {
		fleet.advance(testTime.Add(time.Duration(i+1)*time.Second + time.Millisecond))
		s.hub.step()
		if name := <-got; name != "change" {
			t.Fatalf("event %d of the quick reader is a %q", i, name)
		}
		if i == steps/2 {
			most = int(heap()) - int(before)
		}
	}
	size := len(s.hub.kept[len(s.hub.kept)-1].text)
	if copies := slow * streamQueue * size; most > copies/3 {
		t.Errorf("%d slow readers made the heap grow by %d bytes; a copy of what waits for each would be %d", slow, most, copies)
	}
	eventually(t, "slow readers are still listened to", func() bool { return s.hub.listeners() == 1 })

	// One of them reads on before its last write was given up.
	_ = conns[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	rest, _ := io.ReadAll(conns[0])
	if !strings.Contains(string(rest), "\nevent: end\ndata: {") || !strings.Contains(string(rest), `"reason":"slow"`) || !strings.Contains(string(rest), "retry: 10000") {
		t.Errorf("a slow reader that reads on is told %.300q at its end", rest[max(0, len(rest)-300):])
	}
	if counted.open.Load() != 1 || counted.slow.Load() == 0 {
		t.Errorf("counted: %d open, %d slow", counted.open.Load(), counted.slow.Load())
	}
	t.Logf("4,000 GPUs: %d bytes an event, the heap grew by %d bytes with %d slow readers", size, most, slow)
}

// quickReader reads the compressed stream and gives the names of its events.
func quickReader(t *testing.T, web *httptest.Server) <-chan string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+Prefix+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 10)
	go func() {
		defer close(got)
		lines := bufio.NewReaderSize(z, 1<<20)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if name, ok := strings.CutPrefix(line, "event: "); ok {
				got <- strings.TrimSpace(name)
			}
		}
	}()
	return got
}

// TestHangingWriteIsCut: a reader that takes nothing at all does not keep its
// connection for longer than the patience.
func TestHangingWriteIsCut(t *testing.T) {
	fleet := newSample(8, testTime, time.Second)
	counted := &streams{}
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Streams: counted, Now: func() time.Time { return testTime }})
	s.hub.begin()
	s.patience = 50 * time.Millisecond
	ended := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		s.handler().ServeHTTP(w, r)
	}))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	slowReader(t, web)
	eventually(t, "it has not joined", func() bool { return s.hub.listeners() == 1 })
	for i := range 40 { // more than the sockets hold, less than the queue
		s.hub.mu.Lock()
		s.hub.send(newEvent("x", uint64(i), "change", []byte(`"`+strings.Repeat("x", 4<<20)+`"`)))
		s.hub.mu.Unlock()
		select {
		case <-ended:
			if n := s.hub.listeners(); n != 0 || counted.hung.Load() != 1 || counted.open.Load() != 0 {
				t.Errorf("%d listeners; counted %d open, %d hung", n, counted.open.Load(), counted.hung.Load())
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("a reader that takes nothing keeps its connection")
}

// TestListenersAddNoWork: an event is made once, whoever takes it.
func TestListenersAddNoWork(t *testing.T) {
	cost := func(listeners int) float64 {
		c := newChanging()
		h := newHub(Options{Fleet: c, Decisions: c, Now: func() time.Time { return c.now }})
		h.begin()
		var all []*client
		for range listeners {
			l, _ := join(t, h, "")
			all = append(all, l)
		}
		return testing.AllocsPerRun(20, func() {
			c.made++
			c.decisions = []*telemetry.Decision{{ID: fmt.Sprintf("d-%06d", c.made), Time: c.now}}
			h.step()
			for _, l := range all {
				<-l.queue
			}
		})
	}
	if one, many := cost(1), cost(streamClients); many > one*1.05+1 {
		t.Errorf("an event costs %v allocations for one listener, %v for %d", one, many, streamClients)
	}
}

// TestTooManyStreams: the next is refused in words, at once, and one place free
// again is one place.
func TestTooManyStreams(t *testing.T) {
	fleet := newSample(0, testTime, 0)
	counted := &streams{}
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Streams: counted, Now: func() time.Time { return testTime }})
	s.hub.begin()
	web := httptest.NewServer(s.handler())
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	var all []*client
	for range streamClients {
		c, _ := join(t, s.hub, "")
		all = append(all, c)
	}
	a := ask(t, "GET", web.URL+Prefix+"/stream", "")
	var e Error
	unmarshal(t, a.body, &e)
	if a.status != 503 || e.Error.Code != "too_many_streams" || !strings.Contains(e.Error.Message, "256 streams are open") || a.header.Get("Retry-After") != "10" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if counted.full.Load() != 1 || counted.open.Load() != streamClients {
		t.Errorf("counted: %d open, %d refused", counted.open.Load(), counted.full.Load())
	}
	if a := ask(t, "GET", web.URL+Prefix+"/snapshot", ""); a.status != 200 {
		t.Errorf("the snapshot beside full streams: %d", a.status)
	}
	s.hub.leave(all[0])
	if name := <-quickReader(t, web); name != "snapshot" {
		t.Errorf("with a place free: %q", name)
	}
}

// TestStreamResumesOverHTTP: by header and by parameter, the header first; from
// a snapshot's own id too; HEAD has no body and takes no place.
func TestStreamResumesOverHTTP(t *testing.T) {
	fleet := newSample(8, testTime, time.Minute)
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Now: func() time.Time { return fleet.View().Time }})
	s.hub.begin()
	web := httptest.NewServer(s.handler())
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	var first Update
	a := ask(t, "GET", web.URL+Prefix+"/snapshot", "")
	if err := decodeSome(a.body, &first.ID); err != nil || a.header.Get("ETag") != `"`+first.ID+`"` {
		t.Fatalf("%v, id %q, tag %s", err, first.ID, a.header.Get("ETag"))
	}
	if a := ask(t, "GET", web.URL+Prefix+"/snapshot", "", "If-None-Match", a.header.Get("ETag")); a.status != 304 || len(a.body) > 0 {
		t.Errorf("the same snapshot again: %d, %d bytes", a.status, len(a.body))
	}
	for i := range 3 {
		fleet.advance(testTime.Add(time.Duration(i+1)*time.Second + time.Millisecond))
		s.hub.step()
	}
	for _, c := range []struct{ query, header, want string }{
		{"?since=" + first.ID, "", "change change change"},
		{"", first.ID, "change change change"},
		{"?since=" + first.ID, s.hub.id(s.hub.seq - 1), "change"},
		{"?since=AAAAAAAA-7", "", "snapshot"},
		{"", "rubbish", "snapshot"},
	} {
		if got := firstEvents(t, web.URL+Prefix+"/stream"+c.query, c.header, len(strings.Fields(c.want))); got != c.want {
			t.Errorf("%s, header %q: %s, want %s", c.query, c.header, got, c.want)
		}
	}
	if a := ask(t, "GET", web.URL+Prefix+"/stream?since=rubbish", ""); a.status != 400 || !strings.Contains(string(a.body), "last `id:` seen") {
		t.Errorf("since=rubbish: %d %s", a.status, a.body)
	}
	eventually(t, "readers that left are still listened to", func() bool { return s.hub.listeners() == 0 })
	if a := ask(t, "HEAD", web.URL+Prefix+"/stream", ""); a.status != 200 || len(a.body) > 0 || a.header.Get("Content-Type") != "text/event-stream" || s.hub.listeners() != 0 {
		t.Errorf("HEAD: %d %v", a.status, a.header)
	}
}

func firstEvents(t *testing.T, url, lastID string, n int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	var names []string
	for len(names) < n && lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			names = append(names, name)
		}
	}
	if resp.StatusCode != http.StatusOK {
		return resp.Status
	}
	return strings.Join(slices.Clip(names), " ")
}
