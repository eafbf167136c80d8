package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestEveryRefusal gives each reason once, on a validly signed order unless
// the signature is the reason, and nothing is written.
func TestEveryRefusal(t *testing.T) {
	gi := uint32(1)
	unsynced := func(o *Options) { o.ClockSynced = func() (bool, error) { return false, nil } }
	signal := func(change ...func(*telemetry.Order)) func(*rig) *telemetry.Order {
		return func(r *rig) *telemetry.Order { return r.order(telemetry.StepSignal, change...) }
	}
	power := func(w float64, change ...func(*telemetry.Order)) func(*rig) *telemetry.Order {
		return func(r *rig) *telemetry.Order { return r.cap(w, change...) }
	}
	for _, c := range []struct {
		name   string
		config func(*Options)
		order  func(*rig) *telemetry.Order
		why    telemetry.RefuseReason
		says   string
	}{
		{"other node", nil, power(400, func(o *telemetry.Order) { o.Target.Node = "node2" }), telemetry.RefuseWrongNode, "node2"},
		{"expired", nil, power(400, func(o *telemetry.Order) {
			o.SentAt, o.Expires = o.SentAt.Add(-time.Minute), o.Expires.Add(-time.Minute)
		}), telemetry.RefuseExpired, ""},
		{"too early", nil, power(400, func(o *telemetry.Order) { o.NotBefore = o.SentAt.Add(10 * time.Second) }), telemetry.RefuseNotYet, ""},
		{"not in the allow-list", func(o *Options) { o.Allow = nil }, power(400), telemetry.RefuseNotAllowed, "allow-list"},
		{"another kind", nil, signal(), telemetry.RefuseNotAllowed, "signal"},
		{"disruptive with a skewed clock", nil, signal(func(o *telemetry.Order) { o.SentAt = o.SentAt.Add(-31 * time.Second) }), telemetry.RefuseClock, "at most 30s for a disruptive step"},
		{"disruptive with the sender ahead", nil, signal(func(o *telemetry.Order) {
			o.SentAt, o.Expires = o.SentAt.Add(32*time.Second), o.Expires.Add(time.Minute)
		}), telemetry.RefuseClock, ""},
		{"disruptive with an unkept clock", unsynced, signal(), telemetry.RefuseClock, "not synchronised"},
		{"disruptive with an unknown clock", func(o *Options) { o.ClockSynced = func() (bool, error) { return true, errors.New("no") } }, signal(), telemetry.RefuseClock, "not known"},
		{"no device named", nil, power(400, on("")), telemetry.RefuseNoTarget, ""},
		{"no such device", nil, power(400, on("GPU-9")), telemetry.RefuseNoTarget, "GPU-9"},
		{"cap of an instance", nil, power(400, func(o *telemetry.Order) { o.Target.GI = &gi }), telemetry.RefuseUnsupported, "whole device"},
		{"other generation", func(o *Options) { o.Generation = func(string) (uint64, error) { return 4, nil } },
			power(400, func(o *telemetry.Order) { o.Target.Generation = 3 }), telemetry.RefuseGeneration, "at 4"},
		{"no limit", nil, func(r *rig) *telemetry.Order { return r.order(telemetry.StepPowerCap) }, telemetry.RefuseMalformed, "without a limit"},
		{"no lease", nil, power(400, func(o *telemetry.Order) { o.Lease = 0 }), telemetry.RefuseMalformed, "lease"},
		{"below the device", func(o *Options) { o.MinPowerRatio = 0 }, power(199), telemetry.RefuseLimit, "200 W, the device's minimum"},
		{"below the hard limit in watts", func(o *Options) { o.MinPowerWatts = 450 }, power(449), telemetry.RefuseLimit, "450 W, this agent's hard limit"},
		{"below the hard limit as a share", nil, power(349), telemetry.RefuseLimit, "350 W, this agent's hard limit"},
		{"above the device", nil, power(800), telemetry.RefuseLimit, "700 W, the device's maximum"},
		{"negative", func(o *Options) { o.MinPowerRatio = 0 }, power(-1), telemetry.RefuseLimit, ""},
		{"renewal of nothing", nil, func(r *rig) *telemetry.Order { return r.order(telemetry.StepRenew, of("nothing")) }, telemetry.RefuseUnknownStep, "nothing"},
		{"undo of nothing", nil, func(r *rig) *telemetry.Order { return r.order(telemetry.StepUndo, of("nothing")) }, telemetry.RefuseUnknownStep, "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if c.config != nil {
				r.reopen(c.config)
			}
			for _, dryRun := range []bool{true, false} {
				o := c.order(r)
				o.DryRun = dryRun
				got := r.wantRefused(o, c.why)
				if !strings.Contains(got.Detail, c.says) {
					t.Errorf("says %q, want it to say %q", got.Detail, c.says)
				}
				if got.StepID != o.ID || got.Node != node || got.BootID != "boot-1" || got.DryRun != dryRun {
					t.Errorf("receipt %+v", got)
				}
			}
			if n := r.dev.writes(); n != 0 {
				t.Errorf("%d writes", n)
			}
		})
	}
}

