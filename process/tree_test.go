package process

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// row is a process of a test table, of user 1000 in cgroup /u unless changed.
func row(pid, parent, group, session int, name string, change ...func(*Info)) Info {
	i := Info{ID: ID{pid, uint64(1000 + pid)}, Parent: parent, Group: group, Session: session, UID: 1000, Name: name, State: "S", Threads: 1,
		Cgroup: "/u", Cgroups: []string{"/u"}}
	for _, c := range change {
		c(&i)
	}
	return i
}

func tableOf(rows ...Info) Table {
	t := Table{1: row(1, 0, 1, 1, "systemd", root)}
	for _, i := range rows {
		t[i.PID] = i
	}
	return t
}

func root(i *Info)   { i.UID = 0 }
func tty(i *Info)    { i.TTY = 34816 }
func zombie(i *Info) { i.State = "Z" }
func uid(n uint32) func(*Info) {
	return func(i *Info) { i.UID = n }
}
func cgroup(path string) func(*Info) {
	return func(i *Info) { i.Cgroup, i.Cgroups = path, []string{path} }
}

var alices = Rules{Users: []string{"1000"}}

func pids(all []Info) (out []int) {
	for _, i := range all {
		out = append(out, i.PID)
	}
	return out
}

// shell is alice at a terminal: sshd, her bash, and a job of it.
func shell(rows ...Info) Table {
	return tableOf(append([]Info{row(10, 1, 10, 10, "sshd", root), row(11, 10, 10, 10, "sshd"), row(12, 11, 12, 12, "bash", tty)}, rows...)...)
}

