//go:build linux

package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// quickScenario warms and cools within a second, so that tests need not wait.
const quickScenario = `
name: quick
seed: 5
physics: {time_constant: 700ms, resistance_spread: 0}
rows: [{name: a, inlet_celsius: 25}]
nodes:
  - {name: n, row: a, model: %s, gpus: 4}
  - {name: m, row: a, model: T4-16GB, gpus: 2}
jobs: [{name: j, kind: proc, owner: o, shape: tensor-parallel, gpus: [n/0-2], memory_gib: 8}]
`

func quick(t *testing.T, model string) *Scenario {
	t.Helper()
	s, err := ParseScenario(fmt.Appendf(nil, quickScenario, model))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// live is a served world that a test can poke.
type live struct {
	*server
	path string
	stop func()
}

// serveWorld runs a node's world in real time until the test ends or stop.
func serveWorld(t *testing.T, s *Scenario, path string) *live {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "world")
	}
	w, err := New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := newServer(w, ServeConfig{Scenario: s, Node: "n", Path: path}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
				srv.advance(time.Now(), 1, 20*time.Millisecond)
			}
		}
	}()
	var once sync.Once
	l := &live{server: srv, path: path, stop: func() { once.Do(func() { close(quit); <-ended }) }}
	t.Cleanup(func() {
		l.stop()
		if l.file.world != nil {
			if err := l.file.close(); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

// eventually asks until the answer pleases.
func (p *probe) eventually(command string, pleases func(map[string]any) bool) map[string]any {
	p.t.Helper()
	for deadline := time.Now().Add(answerTimeout); ; time.Sleep(20 * time.Millisecond) {
		a := p.ask(command)
		if pleases(a) {
			return a
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: still %v after %v", command, a, answerTimeout)
		}
	}
}

func number(a map[string]any, key string) float64 {
	v, _ := a[key].(float64)
	return v
}

func TestPowerLimitCoolsTheWorld(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	other := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	other.want("init", ret(0))
	p.want("count", map[string]any{"count": 4})
	before := p.want("read 0", ret(0))
	if number(before, "temperature") < 60 || number(before, "util") < 90 || number(before, "reasons") != 0 {
		t.Fatalf("before the cap: %v", before)
	}
	p.want("setlimit 0 350000", ret(0))
	p.want("limits 0", map[string]any{"limit": 350000}) // reads back at once
	want := number(before, "temperature") - 0.068*(number(before, "power")-350000)/1000
	after := p.eventually("read 0", func(a map[string]any) bool {
		return number(a, "temperature") <= want+1 && number(a, "power") <= 350500
	})
	if number(after, "sm") >= number(before, "sm") || number(after, "reasons") != reasonPower || number(after, "violation") == 0 {
		t.Errorf("under the cap: %v", after)
	}
	if number(after, "energy") <= number(before, "energy") {
		t.Error("no energy was counted")
	}
	seen := other.want("read 0", ret(0))
	if number(seen, "enforced") != 350000 || number(seen, "temperature") > want+2 {
		t.Errorf("another client sees %v", seen)
	}
	for _, refused := range []string{"setlimit 0 199999", "setlimit 0 700001", "setlimit2 0 100000"} {
		p.want(refused, ret(2))
	}
	p.want("limits 0", map[string]any{"limit": 350000})
	if r := readOne(t, l.world, "n", 0); r.LimitW != 350 {
		t.Errorf("the world holds a limit of %.0f W", r.LimitW)
	}

	// Somebody else changes the limit in the world: clients see that too.
	if err := l.world.SetPowerLimit("n", 0, 500); err != nil {
		t.Fatal(err)
	}
	p.eventually("limits 0", func(a map[string]any) bool { return number(a, "limit") == 500000 })
	if calls := atomic.LoadUint64(&l.file.world.Device[0].Calls); calls < 30 {
		t.Errorf("%d driver calls were counted", calls)
	}
}

func TestIdleGPU(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	p.want("read 3", map[string]any{"ret": 0, "util": 0, "reasons": reasonIdle, "used2": 0, "sm": 345, "power": 70000})
}

func TestDeadWorldIsADriverNotLoaded(t *testing.T) {
	missing := startProbe(t, standin(t, ""), filepath.Join(t.TempDir(), "nothing"))
	missing.want("init", ret(9))

	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	startProbe(t, standin(t, ""), garbage).want("init", ret(9))

	s := quick(t, "H100-SXM5-80GB")
	l := serveWorld(t, s, "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	p.want("read 0", ret(0))
	p.want("newset 0", ret(0))
	p.want("register 0 0 8", ret(0))
	l.stop() // as a kill would: the file stays, the heartbeat ages
	p.want("read 0", ret(0))
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "ret") == 9 })
	p.want("count", ret(9))
	p.want("wait 0 60000", ret(9)) // the waiter notices too
	startProbe(t, standin(t, ""), l.path).want("init", ret(9))

	// A new world under the same name: who initialises again sees it, who keeps
	// the old one does not.
	again := serveWorld(t, s, l.path)
	p.want("read 0", ret(9))
	p.want("shutdown", ret(0))
	p.want("init", ret(0))
	p.want("read 0", ret(0))

	// An orderly end is seen at once, and takes the file away.
	again.stop()
	if err := again.file.close(); err != nil {
		t.Fatal(err)
	}
	p.want("read 0", ret(9))
	if _, err := os.Stat(l.path); !os.IsNotExist(err) {
		t.Errorf("the world file is still there: %v", err)
	}
}

func TestHungAndLostGPU(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p, bystander := startProbe(t, standin(t, ""), l.path), startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	bystander.want("init", ret(0))
	set := func(slot int, f Fault, on bool) {
		t.Helper()
		if err := l.world.SetFault("n", slot, f, on); err != nil {
			t.Fatal(err)
		}
	}
	hang := func(on uint32) {
		t.Helper()
		for deadline := time.Now().Add(answerTimeout); atomic.LoadUint32(&l.file.world.Device[1].Hang) != on; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the fault does not reach the file")
			}
		}
	}
	set(1, FaultHung, true)
	hang(1)
	p.send("read 1")
	bystander.want("read 0", ret(0)) // the others answer
	bystander.want("read 2", ret(0))
	select {
	case a := <-p.answers:
		t.Fatalf("a hung GPU answered: %v", a)
	case <-time.After(300 * time.Millisecond):
	}
	set(1, FaultHung, false)
	if a := p.answer("read 1"); number(a, "ret") != 0 {
		t.Errorf("after the hang: %v", a)
	}

	p.want("newset 0", ret(0))
	for gpu := range 4 {
		p.want(fmt.Sprintf("register %d 0 8", gpu), ret(0))
	}
	p.want("wait 0 10", ret(10)) // nothing happened yet
	p.send("wait 0 10000")
	set(2, FaultLost, true)
	a := p.answer("wait")
	if number(a, "ret") != 0 || number(a, "type") != eventTypeXid || number(a, "data") != xidFallenOff {
		t.Errorf("event of a lost GPU: %v", a)
	}
	p.eventually("read 2", func(a map[string]any) bool { return number(a, "ret") == 15 })
	p.want("handle 2", ret(15))
	p.want("byuuid 1", map[string]any{"ret": 0, "index": 1})
	p.want("read 3", ret(0))
	p.want("newset 1", ret(0)) // a late set gets no history
	p.want("register 1 1 8", ret(0))
	p.want("wait 1 50", ret(10))
	p.want("freeset 1", ret(0))
	set(2, FaultLost, false)
	p.eventually("read 2", func(a map[string]any) bool { return number(a, "ret") == 0 })
}

