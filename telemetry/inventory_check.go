package telemetry

import (
	"math"
	"unicode/utf8"
)

// Limits of what an inventory may say. They are far above any fleet.
const (
	MaxInventoryNodes     = 100_000
	MaxInventoryWorkloads = 200_000
	MaxInventoryMembers   = 1_000_000
	MaxTenants            = 10_000
	MaxBudgets            = 10_000
	MaxAliases            = 16
	MaxMarks              = 64
	MaxBudgetWatts        = 1e10
	maxInventoryText      = 256
)

// Reasons for which an inventory is refused, beside those of frames.
const (
	// DropShrunk is a snapshot that takes away most of what its source knew, until
	// the source has said so for a while.
	DropShrunk DropReason = "shrunk"
)

// InventoryDropReasons is every reason for which an inventory is refused.
var InventoryDropReasons = []DropReason{DropMalformed, DropTooMany, DropReordered, DropShrunk}

// CheckText refuses a name that is empty, too long, or no text.
func CheckText(s string) error {
	if s == "" {
		return drop(DropMalformed, "empty name")
	}
	return CheckWord(s)
}

// CheckWord refuses a description that is too long or no text.
func CheckWord(s string) error {
	switch {
	case len(s) > maxInventoryText:
		return drop(DropMalformed, "text of %d bytes, at most %d", len(s), maxInventoryText)
	case !utf8.ValidString(s):
		return drop(DropMalformed, "text is not UTF-8")
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return drop(DropMalformed, "text with a control character")
		}
	}
	return nil
}

// CheckInventory refuses a snapshot that cannot be true. The whole of it is
// refused: half of a source's word is not its word.
func CheckInventory(inv *Inventory) error {
	for _, c := range []struct {
		what      string
		have, max int
	}{
		{"nodes", len(inv.Nodes), MaxInventoryNodes}, {"workloads", len(inv.Workloads), MaxInventoryWorkloads},
		{"tenants", len(inv.Tenants), MaxTenants}, {"budgets", len(inv.Budgets), MaxBudgets},
	} {
		if c.have > c.max {
			return drop(DropTooMany, "%d %s, at most %d", c.have, c.what, c.max)
		}
	}
	if err := CheckText(inv.Source); err != nil {
		return err
	}
	seen := make(map[string]struct{}, len(inv.Nodes))
	for i := range inv.Nodes {
		n := &inv.Nodes[i]
		if _, twice := seen[n.Name]; twice {
			return drop(DropMalformed, "node %s twice", n.Name)
		}
		seen[n.Name] = struct{}{}
		if err := checkInventoryNode(n); err != nil {
			return err
		}
	}
	if err := checkWorkloads(inv.Workloads); err != nil {
		return err
	}
	for _, t := range inv.Tenants {
		if err := CheckText(t.Name); err != nil || !(t.Entitlement >= 0) || math.IsInf(t.Entitlement, 0) {
			return drop(DropMalformed, "tenant %q with entitlement %g", t.Name, t.Entitlement)
		}
	}
	for _, b := range inv.Budgets {
		if err := CheckText(b.Domain); err != nil || !(b.Watts >= 0) || b.Watts > MaxBudgetWatts || len(b.Nodes) > MaxInventoryNodes {
			return drop(DropMalformed, "budget of %q: %g W", b.Domain, b.Watts)
		}
	}
	return nil
}

func checkInventoryNode(n *InventoryNode) error {
	switch {
	case len(n.Aliases) > MaxAliases:
		return drop(DropTooMany, "node %s: %d aliases, at most %d", n.Name, len(n.Aliases), MaxAliases)
	case len(n.ExpectedUUIDs) > MaxGPUs || n.ExpectedGPUs > MaxGPUs:
		return drop(DropTooMany, "node %s: more than %d GPUs", n.Name, MaxGPUs)
	case n.ExpectedGPUs < 0:
		return drop(DropMalformed, "node %s: %d GPUs", n.Name, n.ExpectedGPUs)
	case len(n.Marks) > MaxMarks:
		return drop(DropTooMany, "node %s: %d marks, at most %d", n.Name, len(n.Marks), MaxMarks)
	}
	for _, list := range [][]string{{n.Name}, n.Aliases, n.ExpectedUUIDs} {
		for _, s := range list {
			if err := CheckText(s); err != nil {
				return err
			}
		}
	}
	for _, s := range []string{n.Rack, n.Row, n.Feed, n.PowerDomain, n.CoolingDomain, n.NVLinkDomain, n.NetworkDomain, n.Model} {
		if err := CheckWord(s); err != nil {
			return err
		}
	}
	for k, v := range n.Marks {
		if err := CheckText(k); err != nil {
			return err
		}
		if err := CheckWord(v); err != nil {
			return err
		}
	}
	return nil
}

func checkWorkloads(list []InventoryWorkload) error {
	members := 0
	for i := range list {
		w := &list[i]
		if members += len(w.Members); members > MaxInventoryMembers {
			return drop(DropTooMany, "more than %d members of workloads", MaxInventoryMembers)
		}
		if len(w.Ref) > 2*maxInventoryText {
			return drop(DropMalformed, "reference of %d bytes", len(w.Ref))
		}
		for _, s := range []string{w.Owner, w.Tenant, w.Gang, w.State, w.QueueOwner} {
			if err := CheckWord(s); err != nil {
				return err
			}
		}
		for _, m := range w.Members {
			if len(m.GPUs) > MaxGPUs || len(m.ID) > 2*maxInventoryText {
				return drop(DropMalformed, "member of %s with %d GPUs", w.Ref, len(m.GPUs))
			}
		}
	}
	return nil
}