func TestRootsAndTrees(t *testing.T) {
	for _, c := range []struct {
		name  string
		table Table
		roots map[int]int // 0: not ours
		tree  []int       // of the first root
	}{
		{"a command at a terminal", shell(row(20, 12, 20, 12, "python3", tty)), map[int]int{20: 20}, []int{20}},
		{"a pipeline", shell(row(20, 12, 20, 12, "python3", tty), row(21, 12, 20, 12, "tee", tty)), map[int]int{20: 20, 21: 21}, []int{20}},
		{"a script", shell(row(20, 12, 20, 12, "bash", tty), row(21, 20, 20, 12, "python3", tty), row(22, 21, 20, 12, "python3", tty)), map[int]int{22: 20, 21: 20}, []int{20, 21, 22}},
		{"torchrun", shell(row(20, 12, 20, 12, "torchrun", tty), row(21, 20, 21, 21, "python3"), row(22, 20, 22, 22, "python3"), row(23, 22, 22, 22, "python3")),
			map[int]int{21: 20, 22: 20, 23: 20, 20: 20}, []int{20, 21, 22, 23}},
		{"torchrun alone in a terminal of tmux", tableOf(row(9, 1, 9, 9, "tmux: server"), row(20, 9, 20, 20, "torchrun", tty), row(21, 20, 21, 21, "python3"), row(22, 20, 20, 20, "pt_data", tty)),
			map[int]int{21: 20, 22: 20, 20: 20}, []int{20, 21, 22}},
		{"an unknown shell that controls jobs", tableOf(row(9, 1, 9, 9, "oddsh", tty), row(20, 9, 20, 9, "python3", tty)), map[int]int{20: 20}, []int{20}},
		{"systemd --user", tableOf(row(9, 1, 9, 9, "systemd"), row(20, 9, 20, 20, "python3")), map[int]int{20: 20}, []int{20}},
		{"cron", tableOf(row(8, 1, 8, 8, "cron", root), row(9, 8, 9, 9, "CRON"), row(20, 9, 20, 20, "sh"), row(21, 20, 20, 20, "python3")), map[int]int{21: 20}, []int{20, 21}},
		{"supervisord", tableOf(row(9, 1, 9, 9, "supervisord"), row(20, 9, 20, 20, "python3"), row(30, 9, 30, 30, "python3")), map[int]int{20: 20, 30: 30}, []int{20}},
		{"two notebooks", tableOf(row(9, 1, 9, 9, "jupyter-lab"), row(20, 9, 20, 20, "python3"), row(30, 9, 30, 30, "python3")), map[int]int{20: 20, 30: 30}, []int{20}},
		{"a container", tableOf(row(9, 1, 9, 9, "conmon"), row(20, 9, 20, 20, "tini", cgroup("/m/c1")), row(21, 20, 21, 21, "python3", cgroup("/m/c1"))), map[int]int{21: 20}, []int{20, 21}},
		{"another cgroup", shell(row(20, 12, 20, 12, "bash", tty), row(21, 20, 20, 12, "python3", cgroup("/v"))), map[int]int{21: 21, 20: 20}, []int{21}},
		{"sudo inside", shell(row(20, 12, 20, 12, "bash", tty), row(21, 20, 20, 12, "sudo", root), row(22, 21, 20, 12, "python3", root)), map[int]int{20: 20, 21: 0, 22: 0}, []int{20}},
		{"run by root for alice", shell(row(20, 12, 20, 12, "sudo", root), row(21, 20, 20, 12, "python3", tty)), map[int]int{21: 21, 20: 0}, []int{21}},
		{"another user", shell(row(20, 12, 20, 12, "python3", uid(1001))), map[int]int{20: 0}, nil},
		{"an orphan of a script", shell(row(20, 12, 20, 12, "bash", tty), row(21, 1, 20, 12, "python3", tty)), map[int]int{21: 20, 20: 20}, []int{20, 21}},
		{"an orphan of a worker", shell(row(20, 12, 20, 12, "torchrun", tty), row(21, 20, 21, 21, "python3"), row(22, 1, 21, 21, "python3"), row(23, 22, 22, 21, "python3")),
			map[int]int{22: 20, 23: 20}, []int{20, 21, 22, 23}},
		{"an orphan of a job at a terminal", shell(row(20, 1, 19, 12, "python3", tty)), map[int]int{20: 20}, []int{20}},
		{"an orphan under a subreaper", tableOf(row(9, 1, 9, 9, "systemd"), row(20, 9, 20, 20, "bash"), row(21, 9, 20, 20, "python3")), map[int]int{21: 20}, []int{20, 21}},
		{"a daemon whose leader is dead", tableOf(row(21, 1, 20, 20, "python3")), map[int]int{21: 21}, []int{21}},
		{"a zombie root", tableOf(row(20, 9, 20, 20, "bash", zombie, cgroup("/")), row(21, 1, 20, 20, "python3"), row(22, 21, 20, 20, "python3")), map[int]int{21: 20, 22: 20, 20: 20}, []int{21, 22}},
		{"a group with a younger leader", tableOf(row(20, 1, 21, 20, "python3"), row(21, 20, 21, 20, "python3")), map[int]int{20: 20, 21: 20}, []int{20, 21}},
		{"a step of Slurm without cgroups", tableOf(row(9, 1, 9, 9, "slurmstepd", root), row(20, 9, 20, 20, "bash"), row(21, 20, 20, 20, "python3")), map[int]int{20: 0, 21: 0}, nil},
		{"somebody who calls himself Slurm", tableOf(row(9, 1, 9, 9, "slurmstepd"), row(20, 9, 20, 20, "bash")), map[int]int{20: 9}, []int{9, 20}},
		{"not there", tableOf(), map[int]int{77: 0}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for pid, want := range c.roots {
				got, ok := c.table.Root(pid, alices)
				if ok != (want != 0) || got.PID != want || ok && got != c.table[want].ID {
					t.Errorf("root of %d is %v %v, want %d", pid, got, ok, want)
				}
			}
			if c.tree != nil {
				got := c.table.Tree(c.table[rootOf(c.table, c.tree[0])].ID, alices)
				if fmt.Sprint(pids(got)) != fmt.Sprint(c.tree) {
					t.Errorf("tree %v, want %v", pids(got), c.tree)
				}
			}
			partition(t, c.table)
		})
	}
}

func rootOf(t Table, pid int) int {
	id, _ := t.Root(pid, alices)
	return id.PID
}

// partition: every living process of ours is in the tree of its root, and in
// no other.
func partition(t *testing.T, table Table) {
	t.Helper()
	for pid, p := range table {
		own, ours := table.Root(pid, alices)
		for other := range table {
			if id, ok := table.Root(other, alices); !ok || id.PID != other {
				continue
			}
			in := slices.Contains(pids(table.Tree(table[other].ID, alices)), pid)
			if want := ours && !p.Dead() && own.PID == other; in != want {
				t.Errorf("%d in the tree of %d: %v, want %v", pid, other, in, want)
			}
		}
	}
}

