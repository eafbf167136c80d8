package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestAsking: who only asks gets the receipt of what was done, or hears that
// the step is not known; nothing is begun, and nothing counts as refused.
func TestAsking(t *testing.T) {
	r := newRig(t)
	ask := func(o telemetry.Order) telemetry.Receipt {
		o.SentAt, o.Expires = telemetry.AskedAt, telemetry.AskedAt.Add(time.Second)
		return r.do(&o)
	}
	o := r.cap(400)
	if got := ask(*o); got.Result != telemetry.Refused || got.Why != telemetry.RefuseExpired || r.dev.writes() != 0 {
		t.Errorf("of a step that nobody ordered: %+v after %d writes", got, r.dev.writes())
	}
	did := r.mustDo(o)
	if got := ask(*o); got.Result != telemetry.Done || !got.Ended.Equal(did.Ended) || r.dev.writes() != 1 {
		t.Errorf("of a step that was done: %+v after %d writes", got, r.dev.writes())
	}
	for result, want := range map[telemetry.Result]float64{telemetry.Refused: 0, telemetry.Done: 1} {
		if n := testutil.ToFloat64(r.a.metrics.orders.WithLabelValues(string(o.Kind), string(result))); n != want {
			t.Errorf("%g orders count as %s, want %g", n, result, want)
		}
	}
}
