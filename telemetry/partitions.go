package telemetry

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// PartitionSet is a share of the partitions.
type PartitionSet uint64

// AllPartitions is the whole fleet.
const AllPartitions PartitionSet = 1<<Partitions - 1

// ParsePartitions reads ranges in ascending order, such as "0-31", "7" or
// "0-15,32-47".
func ParsePartitions(text string) (PartitionSet, error) {
	var set PartitionSet
	next := 0
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		lowText, highText, isRange := strings.Cut(part, "-")
		if !isRange {
			highText = lowText
		}
		low, err := parsePartition(lowText)
		if err != nil {
			return 0, fmt.Errorf("partitions %q: %w", text, err)
		}
		high, err := parsePartition(highText)
		switch {
		case err != nil:
			return 0, fmt.Errorf("partitions %q: %w", text, err)
		case high < low:
			return 0, fmt.Errorf("partitions %q: %s runs backwards, want %d-%d", text, part, high, low)
		case low < next:
			return 0, fmt.Errorf("partitions %q: %s comes behind what reaches to %d; want ranges in ascending order, each partition once", text, part, next-1)
		}
		for p := low; p <= high; p++ {
			set |= 1 << p
		}
		next = high + 1
	}
	return set, nil
}

func parsePartition(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text {
		return 0, fmt.Errorf("%q is no partition; want ranges such as 0-31 or 0-15,32-47", text)
	}
	if n >= Partitions {
		return 0, fmt.Errorf("there is no partition %d; there are %d, from 0 to %d", n, Partitions, Partitions-1)
	}
	return n, nil
}

// Has says whether a partition is in the set.
func (s PartitionSet) Has(partition int) bool { return s>>partition&1 == 1 }

// HasNode says whether a node's partition is in the set.
func (s PartitionSet) HasNode(node string) bool { return s.Has(Partition(node)) }

// All yields the partitions of the set, the lowest first.
func (s PartitionSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for p := range Partitions {
			if s.Has(p) && !yield(p) {
				return
			}
		}
	}
}

// String is the one way to write the set as ranges.
func (s PartitionSet) String() string { return s.join(",") }

// Token is String as one token of a subject.
func (s PartitionSet) Token() string { return s.join("_") }

func (s PartitionSet) join(sep string) string {
	var b strings.Builder
	for low := 0; low < Partitions; low++ {
		if !s.Has(low) {
			continue
		}
		high := low
		for high+1 < Partitions && s.Has(high+1) {
			high++
		}
		if b.Len() > 0 {
			b.WriteString(sep)
		}
		b.WriteString(strconv.Itoa(low))
		if high > low {
			b.WriteString("-" + strconv.Itoa(high))
		}
		low = high
	}
	return b.String()
}

// ParsePartitionToken undoes Token and refuses what it cannot have made.
func ParsePartitionToken(token string) (PartitionSet, error) {
	set, err := ParsePartitions(strings.ReplaceAll(token, "_", ","))
	if err == nil && set.Token() != token {
		err = fmt.Errorf("partitions %q: want %s", token, set.Token())
	}
	return set, err
}

// PartitionWildcard is every node of one partition in a family.
func PartitionWildcard(family string, partition int) string {
	return Root + "." + family + "." + strconv.Itoa(partition) + ".*"
}
