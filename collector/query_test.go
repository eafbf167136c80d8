package collector

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestHistory(t *testing.T) {
	w, s := newWorld(t, func(o *Options) { o.HistoryGPUs = 2 }), newSender("a", 2)
	for i := range 700 {
		s.gpus[0].SetValue(telemetry.GPUTemperatureCelsiusCore, float64(40+i%30))
		if i == 699 {
			s.gpus[0].SetQuality(telemetry.GPUPowerWatts, telemetry.Quality_QUALITY_ERROR)
			s.gpus[0].ClearValue(telemetry.GPUPowerWatts)
		}
		w.tick(t0.Add(time.Duration(i)*time.Second), s)
	}
	list := w.History("GPU-a-0")
	if len(list) != historyPoints {
		t.Fatalf("%d points, want %d", len(list), historyPoints)
	}
	first, last := list[0], list[len(list)-1]
	if !first.At.Equal(t0.Add(100*time.Second)) || !last.At.Equal(t0.Add(699*time.Second)) {
		t.Errorf("from %s to %s", first.At.Sub(t0), last.At.Sub(t0))
	}
	if first.Core.V != 40+100%30 || last.Core.V != 40+699%30 || !first.Power.OK || first.Power.V != 500 || first.Limit.V != 700 || first.Headroom.V != 27 || first.Utilization.V < 0.89 || first.Clock.V < 1.9e9 {
		t.Errorf("first point %+v", first)
	}
	if last.Power.OK || last.Memory.OK {
		t.Errorf("values that are not known: %+v", last)
	}
	for i, p := range list {
		if want := t0.Add(time.Duration(100+i) * time.Second); !p.At.Equal(want) {
			t.Fatalf("point %d at %s, want %s", i, p.At, want)
		}
	}
	// Old points are not shown, and a full house makes room for who is heard.
	w.clock.set(t0.Add(699*time.Second + historySpan))
	if got := len(w.History("GPU-a-0")); got != 1 {
		t.Errorf("%d points ten minutes later, want the newest alone", got)
	}
	other := newSender("b", 1)
	w.tick(t0.Add(700*time.Second), other)
	if w.History("GPU-b-0") != nil {
		t.Error("more devices with a history than allowed")
	}
	w.tick(t0.Add(700*time.Second+historySpan+time.Minute), other)
	if got := len(w.History("GPU-b-0")); got != 1 {
		t.Errorf("%d points of the device that took a free place", got)
	}
	if w.History("GPU-none") != nil {
		t.Error("history of a device nobody knows")
	}
}

func TestDecisionsFold(t *testing.T) {
	d := newDecisions(100)
	decide := func(id string, o telemetry.Outcome) telemetry.Record {
		return telemetry.Record{Topic: telemetry.TopicOutcome, Decision: &telemetry.Decision{ID: id, Outcome: o}}
	}
	d.fold(decide("1", telemetry.OutcomeIntended))
	d.fold(decide("2", telemetry.OutcomeAwaiting))
	before := d.newestFirst()
	one := before[1]
	d.fold(decide("1", telemetry.OutcomeVerified))
	d.fold(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: "2", By: "me", Verdict: "approve"}})
	d.fold(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: "none", By: "me"}})
	d.fold(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{Open: true, Reason: "coverage"}})
	d.fold(telemetry.Record{Topic: telemetry.TopicOutcome, Refused: &telemetry.RefusalSet{Counts: map[telemetry.RefusalReason]int{telemetry.RefusalStale: 3}}})
	after := d.newestFirst()
	if len(after) != 2 || after[0].ID != "2" || after[1].Outcome != telemetry.OutcomeVerified || after[0].Approval == nil {
		t.Errorf("decisions %v", after)
	}
	if one.Outcome != telemetry.OutcomeIntended || before[0].Approval != nil {
		t.Error("a decision changed after it was returned")
	}
	if !d.breakers[""].Open || d.refused.Refused.Counts[telemetry.RefusalStale] != 3 {
		t.Error("breaker or refusals were not kept")
	}
	if d.fold(telemetry.Record{Topic: telemetry.TopicSnapshot}) {
		t.Error("a snapshot changes what is shown")
	}
}