func TestFaultsOfValuesWritesAndInit(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	if err := l.world.SetFault("n", 0, FaultBlank, true); err != nil {
		t.Fatal(err)
	}
	blank := p.eventually("read 0", func(a map[string]any) bool { return number(a, "power") == 1<<32-1 })
	if number(blank, "temperature") != 1<<32-1 || number(blank, "ret") != 0 || number(blank, "energy") != 1<<64-1 {
		t.Errorf("blank values: %v", blank)
	}
	p.want("read 1", ret(0))
	if err := l.world.SetFault("n", 1, FaultDenied, true); err != nil {
		t.Fatal(err)
	}
	p.eventually("setlimit 1 400000", func(a map[string]any) bool { return number(a, "ret") == 4 })
	p.want("read 1", ret(0))

	atomic.StoreInt32(&l.file.world.InitCode, 18)
	startProbe(t, standin(t, ""), l.path).want("init", ret(18))
	atomic.StoreInt32(&l.file.world.InitCode, 0)
	atomic.StoreUint32(&l.file.world.InitDelayMS, 200)
	start := time.Now()
	slow := startProbe(t, standin(t, ""), l.path)
	slow.want("init", ret(0))
	if time.Since(start) < 200*time.Millisecond {
		t.Error("Init was not delayed")
	}
	atomic.StoreUint32(&l.file.world.LibraryHang, 1)
	p.send("count")
	select {
	case a := <-p.answers:
		t.Errorf("a hung library answered: %v", a)
	case <-time.After(200 * time.Millisecond):
	}
	atomic.StoreUint32(&l.file.world.LibraryHang, 0)
	if a := p.answer("count"); number(a, "count") != 4 {
		t.Errorf("after the hang of the library: %v", a)
	}
}

