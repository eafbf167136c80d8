package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const inventoryHead = "apiVersion: evenkeel/v1\nkind: Inventory\n"

func parseInventory(t *testing.T, body string) telemetry.Inventory {
	t.Helper()
	inv, err := ParseInventory("i.yaml", []byte(inventoryHead+body))
	if err != nil {
		t.Fatal(err)
	}
	return inv.Snapshot(time.Unix(1, 0))
}

// Every name in brackets of docs/inventory.md is one that the file takes.
func TestDocumentedInventories(t *testing.T) {
	doc, err := os.ReadFile("../docs/inventory.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []telemetry.Inventory
	for _, block := range strings.Split(string(doc), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		if !strings.Contains(text, "kind: Inventory") {
			continue
		}
		inv, err := ParseInventory("docs/inventory.md", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, inv.Snapshot(time.Unix(1, 0)))
	}
	if len(found) != 2 || len(found[0].Nodes) != 1001 || len(found[1].Nodes) != 3 {
		t.Fatalf("%d examples", len(found))
	}
	want := map[int]telemetry.InventoryNode{
		0:   {Name: "gpu-0001", Aliases: []string{"ip-10-0-0-1"}, Rack: "r001", Row: "row-a", Feed: "feed-a", PowerDomain: "pdu-a", CoolingDomain: "cdu-1", NetworkDomain: "leaf-1", ExpectedGPUs: 8, Model: "NVIDIA H100 80GB HBM3"},
		4:   {Name: "gpu-0005", Aliases: []string{"ip-10-0-0-5"}, Rack: "r002", Row: "row-a", Feed: "feed-a", PowerDomain: "pdu-a", CoolingDomain: "cdu-1", NetworkDomain: "leaf-1", ExpectedGPUs: 8, Model: "NVIDIA H100 80GB HBM3"},
		999: {Name: "gpu-1000", Rack: "r250", Row: "row-b", Feed: "feed-b", PowerDomain: "pdu-b", CoolingDomain: "cdu-2", NetworkDomain: "leaf-2", ExpectedGPUs: 8, Model: "NVIDIA H200", Marks: map[string]string{"generation": "2"}},
	}
	for i, w := range want {
		if got := found[0].Nodes[i]; fmt.Sprint(got) != fmt.Sprint(w) {
			t.Errorf("node %d:\n%+v, want\n%+v", i, got, w)
		}
	}
	if lab := found[0].Nodes[1000]; lab.Rack != "lab" || lab.ExpectedGPUs != 2 || len(lab.ExpectedUUIDs) != 2 || !lab.Unschedulable {
		t.Errorf("%+v", lab)
	}
	if b := found[0].Budgets; len(b) != 2 || b[0].Domain != "pdu-a" || b[0].Watts != 5e6 || b[1].Watts != 5.2e6 {
		t.Errorf("%+v", b)
	}
	for _, inv := range found {
		if err := telemetry.CheckInventory(&inv); err != nil {
			t.Error(err)
		}
	}
}

// A fault names its line, the other line where there are two, and what to do.
func TestInventoryFaults(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"node twice", "nodes:\n- name: a\n- name: b\n- name: a\n", "i.yaml:6: node a is listed twice, first on line 4; keep one"},
		{"node twice by a range", "nodes:\n- name: n[1-3]\n- name: n2\n", "i.yaml:5: node n2 is listed twice, first on line 4; keep one"},
		{"alias twice", "nodes:\n- name: a\n  aliases: x\n- name: b\n  aliases: [x]\n", "i.yaml:7: alias x of node b is taken by node a on line 5"},
		{"alias is a node", "nodes:\n- name: a\n- name: b\n  aliases: a\n", "i.yaml:6: alias a of node b is taken by node a on line 4"},
		{"aliases of a range", "nodes:\n- name: n[1-3]\n  aliases: m[1-2]\n", "i.yaml:5: alias m[1-2] stands for 2 names and node n[1-3] for 3; write one name for each node"},
		{"unknown domain", "nodes:\n- name: a\n  power_domain: pdu-1\nbudgets:\n- {domain: pdu1, power: 1kW}\n", "i.yaml:7: budget of domain pdu1: no node, rack or row with nodes has this power_domain; did you mean pdu-1?"},
		{"two budgets", "nodes:\n- name: a\n  power_domain: p\nbudgets:\n- {domain: p, power: 1kW}\n- {domain: p, power: 2kW}\n", "i.yaml:8: domain p has two budgets, the first on line 7; keep one"},
		{"budget without power", "nodes:\n- name: a\n  power_domain: p\nbudgets:\n- {domain: p}\n", "i.yaml:7: budget of domain p: power is missing, such as 40kW"},
		{"power without unit", "budgets:\n- {domain: p, power: 40}\n", "i.yaml:4: power \"40\": want a number with a unit, such as 800W, 40kW or 1.5MW"},
		{"power below zero", "budgets:\n- {domain: p, power: -4kW}\n", "i.yaml:4: power \"-4kW\": want more than 0"},
		{"rack in two rows", "rows:\n- name: a\n  racks: r1\n- name: b\n  racks: [r2, r1]\nracks:\n- name: r[1-2]\n", "i.yaml:7: rack r1 is in row b, and in row a on line 5; keep one"},
		{"rack says another row", "rows:\n- name: a\n  racks: r1\n- name: b\nracks:\n- name: r1\n  row: b\n", "i.yaml:9: rack r1 is in row b, and in row a on line 5; keep one"},
		{"rack twice", "racks:\n- name: r1\n- name: r1\n", "i.yaml:5: rack r1 is listed twice, first on line 4; keep one"},
		{"row twice", "rows:\n- name: r1\n- name: r1\n", "i.yaml:5: row r1 is listed twice, first on line 4; keep one"},
		{"node in two racks", "racks:\n- name: r1\n  nodes: a\n- name: r2\n  nodes: a\nnodes:\n- name: a\n", "i.yaml:7: node a is in rack r2, and in rack r1 on line 5; keep one"},
		{"node says another rack", "racks:\n- name: r1\n  nodes: a\n- name: r2\nnodes:\n- name: a\n  rack: r2\n", "i.yaml:9: node a is in rack r2, and in rack r1 on line 5; keep one"},
		{"node says another row", "racks:\n- name: r1\n  row: x\nnodes:\n- name: a\n  rack: r1\n  row: y\n", "i.yaml:9: node a is in row y, and its rack r1 in row x on line 5; keep one"},
		{"misspelt rack", "racks:\n- name: rack-1\nnodes:\n- name: a\n  rack: rack1\n", "i.yaml:7: rack rack1 is not under racks; did you mean rack-1?"},
		{"misspelt row", "rows:\n- name: row-1\nracks:\n- name: r\n  row: row1\n", "i.yaml:7: row row1 is not under rows; did you mean row-1?"},
		{"rack of no node", "racks:\n- name: r\n  nodes: gpu-01\nnodes:\n- name: gpu-1\n", "i.yaml:5: rack r has node gpu-01, which is not under nodes; did you mean gpu-1?"},
		{"uneven racks", "nodes:\n- name: n[1-5]\n  rack: r[1-2]\n", "i.yaml:5: 5 nodes do not fill 2 racks evenly"},
		{"GPU on two nodes", "nodes:\n- name: a\n  uuids: GPU-1\n- name: b\n  uuids:\n  - GPU-2\n  - GPU-1\n", "i.yaml:9: GPU GPU-1 of node b is on node a on line 5 too; a device is on one node"},
		{"GPU twice on one node", "nodes:\n- name: a\n  uuids:\n  - GPU-1\n  - GPU-1\n", "i.yaml:7: GPU GPU-1 of node a is on node a on line 6 too"},
		{"uuids of a range", "nodes:\n- name: n[1-2]\n  uuids: [GPU-1]\n", "i.yaml:5: uuids are those of one node, and n[1-2] stands for several"},
		{"more uuids than gpus", "nodes:\n- name: a\n  gpus: 1\n  uuids: [GPU-1, GPU-2]\n", "i.yaml:4: node a: gpus is 1 and uuids are 2; leave gpus out, or raise it"},
		{"too many gpus", "nodes:\n- name: a\n  gpus: 800\n", "i.yaml:4: node a: gpus is 800, want 0 to 256"},
		{"tenant twice", "tenants:\n- {name: a, entitlement: 1}\n- {name: a, entitlement: 2}\n", "i.yaml:5: tenant a is listed twice, first on line 4; keep one"},
		{"tenant below zero", "tenants:\n- {name: a, entitlement: -1}\n", "i.yaml:4: tenant a: entitlement is -1, want a number of GPUs"},
		{"unknown key", "nodes:\n- name: a\n  gpu: 8\n", `i.yaml:5: unknown key "gpu"; did you mean "gpus"?`},
		{"key twice", "nodes:\n- name: a\n  gpus: 8\n  gpus: 4\n", "i.yaml:6: mapping key \"gpus\" already defined at line 5"},
		{"no name", "nodes:\n- gpus: 8\n", "a node has no name"},
		{"name is a list", "nodes:\n- name: [1-3]\n", "i.yaml:4: want a word here, not a list or a map"},
		{"huge range", "nodes:\n- name: n[1-99][1-99][1-99]\n", "stands for more than 100000 names"},
		{"backwards", "nodes:\n- name: n[9-1]\n", `i.yaml:4: node "n[9-1]": range "9-1" runs backwards`},
		{"open bracket", "nodes:\n- name: n[1-2\n", "i.yaml:4: node \"n[1-2\": brackets do not match"},
		{"no numbers", "nodes:\n- name: n[a-c]\n", `i.yaml:4: node "n[a-c]": "a-c" is no range of numbers; want such as 001-128`},
		{"other width", "nodes:\n- name: n[01-100]\n", `range "01-100": write both ends with as many digits`},
		{"control character", "nodes:\n- name: \"a\\tb\"\n", "i.yaml:4: node \"a\\tb\": "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseInventory("i.yaml", []byte(inventoryHead+tc.body))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v\nwant: %s", err, tc.want)
			}
		})
	}
}

