package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// source follows which process of a node is speaking and which of its frames
// were seen.
type source struct {
	boot        string
	incarnation uint64
	last        uint64
	seen        uint64 // bit i: frame last-i was seen
	heard       time.Time
	since       time.Time // first frame of this process
	period      time.Duration
	rival       rival
}

// admit says what a frame is: the first of a new source, the next one after so
// many lost ones, or one to refuse.
func (s *source) admit(now time.Time, f *telemetry.Frame) (fresh bool, lost uint64, err error) {
	inc, seq := f.GetIncarnation(), f.GetSequence()
	switch {
	case s.incarnation == 0, inc > s.incarnation, inc < s.incarnation && now.Sub(s.heard) > GoneAfter(s.period):
		s.boot, s.incarnation, s.last, s.seen = f.GetBootId(), inc, seq, 1
		s.since, s.rival = now, rival{}
		s.accept(now, f)
		return true, 0, nil
	case inc < s.incarnation:
		s.contradict(now, f)
		return false, 0, refuse(telemetry.DropReordered, "frame of an earlier process of the node")
	case seq > s.last:
		step := seq - s.last
		lost = min(step-1, s.couldLose(now))
		s.seen = s.seen<<min(step, 64) | 1
		s.last = seq
		s.accept(now, f)
		return false, lost, nil
	case s.last-seq < 64 && s.seen>>(s.last-seq)&1 == 1:
		return false, 0, refuse(telemetry.DropDuplicate, "frame seen before")
	}
	if s.last-seq < 64 {
		s.seen |= 1 << (s.last - seq)
	}
	return false, 0, refuse(telemetry.DropReordered, "frame older than the last one")
}

// lostSlack is what may be missing beyond what the time since the last frame
// accounts for: frames can come late and in bursts.
const lostSlack = 64

// couldLose bounds what a gap can have cost, so that a sequence that leaps says
// nothing absurd about the whole fleet's losses.
func (s *source) couldLose(now time.Time) uint64 {
	return uint64(max(now.Sub(s.heard), 0)/s.period) + lostSlack
}

func (s *source) accept(now time.Time, f *telemetry.Frame) {
	s.heard = now
	s.period = clampPeriod(time.Duration(f.GetPeriodNano()))
}

// clampPeriod bounds what a node may claim of its own rhythm, since staleness
// follows from it.
func clampPeriod(p time.Duration) time.Duration {
	if p <= 0 {
		return time.Second
	}
	return min(max(p, 50*time.Millisecond), time.Minute)
}

func refuse(why telemetry.DropReason, detail string) error {
	return &telemetry.DropError{Why: why, Detail: detail}
}