func TestSampleBuffers(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	times := func(a map[string]any) []float64 {
		var list []float64
		got, _ := a["times"].([]any)
		for _, v := range got {
			list = append(list, v.(float64))
		}
		return list
	}
	some := p.eventually("samples 0 1 0", func(a map[string]any) bool { return number(a, "ret") == 0 && len(times(a)) >= 3 })
	list := times(some)
	if !slices.IsSorted(list) || len(list) > shmSamples-8 || number(some, "type") != 1 {
		t.Errorf("samples: %v", some)
	}
	if age := time.Since(time.UnixMicro(int64(list[len(list)-1]))); age > answerTimeout || age < -time.Second {
		t.Errorf("the newest sample is %v old", age)
	}
	values, _ := some["values"].([]any)
	if first, _ := values[0].(float64); first < 90 || first > 100 {
		t.Errorf("utilisation sample of %v", first)
	}
	newest := list[len(list)-1]
	newer := p.eventually(fmt.Sprintf("samples 0 1 %.0f", newest), func(a map[string]any) bool { return number(a, "ret") == 0 })
	if got := times(newer); len(got) == 0 || got[0] <= newest || len(got) > 10 {
		t.Errorf("samples since %.0f: %v", newest, newer)
	}
	p.want("samples 0 1 99999999999999999", map[string]any{"ret": 6})
	if a := p.want("samples 0 0 0", ret(0)); number(map[string]any{"v": a["values"].([]any)[0]}, "v") < 100000 {
		t.Errorf("power samples are in milliwatts: %v", a)
	}
	p.want("samples 0 2 0", ret(0))
	p.want("samples 0 3 0", ret(3))

	// More than the ring holds: the oldest are gone, the rest is in order.
	ring := &l.file.world.Device[3].Samples[samplePower]
	now := time.Now()
	for i := range 3 * shmSamples {
		ring.put(now.Add(time.Duration(i)*time.Millisecond), uint64(i))
	}
	if got := times(p.want("samples 3 0 0", ret(0))); len(got) != shmSamples-8 || !slices.IsSorted(got) {
		t.Errorf("a ring that ran over gives %d samples", len(got))
	}
}

func TestProcessTable(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	d := &l.file.world.Device[0]
	var compute []int
	for i, kind := range []uint32{1, 1, 2, 1, 3, 1} {
		pid, _ := child(t)
		fill(&d.Processes[3*i], kind, Claim{PID: pid, Start: startOf(t, pid), Share: 0.1, MemoryBytes: 1 << 30})
		if kind == shmCompute {
			compute = append(compute, pid)
		}
	}
	p.want("handle 0", ret(0))
	before := atomic.LoadUint64(&d.Calls)
	p.want("processes 0", map[string]any{"ret": 0, "pids": compute})
	// One for the handle, one that is told the count, one that gets the list.
	if calls := atomic.LoadUint64(&d.Calls) - before; calls > 4 {
		t.Errorf("listing four processes takes %d calls", calls)
	}
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "used2") == (8+6)<<30 })
}