// All faults of a file are told at once, in the order of their lines, and not
// without end.
func TestInventoryFaultsTogether(t *testing.T) {
	_, err := ParseInventory("i.yaml", []byte(inventoryHead+"budgets:\n- {domain: x, power: 1W}\nnodes:\n- name: a\n- name: a\n- name: b\n- name: b\n"))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != 3 || !strings.Contains(lines[0], ":4:") || !strings.Contains(lines[1], ":7:") || !strings.Contains(lines[2], ":9:") {
		t.Errorf("%v", err)
	}
	_, err = ParseInventory("i.yaml", []byte(inventoryHead+"nodes:\n"+strings.Repeat("- name: a\n", 500)))
	if got := strings.Count(fmt.Sprint(err), "\n") + 1; got != maxSaid+1 {
		t.Errorf("%d lines of faults, want %d", got, maxSaid+1)
	}
}

func TestHostLists(t *testing.T) {
	for pattern, want := range map[string][]string{
		"a":               {"a"},
		"n[8-11]":         {"n8", "n9", "n10", "n11"},
		"n[08-11,20]x":    {"n08x", "n09x", "n10x", "n11x", "n20x"},
		"r[1-2]n[01, 03]": {"r1n01", "r1n03", "r2n01", "r2n03"},
	} {
		if got, err := expand(pattern); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", pattern, got, err)
		}
	}
}

