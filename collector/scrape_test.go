package collector

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// seriesOf lists the series of an exposition without their values.
func seriesOf(body string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") {
			name, _, _ := strings.Cut(line, " ")
			all[line[:strings.LastIndex(line, " ")]] = name != ""
		}
	}
	return all
}

// TestShards: together they are the whole, each series in one of them, a node's
// all in the same; the collector's own are in the first.
func TestShards(t *testing.T) {
	w := newWorld(t, nil)
	var nodes []*sender
	for i := range 40 {
		nodes = append(nodes, newSender(fmt.Sprintf("n-%d", i), 2))
	}
	for i := range 3 {
		w.tick(t0.Add(time.Duration(i+1)*time.Second), nodes...)
	}
	_, whole := w.get("/metrics")
	want := seriesOf(whole)
	for _, of := range []int{1, 2, 5, 64} {
		got := map[string]bool{}
		filled := 0
		for shard := range of {
			code, body := w.get(fmt.Sprintf("/metrics?shard=%d&of=%d", shard, of))
			if code != http.StatusOK {
				t.Fatalf("shard %d of %d: %d %s", shard, of, code, body)
			}
			part := seriesOf(body)
			if len(part) > 0 {
				filled++
			}
			for s := range part {
				if got[s] {
					t.Errorf("of %d: %s is in two shards", of, s)
				}
				got[s] = true
				if node, ok := labelOf(s, "node"); ok && telemetry.Partition(node)%of != shard {
					t.Errorf("%s is in shard %d of %d, its partition is %d", s, shard, of, telemetry.Partition(node))
				} else if !ok && shard != 0 {
					t.Errorf("%s is in shard %d", s, shard)
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("of %d: %d series, want the %d of the whole", of, len(got), len(want))
		}
		if filled < min(of, 20) {
			t.Errorf("of %d: only %d shards hold anything", of, filled)
		}
	}
	// A shard between two whole scrapes costs the whole none of its blocks.
	before := slices.Collect(maps.Values(w.families.nodes))
	w.get("/metrics?shard=1&of=4")
	if after := slices.Collect(maps.Values(w.families.nodes)); len(before) != len(after) || len(after) != 40 {
		t.Errorf("%d blocks of nodes, then %d", len(before), len(after))
	}
}

func labelOf(series, name string) (string, bool) {
	_, rest, ok := strings.Cut(series, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value, ok
}

func TestShardsThatAreNone(t *testing.T) {
	w := newWorld(t, nil)
	for query, want := range map[string]string{
		"shard=0":            `of="": want the number of shards, 1 to 64`,
		"of=4":               `shard="": want a shard from 0 to 3`,
		"shard=4&of=4":       `shard="4": want a shard from 0 to 3 with of=4`,
		"shard=-1&of=4":      "want a shard from 0 to 3",
		"shard=0&of=0":       "want the number of shards",
		"shard=0&of=65":      "want the number of shards",
		"shard=a&of=b":       "want the number of shards",
		"shard=0.5&of=2":     "want a shard",
		"shard=0&of=1e1":     "want the number of shards",
		"shard=&of=2":        "want a shard",
		"shard=0&shard=1":    "want the number of shards",
		"shard=%00&of=%0012": "want the number of shards",
	} {
		if code, body := w.get("/metrics?" + query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 400 with %q", query, code, body, want)
		}
	}
}

// TestScrapesAreBounded over all shards together.
func TestScrapesAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	s := newScraping(w.Collector)
	for range maxScrapes {
		s.slots <- struct{}{}
	}
	r := newRequest("/metrics?shard=1&of=2")
	if rec := serve(s, r); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d %s", rec.Code, rec.Body)
	}
	<-s.slots
	for range 3 { // a place is given back
		if rec := serve(s, r); rec.Code != http.StatusOK {
			t.Errorf("one that has room: %d %s", rec.Code, rec.Body)
		}
	}
}

// TestLargeScrapesAreSaid once an hour, with what to do; shards that are small
// enough are not.
func TestLargeScrapesAreSaid(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	var nodes []*sender
	for i := range 20 {
		nodes = append(nodes, newSender(fmt.Sprintf("n-%d", i), 1))
	}
	w.tick(t0.Add(time.Second), nodes...)
	w.tick(t0.Add(2*time.Second), nodes...)
	s := newScraping(w.Collector)
	s.most = strings.Count(serve(s, newRequest("/metrics")).Body.String(), "\n") / 3
	for i, at := range []time.Duration{0, time.Minute, 59 * time.Minute, time.Hour, 61 * time.Minute} {
		w.tick(t0.Add(3*time.Second+at), nodes...)
		w.clock.set(t0.Add(3*time.Second + at))
		serve(s, newRequest("/metrics"))
		want := 1
		if i >= 3 {
			want = 2
		}
		if n := strings.Count(log.String(), "more series than vmagent takes"); n != want {
			t.Errorf("after %s it was said %d times, want %d", at, n, want)
		}
	}
	if !strings.Contains(log.String(), "/metrics?shard=0&of=") {
		t.Errorf("it is not said what to do: %s", log.String())
	}
	log.Reset()
	w.clock.set(t0.Add(3 * time.Hour))
	w.tick(t0.Add(3*time.Hour), nodes...)
	for shard := range 16 {
		serve(s, newRequest(fmt.Sprintf("/metrics?shard=%d&of=16", shard)))
	}
	if log.Len() > 0 {
		t.Errorf("of small shards it is said: %s", log.String())
	}
}
