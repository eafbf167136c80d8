package cluster

import "math"

// trend is a short ring of one device's headroom and temperature, free of
// pointers.
type trend struct {
	at    [trendSize]uint32 // milliseconds, like slot.at
	v     [trendSize]float32
	count int
	next  int
}

const (
	trendSize = 32
	// Whole degrees say nothing about a slope in two seconds: the fit takes the
	// short window only if what it shows is beyond what rounding can make.
	shortWindow = 10.0
	longWindow  = 30.0
	minPoints   = 5
	steepSlope  = 0.15 // celsius per second
	// Below this a slope gives no time to slowdown: rounding alone reaches it.
	leastSlope = 0.03
)

func (t *trend) add(at uint32, v float64) {
	if t.count > 0 && int32(at-t.at[(t.next+trendSize-1)%trendSize]) <= 0 {
		return
	}
	t.at[t.next], t.v[t.next] = at, float32(v)
	t.next = (t.next + 1) % trendSize
	t.count = min(t.count+1, trendSize)
}

func (t *trend) reset() { t.count, t.next = 0, 0 }

// slope is the change per second by least squares: over the last ten seconds if
// it is steep, else over thirty. Windows grow when samples are rare.
func (t *trend) slope() (float64, bool) {
	if s, ok := t.fit(shortWindow); ok && math.Abs(s) >= steepSlope {
		return s, true
	}
	return t.fit(longWindow)
}

func (t *trend) fit(window float64) (float64, bool) {
	if t.count < minPoints {
		return 0, false
	}
	newest := t.at[(t.next+trendSize-1)%trendSize]
	var n, sx, sy, sxx, sxy float64
	for i := 1; i <= t.count; i++ {
		k := (t.next + trendSize - i) % trendSize
		x := -float64(newest-t.at[k]) / 1000
		if -x > window && n >= minPoints {
			break
		}
		y := float64(t.v[k])
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	d := n*sxx - sx*sx
	if n < minPoints || d <= 0 {
		return 0, false
	}
	return (n*sxy - sx*sy) / d, true
}