// The nearer word holds: node before rack before row.
func TestInventoryInherits(t *testing.T) {
	inv := parseInventory(t, `rows:
- {name: row, racks: "r[1-2]", feed: f-row, cooling_domain: c-row, power_domain: p-row}
racks:
- {name: r1, feed: f-rack, nvlink_domain: nv}
- {name: r2}
nodes:
- {name: a, rack: r1, feed: f-node}
- {name: b, rack: r1}
- {name: c, rack: r2}
- {name: d, row: row}
- {name: e}
`)
	for i, want := range []string{"f-node/p-row/c-row/nv/row", "f-rack/p-row/c-row/nv/row", "f-row/p-row/c-row//row", "f-row/p-row/c-row//row", "////"} {
		n := inv.Nodes[i]
		if got := strings.Join([]string{n.Feed, n.PowerDomain, n.CoolingDomain, n.NVLinkDomain, n.Row}, "/"); got != want {
			t.Errorf("%s: %s, want %s", n.Name, got, want)
		}
	}
}

func FuzzInventory(f *testing.F) {
	f.Add("nodes:\n- name: n[1-3]\n  rack: r1\n")
	f.Add("rows: [{name: a, racks: [r1]}]\nbudgets: [{domain: x, power: 1e9MW}]\n")
	f.Fuzz(func(t *testing.T, body string) {
		inv, err := ParseInventory("i.yaml", []byte(inventoryHead+body))
		if err != nil {
			return
		}
		s := inv.Snapshot(time.Unix(1, 0))
		if err := telemetry.CheckInventory(&s); err != nil {
			t.Errorf("the file is taken and its snapshot is not: %v", err)
		}
	})
}