// TestPartitionOfRandomTables: whatever the parents, groups and sessions.
func TestPartitionOfRandomTables(t *testing.T) {
	names := []string{"python3", "bash", "sshd", "torchrun", "systemd"}
	shared := 0
	for seed := range uint64(300) {
		rnd := seed*2654435761 + 1
		pick := func(n int) int {
			rnd ^= rnd << 13
			rnd ^= rnd >> 7
			rnd ^= rnd << 17
			return int(rnd % uint64(n))
		}
		table := tableOf()
		for pid := 2; pid < 14; pid++ {
			i := row(pid, 1+pick(13), 1+pick(13), 1+pick(13), names[pick(len(names))], uid(1000+uint32(pick(8)/7)))
			if pick(5) == 0 {
				tty(&i)
			}
			if pick(8) == 0 {
				zombie(&i)
			}
			i.Start = uint64(pick(4))
			table[pid] = i
		}
		for pid := range table {
			if id, ok := table.Root(pid, alices); ok && id.PID != pid {
				shared++
				if top, _ := table.Root(id.PID, alices); top != id && !loops(table, pid) {
					t.Errorf("seed %d: the root of %d is %d, whose root is %d", seed, pid, id.PID, top.PID)
				}
			}
		}
	}
	if shared < 100 {
		t.Errorf("only %d processes below another", shared)
	}
}

// loops says whether the parents of a random table go in a circle, as real
// ones cannot.
func loops(t Table, pid int) bool {
	j := judge(t, alices)
	seen := map[int]bool{}
	for p, ok := t[pid], true; ok; p, ok = j.up(p) {
		if seen[p.PID] {
			return true
		}
		seen[p.PID] = true
	}
	return false
}

func TestFamilyKeepsTogether(t *testing.T) {
	before := shell(row(20, 12, 20, 12, "torchrun", tty), row(21, 20, 21, 21, "python3"), row(22, 21, 21, 21, "python3"), row(40, 12, 40, 12, "vim", tty))
	f := Follow(before[20])
	members, strangers := f.Update(before, alices)
	if fmt.Sprint(pids(members), pids(strangers)) != "[20 21 22] []" {
		t.Fatalf("%v, %v", pids(members), pids(strangers))
	}
	update := func(table Table, want string) {
		t.Helper()
		members, strangers := f.Update(table, alices)
		if got := fmt.Sprint(pids(members), pids(strangers)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	// The root ends first; its worker is an orphan of its own session and starts
	// another process.
	after := maps.Clone(before)
	delete(after, 20)
	after[21] = row(21, 1, 21, 21, "python3")
	after[23] = row(23, 21, 21, 21, "python3")
	update(after, "[21 22 23] []")
	// All known ones end between two looks, and leave a child in their session.
	for _, pid := range []int{21, 22, 23} {
		delete(after, pid)
	}
	after[24] = row(24, 1, 21, 21, "python3")
	update(after, "[24] []")
	// A table misses it; the next has its child.
	missed := maps.Clone(after)
	delete(missed, 24)
	update(missed, "[] []")
	after[25] = row(25, 1, 21, 21, "python3")
	update(after, "[24 25] []")
	delete(after, 25)
	update(after, "[24] []")
	// Written down and read back it is the same, by the one that is known.
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	f = &Family{}
	if err := json.Unmarshal(data, f); err != nil {
		t.Fatal(err)
	}
	after[25] = row(25, 1, 21, 21, "python3")
	update(after, "[24 25] []")
	// A new process under the old pid leads a session of its own.
	delete(after, 24)
	delete(after, 25)
	update(after, "[] []")
	update(after, "[] []") // and is forgotten
	after[27] = row(27, 1, 21, 21, "python3")
	update(after, "[] []")
	delete(after, 27)
	after[21] = row(21, 12, 21, 21, "emacs", func(i *Info) { i.Start = 9999 })
	after[26] = row(26, 21, 21, 21, "python3", func(i *Info) { i.Start = 10000 })
	after[20] = row(20, 12, 20, 12, "make", tty, func(i *Info) { i.Start = 9999 })
	update(after, "[] []")
}

func TestFamilyNamesStrangers(t *testing.T) {
	table := shell(row(20, 12, 20, 12, "bash", tty), row(21, 20, 20, 12, "sudo", root), row(22, 21, 20, 12, "python3", root), row(23, 20, 20, 12, "python3", cgroup("/kubepods/p")),
		row(24, 20, 20, 12, "python3", zombie))
	members, strangers := Follow(table[20]).Update(table, alices)
	if fmt.Sprint(pids(members), pids(strangers)) != "[20] [21 22 23]" {
		t.Errorf("%v, %v", pids(members), pids(strangers))
	}
}
