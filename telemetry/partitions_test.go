package telemetry

import (
	"slices"
	"strings"
	"testing"
)

func TestParsePartitions(t *testing.T) {
	for text, want := range map[string]string{
		"0-63": "0-63", "0-31": "0-31", "7": "7", "0-15,32-47": "0-15,32-47", "0-15, 16-31": "0-31", "0,1,2,63": "0-2,63", "5-5": "5",
	} {
		set, err := ParsePartitions(text)
		if err != nil || set.String() != want {
			t.Errorf("%q: %s, %v, want %s", text, set, err, want)
			continue
		}
		if again, err := ParsePartitionToken(set.Token()); err != nil || again != set {
			t.Errorf("%q: token %s is read as %s, %v", text, set.Token(), again, err)
		}
		if strings.ContainsAny(set.Token(), ",. *>") {
			t.Errorf("%q: token %s", text, set.Token())
		}
	}
	for text, want := range map[string]string{
		"": "is no partition", "a-b": "is no partition", "-1": "is no partition", "0-": "is no partition", "1-2-3": "is no partition",
		"00-31": "is no partition", "+1": "is no partition", "0-31,": "is no partition",
		"0-64": "there are 64, from 0 to 63", "31-0": "runs backwards, want 0-31",
		"0-31,16-40": "ascending order", "32-63,0-31": "ascending order", "7,7": "ascending order",
	} {
		if set, err := ParsePartitions(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %q", text, set, err, want)
		}
	}
	if _, err := ParsePartitionToken("0-15_16-31"); err == nil {
		t.Error("a token that Token cannot have made is taken")
	}
}

func TestPartitionSet(t *testing.T) {
	if n := len(slices.Collect(AllPartitions.All())); n != Partitions || AllPartitions.String() != "0-63" {
		t.Errorf("all: %d, %s", n, AllPartitions)
	}
	low, _ := ParsePartitions("0-31")
	for _, node := range []string{"a", "gpu-01", "Rack-7.Node 3"} {
		if low.HasNode(node) != (Partition(node) < 32) {
			t.Errorf("%s: %v, partition %d", node, low.HasNode(node), Partition(node))
		}
	}
	if got := slices.Collect(PartitionSet(1<<3 | 1<<63).All()); !slices.Equal(got, []int{3, 63}) {
		t.Errorf("%v", got)
	}
}