func TestGentleOrdersMindNoClock(t *testing.T) {
	r := newRig(t, func(o *Options) { o.ClockSynced = func() (bool, error) { return false, nil } })
	r.mustDo(r.cap(400, func(o *telemetry.Order) { o.SentAt = o.SentAt.Add(-time.Hour) }))
}

func TestGenerationOfAWholeDevice(t *testing.T) {
	third := func(o *telemetry.Order) { o.Target.Generation = 3 }
	r := newRig(t)
	r.mustDo(r.cap(400, third)) // its uuid is enough
	r.reopen(func(o *Options) { o.Generation = func(string) (uint64, error) { return 3, nil } })
	r.mustDo(r.cap(410, third))
	r.reopen(func(o *Options) { o.Generation = func(string) (uint64, error) { return 0, errors.New("lost") } })
	r.wantRefused(r.cap(420, third), telemetry.RefuseNoTarget)
}

func TestUnsyncedClockMayBeAllowed(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.RequireSync = false
		o.ClockSynced = func() (bool, error) { return false, nil }
	})
	// Past the clock check, the next one speaks.
	r.wantRefused(r.order(telemetry.StepSignal), telemetry.RefuseNotAllowed)
}

func TestACapNeverRaises(t *testing.T) {
	r := newRig(t)
	r.dev.force(gpu, 500) // somebody lowered it before us
	r.wantRefused(r.cap(600), telemetry.RefuseLimit)
	r.mustDo(r.cap(450))
	r.mustDo(r.cap(490)) // up to what was found
	r.wantRefused(r.cap(520), telemetry.RefuseLimit)
	r.wantLimit(gpu, 490)
}

func TestHostileBytes(t *testing.T) {
	r := newRig(t)
	good := r.sign(r.cap(400))
	var env telemetry.Envelope
	if err := json.Unmarshal(good, &env); err != nil {
		t.Fatal(err)
	}
	seal := func(change func(*telemetry.Envelope)) []byte {
		e := env
		change(&e)
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	stranger := newSigner(t)
	foreign, err := stranger.SignOrder(r.cap(400))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		why  telemetry.RefuseReason
	}{
		"key not trusted":      {foreign, telemetry.RefuseSignature},
		"another's key named":  {seal(func(e *telemetry.Envelope) { e.KeyID = stranger.KeyID() }), telemetry.RefuseSignature},
		"another's signature":  {seal(func(e *telemetry.Envelope) { e.Signature = bytes.Repeat([]byte{1}, 64) }), telemetry.RefuseSignature},
		"no signature":         {seal(func(e *telemetry.Envelope) { e.Signature = nil }), telemetry.RefuseSignature},
		"payload changed":      {seal(func(e *telemetry.Envelope) { e.Payload = bytes.Replace(e.Payload, []byte("400"), []byte("700"), 1) }), telemetry.RefuseSignature},
		"payload encoded anew": {seal(func(e *telemetry.Envelope) { e.Payload = append(e.Payload, ' ') }), telemetry.RefuseSignature},
		"empty":                {nil, telemetry.RefuseMalformed},
		"not JSON":             {[]byte("\x00\xff{"), telemetry.RefuseMalformed},
		"too large":            {append(bytes.Clone(good), bytes.Repeat([]byte{' '}, telemetry.MaxOrderBytes)...), telemetry.RefuseMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			got := r.handle(c.data)
			if got.Result != telemetry.Refused || got.Why != c.why {
				t.Errorf("%s %s (%s), want refused %s", got.Result, got.Why, got.Detail, c.why)
			}
			if got.StepID != "" {
				t.Errorf("an order that cannot be believed gave the step id %q", got.StepID)
			}
		})
	}
	for n := range good { // cut anywhere
		if got := r.handle(good[:n]); got.Result != telemetry.Refused {
			t.Fatalf("cut at %d: %s", n, got.Result)
		}
	}
	if n := r.dev.writes(); n != 0 || len(r.bus.get()) != 0 {
		t.Errorf("%d writes and %d receipts published for hostile bytes", n, len(r.bus.get()))
	}
	r.mustDo(r.cap(400)) // and the agent still works
}

