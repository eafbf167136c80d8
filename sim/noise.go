package sim

import (
	"hash/fnv"
	"math"
)

// splitmix is the splitmix64 generator: one word of state, so that every GPU owns
// one and the order in which GPUs are stepped does not matter.
type splitmix uint64

// newSplitmix derives an independent generator from a seed and a name.
func newSplitmix(seed uint64, name string) splitmix {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash never fails
	return splitmix(h.Sum64() ^ seed*0x9e3779b97f4a7c15)
}

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// symmetric returns a number of (-1, 1), each as likely.
func (s *splitmix) symmetric() float64 {
	return float64(int64(s.next())) / (1 << 63)
}

// wander is a slow random walk around zero that forgets with a time constant of
// five seconds. Its standard deviation is deviation whatever the step.
func (s *splitmix) wander(value, deviation float64, k stepFactors) float64 {
	return value*k.noiseKeep + deviation*k.noiseAdd*math.Sqrt(3)*s.symmetric()
}
