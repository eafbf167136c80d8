package agent

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// still is a Lister whose devices hold what it is told, without a real process.
type still struct{ *cards }

func (s still) Holders(uuid string) ([]Holder, error) {
	_, err := s.cards.Holders(uuid)
	var holders []Holder
	for _, id := range s.of[uuid] {
		holders = append(holders, Holder{PID: id.PID})
	}
	return holders, err
}

// TestOneSilentDevice: the others are known at once, and it costs one call
// however often it is asked, until it answers.
func TestOneSilentDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCards()
		c.of["GPU-2"] = []process.ID{{PID: 7, Start: 1}}
		back := make(chan struct{})
		c.silent["GPU-1"] = back
		l := newLists(still{c})
		for range 5 {
			began := time.Now()
			h, err := l.look()
			if err != nil || len(h.of["GPU-2"]) != 1 || !errors.Is(h.unknown["GPU-1"], errSilent) || len(h.of) != 1 {
				t.Fatalf("%+v, %v", h, err)
			}
			if waited := time.Since(began); waited != listWait {
				t.Errorf("waited %s", waited)
			}
		}
		if c.calls["GPU-1"] != 1 || c.calls["GPU-2"] != 5 || c.calls[""] != 1 {
			t.Errorf("calls %v", c.calls)
		}
		c.change(func() { delete(c.silent, "GPU-1") })
		close(back)
		synctest.Wait()
		if h, err := l.look(); err != nil || len(h.unknown) != 0 {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// An answer to an earlier question does not count: who asks wants to know what
// is so now.
func TestAnswersAreOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCards()
		back := make(chan struct{})
		c.silent["GPU-1"] = back
		l := newLists(still{c})
		if h := l.of([]string{"GPU-1"}); h.unknown["GPU-1"] == nil {
			t.Fatalf("%+v", h)
		}
		now := make(chan holding)
		go func() { now <- l.of([]string{"GPU-1"}) }()
		synctest.Wait()
		c.change(func() {
			delete(c.silent, "GPU-1")
			c.of["GPU-1"] = []process.ID{{PID: 7, Start: 1}}
		})
		close(back)
		if h := <-now; len(h.of["GPU-1"]) != 1 || c.calls["GPU-1"] != 2 {
			t.Errorf("%+v after %d calls", h, c.calls["GPU-1"])
		}
	})
}

func TestDevicesAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCards()
		c.err[""] = errAway
		l := newLists(c)
		if _, err := l.look(); !errors.Is(err, errAway) {
			t.Errorf("%v", err)
		}
		delete(c.err, "")
		if h, err := l.look(); err != nil || len(h.of) != 2 {
			t.Errorf("%+v, %v", h, err)
		}
		// A driver that is away later does not make the devices unheard of.
		c.err[""] = errAway
		time.Sleep(findLasts + time.Second)
		if h, err := l.look(); err != nil || len(h.of) != 2 {
			t.Errorf("%+v, %v", h, err)
		}
		// One without a name is not known.
		l = newLists(partly{c})
		h, err := l.look()
		if err != nil || len(h.of) != 1 || fmt.Sprint(h.notKnown(nil)) != "a device without a name (the driver is away)" || h.notKnown([]string{"GPU-1"}) != "" {
			t.Errorf("%+v, %v", h, err)
		}
		// One that panics is an error of its own.
		l = newLists(broken{c})
		if h, err := l.look(); err == nil {
			t.Errorf("%+v", h)
		}
	})
}

type partly struct{ *cards }

func (partly) Devices() ([]string, error) { return []string{"GPU-1"}, errAway }

type broken struct{ *cards }

func (broken) Devices() ([]string, error) { panic("driver") }

func TestHeldByAPidThatIsAnothersNow(t *testing.T) {
	h := holding{of: map[string][]Holder{"GPU-1": {{PID: 7}, {PID: 8}, {PID: 9}}}}
	table := process.Table{7: {ID: process.ID{PID: 7, Start: 1}}, 8: {ID: process.ID{PID: 8, Start: 99}}}
	got := h.by([]process.ID{{PID: 7, Start: 1}, {PID: 8, Start: 2}, {PID: 9, Start: 3}}, table)
	if len(got) != 2 || got[0].ID.PID != 7 || got[1].ID.PID != 9 {
		t.Errorf("%+v", got)
	}
}

// A workload that starts processes without end does not fill the ledger.
func TestWhatHasEndedIsForgottenInTheEnd(t *testing.T) {
	p := &preemption{}
	for pid := 1; pid <= mostEver; pid++ {
		p.Ever = append(p.Ever, process.ID{PID: pid})
	}
	p.Held = []holds{{UUID: "GPU-1", ID: process.ID{PID: 7}}}
	w := (&Agent{}).watch("s", p)
	alive := []process.Info{{ID: process.ID{PID: 9}}}
	if w.forget(alive); len(p.Ever) != mostEver {
		t.Errorf("%d are known before there are too many", len(p.Ever))
	}
	p.Ever = append(p.Ever, process.ID{PID: mostEver + 1})
	if w.forget(alive); fmt.Sprint(p.Ever) != "[7@0 9@0]" {
		t.Errorf("%d are known: %v", len(p.Ever), p.Ever[:min(len(p.Ever), 5)])
	}
}
