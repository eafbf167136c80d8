package telemetry

import (
	"cmp"
	"math"
	"slices"
)

// wire turns a value in base units into its integer form. It refuses what the
// type cannot hold, so that a sentinel never becomes a plausible number.
func wire[T uint32 | uint64 | int32](v, scale float64) (T, bool) {
	w := math.Round(v / scale)
	var lo, hi float64
	switch any(T(0)).(type) {
	case uint32:
		hi = math.MaxUint32
	case uint64:
		hi = 1 << 63
	case int32:
		lo, hi = math.MinInt32, math.MaxInt32
	}
	if !(w >= lo && w <= hi) { // also refuses NaN
		return 0, false
	}
	return T(w), true
}

func bit(bits uint32, i int) float64 { return float64(bits >> i & 1) }

func withBit(bits uint32, i int, v float64) uint32 {
	if v != 0 {
		return bits | 1<<i
	}
	return bits &^ (1 << i)
}

// MaxLinks is the number of NVLinks a frame can hold per GPU.
const MaxLinks = 64

// linkPresent and markLink keep the mask that tells a hole in a column from a
// zero.
func (g *GPU) linkPresent(link int) bool {
	return link >= 0 && link < MaxLinks && g.GetLinkMask()>>link&1 == 1
}

func column[T uint32 | uint64](g *GPU, c []T, link int, scale float64) (float64, bool) {
	if !g.linkPresent(link) || link >= len(c) {
		return 0, false
	}
	return float64(c[link]) * scale, true
}

func withColumn[T uint32 | uint64](g *GPU, c []T, link int, v, scale float64) ([]T, bool) {
	w, ok := wire[T](v, scale)
	if !ok || link < 0 || link >= MaxLinks {
		return c, false
	}
	if n := link + 1; n > len(c) {
		c = slices.Grow(c, n-len(c))
		for len(c) < n {
			c = append(c, 0)
		}
	}
	c[link] = w
	g.SetLinkMask(g.GetLinkMask() | 1<<link)
	return c, true
}

// linkFlag and withLinkFlag are for a column of 0 or 1. A 0 is a bit of the down
// mask: in the column it could not be told from the hole that the link's other
// columns have.
func linkFlag(g *GPU, c []uint32, link int) (float64, bool) {
	if link >= 0 && link < MaxLinks && g.GetLinkDownMask()>>link&1 == 1 {
		return 0, true
	}
	if v, ok := column(g, c, link, 1); ok && v == 1 {
		return 1, true
	}
	return 0, false
}

func withLinkFlag(g *GPU, c []uint32, link int, v float64) ([]uint32, bool) {
	if link < 0 || link >= MaxLinks || v != 0 && v != 1 {
		return c, false
	}
	if v == 0 {
		g.SetLinkDownMask(g.GetLinkDownMask() | 1<<link)
		return c, true
	}
	g.SetLinkDownMask(g.GetLinkDownMask() &^ (1 << link))
	return withColumn(g, c, link, v, 1)
}

// Lookup returns the row and series of an id.
func Lookup(id ID) (*Row, *Series, bool) {
	for i := range Catalog {
		r := &Catalog[i]
		for j := range r.Series {
			if r.Series[j].ID == id {
				return r, &r.Series[j], true
			}
		}
	}
	return nil, nil, false
}

// byID answers Lookup's commonest question, the row of an id, without a scan.
var byID = func() (t [1000]*Row) {
	for i := range Catalog {
		for _, s := range Catalog[i].Series {
			t[s.ID] = &Catalog[i]
		}
	}
	return t
}()

// RowOf returns the row of an id, or nil.
func RowOf(id ID) *Row {
	if int(id) >= len(byID) {
		return nil
	}
	return byID[id]
}

// RateOf returns the rate class of a series, OnDemand for an id that is unknown.
func RateOf(id ID) Rate {
	if int(id) >= len(rates) || rates[id] == "" {
		return OnDemand
	}
	return rates[id]
}

var rates = func() (t [len(byID)]Rate) {
	for i := range Catalog {
		for _, s := range Catalog[i].Series {
			t[s.ID] = cmp.Or(s.Rate, Catalog[i].Rate)
		}
	}
	return t
}()

// InRange says whether v is a value the row allows. NaN never is.
func (r *Row) InRange(v float64) bool { return v >= r.Min && v <= r.Max }

// QualityOf returns the quality mark of a value; a value without a mark is ok.
func (g *GPU) QualityOf(id ID) Quality {
	ids, q := g.GetQualityIds(), g.GetQualities()
	for i, x := range ids {
		if ID(x) == id && i < len(q) {
			return q[i]
		}
	}
	return Quality_QUALITY_OK
}

// SetQuality marks a value. Ok takes an earlier mark away.
func (g *GPU) SetQuality(id ID, q Quality) {
	ids, qs := g.GetQualityIds(), g.GetQualities()
	if i := slices.Index(ids, uint32(id)); i >= 0 {
		if q == Quality_QUALITY_OK {
			ids, qs = slices.Delete(ids, i, i+1), slices.Delete(qs, i, i+1)
		} else {
			qs[i] = q
		}
	} else if q != Quality_QUALITY_OK {
		ids, qs = append(ids, uint32(id)), append(qs, q)
	}
	g.SetQualityIds(ids)
	g.SetQualities(qs)
}
