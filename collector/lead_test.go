package collector

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// handLease is a lease that the test gives and takes by hand.
type handLease struct {
	ready   chan struct{}
	changed func(telemetry.Leadership)
}

func (l *handLease) Hold(ctx context.Context, _ string, changed func(telemetry.Leadership)) error {
	l.changed = changed
	close(l.ready)
	<-ctx.Done()
	changed(telemetry.Leadership{})
	return ctx.Err()
}

// pairWorld is a world whose collector contends for a lease.
type pairWorld struct {
	*world
	lease *handLease
	stop  func()
}

func newPairWorld(t *testing.T, change func(*Options)) *pairWorld {
	p := &pairWorld{lease: &handLease{ready: make(chan struct{})}}
	p.world = newWorld(t, func(o *Options) {
		o.Lease = p.lease
		if change != nil {
			change(o)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.contend(ctx) }()
	p.stop = func() { cancel(); <-done }
	t.Cleanup(p.stop)
	<-p.lease.ready
	return p
}

// has gives the lease for three seconds of the world's clock.
func (p *pairWorld) has(others bool) {
	p.lease.changed(telemetry.Leadership{Held: true, Until: p.clock.now().Add(3 * time.Second), Others: others})
}

func (p *pairWorld) lost(others bool) { p.lease.changed(telemetry.Leadership{Others: others}) }

// scrape asks as a Prometheus does that waits for a second at most.
func (p *pairWorld) scrape(path string) string {
	p.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set(scrapeTimeout, "1")
	rec := httptest.NewRecorder()
	p.handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		p.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
	}
	return rec.Body.String()
}

func (p *pairWorld) handler() http.Handler { return p.Handler() }

func tellsOfFleet(body string) bool { return strings.Contains(body, "\ngpu_power_watts{") }

// TestStandby: it judges and keeps everything and says nothing, until the lease
// is its own; and falls silent before the lease can be another's.
func TestStandby(t *testing.T) {
	p := newPairWorld(t, nil)
	n := newSender("n", 2)
	at := t0
	tick := func() { at = at.Add(time.Second); p.tick(at, n) }
	p.lost(true)
	tick()
	tick()
	if got := p.bus.observations(t, "n"); len(got) != 0 {
		t.Fatalf("a standby published %d observations", len(got))
	}
	if v, ok := p.View().Node("n"); !ok || len(v.GPUs) != 2 || len(p.History("GPU-n-0")) != 2 {
		t.Error("a standby is not warm")
	}
	if body := p.scrape("/metrics"); tellsOfFleet(body) || !strings.Contains(body, `evenkeel_collector_leader{partitions="0-63"} 0`) || !strings.Contains(body, "evenkeel_frames_dropped_total") {
		t.Errorf("a standby serves\n%s", body)
	}
	families, done, err := p.Gatherer().Gather()
	if err != nil || len(families) < 20 {
		t.Errorf("its store would sample %d families, %v", len(families), err)
	}
	done()
	if code, body := p.get("/-/ready"); code != http.StatusOK || !strings.Contains(body, "standby") || p.Active() {
		t.Errorf("readiness of a standby: %d %s", code, body)
	}

	p.has(true)
	tick()
	if got := p.bus.observations(t, "n"); len(got) != 1 || got[0].GetSequence() != 3 || !p.Active() {
		t.Fatalf("with the lease %d observations", len(got))
	}
	if _, body := p.get("/metrics"); !tellsOfFleet(body) || !strings.Contains(body, `evenkeel_collector_leader{partitions="0-63"} 1`) {
		t.Error("with the lease it does not serve the fleet")
	}
	if _, body := p.get("/-/ready"); body != "ready\n" {
		t.Errorf("readiness of the one that speaks: %s", body)
	}

	// Nobody tells it that the lease is over; its own clock does.
	tick()
	if got := len(p.bus.observations(t, "n")); got != 2 {
		t.Fatalf("%d observations within the lease", got)
	}
	if p.clock.set(at.Add(500*time.Millisecond - time.Nanosecond)); !p.Active() {
		t.Error("silent before it must be")
	}
	if p.clock.set(at.Add(500 * time.Millisecond)); p.Active() {
		t.Error("active half a second before the end of its lease")
	}
	tick()
	if got := len(p.bus.observations(t, "n")); got != 2 || p.Active() {
		t.Errorf("after its lease: %d observations, want 2; active: %v", got, p.Active())
	}
	if _, body := p.get("/metrics"); tellsOfFleet(body) {
		t.Error("after its lease it serves the fleet")
	}
	p.lost(true)
	p.has(true)
	tick()
	if got := len(p.bus.observations(t, "n")); got != 3 {
		t.Errorf("with the lease again %d observations", got)
	}
	p.stop()
	tick()
	if got := len(p.bus.observations(t, "n")); got != 3 || p.Active() {
		t.Errorf("after it gave the lease back %d observations, active %v", got, p.Active())
	}
}

// TestAloneWithoutABus: the only collector goes on showing what it has while its
// lease cannot be renewed; it publishes nothing, and gives way once another has
// the lease.
func TestAloneWithoutABus(t *testing.T) {
	p := newPairWorld(t, nil)
	n := newSender("n", 1)
	p.tick(t0.Add(time.Second), n)
	if p.Active() {
		t.Error("without ever having had the lease it speaks")
	}
	p.has(false)
	p.tick(t0.Add(2*time.Second), n)
	p.lost(false)
	p.tick(t0.Add(6*time.Second), n)
	if got := len(p.bus.observations(t, "n")); got != 1 {
		t.Errorf("%d observations, want the one under the lease", got)
	}
	if _, body := p.get("/metrics"); !p.Active() || !tellsOfFleet(body) {
		t.Error("alone and without the lease it does not serve the fleet")
	}
	p.clock.set(t0.Add(20 * time.Second))
	if _, body := p.get("/metrics"); tellsOfFleet(body) || !strings.Contains(body, `evenkeel_node_up{node="n"} 0`) {
		t.Error("what is stale is served")
	}
	p.lost(true)
	if _, body := p.get("/metrics"); p.Active() || strings.Contains(body, "evenkeel_node_up") {
		t.Error("while another has the lease it speaks")
	}
}

// TestScrapersAreKeptFromCountingTwice: after a take-over a Prometheus hears of
// the fleet once it has had time to see the one before fall silent; a person and
// a collector that took nothing over do not wait.
func TestScrapersAreKeptFromCountingTwice(t *testing.T) {
	p := newPairWorld(t, nil)
	n := newSender("n", 1)
	at := t0
	second := func() { at = at.Add(time.Second); p.tick(at, n) }
	for range 3 {
		second()
	}
	p.lost(true)
	const interval = 10
	for i := range 60 {
		second()
		switch i {
		case 25:
			p.has(false) // alone, so it need not be renewed here
		}
		if i%interval != 3 {
			continue
		}
		// Scraped at 3, 13, 23, 33, 43, 53; the lease comes at 25; the one before it is
		// asked by 35, and is known to be dead a timeout later.
		if got, want := tellsOfFleet(p.scrape("/metrics")), i >= 25+interval+1; got != want {
			t.Errorf("scrape after %d s tells of the fleet: %v, want %v", i, got, want)
		}
		if _, body := p.get("/metrics"); tellsOfFleet(body) != (i >= 25) {
			t.Errorf("a person at %d s: %v", i, tellsOfFleet(body))
		}
	}
	// One that was never seen before is told the second time, when its interval is
	// known; long after, at once.
	q := newPairWorld(t, nil)
	q.tick(t0.Add(2*time.Second), n)
	q.tick(t0.Add(4*time.Second), n)
	q.lost(true)
	q.has(false)
	if tellsOfFleet(q.scrape("/metrics?job=new")) {
		t.Error("a scraper that is not known is told at once")
	}
	at = t0.Add(4*time.Second + patienceMost)
	q.tick(at, n)
	if !tellsOfFleet(q.scrape("/metrics?job=newer")) {
		t.Error("long after the take-over a new scraper has to wait")
	}
	// A first start took nothing over.
	first := newPairWorld(t, nil)
	first.has(false)
	first.tick(t0.Add(2*time.Second), n)
	if !tellsOfFleet(first.scrape("/metrics")) {
		t.Error("a collector that took nothing over withholds the fleet")
	}
	// Nor did one that waited for the lease of its own last run.
	back := newPairWorld(t, func(o *Options) { o.Name = "c1" })
	back.lease.changed(telemetry.Leadership{Others: true, Holder: "c1/ABC"})
	back.has(false)
	back.tick(t0.Add(2*time.Second), n)
	if !tellsOfFleet(back.scrape("/metrics")) {
		t.Error("a collector that is back withholds the fleet")
	}
	other := newPairWorld(t, func(o *Options) { o.Name = "c1" })
	other.lease.changed(telemetry.Leadership{Others: true, Holder: "c2/ABC"})
	other.has(false)
	other.tick(t0.Add(2*time.Second), n)
	if tellsOfFleet(other.scrape("/metrics")) {
		t.Error("a collector that took over from another does not wait")
	}
}
