package bench

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

const testPassword = "pw"

// startBus runs a server with the users of a fleet, each with its permissions.
func startBus(t *testing.T, nodes int) *embedded.Server {
	t.Helper()
	users := []bus.User{{Name: bus.UserCollector, Password: testPassword}, {Name: bus.UserReader, Password: testPassword}}
	for i := range nodes {
		users = append(users, bus.User{Name: telemetry.ExporterUser(NodeName("bench-", i)), Password: testPassword})
	}
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// deaf is a bus on which a collector does not hear some frames.
type deaf struct {
	*bus.Conn
	hears func(subject string, data []byte) bool
}

func (d deaf) FramesOf(share telemetry.PartitionSet, fn func(string, []byte)) (func(), error) {
	return d.Conn.FramesOf(share, func(subject string, data []byte) {
		if d.hears == nil || d.hears(subject, data) {
			fn(subject, data)
		}
	})
}

// startCollector runs a real one with its own metrics, and returns its address.
func startCollector(t *testing.T, url string, hears func(string, []byte) bool) string {
	t.Helper()
	conn, err := bus.Connect(bus.Options{URLs: []string{url}, User: bus.UserCollector, Password: testPassword})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithCancel(t.Context())
	if err := conn.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if err := conn.EnsureStreams(ctx, bus.DefaultStreams()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	c, err := collector.New(collector.Options{Bus: deaf{conn, hears}, Registry: reg, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle(selfPath, promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func runOptions(url, collector string, nodes int) Options {
	o := Defaults()
	o.Nodes, o.GPUs, o.Duration, o.Warmup = nodes, 2, 4*time.Second, time.Second
	o.Bus = bus.Options{URLs: []string{url}, User: bus.UserReader, Password: testPassword}
	o.Password, o.Collector = testPassword, collector
	return o
}

// TestFaultsAreCounted: what was made wrong on purpose is what the collector
// counts, reason by reason, and nothing else is; every frame that was right has
// its observation.
func TestFaultsAreCounted(t *testing.T) {
	t.Parallel()
	const nodes = 60
	server := startBus(t, nodes)
	o := runOptions(server.URL(), startCollector(t, server.URL(), nil), nodes)
	o.Faults = Faults{
		FaultLost: 0.08, FaultDup: 0.08, FaultLate: 0.08, FaultReorder: 0.08, FaultLieNode: 0.08, FaultGarbage: 0.08, FaultRestart: 0.08, FaultLieTime: 0.2,
	}
	o.Events = 0.2
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	if r.Failed() {
		t.Error("a fault was not counted as it was made")
	}
	checked := map[string]FaultCheck{}
	for _, c := range r.Faults {
		checked[c.Fault] = c
	}
	for _, name := range FaultNames() {
		if c, ok := checked[name]; !ok || c.Made == 0 {
			t.Errorf("fault %s was not made", name)
		}
	}
	for _, why := range []telemetry.DropReason{telemetry.DropLost, telemetry.DropDuplicate, telemetry.DropReordered, telemetry.DropForeign, telemetry.DropMalformed, telemetry.DropSchema, telemetry.DropTooMany} {
		if c := checked["dropped: "+string(why)]; !c.Checked || c.Got == 0 {
			t.Errorf("no frame was dropped as %s", why)
		}
	}
	if o := r.Observations; o.Lost != 0 || o.Doubled != 0 || o.Unknown != 0 || o.Heard != o.Expected || o.Heard < nodes*4 {
		t.Errorf("observations %+v", o)
	}
	if f := r.Frames; f.Unsent != 0 || f.Refused != 0 || f.ConnectionsLost != 0 || f.Events == 0 || f.EventsStored != f.Events {
		t.Errorf("frames %+v", f)
	}
	if r.CollectorLagS < lateShare*0.9 {
		t.Errorf("the collector's lag is %g s, though frames came %g s late", r.CollectorLagS, lateShare)
	}
	if len(r.Processes) == 0 || r.Processes[0].CPUPerSecond <= 0 {
		t.Errorf("the generator's own use is not told: %+v", r.Processes)
	}
	if data, err := json.Marshal(r); err != nil || !json.Valid(data) {
		t.Error(err)
	}
}

// TestAMissingCountShows: a collector that does not hear what it should count,
// or frames that it should judge, fails the run.
func TestAMissingCountShows(t *testing.T) {
	t.Parallel()
	const nodes = 10
	server := startBus(t, nodes)
	last := map[string]string{}
	address := startCollector(t, server.URL(), func(subject string, data []byte) bool {
		again := last[subject] == string(data)
		last[subject] = string(data)
		return !again && !strings.HasSuffix(subject, "00003")
	})
	o := runOptions(server.URL(), address, nodes)
	o.Faults, o.Duration = Faults{FaultDup: 0.5}, 3*time.Second
	o.Expect, _ = ParseExpectations("max-loss=0.05,p99=1h")
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Failed() {
		t.Error("the run did not fail")
	}
	for _, c := range r.Faults {
		if c.Fault == "dropped: duplicate" && (c.Want == 0 || c.Got != 0) {
			t.Errorf("%+v, want it to miss them all", c)
		}
	}
	if want := r.Observations.Expected / nodes; r.Observations.Lost != want {
		t.Errorf("%d lost, want the %d of one node", r.Observations.Lost, want)
	}
	if v := r.Expectations; v[0].Met || !v[1].Met {
		t.Errorf("expectations %+v", v)
	}
}

// TestACollectorThatEnds: the report is there, and says what is missing in it.
func TestACollectorThatEnds(t *testing.T) {
	t.Parallel()
	server := startBus(t, 2)
	asked := 0
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 {
			http.Error(w, "gone", http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, `evenkeel_frames_dropped_total{why="lost"} 5`)
	}))
	t.Cleanup(page.Close)
	o := runOptions(server.URL(), page.URL, 2)
	o.Duration = time.Second
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Failed() || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "502") || r.Frames.Sent == 0 {
		t.Errorf("%+v", r)
	}
	restarted := &Report{}
	asked = 0
	m := &meter{o: &o, first: figures{dropped: map[telemetry.DropReason]float64{telemetry.DropLost: 9}}}
	if err := restarted.compare(m); err == nil || !strings.Contains(err.Error(), "started anew") {
		t.Errorf("counters that fell: %v", err)
	}
}

// TestSharedConnection: all nodes over one connection, at ten frames a second.
func TestSharedConnection(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	o := runOptions(s.URL(), startCollector(t, s.URL(), nil), 20)
	o.Connections, o.Period, o.Password, o.Bus.Password = 1, 100*time.Millisecond, "", ""
	o.Duration = 2 * time.Second
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 1 || r.Frames.Sent+r.Frames.Skipped != 4*(30+29+28+27+26) || r.Observations.Lost != 0 || r.Observations.Heard < 20*2 || r.Observations.Heard > 20*6 {
		t.Errorf("%+v", r)
	}
}

// TestInterrupt: a run that is ended early reports what it did.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	server := startBus(t, 5)
	ctx, cancel := context.WithTimeout(t.Context(), 3100*time.Millisecond)
	defer cancel()
	o := runOptions(server.URL(), "", 5)
	o.Duration = time.Hour
	began := time.Now()
	r, err := Run(ctx, o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Interrupted || r.Frames.Sent == 0 || time.Since(began) > 30*time.Second {
		t.Errorf("%+v after %s", r, time.Since(began))
	}
}

// TestRefusedNodes: a server that does not let a node speak says so at once, or
// counts it.
func TestRefusedNodes(t *testing.T) {
	server := startBus(t, 2)
	o := runOptions(server.URL(), "", 2)
	o.Password = "wrong"
	if _, err := Run(t.Context(), o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "Authorization Violation") {
		t.Errorf("a wrong password: %v", err)
	}
	o = runOptions(server.URL(), "", 3) // the third has no user
	if _, err := Run(t.Context(), o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "x.bench-00002") {
		t.Errorf("an unknown user: %v", err)
	}
	// One that speaks for another is refused out of band.
	c := &client{server: withPassword(t, server.URL()), user: telemetry.ExporterUser("bench-00000")}
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	defer c.close()
	go func() { _ = c.listen() }()
	for end := time.Now().Add(10 * time.Second); c.refused.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if err := c.write([]byte("PUB " + telemetry.PartitionSubject(telemetry.FamilyFrame, "bench-00001") + " 1\r\nx\r\n")); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("nothing was refused")
		}
	}
	if text := *c.lastErr.Load(); !strings.Contains(text, "Permissions Violation") {
		t.Errorf("refused with %q", text)
	}
}

func withPassword(t *testing.T, url string) *server {
	t.Helper()
	s, err := newServer(url, nil, func(string) (secret, error) { return secret{password: testPassword}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestKeysInAFolder: each node proves itself with its own key.
func TestKeysInAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users := []bus.User{{Name: bus.UserReader, Password: testPassword}}
	if err := os.WriteFile(filepath.Join(dir, bus.UserReader+".password"), []byte(testPassword+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, _ := pair.PublicKey()
		seed, _ := pair.Seed()
		user := telemetry.ExporterUser(NodeName("bench-", i))
		users = append(users, bus.User{Name: user, NKey: public})
		if err := os.WriteFile(filepath.Join(dir, user+".nk"), append(seed, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	o := runOptions(s.URL(), "", 2)
	o.Password, o.Bus.Password, o.Credentials, o.Duration = "", "", dir, time.Second
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if r.Frames.Sent < 2 || r.Frames.Refused != 0 {
		t.Errorf("%+v", r.Frames)
	}
	o = runOptions(s.URL(), "", 3)
	o.Password, o.Credentials = "", dir
	if _, err := Run(t.Context(), o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "x.bench-00002.creds") {
		t.Errorf("a node without a key: %v", err)
	}
}

// TestTLS: nodes and who listens check the server's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificate, roots := selfSigned(t)
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, TLS: true, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	o := runOptions("tls://"+s.Addr().String(), "", 2)
	o.Password, o.Bus.Password, o.Duration = "", "", time.Second
	o.Bus.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	r, err := Run(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if r.Frames.Sent < 2 || r.Frames.Unsent != 0 {
		t.Errorf("%+v", r.Frames)
	}
	for name, c := range map[string]struct{ url, want string }{
		"unknown authority": {"tls://" + s.Addr().String(), "certificate"},
		"without TLS":       {"nats://" + s.Addr().String(), "wants TLS"},
	} {
		srv, err := newServer(c.url, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&client{server: srv, user: "x.a"}).dial(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// selfSigned is a certificate for loopback and who trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestWrongCalls are refused before anything is opened.
func TestWrongCalls(t *testing.T) {
	t.Parallel()
	good := runOptions("nats://127.0.0.1:1", "", 10)
	for want, change := range map[string]func(*Options){
		"0 nodes":                   func(o *Options) { o.Nodes = 0 },
		"100000 nodes":              func(o *Options) { o.Nodes = maxNodes + 1 },
		"model \"H1\" is not known": func(o *Options) { o.Model = "H1" },
		"node prefix \"a.b\"":       func(o *Options) { o.Prefix = "a.b" },
		"rate 10ms":                 func(o *Options) { o.Period = 10 * time.Millisecond },
		"duration 48h":              func(o *Options) { o.Duration = 48 * time.Hour },
		"no bus":                    func(o *Options) { o.Bus.URLs = nil },
		"11 connections":            func(o *Options) { o.Connections = 11 },
		"shared connections":        func(o *Options) { o.Connections = 1 },
		"--collector":               func(o *Options) { o.Expect, _ = ParseExpectations("cpu=1") },
		"events 2":                  func(o *Options) { o.Events = 2 },
		"nats://127.0.0.1:1":        func(*Options) {},
		"want nats://HOST:PORT":     func(o *Options) { o.Bus.URLs = []string{"http://x"} },
	} {
		o := good
		change(&o)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err := Run(ctx, o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		cancel()
	}
	if err := checkFiles(1 << 40); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ulimit -n %d", 1<<40+spareFiles)) {
		t.Errorf("too many connections: %v", err)
	}
}

// TestNotACollector: an address that answers something else is named.
func TestNotACollector(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "up 1") }))
	defer s.Close()
	if _, err := scrape(t.Context(), s.URL); err == nil || !strings.Contains(err.Error(), "evenkeel_frames_dropped_total") || !strings.Contains(err.Error(), "--collector") {
		t.Error(err)
	}
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	if _, err := scrape(t.Context(), missing.URL); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}
