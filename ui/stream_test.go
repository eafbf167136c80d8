package ui

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hubOf is a hub over a sample fleet, with the clock of the bubble.
func hubOf(n int) (*hub, *sample) {
	fleet := newSample(n, time.Now(), time.Minute)
	return newHub(Options{Fleet: fleet, Decisions: fleet, Now: time.Now}), fleet
}

func join(t *testing.T, h *hub, lastID string) (*client, []*event) {
	t.Helper()
	c, missed, err := h.join(lastID)
	if err != nil {
		t.Fatal(err)
	}
	return c, missed
}

func drain(c *client) (out []*event) {
	for {
		select {
		case e, ok := <-c.queue:
			if !ok {
				return out
			}
			out = append(out, e)
		default:
			return out
		}
	}
}

// end lets the hub's goroutine finish, as every bubble must.
func end(h *hub, clients ...*client) {
	for _, c := range clients {
		h.leave(c)
	}
	time.Sleep(streamLinger + 5*time.Second)
	synctest.Wait()
}

func TestChangesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, fleet := hubOf(8)
		c, missed := join(t, h, "")
		if len(missed) != 1 || missed[0].name != "snapshot" {
			t.Fatalf("a new client gets %v, want one snapshot", missed)
		}
		for range 50 { // 10 changes a second for 5 s
			time.Sleep(100 * time.Millisecond)
			fleet.advance(time.Now())
			fleet.mu.Lock()
			fleet.publish()
			fleet.mu.Unlock()
		}
		synctest.Wait()
		if n := len(drain(c)); n < 4 || n > 5 {
			t.Errorf("%d events in 5 s, want one a second", n)
		}
		end(h, c)
	})
}

func TestSilenceIsAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, fleet := hubOf(0)
		c, _ := join(t, h, "")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		events := drain(c)
		if len(events) != 5 {
			t.Fatalf("%d events in 11 s of silence, want 5", len(events))
		}
		for _, e := range events {
			var u Update
			unmarshal(t, e.data, &u)
			if e.name != "heartbeat" || u.Time.IsZero() || u.Summary != nil {
				t.Errorf("%s %s", e.name, e.data)
			}
		}
		_ = fleet
		end(h, c)
	})
}

// TestStaleGoesOut: values grow old without any message from the fleet.
func TestStaleGoesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := hubOf(8)
		c, _ := join(t, h, "")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		var stale int
		for _, e := range drain(c) {
			var u struct {
				Rows    [][]*float64
				Summary *Summary
			}
			unmarshal(t, e.data, &u)
			for _, r := range u.Rows {
				if *r[2] == 0 && r[3] != nil {
					stale++
				}
			}
			if u.Summary != nil && stale == 8 && u.Summary.Coverage.Fresh != 0 {
				t.Errorf("all are stale and %d are counted fresh", u.Summary.Coverage.Fresh)
			}
		}
		if stale != 8 {
			t.Errorf("%d of 8 GPUs were told to be stale", stale)
		}
		end(h, c)
	})
}

func TestSlowClientIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, fleet := hubOf(8)
		slow, _ := join(t, h, "")
		quick, _ := join(t, h, "")
		n := 0
		for range streamQueue + 6 {
			time.Sleep(time.Second)
			fleet.advance(time.Now())
			synctest.Wait()
			n += len(drain(quick))
		}
		if got := len(drain(slow)); got != streamQueue {
			t.Errorf("the slow client was queued %d events, want %d", got, streamQueue)
		}
		if _, open := <-slow.queue; open {
			t.Error("the slow client was not let go")
		}
		if n < streamQueue+4 {
			t.Errorf("the quick client got %d events beside a slow one", n)
		}
		end(h, quick)
	})
}

func TestHubRestsWithoutClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, fleet := hubOf(8)
		c, _ := join(t, h, "")
		h.leave(c)
		time.Sleep(streamLinger + 5*time.Second)
		synctest.Wait()
		if h.running {
			t.Fatal("the hub follows the fleet for nobody")
		}
		fleet.mu.Lock()
		for _, ctx := range fleet.listeners {
			if ctx.Err() == nil {
				t.Error("it still listens for changes")
			}
		}
		fleet.mu.Unlock()
		again, missed := join(t, h, "")
		if len(missed) != 1 || missed[0].name != "snapshot" {
			t.Errorf("after a rest: %d events", len(missed))
		}
		end(h, again)
	})
}

// TestNewDeviceMakesASnapshot: places of rows would mean other devices.
func TestNewDeviceMakesASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, fleet := hubOf(8)
		c, _ := join(t, h, "")
		fleet.mu.Lock()
		fleet.devices = append(fleet.devices, newSample(16, fleet.now, time.Second).devices[8:]...)
		fleet.publish()
		fleet.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		events := drain(c)
		if len(events) != 1 || events[0].name != "snapshot" || bytes.Count(events[0].data, []byte(`"uuid"`)) < 16 {
			t.Errorf("%d events", len(events))
		}
		end(h, c)
	})
}

// TestChangeIsSmall: what stays the same to the page's precision is not sent.
func TestChangeIsSmall(t *testing.T) {
	fleet := newSample(2000, testTime, 2*time.Minute)
	at := func(now time.Time) Options {
		return Options{Fleet: fleet, Decisions: fleet, Now: func() time.Time { return now }}
	}
	before := take(at(testTime))
	whole, err := json.Marshal(before.snapshot("id", testTime))
	if err != nil {
		t.Fatal(err)
	}
	if u, same := take(at(testTime)).since(before, testTime); u != nil || !same {
		t.Errorf("nothing changed and the change is %+v", u)
	}
	fleet.advance(testTime.Add(1100 * time.Millisecond))
	u, same := take(at(testTime.Add(time.Second))).since(before, testTime.Add(time.Second))
	if !same {
		t.Fatal("want a change")
	}
	change, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	if perGPU := len(change) / 2000; perGPU > 80 {
		t.Errorf("a change where everything moves has %d bytes a GPU, want at most 80", perGPU)
	}
	if len(change)*2 > len(whole) {
		t.Errorf("a change has %d bytes, the snapshot %d", len(change), len(whole))
	}
	t.Logf("2,000 GPUs: snapshot %d bytes, change %d bytes", len(whole), len(change))
}

// TestStreamOverHTTP reads the stream as a client would, compressed and not.
func TestStreamOverHTTP(t *testing.T) {
	for _, encoding := range []string{"identity", "gzip"} {
		t.Run(encoding, func(t *testing.T) {
			fleet := newSample(8, testTime, time.Minute)
			web := serve(t, fleet, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+Prefix+"/stream", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
				t.Fatalf("content type %q", ct)
			}
			body := io.Reader(resp.Body)
			if encoding == "gzip" {
				if body, err = gzip.NewReader(resp.Body); err != nil {
					t.Fatal(err)
				}
			}
			lines := bufio.NewScanner(body)
			lines.Buffer(nil, 1<<20)
			var seen []string
			for len(seen) < 2 && lines.Scan() {
				line := lines.Text()
				switch {
				case strings.HasPrefix(line, "event: "):
					seen = append(seen, line)
				case strings.HasPrefix(line, "data: "):
					bad := readSpec(t).check("snapshot", map[string]any{"$ref": "#/components/schemas/Update"}, decode(t, []byte(line[6:])))
					if len(bad) > 0 {
						t.Error(bad[0])
					}
				}
			}
			if fmt.Sprint(seen) != "[event: snapshot event: heartbeat]" {
				t.Errorf("got %v, %v", seen, lines.Err())
			}
		})
	}
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := hubOf(0)
		var all []*client
		for range streamClients {
			c, _ := join(t, h, "")
			all = append(all, c)
		}
		if _, _, err := h.join(""); err == nil {
			t.Errorf("stream %d is taken", streamClients+1)
		}
		end(h, all...)
	})
}
