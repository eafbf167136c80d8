package rebalancer_test

import (
	"strings"
	"testing"
	"time"
)

// Only the journal is lost; lease and agents live on. The new journal counts
// from one again, but an agent must not take its steps for those it has done:
// it would answer with what it did then, and do nothing.
func TestStepsOfALostJournalAreNotThoseOfTheNext(t *testing.T) {
	s := newScene(t)
	first := s.plan().Entries[0].Do
	s.w.now = s.w.now.Add(time.Hour)
	for id, r := range s.readings {
		r.At = r.At.Add(time.Hour)
		s.readings[id] = r
	}
	again := s.plan().Entries[0].Do
	if first.Decision != again.Decision || !strings.HasPrefix(again.ID, again.Decision+".1") {
		t.Fatalf("steps %s and %s: the test wants two of one number", first.ID, again.ID)
	}
	if first.ID == again.ID {
		t.Errorf("two steps are called %s", again.ID)
	}
}