func TestReplayedOrderIsDoneOnce(t *testing.T) {
	r := newRig(t)
	o := r.cap(400)
	data := r.sign(o)
	first := r.handle(data)
	if first.Result != telemetry.Done {
		t.Fatal(first.Detail)
	}
	r.dev.force(gpu, 650) // whatever happens to the device meanwhile
	same := func(when string, got telemetry.Receipt) {
		t.Helper()
		a, _ := json.Marshal(first)
		b, _ := json.Marshal(got)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: %s\nwant the first receipt: %s", when, b, a)
		}
	}
	same("replayed", r.handle(data))
	// A new leader signs the step anew.
	again := *o
	again.Epoch.Revision++
	again.SentAt, again.Expires = again.SentAt.Add(time.Second), again.Expires.Add(time.Second)
	same("signed anew", r.do(&again))
	r.reopen()
	same("replayed after a restart", r.handle(data))

	other := *o
	lower := 390.0
	other.Params.PowerLimitWatts = &lower
	r.wantRefused(&other, telemetry.RefuseMalformed) // one id, two wishes
	if n := r.dev.writes(); n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
	if n := len(r.bus.get()); n != 1 {
		t.Errorf("%d receipts published, want 1", n)
	}
}

// TestRefusalIsFinal keeps a late duplicate from being done after all.
func TestRefusalIsFinal(t *testing.T) {
	r := newRig(t)
	o := r.cap(400, on("GPU-9"))
	data := r.sign(o)
	if got := r.handle(data); got.Why != telemetry.RefuseNoTarget {
		t.Fatal(got.Detail)
	}
	r.dev.mu.Lock()
	r.dev.limits["GPU-9"] = r.dev.limits[gpu]
	r.dev.mu.Unlock()
	if got := r.handle(data); got.Why != telemetry.RefuseNoTarget {
		t.Errorf("a refused order became %s", got.Result)
	}
}

func TestEpoch(t *testing.T) {
	r := newRig(t)
	epoch := func(bucket string, revision uint64) func(*telemetry.Order) {
		return func(o *telemetry.Order) { o.Epoch = telemetry.Epoch{Incarnation: bucket, Revision: revision} }
	}
	r.mustDo(r.cap(600, epoch("b1", 7))) // the first ever seen
	r.mustDo(r.cap(590, epoch("b1", 7)))
	r.mustDo(r.cap(580, epoch("b1", 9)))
	r.wantRefused(r.cap(570, epoch("b1", 8)), telemetry.RefuseEpoch)
	r.wantRefused(r.cap(570, epoch("b1", 8), dry), telemetry.RefuseEpoch)
	// A dry run raises nothing.
	r.mustDo(r.cap(570, epoch("b1", 50), dry))
	r.mustDo(r.cap(570, epoch("b1", 9)))

	r.reopen()
	r.wantRefused(r.cap(560, epoch("b1", 8)), telemetry.RefuseEpoch)
	if got := r.wantRefused(r.cap(560, epoch("b2", 100)), telemetry.RefuseEpoch); !strings.Contains(got.Detail, "--accept-epoch") {
		t.Errorf("says %q, want it to say what to do", got.Detail)
	}
	r.wantLimit(gpu, 570)

	r.reopen(func(o *Options) { o.AcceptEpoch = true })
	r.mustDo(r.cap(560, epoch("b2", 1)))
	r.wantRefused(r.cap(550, epoch("b1", 200)), telemetry.RefuseEpoch)
	r.reopen(func(o *Options) { o.AcceptEpoch = false })
	r.wantRefused(r.cap(550, epoch("b1", 200)), telemetry.RefuseEpoch)
	r.mustDo(r.cap(550, epoch("b2", 1)))
}