// What a product cannot tell, the stand-in does not either.
func TestProductsDiffer(t *testing.T) {
	type expect struct {
		margin, tlimit, tlimitValue, memoryTemp, nvlinkOld, nvlinkNew, nvlinkError, average, remap, fabric int
	}
	cases := map[string]expect{
		"A100-SXM4-80GB":  {margin: 3, tlimit: 3, nvlinkNew: 3, average: 3, fabric: 3},
		"H100-SXM5-80GB":  {tlimitValue: -2, nvlinkNew: 3},
		"H200-SXM5-141GB": {tlimitValue: -2, nvlinkNew: 3},
		"B200-SXM6-180GB": {tlimitValue: -3, nvlinkOld: 3, nvlinkError: 3},
		"L40S-48GB":       {tlimitValue: -2, memoryTemp: 3, nvlinkOld: 3, nvlinkNew: 3, nvlinkError: 3, fabric: 3},
		"T4-16GB":         {margin: 3, tlimit: 3, memoryTemp: 3, nvlinkOld: 3, nvlinkNew: 3, nvlinkError: 3, average: 3, remap: 3, fabric: 3},
	}
	for _, m := range Models() {
		t.Run(m.Key, func(t *testing.T) {
			want, ok := cases[m.Key]
			if !ok {
				t.Fatal("no expectations for this product")
			}
			l := serveWorld(t, quick(t, m.Key), "")
			p := startProbe(t, standin(t, ""), l.path)
			p.want("init", ret(0))
			p.want("identity 0", map[string]any{"ret": 0, "name": m.Name, "arch": uint32(m.Architecture)})
			p.want("read 0", map[string]any{"ret": 0, "margin_ret": want.margin})
			p.want("limits 0", map[string]any{"ret": 0, "slowdown": m.SlowdownC, "slowdown_ret": 0, "default": m.DefaultLimit * 1000, "max_sm": m.SMClockMHz, "fan_ret": 3})
			p.want("links 0", map[string]any{"ret": 0, "fabric_ret": want.fabric, "remap_ret": want.remap, "generation": m.PCIeGeneration})
			fields := p.ask("field 0 194 0 82 0 138 1 202 1 161 1 185 0 142 0 83 0 269 0 230 0")
			codes, _ := fields["returns"].([]any)
			got := fmt.Sprint(codes[:8])
			if expected := fmt.Sprint([]int{want.tlimit, want.memoryTemp, want.nvlinkOld, want.nvlinkNew, want.nvlinkError, want.average, want.remap, 0}); got != expected {
				t.Errorf("field codes %s, want %s", got, expected)
			}
			values, _ := fields["values"].([]any)
			if v, _ := values[0].(float64); int(v) != want.tlimitValue {
				t.Errorf("slowdown T.Limit is %v, want %d", v, want.tlimitValue)
			}
		})
	}
}