func TestDecisionsAreBounded(t *testing.T) {
	d := newDecisions(100)
	for i := range 1000 {
		o := telemetry.OutcomeUndone
		if i == 3 {
			o = telemetry.OutcomeVerified // holds a cap: must stay
		}
		d.fold(telemetry.Record{Decision: &telemetry.Decision{ID: fmt.Sprint(i), Outcome: o}})
	}
	list := d.newestFirst()
	if len(list) != 100 || len(d.byID) != 100 || list[0].ID != "999" || list[99].ID != "3" {
		t.Errorf("%d decisions, newest %s, oldest %s; want 100, 999, 3", len(list), list[0].ID, list[99].ID)
	}
}

func TestChangesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c changes
		ctx, cancel := context.WithCancel(t.Context())
		one, two := c.subscribe(ctx), c.subscribe(t.Context())
		for range 100 {
			c.notify()
		}
		<-one
		select {
		case <-one:
			t.Error("a second token for changes that one stood for")
		default:
		}
		<-two
		cancel()
		synctest.Wait()
		c.notify()
		select {
		case <-one:
			t.Error("a token after the subscription ended")
		default:
		}
		<-two
		if len(c.to) != 1 || c.count.Load() != 1 {
			t.Errorf("%d subscriptions left, want 1", len(c.to))
		}
	})
}

func TestLag(t *testing.T) {
	var l lag
	l.saw(t0, 30*time.Millisecond)
	l.saw(t0, 10*time.Millisecond)
	l.saw(t0.Add(lagSpan), 5*time.Millisecond)
	for after, want := range map[time.Duration]time.Duration{0: 30 * time.Millisecond, lagSpan: 30 * time.Millisecond, 2 * lagSpan: 5 * time.Millisecond, 4 * lagSpan: 0} {
		if got := l.worst(t0.Add(after)); got != want {
			t.Errorf("worst lag after %s: %s, want %s", after, got, want)
		}
	}
	l.saw(t0, 100*time.Hour)
	if got := l.worst(t0); got < 18*time.Minute {
		t.Errorf("a lag of 100 h is told as %s", got)
	}
}

// A journal that was lost and made anew takes the old decisions off the page.
func TestNewJournalForgetsTheOld(t *testing.T) {
	d := newDecisions(100)
	d.fold(telemetry.Record{Decision: &telemetry.Decision{ID: "1", Outcome: telemetry.OutcomeActed}})
	d.fold(telemetry.Record{Breaker: &telemetry.BreakerTrip{Open: true}})
	d.clear()
	if n := len(d.newestFirst()); n != 0 || len(d.breakers) != 0 {
		t.Errorf("%d decisions and %d breakers are left", n, len(d.breakers))
	}
}

// A client that stops reading does not keep the others from /metrics.
func TestStalledScraper(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.tick(t0, s)
	w.clock.set(t0.Add(20 * time.Second))
	h := w.Handler()
	stalled := &stalledWriter{header: http.Header{}, begun: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		h.ServeHTTP(stalled, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		close(ended)
	}()
	<-stalled.begun
	other := make(chan int)
	go func() {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		other <- rec.Code
	}()
	select {
	case code := <-other:
		if code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	case <-time.After(30 * time.Second):
		t.Error("a scrape waits for a client that does not read")
	}
	close(stalled.release)
	<-ended
}

// stalledWriter takes nothing until it is released.
type stalledWriter struct {
	header         http.Header
	once           sync.Once
	begun, release chan struct{}
}

func (s *stalledWriter) Header() http.Header { return s.header }
func (s *stalledWriter) WriteHeader(int)     {}
func (s *stalledWriter) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.release
	return len(p), nil
}