// TestIDsOfANewJournal is a lost store: the journal counts anew and gives ids
// that this ledger knows. They name new steps, and what the old ones hold is
// still put back.
func TestIDsOfANewJournal(t *testing.T) {
	r := newRig(t)
	step := func(bucket string) func(*telemetry.Order) {
		return func(o *telemetry.Order) {
			o.ID, o.Epoch = "d-000001.1", telemetry.Epoch{Incarnation: bucket, Revision: 1}
		}
	}
	r.mustDo(r.cap(600, step("b1")))
	// Until a person has said so, the new bucket's orders are refused for that.
	r.wantRefused(r.cap(500, step("b2"), on("GPU-2")), telemetry.RefuseEpoch)
	r.wantRefused(r.cap(600, step("b2")), telemetry.RefuseEpoch)
	r.reopen(func(o *Options) { o.AcceptEpoch = true })
	r.mustDo(r.cap(500, step("b2"), on("GPU-2")))
	r.wantLimit("GPU-2", 500)
	r.mustDo(r.order(telemetry.StepUndo, of("d-000001.1"), on("GPU-2"), func(o *telemetry.Order) { o.Epoch.Incarnation = "b2" }))
	r.wantLimit("GPU-2", 700)
	r.wantLimit(gpu, 600)

	// The old step's lease ends under a name that nobody mistakes for the new one.
	h, ok := r.a.holdOf(gpu)
	if !ok || h.Step != "d-000001.1@b1" {
		t.Fatalf("held as %q, %v", h.Step, ok)
	}
	h.Until = time.Now().Add(-time.Second)
	r.a.mu.Lock()
	r.a.held[gpu] = h
	r.a.mu.Unlock()
	r.a.expire(h)
	r.wantLimit(gpu, 700)
	last := r.bus.get()[len(r.bus.get())-1]
	if last.StepID != "d-000001.1@b1" || !last.Spontaneous {
		t.Errorf("receipt of %q", last.StepID)
	}
}

func TestConfigRefuses(t *testing.T) {
	good := newRig(t).o.Config
	for name, change := range map[string]func(*Config){
		"no node":         func(c *Config) { c.Node = "" },
		"no ledger":       func(c *Config) { c.Ledger = "" },
		"no key":          func(c *Config) { c.TrustedKeys = nil },
		"a seed as key":   func(c *Config) { c.TrustedKeys = []string{"SUAxyz"} },
		"unknown kind":    func(c *Config) { c.Allow = []telemetry.StepKind{telemetry.StepMIG} },
		"ratio above one": func(c *Config) { c.MinPowerRatio = 50 },
		"headroom below":  func(c *Config) { c.UndoHeadroomC = -1 },
		"headroom beyond": func(c *Config) { c.UndoHeadroomC = 61 },
		"negative watts":  func(c *Config) { c.MinPowerWatts = -1 },
		"no lease":        func(c *Config) { c.MaxLease = 0 },
	} {
		c := good
		change(&c)
		c.Ledger = strings.Replace(c.Ledger, "agent.db", "other.db", 1)
		if a, err := New(Options{Config: c, Writer: newDevices(), Bus: &outlet{}, BootID: "b"}); err == nil {
			a.Close()
			t.Errorf("%s: taken", name)
		}
	}
}

func TestOneAgentToALedger(t *testing.T) {
	r := newRig(t)
	o := r.o
	o.Registry = nil
	if a, err := New(o); err == nil {
		a.Close()
		t.Error("a second agent took the ledger")
	} else if !strings.Contains(err.Error(), "another agent runs") {
		t.Errorf("says %q", err)
	}
}

func TestKernelClockIsAsked(t *testing.T) {
	if _, err := clockSynced(); err != nil {
		t.Error(err)
	}
	if id, err := bootID(); err != nil || len(id) < 8 {
		t.Errorf("boot id %q, %v", id, err)
	}
}