func TestFieldBatch(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	read := func(batch string) []float64 {
		a := p.want("field 0 "+batch, ret(0))
		var list []float64
		for _, v := range a["values"].([]any) {
			list = append(list, v.(float64))
		}
		return list
	}
	p.eventually("field 0 138 -1", func(a map[string]any) bool { return a["values"].([]any)[0].(float64) > 1e6 })
	before := atomic.LoadUint64(&l.file.world.Device[0].Calls)
	batch := ""
	for link := range 18 {
		batch += fmt.Sprintf("138 %d ", link)
	}
	links := read(batch + "138 -1 91 0 164 3 165 3 140 -1 187 0 188 0 189 0 190 0 192 0")
	if calls := atomic.LoadUint64(&l.file.world.Device[0].Calls) - before; calls != 2 {
		t.Errorf("a batch and its handle took %d driver calls", calls)
	}
	sum := 0.0
	for _, v := range links[:18] {
		sum += v
	}
	if all := links[18]; sum == 0 || all < 0.98*sum || all > 1.02*sum {
		t.Errorf("links sum to %.0f KiB, all links say %.0f KiB", sum, all)
	}
	if got, want := links[19:22], []float64{18, 26562, 1}; !slices.Equal(got, want) {
		t.Errorf("link count, speed, state: %v, want %v", got, want)
	}
	if links[22] <= links[18] {
		t.Errorf("raw traffic of %.0f KiB is below the data's %.0f", links[22], links[18])
	}
	if got, want := links[23:], []float64{200e3, 700e3, 700e3, 700e3, 700e3}; !slices.Equal(got, want) {
		t.Errorf("power limits: %v, want %v", got, want)
	}
	codes := p.want("field 0 138 18 4242 0 186 1 186 7", ret(0))["returns"]
	if got := fmt.Sprint(codes); got != "[2 2 3 2]" {
		t.Errorf("a link, a field, two scopes that do not exist: %s", got)
	}
}

// TestServeTakesEvents: what a served world is told happens at once, lasts until
// it is told otherwise, and nonsense is refused without harm to the rest.
func TestServeTakesEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "world")
	ctx, cancel := context.WithCancel(t.Context())
	events, tell := io.Pipe()
	var log syncLog
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeConfig{Scenario: quick(t, "H100-SXM5-80GB"), Path: path, Events: events, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	p := startProbe(t, standin(t, ""), path)
	p.eventually("init", func(a map[string]any) bool { return number(a, "ret") == 0 })
	normal := number(p.want("read 0", ret(0)), "temperature")
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(tell, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	say("")
	say("# a comment")
	say("{gpu: n/0, cooling: 1.5}")
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "temperature") > normal+5 })
	for _, bad := range []string{"nonsense", "{gpu: n/9, cooling: 2}", "{gpu: n/0}", "{gpu: n/0, cooling: 2, over: true, for: 1s}", "{gpu: n/0, colling: 2}"} {
		say(bad)
	}
	say("{gpu: n/1, fault: lost}")
	p.eventually("read 1", func(a map[string]any) bool { return number(a, "ret") == 15 })
	say("{gpu: n/1, fault: lost, over: true}")
	p.eventually("read 1", func(a map[string]any) bool { return number(a, "ret") == 0 })
	say("{gpu: n/0, cooling: 1.5, over: true}")
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "temperature") < normal+3 })
	_ = tell.Close() // nobody has anything to say any more, and the world goes on
	first := p.want("read 0", ret(0))
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "energy") > number(first, "energy") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	said := log.String()
	if taken, refused := strings.Count(said, "event taken"), strings.Count(said, "event refused"); taken != 4 || refused != 5 {
		t.Errorf("%d events taken, %d refused; want 4, 5:\n%s", taken, refused, said)
	}
}

// syncLog is a log that may be read while it is written.
type syncLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestServe(t *testing.T) {
	s := quick(t, "H100-SXM5-80GB")
	path := filepath.Join(t.TempDir(), "world")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ServeConfig{Scenario: s, Path: path}) }()
	p := startProbe(t, standin(t, ""), path)
	p.eventually("init", func(a map[string]any) bool { return number(a, "ret") == 0 })
	first := p.want("read 0", ret(0))
	p.eventually("read 0", func(a map[string]any) bool { return number(a, "energy") > number(first, "energy")+100000 })
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(answerTimeout):
		t.Fatal("Serve does not end")
	}
	p.want("read 0", ret(9))
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	for _, bad := range []ServeConfig{{}, {Scenario: s}, {Scenario: s, Path: path, Node: "nobody"}, {Scenario: s, Path: filepath.Join(path, "no", "folder")}} {
		if err := Serve(t.Context(), bad); err == nil {
			t.Errorf("%+v was served", bad)
		} else if strings.TrimSpace(err.Error()) == "" {
			t.Error("an error without words")
		}
	}
}
