package exporter

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// kind is the GPUs of a node that doctor found alike: the same product that
// gives the same values. Most nodes have one.
type kind struct {
	model, arch           string
	working, failing, not []string // readers, readers, series
	calls                 uint64
	fitted                string
	indexes               []int
	costs                 [callCount][]cost
}

// cost is what one call took on one GPU.
type cost struct {
	index int
	took  time.Duration
}

func (k *kind) alike(o *kind) bool {
	return k.model == o.model && k.arch == o.arch && k.calls == o.calls &&
		slices.Equal(k.working, o.working) && slices.Equal(k.not, o.not)
}

// classify puts a GPU to those it is like.
func (d *doctor) classify(id Identity, x *examination) {
	n := &kind{model: id.Model, arch: id.Arch, calls: x.calls, fitted: x.fitted(), not: x.unsupported()}
	for i, r := range x.results {
		if r.err == nil {
			n.working = append(n.working, readers[i].name)
		} else {
			n.failing = append(n.failing, readers[i].name)
		}
	}
	i := slices.IndexFunc(d.kinds, n.alike)
	if i < 0 {
		i, d.kinds = len(d.kinds), append(d.kinds, n)
	}
	k := d.kinds[i]
	k.indexes = append(k.indexes, id.Index)
	for call, list := range x.costs {
		for _, took := range list {
			k.costs[call] = append(k.costs[call], cost{id.Index, took})
		}
	}
}

// summary says what the GPUs have in common, where some differ from most, and
// what a call costs.
func (d *doctor) summary() {
	if len(d.kinds) == 0 {
		return
	}
	slices.SortStableFunc(d.kinds, func(a, b *kind) int { return len(b.indexes) - len(a.indexes) })
	most := d.kinds[0]
	for i, k := range d.kinds {
		odd := i > 0 && k.model == most.model && len(without(k.not, most.not)) > 0
		severity := Fine
		if odd {
			severity = Warning // of one product all should give the same
		}
		d.say(severity, topicOf(k.indexes), "%s, %s", k.model, k.arch)
		if k.fitted != "" && (i == 0 || k.fitted != most.fitted) {
			d.more("%s", k.fitted)
		}
		if i == 0 {
			d.more("readers that work: %s", strings.Join(k.working, ", "))
			if len(k.not) > 0 {
				d.more("not on this device: %s", brief(k.not))
			}
			d.more("%d driver calls a fast tick", k.calls)
			continue
		}
		d.differences(k, most)
		if odd {
			d.advise("others of this product have it: look at dmesg for Xid errors of this GPU, compare firmware (nvidia-smi -q), and try a reset")
		}
	}
	d.costs()
}

// differences says only in what a kind is not like most.
func (d *doctor) differences(k, most *kind) {
	than := topicOf(most.indexes)
	if failing := without(k.failing, most.failing); len(failing) > 0 {
		d.more("unlike %s, these readers fail: %s", than, strings.Join(failing, ", "))
	}
	if working := without(k.working, most.working); len(working) > 0 {
		d.more("unlike %s, these readers work: %s", than, strings.Join(working, ", "))
	}
	if lost := without(k.not, most.not); len(lost) > 0 {
		d.more("unlike %s, not on this device: %s", than, brief(lost))
	}
	if more := without(most.not, k.not); len(more) > 0 {
		d.more("unlike %s, this device has: %s", than, brief(more))
	}
	if k.calls != most.calls {
		d.more("%d driver calls a fast tick", k.calls)
	}
}

// brief writes series of one metric as one: gpu_clock_hertz{sm|memory}.
func brief(series []string) string {
	var names []string
	labels := map[string][]string{}
	for _, s := range series {
		name, label, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
		if _, seen := labels[name]; !seen {
			names = append(names, name)
		}
		labels[name] = append(labels[name], label)
	}
	for i, name := range names {
		if l := labels[name]; l[0] != "" && len(l) < seriesOf(name) {
			names[i] += "{" + strings.Join(l, "|") + "}"
		}
	}
	return strings.Join(names, ", ")
}

// seriesOf is how many series of a metric travel for each GPU.
func seriesOf(name string) (n int) {
	for _, s := range slots {
		if s.row.Name == name {
			n++
		}
	}
	return n
}

func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// costs is one table over all GPUs: the median of each call, and the GPU on
// which it is slowest.
func (d *doctor) costs() {
	count := 0
	var all [callCount][]cost
	for _, k := range d.kinds {
		count += len(k.indexes)
		for call := range all {
			all[call] = append(all[call], k.costs[call]...)
		}
	}
	d.line("")
	head := fmt.Sprintf("%-45s %9s", "driver call, cost in microseconds", "median")
	if count > 1 {
		head += "   slowest GPU"
	}
	d.line("%s", head)
	for call, list := range all {
		if len(list) == 0 {
			continue
		}
		slowest, worst := 0, time.Duration(-1)
		by := map[int][]time.Duration{}
		var took []time.Duration
		for _, c := range list {
			by[c.index] = append(by[c.index], c.took)
			took = append(took, c.took)
		}
		for _, k := range d.kinds {
			for _, i := range k.indexes {
				if m := median(by[i]); m > worst && len(by[i]) > 0 {
					slowest, worst = i, m
				}
			}
		}
		line := fmt.Sprintf("%-45s %9.1f", callNames[call], micros(median(took)))
		if count > 1 {
			line += fmt.Sprintf("   gpu %d: %.1f", slowest, micros(worst))
		}
		d.line("%s", line)
	}
}

func micros(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1000 }

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// topicOf names GPUs by their indexes, as one would: gpus 0-3,5.
func topicOf(indexes []int) string {
	if len(indexes) == 1 {
		return fmt.Sprintf("gpu %d", indexes[0])
	}
	list := slices.Sorted(slices.Values(indexes))
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, fmt.Sprint(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return "gpus " + strings.Join(parts, ",")
}
