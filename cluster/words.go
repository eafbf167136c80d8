package cluster

import (
	"slices"
	"strconv"
)

// words are the evidence of a verdict. They are made anew when the verdict
// changes, and else now and then if their numbers did, so that a steady verdict
// costs nothing.
type words struct {
	list []string
	key  uint64
	at   int64
}

const wordsEvery = 10_000 // ms

// ripe says whether it is time to look at the numbers: for a changed verdict, or
// now and then.
func (w *words) ripe(changed bool, now int64) bool { return changed || now-w.at >= wordsEvery }

// due says whether words that are ripe have to be made, and remembers what they
// are made of.
func (w *words) due(changed bool, now int64, numbers ...int32) bool {
	w.at = now
	key := uint64(fnvBasis)
	for _, n := range numbers {
		key = (key ^ uint64(uint32(n))) * fnvPrime
	}
	if !changed && w.key == key {
		return false
	}
	w.key = key
	return true
}

// say replaces the words; the old list may be in an observation and stays as it
// is.
func (w *words) say(list ...string) { w.list = slices.Clip(list) }

// percent is a ratio in whole percents.
func percent(ratio float64) string {
	return strconv.Itoa(int(quantum(ratio*100))) + " %"
}

// quantum rounds to an integer that fits.
func quantum(v float64) int32 {
	switch {
	case !(v > -1e9):
		return -1e9
	case v > 1e9:
		return 1e9
	case v < 0:
		return int32(v - 0.5)
	}
	return int32(v + 0.5)
}

// figure is a number with three digits that matter.
func figure(v float64) string {
	if v >= 100 && v < 1e15 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

const gib = 1 << 30

func gibibytes(bytes float64) string { return strconv.FormatFloat(bytes/gib, 'f', 1, 64) + " GiB" }

// perSecond is a rate in bytes with the prefix that suits it.
func perSecond(bytes float64) string {
	switch {
	case bytes >= 1e9:
		return strconv.FormatFloat(bytes/1e9, 'f', 1, 64) + " GB/s"
	case bytes >= 1e6:
		return strconv.FormatFloat(bytes/1e6, 'f', 0, 64) + " MB/s"
	}
	return strconv.FormatFloat(bytes/1e3, 'f', 0, 64) + " kB/s"
}

const (
	fnvBasis = 14695981039346656037
	fnvPrime = 1099511628211
)

// fnv is the 64-bit FNV-1a hash.
func fnv(s string) uint64 {
	h := uint64(fnvBasis)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}
